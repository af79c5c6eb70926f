"""Where an output is made before it is whole: "<output>.partial", locked, then one rename.

What is made again from the start is removed when that fails; what can be continued is kept. It knows which files go
beside a model's weights, and nothing of what is in them.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from runner.closed import cannot_read, closed, leads_nowhere, lost_target
from runner.errors import BadModelFile, BusyError, DoesNotFit, RunnerError, UnsupportedModel, UsageError
from runner.lock_holders import other_process
from runner.measures import decimal_size
from runner.paths import private_directory, user_paths
from runner.quant.half_made import (
    DELETED_NAME,
    OLD_MARK,
    REPLACED_NAME,
    earlier_output,
    is_half_made,
    olds_of,
    output_name,
)
from runner.quant.packed_files import (
    FILE_SUFFIXES,
    HEAD_NAME,
    JOURNAL_NAME,
    MANIFEST_NAME,
    PARTIAL_SUFFIX,
    WEIGHTS_NAME,
)

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


def no_room(error: OSError, directory: Path, done: str = "", after: str = "") -> DoesNotFit | None:
    """The error for a file that there was no room for in that directory, or that was too large; None for any other.

    done: how far the work is, in words. after: what the same command does once there is room.
    """
    number = _number_of(error)
    so_far, again = f": {done}" if done else "", f"give the same command again{after}."
    if number == errno.EFBIG:
        return DoesNotFit(
            f"A file in {directory} may not become as large as this one has to{so_far}.",
            hint="Raise the limit on the size of files (`ulimit -f` shows it, `ulimit -f unlimited` lifts it), or write"
            f" to another disk with -o, as FAT32 ends at 4 GB; then {again}",
        )
    if number in _FULL:
        return DoesNotFit(f"The disk of {directory} is full{so_far}.", hint=f"Free some space and {again}")
    return None


_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_SAID: Final = re.compile(r"\(os error (\d+)\)")


def _number_of(error: OSError) -> int | None:
    """The system's number of an error. safetensors has it in its text alone: "File too large (os error 27)"."""
    said = _SAID.search(str(error)) if error.errno is None else None
    return int(said[1]) if said else error.errno


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Names of the files that runs of one kind make beside COMPANIONS.

    signs: without one of them, files of the other names are somebody's own. spent: of no use once the output is whole.
    """

    names: frozenset[str]
    signs: frozenset[str]
    spent: frozenset[str]


PACKED_PARTS: Final = Parts(
    names=frozenset({WEIGHTS_NAME, HEAD_NAME, MANIFEST_NAME, JOURNAL_NAME}),
    signs=frozenset({MANIFEST_NAME, JOURNAL_NAME}),
    spent=frozenset({JOURNAL_NAME}),
)


def check_output(output: Path) -> None:
    """Raise UsageError for what is no name of something that is to be made, such as ".", "/" or "model.partial"."""
    if output.name in ("", ".."):
        what = "the working directory" if output == Path() else repr(str(output))
        raise UsageError(f"-o is {what}.", hint="Name a file or a directory that is to be made.")
    if output.name.endswith(PARTIAL_SUFFIX):  # `rm --partial` would delete it
        raise UsageError(
            f"-o is {str(output)!r}: what is half made is called so.", hint=f"Leave out {PARTIAL_SUFFIX} at its end."
        )


class WorkDirectory:
    """The making of `output`: one file when it has the suffix of one, else a directory with the files beside it.

    Raises UsageError as check_output does.
    """

    def __init__(self, output: Path, parts: Parts = PACKED_PARTS) -> None:
        check_output(output)
        self._parts = parts
        self.output = output.absolute()
        self.is_file = output.suffix.lower() in FILE_SUFFIXES
        self.path = self.output.with_name(self.output.name + PARTIAL_SUFFIX)
        self._replaces = False
        self._is_placed = False

    def weights_name(self, name: str) -> str:
        return self.output.name if self.is_file else name

    def check_target(self, *, force: bool, source: Path | None = None, one_file: Collection[str] = ()) -> None:
        """Raise UsageError when the output is there and may not be replaced, RunnerError for a link that leads nowhere
        and for what may not be looked into.

        Even with `force`, only what a run like this one made is replaced: never what it is made from, and never a
        directory with other files. source: a file, or a directory with its files. one_file: what models of one file
        that such runs leave in a directory are called.
        """
        self._settle_earlier()
        if source is not None and _holds(self.path, source):
            raise UsageError(f"{self.path} has what is read, and is emptied first.", hint="Give another path with -o.")
        if (place := closed(self.output)) is not None:
            raise cannot_read([place])
        if not os.path.lexists(self.output):  # of too long a name it is said as it is made
            return
        if (target := lost_target(self.output)) is not None:
            raise leads_nowhere(self.output, target)
        if not force:
            raise UsageError(f"{self.output} exists already.", hint="Pass --force to replace it, or -o another path.")
        if not (self.output.is_file() if self.is_file else self.output.is_dir()):
            kind = "directory" if self.output.is_dir() else "file"
            raise UsageError(f"{self.output} is a {kind}.", hint="Give another path with -o.")
        if source is not None and _holds(self.output, source):
            raise UsageError(
                f"{self.output} is what is read, or has it: it would be replaced.", hint="Give another path with -o."
            )
        if not self.is_file and (others := self._foreign_files(self.output, lambda name: name in one_file)):
            raise UsageError(
                f"{self.output} has files that do not belong to what is made there, such as {others[0]!r}.",
                hint="Give another path with -o: this directory will not be deleted.",
            )
        if not self.is_file:
            _check_settable_aside(self.output)
        self._replaces = True

    def require_room(self, needed_bytes: int, *, there_bytes: int = 0) -> None:
        """Raise DoesNotFit when the disk lacks `needed_bytes` in all, of which `there_bytes` are taken already."""
        free = shutil.disk_usage(self.path).free + there_bytes
        if needed_bytes > free:
            raise DoesNotFit(
                f"{decimal_size(needed_bytes)} are needed in {self.path.parent}, and {decimal_size(free)} are free.",
                hint="Free some space, or write to another disk with -o.",
            )

    @contextmanager
    def opened(self, *, resumes: bool = False) -> Iterator[int]:
        """Make the directory, and hold its lock, whose descriptor this gives.

        What a killed run left there goes, and so does what a failed run made. resumes: what was left of the parts
        stays there, and so does what this run makes when it is stopped or the disk is full.

        Raises BusyError when another process is making the same output, UsageError when one has made it meanwhile,
        RunnerError when it cannot be written, or emptied.
        """
        try:
            if self.path.is_relative_to(user_paths().data):
                private_directory(self.path.parent)  # chats are kept there too
            self.path.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path, os.O_RDONLY)
        except OSError as error:
            raise RunnerError(
                f"{self.path} cannot be made: {error.strerror}.", hint="Give another path with -o."
            ) from error
        try:
            _lock(descriptor, self.path, "Wait for it to end, or give another path with -o.")
            self._empty(spared=self._parts.names if resumes else frozenset())
            is_kept = resumes
            try:
                if not self._replaces and os.path.lexists(self.output):  # nothing was to be replaced when this began
                    raise UsageError(
                        f"Another process has just made {self.output}, and it is kept.",
                        hint="Use that one, or give another path with -o.",
                    )
                yield descriptor
            except OSError as error:
                if (full := no_room(error, self.output.parent)) is not None:
                    raise full from error
                of_which = f" ({error.filename})" if isinstance(error.filename, str) else ""
                raise RunnerError(f"Making {self.output} failed: {error.strerror or error}{of_which}.") from error
            except (BadModelFile, UnsupportedModel):
                is_kept = False  # it would fail again
                raise
            finally:
                if self._is_placed:
                    pass  # it is the output now, and what is there again is another run's
                elif not is_kept:
                    shutil.rmtree(self.path, ignore_errors=True)  # half-made files would only take space
                else:
                    with suppress(OSError):  # it has something to go on with
                        self.path.rmdir()
        finally:
            os.close(descriptor)

    def place_file(self, weights: Path) -> None:
        """Put a model of one file in its place, on the disk first."""
        sync(weights)
        os.replace(weights, self.output)

    def copy_companions(self, source: Path) -> None:
        """The files that go beside the weights, as far as `source` has them."""
        for name in COMPANIONS:
            if (file := source / name).is_file():
                shutil.copyfile(file, self.path / name)
                sync(self.path / name)

    def write_manifest(self, text: str) -> Path:
        """The last file of a directory: what it should have is known from then on."""
        path = self.path / MANIFEST_NAME
        path.write_text(text, encoding="utf-8")
        sync(path)
        return path

    def place(self) -> None:
        """Rename the directory to the output; all that is in it is on the disk already. The old one goes last."""
        sync(self.path)
        if self._replaces:
            # The old one is set aside, not deleted, until the new one is in its place.
            old = _new_old(self.output)
            try:
                with suppress(FileNotFoundError):  # it was deleted meanwhile
                    os.rename(self.output, old / REPLACED_NAME)
                os.rename(self.path, self.output)
            finally:
                _settle(old, self.output)
        else:
            os.rename(self.path, self.output)
        self._is_placed = True
        for name in self._parts.spent:
            (self.output / name).unlink(missing_ok=True)  # now, and not before: until here, a run could go on
        sync(self.output.parent)

    def _settle_earlier(self) -> None:
        """Clear up after a run that was killed while it replaced the output. Raises BusyError while one does it."""
        if olds := olds_of(self.output):
            with held(self.path), suppress(OSError):  # where nothing can be written, that is said later
                for old in olds:
                    _settle(old, self.output)

    def _empty(self, spared: frozenset[str]) -> None:
        """Remove what a killed run left, but what is spared; refuse a directory that is somebody else's."""
        try:
            if others := self._foreign_files(self.path, lambda name: Path(name).suffix.lower() in FILE_SUFFIXES):
                raise UsageError(
                    f"{self.path} has files that do not belong to what is made there, such as {others[0]!r}.",
                    hint="Move them away: runner works in that directory.",
                )
            for entry in self.path.iterdir():
                if entry.name not in spared:
                    entry.unlink()
        except OSError as error:  # as where another user's run was killed
            raise RunnerError(
                f"{self.path} cannot be emptied: {error.strerror}.", hint="Delete it, or give another path with -o."
            ) from error

    def _foreign_files(self, directory: Path, is_one_file: Callable[[str], bool]) -> list[str]:
        """What is there that no run of ours made. is_one_file: whether a model of one file of that name is ours."""
        entries = sorted(directory.iterdir())
        has_gguf = any(entry.suffix.lower() == ".gguf" for entry in entries)
        parts = self._parts.names & {MANIFEST_NAME} if has_gguf else self._parts.names  # no run makes weights of both
        is_ours = not self._parts.signs.isdisjoint(entry.name for entry in entries if not _is_theirs(entry))
        ours = {*COMPANIONS, *(parts if is_ours else ())}
        return [
            entry.name
            for entry in entries
            if entry.is_dir() or (entry.name not in ours and not is_one_file(entry.name))
        ]


