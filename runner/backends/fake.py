"""A scripted backend: bytes for tokens, answers from a JSON file. For work on front ends, for tests, `--backend fake`.

It passes the conformance suite like any other backend and misbehaves on request (slow, stuck, crashing), which a real
model does not. It computes nothing, so what it says depends on the script and the number of turns alone.

A script: {"replies": ["text", {"text": "...", "token_s": 0.01, "fail": "error", "fail_after": 5}, ...],
           "prefill_token_s": 0.0, "step_s": 0.0, "n_ctx": 8192, "load_s": 0.0}
Reply n (round and round) answers turn n. token_s: seconds between tokens, however they come about. step_s: seconds of a
step, which yields several tokens where a draft is right: speculation is real here, the script stands in for the target.
fail: "error" raises, "exit" ends the process, "kill" and "segv" send it that signal, "hang" never returns and ignores
cancellation, "busy" computes for 3 s before each token and ignores it meanwhile; each after `fail_after`
tokens.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from runner.backends.base import Backend, LoadProgress, Logits, Prefill, Step, check_prompt, common_prefix, step_of
from runner.backends.vocabulary import pieces
from runner.config import DEFAULT_CTX, LONGEST_DRAFT, LoadOptions, SamplingParams, build
from runner.errors import BadModelFile, RunnerError, UsageError, loading_cancelled
from runner.sampling import Constraint
from runner.speculative.rounds import decode
from runner.speculative.speculator import Speculator
from runner.types import CancelToken, MemoryUse, ModelInfo, ReadyModel

_SPECIAL = ("<|im_start|>", "<|im_end|>")
_SPECIAL_PATTERN = re.compile("(" + "|".join(map(re.escape, _SPECIAL)) + ")")
_START, _END = 256, 257
_VOCAB_SIZE = 258
_ASSISTANT = list(b"assistant")
_PREFILL_CHUNK = 64
_BUSY_S = 3.0
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
DEFAULT_REPLY = "I am the scripted backend: I repeat this sentence, whatever you say. "


@dataclass(frozen=True, kw_only=True)
class Reply:
    text: str = DEFAULT_REPLY
    token_s: float = 0.0
    fail: Literal["error", "exit", "kill", "segv", "hang", "busy"] | None = None
    fail_after: int = 0


@dataclass(frozen=True, kw_only=True)
class Script:
    replies: tuple[Reply, ...] = (Reply(),)
    prefill_token_s: float = 0.0
    step_s: float = 0.0
    load_s: float = 0.0
    n_ctx: int = DEFAULT_CTX
    chat_template: str = CHAT_TEMPLATE


def read_script(path: Path) -> Script:
    """The script in a JSON file. Raises BadModelFile."""
    try:
        plain: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        replies = tuple(
            Reply(text=item) if isinstance(item, str) else build(Reply, item) for item in plain.pop("replies", [""])
        )
        return build(Script, plain, {"replies": replies})
    except (OSError, ValueError, AttributeError, TypeError, UsageError) as error:
        raise BadModelFile(
            f"{path} is not a script for the fake backend: {error}", hint='Write {"replies": ["some text"]}.'
        ) from error


def refusal(model: ReadyModel, options: LoadOptions) -> str | None:
    """None when it is asked for by name or given a script: nobody gets invented answers by accident."""
    if model.format == "script" or options.backend == "fake":
        return None
    return "The fake backend answers from a script: ask for it with --backend fake."


def load(model: ReadyModel, options: LoadOptions, on_progress: LoadProgress, cancel: CancelToken) -> Backend:
    """Read the script, if `model` is one; any other model gets the default reply."""
    script = read_script(model.weights[0]) if model.format == "script" and model.weights else Script()
    for percent in range(101):
        if cancel.is_cancelled:
            raise loading_cancelled()
        time.sleep(script.load_s / 100)
        on_progress(percent / 100)
    return FakeBackend(model, script, options)


def vocabulary(_model: ReadyModel) -> tuple[str, ...]:
    """See BackendModule."""
    return pieces(FakeTokenizer(), special=False)


class FakeTokenizer:
    """One token a byte, and two control tokens."""

    vocab_size = _VOCAB_SIZE
    bos_id: int | None = None
    add_bos = False
    stop_ids = frozenset({_END})
    control_tokens = frozenset(_SPECIAL)
    strips_leading_space = False

    def encode(self, text: str, *, parse_special: bool = True) -> list[int]:
        if not parse_special:
            return list(text.encode("utf-8", "replace"))
        ids: list[int] = []
        for part in _SPECIAL_PATTERN.split(text):
            ids.extend([256 + _SPECIAL.index(part)] if part in _SPECIAL else part.encode("utf-8", "replace"))
        return ids

    def token_bytes(self, token: int, *, special: bool = False) -> bytes:
        if not 0 <= token < _VOCAB_SIZE:
            raise IndexError(f"token {token} is outside the vocabulary of {_VOCAB_SIZE}")
        if token < 256:
            return bytes([token])
        return _SPECIAL[token - 256].encode() if special else b""


class FakeBackend(Backend):
    """See Backend in backends/base.py."""

    def __init__(self, model: ReadyModel, script: Script, options: LoadOptions) -> None:
        self._script = script
        self._held: list[int] = []
        self.tokenizer = FakeTokenizer()
        self.info = ModelInfo(
            name=model.name,
            backend="fake",
            architecture="script",
            num_parameters=0,
            num_layers=0,
            n_gpu_layers=0,
            vocab_size=_VOCAB_SIZE,
            context_length=script.n_ctx,
            n_ctx=options.n_ctx(script.n_ctx),
            quantization="none",
            size_bytes=model.size_bytes,
            device="none (scripted)",
            chat_template=model.chat_template or script.chat_template,
            bos_token="",
            eos_token=_SPECIAL[1],
            longest_draft=LONGEST_DRAFT,
        )

    def generate(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        cancel: CancelToken,
        speculator: Speculator | None = None,
        constraint: Constraint | None = None,
    ) -> Generator[Prefill | Step, None, None]:
        check_prompt(prompt, self.info)
        cached = min(common_prefix(self._held, prompt), len(prompt) - 1)
        for done in (*range(cached, len(prompt), _PREFILL_CHUNK), len(prompt)):
            if done > cached:
                _sleep(self._script.prefill_token_s * min(_PREFILL_CHUNK, done - cached), cancel)
            if cancel.is_cancelled:
                return
            self._held = list(prompt[:done])
            yield Prefill(done, len(prompt), cached)
        reply = self._reply(prompt)
        target = _Steps(self, reply, len(prompt), cancel, constraint)
        with closing(self._steps(target, prompt, params, speculator)) as steps:
            for i, step in enumerate(steps):
                if reply.fail and i >= reply.fail_after:
                    _fail(reply.fail)
                _sleep(reply.token_s, cancel)
                if cancel.is_cancelled:
                    return
                yield step

    def _steps(
        self,
        target: _Steps,
        prompt: Sequence[int],
        params: SamplingParams,
        speculator: Speculator | None,
    ) -> Generator[Step, None, None]:
        history = [*prompt, target.after(prompt)]
        yield Step(history[-1])
        for token, index, done in decode(target, params, history, speculator):
            yield step_of(token, index, done)

    def score(self, tokens: Sequence[int]) -> Iterator[Logits]:
        check_prompt(tokens, self.info, room=0)
        self._held = []
        for position in range(len(tokens)):
            yield Logits(position, self._logits(tokens[: position + 1]))

    @property
    def held(self) -> Sequence[int]:
        return self._held

    def keep(self, length: int) -> int:
        del self._held[length:]
        return length

    def extend(self, tokens: Sequence[int], cancel: CancelToken) -> NDArray[np.float32] | None:
        return self._logits(self._held) if self.advance(tokens, cancel) else None

    def advance(self, tokens: Sequence[int], cancel: CancelToken) -> bool:
        """Take a step over `tokens`; False when cancelled."""
        _sleep(self._script.step_s, cancel)
        if cancel.is_cancelled:
            return False
        self._held.extend(tokens)
        return True

    def step_s(self, n_tokens: int) -> float:
        started = time.perf_counter()
        self.keep(0)
        self.advance([0] * n_tokens, CancelToken())
        self.keep(0)
        return time.perf_counter() - started

    def memory(self) -> MemoryUse:
        return MemoryUse(weights_bytes=0, kv_cache_bytes=len(self._held) * 8, workspace_bytes=0)

    def close(self) -> None:
        self._held = []

    def _logits(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        values = np.zeros(_VOCAB_SIZE, np.float32)
        values[self._expected(tokens)] = 1.0
        return values

    def _expected(self, tokens: Sequence[int]) -> int:
        """The token after `tokens`: how much of the reply they end with tells where in it we are."""
        reply = list(self._reply(tokens).text.encode("utf-8", "surrogateescape"))
        written = next(
            n for n in range(min(len(reply), len(tokens)), -1, -1) if list(tokens[len(tokens) - n :]) == reply[:n]
        )
        return reply[written] if written < len(reply) else _END

    def _reply(self, prompt: Sequence[int]) -> Reply:
        """Answers are counted by the assistant turns that the prompt opens; a raw prompt has the first."""
        opened = sum(token == _START and list(prompt[i + 1 : i + 10]) == _ASSISTANT for i, token in enumerate(prompt))
        return self._script.replies[max(0, opened - 1) % len(self._script.replies)]


class _Steps:
    """A reply's steps, as the decode loop asks for them: see speculative.rounds.Target. The script is the sampling."""

    def __init__(
        self, backend: FakeBackend, reply: Reply, n_prompt: int, cancel: CancelToken, constraint: Constraint | None
    ) -> None:
        self.n_ctx, self.vocab_size = backend.info.n_ctx, backend.info.vocab_size
        self._backend = backend
        self._ids = reply.text.encode("utf-8", "surrogateescape")
        self._n_prompt = n_prompt
        self._cancel = cancel
        self._constraint = constraint

    def after(self, history: Sequence[int]) -> int:
        """The token after `history`: the script's, then stop tokens; the first that may come where that may not."""
        i = len(history) - self._n_prompt
        token = self._ids[i] if i < len(self._ids) else _END
        allowed = None if self._constraint is None else self._constraint.allowed(history)
        return token if allowed is None or allowed[token] else int(allowed.argmax())

    def choices(self, draft: Sequence[int], _params: SamplingParams, history: Sequence[int]) -> Iterator[int] | None:
        if not self._backend.advance([history[-1], *draft], self._cancel):
            return None
        return (self.after([*history, *draft[:i]]) for i in range(len(draft) + 1))

    def keep(self, length: int) -> None:
        self._backend.keep(length)


def _sleep(seconds: float, cancel: CancelToken) -> None:
    deadline = time.monotonic() + seconds
    while not cancel.is_cancelled and (left := deadline - time.monotonic()) > 0:
        time.sleep(min(left, 0.02))


def _fail(how: str) -> None:
    if how == "error":
        raise RunnerError("The script asked for an error.", hint="Remove `fail` from the script.")
    if how == "exit":
        os._exit(3)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "segv":
        ctypes.string_at(0)
    while how == "hang":
        time.sleep(3600)
    end = time.process_time() + _BUSY_S
    while time.process_time() < end:
        pass
