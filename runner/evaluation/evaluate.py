"""Runs a model, and a reference beside it or before it, over the same windows of tokens, and sums up.

Both are loaded at once when they fit, and go through each window together; else the reference goes first, alone, and
its logits are kept on disk. Either way the memory for logits is a few megabytes. It knows no backend by name.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from runner.backends.base import Backend, Tokenizer
from runner.backends.vocabulary import pieces
from runner.engine import load_backend
from runner.errors import DoesNotFit, RunnerError
from runner.evaluation.bits import bits_per_weight
from runner.evaluation.divergence import Divergence, compare, joined, negative_log_likelihood
from runner.evaluation.logits_file import Logits32, LogitsFile, Recorded, key_of, open_kept, write
from runner.evaluation.report import (
    MeasuredModel,
    Measuring,
    Report,
    Request,
    Text,
    TextResult,
    divergence_result,
    perplexity_result,
)
from runner.evaluation.vocabulary import shared_size
from runner.evaluation.windows import TextWindows, cut
from runner.events import LoadEvent, Notice
from runner.fit import read_facts
from runner.machine import devices
from runner.paths import Paths
from runner.prepare import ready
from runner.registry import Registry
from runner.types import CancelToken, ReadyModel

OnEvent = Callable[[LoadEvent | Measuring], None]
Role = Literal["model", "reference"]

_BLOCK_BYTES = 8 * 2**20  # of float32 logits that are worked on at a time, for each model


def evaluate(request: Request, paths: Paths, emit: OnEvent) -> Report:
    """Measure; emit gets notices and progress on the way. Raises RunnerErrors, which say which model they are of."""
    started = time.monotonic()
    evaluation = _Evaluation(request, paths, emit)
    report = evaluation.alone() if request.reference is None else evaluation.against_reference()
    return replace(report, duration_s=time.monotonic() - started)


@dataclass(frozen=True)
class _Opened:
    """A loaded model, and what the report says of it."""

    backend: Backend
    facts: MeasuredModel


class _Meter:
    """Tells how many tokens went through a model, of all that will."""

    def __init__(self, total: int, emit: OnEvent) -> None:
        self._done, self._total, self._emit = 0, total, emit

    def add(self, n_tokens: int) -> None:
        self._done += n_tokens
        self._emit(Measuring(self._done, self._total))


class _Source(Protocol):
    def blocks(self, window: int, n_rows: int) -> Iterator[Logits32]:
        """The logits [R, V] for the scored tokens of that window, counted through all texts, `n_rows` at a time.

        A block is valid until the next one is asked for.
        """
        ...


class _Live(_Source):
    """The logits of a loaded model."""

    def __init__(self, model: _Opened, texts: Sequence[TextWindows], n_context: int, meter: _Meter, role: Role) -> None:
        self._model, self._meter, self._role = model, meter, role
        self._windows = [window for text in texts for window in text.windows]
        self._first = n_context - 1  # the position whose logits are of the first scored token

    def blocks(self, window: int, n_rows: int) -> Iterator[Logits32]:
        tokens = self._windows[window][:-1]  # nothing is scored after the last one
        block = np.empty((n_rows, self._model.backend.info.vocab_size), np.float32)
        filled, done = 0, 0
        with _of(self._role, self._model.facts.name):
            for logits in self._model.backend.score(tokens):
                if logits.position >= self._first:
                    block[filled] = logits.values
                    filled += 1
                if filled == n_rows or logits.position == len(tokens) - 1:
                    self._meter.add(logits.position + 1 - done)
                    done = logits.position + 1
                    yield _checked(block[:filled])
                    filled = 0


class _Evaluation:
    """One request at work."""

    def __init__(self, request: Request, paths: Paths, emit: OnEvent) -> None:
        self._request = request
        self._paths = paths
        self._emit = emit
        self._registry = Registry.load_for(paths)

    def alone(self) -> Report:
        files = self._files("model", self._request.model)
        with self._opened("model", files) as model:
            texts = self._texts(model.backend)
            source = _Live(model, texts, self._request.windowing.n_context, self._meter(texts, 1), "model")
            vocab_size = model.backend.info.vocab_size
            nll = iter([self._perplexity(source, n, tokens, vocab_size) for n, tokens in self._scored(texts)])
            results = [perplexity_result(text, [next(nll) for _ in text.windows]) for text in texts]
        return self._report(model.facts, None, vocab_size, "one", results)

    def against_reference(self) -> Report:
        request = self._request
        reference_files = self._files("reference", request.reference or "")
        model_files = self._files("model", request.model)
        key = self._key(reference_files)
        kept = open_kept(request.kept_logits, key) if request.kept_logits else None
        if kept is not None:
            with self._opened("model", model_files) as model:
                return self._compared(kept.recorded, kept, "kept", model, self._meter(kept.recorded.texts, 1))
        free_ram = sum(device.free_bytes for device in devices() if device.kind == "cpu")
        with self._opened("reference", reference_files) as reference:
            recorded = self._recorded(reference, key)
            meter = self._meter(recorded.texts, 2)
            source = _Live(reference, recorded.texts, request.windowing.n_context, meter, "reference")
            if not (request.two_pass or request.kept_logits or _is_too_much(reference, model_files, free_ram)):
                with ExitStack() as together:
                    try:
                        model = together.enter_context(self._opened("model", model_files))
                    except DoesNotFit:
                        self._emit(Notice("info", "The two models do not fit at once: the reference goes first."))
                    else:
                        return self._compared(recorded, source, "one", model, meter)
            file = self._write(recorded, source)
        with self._opened("model", model_files) as model:
            return self._compared(recorded, file, "two", model, meter)

    # --- models ------------------------------------------------------------------------------------------------------

    def _files(self, role: Role, name: str) -> ReadyModel:
        with _of(role, name):
            spec = self._registry.resolve(name)
            return ready(spec, offline=self._request.offline, on_event=self._emit, cancel=CancelToken())

    @contextmanager
    def _opened(self, role: Role, files: ReadyModel) -> Iterator[_Opened]:
        request = self._request
        options = request.options if role == "model" else request.reference_options
        options = replace(options, ctx_size=request.windowing.size, warmup=False)
        with _of(role, files.name):
            backend, reason = load_backend(files, read_facts(files), options, self._emit, CancelToken())
            facts = _facts(files, backend, reason)
        try:
            if request.windowing.size > backend.info.context_length:
                trained = f"the {backend.info.context_length} tokens that the {role} was trained on"
                self._emit(Notice("warning", f"A window of {request.windowing.size} tokens is longer than {trained}."))
            yield _Opened(backend, facts)
        finally:
            backend.close()

    def _recorded(self, reference: _Opened, key: str) -> Recorded:
        return Recorded(
            key=key,
            model=reference.facts,
            windowing=self._request.windowing,
            texts=self._texts(reference.backend),
            pieces=pieces(reference.backend.tokenizer),
        )

    def _key(self, reference: ReadyModel) -> str:
        """Of everything that the reference's logits follow from."""
        files = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in reference.weights]
        request = self._request
        options = replace(request.reference_options, n_threads=None, force=False, warmup=False, ctx_size=None)
        texts = [(text.name, text.content) for text in request.texts]
        return key_of(files, texts, request.windowing, request.parse_special, options)

    def _write(self, recorded: Recorded, source: _Source) -> LogitsFile:
        n_rows = _n_rows(len(recorded.pieces))
        windows = (source.blocks(number, n_rows) for number in range(recorded.n_windows))
        return write(recorded, windows, self._request.kept_logits, self._paths.cache)

    # --- measuring ---------------------------------------------------------------------------------------------------

    def _texts(self, backend: Backend) -> tuple[TextWindows, ...]:
        tokenizer = backend.tokenizer
        bos = tokenizer.bos_id if tokenizer.add_bos else None
        return tuple(
            cut(text.name, self._ids(tokenizer, text), self._request.windowing, bos) for text in self._request.texts
        )

    def _ids(self, tokenizer: Tokenizer, text: Text) -> Sequence[int]:
        special = tokenizer.encode(text.content, parse_special=True)
        if self._request.parse_special:
            return special
        plain = tokenizer.encode(text.content, parse_special=False)
        if plain != special:
            self._emit(
                Notice(
                    "info",
                    f"{text.name} has names of control tokens, which are measured as plain text.",
                    "--parse-special reads them as control tokens.",
                )
            )
        return plain

    def _meter(self, texts: Sequence[TextWindows], n_models: int) -> _Meter:
        n_windows = sum(len(text.windows) for text in texts)
        return _Meter(n_models * n_windows * (self._request.windowing.size - 1), self._emit)

    def _scored(self, texts: Sequence[TextWindows]) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """Each window's number through all texts, and the tokens that are scored in it."""
        windows = (window for text in texts for window in text.windows)
        for number, window in enumerate(windows):
            yield number, np.asarray(window[self._request.windowing.n_context :], np.int64)

    def _perplexity(
        self, source: _Source, number: int, tokens: NDArray[np.int64], vocab_size: int
    ) -> NDArray[np.float64]:
        n_rows = _n_rows(vocab_size)
        blocks = enumerate(source.blocks(number, n_rows))
        return np.concatenate(
            [negative_log_likelihood(block, tokens[i * n_rows : (i + 1) * n_rows]) for i, block in blocks]
        )

    def _compared(self, recorded: Recorded, source: _Source, passes: str, model: _Opened, meter: _Meter) -> Report:
        vocab_size = shared_size(recorded.pieces, pieces(model.backend.tokenizer))
        ours = _Live(model, recorded.texts, self._request.windowing.n_context, meter, "model")
        scored = self._scored(recorded.texts)
        windows = iter([self._divergence(source, ours, n, tokens, vocab_size) for n, tokens in scored])
        results = [divergence_result(text, [next(windows) for _ in text.windows]) for text in recorded.texts]
        return self._report(model.facts, recorded.model, vocab_size, passes, results)

    def _divergence(
        self, reference: _Source, model: _Source, number: int, tokens: NDArray[np.int64], vocab_size: int
    ) -> Divergence:
        n_rows = _n_rows(vocab_size)
        pairs = zip(reference.blocks(number, n_rows), model.blocks(number, n_rows), strict=True)
        return joined(
            compare(p[:, :vocab_size], q[:, :vocab_size], tokens[i * n_rows : (i + 1) * n_rows])
            for i, (p, q) in enumerate(pairs)
        )

    def _report(
        self,
        model: MeasuredModel,
        reference: MeasuredModel | None,
        vocab_size: int,
        passes: str,
        results: Sequence[TextResult],
    ) -> Report:
        return Report(
            model=model,
            reference=reference,
            windowing=self._request.windowing,
            vocab_size=vocab_size,
            passes=passes,
            duration_s=0.0,
            results=tuple(results),
        )