def _is_theirs(path: Path) -> bool:
    """Whether it is called as a manifest and is a file of another program."""
    from runner.quant.mq.manifest import read_files

    try:
        return path.name == MANIFEST_NAME and not read_files(path)
    except RunnerError:  # damaged, or of another version of runner
        return False


def set_aside(path: Path) -> Path:
    """Move an output, or what is half made, to where it is known to be left over; returns the directory to delete.

    By one rename: a kill before it leaves all of it, and after it nothing that looks like a model. Raises OSError.
    """
    if earlier_output(path) is not None:
        os.rename(path / REPLACED_NAME, path / DELETED_NAME)
        return path
    if is_half_made(path) and not path.name.endswith(PARTIAL_SUFFIX):
        return path
    old = _new_old(path.with_name(output_name(path)))
    try:
        os.rename(path, old / DELETED_NAME)
    except OSError:
        old.rmdir()
        raise
    return old


def _check_settable_aside(output: Path) -> None:
    """Raise UsageError for a name that is too long to be made longer, as `place` has to once the work is done."""
    try:
        output.with_name(f"{output.name}{OLD_MARK}{'x' * 8}").lstat()
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise UsageError(
                f"{output} cannot be replaced: its name is too long to be lengthened while that is done.",
                hint="Give a shorter name with -o, or rename what is there.",
            ) from error


