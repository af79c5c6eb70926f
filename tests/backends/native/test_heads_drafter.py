"""Drafting by an EAGLE-3 head on the native backend: exact, in step with the model's states, whatever came before."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_heads import GREEDY, Always, Limit, eagle3_head, take

from runner.backends.base import Prefill, Step
from runner.backends.native.backend import NativeBackend
from runner.backends.native.blocks import go_on
from runner.backends.native.capture import capture_sequences
from runner.backends.native.heads.drafter import HeadDrafter
from runner.backends.native.heads.eagle3 import Eagle3Head
from runner.backends.native.heads.eagle3_config import eagle3_for
from runner.backends.native.heads.eagle3_files import save_eagle3
from runner.backends.native.kv_cache import KvCache
from runner.backends.native.model_files import read_config
from runner.backends.native.writing import load_writer
from runner.config import SamplingParams
from runner.errors import UnsupportedModel
from runner.quant.weights import open_weights
from runner.types import CancelToken
from tests.backends.native.tiny_models import load, make, ready, save

SAMPLED = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=5)
PENALIZED = SamplingParams(temperature=0.7, repeat_penalty=1.3, seed=6)
SAMPLING = {
    "greedy": GREEDY,
    "sampled": SAMPLED,
    "penalized": PENALIZED,
    "greedy penalized": replace(PENALIZED, temperature=0),
}
PROMPT = [int(token) for token in torch.randint(0, 256, (37,), generator=torch.Generator().manual_seed(2))]


def tiny(name: str, directory: Path) -> Path:
    return save(make(name, num_hidden_layers=4, max_position_embeddings=2048), directory)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny("qwen3", tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def head(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("head")
    save_eagle3(eagle3_head(read_config(model), norm_output=True, fc_norm=True), directory, dtype=torch.float32)
    return directory


@pytest.fixture
def backend(model: Path) -> NativeBackend:
    return load(ready(model), batch_size=16, ctx_size=1024)


def fresh(model: Path, head: Path, history: Sequence[int]) -> tuple[int, ...]:
    """What a head drafts after `history` that has heard all of it at once."""
    backend = load(ready(model), batch_size=1024, ctx_size=1024)
    drafter = backend.head_drafter("eagle3", head)
    backend.extend(history[:-1], CancelToken())
    return drafter.propose(history, GREEDY, Limit(6)).tokens


def drafted(drafter: HeadDrafter, history: Sequence[int]) -> tuple[int, ...]:
    return drafter.propose(history, GREEDY, Limit(6)).tokens


# --- exactness -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", SAMPLING)
def test_drafts_do_not_change_the_text(sampling: str, backend: NativeBackend, head: Path) -> None:
    params = SAMPLING[sampling]
    plain = take(backend, PROMPT, 50, params)
    speculator = Always(backend.head_drafter("eagle3", head))
    assert take(backend, PROMPT, 50, params, speculator) == plain
    assert take(backend, PROMPT, 30, params, speculator) == plain[:30]
    assert speculator.n_drafted > 150


@pytest.mark.parametrize("name", ["llama-biases", "gemma3", "gemma4", "olmo2", "qwen3-moe", "gpt-oss"])
def test_drafts_do_not_change_the_text_of_other_architectures(name: str, tmp_path: Path) -> None:
    backend = load(ready(tiny(name, tmp_path / "model")), ctx_size=128)
    save_eagle3(eagle3_head(read_config(tmp_path / "model")), tmp_path / "head")
    plain = take(backend, PROMPT, 25, SAMPLED)
    assert take(backend, PROMPT, 25, SAMPLED, Always(backend.head_drafter("eagle3", tmp_path / "head"))) == plain


def test_the_context_is_filled_to_its_end(model: Path, head: Path) -> None:
    backend = load(ready(model), ctx_size=64)
    plain = take(backend, PROMPT, 100)
    assert take(backend, PROMPT, 100, speculator=Always(backend.head_drafter("eagle3", head), 15)) == plain
    assert len(plain) == 64 - len(PROMPT)


# --- in step ---------------------------------------------------------------------------------------------------------


def test_drafts_depend_on_all_that_came_before(model: Path, head: Path) -> None:
    drafts = {fresh(model, head, [first, *PROMPT]) for first in range(20)}
    assert len(drafts) > 1, "the other tests distinguish histories"


def test_after_rounds_of_wrong_drafts_it_is_where_a_fresh_one_is(
    model: Path, head: Path, backend: NativeBackend
) -> None:
    drafter = backend.head_drafter("eagle3", head)
    for n in (1, 2, 7, 20):
        history = [*PROMPT, *take(backend, PROMPT, n, speculator=Always(drafter))]
        assert drafted(drafter, history) == fresh(model, head, history)


def test_a_chat_that_goes_on_and_an_answer_that_is_made_again(model: Path, head: Path, backend: NativeBackend) -> None:
    drafter = backend.head_drafter("eagle3", head)
    answer = take(backend, PROMPT, 9, speculator=Always(drafter))
    longer = [*PROMPT, *answer, 3, 1, 4, 1, 5]
    history = [*longer, *take(backend, longer, 5, speculator=Always(drafter))]
    assert drafted(drafter, history) == fresh(model, head, history)
    again = [*PROMPT, *take(backend, PROMPT, 7, SAMPLED, Always(drafter))]
    assert drafted(drafter, again) == fresh(model, head, again)


def test_a_request_that_is_cancelled_or_closed_in_any_place(model: Path, head: Path, backend: NativeBackend) -> None:
    drafter = backend.head_drafter("eagle3", head)
    speculator, cancel = Always(drafter), CancelToken()
    steps = backend.generate(PROMPT, GREEDY, cancel, speculator)
    assert [next(steps), next(steps)] == [Prefill(0, 37, 0), Prefill(16, 37, 0)]
    cancel.cancel()
    assert not list(steps)
    closed = backend.generate([*PROMPT[:20], 9], GREEDY, CancelToken(), speculator)
    next(closed)
    closed.close()
    history = [*PROMPT[:20], 9, *take(backend, [*PROMPT[:20], 9], 6, speculator=speculator)]
    assert drafted(drafter, history) == fresh(model, head, history)


def test_plain_steps_are_heard_but_not_computed(model: Path, head: Path, backend: NativeBackend) -> None:
    drafter = backend.head_drafter("eagle3", head)
    history = [*PROMPT, *take(backend, PROMPT, 30)]
    assert drafter._cache.length == 0
    assert drafted(drafter, history) == fresh(model, head, history)
    assert drafter._cache.length == len(history) - 1


@pytest.mark.parametrize("chunk", [16, 400, 1024])
def test_more_than_it_lets_wait_is_computed_on_the_way(chunk: int, model: Path, head: Path) -> None:
    backend = load(ready(model), batch_size=chunk, ctx_size=1024)
    drafter = backend.head_drafter("eagle3", head)
    prompt = [(7 * i) % 250 for i in range(700)]
    speculator = Always(drafter)
    history = [*prompt, *take(backend, prompt, 12, speculator=speculator)]
    assert drafted(drafter, history) == fresh(model, head, history)


def test_the_rows_of_a_prompt_are_computed_with_it_and_none_of_a_step(model: Path, head: Path) -> None:
    backend = load(ready(model), batch_size=1024, ctx_size=1024)
    drafter = backend.head_drafter("eagle3", head)
    backend.extend(PROMPT, CancelToken())
    assert (drafter._cache.length, len(drafter._waiting_ids)) == (len(PROMPT) - 1, 1)
    backend.extend(PROMPT[:16], CancelToken())
    assert (drafter._cache.length, len(drafter._waiting_ids)) == (len(PROMPT) - 1, 17)
    backend.extend(PROMPT, CancelToken())  # what waited comes before it
    assert (drafter._cache.length, len(drafter._waiting_ids)) == (2 * len(PROMPT) + 15, 1)
    history = [*PROMPT, *PROMPT[:16], *PROMPT, 7]
    assert drafted(drafter, history) == fresh(model, head, history)


def test_drafting_twice_after_the_same_gives_the_same(head: Path, backend: NativeBackend) -> None:
    drafter = backend.head_drafter("eagle3", head)
    history = [*PROMPT, *take(backend, PROMPT, 3, speculator=Always(drafter))]
    assert drafted(drafter, history) == drafted(drafter, history) != ()


def test_it_drafts_after_nothing_else_than_what_the_model_holds(head: Path, backend: NativeBackend) -> None:
    drafter = backend.head_drafter("eagle3", head)
    history = [*PROMPT, *take(backend, PROMPT, 3)]
    assert drafted(drafter, history[:-2]) == ()
    assert drafted(drafter, [*history, 1, 2]) == ()
    assert drafted(drafter, [5, *history[1:]]) == ()
    assert len(drafted(drafter, history)) == 6


def test_a_prompt_that_turns_off_in_the_middle_is_followed(head: Path, backend: NativeBackend) -> None:
    drafter = backend.head_drafter("eagle3", head)
    take(backend, PROMPT, 20, speculator=Always(drafter))
    other = [*PROMPT[:25], 250, 251]
    plain_backend_text = take(backend, other, 10)
    history = [*other, *plain_backend_text]
    assert len(drafted(drafter, history)) == 6
    assert drafter._cache.length == len(history) - 1


# --- a head that has learned -----------------------------------------------------------------------------------------


def trained(model: Path, text: Sequence[int], steps: int) -> Eagle3Head:
    """A head that has learned to guess `text`, from the model's own hidden states."""
    config = read_config(model)
    head = Eagle3Head(eagle3_for(config, draft_vocab_size=config.vocab_size, norm_output=True, fc_norm=True))
    head.initialize(torch.Generator().manual_seed(0))
    head.requires_grad_(True)
    decoder = load_writer(
        config, open_weights(ready(model), config), torch.device("cpu"), purpose="To test", hint="none"
    )
    tokens = torch.tensor([text])
    cache = KvCache.of(config, n_ctx=1024, dtype=torch.float32, device=torch.device("cpu"), batch=(1,))
    cache.reserve(len(text))
    with torch.no_grad():
        _, captured = capture_sequences(decoder, tokens, cache, head.config.captured(config.num_layers), go_on)
        embeddings = decoder.model.embed_tokens(tokens)
    optimizer = torch.optim.Adam(head.parameters(), lr=3e-3)
    for _ in range(steps):
        loss = torch.zeros(())
        for step, states in enumerate(head.unroll(captured, embeddings, 3)):
            loss = loss + torch.nn.functional.cross_entropy(head.logits(states)[0, :-1], tokens[0, 2 + step :])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return head


