"""Conversations with the real engine in its child process, on the scripted backend, or with a model of states."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runner.config import LoadOptions, SamplingParams
from runner.conversation import Conversation
from runner.engine_process import EngineProcess
from runner.errors import ContextOverflow, EngineDied
from runner.events import Finished, Progress, TextDelta
from runner.paths import user_paths
from runner.store import Store
from tests.backends.native.tiny_models import make, save


@pytest.fixture
def engine() -> Iterator[EngineProcess]:
    with EngineProcess(user_paths()) as made:
        yield made


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path / "chats.sqlite3")
    yield made
    made.close()


@pytest.fixture
def talk(engine: EngineProcess, store: Store, tmp_path: Path) -> Callable[..., Conversation]:
    def load(**script: object) -> Conversation:
        path = tmp_path / "a.script.json"
        path.write_text(json.dumps(script))
        for _ in engine.load(str(path), LoadOptions()):
            pass
        return Conversation(engine, model=str(path), store=store, params=SamplingParams(temperature=0))

    return load


def kept(conversation: Conversation, store: Store) -> list[tuple[str, str]]:
    turns = store.turns(str(conversation.session_id))
    assert turns == list(conversation.turns)
    return [(turn.content, turn.state) for turn in turns]


def test_a_chat_is_kept_with_model_backend_and_numbers(talk: Callable[..., Conversation], store: Store) -> None:
    conversation = talk(replies=["<one> é 👩‍👧", "two"])
    list(conversation.send("q1"))
    list(conversation.send("q2"))
    assert [content for content, _ in kept(conversation, store)] == ["q1", "<one> é 👩‍👧", "q2", "two"]
    assert store.get(str(conversation.session_id)).backend == "fake"
    assert conversation.turns[1].timings["completion_tokens"] == len("<one> é 👩‍👧".encode())
    list(conversation.regenerate())
    assert kept(conversation, store)[3] == ("two", "complete")


def test_an_engine_killed_in_an_answer_leaves_its_text_and_the_chat_goes_on(
    talk: Callable[..., Conversation], engine: EngineProcess, store: Store
) -> None:
    conversation = talk(replies=[{"text": "slow " * 1000, "token_s": 0.01}])
    shown = ""
    with pytest.raises(EngineDied):
        for event in conversation.send("q"):
            shown += event.text if isinstance(event, TextDelta) else ""
            if len(shown) > 20 and engine.pid:
                os.kill(engine.pid, signal.SIGKILL)
    assert kept(conversation, store) == [("q", "complete"), (shown, "error")]
    assert conversation.unsent == ""
    again = talk(replies=["x", "fine"])
    again.resume(str(conversation.session_id))
    list(again.send("go on"))
    assert kept(again, store)[-1] == ("fine", "complete")


def test_stopping_an_answer_keeps_its_beginning(talk: Callable[..., Conversation], store: Store) -> None:
    conversation = talk(replies=[{"text": "slow " * 1000, "token_s": 0.01}])
    shown = ""
    for event in conversation.send("q"):
        shown += event.text if isinstance(event, TextDelta) else ""
        if len(shown) >= 10:
            conversation.cancel()
    assert isinstance(event, Finished)
    assert event.reason == "cancelled"
    assert kept(conversation, store) == [("q", "complete"), (shown, "cancelled")]


def test_stopping_a_prefill_leaves_the_question_to_be_asked_again(
    talk: Callable[..., Conversation], store: Store
) -> None:
    conversation = talk(replies=["answer"], prefill_token_s=0.001)
    for event in conversation.send("word " * 400):
        if isinstance(event, Progress):
            conversation.cancel()
    assert [state for _, state in kept(conversation, store)] == ["complete"]
    list(conversation.regenerate())
    assert kept(conversation, store)[1] == ("answer", "complete")


def test_a_message_that_does_not_fit_the_context_is_handed_back(
    talk: Callable[..., Conversation], store: Store
) -> None:
    conversation = talk(replies=["one", "two"], n_ctx=256)
    list(conversation.send("q"))
    with pytest.raises(ContextOverflow):
        list(conversation.send("word " * 400))
    assert conversation.unsent == "word " * 400
    list(conversation.send("short"))
    assert [content for content, _ in kept(conversation, store)] == ["q", "one", "short", "two"]


def test_a_model_that_cannot_go_back_answers_again_and_is_asked_otherwise(
    engine: EngineProcess, store: Store, tmp_path: Path
) -> None:
    """Its layers keep a state, which is none of an earlier text."""
    model = save(make("qwen3-5", max_position_embeddings=1024), tmp_path / "qwen")
    turn = "<|begin|>{{ message.role }}: {{ message.content }}<|end|>"
    template = "{% for message in messages %}" + turn + "{% endfor %}<|begin|>assistant: "
    (model / "chat_template.jinja").write_text(template)

    def begun() -> Conversation:
        for _ in engine.load(str(model), LoadOptions(n_gpu_layers=0, n_threads=1)):
            pass
        params = SamplingParams(temperature=0, max_tokens=12)
        conversation = Conversation(engine, model=str(model), store=store, params=params)
        list(conversation.send("Tell me about cats."))
        return conversation

    conversation = begun()
    list(conversation.send("And of dogs?"))
    once = conversation.last_answer
    list(conversation.regenerate())
    assert conversation.last_answer == once
    list(conversation.edit_last("And of horses?"))
    fresh = begun()
    list(fresh.send("And of horses?"))
    assert conversation.last_answer == fresh.last_answer != once
