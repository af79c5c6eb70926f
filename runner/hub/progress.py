"""How far a download is: the values that front ends show, made from the marks that the transfers leave.

Transfers write their Mark on one thread and `Marks.state` reads it on another; each field is one assignment. It knows
nothing of rates or of how progress is drawn.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from runner.hub.listing import RemoteFile

SHORT_WAIT_S = 5.0

FileStage = Literal["waiting", "attached", "downloading", "done"]


@dataclass(frozen=True)
class Trouble:
    """What holds up a file. reason: a sentence. n_failures: so many tries in a row. wait_s: before the next one.

    Without any failures it is another process that is waited for.
    """

    reason: str
    n_failures: int = 0
    wait_s: float = 0.0

    @property
    def text(self) -> str:
        """In words, from the second failure in a row on, or when it is waited for: one alone is no news."""
        if not self.n_failures:
            return self.reason
        is_news = self.n_failures > 1 or self.wait_s > SHORT_WAIT_S
        return f"{self.reason} Trying again in {max(1, round(self.wait_s))} s." if is_news else ""


@dataclass(frozen=True)
class FileState:
    """One file of a download. attached: another process fetches it, and this one shows how far that is.

    remark: a sentence on what happened to it and is mended, or "".
    """

    name: str
    done_bytes: int
    size_bytes: int
    state: FileStage
    trouble: Trouble | None = None
    remark: str = ""


@dataclass(frozen=True)
class FetchState:
    """A whole download. done_bytes counts what was there before; fetched_bytes came over the network in this run."""

    files: tuple[FileState, ...]
    done_bytes: int
    total_bytes: int
    fetched_bytes: int

    @property
    def trouble(self) -> str:
        """What holds up a file of it, in words; "" while nothing does."""
        return next((file.trouble.text for file in self.files if file.trouble is not None and file.trouble.text), "")


class Troubles:
    """What holds up a download or was amiss with it, each once, for all files that fail alike."""

    def __init__(self) -> None:
        self._told = set[tuple[str, int]]()

    def news(self, state: FetchState) -> Iterator[str]:
        """What was not told yet, in words."""
        remarks = [Trouble(file.remark) for file in state.files if file.remark]
        for trouble in [*remarks, *(file.trouble for file in state.files if file.trouble is not None)]:
            about = (trouble.reason, trouble.n_failures)
            if trouble.text and about not in self._told:
                self._told.add(about)
                yield trouble.text


@dataclass
class Mark:
    """Where the transfer of one file is now."""

    name: str
    size_bytes: int
    done_bytes: int = 0
    fetched_bytes: int = 0
    state: FileStage = "waiting"
    trouble: Trouble | None = None
    remark: str = ""

    def finish(self) -> None:
        self.done_bytes = self.size_bytes
        self.state = "done"
        self.trouble = None


class Marks:
    """The marks of all files of a download."""

    def __init__(self, files: Iterable[RemoteFile]) -> None:
        self._marks = {file.name: Mark(file.name, file.size_bytes) for file in files}

    def __getitem__(self, name: str) -> Mark:
        return self._marks[name]

    def state(self) -> FetchState:
        files = tuple(
            FileState(
                name=mark.name,
                done_bytes=min(mark.done_bytes, mark.size_bytes),
                size_bytes=mark.size_bytes,
                state=mark.state,
                trouble=mark.trouble,
                remark=mark.remark,
            )
            for mark in self._marks.values()
        )
        return FetchState(
            files=files,
            done_bytes=sum(file.done_bytes for file in files),
            total_bytes=sum(file.size_bytes for file in files),
            fetched_bytes=sum(mark.fetched_bytes for mark in self._marks.values()),
        )
