"""How much steps that draft by themselves are asked to draft: by what came of others, and within what may be lost."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable

import pytest
import torch
from tokenizers import Tokenizer

from runner.bench.genre_texts import genre_prompts
from runner.bench.record import Genre
from runner.kernels.repeats import draft_repeats_ref
from runner.paths import builtin
from runner.speculative.account import LossAccount
from runner.speculative.drafter import Draft
from runner.speculative.history import common_prefix
from runner.speculative.outlook import Outlook
from runner.speculative.record import Round
from runner.speculative.strides import Strides, Wish
from runner.speculative.suffix import SuffixDrafter

LENGTHS = (3, 7, 15)
FLAT = {1: 1.0, 2: 1.13, 4: 1.16, 8: 1.22, 16: 1.75}  # Llama-3.1-8B on an H200
STEEP = {1: 1.0, 2: 1.3, 4: 1.6, 8: 2.2, 16: 3.4}
PLAIN_S = 1e-3

Right = Callable[[int, bool], int]
"""How many tokens of the longest draft would stand after so many tokens of the text, where that is known or not."""


def strides(t: dict[int, float] = FLAT, draft_max: int = 15) -> tuple[Strides, LossAccount, Outlook]:
    outlook, account = Outlook(SuffixDrafter(), draft_max), LossAccount()
    outlook.steps.calibrate(lambda n: t[min(rows for rows in t if rows >= n)] * PLAIN_S)
    account.most = account.balance + 2 * outlook.worst_loss
    return Strides(outlook, account, draft_max), account, outlook


class Answer:
    """A text of n tokens, with a step that begins while the one before it goes on."""

    def __init__(self, model: tuple[Strides, LossAccount, Outlook], t: dict[int, float] = FLAT) -> None:
        self._strides, self._account, self._outlook = model
        self._t = t
        self.wishes: list[Wish] = []

    def gain(self, n: int, right: Right, is_known: Callable[[int], bool] = lambda _: True) -> float:
        self._account.begin()
        self._outlook.steps.begin()
        self._strides.begin()
        done, cost = 0, 0.0
        begun = deque([self._wish(is_known(0))] * 2)
        while done < n:
            wish = begun.popleft()
            n_right = min(right(done, is_known(done)), wish.n_tokens)
            step = self._t[wish.n_tokens + 1]
            draft = Draft((0,) * wish.n_tokens, (wish.kind,) * wish.n_tokens)
            self._strides.learn(Round(draft, n_right, (0,) * (n_right + 1), 0.0, step * PLAIN_S, 0.0, True, True))
            done, cost = done + n_right + 1, cost + step
            begun.append(self._wish(is_known(done)))
        return done / cost

    def _wish(self, is_known: bool) -> Wish:
        self.wishes.append(self._strides.wish(is_known, LENGTHS))
        return self.wishes[-1]


@pytest.mark.parametrize("t", [FLAT, STEEP])
def test_drafts_that_never_stand_cost_little(t: dict[int, float]) -> None:
    model = strides(t)
    for is_known in (True, False):
        for _ in range(4):
            assert Answer(model, t).gain(128, lambda *_: 0, lambda _, known=is_known: known) > 0.97


def test_drafts_that_always_stand_become_the_longest() -> None:
    model = strides()
    assert Answer(model).gain(512, lambda *_: 15) > 5
    later = Answer(model)
    assert later.gain(512, lambda *_: 15) > 8
    assert {wish.n_tokens for wish in later.wishes[5:]} == {15}


def test_the_length_is_the_one_that_leaves_most() -> None:
    model = strides()
    for _ in range(3):
        found = Answer(model)
        found.gain(512, lambda *_: 2)
    wished = [wish.n_tokens for wish in found.wishes[-100:]]
    assert set(wished) == {0, 3}
    assert wished.count(0) < 10  # to compare with


def test_steps_draft_where_it_pays_and_hardly_elsewhere() -> None:
    model = strides()
    for _ in range(3):
        found = Answer(model)
        gain = found.gain(600, lambda _, known: 7 if known else 0, lambda n: n // 60 % 2 == 0)
    drafted = [wish.n_tokens > 0 for wish in found.wishes if wish.kind < 4]
    assert sum(drafted) < 0.2 * len(drafted)
    assert gain > 1.5


def test_what_was_not_known_beforehand_is_drafted_too_where_it_stands() -> None:
    model = strides()
    Answer(model).gain(400, lambda *_: 3, lambda _: False)
    assert Answer(model).gain(400, lambda *_: 3, lambda _: False) > 2.5


def test_a_kind_that_did_not_pay_is_tried_again() -> None:
    model = strides()
    for _ in range(3):
        Answer(model).gain(400, lambda *_: 0)
    assert Answer(model).gain(1000, lambda *_: 15) > 3


@pytest.mark.parametrize(("draft_max", "longest"), [(1, 3), (3, 3), (6, 3), (7, 7), (14, 7), (15, 15)])
def test_drafts_are_no_longer_than_was_asked_for(draft_max: int, longest: int) -> None:
    model = strides(draft_max=draft_max)
    found = Answer(model)
    found.gain(800, lambda *_: 15)
    assert max(wish.n_tokens for wish in found.wishes) == longest


@pytest.mark.parametrize("t", [FLAT, STEEP])
def test_answers_of_every_sort_are_hardly_ever_slower_than_plain_ones(t: dict[int, float]) -> None:
    draw = random.Random(5)
    gains: list[float] = []
    for _ in range(40):
        model = strides(t)
        for _ in range(5):  # what one answer taught misleads in the next
            known, unknown = draw.random() ** 2, draw.random() ** 4
            turn = draw.randrange(400)

            def right(n: int, is_known: bool, turn=turn, known=known, unknown=unknown) -> int:
                p = (known if is_known else unknown) * (1 if n < turn else 0.3)
                return next((i for i in range(15) if draw.random() > p), 15)

            seen = draw.random()
            gains.append(
                Answer(model, t).gain(draw.choice((128, 300, 600)), right, lambda _, p=seen: draw.random() < p)
            )
    assert min(gains) > 0.965
    assert sum(gain < 0.97 for gain in gains) <= 2
    assert sum(gains) / len(gains) > (1.15 if t is FLAT else 1.0)


def test_a_step_that_has_begun_counts_as_lost_until_it_is_over() -> None:
    model, account, outlook = strides(STEEP)
    for _ in range(3):
        model.learn(Round(Draft(), 0, (0,), 0.0, PLAIN_S, 0.0, True, True))
    account.balance = 1.5 * (outlook.steps.likely[4] - 1)
    assert model.wish(True, LENGTHS).n_tokens == 3
    assert model.wish(True, LENGTHS).n_tokens == 0
    assert model.wish(True, LENGTHS).n_tokens == 3


def test_costs_that_were_taken_for_too_high_at_load_are_found_out() -> None:
    model = strides({1: 1.0, 2: 3.0, 4: 4.0, 8: 5.0, 16: 6.0})
    for _ in range(3):
        Answer(model).gain(400, lambda *_: 7)
    assert Answer(model).gain(400, lambda *_: 7) > 3


def drafts_that_stand(ids: list[int], n_prompt: int) -> list[int]:
    """For each place of a text after its prompt, how much of what a device drafts there stands."""
    found = []
    for at in range(n_prompt, len(ids)):
        tokens = torch.zeros(16, dtype=torch.int64)
        draft_repeats_ref(torch.tensor(ids[:at]), torch.tensor([0]), torch.tensor([at - 1]), tokens, 15)
        found.append(common_prefix(tokens[1:].tolist(), ids[at:]))
    return found


@pytest.mark.parametrize(("genre", "least", "worst"), [("code", 2.25, 1.2), ("prose", 1.05, 0.97)])
def test_reference_answers_gain_as_they_repeat_themselves(genre: Genre, least: float, worst: float) -> None:
    tokenizer = Tokenizer.from_file(str(builtin("models/demo/tokenizer.json")))
    model, gains = strides(), []
    for prompt in genre_prompts(genre):
        asked, answer = (tokenizer.encode(part, add_special_tokens=False).ids for part in (prompt.ask, prompt.answer))
        ids, stands, drafter = [*asked, *answer], drafts_that_stand([*asked, *answer], len(asked)), SuffixDrafter()
        known = [drafter.may_guess(ids[: len(asked) + done]) for done in range(len(stands))]
        gains.append(
            Answer(model).gain(
                len(stands),
                lambda done, _, stands=stands: stands[min(done, len(stands) - 1)],
                lambda done, known=known: known[min(done, len(known) - 1)],
            )
        )
    assert min(gains) > worst
    assert len(gains) / sum(1 / gain for gain in gains) > least
