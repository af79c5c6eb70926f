"""The edge to the llama.cpp library: its log, its abort callback, and opening a model and a context.

Everything ctypes-shaped that is not tokens or batches is here. It knows nothing of prompts, sampling or the KV
cache's contents.
"""

from __future__ import annotations

import ctypes
import logging
import os
import re
import struct
import sys
from collections import deque
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import llama_cpp

from runner.backends.base import LoadProgress
from runner.config import LONGEST_DRAFT, KvType, LoadOptions
from runner.errors import BadModelFile, DoesNotFit, loading_cancelled
from runner.machine import default_threads
from runner.quant.json_file import DAMAGED
from runner.types import CancelToken

log = logging.getLogger(__name__)

_BUFFER_SIZE = re.compile(r"\b(\w+) buffer size *= *([\d.]+) MiB")
_GGUF_STRING = 8  # of its types of values
_ERROR = 4  # of ggml_log_level: none 0, debug 1, info 2, warn 3, error 4, continuation 5
# What llama.cpp warns of is seldom news to a user, and what it calls an error is raised with its words, or is a cancel:
# as a warning it would be on the terminal of a program that sets up no logging.
_LEVELS = {3: logging.INFO, _ERROR: logging.INFO}


class LibraryLog:
    """Receives llama.cpp's log: passes it to Python's, keeps the last errors, and adds up the buffers it reports.

    llama.cpp has one log for the process, so there is one of these, made by `library_log()`.
    """

    def __init__(self) -> None:
        self.errors: deque[str] = deque(maxlen=4)
        self._buffers: dict[str, int] = {}
        self._callback = llama_cpp.llama_log_callback(self._receive)
        llama_cpp.llama_log_set(self._callback, ctypes.c_void_p(0))

    def start(self) -> dict[str, int]:
        """A load begins: forget the errors before it. Returns what will have the bytes of its buffers by part.

        What is reported belongs to the load that began last.
        """
        self.errors.clear()
        self._buffers = {}
        return self._buffers

    def _receive(self, level: int, text: bytes, _data: Any) -> None:
        line = text.decode("utf-8", "replace").rstrip()
        if level == _ERROR:
            self.errors.append(line)
        for part, size in _BUFFER_SIZE.findall(line):
            self._buffers[part] = self._buffers.get(part, 0) + round(float(size) * 2**20)
        log.log(_LEVELS.get(level, logging.DEBUG), "%s", line)


_library_log: LibraryLog | None = None


def library_log() -> LibraryLog:
    """The process's LibraryLog; the first call starts llama.cpp."""
    global _library_log
    if _library_log is None:
        _library_log = LibraryLog()  # first: starting the GPU backends is logged too
        llama_cpp.llama_backend_init()
    return _library_log


def _abort_when_cancelled() -> Any:
    """A C function for llama.cpp to poll between graph nodes: true once the CancelToken it is given is set.

    It is libc's strlen: the token's flag is a C string that is empty until cancelled. A Python callback would take
    the GIL some hundred times a token; this one costs nanoseconds and works while Python is busy elsewhere.
    """
    libc = ctypes.cdll.msvcrt if sys.platform == "win32" else ctypes.CDLL(None)
    return llama_cpp.ggml_abort_callback(ctypes.cast(libc.strlen, ctypes.c_void_p).value)


ABORT_WHEN_CANCELLED = _abort_when_cancelled()

_KV_TYPES: dict[KvType, int] = {
    "f32": llama_cpp.GGML_TYPE_F32,
    "f16": llama_cpp.GGML_TYPE_F16,
    "bf16": 30,  # GGML_TYPE_BF16, which llama_cpp has no name for
    "q8_0": llama_cpp.GGML_TYPE_Q8_0,
}


