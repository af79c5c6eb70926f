"""A model's files to a NativeBackend: read, check, place, load, and run once so that nothing is slow later.

Nothing large is allocated before all headers and the free memory were checked. It knows nothing of what a loaded model
is asked for.
"""

from __future__ import annotations

import gc
import traceback
from concurrent.futures import Future
from contextlib import suppress

import torch

from runner.backends.base import Began, LoadProgress
from runner.backends.native.backend import NativeBackend
from runner.backends.native.execution import Execution, PlainExecution
from runner.backends.native.kv_cache import KvCache
from runner.backends.native.loader import load_model, unfilled
from runner.backends.native.model_files import chat_template, read_config
from runner.backends.native.placement import (
    Needs,
    Placement,
    check_fit,
    first_capacity,
    free_bytes,
    memory_errors,
    needs,
    place,
    prefill_chunk,
)
from runner.backends.native.places import places_of
from runner.backends.native.tokenizer import HuggingFaceTokenizer
from runner.backends.native.warm_up import Rehearsing, compile_kernels, compile_trials
from runner.config import LONGEST_DRAFT, LONGEST_STATE_DRAFT, LoadOptions
from runner.kernels.cache_keys import hash_callees_first
from runner.kernels.fragments import FORMATS_IN_FRAGMENTS
from runner.model_config import ModelConfig, num_parameters
from runner.quant.mq.manifest import manifest_in
from runner.quant.mq.packed_weights import PackedWeights
from runner.quant.safetensors_file import read_header
from runner.quant.weights import Weights, open_weights
from runner.types import CancelToken, ModelInfo, ReadyModel

_CPU_NOTE = "Without a GPU the native backend computes in plain torch: right, but slow (llamacpp is faster on a CPU)."


def open_backend(
    model: ReadyModel,
    opening_tokenizer: Future[HuggingFaceTokenizer],
    options: LoadOptions,
    on_progress: LoadProgress,
    cancel: CancelToken,
) -> NativeBackend:
    """Read, check and load `model`, whose tokenizer is being opened."""
    on_progress(Began("headers"))
    config = read_config(model.directory)
    weights = PackedWeights(model.directory) if model.format == "packed" else open_weights(model, config)
    on_progress(Began("tokenizer"))
    tokenizer = opening_tokenizer.result()
    on_progress(Began("device"))
    placement = place(options)
    need = needs(config, weights, placement, options.n_ctx(config.max_position_embeddings))
    if not options.force:
        check_fit(need, placement)
    if placement.has_kernels:
        hash_callees_first()
    room = free_bytes(placement)
    with memory_errors(need, placement, lambda: room):
        if placement.has_kernels and options.warmup and (kinds := _packed_kinds(weights)):
            has_experts = config.experts is not None
            compile_trials(kinds, placement.device, on_progress, cancel, has_experts=has_experts)
        on_progress(Began("weights"))
        execution = _execution(config, weights, placement, need, options, on_progress, cancel)
        info = _model_info(model, config, weights, tokenizer, placement, need.n_ctx)
        backend = NativeBackend(model, info, tokenizer, execution, config, placement, need, options)
        if options.warmup:
            if isinstance(execution, Rehearsing):
                on_progress(Began("kernels"))
                traits = {"config": config, "types": tuple(weights.types.items()), "placement": placement, "need": need}
                compile_kernels(execution, traits, on_progress, cancel)
            on_progress(Began("warm-up"))
            backend.warm_up(cancel)
    for kept in (read_header, manifest_in):  # a mixture of experts' would hold 40 MB
        kept.forget()
    return backend


def let_go(error: BaseException) -> None:
    """Give back what a load that failed had made: else its traceback holds that, all of a model's weights perhaps."""
    cause: BaseException | None = error
    while cause is not None:
        traceback.clear_frames(cause.__traceback__)
        cause = cause.__cause__ or cause.__context__
    gc.collect()
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        with suppress(RuntimeError):  # of what failed before
            torch.cuda.empty_cache()  # others need the memory: llama.cpp, and other programs


def _packed_kinds(weights: Weights) -> list[tuple[str, int]]:
    """The formats and rotations of the matrices that may be laid out in fragments."""
    records = weights.manifest.tensors.values() if isinstance(weights, PackedWeights) else ()
    return sorted({(one.format, one.input_rotation) for one in records if one.format in FORMATS_IN_FRAGMENTS})


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
    before = torch.cuda.memory_reserved(placement.device) if placement.is_gpu else 0  # the cache has states at once
    cache = KvCache.of(
        config, n_ctx=need.n_ctx, dtype=placement.dtype, device=placement.device, kv_dtype=placement.kv_dtype
    )
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
        cache.reserve(first_capacity(need, free_bytes(placement)))
        return FusedExecution(fused, cache, reserved_before=before)
    plain = load_model(
        config, weights, dtype=placement.dtype, device=placement.device, on_progress=on_progress, cancel=cancel
    )
    return PlainExecution(plain, cache, placement.device, prefill_chunk(config, placement, options))


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
        longest_draft=LONGEST_DRAFT if config.delta is None else LONGEST_STATE_DRAFT,
    )
