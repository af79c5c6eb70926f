"""One model in torch: the Backend protocol over an Execution and its KvCache.

It keeps track of which ids the KV cache holds, cuts prompts into chunks, and hands logits to runner's own sampling
where the execution does not sample itself. Text, templates, stop strings and stop ids are the engine's.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray

from runner.backends.base import (
    Backend,
    Began,
    LoadProgress,
    Logits,
    Prefill,
    Step,
    check_prompt,
    common_prefix,
    step_of,
)
from runner.backends.native.execution import Execution, PlainExecution, Wanted
from runner.backends.native.kv_cache import KvCache
from runner.backends.native.loader import load_model, unfilled
from runner.backends.native.model_files import chat_template, read_config, tokenizer_path
from runner.backends.native.pacing import paced
from runner.backends.native.placement import (
    Needs,
    Placement,
    check_fit,
    is_out_of_memory,
    needs,
    out_of_memory,
    place,
    prefill_chunk,
)
from runner.backends.native.places import places_of
from runner.backends.native.tokenizer import HuggingFaceTokenizer
from runner.backends.native.warm_up import Rehearsing, compile_kernels, prepare
from runner.config import LoadOptions, SamplingParams
from runner.model_config import ModelConfig, num_parameters
from runner.quant.mq.packed_weights import PackedWeights
from runner.quant.weights import Weights, open_weights
from runner.sampling import sample
from runner.speculative.rounds import decode
from runner.speculative.speculator import Speculator
from runner.speculative.verify import choices_of
from runner.types import CancelToken, MemoryUse, ModelInfo, ReadyModel

_CPU_NOTE = "Without a GPU the native backend computes in plain torch: right, but slow (llamacpp is faster on a CPU)."


class _Cancelled(Exception):
    """Ends a forward pass between two products; never leaves this file."""


def open_backend(
    model: ReadyModel, options: LoadOptions, on_progress: LoadProgress, cancel: CancelToken
) -> NativeBackend:
    """Read, check and load `model`. Nothing large is allocated before all headers and the free memory were checked."""
    on_progress(Began("headers"))
    config = read_config(model.directory)
    weights = PackedWeights(model.directory) if model.format == "packed" else open_weights(model, config)
    on_progress(Began("tokenizer"))
    tokenizer = HuggingFaceTokenizer(tokenizer_path(model.directory), config.vocab_size)
    on_progress(Began("device"))
    placement = place(options)
    need = needs(config, weights, placement, options.n_ctx(config.max_position_embeddings))
    if not options.force:
        check_fit(need, placement)
    with _memory_errors(need, placement):
        on_progress(Began("weights"))
        if placement.has_kernels:
            prepare()
        execution = _execution(config, weights, placement, need, options, on_progress, cancel)
        info = _model_info(model, config, weights, tokenizer, placement, need.n_ctx)
        backend = NativeBackend(info, tokenizer, execution, config, placement, need, options)
        if options.warmup:
            if isinstance(execution, Rehearsing):
                on_progress(Began("kernels"))
                traits = {"config": config, "types": tuple(weights.types.items()), "placement": placement, "need": need}
                compile_kernels(execution, traits, on_progress, cancel)
            on_progress(Began("warm-up"))
            backend.warm_up()
    return backend


def _execution(
    config: ModelConfig,
    weights: Weights,
    placement: Placement,
    need: Needs,
    options: LoadOptions,
    on_progress: LoadProgress,
    cancel: CancelToken,
) -> Execution:
    """The model on its device: by the kernels on a GPU, by the plain modules on a CPU."""
    cache = KvCache(
        num_layers=config.num_layers,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        n_ctx=need.n_ctx,
        dtype=placement.kv_dtype,
        device=placement.device,
    )
    before = torch.cuda.memory_reserved(placement.device) if placement.is_gpu else 0
    if placement.has_kernels:
        from runner.backends.native.fused import FusedDecoder
        from runner.backends.native.fused_execution import FusedExecution
        from runner.backends.native.matrices import MatrixReader, reading_order

        decoder = unfilled(config, weights)
        with MatrixReader(
            weights,
            dtype=placement.dtype,
            device=placement.device,
            on_progress=on_progress,
            cancel=cancel,
            order=reading_order(places_of(decoder)),
        ) as reader:
            fused = FusedDecoder(decoder, reader)
        torch.cuda.empty_cache()  # the blocks in which the weights came
        return FusedExecution(fused, cache, reserved_before=before)
    plain = load_model(
        config, weights, dtype=placement.dtype, device=placement.device, on_progress=on_progress, cancel=cancel
    )
    return PlainExecution(plain, cache, placement.device, prefill_chunk(config, placement, options))


class NativeBackend(Backend):
    """See Backend in backends/base.py."""

    def __init__(
        self,
        info: ModelInfo,
        tokenizer: HuggingFaceTokenizer,
        execution: Execution,
        config: ModelConfig,
        placement: Placement,
        need: Needs,
        options: LoadOptions,
    ) -> None:
        self.info = info
        self.tokenizer = tokenizer
        self._execution = execution
        self._placement = placement
        self._need = need
        self._chunk = prefill_chunk(config, placement, options)
        self._held: list[int] = []  # the ids in the KV cache, by position
        self._is_open = True

    def warm_up(self) -> None:
        """Run one token, so that pages, threads and kernels are ready, and forget it. On a CPU a second one is timed:
        what is slow is to say how slow."""
        self._last([0], CancelToken())
        self._keep(0)
        if not self._placement.is_gpu:
            started = time.perf_counter()
            self._last([0], CancelToken())
            rate = 1 / (time.perf_counter() - started)
            self._keep(0)
            self.info = dataclasses.replace(self.info, note=f"{self.info.note} Here: about {rate:.2g} tokens/s.")

    def generate(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        cancel: CancelToken,
        speculator: Speculator | None = None,
    ) -> Generator[Prefill | Step, None, None]:
        check_prompt(prompt, self.info)
        try:
            logits = yield from self._prefill(prompt, cancel)
            if cancel.is_cancelled:
                return
            history = list(prompt)
            history.append(sample(logits, params, history, len(history)))
            yield Step(history[-1])
            stream = None
            if speculator is None and len(history) < self.info.n_ctx:
                stream = self._execution.decode(history[-1], params, cancel)
            if stream is not None:
                for token in self._followed(stream, history):
                    yield Step(token)
                return
            for token, index, done in decode(_Steps(self, cancel), params, history, speculator):
                yield step_of(token, index, done)
        except _Cancelled:
            return

    def _followed(self, decoded: Generator[int, None, None], history: list[int]) -> Iterator[int]:
        """What the execution samples itself, which lengthens `history`."""
        try:
            with _memory_errors(self._need, self._placement):
                for token in decoded:
                    history.append(token)
                    yield token
        finally:
            decoded.close()
            self._held = history[: self._execution.cache.length]

    def _prefill(self, prompt: Sequence[int], cancel: CancelToken) -> Generator[Prefill, None, NDArray[np.float32]]:
        """Compute what of `prompt` the cache lacks; returns the logits [V] after its last token."""
        # The last token is computed in any case: its logits are not kept.
        cached = min(common_prefix(self._held, prompt), len(prompt) - 1)
        self._keep(cached)
        yield Prefill(cached, len(prompt), cached)
        done = cached
        while len(prompt) - done > self._chunk:
            self._extend(prompt[done : done + self._chunk], "none", cancel)
            done += self._chunk
            yield Prefill(done, len(prompt), cached)
        logits = self._last(prompt[done:], cancel)
        yield Prefill(len(prompt), len(prompt), cached)
        return logits

    def score(self, tokens: Sequence[int]) -> Iterator[Logits]:
        check_prompt(tokens, self.info, room=0)
        self._keep(0)
        never = CancelToken()
        size = min(self._execution.score_rows, self._chunk)
        for start in range(0, len(tokens), size):
            rows = self._extend(tokens[start : start + size], "all", never)
            for i in range(len(rows)):
                yield Logits(start + i, rows[i].copy())

    def step_s(self, n_tokens: int) -> float:
        self._keep(0)
        started = time.perf_counter()
        self._extend([0] * n_tokens, "all", CancelToken())
        elapsed = time.perf_counter() - started
        self._keep(0)
        return elapsed

    def memory(self) -> MemoryUse:
        """Weights, KV cache and graphs as allocated; the workspace is all else (see Execution)."""
        if not self._is_open:
            return MemoryUse(weights_bytes=0, kv_cache_bytes=0, workspace_bytes=0)
        execution = self._execution
        return MemoryUse(
            weights_bytes=execution.weights_bytes,
            kv_cache_bytes=execution.cache.nbytes,
            graphs_bytes=execution.graphs_bytes,
            workspace_bytes=execution.workspace_bytes,
        )

    def close(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        self._execution.release()
        self._held = []
        if self._placement.is_gpu:
            torch.cuda.empty_cache()

    def _keep(self, length: int) -> None:
        self._execution.cache.truncate(length)
        del self._held[length:]

    def _extend(self, tokens: Sequence[int], wanted: Wanted, cancel: CancelToken) -> NDArray[np.float32]:
        """The logits [n, V] that are wanted of `tokens`; the cache holds them then. Raises _Cancelled, DoesNotFit."""
        assert self._is_open, "the backend is closed"
        with _memory_errors(self._need, self._placement):
            logits = self._execution.extend(tokens, wanted, self._checkpoint(cancel, len(tokens)))
            rows: NDArray[np.float32] = logits.cpu().numpy()
        self._held.extend(tokens)
        return rows

    def _last(self, tokens: Sequence[int], cancel: CancelToken) -> NDArray[np.float32]:
        """The logits [V] after the last of `tokens`."""
        last: NDArray[np.float32] = self._extend(tokens, "last", cancel)[0]
        return last

    def _checkpoint(self, cancel: CancelToken, n_tokens: int) -> Callable[[], None]:
        """What the layers call between products: raises _Cancelled once `cancel` is set.

        A prefill on a GPU is paced: a set flag then means that little is left to finish. A single token is little in
        any case.
        """
        pacing = paced(self._placement.device) if self._placement.is_gpu and n_tokens > 1 else None

        def check() -> None:
            if pacing is not None:
                pacing.checkpoint()
            if cancel.is_cancelled:
                raise _Cancelled

        return check


class _Steps:
    """A request's steps, as the decode loop asks for them: see speculative.rounds.Target."""

    def __init__(self, backend: NativeBackend, cancel: CancelToken) -> None:
        self.n_ctx, self.vocab_size = backend.info.n_ctx, backend.info.vocab_size
        self._backend = backend
        self._cancel = cancel

    def choices(self, draft: Sequence[int], params: SamplingParams, history: Sequence[int]) -> Iterator[int] | None:
        if self._cancel.is_cancelled:
            return None
        rows = self._backend._extend([history[-1], *draft], "all", self._cancel)
        return choices_of(rows, draft, params, history)

    def keep(self, length: int) -> None:
        self._backend._keep(length)


