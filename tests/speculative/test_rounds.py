"""The decode loop with speculation: the text is the target's, whatever the drafter does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from simulated_machines import PLAIN_S, Machine, Playing, Trace, World

from runner.config import SamplingParams
from runner.sampling import sample
from runner.speculative.control import EagerController
from runner.speculative.drafter import Draft, Gate
from runner.speculative.record import Round
from runner.speculative.rounds import Stride, decode
from runner.speculative.speculator import Speculator
from runner.speculative.strides import Wish
from runner.speculative.verify import accepted, choices_of

V = 32
PARAMS = {
    "greedy": SamplingParams(temperature=0, seed=0),
    "sampled": SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=7),
    "filtered": SamplingParams(temperature=0.7, top_k=10, top_p=0.9, seed=8),
    "penalized": SamplingParams(temperature=0.9, repeat_penalty=1.3, frequency_penalty=0.2, seed=9),
}


def logits_after(history: Sequence[int]) -> np.ndarray:
    """A model of its own: the logits depend on the last three tokens."""
    random = np.random.default_rng([*history[-3:], len(history) % 5])
    return random.normal(0, 2, V).astype(np.float32)


class TableTarget:
    """A target that checks how it is used: the cache must hold what a step goes on from."""

    def __init__(self, n_ctx: int, held: Sequence[int]) -> None:
        self.n_ctx, self.vocab_size = n_ctx, V
        self.held = list(held)
        self.n_steps = 0

    def choices(self, draft: Sequence[int], params: SamplingParams, history: Sequence[int]) -> Iterator[int] | None:
        assert self.held == list(history[:-1])
        rows = []
        for token in (history[-1], *draft):
            self.held.append(token)
            rows.append(logits_after(self.held))
        assert len(self.held) <= self.n_ctx
        self.n_steps += 1
        return choices_of(rows, draft, params, history)

    def keep(self, length: int) -> None:
        del self.held[length:]


class PipelinedTarget(TableTarget):
    """Begins a plain step before the token before it is taken. is_cancelled: nothing more is given out. is_lent: to
    steps of a stretch, which nobody closed or took all of."""

    overlaps = True
    is_cancelled = is_lent = False
    n_dropped = 0
    guess: Callable[[Sequence[int]], Sequence[int]] | None = None  # what its steps draft by themselves

    def choices(self, draft: Sequence[int], params: SamplingParams, history: Sequence[int]) -> Iterator[int] | None:
        assert not self.is_lent
        if self.is_cancelled:
            return None
        return super().choices(draft, params, history)

    def stretch(self, params: SamplingParams, history: Sequence[int]) -> OneAhead | None:
        assert not self.is_lent
        assert self.held == list(history[:-1]) or self.is_cancelled
        self.is_lent = True
        return OneAhead(self, params, history)


class OneAhead:
    """Steps of a PipelinedTarget; `begun` holds the tokens of those that nobody has taken yet."""

    def __init__(self, target: PipelinedTarget, params: SamplingParams, history: Sequence[int]) -> None:
        self._target, self._params, self._history = target, params, history
        self._ahead = list(history)
        self._begun: list[Stride] = []
        self._is_finishing = False
        self._n_drafted = 0

    def __iter__(self) -> OneAhead:
        return self

    def __next__(self) -> Stride:
        if not self._target.is_cancelled:
            self.begin()
        if self._target.is_cancelled or not self._begun:
            self._target.is_lent = False
            raise StopIteration
        return self._begun.pop(0)

    def begin(self) -> None:
        while len(self._begun) < 2 and not self._is_finishing and len(self._ahead) < self._target.n_ctx:
            self._begun.append(self._step())

    def _step(self) -> Stride:
        target, room = self._target, self._target.n_ctx - len(self._ahead) - 1
        draft: tuple[int, ...] = ()
        if target.guess is not None:
            draft = tuple(target.guess(self._ahead)[: min(self._n_drafted, room)])
        target.n_steps += 1
        emitted: list[int] = []
        for drafted in (*draft, None):
            target.held.append(self._ahead[-1])
            emitted.append(sample(logits_after(target.held), self._params, self._ahead, len(self._ahead)))
            self._ahead.append(emitted[-1])
            if emitted[-1] != drafted:
                break
        return Stride(tuple(emitted), draft)

    @property
    def lengths(self) -> Sequence[int]:
        return () if self._target.guess is None else (3, 7)

    def draft(self, n_tokens: int, history: Sequence[int]) -> None:
        assert list(history) == self._history
        assert n_tokens in (0, *self.lengths)
        self._n_drafted = n_tokens

    def finish(self) -> None:
        self._is_finishing = True

    def close(self) -> None:
        self._target.is_lent = False
        self._target.n_dropped += len(self._begun)
        self._begun.clear()
        del self._target.held[len(self._history) :]


class Scripted:
    """Drafts what a function of the history says."""

    name = "scripted"
    n_buckets = 1
    is_host_only = True
    is_quoting = False
    n_given = 0
    nbytes = 0

    def __init__(self, guess) -> None:
        self._guess = guess

    def may_guess(self, _history: Sequence[int]) -> bool:
        return True

    def propose(self, history: Sequence[int], _params: SamplingParams, gate: Gate) -> Draft:
        tokens: list[int] = []
        for token in self._guess(history):
            if not gate.admits(0):
                break
            tokens.append(token)
        return Draft(tuple(tokens), (0,) * len(tokens))

    def close(self) -> None:
        pass


def eager(guess) -> Speculator:
    return Speculator(Scripted(guess), 15, control=EagerController(15))


def plain(prompt: Sequence[int], params: SamplingParams, n: int) -> list[int]:
    history = list(prompt)
    for _ in range(n):
        history.append(sample(logits_after(history), params, history, len(history)))
    return history[len(prompt) :]


def right(params: SamplingParams, n: int):
    return lambda history: plain(history, params, n)


DRAFTERS = {
    "none": lambda _: lambda _: [],
    "always_right": lambda params: right(params, 8),
    "always_wrong": lambda params: lambda history: [(plain(history, params, 1)[0] + 1) % V] * 5,
    "half_right": lambda params: lambda history: [*plain(history, params, 2), 0, 0, 0],
    "too_long": lambda params: right(params, 60),
    "outside_the_vocabulary": lambda _: lambda _: [V, -1, 10**9],
    "of_changing_length": lambda params: lambda history: plain(history, params, len(history) % 7),
}


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("sampling", PARAMS)
def test_the_text_does_not_depend_on_the_drafter(sampling: str, drafter: str) -> None:
    params, prompt, n_ctx = PARAMS[sampling], [1, 2, 3], 64
    history = [*prompt, *plain(prompt, params, 1)]
    target = TableTarget(n_ctx, prompt)
    speculator = eager(DRAFTERS[drafter](params))
    tokens = [token for token, _, _ in decode(target, params, history, speculator)]
    assert history[3:] == plain(prompt, params, n_ctx - 3)
    assert tokens == history[4:]


def test_right_drafts_save_steps() -> None:
    params, prompt = PARAMS["greedy"], [1, 2, 3]
    target = TableTarget(64, prompt)
    list(decode(target, params, [*prompt, *plain(prompt, params, 1)], eager(right(params, 7))))
    assert target.n_steps == 8  # 60 tokens, eight at a time


@pytest.mark.parametrize("n", range(1, 20))
def test_closing_leaves_the_cache_with_all_but_the_last_token(n: int) -> None:
    params, prompt = PARAMS["sampled"], [1, 2, 3]
    history = [*prompt, *plain(prompt, params, 1)]
    target = TableTarget(64, prompt)
    rounds = decode(target, params, history, eager(right(params, 6)))
    for _ in range(n):
        next(rounds)
    rounds.close()
    assert len(history) == 4 + n
    assert target.held == history[:-1]


def test_only_what_counts_is_sampled() -> None:
    read = []

    def choices() -> Iterator[int]:
        for token in (5, 6, 9, 8):
            read.append(token)
            yield token

    verdict = accepted((5, 6, 7), choices())
    assert verdict.tokens == (5, 6, 9)
    assert verdict.n_accepted == 2
    assert read == [5, 6, 9]


# --- plain steps that begin before the token before them is taken ----------------------------------------------------


def now_and_then(params: SamplingParams, n: int, every: int):
    """A right draft of n tokens wherever the history's length is a multiple of `every`, and at the one after it."""
    return lambda history: plain(history, params, n) if len(history) % every in (0, 1) else []


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("sampling", ["greedy", "filtered"])
def test_the_text_does_not_depend_on_whether_steps_begin_early(sampling: str, drafter: str) -> None:
    params, prompt = PARAMS[sampling], [1, 2, 3]
    history = [*prompt, *plain(prompt, params, 1)]
    target = PipelinedTarget(64, prompt)
    speculator = Speculator(Scripted(DRAFTERS[drafter](params)), 15, control=EagerController(15))
    tokens = [token for token, _, _ in decode(target, params, history, speculator)]
    assert history[3:] == plain(prompt, params, 61)
    assert tokens == history[4:]
    assert target.n_dropped == 0


