"""What the files of a model that was made here should be, by size and hash, as its runner.json says.

Of a packed model that is a part of the manifest (mq/manifest.py, which reads both kinds); beside a GGUF, and a head
that was trained, it is all there is. The last entry of a runner.json is the hash of the rest of it, so that a flipped
bit in it is found too.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from runner.wire import to_plain

FILES_SCHEMA: Final = "runner.files/1"

_SEAL: Final = re.compile(r',\n "sha256": "(?P<sha256>[0-9a-f]{64})"(?P<end>\n\})\n\Z')


@dataclass(frozen=True, kw_only=True)
class FileRecord:
    """A file's size and checksum; sha256 is "" where it was not worth reading the file for."""

    size_bytes: int
    sha256: str


def record_of(path: Path, on_read: Callable[[int, int], None] = lambda _done, _total: None) -> FileRecord:
    """Those of a file as it lies on the disk. on_read gets (bytes read, bytes in all). Raises OSError."""
    size, done, digest = path.stat().st_size, 0, hashlib.sha256()
    with path.open("rb") as file:
        while data := file.read(2**24):
            digest.update(data)
            done += len(data)
            on_read(done, size)
    return FileRecord(size_bytes=size, sha256=digest.hexdigest())


def files_json(files: Mapping[str, FileRecord]) -> str:
    """The text of the runner.json beside a GGUF or a head."""
    return sealed({"schema": FILES_SCHEMA, "files": to_plain(files)})


# --- the hash of runner.json itself ----------------------------------------------------------------------------------


def sealed(plain: Mapping[str, Any]) -> str:
    """The text of a runner.json that says this, and last the hash of the text without that.

    A file's name need not be UTF-8: what is none in it becomes "?".
    """
    text = json.dumps(plain, indent=1, ensure_ascii=False).encode("utf-8", "replace").decode()
    return text.removesuffix("\n}") + f',\n "sha256": "{_hash(text)}"\n}}\n'


def without_seal(text: str) -> str | None:
    """The text of a runner.json without its hash, which those of earlier versions lack; None for one that is wrong."""
    seal = _SEAL.search(text)
    if seal is None:
        return text
    rest = text[: seal.start()] + seal["end"]
    return rest if _hash(rest) == seal["sha256"] else None


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
