"""Remedies as the chat takes them: a flag of the command line that `/set` knows becomes that. Pure functions."""

from __future__ import annotations

import re
from typing import Final

from runner.errors import UsageError
from runner.set_values import field_name

_FLAG: Final = re.compile(r"(?<![\w-])--?([a-z][a-z-]*)( \d+)?")
_SHORT: Final = {"c": "ctx_size"}
_NUMBERS: Final = ("ctx_size", "n_gpu_layers")  # of which a hint does not always say one


def in_chat(hint: str) -> str:
    """The hint with "/set ctx_size N" for "-c"; what is quoted as a command of a shell stays as it is."""
    parts = hint.split("`")
    parts[::2] = [_FLAG.sub(_setting, part) for part in parts[::2]]
    return "`".join(parts)


def _setting(flag: re.Match[str]) -> str:
    try:
        field = field_name(_SHORT.get(flag[1], flag[1]))
    except UsageError:
        return flag[0]
    return f"/set {field}" + (flag[2] or (" N" if field in _NUMBERS else ""))