class Quoting(Scripted):
    """Where it guesses anything steps are to draft by themselves."""

    is_quoting = True

    def may_guess(self, history: Sequence[int]) -> bool:
        return len(self._guess(history)) > 0


class Wishing(EagerController):
    """Steps draft where something stood before, and nowhere else."""

    def wish(self, is_known: bool, lengths: Sequence[int]) -> Wish:
        return super().wish(is_known, lengths) if is_known else Wish(0, 0)


def quoting(guess: Callable[[Sequence[int]], Sequence[int]]) -> Speculator:
    return Speculator(Quoting(guess), 15, control=Wishing(15))


GUESSES = {
    "right": lambda params: lambda history: plain(history, params, 15),
    "wrong": lambda params: lambda history: [(plain(history, params, 1)[0] + 1) % V] * 15,
    "half right": lambda params: lambda history: [*plain(history, params, 2), 0, 0, 0],
}
WISHES = {
    "always": lambda _: [1] * 7,
    "now and then": lambda history: [1] * (len(history) % 4),
    "late": lambda history: [1] * 3 if len(history) > 30 else [],
}


@pytest.mark.parametrize("wish", WISHES)
@pytest.mark.parametrize("guess", GUESSES)
@pytest.mark.parametrize("sampling", ["greedy", "filtered", "penalized"])
def test_the_text_does_not_depend_on_what_steps_draft_by_themselves(sampling: str, guess: str, wish: str) -> None:
    params, prompt = PARAMS[sampling], [1, 2, 3]
    history = [*prompt, *plain(prompt, params, 1)]
    target = PipelinedTarget(64, prompt)
    target.guess = GUESSES[guess](params)
    speculator = quoting(WISHES[wish])
    emitted = list(decode(target, params, history, speculator))
    assert history[3:] == plain(prompt, params, 61)
    assert [token for token, _, _ in emitted] == history[4:]
    assert target.n_dropped == 0
    rounds = [done for _, index, done in emitted if index == 0]
    assert target.n_steps == len(rounds)
    assert speculator.record.rounds == sum(bool(done.draft) for done in rounds) > 0
    assert all(done.is_ahead for done in rounds[1:]), "no step was waited for without one behind it"
    if (guess, wish) == ("right", "always"):
        assert len(rounds) <= 10