def test_a_head_that_was_trained_on_the_models_own_text_is_often_right(model: Path, tmp_path: Path) -> None:
    backend = load(ready(model), batch_size=16, ctx_size=1024)
    text = [*PROMPT, *take(backend, PROMPT, 120)]
    save_eagle3(trained(model, text, 60), tmp_path, dtype=torch.float32)
    speculator = Always(backend.head_drafter("eagle3", tmp_path))
    assert take(backend, PROMPT, 120, speculator=speculator) == text[len(PROMPT) :]
    assert speculator.acceptance > 0.5
    for prompt in (PROMPT, [*PROMPT[:30], 9, 9]):  # after a prompt that turned off, too
        take(backend, prompt, 5, speculator=speculator)
    again = Always(speculator.drafter)
    assert take(backend, PROMPT, 120, speculator=again) == text[len(PROMPT) :]
    assert again.acceptance > 0.5


# --- coming and going ------------------------------------------------------------------------------------------------


def test_it_says_what_it_holds_and_gives_it_back(head: Path, backend: NativeBackend) -> None:
    drafter = backend.head_drafter("eagle3", head)
    empty = drafter.nbytes
    take(backend, PROMPT, 3, speculator=Always(drafter))
    assert drafter.nbytes > empty > (head / "model.safetensors").stat().st_size // 2
    drafter.close()
    drafter.close()
    assert drafter.nbytes == 0
    assert backend._execution._capture is None  # type: ignore[attr-defined]
    assert drafted(drafter, PROMPT) == ()