@contextmanager
def _memory_errors(need: Needs, placement: Placement) -> Iterator[None]:
    """Turns a failed allocation into DoesNotFit."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        if placement.is_gpu:
            torch.cuda.empty_cache()
        raise out_of_memory(need, placement) from error


def _model_info(
    model: ReadyModel,
    config: ModelConfig,
    weights: Weights,
    tokenizer: HuggingFaceTokenizer,
    placement: Placement,
    n_ctx: int,
) -> ModelInfo:
    def name(token: int | None) -> str:
        return "" if token is None else tokenizer.token_bytes(token, special=True).decode("utf-8", "replace")

    return ModelInfo(
        name=model.name,
        backend="native",
        architecture=config.model_type,
        num_parameters=num_parameters(config),
        num_layers=config.num_layers,
        n_gpu_layers=config.num_layers if placement.is_gpu else 0,
        vocab_size=config.vocab_size,
        context_length=config.max_position_embeddings,
        n_ctx=n_ctx,
        quantization=weights.quantization,
        size_bytes=model.size_bytes,
        device=placement.name,
        chat_template=chat_template(model.directory) if model.chat_template is None else model.chat_template,
        bos_token=name(tokenizer.bos_id),
        eos_token=name(tokenizer.eos_id),
        note="" if placement.is_gpu else _CPU_NOTE,
    )
