"""One GGUF model in llama.cpp: batches in, logits out, tokens chosen by runner's own sampling.

It implements the Backend protocol on llama-cpp-python's token-level API, one sequence, and keeps track of what the
KV cache holds. It knows nothing of text: templates, stop strings and stop ids are the engine's.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import llama_cpp
import numpy as np
from numpy.typing import NDArray

from runner.backends.base import (
    Backend,
    LoadProgress,
    Logits,
    Prefill,
    Step,
    check_prompt,
    common_prefix,
    end_of_messages,
    step_of,
    tokens_to_time,
)
from runner.backends.llamacpp.library import ABORT_WHEN_CANCELLED, library_log, open_context, open_model
from runner.backends.llamacpp.saved_states import MOST_SAVED, SavedStates
from runner.backends.llamacpp.threads import Threads
from runner.backends.llamacpp.tokenizer import LlamaCppTokenizer
from runner.config import LONGEST_DRAFT, LoadOptions, SamplingParams
from runner.errors import RunnerError, UnsupportedModel, loading_cancelled
from runner.machine import devices
from runner.quant.gguf_file import GgufHeader, read_header
from runner.sampling import Constraint
from runner.speculative.rounds import decode
from runner.speculative.speculator import Speculator
from runner.speculative.verify import choice_after, choices_of
from runner.types import CancelToken, MemoryUse, ModelInfo, ReadyModel

_SCORE_BATCH = 64  # logits of this many positions are held at once by score()
_CHUNK_GOAL_S = 0.5  # prefill chunks shrink until one takes about this long, so that progress is seen
_MIN_CHUNK = 64  # of fewer tokens attention rounds otherwise on a CPU (ggml's GGML_FA_TILE_Q)


class LlamaCppBackend(Backend):
    """See Backend in backends/base.py."""

    def __init__(self, model: ReadyModel, options: LoadOptions, on_progress: LoadProgress, cancel: CancelToken) -> None:
        header = read_header(model.weights[0])
        self._batch: Any = None
        self._context: Any = None
        self._buffers = library_log().start()  # llama.cpp has one log for all models: these are the buffers of this one
        self._model = open_model(model.weights[0], options, on_progress, cancel)
        try:
            _refuse_unsupported(self._model, model.name)
            trained = int(llama_cpp.llama_model_n_ctx_train(self._model))
            self._context = open_context(self._model, options.n_ctx(trained), options)
            self._saved = SavedStates(self._context)
            self._open(model, header, options)
            if options.warmup:
                with self._stopped_by(cancel):  # it reads all weights, from a slow disk perhaps
                    self._warm_up()
                if cancel.is_cancelled:
                    raise loading_cancelled()
        except BaseException:
            self.close()
            raise

    def _open(self, model: ReadyModel, header: GgufHeader, options: LoadOptions) -> None:
        vocab = llama_cpp.llama_model_get_vocab(self._model)
        self.tokenizer = LlamaCppTokenizer(vocab, header.metadata, model.stop_ids)
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._n_swa = int(llama_cpp.llama_model_n_swa(self._model))
        self._chunk = options.chunk()
        self._n_threads = int(llama_cpp.llama_n_threads(self._context))
        self._threads = Threads(
            self._n_threads,
            is_fixed=options.n_threads is not None or _n_gpu_layers(self._model, options) > 0,
            weights_bytes=int(llama_cpp.llama_model_size(self._model)) * _share_read(header),
        )
        self._batch = llama_cpp.llama_batch_init(max(self._chunk, 1 + LONGEST_DRAFT), 0, 1)
        self._held: list[int] = []
        self._logits_address = 0
        self._logits = np.empty(0, np.float32)
        self.info = self._model_info(model, header, options)

    def _model_info(self, model: ReadyModel, header: GgufHeader, options: LoadOptions) -> ModelInfo:
        num_layers = int(llama_cpp.llama_model_n_layer(self._model))
        context_length = int(llama_cpp.llama_model_n_ctx_train(self._model))
        n_gpu_layers = _n_gpu_layers(self._model, options)
        template = llama_cpp.llama_model_chat_template(self._model, None)
        return ModelInfo(
            name=model.name,
            backend="llamacpp",
            architecture=header.architecture,
            num_parameters=int(llama_cpp.llama_model_n_params(self._model)),
            num_layers=num_layers,
            n_gpu_layers=n_gpu_layers,
            vocab_size=self.tokenizer.vocab_size,
            context_length=context_length,
            # llama.cpp rounds the cache up to 256 cells; what was asked for, or trained, is still where it ends.
            n_ctx=min(int(llama_cpp.llama_n_ctx(self._context)), options.n_ctx(context_length)),
            quantization=header.quantization,
            size_bytes=model.size_bytes,
            device=_where(n_gpu_layers, num_layers, self._n_threads),
            chat_template=model.chat_template or (template.decode("utf-8", "replace") if template else None),
            bos_token=self._name(self.tokenizer.bos_id),
            eos_token=self._name(self.tokenizer.eos_id),
            longest_draft=LONGEST_DRAFT if _can_go_back(self._model) else 0,
            is_batch_exact=n_gpu_layers == 0,
        )

    def _name(self, token: int | None) -> str:
        return "" if token is None else self.tokenizer.token_bytes(token, special=True).decode("utf-8", "replace")

    def _warm_up(self) -> None:
        """Touch every weight once, so that page faults and lazy set-up are part of the load."""
        llama_cpp.llama_set_warmup(self._context, True)
        self._decode([self.tokenizer.bos_id or 0], 0)
        llama_cpp.llama_set_warmup(self._context, False)
        self._forget()

    def generate(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        cancel: CancelToken,
        speculator: Speculator | None = None,
        constraint: Constraint | None = None,
    ) -> Generator[Prefill | Step, None, None]:
        check_prompt(prompt, self.info)
        with self._stopped_by(cancel):
            yield from self._prefill(prompt, cancel)
            if cancel.is_cancelled:
                return
            history = list(prompt)
            history.append(choice_after(history, self._logits_at(-1), params, constraint))
            yield Step(history[-1])
            for token, index, done in decode(_Steps(self, cancel, constraint), params, history, speculator):
                yield step_of(token, index, done)

    @contextmanager
    def _stopped_by(self, cancel: CancelToken) -> Iterator[None]:
        """What is computed within ends as soon as `cancel` is set."""
        llama_cpp.llama_set_abort_callback(self._context, ABORT_WHEN_CANCELLED, ctypes.c_void_p(cancel.address))
        try:
            yield
        finally:
            # The token's memory may be gone before the context is: nothing may poll it any more.
            if self._context is not None:
                llama_cpp.llama_set_abort_callback(self._context, llama_cpp.ggml_abort_callback(0), None)

    def _prefill(self, prompt: Sequence[int], cancel: CancelToken) -> Iterator[Prefill]:
        cached = self.keep(min(common_prefix(self._held, prompt), len(prompt) - 1))
        yield Prefill(cached, len(prompt), cached)
        turn = 0 if _can_go_back(self._model) else end_of_messages(prompt, cached, self.tokenizer.stop_ids)
        if turn:
            for done in self._read(prompt[:turn], cached, cancel):
                yield Prefill(done, len(prompt), cached)
            if cancel.is_cancelled:
                return
            self._saved.save(turn)
        for done in self._read(prompt, turn or cached, cancel):
            yield Prefill(done, len(prompt), cached)

    def _read(self, prompt: Sequence[int], first: int, cancel: CancelToken) -> Iterator[int]:
        """Compute the tokens from `first` on, and say how many of all are done, until `cancel` is set."""
        done, chunk = first, self._chunk
        while done < len(prompt) and not cancel.is_cancelled:
            n_whole = self._chunk - (done - first) % self._chunk
            part = prompt[done : done + _n_at_once(min(n_whole, len(prompt) - done), chunk)]
            started = time.monotonic()
            if not self._decode(part, done):
                return
            if time.monotonic() - started > _CHUNK_GOAL_S:
                chunk = max(chunk // 2, _MIN_CHUNK)
            done += len(part)
            yield done

    def score(self, tokens: Sequence[int]) -> Iterator[Logits]:
        check_prompt(tokens, self.info, room=0)
        self._forget()
        size = min(_SCORE_BATCH, self._chunk)
        for start in range(0, len(tokens), size):
            part = tokens[start : start + size]
            self._decode(part, start, all_logits=True)
            for i in range(len(part)):
                yield Logits(start + i, self._logits_at(i).copy())

    @property
    def held(self) -> Sequence[int]:
        return self._held

    def extend(self, tokens: Sequence[int], cancel: CancelToken) -> NDArray[np.float32] | None:
        with self._stopped_by(cancel):
            for start in range(0, len(tokens), self._chunk):
                if cancel.is_cancelled or not self._decode(tokens[start : start + self._chunk], len(self._held)):
                    return None
        return self._logits_at(-1)

    def step_s(self, n_tokens: int) -> float:
        self._forget(is_wiped=False)
        tokens = tokens_to_time(n_tokens, self.info.vocab_size)
        started = time.perf_counter()
        self._decode(tokens, 0, all_logits=True)
        self._logits_at(n_tokens - 1)
        elapsed = time.perf_counter() - started
        self._threads.took(elapsed, n_tokens)
        self._forget(is_wiped=False)
        return elapsed

    def memory(self) -> MemoryUse:
        """As llama.cpp reported its buffers while it made them, with the states that will be put aside."""
        buffers = self._buffers
        kv, state = buffers.get("KV", 0), buffers.get("RS", 0)
        if state:
            in_ram = not self.info.n_gpu_layers or any(device.is_in_main_memory for device in devices())
            kv += (1 + MOST_SAVED if in_ram else 1) * state  # those put aside are in main memory
        weights = buffers.get("model", 0) or int(llama_cpp.llama_model_size(self._model))
        return MemoryUse(
            weights_bytes=weights,
            kv_cache_bytes=kv,
            workspace_bytes=buffers.get("compute", 0) + buffers.get("output", 0),
        )

    def close(self) -> None:
        if self._batch is not None:
            llama_cpp.llama_batch_free(self._batch)
            self._batch = None
        if self._context is not None:
            llama_cpp.llama_free(self._context)
            self._context = None
            self._saved.forget_after(0)
        if self._model is not None:
            llama_cpp.llama_model_free(self._model)
            self._model = None

    def _decode(self, tokens: Sequence[int], position: int, *, all_logits: bool = False) -> bool:
        """Compute `tokens` at `position` onwards; the last one's logits (or all) can be read. False: aborted."""
        batch, last = self._batch, len(tokens) - 1
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i] = token
            batch.pos[i] = position + i
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = 0
            batch.logits[i] = all_logits or i == last
        self._use_threads(self._threads.of(len(tokens)))
        status = llama_cpp.llama_decode(self._context, batch)
        if status == 0:
            self._held[position:] = tokens
            return True
        self.keep(position)
        if status == 2:
            return False
        reason = "; ".join(library_log().errors) or f"status {status}"
        raise RunnerError(
            f"llama.cpp could not compute {len(tokens)} tokens at position {position}: {reason}",
            hint="Load the model again, with a smaller context (-c) if memory is short.",
        )

    def _use_threads(self, n_threads: int) -> None:
        if n_threads != self._n_threads:
            llama_cpp.llama_set_n_threads(self._context, n_threads, n_threads)
            self._n_threads = n_threads

    def keep(self, length: int) -> int:
        """Recurrent layers cannot go back but to what was saved; a sliding window has already dropped what lies behind
        it."""
        newest = llama_cpp.llama_memory_seq_pos_max(self._memory, 0)
        if length == len(self._held) and newest == length - 1:  # a pass that was cut off may have gone further
            return length
        is_cut = length > 0 and llama_cpp.llama_memory_seq_rm(self._memory, 0, length, -1)
        if is_cut and self._n_swa:
            oldest = llama_cpp.llama_memory_seq_pos_min(self._memory, 0)
            is_cut = oldest <= max(0, length - self._n_swa)
        kept = length if is_cut else self._saved.go_back(length)
        if not kept:
            self._forget()
            return 0
        del self._held[kept:]
        self._saved.forget_after(kept)
        return kept

    def _forget(self, *, is_wiped: bool = True) -> None:
        """Empty the cache. is_wiped: its memory is set to zero too, which takes as long as it is large."""
        llama_cpp.llama_memory_clear(self._memory, is_wiped)
        self._held = []
        self._saved.forget_after(0)

    def _logits_at(self, index: int) -> NDArray[np.float32]:
        """A view [V] of llama.cpp's own buffer, valid until the next decode; rebuilt only when the buffer moved."""
        pointer = llama_cpp.llama_get_logits_ith(self._context, index)
        address = ctypes.addressof(pointer.contents)
        if address != self._logits_address:
            self._logits = np.ctypeslib.as_array(pointer, shape=(self.info.vocab_size,))
            self._logits_address = address
        return self._logits


