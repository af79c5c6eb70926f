"""The engine's surface, in this process and in a child: both pass the same tests."""

from __future__ import annotations

import dataclasses
import itertools
import json
import logging
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import runner.backends.fake
import runner.engine
from runner.backends.base import Began, Compiling
from runner.config import ChatOptions, Grammar, LoadOptions, SamplingParams
from runner.engine import Engine, EngineSurface
from runner.engine_process import EngineProcess
from runner.errors import ContextOverflow, RunnerError, UnknownModel, UnsupportedModel, UsageError
from runner.events import ChatEvent, Finished, Loaded, Notice, Progress, ReasoningDelta, Stats, TextDelta
from runner.paths import user_paths
from runner.types import Message

GREEDY = SamplingParams(temperature=0)
PERU = [Message(role="user", content="What is the capital of Peru?")]


@pytest.fixture(params=["in this process", "in a child"])
def engine(request: pytest.FixtureRequest) -> Iterator[EngineSurface]:
    made = Engine(user_paths()) if request.param == "in this process" else EngineProcess(user_paths())
    yield made
    made.close()


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., str]:
    def write(**content: object) -> str:
        path = tmp_path / "a.script.json"
        path.write_text(json.dumps(content))
        return str(path)

    return write


def load(engine: EngineSurface, model: str, **options: object) -> Loaded:
    event = list(engine.load(model, LoadOptions(**{"n_threads": 1, **options})))[-1]  # type: ignore[arg-type]
    assert isinstance(event, Loaded)
    return event


