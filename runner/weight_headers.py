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
from runner.quant.packed_files import MANIFEST_NAME
from runner.registry import ModelSpec

_PACKED_SUFFIX: Final = ".weight.packed"  # of tensors of packed models alone
MAKE_AGAIN: Final = "make it again with `runner quantize MODEL -t FORMAT --force`"


def check_header(path: Path) -> None:
    """Raise BadModelFile for a .gguf, .safetensors or runner.json that is damaged, UnsupportedModel for other kinds."""
    if path.suffix.lower() == ".gguf":
        from runner.quant.gguf_file import read_header as read_gguf

        read_gguf(path)
    elif path.name == MANIFEST_NAME:
        from runner.quant.mq.manifest import read_manifest

        read_manifest(path)
    elif lacks_manifest(path):
        raise BadModelFile(
            f"{path.name} has packed weights, and {MANIFEST_NAME} is not beside it.",
            hint="Copy it from where the model came: it says what the weights are.",
        )


def lacks_manifest(path: Path) -> bool:
    """Whether a .safetensors has packed weights and no manifest that says what they are. Raises as `check_header`."""
    from runner.quant.safetensors_file import read_header as read_safetensors

    is_packed = any(name.endswith(_PACKED_SUFFIX) for name in read_safetensors(path))
    return is_packed and not (path.parent / MANIFEST_NAME).exists()


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