@cache
def knows(architecture: str) -> bool:
    """Whether llama.cpp runs models of that architecture; where it cannot be asked, it is taken to.

    It has no list of them. So it is given a GGUF that has this name and nothing else, and what it misses first tells.
    """
    n_tensors, n_entries = 0, 1
    header = struct.pack("<4sIQQ", b"GGUF", 3, n_tensors, n_entries)
    entry = _gguf_text("general.architecture") + struct.pack("<I", _GGUF_STRING) + _gguf_text(architecture)
    log.info("asking llama.cpp whether it knows %r, with a file that it cannot load", architecture)
    messages = library_log()
    params = llama_cpp.llama_model_default_params()
    params.vocab_only, params.n_gpu_layers = True, 0
    no_devices = (ctypes.c_void_p * 1)()  # ends at once; without a list each GPU is opened, and asked for its memory
    params.devices = ctypes.addressof(no_devices)
    try:
        with TemporaryDirectory() as directory:
            path = Path(directory) / "name.gguf"
            path.write_bytes(header + entry)
            llama_cpp.llama_model_load_from_file(os.fsencode(path), params)
    except OSError:
        return True
    unknown = f"unknown model architecture: '{architecture}'"  # by its name: other threads may ask, or load a model
    return not any(unknown in error for error in tuple(messages.errors))


def _gguf_text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def model_params() -> Any:
    """llama.cpp's defaults for opening a model, but weights are not repacked where that would be for AMX.

    GCC drops most of what configures these matrix instructions of Intel's, and the first product ends the process with
    SIGSEGV (llama.cpp 20824, as of 0.3.36). llama.cpp repacks for all instructions or for none.
    """
    params = llama_cpp.llama_model_default_params()
    params.use_extra_bufts = b"AMX_INT8 = 1" not in llama_cpp.llama_print_system_info()
    return params


def open_model(
    path: Path, options: LoadOptions, on_progress: LoadProgress, cancel: CancelToken, *, vocab_only: bool = False
) -> Any:
    """llama_model_load_from_file with progress and cancellation. Raises BadModelFile with llama.cpp's own reason."""
    messages = library_log()
    params = model_params()
    params.vocab_only = vocab_only
    params.n_gpu_layers = -1 if options.n_gpu_layers in ("auto", "all") else options.n_gpu_layers

    def report(fraction: float, _data: Any) -> bool:
        on_progress(fraction)
        return not cancel.is_cancelled

    params.progress_callback = llama_cpp.llama_progress_callback(report)
    model = llama_cpp.llama_model_load_from_file(os.fsencode(path), params)
    if model is None:
        if cancel.is_cancelled:
            raise loading_cancelled()
        reason = "; ".join(messages.errors) or "no reason given"
        if "alloc" in reason or "memory" in reason:
            raise DoesNotFit(
                f"llama.cpp could not allocate the memory for {path.name}: {reason}",
                hint="Use a smaller quantization or model, or fewer GPU layers (-ngl).",
            )
        raise BadModelFile(
            f"llama.cpp cannot load {path.name}: {reason}",
            hint=f"The file may be too new for this llama-cpp-python, or damaged. {DAMAGED}",
        )
    return model


def open_context(model: Any, n_ctx: int, options: LoadOptions) -> Any:
    """A context of n_ctx tokens for one sequence. Raises DoesNotFit when its memory cannot be had."""
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = n_ctx
    params.n_batch = params.n_ubatch = max(options.chunk(), 1 + LONGEST_DRAFT)  # a draft is verified in one step
    params.swa_full = True  # layers with a window keep all of the context, so that their cache can be cut
    params.n_seq_max = 1
    params.n_threads = params.n_threads_batch = options.n_threads or default_threads()
    params.type_k = params.type_v = _KV_TYPES[options.kv_type]
    params.offload_kqv = True
    params.no_perf = True
    context = llama_cpp.llama_init_from_model(model, params)
    if context is None:
        reason = "; ".join(library_log().errors) or "out of memory"
        raise DoesNotFit(
            f"llama.cpp could not make a context of {n_ctx} tokens: {reason}",
            hint="Ask for a smaller context with -c, or a smaller KV cache with --kv-type q8_0.",
        )
    return context
