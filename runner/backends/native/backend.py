"""One model in torch: the Backend protocol over a Decoder and its KvCache.

It keeps track of which ids the KV cache holds, cuts prompts into chunks, and hands logits to runner's own sampling.
Text, templates, stop strings and stop ids are the engine's.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from runner.backends.base import Backend, LoadProgress, Logits, Prefill, Step, check_prompt, common_prefix
from runner.backends.native.blocks import Decoder
from runner.backends.native.kv_cache import KvCache
from runner.backends.native.loader import load_model
from runner.backends.native.model_files import chat_template, read_config, tokenizer_path
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
from runner.backends.native.tokenizer import HuggingFaceTokenizer
from runner.config import LoadOptions, SamplingParams
from runner.errors import UnsupportedModel
from runner.model_config import ModelConfig, num_parameters
from runner.quant.mq.packed_weights import PackedWeights
from runner.quant.weights import Weights, open_weights
from runner.sampling import sample
from runner.types import CancelToken, MemoryUse, ModelInfo, ReadyModel

_SCORE_CHUNK = 64  # the logits of this many positions are held at once by score()


class _Cancelled(Exception):
    """Ends a forward pass between two products; never leaves this file."""


def open_backend(
    model: ReadyModel, options: LoadOptions, on_progress: LoadProgress, cancel: CancelToken
) -> NativeBackend:
    """Read, check and load `model`. Nothing large is allocated before all headers and the free memory were checked."""
    if options.kv_type == "q8_0":
        raise UnsupportedModel("The native backend has no q8_0 KV cache.", hint="Use --kv-type f16, bf16 or f32.")
    config = read_config(model.directory)
    weights = PackedWeights(model.directory) if model.format == "packed" else open_weights(model, config)
    tokenizer = HuggingFaceTokenizer(tokenizer_path(model.directory), config.vocab_size)
    placement = place(options)
    need = needs(config, placement, options.n_ctx(config.max_position_embeddings))
    if not options.force:
        check_fit(need, placement)
    with _memory_errors(need, placement):
        decoder = load_model(
            config,
            weights,
            dtype=placement.dtype,
            device=placement.device,
            on_progress=on_progress,
            cancel=cancel,
        )
        info = _model_info(model, config, weights, tokenizer, placement, need.n_ctx)
        backend = NativeBackend(info, tokenizer, decoder, placement, need, options)
        if options.warmup:
            backend.warm_up()
    return backend


class NativeBackend(Backend):
    """See Backend in backends/base.py."""

    def __init__(
        self,
        info: ModelInfo,
        tokenizer: HuggingFaceTokenizer,
        decoder: Decoder,
        placement: Placement,
        need: Needs,
        options: LoadOptions,
    ) -> None:
        config = decoder.config
        self.info = info
        self.tokenizer = tokenizer
        self._decoder: Decoder | None = decoder
        self._placement = placement
        self._need = need
        self._chunk = prefill_chunk(config, placement, options.batch_size)
        self._held: list[int] = []  # the ids in the KV cache, by position
        self._cache = KvCache(
            num_layers=config.num_layers,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            n_ctx=info.n_ctx,
            dtype=placement.kv_dtype,
            device=placement.device,
        )

    def warm_up(self) -> None:
        """Run one token, so that pages, threads and kernels are ready, and forget it."""
        self._logits([0], CancelToken())
        self._keep(0)

    def generate(
        self, prompt: Sequence[int], params: SamplingParams, cancel: CancelToken
    ) -> Generator[Prefill | Step, None, None]:
        check_prompt(prompt, self.info)
        try:
            logits = yield from self._prefill(prompt, cancel)
            history = list(prompt)
            while not cancel.is_cancelled:
                token = sample(logits, params, history, len(history))
                history.append(token)
                yield Step(token)
                if len(history) >= self.info.n_ctx:
                    return
                logits = self._logits([token], cancel)
        except _Cancelled:
            return

    def _prefill(self, prompt: Sequence[int], cancel: CancelToken) -> Generator[Prefill, None, NDArray[np.float32]]:
        """Compute what of `prompt` the cache lacks; returns the logits [V] after its last token."""
        # The last token is computed in any case: its logits are not kept.
        cached = min(common_prefix(self._held, prompt), len(prompt) - 1)
        self._keep(cached)
        yield Prefill(cached, len(prompt), cached)
        done = cached
        while len(prompt) - done > self._chunk:
            self._hidden(prompt[done : done + self._chunk], cancel)
            done += self._chunk
            yield Prefill(done, len(prompt), cached)
        logits = self._logits(prompt[done:], cancel)
        yield Prefill(len(prompt), len(prompt), cached)
        return logits

    def score(self, tokens: Sequence[int]) -> Iterator[Logits]:
        check_prompt(tokens, self.info, room=0)
        self._keep(0)
        never = CancelToken()
        size = min(_SCORE_CHUNK, self._chunk)
        for start in range(0, len(tokens), size):
            hidden = self._hidden(tokens[start : start + size], never)
            rows = self._to_logits(hidden)
            for i in range(len(rows)):
                yield Logits(start + i, rows[i].copy())

    def memory(self) -> MemoryUse:
        """Weights and KV cache as allocated; the workspace is torch's rest on a GPU, a bound from shapes on a CPU."""
        if self._decoder is None:
            return MemoryUse(weights_bytes=0, kv_cache_bytes=0, workspace_bytes=0)
        weights = sum(parameter.nbytes for parameter in self._decoder.parameters())
        kv_cache = self._cache.nbytes
        if self._placement.is_gpu:
            workspace = max(0, torch.cuda.memory_reserved(self._placement.device) - weights - kv_cache)
        else:
            config = self._decoder.config
            q_size = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
            row = 4 * config.hidden_size + 2 * config.intermediate_size + 2 * q_size
            workspace = 4 * (self._chunk * row + config.vocab_size)
        return MemoryUse(weights_bytes=weights, kv_cache_bytes=kv_cache, workspace_bytes=workspace)

    def close(self) -> None:
        if self._decoder is None:
            return
        self._decoder = None
        self._cache.release()
        self._held = []
        if self._placement.is_gpu:
            torch.cuda.empty_cache()

    def _keep(self, length: int) -> None:
        self._cache.truncate(length)
        del self._held[length:]

    def _hidden(self, tokens: Sequence[int], cancel: CancelToken) -> Tensor:
        """The final hidden states [T, hidden] of `tokens`; the cache holds them then. Raises _Cancelled, DoesNotFit."""
        assert self._decoder is not None, "the backend is closed"
        with torch.inference_mode(), _memory_errors(self._need, self._placement):
            self._cache.reserve(self._cache.length + len(tokens))
            ids = torch.tensor(tokens, dtype=torch.int64, device=self._placement.device)
            hidden: Tensor = self._decoder(ids, self._cache, self._checkpoint(cancel, len(tokens)))
        self._held.extend(tokens)
        return hidden

    def _to_logits(self, hidden: Tensor) -> NDArray[np.float32]:
        assert self._decoder is not None, "the backend is closed"
        with torch.inference_mode(), _memory_errors(self._need, self._placement):
            logits: Tensor = self._decoder.logits(hidden).cpu()
        rows: NDArray[np.float32] = logits.numpy()
        return rows

    def _logits(self, tokens: Sequence[int], cancel: CancelToken) -> NDArray[np.float32]:
        """The logits [V] after the last of `tokens`."""
        last: NDArray[np.float32] = self._to_logits(self._hidden(tokens, cancel)[-1:])[0]
        return last

    def _checkpoint(self, cancel: CancelToken, n_tokens: int) -> Callable[[], None]:
        """What the layers call between products: raises _Cancelled once `cancel` is set.

        Work is queued on a GPU faster than it is done, so a prefill waits for it: a set flag then means that little is
        left to finish. A single token is little in any case.
        """
        waits = self._placement.is_gpu and n_tokens > 1

        def check() -> None:
            if waits:
                torch.cuda.synchronize(self._placement.device)
            if cancel.is_cancelled:
                raise _Cancelled

        return check


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
    )