class _Steps:
    """A request's steps, as the decode loop asks for them: see speculative.rounds.Target."""

    def __init__(self, backend: LlamaCppBackend, cancel: CancelToken, constraint: Constraint | None) -> None:
        self.n_ctx, self.vocab_size = backend.info.n_ctx, backend.info.vocab_size
        self._backend = backend
        self._cancel = cancel
        self._constraint = constraint

    def choices(self, draft: Sequence[int], params: SamplingParams, history: Sequence[int]) -> Iterator[int] | None:
        tokens = [history[-1], *draft]
        started = time.perf_counter()
        if self._cancel.is_cancelled or not self._backend._decode(tokens, len(history) - 1, all_logits=True):
            return None
        self._backend._threads.took(time.perf_counter() - started, len(tokens))
        rows = (self._backend._logits_at(i) for i in range(len(tokens)))
        return choices_of(rows, draft, params, history, self._constraint)

    def keep(self, length: int) -> None:
        self._backend.keep(length)


def _n_at_once(n_tokens: int, goal: int) -> int:
    """How many of `n_tokens`, which could be computed in one piece, to compute in pieces of about `goal`.

    No piece has fewer tokens than _MIN_CHUNK unless all of them are fewer, so that the bits are those of one piece: how
    fast the machine is just now must not change the text.
    """
    return goal if n_tokens - goal >= _MIN_CHUNK else n_tokens


