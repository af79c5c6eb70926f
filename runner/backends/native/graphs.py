"""CUDA graphs: a step is recorded once for each of its shapes, and replayed with one call after that.

Steps of decoding are recorded where they first come; passes of a prompt are noted there, and recorded after an answer.
A step reads and writes tensors that stay where they are. It knows nothing of what a step computes.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final

import torch
from torch import Tensor

log = logging.getLogger(__name__)

# Products of more than 64 rows go by blocks of 128, so closer than that nothing is gained.
_PROMPT_ROWS: Final = (32, 48, 64, 96, 128, 192, 256, 384, 512, 640, 768, 896, 1024, 1280, 1536, 1792, 2048)
LONGEST_PROMPT: Final = _PROMPT_ROWS[-1]
"""Tokens of the longest prompt that filled_up_prompt has rows for."""
MESSAGE_ROWS: Final = tuple(n_rows for n_rows in _PROMPT_ROWS if n_rows <= 256)
"""The rows of those prompts that are one message of a chat, mostly."""


def filled_up(n_rows: int, room: int) -> int:
    """The rows of a step that reads so many, if there is room for them: few numbers of rows are worth recording."""
    filled = 1 << (n_rows - 1).bit_length()
    return filled if filled <= room else n_rows


def filled_up_prompt(n_tokens: int, room: int) -> int | None:
    """The rows of a pass for so many tokens of a prompt that a graph is worth recording for; None without room."""
    return next((n_rows for n_rows in _PROMPT_ROWS if n_tokens <= n_rows <= room), None)


class Graphs:
    """Recorded steps by key; on a CPU every step simply runs.

    All graphs share one pool of memory: what a step returns is good until the next step of any key.
    """

    def __init__(self, device: torch.device) -> None:
        self.nbytes = 0
        self._device = device
        self._is_enabled = device.type == "cuda"
        self._graphs: dict[Hashable, tuple[torch.cuda.CUDAGraph, Any]] = {}
        self._noted: dict[Hashable, Callable[[], Any]] = {}
        self._refused: set[Hashable] = set()  # what could not be recorded is not tried again
        self._pool: Any = None

    @property
    def has_refused(self) -> bool:
        """Whether a step could not be recorded: it is launched kernel by kernel."""
        return bool(self._refused)

    def run(self, key: Hashable, state: Sequence[Tensor], step: Callable[[], Any]) -> Any:
        """What step() returns. state: the tensors that it changes and reads again, which recording must leave alone.

        A replay needs no inference mode, which takes as long to enter as to launch.
        """
        found = self._graphs.get(key)
        if found is None:
            with torch.inference_mode():
                if not self._is_enabled or key in self._refused:
                    return step()
                self._run_without(state, step)
                if not self._is_recorded(key, step):
                    return step()
                found = self._graphs[key]
        found[0].replay()
        return found[1]

    def run_or_note(self, key: Hashable, step: Callable[[], Any], recorded: Callable[[], Any]) -> Any:
        """What step() returns, where it may not come again: it is recorded when the answer is over, as `recorded`."""
        found = self._graphs.get(key)
        if found is None:
            result = step()
            if self._is_enabled and key not in self._refused:
                self._noted[key] = recorded
            return result
        found[0].replay()
        return found[1]

    def record_noted(self) -> None:
        """Record what was noted, as far as there is memory for it."""
        while self._noted:
            key, step = self._noted.popitem()
            if key not in self._graphs:  # which it may have come to be as another step
                self._is_recorded(key, step)

    def _is_recorded(self, key: Hashable, step: Callable[[], Any]) -> bool:
        """Record a step, if there is memory for its graph: else it does without."""
        try:
            self._graphs[key] = self._capture(step)
        except RuntimeError:  # as the driver, too, says that there is no memory
            log.warning("no graph of %s", key, exc_info=True)
            self._refused.add(key)
        return key in self._graphs

    def _run_without(self, state: Sequence[Tensor], step: Callable[[], Any]) -> None:
        """Kernels are compiled and loaded by a run of their own: neither can be done while a graph is recorded."""
        kept = [tensor.clone() for tensor in state]
        step()
        for tensor, value in zip(state, kept, strict=True):
            tensor.copy_(value)

    def _capture(self, step: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Any]:
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()  # as recording does: what it gives back is not to be taken for the graph's
        before = torch.cuda.memory_reserved(self._device)
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream(self._device)
        try:
            with torch.cuda.graph(graph, pool=self._pool):
                result = step()
        except RuntimeError:
            torch.cuda.set_stream(stream)  # torch stays on that of the recording where its end fails
            raise
        self.nbytes += max(0, torch.cuda.memory_reserved(self._device) - before)
        _upload(graph)
        return graph, result

    def forget(self) -> None:
        """Drop all: the tensors that they read have moved. Waits for those that still run."""
        if self._graphs:
            torch.cuda.synchronize(self._device)
        self._graphs.clear()
        self._noted.clear()
        self._refused.clear()
        self._pool = None
        self.nbytes = 0


def _upload(graph: torch.cuda.CUDAGraph) -> None:
    """Send a recorded step to the device now, where torch and the driver can: its first replay would wait for that.

    H100, ms of a first replay and of later ones, before and with it: 20 tokens of Qwen3-0.6B 1.61, 0.98 and 1.34, 1.04;
    64 of Llama-3.1-8B 4.96, 4.11 and 4.51, 4.35.
    """
    recorded = getattr(graph, "raw_cuda_graph_exec", None)
    if torch.version.hip is not None or recorded is None:
        return
    try:
        upload = ctypes.CDLL("libcuda.so.1").cuGraphUpload
    except (OSError, AttributeError):
        return
    stream = torch.cuda.current_stream().cuda_stream
    if code := upload(ctypes.c_void_p(recorded()), ctypes.c_void_p(stream)):
        log.warning("a graph could not be sent ahead: CUDA error %d", code)
