"""What the tests' model hub has and how it behaves: repositories, hashes, faults, and a record of its use."""

from __future__ import annotations

import hashlib
import math
import threading
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

_LARGE = (".gguf", ".safetensors")

FaultKind = Literal[
    "status",  # answer with `status` and `headers`
    "drop",  # close the connection after `at` bytes of the body
    "stall",  # send nothing more after `at` bytes of the body, until the server ends
    "drop whole",  # the same, and ignore Range
    "whole",  # ignore Range and send all of the file with 200
    "wrong range",  # send another part than asked for, from `at` bytes later on
    "piece",  # send no more than `at` bytes of the part that was asked for, and say so
    "flip",  # flip a bit of the byte at `at`
    "flip whole",  # the same, and ignore Range
    "page",  # a web page of `at` bytes instead, as of a network that wants a login; 0: with no Content-Length
    "slow",  # header lines without end, one after the other
    "shorter",  # the file has `at` bytes less than the listing says
    "longer",  # `at` more bytes, with no Content-Length
    "gzip",  # compressed, though nobody asked for it
    "headers",  # `headers` take the place of the right ones; a value of "" leaves one out
    "circle",  # redirect to the same address
]


@dataclass
class Fault:
    """What goes wrong with the next `times` requests of that method for the file `name` ("" any); None: with all."""

    kind: FaultKind
    at: int = 0
    name: str = ""
    method: str = "GET"
    times: int | None = 1
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Repo:
    """One repository at one commit. gated: files want `token`. private: nothing is there without it."""

    files: dict[str, bytes]
    is_gated: bool = False
    is_private: bool = False
    revisions: tuple[str, ...] = ("main",)
    downloads: int = 0
    likes: int = 0
    num_parameters: int = 0

    @property
    def commit(self) -> str:
        text = "".join(f"{name}{git_sha1(data)}" for name, data in sorted(self.files.items()))
        return hashlib.sha1(text.encode()).hexdigest()


@dataclass
class Body:
    """A body that was asked for: the file, the Range and Authorization headers, and the bytes sent so far."""

    name: str
    path: str
    byte_range: str
    authorization: str
    sent_bytes: int = 0


@dataclass
class Hub:
    """What the server has, how it behaves, and what was asked of it.

    status: answer everything with this error instead. bytes_s: how fast bodies go, 0 as fast as possible. most_bytes:
    once that many bytes of bodies are sent in all, the rest waits until it is more. cdn: large files are redirected to
    signed addresses. renamed: old name -> new name.
    """

    repos: dict[str, Repo] = field(default_factory=dict)
    token: str = "hf_right"
    status: int | None = None
    renamed: dict[str, str] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    bytes_s: int = 0
    most_bytes: float = math.inf
    cdn: bool = False
    requests: list[tuple[str, str]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    bodies: list[Body] = field(default_factory=list)
    url: str = ""
    cdn_url: str = ""
    ended: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def let_go(self) -> None:
        """Bodies go as fast as possible from now on, also those that have begun."""
        self.bytes_s, self.most_bytes = 0, math.inf

    def fetched(self) -> list[str]:
        """The files whose bodies were asked for, in order."""
        return [path.rsplit("/", 1)[1] for method, path in self.requests if method == "GET" and "/resolve/" in path]

    def sent_bytes(self, name: str = "") -> int:
        """The bytes of bodies sent so far: of that file, or of all."""
        return sum(body.sent_bytes for body in self.bodies if name in ("", body.name))

    def ranges(self, name: str = "") -> list[str]:
        """The Range headers of the bodies asked for: of that file, or of all."""
        return [body.byte_range for body in self.bodies if name in ("", body.name)]

    def take_fault(self, method: str, name: str) -> Fault | None:
        """The fault that this request is to have; it is used up by it."""
        with self.lock:
            for fault in self.faults:
                if fault.method == method and fault.name in ("", name) and fault.times != 0:
                    if fault.times is not None:
                        fault.times -= 1
                    return fault
        return None


def is_large(name: str) -> bool:
    """Whether the hub keeps a file of that name in large-file storage."""
    return name.endswith(_LARGE)


def etag_of(name: str, data: bytes) -> str:
    """The hub's ETag: the SHA-256 of a large file, git's SHA-1 of a small one."""
    return sha256(data) if is_large(name) else git_sha1(data)


@lru_cache
def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@lru_cache
def git_sha1(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