def _n_gpu_layers(model: Any, options: LoadOptions) -> int:
    num_layers = int(llama_cpp.llama_model_n_layer(model))
    wanted = num_layers if options.n_gpu_layers in ("auto", "all") else int(options.n_gpu_layers)
    return min(wanted, num_layers) if llama_cpp.llama_supports_gpu_offload() else 0


def _share_read(header: GgufHeader) -> float:
    """About the share of its weights that a token passes: with experts, which are most of them, those that it takes."""
    n_experts, n_taken = (
        header.metadata.get(f"{header.architecture}.expert_{count}") for count in ("count", "used_count")
    )
    return n_taken / n_experts if n_experts and n_taken else 1.0


def _can_go_back(model: Any) -> bool:
    """Whether the cache can be cut anywhere. Layers with a window can: open_context gives them cells for all of it."""
    return not (llama_cpp.llama_model_is_recurrent(model) or llama_cpp.llama_model_is_hybrid(model))


def _refuse_unsupported(model: Any, name: str) -> None:
    if llama_cpp.llama_vocab_type(llama_cpp.llama_model_get_vocab(model)) == llama_cpp.LLAMA_VOCAB_TYPE_NONE:
        raise UnsupportedModel(  # llama.cpp would end the process when asked to tokenize
            f"The GGUF file of {name} has no tokenizer.", hint="Fetch or convert the model again, with its tokenizer."
        )
    if llama_cpp.llama_model_has_encoder(model):
        raise UnsupportedModel(
            f"{name} has an encoder.", hint="runner runs decoder-only language models: choose another model."
        )
    if llama_cpp.llama_model_is_diffusion(model) or not llama_cpp.llama_model_has_decoder(model):
        raise UnsupportedModel(
            f"{name} does not write text from left to right.", hint="Choose a causal language model."
        )


def _where(n_gpu_layers: int, num_layers: int, threads: int) -> str:
    """The device for people."""
    if n_gpu_layers:
        return f"GPU ({n_gpu_layers} of {num_layers} layers)"
    return "CPU (1 thread)" if threads == 1 else f"CPU ({threads} threads)"
