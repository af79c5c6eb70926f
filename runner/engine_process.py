"""The engine in a child process: the same surface as Engine, and a child that may crash, hang or be killed.

This is the parent's half: it starts the child (engine_child.py), sends it requests as lines of JSON and reads events
as lines of JSON. When the child dies the front end lives on: the running iterator raises EngineDied, and the next
`load` starts a new child. It knows nothing of models or tokens.

What events are is imported with the first of them: a chat's prompt is on the screen by then.
"""

from __future__ import annotations

import json
import logging
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import IO, TYPE_CHECKING, Any, Self

from runner.config import ChatOptions, LoadOptions, SamplingParams
from runner.errors import EngineDied, UsageError, error_class
from runner.paths import Paths
from runner.process_signs import DiskWatch, cpu_s, waits_for_disk
from runner.wire import from_plain, to_plain

if TYPE_CHECKING:
    from runner.engine import EngineSurface
    from runner.events import ChatEvent, Event, Loaded, LoadEvent
    from runner.types import Message

log = logging.getLogger(__name__)

HEARTBEAT_S = 1.0
_SILENCE_S = 15.0  # the child beats each second from a thread of its own: this long without is a hang
_DISK_PATIENCE_S = 300.0  # unless it waits for a disk: a library that is loaded from a slow one stops its beats too
_CANCEL_GRACE_S = 2.0  # a cancelled request that has not ended by then never will, unless the child computes an answer
_BUSY_GRACE_S = 30.0  # then one product may be under way: that of a large model takes seconds on a busy machine
_BEATS_CPU_S = 0.02  # what the child's beats take of the CPU is less
_EXIT_GRACE_S = 2.0
_TEARDOWN_S = 30.0  # a process that was killed gives back its memory first, and much of it takes seconds
_HELD_UP_S = 5.0  # of nothing but waiting for a disk or a driver
_LOOK_S = 0.1
_PAUSED_S = 1.0  # a look that took longer than this was stopped: Ctrl-Z, a frozen container, a sleeping machine
_DEFAULT_CHAT_OPTIONS = ChatOptions()
_SOURCE_FOLDER = re.compile(r"\S*/(?=[\w.-]+:\d+: )")  # where a library was built, before its "file.cpp:12: "


