"""Quantizes a GGUF with llama.cpp's own quantizer: the K-quants, and any format from a GGUF.

The work is done in a child process, so that an abort in native code is an error here, Ctrl-C works while it runs, and
llama.cpp's log goes nowhere but into progress. It knows nothing of safetensors or of temporary names.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from runner.errors import RunnerError
from runner.quant.journal import refusal

# "[  12/  68]  blk.1.attn_q.weight - [...]": a line for each tensor.
_TENSOR_LINE: Final = re.compile(r"\[\s*(\d+)/\s*(\d+)\]")
_KEPT_LINES: Final = 4


def quantize_gguf(
    source: Path, target: Path, file_type: int, on_progress: Callable[[int, int], None], *, lock: int
) -> None:
    """Write `source`, quantized to llama.cpp's `file_type`, to `target`. on_progress gets (tensors done, in all).

    Values that are quantized already are quantized again. lock: the descriptor of a lock on where `target` is; the
    child holds it too, so that nobody writes there before it is gone, even when this process is killed. Raises
    RunnerError with llama.cpp's last lines when it fails, OSError when that was for want of room.
    """
    command = [sys.executable, "-P", "-m", "runner.quant.kquants", str(source), str(target), str(file_type)]
    last: deque[str] = deque(maxlen=_KEPT_LINES)
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, pass_fds=[lock]
    ) as child:
        try:
            assert child.stdout is not None
            for line in child.stdout:
                _take(line, last, on_progress)
            status = child.wait()
        finally:
            child.kill()
    if status != 0:
        if any("iostream error" in line for line in last):  # all that C++ says of a file that it could not write
            raise refusal(target)
        raise RunnerError(
            f"llama.cpp could not quantize {source.name} (status {status}): {' / '.join(last) or 'it said nothing'}.",
            hint="Try another format; of Hugging Face files q8_0 and f16 are made without llama.cpp.",
        )


def _take(line: bytes, last: deque[str], on_progress: Callable[[int, int], None]) -> None:
    text = json.loads(line)
    match = _TENSOR_LINE.match(text)
    if match:
        on_progress(int(match[1]), int(match[2]))
    elif text.strip():
        last.append(text.strip())


def main(arguments: list[str]) -> int:
    """The child: quantize, and write each line of llama.cpp's log to stdout as a JSON string."""
    source, target, file_type = arguments
    # Native libraries print to the C streams as well; only our own lines may reach the pipe.
    pipe = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    import llama_cpp

    rest = ""

    @llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]
    def log(_level: int, text: bytes, _user_data: Any) -> None:
        nonlocal rest
        *lines, rest = (rest + text.decode("utf-8", "replace")).split("\n")
        # A tensor's line is finished only when the tensor is; its beginning is what progress needs.
        if not lines and _TENSOR_LINE.match(rest):
            lines, rest = [rest], ""
        try:
            for line in lines:
                pipe.write(json.dumps(line) + "\n")
            pipe.flush()
        except OSError:
            os._exit(1)  # the parent is gone

    llama_cpp.llama_log_set(log, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    params = llama_cpp.llama_model_quantize_default_params()
    params.nthread = os.cpu_count() or 1
    params.ftype = int(file_type)
    params.allow_requantize = True
    return int(llama_cpp.llama_model_quantize(os.fsencode(source), os.fsencode(target), ctypes.byref(params)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
