"""What one model would take here, by its own headers: asked of the command line in a child, computed here.

llama.cpp has to be imported to know what it can do, and the screens' process never imports it: `runner explain` does.
From its facts every other context follows by arithmetic. `ask` blocks; it belongs in a thread.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from runner.config import LoadOptions
from runner.errors import RunnerError
from runner.fit import Alternative, Fit, ModelFacts, Plan, alternatives, plan, remedy
from runner.fit.facts import default_context
from runner.fit_history import FitRecord, read_history
from runner.machine import devices
from runner.paths import Paths
from runner.registry import Registry
from runner.tui.jobs.commands import environment_of
from runner.tui.jobs.narration import Words
from runner.types import BackendName, Device, WeightsFormat
from runner.wire import from_plain

_LOOK_S: Final = 0.1


@dataclass(frozen=True, kw_only=True)
class ExactFit:
    """A model by its headers. backend None: none would run it, for that reason. notes: what the numbers leave out."""

    name: str
    repo: str
    files: tuple[tuple[str, int], ...]
    download_bytes: int
    stored_as: WeightsFormat
    facts: ModelFacts
    backend: BackendName | None
    reason: str
    notes: tuple[str, ...]
    options: LoadOptions
    machine: tuple[Device, ...]
    records: tuple[FitRecord, ...]
    others: tuple[Alternative, ...]

    @property
    def context_length(self) -> int:
        """What it was trained for; 0: not known."""
        return self.facts.shape.context_length

    @property
    def usual_ctx(self) -> int:
        """The context that it is loaded with unless something else is asked for."""
        return self.options.n_ctx(default_context(self.facts.shape))

    def plan(self, n_ctx: int) -> Plan:
        """What loading it with that context would do. Pure."""
        options = dataclasses.replace(self.options, ctx_size=n_ctx)
        backend = self.backend or ("llamacpp" if self.stored_as == "gguf" else "native")
        return plan(self.facts, options, self.machine, backend, self.records, lambda _: None)

    def fit(self, n_ctx: int) -> Fit:
        return self.plan(n_ctx).fit

    def instead(self, n_ctx: int) -> str:
        """What would fit where that does not, in sentences; "" where it does."""
        made = self.plan(n_ctx)
        return "" if made.fit.is_fitting else str(remedy(self.facts, made, self.machine, self.others))


def ask(
    name: str, paths: Paths, options: LoadOptions, *, offline: bool, is_cancelled: Callable[[], bool] = lambda: False
) -> ExactFit | None:
    """Read a model's headers, here or on the hub; None when cancelled. Raises RunnerError with the reason."""
    plain = explain(name, paths, offline=offline, is_cancelled=is_cancelled)
    if plain is None:
        return None
    registry = Registry.load_for(paths)
    try:
        on_cpu = plain["fit"]["device"]["kind"] == "cpu"
        return ExactFit(
            name=name,
            repo=plain["repo"],
            files=tuple((file["name"], file["size_bytes"]) for file in plain["files"]),
            download_bytes=plain["download_bytes"],
            stored_as=plain["format"],
            facts=from_plain(ModelFacts, plain["facts"]),
            backend=plain["backing"]["name"],
            reason=plain["backing"]["reason"],
            notes=tuple(plain["notes"]),
            # Resolved, so that planning does not have to ask llama.cpp whether it can use a GPU.
            options=dataclasses.replace(options, n_gpu_layers=0) if on_cpu else _on_gpu(options),
            machine=devices(),
            records=read_history(paths.fit_history),
            others=alternatives(registry.resolve(name), registry),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise RunnerError(f"What {name} takes cannot be read: {error}.") from error


def _on_gpu(options: LoadOptions) -> LoadOptions:
    return dataclasses.replace(options, n_gpu_layers="all") if options.n_gpu_layers == "auto" else options


def explain(
    name: str, paths: Paths, *, offline: bool = False, is_cancelled: Callable[[], bool] = lambda: False
) -> Mapping[str, Any] | None:
    """What `runner explain NAME --json` says; None when cancelled. Raises RunnerError."""
    arguments = ["explain", "--json", *(["--offline"] if offline else []), "--", name]
    try:
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "runner", "--with-parent", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "NO_COLOR": "1", **environment_of(paths)},
            start_new_session=True,
        )
    except OSError as error:
        raise RunnerError(f"The program cannot be started: {error.strerror or error}.") from error
    with child:
        out, err = _outputs(child, is_cancelled)
    return None if is_cancelled() else _read(out, err, child.returncode)


def _outputs(child: subprocess.Popen[bytes], is_cancelled: Callable[[], bool]) -> tuple[bytes, bytes]:
    while not is_cancelled():
        with suppress(subprocess.TimeoutExpired):
            return _communicate(child)
    child.kill()
    return b"", b""


def _communicate(child: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
    # Its input stays open until it has ended: a child whose input ends takes it for the end of its parent.
    stdin, child.stdin = child.stdin, None
    try:
        return child.communicate(timeout=_LOOK_S)
    finally:
        child.stdin = stdin


def _read(out: bytes, err: bytes, code: int) -> Mapping[str, Any]:
    try:
        plain = json.loads(out)
    except (ValueError, RecursionError):
        plain = None
    if code == 0 and isinstance(plain, dict):
        return plain
    words = Words()
    for line in err.decode("utf-8", "replace").splitlines():
        words.take(line)
    message, hint = words.error
    raise RunnerError(message or f"It cannot be estimated: {words.last or f'code {code}'}", hint=hint)