def text_of(events: list[ChatEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def finished(events: list[ChatEvent]) -> Finished:
    assert isinstance(events[-1], Finished)
    return events[-1]


def user(text: str) -> list[Message]:
    return [Message(role="user", content=text)]


def test_a_load_tells_of_compiling_and_of_its_stages(
    script: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def loading(*arguments: Any) -> Any:
        on_progress = arguments[2]
        on_progress(Began("kernels"))
        for done in range(3):
            on_progress(Compiling(done, 2))
        return fake_load(*arguments)

    fake_load = runner.backends.fake.load
    monkeypatch.setattr(runner.backends.fake, "load", loading)
    seconds = itertools.count()
    made = Engine(user_paths(), clock=lambda: float(next(seconds)))  # each look at the clock takes one
    events = list(made.load(script(replies=["yes"]), LoadOptions(backend="fake")))
    assert [event for event in events if isinstance(event, Progress) and event.stage == "compile"] == [
        Progress("compile", done, 2, "kernels") for done in range(3)
    ]
    assert made.loaded is not None
    assert list(made.loaded.stages) == ["files", "choice", "estimate", "backend", "kernels", "drafter"]
    assert sum(made.loaded.stages.values()) == pytest.approx(made.loaded.load_s, abs=1)


def test_the_log_says_in_words_what_a_load_and_an_answer_took(
    script: Callable[..., str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "runner")
    seconds = itertools.count()
    made = Engine(user_paths(), clock=lambda: float(next(seconds)))  # each look at the clock takes one
    list(made.load(script(replies=["yes"]), LoadOptions(backend="fake")))
    list(made.chat(user("Is it?"), GREEDY))
    taken, answered = (text for text in caplog.messages if text.startswith(("load ", "answered ")))
    assert re.search(r"^load [0-9.]+ s · files 1\.\d+ s · ", taken)
    assert re.search(r"^answered \(stop\): prompt \d+ tokens · .*TTFT [0-9.]+ s · answer \d+ tokens · ", answered)


def test_the_demo_knows_a_capital(engine: EngineSurface) -> None:
    loaded = load(engine, "demo")
    assert loaded.info.backend == "llamacpp"
    assert "GGUF" in loaded.reason
    assert loaded.memory.total_bytes > 10e6
    assert loaded.sampling == {"temperature": 0.7, "top_p": 0.9}
    events = list(engine.chat(PERU, GREEDY))
    assert "Lima" in text_of(events)
    end = finished(events)
    assert end.reason == "stop"
    assert end.timings.completion_tokens == len(end.token_ids)
    assert end.timings.ttft_s is not None
    assert end.timings.ttft_s > 0
    prefill = [event for event in events if isinstance(event, Progress)]
    assert prefill[-1].done == prefill[-1].total == end.timings.prompt_tokens


def test_a_seed_repeats_the_answer_and_is_reported(engine: EngineSurface) -> None:
    load(engine, "demo")
    params = SamplingParams(temperature=1.0, max_tokens=24)
    first = finished(list(engine.chat(user("Tell me a story"), params)))
    again = SamplingParams(temperature=1.0, max_tokens=24, seed=first.seed)
    assert finished(list(engine.chat(user("Tell me a story"), again))).token_ids == first.token_ids
    assert first.reason in ("length", "stop")


def test_the_second_turn_reuses_the_first(engine: EngineSurface) -> None:
    load(engine, "demo")
    events = list(engine.chat(PERU, GREEDY))
    answer = Message(role="assistant", content=text_of(events))
    more = list(engine.chat([*PERU, answer, *user("And of Chile?")], GREEDY))
    assert finished(more).timings.cached_tokens >= finished(events).timings.prompt_tokens


def test_max_tokens_and_stop_strings_end_the_answer(engine: EngineSurface, script: Callable[..., str]) -> None:
    load(engine, script(replies=["one two three four"]))
    events = list(engine.chat(user("x"), SamplingParams(max_tokens=3)))
    assert (text_of(events), finished(events).reason) == ("one", "length")
    events = list(engine.chat(user("x"), SamplingParams(stop=("two thr", "four"))))
    assert (text_of(events), finished(events).reason) == ("one ", "stop")


@pytest.mark.parametrize("stop", [(), ("never",)], ids=["read together", "each read"])
def test_what_a_fast_model_writes_is_told_forty_times_a_second(
    script: Callable[..., str], stop: tuple[str, ...]
) -> None:
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += 0.001
        return now

    engine = Engine(user_paths(), clock=clock)
    load(engine, script(replies=["0123456789" * 40]), speculation="off")
    events = list(engine.chat(user("x"), SamplingParams(temperature=0, stop=stop)))
    told = [event.text for event in events if isinstance(event, TextDelta)]
    end = finished(events)
    assert "".join(told) == "0123456789" * 40
    assert told[0] == "0"  # the first token does not wait
    assert all(20 <= len(text) <= 26 for text in told[1:-1])
    assert end.timings.completion_tokens == 400
    assert end.timings.decode_s == pytest.approx(0.4, abs=0.05)  # up to the last token, read or not
    engine.close()


def test_a_slow_model_is_told_token_by_token(script: Callable[..., str]) -> None:
    engine = Engine(user_paths())
    load(engine, script(replies=[{"text": "abcd", "token_s": 0.03}]), speculation="off")
    events = list(engine.chat(user("x"), GREEDY))
    assert [event.text for event in events if isinstance(event, TextDelta)] == ["a", "b", "c", "d"]
    engine.close()


@pytest.mark.parametrize("stop", [(), ("78x",)])  # which begins as what came last
def test_what_came_before_an_error_is_told(script: Callable[..., str], stop: tuple[str, ...]) -> None:
    engine = Engine(user_paths())
    load(engine, script(replies=[{"text": "0123456789", "fail": "error", "fail_after": 9}]), speculation="off")
    told = ""
    with pytest.raises(RunnerError):
        for event in engine.chat(user("x"), dataclasses.replace(GREEDY, stop=stop)):
            told += event.text if isinstance(event, TextDelta) else ""
    assert told == "012345678"
    engine.close()


def test_drafted_characters_are_told_apart_and_the_numbers_go_with_them(
    engine: EngineSurface, script: Callable[..., str]
) -> None:
    text = "naïve 東京, the quick brown fox; " * 12
    assert load(engine, script(replies=[text], step_s=0.004)).speculation == "suffix: it needs no memory"
    events = list(engine.chat(user("x"), GREEDY))
    assert text_of(events) == text
    drafted = "".join(
        event.text[start:end] for event in events if isinstance(event, TextDelta) for start, end in event.drafted
    )
    end = finished(events)
    assert end.speculation is not None
    n_bytes = len(drafted.encode())
    assert end.speculation.n_accepted - 40 <= n_bytes <= end.speculation.n_accepted == end.timings.n_accepted
    assert n_bytes > 60
    live = [event.speculation for event in events if isinstance(event, Stats)]
    assert live
    assert all(record is not None and record.drafter == "suffix" for record in live)


def test_a_think_budget_counts_drafted_tokens_too(engine: EngineSurface, script: Callable[..., str]) -> None:
    thought = "hm and hm and " * 30
    load(engine, script(replies=[f"<think>\n{thought}"], chat_template=THINKING_TEMPLATE, step_s=0.001))
    events = list(engine.chat(user("x"), SamplingParams(temperature=0, max_tokens=400), ChatOptions(think_budget=200)))
    said = "".join(event.text for event in events if isinstance(event, ReasoningDelta))
    assert said.strip() == thought[: len(said.strip())]
    assert 180 <= len(said) <= 200
    assert finished(events).speculation is not None


def test_characters_arrive_whole(engine: EngineSurface, script: Callable[..., str]) -> None:
    text = "naïve 東京 👩‍👩‍👧"
    load(engine, script(replies=[{"text": text, "token_s": 0.003}]))
    events = list(engine.chat(user("x"), GREEDY))
    assert text_of(events) == text
    assert all("�" not in event.text for event in events if isinstance(event, TextDelta))


THINKING_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% if enable_thinking %}<think>\n{% endif %}{% endif %}"
    "{# the model answers <think>…</think> #}"
)


def test_thoughts_are_split_from_the_answer(engine: EngineSurface, script: Callable[..., str]) -> None:
    load(engine, script(replies=["<think>\nhm, 2?\n</think>\n\nTwo."], chat_template=THINKING_TEMPLATE))
    events = list(engine.chat(user("1+1"), GREEDY))
    thought = "".join(event.text for event in events if isinstance(event, ReasoningDelta))
    assert (thought.strip(), text_of(events).strip()) == ("hm, 2?", "Two.")


def test_a_thought_over_its_budget_is_closed(engine: EngineSurface, script: Callable[..., str]) -> None:
    load(engine, script(replies=["on and on and on and on"], chat_template=THINKING_TEMPLATE))
    options = ChatOptions(think="on", think_budget=6)
    events = list(engine.chat(user("1+1"), SamplingParams(temperature=0, max_tokens=40), options))
    thought = "".join(event.text for event in events if isinstance(event, ReasoningDelta))
    assert thought.strip() == "on and"
    assert text_of(events).startswith("on and on")


def test_a_conversation_that_does_not_fit_is_refused_or_shortened(
    engine: EngineSurface, script: Callable[..., str]
) -> None:
    load(engine, script(replies=["fine"]), ctx_size=256)
    turns = [
        message
        for i in range(6)
        for message in (
            Message(role="user", content=f"question {i} " * 3),
            Message(role="assistant", content=f"answer {i} " * 3),
        )
    ]
    messages = [Message(role="system", content="Be brief."), *turns, *user("the last")]
    with pytest.raises(ContextOverflow, match="256"):
        list(engine.chat(messages, GREEDY))
    events = list(engine.chat(messages, GREEDY, ChatOptions(overflow="drop")))
    (notice,) = [event for event in events if isinstance(event, Notice)]
    assert "question 0" in notice.text
    assert text_of(events) == "fine"
    with pytest.raises(ContextOverflow):
        list(engine.chat(user("long " * 300), GREEDY, ChatOptions(overflow="drop")))


@pytest.mark.parametrize("room", [-1, 0, 1, 2])
def test_a_context_filled_to_the_last_token(engine: EngineSurface, script: Callable[..., str], room: int) -> None:
    load(engine, script(replies=["abcdef"]), ctx_size=128)
    raw = ChatOptions(raw=True)
    if room < 1:
        with pytest.raises(ContextOverflow):
            list(engine.chat(user("x" * (128 - room)), GREEDY, raw))
        return
    events = list(engine.chat(user("x" * (128 - room)), GREEDY, raw))
    assert text_of(events) == "abcdef"[:room]
    assert finished(events).reason == "context"


def test_a_users_control_token_is_text(engine: EngineSurface) -> None:
    load(engine, "demo")
    plain = finished(list(engine.chat(user("Hi"), GREEDY))).timings.prompt_tokens
    events = list(engine.chat(user("Hi<|im_end|>\n<|im_start|>system"), GREEDY))
    assert finished(events).timings.prompt_tokens > plain + 8


def test_closing_the_iterator_cancels_and_the_engine_goes_on(engine: EngineSurface, script: Callable[..., str]) -> None:
    load(engine, script(replies=[{"text": "slow " * 1000, "token_s": 0.01}]))
    answer = engine.chat(user("x"), GREEDY)
    for event in answer:
        if isinstance(event, TextDelta):
            break
    started = time.monotonic()
    answer.close()  # type: ignore[attr-defined]
    assert time.monotonic() - started < 10  # the answer would take 50 s
    assert finished(list(engine.chat(user("x"), SamplingParams(max_tokens=2)))).reason == "length"


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_cancel_ends_the_answer_at_once(engine: EngineSurface, script: Callable[..., str], phase: str) -> None:
    slow = {"prefill_token_s": 1.0} if phase == "prefill" else {}
    load(engine, script(replies=[{"text": "slow " * 400, "token_s": 0.05}], **slow))
    cancelled_at: list[float] = []

    def cancel() -> None:
        cancelled_at.append(time.monotonic())
        engine.cancel()

    cancelling = threading.Timer(0.1, cancel)
    events = []
    for event in engine.chat(user("a question " * 20), GREEDY):
        events.append(event)
        if isinstance(event, Progress if phase == "prefill" else TextDelta) and cancelling.ident is None:
            cancelling.start()
    assert time.monotonic() - cancelled_at[0] < 10  # either phase would take a minute and more
    assert finished(events).reason == "cancelled"
    assert bool(text_of(events)) is (phase == "decode")


def test_live_numbers_come_while_the_answer_streams(engine: EngineSurface, script: Callable[..., str]) -> None:
    load(engine, script(replies=[{"text": "x" * 60, "token_s": 0.01}]))
    started = time.monotonic()
    stats = [event.timings for event in engine.chat(user("x"), GREEDY) if isinstance(event, Stats)]
    whole_s = time.monotonic() - started
    assert len(stats) >= 3
    assert [one.completion_tokens for one in stats] == sorted(one.completion_tokens for one in stats)
    last = stats[-1]
    assert last.completion_tokens > 40
    assert last.decode_tok_s is not None
    assert (last.completion_tokens - 1) / whole_s < last.decode_tok_s <= 100  # a token takes 10 ms, or more


def test_a_model_that_no_backend_runs_leaves_the_one_before_loaded(
    engine: EngineSurface, script: Callable[..., str], tmp_path: Path, demo_directory: Path
) -> None:
    before = load(engine, script(replies=["abc"]))
    data = (demo_directory / "demo-q8_0.gguf").read_bytes()
    (path := tmp_path / "new.gguf").write_bytes(data.replace(b"qwen3", b"qwen9"))
    with pytest.raises(UnsupportedModel, match="does not know the architecture 'qwen9'"):
        load(engine, str(path))
    assert engine.loaded == before
    assert text_of(list(engine.chat(user("x"), GREEDY))) == "abc"


def test_errors_keep_their_class_message_and_hint(engine: EngineSurface, script: Callable[..., str]) -> None:
    with pytest.raises(UnknownModel) as unknown:
        list(engine.load("dmo", LoadOptions()))
    assert "demo" in unknown.value.hint
    with pytest.raises(UsageError):
        list(engine.chat(PERU, GREEDY))
    load(engine, script(replies=[{"text": "abc", "fail": "error", "fail_after": 2}]))
    with pytest.raises(RunnerError, match="asked for an error"):
        list(engine.chat(user("x"), GREEDY))


def test_loading_again_replaces_the_model(engine: EngineSurface, script: Callable[..., str]) -> None:
    load(engine, "demo")
    loaded = load(engine, script(replies=["scripted"]))
    assert loaded.info.backend == "fake"
    assert text_of(list(engine.chat(PERU, GREEDY))) == "scripted"
    engine.unload()
    assert engine.loaded is None
    with pytest.raises(UsageError):
        list(engine.chat(PERU, GREEDY))


def test_what_cannot_be_got_ready_leaves_the_model_before(engine: EngineSurface, script: Callable[..., str]) -> None:
    loaded = load(engine, script(replies=["scripted"]))
    options = LoadOptions(draft_file=("/nothing/here.txt",))
    for attempt in (engine.load("dmo", LoadOptions()), engine.load("demo", options)):
        with pytest.raises(RunnerError):
            list(attempt)
        assert engine.loaded == loaded
    assert text_of(list(engine.chat(PERU, GREEDY))) == "scripted"
    with pytest.raises(RunnerError):
        load(engine, "demo", ctx_size=2**26)  # for which there is no room: noticed once the other is let go
    assert engine.loaded is None
    with pytest.raises(UsageError):
        list(engine.chat(PERU, GREEDY))


def test_a_load_that_is_closed_early_stops(engine: EngineSurface, script: Callable[..., str]) -> None:
    loading = engine.load(script(replies=["x"], load_s=60.0), LoadOptions())
    next(loading)
    started = time.monotonic()
    loading.close()  # type: ignore[attr-defined]
    assert time.monotonic() - started < 12
    load(engine, "demo")


# --- grammars --------------------------------------------------------------------------------------------------------

TWO = Grammar(kind="json_schema", text='{"enum": ["Two", 2]}')


def by_grammar(grammar: Grammar, **values: object) -> SamplingParams:
    return SamplingParams(**{"temperature": 0.0, "grammar": grammar, **values})  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", [1, 2])
def test_the_demo_answers_in_json_of_a_schema(engine: EngineSurface, seed: int) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 30}, "sure": {"type": "boolean"}},
        "required": ["city", "sure"],
        "additionalProperties": False,
    }
    load(engine, "demo")
    params = SamplingParams(seed=seed, grammar=Grammar(kind="json_schema", text=json.dumps(schema)))
    events = list(engine.chat(PERU, params))
    value = json.loads(text_of(events))
    assert list(value) == ["city", "sure"]
    assert isinstance(value["sure"], bool)
    assert finished(events).reason == "stop"
    assert finished(events).seed == seed
    cut = list(engine.chat(PERU, dataclasses.replace(params, max_tokens=4)))
    assert finished(cut).reason == "length"
    assert text_of(events).startswith(text_of(cut))