class Asking(EagerController):
    """Wishes for three tokens and for seven in turns, each wish of a kind of its own."""

    wishes: tuple[Wish, ...] = ()

    def wish(self, _is_known: bool, lengths: Sequence[int]) -> Wish:
        wish = Wish(lengths[len(self.wishes) % 2], len(self.wishes))
        self.wishes += (wish,)
        return wish


def test_a_step_drafts_what_was_wished_for_when_it_began_two_steps_before_it_is_taken() -> None:
    params, prompt = PARAMS["greedy"], [1, 2, 3]
    history = [*prompt, *plain(prompt, params, 1)]
    target = PipelinedTarget(64, prompt)
    target.guess = GUESSES["right"](params)
    control, ticks = Asking(15), iter(range(10_000))
    speculator = Speculator(Quoting(WISHES["always"]), 15, control=control, clock=lambda: 0.0)
    emitted = list(decode(target, params, history, speculator, lambda: float(next(ticks))))
    rounds = [done for _, index, done in emitted if index == 0]
    begun = [control.wishes[0], *control.wishes][: len(rounds)]
    assert [done.draft.buckets[0] for done in rounds[:-1]] == [wish.kind for wish in begun[:-1]]
    assert [len(done.draft) for done in rounds[:-2]] == [wish.n_tokens for wish in begun[:-2]]  # there is room for all
    assert all(done.n_accepted == len(done.draft) == len(done.tokens) - 1 for done in rounds)
    assert [done.is_ahead for done in rounds] == [False] + [True] * (len(rounds) - 1)
    assert {(done.draft_s, done.verify_s, done.sample_s) for done in rounds} == {(0.0, 1.0, 0.0)}  # all that passed