class EngineProcess:
    """An Engine in a child process; see EngineSurface. A context manager: leaving it ends the child.

    A subclass may run another module in the child, which answers more requests, with events of its own.
    """

    child_module = "runner.engine_child"

    def __init__(self, paths: Paths) -> None:
        self._paths = paths
        self._child: subprocess.Popen[bytes] | None = None
        self._killed: subprocess.Popen[bytes] | None = None  # from here; it may still be ending
        self._stderr: IO[bytes] | None = None
        self._pending = b""
        self._is_sending = False
        self._request = 0
        self._active = False
        self._load_asked_at = 0.0
        self._cancelled_at: float | None = None
        self._has_sent_cancel = self._is_loading = False
        self._cpu_s = self._worked_at = 0.0  # the child's CPU time, and when it was last seen to have grown
        self._disk = DiskWatch(_DISK_PATIENCE_S)
        self.loaded: Loaded | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """The child's process id, or None when there is no child."""
        child = self._child  # read once: another thread may take it away meanwhile
        return child.pid if child is not None and child.poll() is None else None

    def start(self) -> None:
        """Start the child, which `load` does otherwise: the earlier it starts, the sooner it is ready for that."""
        if self.pid is None or self._child is self._killed:
            self._start()

    def load(self, model: str, options: LoadOptions, *, offline: bool = False) -> Iterator[LoadEvent]:
        self._refuse_second_request()
        self._load_asked_at = time.monotonic()
        self.start()
        request = {"op": "load", "model": model, "options": to_plain(options), "offline": offline}
        try:
            for event in self._events(request):
                yield self._loading(event)  # type: ignore[misc]  # the child sends what Engine.load yields
        except EngineDied as died:
            raise EngineDied(f"{died.message} It was loading {model}.", hint=died.hint) from died

    def chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams,
        options: ChatOptions = _DEFAULT_CHAT_OPTIONS,
    ) -> Iterator[ChatEvent]:
        if self.loaded is None:
            raise UsageError("No model is loaded.", hint="Load one first.")
        request = {
            "op": "chat",
            "messages": to_plain(messages),
            "params": to_plain(params),
            "options": to_plain(options),
        }
        yield from self._events(request)  # type: ignore[misc]  # the child sends what Engine.chat yields

    def cancel(self) -> None:
        if self._active and self._cancelled_at is None:
            self._cancelled_at = time.monotonic()
            if not self._is_sending:  # a signal handler interrupts the request's own write: it is sent after that
                self._send_cancel()

    def kill(self) -> None:
        """End the child at once, whatever it does; the running iterator raises EngineDied."""
        child = self._child
        if child is not None:
            self._killed = child
            child.kill()

    def unload(self) -> None:
        if self.loaded is not None and self.pid is not None:
            for _ in self._events({"op": "unload"}):
                pass
        self.loaded = None

    def close(self) -> None:
        child, stderr = self._take_child()
        if child is None:
            return
        if child.stdin is not None:
            try:
                child.stdin.close()  # the child leaves when its input ends
            except OSError:
                pass
        _wait_or_kill(child)
        self._release(child, stderr)

    def event_type(self, name: str) -> type[Event]:
        """The class of the events of that name that the child sends."""
        from runner import events

        cls: type[Event] = getattr(events, name)
        return cls

    def _loading(self, event: Event) -> Event:
        """An event of a load; the last is kept, with what was spent outside of the child's own stages."""
        from runner.events import Loaded

        if not isinstance(event, Loaded):
            return event
        outside_s = time.monotonic() - self._load_asked_at - event.load_s
        self.loaded = replace(event, stages={"process": outside_s, **event.stages})
        return self.loaded

    def _start(self) -> None:
        self.close()
        self._pending = b""
        try:
            self._stderr = temporary_file()
            # A session of its own: the terminal's Ctrl-C is for the front end, which decides what it means.
            self._child = subprocess.Popen(
                [sys.executable, "-P", "-m", self.child_module, json.dumps(to_plain(self._paths))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                start_new_session=True,
                bufsize=0,
            )
        except OSError as error:
            if self._stderr is not None:
                self._stderr.close()
                self._stderr = None
            raise EngineDied(
                f"The engine cannot be started: {error.strerror or error}.",
                hint=_start_hint(error),
            ) from error
        assert self._child.stdin is not None
        os.set_blocking(self._child.stdin.fileno(), False)

    def _send_cancel(self) -> None:
        """Send it, unless it is sent: the child may not have read the request yet, and leave no room for more."""
        if self._cancelled_at is not None and not self._has_sent_cancel:
            self._has_sent_cancel = self._send({"op": "cancel", "id": self._request}, patience_s=_LOOK_S)

    def _send(self, message: dict[str, Any], *, patience_s: float, waits_for_disk: bool = False) -> bool:
        """Write a message; False when the child reads nothing for `patience_s`, nor is seen at a disk where it may."""
        child = self._child
        self._is_sending = True
        try:
            if child is None or child.stdin is None:
                return True
            data = memoryview(json.dumps(message).encode() + b"\n")
            n_looks, began_at = 0, time.monotonic()
            while data:
                has_room = select.select([], [child.stdin], [], _LOOK_S)[1]
                if has_room and (n_written := _written(child.stdin.fileno(), data)):
                    data, n_looks, began_at = data[n_written:], 0, time.monotonic()
                    continue
                n_looks += 1
                is_waiting = waits_for_disk and n_looks * _LOOK_S > HEARTBEAT_S
                is_at_disk = is_waiting and self._is_at_disk(began_at, patience_s)
                if n_looks * _LOOK_S > patience_s and not is_at_disk:
                    return False
        except (OSError, ValueError):
            log.debug("the engine's input is closed")  # its output ends too, and says so to the reader
        finally:
            self._is_sending = False
        return True

    def _events(self, request: dict[str, Any]) -> Iterator[Event]:
        """Send a request and yield its events until it is done; raises its error, or EngineDied."""
        self._refuse_second_request()
        self._request += 1
        number = self._request
        self._is_loading = request["op"] == "load"
        self._cancelled_at, self._has_sent_cancel = None, False
        self._cpu_s = self._worked_at = 0.0  # of another child, perhaps
        self._disk = DiskWatch(_DISK_PATIENCE_S)
        self._is_sending = self._active = True  # in this order: a cancel from now on waits for the request's end
        is_done = False
        try:
            if not self._send({**request, "id": number}, patience_s=_SILENCE_S, waits_for_disk=True):
                raise self._fell_silent(_SILENCE_S)
            self._send_cancel()
            for message in self._messages():
                if message.get("id") != number:
                    continue
                if "event" in message:
                    yield from_plain(self.event_type(message["event"]), message["value"])
                else:
                    is_done = True
                    self._end(message)
                    return
        except EngineDied:
            is_done = True
            raise
        finally:
            if not is_done:
                self._stop_request(number)
            self._active = False

    def _end(self, message: dict[str, Any]) -> None:
        """The child has said that a request is over; raises the request's error."""
        self._note_loaded(message)
        if error := message["error"]:
            raise error_class(error["class"])(error["message"], hint=error["hint"])

    def _note_loaded(self, message: dict[str, Any]) -> None:
        if not message["is_loaded"]:
            self.loaded = None

    def _refuse_second_request(self) -> None:
        if self._active:
            raise UsageError("The engine is answering another request.", hint="Wait for it, or cancel it.")

    def _stop_request(self, number: int) -> None:
        """The consumer closed the iterator: cancel, and read up to the request's end."""
        self.cancel()
        try:
            for message in self._messages():
                if message.get("id") != number:
                    continue
                if message.get("event") == "Loaded":  # it was ready before the cancel came
                    self._loading(from_plain(self.event_type("Loaded"), message["value"]))
                elif "event" not in message:
                    self._note_loaded(message)
                    return
        except EngineDied:
            log.warning("the engine died while a request was being cancelled")

    def _messages(self) -> Iterator[dict[str, Any]]:
        """What the child sends, heartbeats left out. Raises EngineDied when it is dead, silent or deaf to cancel."""
        heard_at = time.monotonic()
        while True:
            line, separator, rest = self._pending.partition(b"\n")
            if separator:
                self._pending = rest
                message = json.loads(line)
                if message:
                    left_at = time.monotonic()
                    yield message
                    heard_at = time.monotonic()
                    if self._cancelled_at is not None:  # the child may be over long since, and we did not read
                        self._cancelled_at += heard_at - max(left_at, self._cancelled_at)
                continue
            child = self._child
            if child is None or child.stdout is None:
                raise self._died()
            looked_at = time.monotonic()
            data = self._read(child)
            paused = max(
                0.0, time.monotonic() - looked_at - _PAUSED_S
            )  # we were stopped, and perhaps the child with us
            if data is None:
                heard_at += paused
            elif not data:
                raise self._died()
            else:
                self._pending += data
                heard_at = time.monotonic()
            if self._cancelled_at is not None:
                self._cancelled_at += paused
            self._worked_at += paused
            self._disk.pause(paused)
            self._check_patience(heard_at)

    @staticmethod
    def _read(child: subprocess.Popen[bytes]) -> bytes | None:
        """What the child has written, b"" at its end, None when nothing came for a moment."""
        try:
            assert child.stdout is not None
            if not select.select([child.stdout], [], [], _LOOK_S)[0]:
                return None
            return os.read(child.stdout.fileno(), 1 << 16)
        except (OSError, ValueError):  # another thread has closed the engine
            return b""

    def _check_patience(self, heard_at: float) -> None:
        now = time.monotonic()
        if self._child is self._killed and now - heard_at > _EXIT_GRACE_S:
            raise self._died()
        if now - heard_at > HEARTBEAT_S and not self._is_at_disk(heard_at, _SILENCE_S):
            raise self._fell_silent(now - heard_at)
        if self._cancelled_at is None:
            return
        self._send_cancel()
        if (pid := self.pid) is not None and (used_s := cpu_s(pid)) - self._cpu_s > _BEATS_CPU_S:
            self._cpu_s, self._worked_at = used_s, now
        idle_s = now - max(self._cancelled_at, self._worked_at)
        grace_s = _CANCEL_GRACE_S if self._is_loading else _BUSY_GRACE_S  # what is half loaded is no loss
        if idle_s > _CANCEL_GRACE_S or now - self._cancelled_at > grace_s:
            self.kill()
            raise self._died("The engine did not stop when asked to, and was ended.")

    def _is_at_disk(self, heard_at: float, patience_s: float) -> bool:
        """Whether a child that was last heard at `heard_at` was, or was seen at a disk, within `patience_s`."""
        now = time.monotonic()
        if (pid := self.pid) is not None:
            self._disk.look(pid, now)
        return now - self._disk.sign_at(heard_at) <= patience_s

    def _take_child(self) -> tuple[subprocess.Popen[bytes] | None, IO[bytes] | None]:
        """The child and its stderr, which are the caller's to end: another thread may start the next one meanwhile."""
        child, self._child = self._child, None
        stderr, self._stderr = self._stderr, None
        self.loaded = None
        return child, stderr

    def _fell_silent(self, silent_s: float) -> EngineDied:
        self.kill()
        return self._died(f"The engine did not respond for {silent_s:.0f} s and was stopped.")

    def _died(self, message: str = "") -> EngineDied:
        """Collect the dead child and say what happened to it. message: why it was ended from here, if it was."""
        child, stderr = self._take_child()
        if child is None:
            return EngineDied("The engine is not running.", hint="Load the model again.")
        _wait_or_kill(child)
        if child is self._killed and child.returncode in (None, -signal.SIGKILL):
            message = message or "The engine was ended."
        last_words = self._release(child, stderr)
        log.error("engine died with status %s: %s", child.returncode, last_words)
        if child.returncode is None:
            hint = f"Process {child.pid} is held up by a disk or a driver, and keeps its memory until that answers."
            return EngineDied(message or "The engine answers no more.", hint=hint)
        hint = _hint(child.returncode, last_words, is_ours=bool(message))
        return EngineDied(message or f"The engine {_cause(child.returncode)}.", hint=hint)

    def _release(self, child: subprocess.Popen[bytes], stderr: IO[bytes] | None) -> str:
        """Close the pipes of an ended child, and take it off the list; returns the end of what it wrote to stderr."""
        from runner.running import entry

        if child.returncode is not None:
            with suppress(OSError):
                entry(self._paths.engines, child.pid).unlink(missing_ok=True)
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:
                    pass
        if stderr is None:
            return ""
        with stderr:
            size = stderr.seek(0, os.SEEK_END)
            stderr.seek(max(0, size - 16_000))
            return stderr.read().decode("utf-8", "replace").strip()


def temporary_file() -> IO[bytes]:
    """Where a child's last words go: memory, when there is no directory for temporary files."""
    try:
        return tempfile.TemporaryFile()
    except OSError:
        if not hasattr(os, "memfd_create"):
            raise
        return os.fdopen(os.memfd_create("runner-engine"), "w+b")


def _wait_or_kill(child: subprocess.Popen[bytes]) -> None:
    """Wait until it has ended, which is soon. What waits for a disk or a driver does not even end when it is killed."""
    with suppress(subprocess.TimeoutExpired):
        child.wait(_EXIT_GRACE_S)
        return
    child.kill()
    killed_at = free_at = time.monotonic()
    while (now := time.monotonic()) - killed_at < _TEARDOWN_S and now - free_at < _HELD_UP_S:
        with suppress(subprocess.TimeoutExpired):
            child.wait(_LOOK_S)
            return
        if not waits_for_disk(child.pid):
            free_at = now


def _written(file: int, data: memoryview) -> int:
    """How many bytes went in; none where another thread's cancel has taken the room since."""
    try:
        return os.write(file, data)
    except BlockingIOError:
        return 0


def _start_hint(error: OSError) -> str:
    if isinstance(error, PermissionError):
        return f"Check that {sys.executable} may be run, and that programs may be started here."
    if isinstance(error, FileNotFoundError):
        return f"Install runner again: {sys.executable} is gone."
    return "Make room: memory, processes, open files or the disk may be exhausted."


def _cause(status: int) -> str:
    if status >= 0:
        return f"ended unexpectedly (exit status {status})"
    try:
        return f"was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"was ended by signal {-status}"


def _hint(status: int, last_words: str, *, is_ours: bool) -> str:
    """What to do after that end; is_ours: runner itself brought it about."""
    if status == -signal.SIGKILL and not is_ours:
        return "If nobody killed it, memory ran out: use a smaller model or context (-c). Loading again starts it anew."
    # What a library says before it aborts comes first; faulthandler's account of every thread follows, for the log.
    own_words = last_words.partition("Fatal Python error: ")[0].splitlines()
    said = f" It said: {_SOURCE_FOLDER.sub('', own_words[-1].strip())}" if own_words else ""
    if status in (-signal.SIGABRT, -signal.SIGSEGV, -signal.SIGFPE, -signal.SIGBUS, -signal.SIGILL):
        return (
            "Loading the model again starts it anew. If that ends the same way, the file is damaged or too new for the "
            f"library that runs it: `runner verify` tells, then fetch it again, or upgrade that.{said}"
        )
    return f"Loading the model again starts it anew.{said}"


if TYPE_CHECKING:
    _conforms: type[EngineSurface] = EngineProcess