def _facts(files: ReadyModel, backend: Backend, reason: str) -> MeasuredModel:
    info = backend.info
    return MeasuredModel(
        name=files.name,
        backend=info.backend,
        reason=reason,
        device=info.device,
        quantization=info.quantization,
        num_parameters=info.num_parameters,
        size_bytes=files.size_bytes,
        bits=bits_per_weight(files),
    )


def _is_too_much(reference: _Opened, model: ReadyModel, free_ram: int) -> bool:
    """Whether main memory would have to swap. A GPU's memory is checked by loading: it is not lent twice."""
    held = reference.backend.memory().total_bytes
    return reference.backend.info.n_gpu_layers == 0 and held + model.size_bytes > free_ram


def _n_rows(vocab_size: int) -> int:
    return max(1, _BLOCK_BYTES // (4 * vocab_size))


def _checked(block: Logits32) -> Logits32:
    if not np.isfinite(block.max(axis=1)).all():
        raise RunnerError(
            "It computed logits that are not numbers.", hint="Its weights are damaged: verify or fetch it again."
        )
    return block


@contextmanager
def _of(role: Role, name: str) -> Iterator[None]:
    """Errors say which of the two models they are of."""
    try:
        yield
    except RunnerError as error:
        raise type(error)(f"The {role} {name}: {error.message}", hint=error.hint) from error