def test_steps_that_draft_by_themselves_end_when_they_are_cancelled() -> None:
    params, prompt = PARAMS["greedy"], [1, 2, 3]
    history = [*prompt, *plain(prompt, params, 1)]
    target = PipelinedTarget(64, prompt)
    target.guess = GUESSES["right"](params)
    rounds = decode(target, params, history, quoting(WISHES["always"]))
    next(rounds)
    target.is_cancelled = True
    list(rounds)
    assert history[3:] == plain(prompt, params, len(history) - 3)
    assert len(history) <= 4 + 8  # the step that was taken


def test_the_drafts_of_one_who_does_not_quote_are_verified_where_steps_could_draft_by_themselves() -> None:
    params, prompt = PARAMS["greedy"], [1, 2, 3]
    history = [*prompt, *plain(prompt, params, 1)]
    target = PipelinedTarget(64, prompt)
    target.guess = GUESSES["wrong"](params)
    list(decode(target, params, history, eager(right(params, 7))))
    assert target.n_steps == 8


def test_tokens_of_a_draft_come_before_those_of_the_steps_that_begin_after_it() -> None:
    """Some of the first steps need the host; the others draft by themselves."""

    class Late(PipelinedTarget):
        def stretch(self, params: SamplingParams, history: Sequence[int]) -> OneAhead | None:
            return super().stretch(params, history) if len(history) > 10 else None

    params, prompt = PARAMS["greedy"], [1, 2, 3]
    history = [*prompt, *plain(prompt, params, 1)]
    target = Late(64, prompt)
    target.guess = GUESSES["right"](params)
    tokens, ahead, n_rounds = [], [], 0
    for token, index, _ in decode(target, params, history, quoting(right(params, 3))):
        tokens.append(token)
        n_rounds += index == 0
        ahead.append(target.n_steps - n_rounds)
    assert tokens == history[4:] == plain(prompt, params, 61)[1:]
    assert max(ahead) == 2  # they have begun when its tokens are taken


@pytest.mark.parametrize("length", [1, 4])
def test_the_next_step_has_begun_when_the_tokens_of_a_draft_are_taken(length: int) -> None:
    params, prompt = PARAMS["greedy"], [1, 2, 3]
    history = [*prompt, *plain(prompt, params, 1)]
    target = PipelinedTarget(64, prompt)
    n_rounds, ahead = 0, []
    for _, index, done in decode(target, params, history, eager(now_and_then(params, length, 10))):
        n_rounds += index == 0
        if done.draft and index == 0 and len(history) < target.n_ctx:
            ahead.append(target.n_steps - n_rounds)
    assert len(ahead) >= 5
    assert min(ahead) >= 1


@pytest.mark.parametrize("n", range(1, 20))
def test_closing_within_what_a_step_drafted_by_itself_cuts_the_cache(n: int) -> None:
    params, prompt = PARAMS["sampled"], [1, 2, 3]
    history = [*prompt, *plain(prompt, params, 1)]
    target = PipelinedTarget(64, prompt)
    target.guess = GUESSES["right"](params)
    rounds = decode(target, params, history, quoting(WISHES["always"]))
    for _ in range(n):
        next(rounds)
    rounds.close()
    assert len(history) == 4 + n
    assert target.held == history[: len(target.held)]
    assert len(target.held) >= len(history) - 1


