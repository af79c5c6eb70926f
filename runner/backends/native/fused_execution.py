"""A fused decoder at work: its KV cache, its graphs, and the steps that leave tokens on the device.

A step reads its tokens, its position and the request's numbers from the device. A plain one leaves the next token
there, so the next step can begin before the host has seen anything (decode_loop.py), and so does one that drafts what
the text repeats and verifies that. One that verifies the host's draft chooses a token after each, and a few ids are all
that the host reads; a draft for another model is a chain of plain steps, read at its end. Steps are filled up to few
numbers of rows and go through graphs, one for each; so do prompts that are launched more slowly than they are computed,
once such a one has come before. It knows nothing of texts but their ids.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from runner.backends.native.blocks import Tap, go_on
from runner.backends.native.capture import Capture, Interior
from runner.backends.native.decode_loop import STRIDES, DecodeLoop, Mailbox
from runner.backends.native.device_text import DeviceText
from runner.backends.native.execution import Wanted
from runner.backends.native.fused import FusedDecoder
from runner.backends.native.graphs import LONGEST_PROMPT, MESSAGE_ROWS, Graphs, filled_up, filled_up_prompt
from runner.backends.native.guesses import Guesses
from runner.backends.native.kv_cache import KvCache
from runner.backends.native.step_inputs import StepInputs
from runner.backends.native.stream import Stream
from runner.config import LONGEST_STATE_DRAFT, SamplingParams
from runner.kernels.advance import advance
from runner.kernels.delta_rule import DeltaSlots
from runner.kernels.early_launch import launch_early
from runner.kernels.greedy import greedy_from_tiles
from runner.kernels.kv_layer import LayerCache
from runner.kernels.matmul import Logits
from runner.kernels.repeats import draft_repeats
from runner.kernels.sampling import Choice, choose, is_supported
from runner.kernels.values import MOST_ROWS
from runner.speculative.costs import LEAST_STRIDE
from runner.types import CancelToken

# Two such steps may be under way, and the first token of the first one be all that is taken.
_STRIDES_OF_STATES: Final = (LEAST_STRIDE, LONGEST_STATE_DRAFT)


class FusedExecution:
    """See Execution. reserved_before: what torch held on the device before the model was loaded."""

    def __init__(self, decoder: FusedDecoder, cache: KvCache, *, reserved_before: int = 0) -> None:
        device = decoder.device
        self.cache = cache
        # As many rows as a step may have: scoring then measures the arithmetic of decoding.
        self.score_rows = MOST_ROWS
        self.strides: Sequence[int] = STRIDES if cache.states is None else _STRIDES_OF_STATES
        self.is_exact = decoder.has_experts or cache.states is not None
        self.overlaps = True
        lengths = MESSAGE_ROWS if self.is_exact else (MOST_ROWS, *MESSAGE_ROWS)
        self.message_lengths: Sequence[int] = [n for n in lengths if decoder.waits_for_launches(n, 0)]
        self._reserved_before = reserved_before
        self._decoder: FusedDecoder | None = decoder
        self._graphs = Graphs(device)
        self._inputs = StepInputs(device)
        self._tokens, self._start, self._position = self._inputs.tokens, self._inputs.start, self._inputs.position
        self._count = torch.ones(1, dtype=torch.int64, device=device)  # rows of a chain's step that are not filling
        self._prompt_count = torch.ones(1, dtype=torch.int32, device=device)  # the same of a prompt
        self._prompt_last = torch.zeros(1, dtype=torch.int64, device=device)  # the last of its rows
        self._place = torch.zeros(1, dtype=torch.int32, device=device)  # for launch_early
        self._guesses = Guesses(device)
        self._prompt_ids: Tensor | None = None
        self._choice: Choice | None = None
        self._chosen_by: SamplingParams | None = None  # what _choice says now
        self._mailbox = Mailbox(device)
        self._text = DeviceText(cache.n_ctx, device)
        self._capture: Capture | None = None

    @property
    def weights_bytes(self) -> int:
        return 0 if self._decoder is None else self._decoder.nbytes

    @property
    def lacks_graphs(self) -> bool:
        return self._graphs.has_refused

    @property
    def graphs_bytes(self) -> int:
        return self._graphs.nbytes

    @property
    def workspace_bytes(self) -> int:
        """What torch holds besides."""
        if self._decoder is None or self._decoder.device.type == "cpu":
            return 0
        held = torch.cuda.memory_reserved(self._decoder.device) - self._reserved_before
        return max(0, held - self.weights_bytes - self.cache.nbytes - self.graphs_bytes)

    def extend(self, tokens: Sequence[int], wanted: Wanted, checkpoint: Callable[[], None]) -> Tensor:
        n_tokens, first = len(tokens), self.cache.length
        self.cache.begin(n_tokens)
        with torch.inference_mode():
            ids = self._sent(tokens)
            if n_tokens <= MOST_ROWS:
                checkpoint()
                n_rows = self._rows_for(n_tokens)
                self._tokens[:n_tokens].copy_(ids)
                logits: Tensor = self._run(("rows", n_rows), self._overwritten(), lambda: self._rows(n_rows))[
                    :n_tokens
                ].clone()
                rows = {"none": logits[:0], "last": logits[-1:], "all": logits}[wanted]
            else:
                stream = self._affordable_prompt(ids, first, checkpoint, is_whole=wanted == "all")
                rows = stream.h[:0] if wanted == "none" else self._opened().logits(stream, slice(n_tokens)).values
            self._text.put(first, ids)
        self.cache.advance(n_tokens)
        return rows

    def last_choice(
        self, tokens: Sequence[int], params: SamplingParams, checkpoint: Callable[[], None], /
    ) -> Callable[[], int] | None:
        if not is_supported(params):
            return None
        n_tokens, first, is_greedy = len(tokens), self.cache.length, params.temperature == 0
        if n_tokens <= MOST_ROWS:
            checkpoint()
            with torch.inference_mode():
                self._text.put(first, self._sent(tokens))  # which keeps what an earlier answer said from there on
            chosen = self._choices(tokens, params, is_prompt=True)
            return lambda: chosen()[-1]
        self.cache.begin(n_tokens)
        with torch.inference_mode():
            ids = self._sent(tokens)
            stream = self._affordable_prompt(ids, first, checkpoint)
            if not is_greedy:
                self._request(params)
                self._position.fill_(first + n_tokens)
            token = self._choose(self._opened().logits(stream), is_greedy)
            self._text.put(first, ids)
        self.cache.advance(n_tokens)
        return lambda: int(token.item())

    def _sent(self, tokens: Sequence[int]) -> Tensor:
        """`tokens` on their way to the device, int64, and where they begin: all that a prompt's pass waits for."""
        device = self._tokens.device
        sent = torch.tensor(tokens, dtype=torch.int64, pin_memory=device.type == "cuda")
        self._start.fill_(self.cache.length)
        return sent.to(device, non_blocking=True)

    def _affordable_prompt(
        self, tokens: Tensor, first: int, checkpoint: Callable[[], None], *, is_whole: bool = False
    ) -> Stream:
        """See _prompt. Recorded graphs hold memory that no other pass can use: they are given up where it is short."""
        try:
            return self._prompt(tokens, first, checkpoint, is_whole=is_whole)
        except torch.OutOfMemoryError:
            if not self._graphs.nbytes:
                raise
            if self._overwritten():
                self._graphs.forget()  # the next one has the memory, and begins anew
                raise
        self._graphs.forget()
        torch.cuda.empty_cache()
        return self._prompt(tokens, first, checkpoint, is_whole=is_whole)

    def _prompt(self, tokens: Tensor, first: int, checkpoint: Callable[[], None], *, is_whole: bool) -> Stream:
        """The stream of the last of `tokens` [n], after `first` others, or of all, its rows filled up then.

        Rows are filled up where the launches take longest, whether a graph replays them or not: the bits of a row
        depend on the number of rows.
        """
        decoder, n_tokens = self._opened(), len(tokens)
        if self.cache.states is not None:
            self._prompt_count.fill_(n_tokens)
        last = None if is_whole else self._prompt_last.fill_(n_tokens - 1)
        n_rows = filled_up_prompt(n_tokens, self.cache.n_ctx - first)
        if n_rows is None or not decoder.waits_for_launches(n_rows, first):
            self._reserve(first + n_tokens)
            return self._hidden(tokens, first, checkpoint, self._long_tap(n_tokens), last)
        self._reserve(first + n_rows)
        prompt = self._prompt_tokens(n_rows)
        prompt[:n_tokens].copy_(tokens)
        known = first if first == 0 else None
        key = ("prompt", n_rows, known, is_whole)
        checkpoint()
        if self._capture is not None:
            return self._hidden(prompt, known, checkpoint, self._long_tap(n_tokens), last)
        found: Stream = self._graphs.run_or_note(
            key,
            lambda: self._hidden(prompt, known, checkpoint, last=last),
            lambda: self._hidden(prompt, known, go_on, last=last),
        )
        return found

    def _prompt_tokens(self, n_rows: int) -> Tensor:
        """Where a prompt that is filled up lies on the device: graphs have recorded it."""
        if self._prompt_ids is None:
            self._prompt_ids = torch.zeros(LONGEST_PROMPT, dtype=torch.int64, device=self._tokens.device)
        return self._prompt_ids[:n_rows]

    def after_answer(self) -> None:
        with torch.inference_mode():
            self._graphs.record_noted()

    def choices(self, tokens: Sequence[int], params: SamplingParams, /) -> Callable[[], list[int]] | None:
        if len(tokens) > MOST_ROWS or not is_supported(params):
            return None
        return self._choices(tokens, params, is_prompt=False)

    def _choices(self, tokens: Sequence[int], params: SamplingParams, *, is_prompt: bool) -> Callable[[], list[int]]:
        """See choices. is_prompt: they are a prompt's rest, and may be the only ones of so many."""
        n_tokens, is_greedy = len(tokens), params.temperature == 0
        self.cache.begin(n_tokens)
        with torch.inference_mode():
            n_rows = self._rows_for(n_tokens)
            self._begin_at(tokens, params)
            self._text.lose(self.cache.length)
            key = ("greedy rows" if is_greedy else "sampled rows", n_rows)
            step = functools.partial(self._chosen, n_rows, is_greedy)
            if is_prompt and self._capture is None:
                chosen: Tensor = self._graphs.run_or_note(key, step, step)
            else:
                chosen = self._run(key, self._overwritten(), step)
            self.cache.advance(n_tokens)
        return chosen[:n_tokens].tolist  # the one wait of a step

    def _rows_for(self, n_tokens: int) -> int:
        """The rows of a step of so many tokens, which the cache has room for then: few numbers are worth a graph each.

        What fills a step up is whatever was in it before: its rows see those before them, and none sees theirs. With
        experts they would cost what other tokens do, and states they would change: then a step is as long as its
        tokens.
        """
        held = self.cache.length
        room = self.cache.n_ctx - held
        n_rows = n_tokens if self.is_exact else filled_up(n_tokens, room)
        self._reserve(held + n_rows)
        return n_rows

    def _overwritten(self) -> list[Tensor]:
        """The states that the pass which has begun reads and writes over: after a multiple of so many tokens as there
        are slots. Whoever runs it twice must put them back."""
        states, held = self.cache.states, self.cache.length
        return [] if states is None or states.has(held) else states.tensors_of(held)

    def decode(self, token: int, params: SamplingParams, cancel: CancelToken, /) -> DecodeLoop | None:
        if not is_supported(params):
            return None
        if not self._opened().has_experts:  # 3 % faster after it, 2.5 % slower with experts
            launch_early(self._place)
        with torch.inference_mode():
            self._begin_at([token], params)
        self._text.lose(self.cache.length)
        self._mailbox.begin()
        return DecodeLoop(_Steps(self, params.temperature == 0), self._mailbox, self.cache, cancel)

    def can_chain(self, params: SamplingParams, /) -> bool:
        return is_supported(params)

    def chain(self, tokens: Sequence[int], params: SamplingParams, n: int, /) -> list[tuple[int, float]]:
        n_tokens, held, is_greedy = len(tokens), self.cache.length, params.temperature == 0
        with torch.inference_mode():
            self._reserve(held + n_tokens + n - 1)
            n_rows = self._rows_for(n_tokens)
            self._begin_at([*tokens, *[0] * (n_rows - n_tokens)], params)
            self._count.fill_(n_tokens)
            for rows, count in ((n_rows, n_tokens), *[(1, 1)] * (n - 1)):
                self.cache.begin(count)
                state = (self._tokens, self._start, self._position, self._count, *self._overwritten())
                self._run(("chain", rows, is_greedy), state, functools.partial(self._link, rows, is_greedy))
                self.cache.advance(count)
            return self._guesses.read(held + n_tokens, n)

    def rehearse(self, row_counts: Sequence[int]) -> None:
        """Go through the steps of decoding, of drafts and of prompts of so many tokens, without graphs: for warm_up.py,
        which notes the launches and lets none happen. Nothing is kept of it."""
        decoder = self._opened()
        # Experts' products have other tiles for more rows.
        wanted = [*row_counts, *((256, 384, 512, 768, 1024, 1280, 2048) if decoder.has_experts else ())]
        counts = [count for count in wanted if count <= self.cache.n_ctx]
        with torch.inference_mode():
            self._reserve(max(counts))
            self._request(SamplingParams(seed=0))
            launch_early(self._place)
            for is_greedy in (True, False):
                for n_drafted in (0, *self.strides):
                    self._step(1 + n_drafted, is_greedy)
            for n_rows in counts:
                if n_rows <= MOST_ROWS:  # what chooses from their logits depends on no number of rows
                    self._rows(n_rows)
                else:
                    ids = torch.zeros(n_rows, dtype=torch.int64, device=decoder.device)
                    for first in (0, None):
                        decoder.logits(self._hidden(ids, first, go_on, last=self._prompt_last))

    def capture(self, layers: Sequence[int]) -> None:
        decoder = self._opened()
        self._graphs.forget()  # those that were recorded capture other layers, or none
        size = decoder.decoder.config.hidden_size
        self._capture = Capture(layers, size, dtype=decoder.dtype, device=decoder.device) if layers else None

    def captured(self, start: int, stop: int) -> Tensor:
        assert self._capture is not None
        return self._capture.rows(start, stop)

    def interior(self) -> Interior:
        return self._opened().interior()

    def give_texts(self, texts: Sequence[Sequence[int]], /) -> None:
        self._text.give(texts)

    def forget_texts(self) -> None:
        self._text.forget()

    def release(self) -> None:
        self._graphs.forget()
        self._decoder = None
        self.cache.release()

    def _opened(self) -> FusedDecoder:
        assert self._decoder is not None, "the backend is closed"
        return self._decoder

    def _reserve(self, length: int) -> None:
        if length > self.cache.capacity:
            self._graphs.forget()  # the cache moves, or parts of it if there is no memory for the rest
            with torch.inference_mode():
                self.cache.reserve(length)

    def _request(self, params: SamplingParams) -> None:
        """The request's numbers, in a tensor that graphs have recorded: it is made once and rewritten."""
        if params == self._chosen_by:
            return
        if self._choice is None:
            self._choice = Choice.of(params, self._tokens.device)
        else:
            self._choice.rewrite(params)
        self._chosen_by = params

    def _begin_at(self, tokens: Sequence[int], params: SamplingParams) -> None:
        """Put `tokens` on the device, with the position of the first and of the token that is chosen after it."""
        if params.temperature != 0:
            self._request(params)
        self._inputs.put(tokens, self.cache.length)

    def _launch(self, n_rows: int, is_greedy: bool) -> None:
        """Begin the step of the token that lies on the device; what it leaves there goes to the mailbox.

        n_rows: more than one for a draft that the step makes itself; the cache's length is then what it may become.
        """
        self._reserve(self.cache.length + n_rows)
        self.cache.begin(n_rows)
        state = (self._tokens, self._start, self._position, self._inputs.turn)
        self._run(("decode", n_rows, is_greedy), state, lambda: self._step(n_rows, is_greedy))
        self.cache.advance(n_rows)

    def _run(self, key: Hashable, state: Sequence[Tensor], step: Callable[[], Any]) -> Any:
        """A step of few rows, by its graph: see Graphs.run."""
        if self._capture is not None:
            with torch.inference_mode():
                self._capture.begin_steps()
        return self._graphs.run(key, state, step)

    def _step(self, n_rows: int, is_greedy: bool) -> None:
        if n_rows > 1:
            draft_repeats(self._text.ids, self._text.begin, self._start, self._tokens, n_rows - 1)
        advance(
            self._chosen(n_rows, is_greedy), self._tokens, self._text.ids, self._start, self._position,
            self._inputs.turn, self._mailbox.slots,
        )  # fmt: skip

    def _link(self, n_rows: int, is_greedy: bool) -> None:
        """A step of a chain: it leaves the token after the last row that counts where the next step begins."""
        logits = self._logits(n_rows)
        token, position = self._choose(logits, is_greedy), self._position
        values, maxima, sums = logits.values, logits.maxima, logits.sums
        if n_rows > 1:
            last = self._count - 1
            token, values, maxima, sums = (rows.index_select(0, last) for rows in (token, values, maxima, sums))
            position = position + last
        value = values.gather(1, token.clamp(min=0)[:, None])
        self._guesses.put(position, token, 1 / (sums * (maxima - value).exp()).sum(1))
        self._tokens[:1].copy_(token)
        self._start.add_(self._count)
        self._position.add_(self._count)
        self._count.fill_(1)

    def _chosen(self, n_rows: int, is_greedy: bool) -> Tensor:
        """A token after each of the rows [n_rows], -1 where logits are no numbers."""
        return self._choose(self._logits(n_rows), is_greedy)

    def _choose(self, logits: Logits, is_greedy: bool) -> Tensor:
        if is_greedy:
            return greedy_from_tiles(logits.maxima, logits.arguments)
        assert self._choice is not None
        return choose(logits.values, self._choice, self._position)

    def _rows(self, n_rows: int) -> Tensor:
        return self._logits(n_rows).values

    def _logits(self, n_rows: int) -> Logits:
        tap = None if self._capture is None else self._capture.step(self._start, n_rows)
        return self._opened().logits(self._hidden(self._tokens[:n_rows], None, go_on, tap))

    def _hidden(
        self,
        tokens: Tensor,
        first: int | None,
        checkpoint: Callable[[], None],
        tap: Tap | None = None,
        last: Tensor | None = None,
    ) -> Stream:
        cache = self.cache
        kept = () if cache.states is None else zip(cache.states.matrices, cache.states.past, strict=True)
        return self._opened().hidden(
            tokens,
            [LayerCache(**cache.layer(index)) for index in range(cache.num_layers)],
            self._start,
            slots=[DeltaSlots(states=states, past=past) for states, past in kept],
            first=first,
            count=self._prompt_count if len(tokens) > MOST_ROWS else None,
            last=last,
            n_ctx=cache.n_ctx,
            checkpoint=checkpoint,
            tap=tap,
        )

    def _long_tap(self, n_tokens: int) -> Tap | None:
        return None if self._capture is None else self._capture.long_pass(n_tokens)


class _Steps:
    """See decode_loop.Steps."""

    def __init__(self, execution: FusedExecution, is_greedy: bool) -> None:
        # Who captures reads one row a step.
        self.lengths = execution.strides if execution._capture is None else ()
        self._execution = execution
        self._is_greedy = is_greedy
        self._n_first = execution.cache.length

    def begin(self, n_rows: int) -> None:
        self._execution._launch(n_rows, self._is_greedy)

    def fill(self, text: Sequence[int]) -> None:
        self._execution._text.fill(text)

    def end(self, n_known: int) -> None:
        self._execution._text.grow(self._n_first, n_known)