def test_nothing_is_captured_when_no_head_asks(backend: NativeBackend) -> None:
    take(backend, PROMPT, 3)
    assert backend._execution._capture is None  # type: ignore[attr-defined]


def test_a_head_of_another_model_is_refused(head: Path, tmp_path: Path) -> None:
    other = save(make("qwen3", num_hidden_layers=4, hidden_size=24), tmp_path)
    with pytest.raises(UnsupportedModel, match="hidden states of 48, and the model has 24"):
        load(ready(other)).head_drafter("eagle3", head)


def test_a_head_needs_the_layers_that_it_reads(head: Path, tmp_path: Path, backend: NativeBackend) -> None:
    config = json.loads((head / "config.json").read_text())
    config["eagle_aux_hidden_state_layer_ids"] = [2, 18, 33]
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes((head / "model.safetensors").read_bytes())
    with pytest.raises(UnsupportedModel, match="the model has 4 layers"):
        backend.head_drafter("eagle3", tmp_path)
    assert len(take(backend, PROMPT, 2)) == 2


def test_a_directory_has_to_be_named(backend: NativeBackend) -> None:
    with pytest.raises(UnsupportedModel, match="none was named"):
        backend.head_drafter("eagle3", None)


def test_steps_say_which_tokens_were_drafted(model: Path, head: Path) -> None:
    backend = load(ready(model), ctx_size=128)
    speculator = Always(backend.head_drafter("eagle3", head))
    steps = [step for step in backend.generate(PROMPT, GREEDY, CancelToken(), speculator) if isinstance(step, Step)]
    assert sum(step.is_drafted for step in steps) == sum(done.n_accepted for done in speculator.rounds)
