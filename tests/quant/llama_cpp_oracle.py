"""llama.cpp as the judge of converted files: logits, greedy tokens and tokenization, on the CPU in full precision."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import llama_cpp
import numpy as np
from numpy.typing import NDArray

from runner.backends.llamacpp.library import model_params

F32 = 0  # ggml's number of the type, for the KV cache


@contextmanager
def loaded(path: Path, *, n_ctx: int = 256) -> Iterator[llama_cpp.Llama]:
    """The model in `path`, with every logit kept and the KV cache in float32.

    One thread: the models are tiny, and two would wait for each other whenever the machine is busy.
    """
    with patch.object(llama_cpp.llama_cpp, "llama_model_default_params", model_params):
        model = llama_cpp.Llama(
            str(path),
            n_ctx=n_ctx,
            n_batch=n_ctx,
            logits_all=True,
            type_k=F32,
            type_v=F32,
            n_threads=1,
            n_threads_batch=1,
            verbose=False,
        )
    try:
        yield model
    finally:
        model.close()


def logits(path: Path, tokens: Sequence[int]) -> NDArray[np.float32]:
    """The logits [T, V] at every position of `tokens`."""
    with loaded(path, n_ctx=max(256, len(tokens))) as model:
        model.eval(tokens)
        return np.array(model.scores[: len(tokens)], dtype=np.float32)


def greedy(path: Path, prompt: Sequence[int], count: int) -> list[int]:
    """Up to `count` tokens after `prompt`, each the most probable one; the token that ends the answer is the last."""
    found: list[int] = []
    with loaded(path, n_ctx=max(256, len(prompt) + count)) as model:
        model.eval(prompt)
        while len(found) < count:
            found.append(int(np.argmax(model.scores[model.n_tokens - 1])))
            if llama_cpp.llama_vocab_is_eog(model._model.vocab, found[-1]):
                break
            model.eval(found[-1:])
    return found


@contextmanager
def vocabulary(path: Path) -> Iterator[llama_cpp.Llama]:
    """Only the tokenizer in `path`."""
    model = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    try:
        yield model
    finally:
        model.close()


def encode(model: llama_cpp.Llama, text: str, *, special: bool = True, add_bos: bool = False) -> list[int]:
    return list(model.tokenize(text.encode(), add_bos=add_bos, special=special))
