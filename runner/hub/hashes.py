"""The hash that says whether a file is the one that the hub lists.

Large files have the SHA-256 of their contents, small ones git's SHA-1 of a blob. It reads files, and knows nothing of
where they come from.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from runner.hub.listing import RemoteFile

if TYPE_CHECKING:
    from hashlib import _Hash

_HEX = re.compile(r"[0-9a-f]+")


@dataclass(frozen=True)
class Expected:
    """What the hash of a file must be. kind "": the hub gave none, and only the size can be compared."""

    kind: str
    hex_digest: str
    size_bytes: int

    def new(self) -> _Hash | None:
        """A hash to update with the contents from their start."""
        if self.kind == "sha256":
            return hashlib.sha256()
        if self.kind == "git":
            return hashlib.sha1(b"blob %d\0" % self.size_bytes, usedforsecurity=False)
        return None


def expected_hash(file: RemoteFile, etag: str = "") -> Expected:
    """How to check `file`: by the hashes in the hub's list, else by its ETag when that has the form of one."""
    if file.sha256:
        return Expected("sha256", file.sha256.lower(), file.size_bytes)
    name = file.blob_id or etag
    if _HEX.fullmatch(name) and len(name) in (40, 64):
        return Expected("git" if len(name) == 40 else "sha256", name, file.size_bytes)
    return Expected("", "", file.size_bytes)
