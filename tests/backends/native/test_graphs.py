"""Graphs on a machine without a GPU: those that the driver does not take ahead, and those that there is no room for."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from runner.backends.native import graphs

RECORDED: Any = SimpleNamespace(raw_cuda_graph_exec=lambda: 0x1234)


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0x5678))


def driver(monkeypatch: pytest.MonkeyPatch, code: int) -> list[tuple[int | None, ...]]:
    """A driver that answers with this code; what it is asked for."""
    asked: list[tuple[int | None, ...]] = []

    def upload(*handles: ctypes.c_void_p) -> int:
        asked.append(tuple(handle.value for handle in handles))
        return code

    monkeypatch.setattr(ctypes, "CDLL", lambda _: SimpleNamespace(cuGraphUpload=upload))
    return asked


@pytest.mark.usefixtures("stream")
def test_a_recorded_step_is_sent_ahead_and_a_driver_that_refuses_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked = driver(monkeypatch, 0)
    graphs._upload(RECORDED)
    assert asked == [(0x1234, 0x5678)]
    assert not caplog.records
    driver(monkeypatch, 999)
    graphs._upload(RECORDED)
    assert "CUDA error 999" in caplog.text


@pytest.mark.usefixtures("stream")
def test_without_the_driver_or_with_an_older_torch_nothing_is_sent(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    older: Any = SimpleNamespace()
    asked = driver(monkeypatch, 0)
    graphs._upload(older)
    assert asked == []

    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    graphs._upload(RECORDED)
    assert not caplog.records


def test_a_step_whose_graph_finds_no_memory_runs_without_and_is_not_recorded_again() -> None:
    class Full(graphs.Graphs):
        n_tried = 0

        def _capture(self, _step: Callable[[], Any]) -> Any:
            self.n_tried += 1
            raise torch.OutOfMemoryError

    full, count = Full(torch.device("cpu")), torch.zeros(1)
    full._is_enabled = True
    assert [float(full.run("step", [count], lambda: count.add_(1))) for _ in range(3)] == [1.0, 2.0, 3.0]
    assert full.n_tried == 1

    def failing() -> None:
        raise torch.OutOfMemoryError

    with pytest.raises(torch.OutOfMemoryError):
        full.run("another", [], failing)


@pytest.mark.parametrize("n_tokens", [65, 129, 257, 385, 513, 641, 769, 1025, 1281, 1537, 2047])
def test_a_prompt_is_filled_up_by_few_of_the_128_rows_that_programs_multiply(n_tokens: int) -> None:
    n_rows = graphs.filled_up_prompt(n_tokens, 4096)
    assert n_rows is not None
    assert n_rows >= n_tokens
    assert -(-n_rows // 128) <= 1.25 * -(-n_tokens // 128)


def test_a_prompt_longer_than_any_graph_and_one_without_room_have_none() -> None:
    assert graphs.filled_up_prompt(graphs.LONGEST_PROMPT + 1, 4096) is None
    assert graphs.filled_up_prompt(600, 639) is None