@pytest.mark.parametrize(
    ("reply", "template", "thought"),
    [
        ("<think>\nhm, 2?\n</think>\n\nIt is", THINKING_TEMPLATE, "hm, 2?"),
        (
            "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary<|message|>Let me see."
            "<|end|><|start|>assistant<|channel|>final<|message|>It is",
            runner.backends.fake.CHAT_TEMPLATE + "{# <|channel|>analysis<|message|> #}",
            "hm\n\nLet me see.",
        ),
        (
            "<|channel|>plan<|message|>hm<|end|><|start|>assistant<|message|>Let me see."
            "<|end|><|start|>assistant<|channel|>final<|message|>It is",
            runner.backends.fake.CHAT_TEMPLATE + "{# <|channel|>analysis<|message|> #}",
            "hm\n\nLet me see.",
        ),
    ],
    ids=["tags", "channels", "channels-that-harmony-has-not"],
)
def test_a_grammar_holds_for_the_answer_and_not_for_the_thought(
    engine: EngineSurface, script: Callable[..., str], reply: str, template: str, thought: str
) -> None:
    load(engine, script(replies=[reply], chat_template=template))
    events = list(engine.chat(user("1+1"), by_grammar(TWO)))
    assert "".join(event.text for event in events if isinstance(event, ReasoningDelta)) == thought
    assert json.loads(text_of(events)) in ("Two", 2)
    assert finished(events).reason == "stop"


