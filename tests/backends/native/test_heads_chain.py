"""A head's draft as a chain on the device: the tokens that the host would choose one by one, waited for once.

The model is computed by the plain modules, the head's attention and the choice by kernels: on a GPU, or in Triton's
interpreter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from test_heads_drafter import GREEDY, PENALIZED, PROMPT, SAMPLED
from test_heads_mtp import with_head
from tiny_heads import Always, Limit, eagle3_head, take
from tiny_models import load, make, ready, save

from runner.backends.native import opening
from runner.backends.native.backend import NativeBackend
from runner.backends.native.capture import Interior
from runner.backends.native.execution import PlainExecution
from runner.backends.native.heads import drafter as drafter_module
from runner.backends.native.heads.chain import HeadChain
from runner.backends.native.heads.drafter import HeadDrafter
from runner.backends.native.heads.eagle3_files import save_eagle3
from runner.backends.native.model_files import read_config
from runner.backends.native.placement import Placement
from runner.config import SamplingParams
from runner.types import CancelToken

FEW = PROMPT[:4]


@pytest.fixture(autouse=True)
def where_the_kernels_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is a GPU the plain modules compute there, in float32 too."""
    if torch.cuda.is_available():
        on_gpu = Placement(
            device=torch.device("cuda"), dtype=torch.float32, kv_dtype=torch.float32, name="GPU", has_kernels=False
        )
        monkeypatch.setattr(opening, "place", lambda _: on_gpu)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(make("qwen3", num_hidden_layers=3), tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def head(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With all norms, and a part of the vocabulary."""
    made = eagle3_head(read_config(model), norm_output=True, fc_norm=True, capture_layers=(0, 1, 3))
    directory = tmp_path_factory.mktemp("head")
    save_eagle3(made, directory, dtype=torch.float32)
    return directory


@pytest.fixture(scope="module")
def whole_head(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Without norms, and with all of the vocabulary."""
    config, directory = read_config(model), tmp_path_factory.mktemp("whole")
    made = eagle3_head(config, draft_vocab_size=config.vocab_size, capture_layers=(0, 1, 3))
    save_eagle3(made, directory, dtype=torch.float32)
    return directory


@pytest.fixture
def backend(model: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NativeBackend]:
    """One whose heads find the kernels."""
    plain: Callable[[PlainExecution], Interior] = PlainExecution.interior
    monkeypatch.setattr(PlainExecution, "interior", lambda self: replace(plain(self), has_kernels=True))
    monkeypatch.setattr(drafter_module, "_USUAL_ROWS", (1,))
    backend = load(ready(model), batch_size=16, ctx_size=64)
    yield backend
    backend.close()


def opened(backend: NativeBackend, head: Path) -> HeadDrafter:
    drafter = backend.head_drafter("eagle3", head)
    assert isinstance(drafter._chain, HeadChain)
    return drafter


def on_the_host(model: Path, head: Path | None, history: list[int]) -> HeadDrafter:
    """A drafter without a chain that has heard all of `history` but its last token. head: None for the model's own."""
    backend = load(ready(model), batch_size=64, ctx_size=64)
    drafter = backend.head_drafter("mtp" if head is None else "eagle3", head)
    drafter._chain = None
    backend.extend(history[:-1], CancelToken())
    return drafter


@pytest.mark.parametrize(("params", "kind"), [(GREEDY, "head"), (SAMPLED, "head"), (SAMPLED, "whole_head")])
def test_a_chain_guesses_what_the_host_would(
    params: SamplingParams, kind: str, model: Path, backend: NativeBackend, request: pytest.FixtureRequest
) -> None:
    head: Path = request.getfixturevalue(kind)
    drafter = opened(backend, head)
    history = [*FEW, *take(backend, FEW, 2, params, Always(drafter, 1))]
    found = drafter.propose(history, params, Limit(3))
    wanted = on_the_host(model, head, history).propose(history, params, Limit(3))
    assert found.tokens == wanted.tokens
    assert len(found) == 3
    assert all(abs(a - b) <= 1 for a, b in zip(found.buckets, wanted.buckets, strict=True))
    # And again after the same text, where no row is new.
    assert drafter.propose(history, params, Limit(3)).tokens == wanted.tokens


@pytest.mark.usefixtures("backend")
def test_a_checkpoints_head_whose_attention_is_gated_guesses_what_the_host_would(tmp_path: Path) -> None:
    gated = load(with_head(tmp_path, "mtp of Qwen3.5"), batch_size=16, ctx_size=64)
    drafter = gated.head_drafter("mtp", None)
    assert isinstance(drafter._chain, HeadChain)
    history = [*FEW, *take(gated, FEW, 2, SAMPLED, Always(drafter, 1))]
    found = drafter.propose(history, SAMPLED, Limit(3))
    assert found.tokens == on_the_host(tmp_path, None, history).propose(history, SAMPLED, Limit(3)).tokens
    assert len(found) == 3


def test_drafts_do_not_change_the_text_and_guesses_never_stay(
    model: Path, head: Path, backend: NativeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = take(backend, FEW, 5, SAMPLED)
    drafter, n_reads = opened(backend, head), list[int]()
    assert drafter._chain is not None
    read = drafter._chain._guesses.read
    monkeypatch.setattr(drafter._chain._guesses, "read", lambda first, n: (n_reads.append(n), read(first, n))[1])
    monkeypatch.setattr(drafter, "_choice", None)  # the host chooses nothing
    speculator = Always(drafter, 2)
    assert take(backend, FEW, 5, SAMPLED, speculator) == plain
    assert len(n_reads) == sum(1 for done in speculator.rounds if done.draft)
    history = [*FEW, *plain]
    found = drafter.propose(history, SAMPLED, Limit(2)).tokens
    assert found == on_the_host(model, head, history).propose(history, SAMPLED, Limit(2)).tokens
    assert drafter._cache.length == len(history) - 1


def test_penalties_are_left_to_the_host(head: Path, backend: NativeBackend) -> None:
    drafter = opened(backend, head)
    plain = take(backend, FEW, 4, PENALIZED)
    speculator = Always(drafter, 2)
    assert take(backend, FEW, 4, PENALIZED, speculator) == plain
    assert speculator.n_drafted


def test_a_chain_ends_with_the_context(model: Path, head: Path, backend: NativeBackend) -> None:
    drafter = opened(backend, head)
    history = [3] * 63
    backend.extend(history[:-1], CancelToken())
    found = drafter.propose(history, GREEDY, Limit(9)).tokens
    assert found == on_the_host(model, head, history).propose(history, GREEDY, Limit(9)).tokens
    assert 1 <= len(found) <= 3


def test_logits_that_are_no_numbers_are_no_draft(head: Path, backend: NativeBackend) -> None:
    drafter = opened(backend, head)
    backend.extend(FEW[:-1], CancelToken())
    for parameter in drafter._head.lm_head.parameters():  # type: ignore[attr-defined]
        parameter.fill_(torch.nan)
    assert drafter.propose(FEW, SAMPLED, Limit(2)).tokens == ()
    backend.keep(0)
    backend.extend(FEW[:-1], CancelToken())
    assert drafter.propose(FEW, GREEDY, Limit(2)).tokens == ()
