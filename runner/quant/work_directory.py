"""Where an output is made before it is whole: "<output>.partial", locked, then one rename.

It knows which files go beside a model's weights, and nothing of what is in them.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from runner.errors import BusyError, RunnerError, UsageError

COMPANIONS: Final = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "LICENSE",
    "LICENSE.txt",
    "LICENSE.md",
    "NOTICE",
)


class WorkDirectory:
    """The making of `output`: one .gguf file when it has that suffix, else a directory with the files beside it."""

    def __init__(self, output: Path) -> None:
        self.output = output.absolute()
        self.is_file = output.suffix == ".gguf"
        self.path = self.output.with_name(self.output.name + ".partial")
        self._replaces = False

    def weights_name(self, name: str) -> str:
        return self.output.name if self.is_file else name

    def check_target(self, *, force: bool) -> None:
        """Raise UsageError when the output is there and may not be replaced.

        Even with `force`, only what a run like this one made is replaced: never a directory with other files.
        """
        if not self.output.exists() and not self.output.is_symlink():
            return
        if not force:
            raise UsageError(f"{self.output} exists already.", hint="Pass --force to replace it, or -o another path.")
        if self.is_file != self.output.is_file():
            kind = "directory" if self.output.is_dir() else "file"
            raise UsageError(f"{self.output} is a {kind}.", hint="Give another path with -o.")
        if not self.is_file and (others := _foreign_files(self.output)):
            raise UsageError(
                f"{self.output} has files that do not belong to a model, such as {others[0]!r}.",
                hint="Give another path with -o: this directory will not be deleted.",
            )
        self._replaces = True

    @contextmanager
    def opened(self) -> Iterator[int]:
        """Make the directory, empty, and hold its lock, whose descriptor this gives.

        What a killed run left there goes; so does what a failed run made.

        Raises BusyError when another process is making the same output, RunnerError when it cannot be written.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path, os.O_RDONLY)
        except OSError as error:
            raise RunnerError(
                f"{self.path} cannot be made: {error.strerror}.", hint="Give another path with -o."
            ) from error
        try:
            self._lock(descriptor)
            self._empty()
            try:
                yield descriptor
            except OSError as error:
                raise RunnerError(f"Making {self.output} failed: {error.strerror or error}.") from error
            finally:
                # After finish() nothing is left there; after a failure, half-made files would only take space.
                shutil.rmtree(self.path, ignore_errors=True)
        finally:
            os.close(descriptor)

    def finish(self, weights: Path, *, companions_from: Path) -> None:
        """Put the whole thing in its place, on the disk first. The old one goes last."""
        _sync(weights)
        if self.is_file:
            os.replace(weights, self.output)
            return
        for name in COMPANIONS:
            if (file := companions_from / name).is_file():
                shutil.copyfile(file, self.path / name)
                _sync(self.path / name)
        if not self._replaces:
            os.rename(self.path, self.output)
            return
        # The old one is set aside, not deleted, until the new one is in its place.
        old = Path(tempfile.mkdtemp(prefix=self.output.name + ".old-", dir=self.output.parent))
        os.rename(self.output, old / "replaced")
        os.rename(self.path, self.output)
        shutil.rmtree(old, ignore_errors=True)

    def _lock(self, descriptor: int) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Between opening and locking, its maker may have renamed it to the output.
            if not os.path.samestat(os.fstat(descriptor), self.path.stat()):
                raise BlockingIOError
        except OSError as error:
            raise BusyError(f"Another process is making {self.output}.", hint="Wait for it to end.") from error

    def _empty(self) -> None:
        """Remove what a killed run left; refuse a directory that is somebody else's."""
        if others := _foreign_files(self.path):
            raise UsageError(
                f"{self.path} has files that do not belong to a model, such as {others[0]!r}.",
                hint="Move them away: runner works in that directory.",
            )
        for entry in self.path.iterdir():
            entry.unlink()


def _foreign_files(directory: Path) -> list[str]:
    return sorted(
        entry.name
        for entry in directory.iterdir()
        if entry.is_dir() or (entry.name not in COMPANIONS and entry.suffix != ".gguf")
    )


def _sync(path: Path) -> None:
    """Wait until the file is on the disk: a rename must not overtake its contents."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
