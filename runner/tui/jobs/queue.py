"""The queue of jobs: at most one download and one quantization at a time, paused, resumed, given up, tried again.

Methods are called in the UI's thread and return at once; what takes time happens on threads, and `post` is called from
any of them with all jobs as they are then. It knows no screen.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal

from runner.errors import RunnerError
from runner.measures import decimal_size
from runner.paths import Paths
from runner.tui.jobs.asked import Asked, Failure, drop, keep, kept
from runner.tui.jobs.child import CommandLine, Ending, wait_for_all
from runner.tui.jobs.commands import (
    discard_download,
    discard_quantization,
    environment_of,
    output_of,
    pull_arguments,
    quantize_arguments,
    unfinished_downloads,
)
from runner.tui.jobs.job import Job, JobKind
from runner.tui.jobs.narration import Words, read_step

Post = Callable[[tuple[Job, ...]], object]

_INTERRUPTED: Final = (130, -2)
_DOES_NOT_FIT: Final = 4
_LEAVE_PATIENCE_S: Final = 3.0
_KINDS: Final[tuple[JobKind, ...]] = ("pull", "quantize")


@dataclass
class _Entry:
    """A job and what belongs to it. files: names that its download spoke of.

    wish: why it was asked to stop; "again": it was asked for once more since then.
    """

    job: Job
    force: bool = False
    calibrate: bool = True
    output: Path = field(default_factory=Path)
    wish: Literal["", "pause", "cancel", "again"] = ""
    child: CommandLine | None = None
    words: Words = field(default_factory=Words)
    files: set[str] = field(default_factory=set)

    @property
    def is_busy(self) -> bool:
        return self.job.state == "running"

    @property
    def asked(self) -> Asked:
        """What the next start is to know of it."""
        job, failure = self.job, None
        if job.state == "failed":
            failure = Failure(message=job.message, hint=job.hint, exit_code=job.exit_code)
        if job.kind == "pull":
            return Asked(source=job.model, force=self.force, failure=failure)
        return Asked(
            source=job.model,
            weight_format=job.weight_format,
            output=self.output,
            calibrate=self.calibrate,
            failure=failure,
        )

    def update(self, **changes: object) -> None:
        self.job = replace(self.job, **changes)  # type: ignore[arg-type]  # the names are Job's, all in this file

    def settle(self, **changes: object) -> None:
        """It does nothing any more for now."""
        self.update(stage="", rate_bytes_s=None, eta_s=None, trouble="", **changes)


class JobQueue:
    """See the module. `close` and `wait` when the program ends: the children stop, and what has come is kept."""

    def __init__(self, paths: Paths, post: Post) -> None:
        self._paths = paths
        self._post = post
        self._lock = threading.RLock()
        self._entries: dict[str, _Entry] = {}
        self._n_made = 0
        self._is_closed = False
        self._has_looked = False

    @property
    def jobs(self) -> tuple[Job, ...]:
        with self._lock:
            return tuple(entry.job for entry in self._entries.values())

    def pids(self) -> tuple[int, ...]:
        """The processes that work on jobs now."""
        with self._lock:
            return tuple(child.pid for child in self._children())

    # --- wishes ----------------------------------------------------------------------------------------------------

    def pull(self, name: str, *, force: bool = False) -> str:
        """Fetch a model, or go on with it; returns the job's id. force: also what is not expected to fit."""
        with self._lock:
            for entry in self._entries.values():
                job = entry.job
                if job.kind == "pull" and job.model == name and job.can_go_on:
                    entry.force |= force
                    self._go_on(entry)
                    return job.id
            entry = _Entry(self._new("pull", name), force=force)
            self._keep(entry)
            return self._add(entry)

    def quantize(self, source: str, weight_format: str, *, output: Path | None = None, calibrate: bool = True) -> str:
        """Make a model smaller, or go on with it; returns the job's id. output: of the models made here by default."""
        where = output if output is not None else output_of(self._paths, source, weight_format)
        with self._lock:
            for other in self._entries.values():
                is_same = (other.job.model, other.job.weight_format, other.output) == (source, weight_format, where)
                if is_same and other.job.can_go_on:
                    if other.job.is_stopping or not other.is_busy:
                        other.calibrate = calibrate
                    self._go_on(other)
                    return other.job.id
            job = replace(self._new("quantize", source), weight_format=weight_format)
            entry = _Entry(job, calibrate=calibrate, output=where)
            self._keep(entry)
            return self._add(entry)

    def pause(self, job_id: str) -> None:
        """Stop it and keep what has come."""
        with self._lock:
            entry = self._entries.get(job_id)
            if entry is None or not entry.job.can_pause:
                return
            if entry.child is None:
                entry.settle(state="paused")
            else:
                self._stop(entry, "pause")
        self._tell()

    def resume(self, job_id: str) -> None:
        """Go on with a paused one, as soon as it is its turn."""
        with self._lock:
            entry = self._entries.get(job_id)
            if entry is None or not entry.job.can_resume:
                return
            self._requeue(entry)
        self._tell()

    def retry(self, job_id: str) -> None:
        """Try a failed one again; one that was refused because it does not fit is fetched all the same."""
        with self._lock:
            entry = self._entries.get(job_id)
            if entry is None or not entry.job.can_retry:
                return
            entry.force |= entry.job.exit_code == _DOES_NOT_FIT
            self._requeue(entry)
            self._keep(entry)
        self._tell()

    def cancel(self, job_id: str) -> None:
        """Give it up, and delete what is unfinished of it."""
        with self._lock:
            entry = self._entries.get(job_id)
            if entry is None or not entry.job.can_cancel:
                return
            if entry.child is not None:
                self._stop(entry, "cancel")
            else:
                self._give_up(entry)
        self._tell()

    def forget(self, job_id: str) -> None:
        """Take one that has ended out of the list."""
        with self._lock:
            entry = self._entries.get(job_id)
            if entry is not None and entry.job.can_forget:
                del self._entries[job_id]
                if entry.job.state == "failed":
                    self._drop(entry)
        self._tell()

    def find_unfinished(self) -> None:
        """List what earlier programs left: unfinished as paused jobs, and what failed; the first call alone does.

        Looks there on a thread of its own.
        """
        with self._lock:
            has_looked, self._has_looked = self._has_looked, True
        if not has_looked:
            threading.Thread(target=self._find_unfinished, name="unfinished", daemon=True).start()

    def close(self) -> None:
        """Have every child stop, soon: see `wait`. Nothing is posted any more."""
        with self._lock:
            self._is_closed = True
            children = self._children()
        for child in children:
            child.interrupt(_LEAVE_PATIENCE_S)

    def wait(self, timeout_s: float) -> None:
        """Wait until every child has ended; those that have not by then are killed."""
        with self._lock:
            children = self._children()
        wait_for_all(children, timeout_s)

    # --- the queue -------------------------------------------------------------------------------------------------

    def _children(self) -> list[CommandLine]:
        return [entry.child for entry in self._entries.values() if entry.child is not None]

    def _new(self, kind: JobKind, model: str) -> Job:
        self._n_made += 1
        return Job(id=f"{kind}-{self._n_made}", kind=kind, model=model)

    def _add(self, entry: _Entry) -> str:
        self._entries[entry.job.id] = entry
        self._start_next()
        self._tell()
        return entry.job.id

    def _go_on(self, entry: _Entry) -> None:
        """With one that was asked for again: it is resumed or tried again, once it has stopped if it is about to."""
        if entry.job.is_stopping:
            entry.wish = "again"
            entry.update(stage="restarting")
        elif entry.job.can_resume or entry.job.can_retry:
            self._requeue(entry)
        self._keep(entry)
        self._tell()

    def _requeue(self, entry: _Entry) -> None:
        entry.wish = ""
        entry.settle(state="queued", message="", hint="", exit_code=None)
        self._start_next()

    def _keep(self, entry: _Entry) -> None:
        """Have the next start know of it."""
        keep(self._paths, entry.asked)

    def _drop(self, entry: _Entry) -> None:
        drop(self._paths, entry.asked)

    def _tell(self) -> None:
        if not self._is_closed:
            self._post(self.jobs)

    def _start_next(self) -> None:
        """Start the first of each kind that waits, where none of that kind is busy."""
        for kind in _KINDS:
            of_kind = [entry for entry in self._entries.values() if entry.job.kind == kind]
            waiting = [entry for entry in of_kind if entry.job.state == "queued"]
            if waiting and not self._is_closed and not any(entry.is_busy for entry in of_kind):
                self._start(waiting[0])

    def _start(self, entry: _Entry) -> None:
        job = entry.job
        if job.kind == "pull":
            arguments = pull_arguments(job.model, force=entry.force)
        else:
            arguments = quantize_arguments(job.model, job.weight_format, entry.output, calibrate=entry.calibrate)
        entry.wish, entry.words = "", Words()
        entry.update(state="running", stage="starting")
        try:
            entry.child = CommandLine(
                arguments,
                environment_of(self._paths),
                on_line=lambda line: self._take(entry, line),
                on_end=lambda ending: self._end(entry, ending),
            )
        except RunnerError as error:
            entry.settle(state="failed", message=error.message, hint=error.hint)

    def _stop(self, entry: _Entry, wish: Literal["pause", "cancel"]) -> None:
        assert entry.child is not None
        entry.wish = wish
        entry.update(stage="stopping", rate_bytes_s=None, eta_s=None, trouble="")
        entry.child.interrupt()

    # --- what children say, on their threads -----------------------------------------------------------------------

    def _take(self, entry: _Entry, line: str) -> None:
        step = read_step(line)
        with self._lock:
            if step is None:
                entry.words.take(line)
                message, hint = entry.words.warning
                if not message or message == entry.job.message:
                    return
                entry.update(message=message, hint=hint)
            elif not entry.job.is_stopping:
                entry.files.update(step.files)
                entry.update(
                    stage=step.stage,
                    done=step.done,
                    total=step.total,
                    unit=step.unit,
                    rate_bytes_s=step.rate_bytes_s,
                    eta_s=step.eta_s,
                    trouble=step.trouble,
                )
        self._tell()

    def _end(self, entry: _Entry, ending: Ending) -> None:
        with self._lock:
            entry.child = None
            if _is_done(ending):
                self._finish(entry, ending)
            elif entry.wish == "again":
                self._requeue(entry)
            elif entry.wish == "cancel":
                entry.update(state="running", stage="stopping")
            elif entry.wish == "pause" or ending.exit_code in _INTERRUPTED:
                entry.settle(state="paused", message="", hint="")
            else:
                self._fail(entry, ending)
            is_given_up = entry.wish == "cancel" and entry.job.state == "running"
        if is_given_up:
            self._discard(entry)
            return
        with self._lock:
            self._start_next()
        self._tell()

    def _finish(self, entry: _Entry, ending: Ending) -> None:
        message, hint = entry.words.warning
        if entry.job.kind == "quantize":
            size, bpw = ending.result.get("size_bytes"), ending.result.get("bpw")
            if isinstance(size, int) and isinstance(bpw, float):
                message, hint = f"{decimal_size(size)}, {bpw:.2f} bits a weight.", f"{message} {hint}".strip()
        total = entry.job.total
        self._drop(entry)
        entry.settle(state="done", done=total, message=message, hint=hint, exit_code=0)

    def _fail(self, entry: _Entry, ending: Ending) -> None:
        message, hint = entry.words.error
        if ending.exit_code < 0:
            message = f"Its process was ended by signal {-ending.exit_code}."
            hint = "Retry goes on where it was; if it happens again, is there enough memory?"
        elif not message:
            said = f": {entry.words.last}" if entry.words.last else ""
            message = f"Its process ended with code {ending.exit_code} and no result{said}"
        if ending.exit_code == _DOES_NOT_FIT:
            hint = hint.replace("--force fetches it all the same.", "Retry fetches it all the same.")
        entry.settle(state="failed", message=message, hint=hint, exit_code=ending.exit_code)
        if not self._is_closed:  # else it was killed since it did not stop in time, and goes on at the next start
            self._keep(entry)

    def _give_up(self, entry: _Entry) -> None:
        """One that has no process: it does not run, or what is left of it is being deleted already."""
        is_deleting = entry.is_busy
        entry.wish = "cancel"
        entry.update(state="running", stage="stopping")
        if not is_deleting:
            threading.Thread(target=self._discard, args=(entry,), name="discard", daemon=True).start()

    def _discard(self, entry: _Entry) -> None:
        """Delete what is unfinished of a job that was given up; its process has ended."""
        try:
            if entry.job.kind == "pull":
                freed = discard_download(self._paths, entry.job.model, entry.files)
            else:
                freed = discard_quantization(entry.output)
            message, hint = (f"{decimal_size(freed)} freed" if freed else ""), ""
        except RunnerError as error:
            message, hint = error.message, error.hint
        with self._lock:
            entry.update(done=0, total=0)
            if entry.wish == "again":
                self._requeue(entry)
            else:
                self._drop(entry)
                entry.settle(state="cancelled", message=message, hint=hint)
            self._start_next()
        self._tell()

    def _find_unfinished(self) -> None:
        found: tuple[tuple[str, int, int], ...] = ()
        with suppress(RunnerError):  # a settings file that is wrong is told where models are listed
            found = unfinished_downloads(self._paths)
        asked = kept(self._paths)
        with self._lock:
            known = {entry.job.model for entry in self._entries.values() if entry.job.kind == "pull"}
            for name, done, total in found:
                if name not in known:
                    job = replace(self._new("pull", name), state="paused", done=done, total=total)
                    self._entries[job.id] = _Entry(job)
            outputs = {entry.output for entry in self._entries.values() if entry.job.kind == "quantize"}
            for one in asked:
                if one.is_pull and one.source not in known:
                    job = _left(self._new("pull", one.source), one)
                    self._entries[job.id] = _Entry(job, force=one.force)
                elif not one.is_pull and one.output not in outputs:
                    job = _left(replace(self._new("quantize", one.source), weight_format=one.weight_format), one)
                    self._entries[job.id] = _Entry(job, calibrate=one.calibrate, output=one.output)
        if found or asked:
            self._tell()


def _left(job: Job, asked: Asked) -> Job:
    """A job of an earlier start: one that failed says why, any other is paused."""
    if (failure := asked.failure) is None:
        return replace(job, state="paused")
    return replace(job, state="failed", message=failure.message, hint=failure.hint, exit_code=failure.exit_code)


def _is_done(ending: Ending) -> bool:
    """Whether it did all that it was asked for: a reader that goes away ends the command line with code 0 too."""
    return ending.exit_code == 0 and bool(ending.result.get("schema"))