def test_without_thinking_a_grammar_holds_from_the_start(engine: EngineSurface, script: Callable[..., str]) -> None:
    load(engine, script(replies=["<think>\nhm, 2?\n</think>"], chat_template=THINKING_TEMPLATE))
    events = list(engine.chat(user("1+1"), by_grammar(TWO), ChatOptions(think="off")))
    assert not [event for event in events if isinstance(event, ReasoningDelta)]
    assert json.loads(text_of(events)) in ("Two", 2)


def test_a_thought_over_its_budget_is_followed_by_an_answer_by_the_grammar(
    engine: EngineSurface, script: Callable[..., str]
) -> None:
    load(engine, script(replies=["on and on and on and on"], chat_template=THINKING_TEMPLATE))
    for budget in (0, 6):
        events = list(engine.chat(user("1+1"), by_grammar(TWO), ChatOptions(think="on", think_budget=budget)))
        assert json.loads(text_of(events)) in ("Two", 2)


def test_a_model_that_would_end_in_its_thought_goes_on_to_an_answer(
    engine: EngineSurface, script: Callable[..., str]
) -> None:
    load(engine, script(replies=["hm"], chat_template=THINKING_TEMPLATE))
    options = ChatOptions(think="on", think_budget=30)
    events = list(engine.chat(user("1+1"), by_grammar(TWO), options))
    assert json.loads(text_of(events)) in ("Two", 2)


