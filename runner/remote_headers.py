"""The headers of files on the hub, by parts of the files: GGUF, safetensors, and small JSON files.

What is read is checked by the same code as headers of files here. It knows formats and Range, and no model.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from runner import hub
from runner.errors import BadModelFile
from runner.quant.byte_cursor import NotHere
from runner.quant.gguf_file import GgufHeader
from runner.quant.gguf_file import parse_header as parse_gguf
from runner.quant.safetensors_file import StoredTensor, header_length
from runner.quant.safetensors_file import parse_header as parse_safetensors

GGUF_START_BYTES: Final = 2 * 2**20  # a header without its vocabulary, or a small vocabulary
MAX_GGUF_BYTES: Final = 64 * 2**20  # four times the largest header of the usual repositories
SAFETENSORS_START_BYTES: Final = 64 * 2**10  # the whole header of most shards
MAX_SAFETENSORS_BYTES: Final = 16 * 2**20
MAX_JSON_BYTES: Final = 4 * 2**20
_AVOID: Final = "It is not what its name says: do not use this repository."


def gguf_header(reader: hub.RemoteReader, file: hub.RemoteFile) -> tuple[GgufHeader, bytes]:
    """The checked header of one GGUF file, and what was read of it: more and more, until the header is whole.

    Raises BadModelFile for a malformed one, and what hub.read_range raises.
    """
    start = b""
    wanted = min(file.size_bytes, GGUF_START_BYTES)
    while True:
        start += _read(reader, file, len(start), wanted - len(start))
        try:
            return parse_gguf(Path(file.name), start, file.size_bytes), start
        except NotHere as more:
            if more.wanted > MAX_GGUF_BYTES:
                raise _too_large(file, MAX_GGUF_BYTES) from more
            wanted = min(file.size_bytes, MAX_GGUF_BYTES, max(more.wanted, 2 * len(start)))


def safetensors_header(reader: hub.RemoteReader, file: hub.RemoteFile) -> dict[str, StoredTensor]:
    """The checked contents of one safetensors file, by tensor name. Raises as gguf_header does."""
    path = Path(file.name)
    start = _read(reader, file, 0, min(file.size_bytes, SAFETENSORS_START_BYTES))
    end = 8 + header_length(path, start, file.size_bytes)
    if end > MAX_SAFETENSORS_BYTES:
        raise _too_large(file, MAX_SAFETENSORS_BYTES)
    if end > len(start):
        start += _read(reader, file, len(start), end - len(start))
    return parse_safetensors(path, start[8:end], file.size_bytes)


def json_object(reader: hub.RemoteReader, file: hub.RemoteFile) -> dict[str, Any]:
    """The JSON object in one small file. Raises BadModelFile, and what hub.read_range raises."""
    if file.size_bytes > MAX_JSON_BYTES:
        raise _too_large(file, MAX_JSON_BYTES)
    try:
        value = json.loads(_read(reader, file, 0, file.size_bytes).decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise BadModelFile(f"{file.name} is not JSON: {error}.", hint=_AVOID) from error
    if not isinstance(value, dict):
        raise BadModelFile(f"{file.name} is not a JSON object.", hint=_AVOID)
    return value


def _read(reader: hub.RemoteReader, file: hub.RemoteFile, start: int, length: int) -> bytes:
    """That part of the file, whole. Raises BadModelFile when the hub has less of it than it said."""
    data = reader.read(file.name, start, length) if length else b""
    if len(data) != length:
        raise BadModelFile(
            f"The hub sent {len(data)} bytes of {file.name} where {length} were asked for.", hint="Try again later."
        )
    return data


def _too_large(file: hub.RemoteFile, limit: int) -> BadModelFile:
    return BadModelFile(f"{file.name} begins with more than {limit // 2**20} MiB of header.", hint=_AVOID)
