"""Are weights as their own headers say: sound to read, and long enough for all that is promised?

It is what `ls`, `verify` and loading can ask of a model made here without a hash of it. It reads headers, no weights;
whether those are right, a hash alone could tell.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from runner.errors import BadModelFile, UnsupportedModel
from runner.registry import ModelSpec

MAKE_AGAIN: Final = "make it again with `runner quantize MODEL -t FORMAT --force`"


def check_header(path: Path) -> None:
    """Raise BadModelFile for a .gguf or .safetensors that is damaged, UnsupportedModel for one that is not read."""
    if path.suffix.lower() == ".gguf":
        from runner.quant.gguf_file import read_header as read_gguf

        read_gguf(path)
        return
    from runner.quant.safetensors_file import read_header as read_safetensors

    read_safetensors(path)


def damage(path: Path) -> str:
    """What is wrong with that file by its header, in words; "" for nothing, and for what may not be read."""
    try:
        check_header(path)
    except BadModelFile as error:
        return error.message.removeprefix(f"{path.name} ").removesuffix(".") if os.access(path, os.R_OK) else ""
    except UnsupportedModel:
        pass
    return ""


@contextmanager
def remedies_of(spec: ModelSpec) -> Iterator[None]:
    """Within it, a damaged file of a model that was made here is to be made again, since it cannot be fetched."""
    try:
        yield
    except BadModelFile as error:
        if spec.origin != "made" or isinstance(error.__cause__, OSError):
            raise
        raise BadModelFile(error.message, hint=f"It was made here: {MAKE_AGAIN}.") from error