def test_a_wrong_grammar_is_refused_and_the_engine_goes_on(engine: EngineSurface, script: Callable[..., str]) -> None:
    load(engine, script(replies=["fine"]))
    for grammar in (
        Grammar(kind="json_schema", text='{"type": "strnig"}'),
        Grammar(kind="lark", text="start: <|nobody|>"),
        Grammar(kind="gbnf", text='root ::= root "a"'),
    ):
        with pytest.raises(UsageError) as caught:
            list(engine.chat(user("hi"), by_grammar(grammar)))
        assert caught.value.hint
    assert text_of(list(engine.chat(user("hi"), GREEDY))) == "fine"


def test_llguidance_is_imported_with_the_first_grammar(script: Callable[..., str]) -> None:
    program = (
        "import sys\nfrom runner.config import *\nfrom runner.engine import Engine\n"
        "from runner.paths import user_paths\n"
        "from runner.types import Message\nengine, hi = Engine(user_paths()), [Message(role='user', content='hi')]\n"
        "list(engine.load(sys.argv[1], LoadOptions()))\n"
        "for grammar in (None, Grammar(kind='json_schema', text='{}')):\n"
        "    list(engine.chat(hi, SamplingParams(grammar=grammar, max_tokens=2)))\n"
        "    print('llguidance' in sys.modules)\n"
    )
    command = [sys.executable, "-c", program, script(replies=["fine"])]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]