@pytest.mark.parametrize("kind", [TableTarget, PipelinedTarget])
def test_what_was_written_before_an_error_is_told(kind: type[TableTarget]) -> None:
    class Failing(kind):  # type: ignore[misc, valid-type]
        def choices(self, draft, params, history):
            if len(history) > 10:
                raise MemoryError("no room")
            return super().choices(draft, params, history)

    params, prompt = PARAMS["greedy"], [1, 2, 3]
    history = [*prompt, *plain(prompt, params, 1)]
    target = Failing(64, prompt)
    tokens: list[int] = []
    with pytest.raises(MemoryError):
        for token, _, _ in decode(target, params, history, eager(right(params, 3))):
            tokens.append(token)  # one by one: what came before the error counts
    assert tokens == history[4:] == plain(history[:4], params, len(tokens))
    assert len(history) > 10
    assert target.held[: len(history) - 1] == history[:-1]


@pytest.mark.parametrize("kind", [TableTarget, PipelinedTarget])
@pytest.mark.parametrize("asked", ["propose", "may_guess"])
def test_a_drafter_that_raises_is_not_asked_again_before_the_next_answer(
    kind: type[TableTarget], asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    params, prompt = PARAMS["greedy"], [1, 2, 3]
    raised: list[int] = []

    def fail(history: Sequence[int], *_: object) -> Draft:
        raised.append(len(history))
        raise MemoryError("no room")

    speculator = eager(right(params, 3))
    monkeypatch.setattr(speculator.drafter, asked, fail)
    for _ in range(2):
        speculator.begin()
        raised.clear()
        history = [*prompt, *plain(prompt, params, 1)]
        list(decode(kind(64, prompt), params, history, speculator))
        assert history[3:] == plain(prompt, params, 61)
        assert len(raised) == 1
        assert speculator.record.state == "off"


@pytest.mark.parametrize("kind", [TableTarget, PipelinedTarget])
@pytest.mark.parametrize("n_drafted", [0, 2, 7])
def test_a_choice_that_fails_takes_nothing_with_it_that_was_chosen_before(
    kind: type[TableTarget], n_drafted: int
) -> None:
    class Failing(kind):  # type: ignore[misc, valid-type]
        def choices(self, draft, params, history):
            found = super().choices(draft, params, history)
            for at, token in enumerate(found, len(history)):
                if at == 10:
                    raise MemoryError("no room")
                yield token

    params, prompt = PARAMS["greedy"], [1, 2, 3]
    history = [*prompt, *plain(prompt, params, 1)]
    target = Failing(64, prompt)
    if kind is PipelinedTarget:
        target.stretch = lambda _params, _history: None  # where every step needs the host
    tokens: list[int] = []
    with pytest.raises(MemoryError):
        for token, _, _ in decode(target, params, history, eager(right(params, n_drafted))):
            tokens.append(token)
    assert tokens == plain(history[:4], params, 6)
    assert len(history) == 10
    assert target.held == history[:-1]


def test_a_choice_that_failed_once_is_told_though_the_next_step_could_make_it() -> None:
    class FailingOnce(TableTarget):
        has_failed = False

        def choices(self, draft, params, history):
            for at, token in enumerate(super().choices(draft, params, history), len(history)):
                if at == 10 and not self.has_failed:
                    self.has_failed = True
                    raise MemoryError("no room")
                yield token

    params, prompt = PARAMS["greedy"], [1, 2, 3]
    history = [*prompt, *plain(prompt, params, 1)]
    with pytest.raises(MemoryError):
        list(decode(FailingOnce(64, prompt), params, history, eager(right(params, 7))))
    assert history[3:] == plain(prompt, params, 7)


def test_choosing_is_no_part_of_the_step_where_it_is_waited_for() -> None:
    class Choosing(TableTarget):
        def choices(self, draft, params, history):
            found = list(super().choices(draft, params, history))
            now[0] += 10
            return iter(self._chosen(found))

        def _chosen(self, found):
            for token in found:
                now[0] += 1
                yield token

    now = [0.0]
    params, prompt = PARAMS["greedy"], [1, 2, 3]
    history = [*prompt, *plain(prompt, params, 1)]
    speculator = eager(right(params, 3))
    rounds = decode(Choosing(64, prompt), params, history, speculator, lambda: now[0])
    done = next(done for _, _, done in rounds)
    assert (done.verify_s, done.sample_s) == (10, 4)


def test_where_steps_cannot_draft_the_drafts_of_one_who_quotes_are_verified() -> None:
    params, prompt = PARAMS["greedy"], [1, 2, 3]
    history = [*prompt, *plain(prompt, params, 1)]
    target = PipelinedTarget(64, prompt)
    speculator = quoting(right(params, 7))
    list(decode(target, params, history, speculator))
    assert history[3:] == plain(prompt, params, 61)
    assert target.n_steps == 8


def test_where_nothing_is_quoted_and_steps_cannot_draft_they_are_plain_ones() -> None:
    params, prompt = PARAMS["greedy"], [1, 2, 3]
    history = [*prompt, *plain(prompt, params, 1)]
    target = PipelinedTarget(64, prompt)
    list(decode(target, params, history, quoting(lambda _: [])))
    assert history[3:] == plain(prompt, params, 61)
    assert (target.n_steps, target.n_dropped) == (60, 0)


def test_a_step_that_has_begun_when_a_draft_is_wanted_still_counts() -> None:
    params, prompt = PARAMS["greedy"], [1, 2, 3]
    history = [*prompt, *plain(prompt, params, 1)]
    target = PipelinedTarget(64, prompt)
    speculator = Speculator(Scripted(now_and_then(params, 4, 10)), 15, control=EagerController(15))
    emitted = enumerate(decode(target, params, history, speculator), len(history) + 1)
    rounds = [(length, done) for length, (_, index, done) in emitted if index == 0]
    assert history[3:] == plain(prompt, params, 61)
    assert target.n_dropped == 0
    # Wanted after 10 tokens, when the step of the eleventh has begun; verified after that.
    assert [length for length, done in rounds if done.draft] == [12, 22, 32, 42, 52, 62]
    assert all(done.n_accepted == len(done.draft) for _, done in rounds)
    assert target.n_steps == len(rounds)


def test_the_speculator_hears_of_every_plain_token_what_it_took() -> None:
    params, prompt = PARAMS["greedy"], [1, 2, 3]
    heard: list[Round] = []

    class Listening(EagerController):
        def learn(self, done: Round) -> Callable[[float], None]:
            heard.append(done)
            return super().learn(done)

    ticks = iter(range(10_000))
    history = [*prompt, *plain(prompt, params, 1)]
    speculator = Speculator(Scripted(lambda _: []), 15, control=Listening(15))
    target = PipelinedTarget(16, prompt)
    emitted = list(decode(target, params, history, speculator, clock=lambda: float(next(ticks))))
    assert [done.tokens for done in heard] == [(token,) for token, _, _ in emitted] != []
    first, *others = [(done.draft_s, done.verify_s, done.sample_s) for done in heard]
    assert first == (1.0, 1.0, 0.0)
    # A tick more from learning of a token to asking for the next: the caller's, behind which the device works.
    assert set(others) == {(1.0, 3.0, 0.0)}
    assert target.n_steps == len(emitted) == 12


class Heard(EagerController):
    """Keeps the rounds that it learns of; learning takes a while by the world's clock."""

    def __init__(self, world: World) -> None:
        super().__init__(15)
        self.rounds: list[Round] = []
        self._world = world

    def learn(self, done: Round) -> Callable[[float], None]:
        learn = super().learn(done)

        def work(own_s: float) -> None:
            learn(own_s)
            self.rounds.append(done)
            self._world.work(0.25)

        return work


def in_plain_steps(machine: Machine, right: Sequence[bool], buckets: Sequence[int | None]) -> tuple[list[Round], float]:
    """The rounds of a text, with a draft wherever there is a guess, and its end: by a clock that counts plain steps."""
    world = World(Trace("text", tuple(right), tuple(buckets)), machine, 0)
    heard = Heard(world)
    speculator = Speculator(Playing(world, True), 15, control=heard, clock=world.clock)
    for _ in decode(world, PARAMS["greedy"], [0], speculator, lambda: world.now / PLAIN_S):
        world.work(machine.caller)
    return heard.rounds, world.now / PLAIN_S


EARLY = Machine("early", {1: 1.0, 16: 2.5}, draft_call=0.125, host=0.0625, caller=0.125)


def test_where_steps_begin_early_the_rounds_are_all_the_time_but_for_learning_that_nothing_hides() -> None:
    buckets = [1 if 10 <= i % 20 < 14 else None for i in range(100)]
    rounds, end = in_plain_steps(EARLY, [True] * 100, buckets)
    assert sum(len(done.tokens) for done in rounds) == 100
    assert any(done.draft for done in rounds)
    # After the last token nobody asks again, so what the caller did with it belongs to no round if that was plain.
    last_s = 0.0 if rounds[-1].draft else EARLY.caller + 0.25
    # Learnt of while no step was under way; of what gained by a draft, while the next one was.
    n_apart = 1 + sum(not done.is_ahead and not done.draft for done in rounds[1:])
    total = sum(done.total_s for done in rounds) + 0.25 * n_apart
    assert total == pytest.approx(end, abs=last_s + 1e-9)


def test_what_the_caller_does_with_the_tokens_of_a_draft_passes_while_the_next_one_is_verified() -> None:
    for caller in (0.125, 0.25):
        machine = replace(EARLY, caller=caller)
        rounds, _ = in_plain_steps(machine, [True] * 60, [None] * 20 + [1] * 40)
        drafted = [done for done in rounds if len(done.draft) == 15]
        assert [done.draft_s for done in drafted] == pytest.approx([0.125, 0.125])
        # The first one bears it for the token before it: no step was under way behind that any more. The second one
        # hides as much of it, and of learning of the first, as it is long.
        second = max(2.5, EARLY.host + 0.25 + 16 * caller)
        assert [done.verify_s for done in drafted] == pytest.approx([2.5 + caller, second])


def test_a_round_that_is_closed_in_the_middle_is_learnt_of_once() -> None:
    world = World(Trace("right", (True,) * 60, (None,) * 20 + (1,) * 40), EARLY, 0)
    heard = Heard(world)
    speculator = Speculator(Playing(world, True), 15, control=heard, clock=world.clock)
    emitted = decode(world, PARAMS["greedy"], [0], speculator, world.clock)
    done = next(done for _, _, done in emitted if done.draft)
    emitted.close()
    assert heard.rounds[-1].tokens == done.tokens
    assert speculator.record.rounds == 1


def test_what_the_host_does_while_a_device_works_is_no_loss_of_a_plain_step() -> None:
    rounds, _ = in_plain_steps(EARLY, [False] * 40, [None] * 40)
    # Learning took a quarter of a step, asking an eighth, the caller as much: all behind the device, but at the start.
    for done in rounds[2:-1]:
        assert done.draft_s == pytest.approx(0.125)
        assert done.is_ahead
        assert done.step_s == pytest.approx(1 - 0.0625)
        assert done.unhidden_s(0.125 + 0.25, 1 - 0.0625) == pytest.approx(0)


def test_where_every_step_is_waited_for_the_caller_counts_in_no_round() -> None:
    waiting = replace(EARLY, host=None, caller=5.0)
    rounds, _ = in_plain_steps(waiting, [True] * 60, [None] * 20 + [1] * 40)
    for done in rounds:
        assert done.verify_s == pytest.approx(EARLY.step(len(done.draft) + 1))


def test_without_a_speculator_nothing_is_asked_for_between_plain_tokens() -> None:
    params, prompt = PARAMS["sampled"], [1, 2, 3]
    history = [*prompt, *plain(prompt, params, 1)]
    target = PipelinedTarget(20, prompt)
    assert [token for token, _, _ in decode(target, params, history, None)] == plain(prompt, params, 17)[1:]
    assert target.held == history[:-1]


@pytest.mark.parametrize("n", range(1, 16))
def test_closing_and_cancelling_drop_the_step_that_nobody_waits_for(n: int) -> None:
    params, prompt = PARAMS["sampled"], [1, 2, 3]
    for way in ("close", "cancel"):
        history = [*prompt, *plain(prompt, params, 1)]
        target = PipelinedTarget(64, prompt)
        speculator = Speculator(Scripted(now_and_then(params, 2, 7)), 15, control=EagerController(15))
        rounds = decode(target, params, history, speculator)
        for _ in range(n):
            next(rounds)
        if way == "close":
            rounds.close()
            assert len(history) == 4 + n
        else:
            target.is_cancelled = True
            list(rounds)  # what is left of a round that was verified
            assert 4 + n <= len(history) <= 4 + n + 2
        assert history == [*prompt, *plain(prompt, params, len(history) - 3)]
        assert history[:-1] == target.held[: len(history) - 1]
        assert len(target.held) <= len(history)