def _new_old(output: Path) -> Path:
    return Path(tempfile.mkdtemp(prefix=output.name + OLD_MARK, dir=output.parent))


def _settle(old: Path, output: Path) -> None:
    """Put the earlier output back where no later one has come to its place; else it goes. Raises OSError."""
    if (earlier := earlier_output(old)) is not None:
        os.rename(earlier, output)
    shutil.rmtree(old, ignore_errors=True)


@contextmanager
def held(partial: Path) -> Iterator[None]:
    """Keep others from making what is half made there. Raises BusyError when one is at it now."""
    try:
        descriptor = os.open(partial, os.O_RDONLY)
    except OSError:  # it is gone, or whoever makes it is another user
        yield
        return
    try:
        _lock(descriptor, partial, "Wait for it to end.")
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, partial: Path, hint: str) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Between opening and locking, its maker may have renamed it to the output.
        if not os.path.samestat(os.fstat(descriptor), partial.stat()):
            raise BlockingIOError
    except OSError as error:
        output = partial.with_name(partial.name.removesuffix(PARTIAL_SUFFIX))
        raise BusyError(f"{other_process(partial)} is making {output}.", hint=hint) from error


def _holds(place: Path, source: Path) -> bool:
    """Whether the source or one of its files is `place`, or lies in it."""
    place = Path(os.path.realpath(place))  # as Path.resolve, which raises for a circle of links
    files = [source, *(source.iterdir() if source.is_dir() else ())]
    return any(place in (file, *file.parents) for file in (Path(os.path.realpath(file)) for file in files))


def sync(path: Path) -> None:
    """Wait until the file, or the directory's list of names, is on the disk: a rename must not overtake contents."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