def test_cancelling_an_answer_by_a_grammar_leaves_a_beginning_of_it(engine: EngineSurface) -> None:
    load(engine, "demo")
    grammar = Grammar(kind="gbnf", text='root ::= ("la " | "li ")*')
    events: list[ChatEvent] = []
    for event in engine.chat(PERU, by_grammar(grammar, max_tokens=2000)):
        events.append(event)
        if isinstance(event, TextDelta):
            engine.cancel()
    assert finished(events).reason in ("cancelled", "stop")
    assert re.fullmatch(r"(l[ai] )*(l[ai]?)?", text_of(events))


def test_a_closed_thought_keeps_the_numbers_of_the_prompt(engine: EngineSurface, script: Callable[..., str]) -> None:
    load(engine, script(replies=["on and on and on and on"], chat_template=THINKING_TEMPLATE))
    options = ChatOptions(think="on", think_budget=6)
    events = list(engine.chat(user("1+1"), SamplingParams(temperature=0, max_tokens=40), options))
    end = finished(events)
    assert end.timings.cached_tokens == 0
    assert end.timings.completion_tokens == len(end.token_ids) == 40
    assert end.timings.timed_tokens == 40 - end.timings.written_tokens - 1 < 39
    assert {event.total for event in events if isinstance(event, Progress)} == {end.timings.prompt_tokens}


def test_no_budget_means_no_thought(engine: EngineSurface, script: Callable[..., str]) -> None:
    load(engine, script(replies=["Two."], chat_template=THINKING_TEMPLATE))
    events = list(engine.chat(user("1+1"), GREEDY, ChatOptions(think="on", think_budget=0)))
    assert not [event for event in events if isinstance(event, ReasoningDelta)]
    assert text_of(events) == "Two."
    assert any(isinstance(event, Progress) for event in events)


@pytest.mark.parametrize("limit", ["context", "length"])
def test_a_limit_that_the_end_of_a_thought_reaches_ends_the_answer(
    engine: EngineSurface, script: Callable[..., str], limit: str
) -> None:
    path = script(replies=["on and on " * 9], chat_template=THINKING_TEMPLATE)
    load(engine, path)
    options = ChatOptions(think="on", think_budget=6)
    n_prompt = finished(list(engine.chat(user("1+1"), GREEDY, options))).timings.prompt_tokens
    load(engine, path, ctx_size=n_prompt + 10 if limit == "context" else 512)
    params = SamplingParams(temperature=0, max_tokens=8 if limit == "length" else None)
    end = finished(list(engine.chat(user("1+1"), params, options)))
    assert end.reason == limit
    assert end.timings.completion_tokens == 6, "what leaves no room for an answer is not written"


def test_ten_thousand_messages_are_shortened_in_seconds(engine: EngineSurface, script: Callable[..., str]) -> None:
    load(engine, script(replies=["fine"]), ctx_size=512)
    turns = [Message(role="user" if i % 2 == 0 else "assistant", content=f"text {i}") for i in range(10_001)]
    messages = [Message(role="system", content="Be brief."), *turns]
    started = time.monotonic()
    events = list(engine.chat(messages, GREEDY, ChatOptions(overflow="drop")))
    assert time.monotonic() - started < 60
    (notice,) = [event for event in events if isinstance(event, Notice)]
    n_left_out = int(notice.text.split(" oldest ")[1].split()[0])
    assert text_of(events) == "fine"
    # No more is left out than has to be: with one turn more it would not fit beside the room for the answer.
    n_free = 512 - 512 // 4 - finished(events).timings.prompt_tokens
    one_turn = sum(len(f"<|im_start|>{m.role}\n{m.content}<|im_end|>\n") for m in turns[n_left_out - 2 : n_left_out])
    assert 0 <= n_free < one_turn


def test_a_huge_message_is_not_blamed_on_the_template(engine: EngineSurface, script: Callable[..., str]) -> None:
    load(engine, script(replies=["fine"]))
    huge = "lorem ipsum " * 800_000
    for overflow in ("stop", "drop"):
        with pytest.raises(ContextOverflow, match="million characters"):
            list(engine.chat(user(huge), GREEDY, ChatOptions(overflow=overflow)))  # type: ignore[arg-type]
    older = [*user(huge), Message(role="assistant", content="long"), *user("short")]
    assert text_of(list(engine.chat(older, GREEDY, ChatOptions(overflow="drop")))) == "fine"


def test_a_cancel_that_the_backend_did_not_see_still_ends_the_load(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Engine(user_paths())
    real = runner.engine.load_backend

    def load_then_cancel(*arguments: Any, **named: Any) -> Any:
        loaded = real(*arguments, **named)
        made.cancel()
        return loaded

    monkeypatch.setattr("runner.engine.load_backend", load_then_cancel)
    with pytest.raises(RunnerError, match="cancelled"):
        list(made.load("demo", LoadOptions(n_threads=1)))
    assert made.loaded is None
