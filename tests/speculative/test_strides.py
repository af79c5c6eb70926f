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


# --- one judgement a test ---------------------------------------------------------------------------------------------


def ready(t: dict[int, float] = FLAT, draft_max: int = 15) -> tuple[Strides, LossAccount, Outlook]:
    """After the first plain steps of an answer."""
    model = strides(t, draft_max)
    plain(model[0], 3)
    return model


def plain(model: Strides, n: int, seconds: float = PLAIN_S) -> None:
    for _ in range(n):
        model.learn(Round(Draft(), 0, (0,), 0.0, seconds, 0.0, True, True))


def drafted(model: Strides, kind: int, n_right: int, n: int = 3, cost: float = 1.16) -> None:
    draft = Draft((0,) * n, (kind,) * n)
    model.learn(Round(draft, n_right, (0,) * (n_right + 1), 0.0, cost * PLAIN_S, 0.0, True, True))


def test_the_kind_of_a_step_is_how_the_last_one_fared_and_whether_what_follows_was_seen() -> None:
    model, _, _ = ready()
    kinds = [model.wish(False, LENGTHS).kind]
    for n_right in (0, 1, 2, 3):
        drafted(model, 0, n_right)
        kinds += [model.wish(is_known, LENGTHS).kind for is_known in (False, True)]
    assert kinds == [3, 0, 4, 1, 5, 1, 5, 2, 6]
    plain(model, 1)
    assert model.wish(True, LENGTHS).kind == 7


def test_nothing_of_one_answers_steps_is_a_part_of_the_next() -> None:
    model, account, _ = ready()
    account.balance = 0.5
    drafted(model, 0, 3)
    assert model.wish(True, LENGTHS).n_tokens > 0
    assert len(model.recent) == 1
    model.begin()
    assert len(model.recent) == 0
    account.balance = 0.17
    assert model.wish(False, LENGTHS) == Wish(3, 3)


def test_tokens_after_a_wrong_one_are_not_judged() -> None:
    model, _, _ = ready()
    drafted(model, 5, 1, 7)
    assert model._seen[5][:4] == [1, 1, 0, 0]
    assert model._hits[5][:4] == [1, 0, 0, 0]
    drafted(model, 6, 7, 7)
    assert model._seen[6][:8] == model._hits[6][:8] == [1] * 7 + [0]


def test_a_later_token_is_believed_more_than_a_first_one_but_after_a_whole_draft() -> None:
    """Where nothing stood before, 0.2 and then 0.6: 1.39 tokens for 1.3 plain steps."""
    model, _, _ = ready(FLAT | {4: 1.3})
    assert model.wish(False, (3,)) == Wish(3, 3)
    drafted(model, 5, 3, cost=1.3)
    assert model.wish(False, (3,)) == Wish(0, 2)


def test_where_the_last_tokens_stood_before_more_is_expected_also_after_a_draft_that_failed() -> None:
    model, _, _ = ready(STEEP)
    assert model.wish(False, (3,)) == Wish(0, 3)
    drafted(model, 1, 0, cost=1.6)
    assert model.wish(True, (3,)) == Wish(3, 4)
    assert model.wish(False, (3,)) == Wish(0, 0)


@pytest.mark.parametrize(("cost", "n"), [(1.6, 60), (1.8, 80), (5.0, 100)])  # a plain step is saved for it at most
def test_a_kind_that_does_not_pay_is_tried_for_a_hundredth_of_the_time(cost: float, n: int) -> None:
    model, account, _ = strides(STEEP | {4: cost})
    for _ in range(2):
        account.balance = 9.0
        tried = 0
        while not model.wish(False, (3,)).n_tokens:
            plain(model, 1)
            tried += 1
        assert n <= tried <= n + 1
        model._to_try = 0.0


def test_a_draft_takes_what_trying_it_costs_from_what_is_saved_and_waiting_saves_one_plain_step() -> None:
    model, _, _ = ready(STEEP)
    plain(model, 1000)
    assert [model.wish(False, (3,)).n_tokens for _ in range(3)] == [3, 0, 0]
    plain(model, 18)
    assert model.wish(False, (3,)).n_tokens == 0
    plain(model, 3)
    assert model.wish(False, (3,)).n_tokens == 3


@pytest.mark.parametrize(("balance", "n"), [(-1.0, 0), (0.15, 0), (0.17, 3), (0.23, 7), (0.74, 7), (0.76, 15)])
def test_a_draft_is_the_longest_whose_failing_is_covered(balance: float, n: int) -> None:
    model, account, _ = ready()
    for _ in range(30):
        drafted(model, 7, 15, 15, FLAT[16])
    plain(model, 1)
    account.balance = balance
    assert model.wish(True, LENGTHS) == Wish(n, 7)


def test_a_step_whose_draft_was_dropped_for_a_comparison_is_no_risk() -> None:
    model, account, outlook = ready()
    assert model.wish(True, (3,)).n_tokens == 3
    outlook.steps.begin()
    assert model.wish(True, (3,)) == Wish(0, 0)
    plain(model, 3)
    account.balance = 0.17
    assert model.wish(True, (3,)).n_tokens == 3


def test_what_fails_now_ends_drafts_however_often_it_stood_before() -> None:
    model, account, _ = ready(STEEP)
    for _ in range(400):
        drafted(model, 7, 3, cost=1.6)
    wished = []
    for _ in range(60):
        plain(model, 2)
        account.balance, model._to_try = 9.0, 0.0
        wished.append(model.wish(True, (3,)).n_tokens)
        drafted(model, 7, 0, cost=1.6)
    assert 3 < wished.index(0) < 50


def test_what_is_learnt_of_a_kind_counts_for_the_next_step_of_it() -> None:
    model, account, _ = ready(STEEP)
    assert model.wish(True, (3,)) == Wish(3, 7)
    for _ in range(4):
        drafted(model, 7, 0, cost=1.6)
    plain(model, 1)
    account.balance = 9.0
    assert model.wish(True, (3,)) == Wish(0, 7)


def test_what_is_learnt_of_the_others_counts_within_sixteen_steps() -> None:
    """Drafts that bring seven tokens a plain step make one that brings 1.4 for 1.16 a loss."""
    model, account, _ = ready()
    assert model.wish(False, (3,)) == Wish(3, 3)
    for _ in range(16):
        drafted(model, 6, 15, 15, FLAT[16])
    plain(model, 1)
    account.balance, model._to_try = 9.0, 0.0
    assert model.wish(False, (3,)) == Wish(0, 3)


def test_plain_steps_among_drafts_are_measured_but_for_those_that_follow_one() -> None:
    model, _, outlook = ready()
    for _ in range(40):
        drafted(model, 7, 0)
        plain(model, 1, 5 * PLAIN_S)
    assert outlook.steps.plain_s == PLAIN_S
    plain(model, 40, 2 * PLAIN_S)  # the context is deeper
    assert outlook.steps.plain_s == 2 * PLAIN_S


def test_after_many_drafts_a_plain_step_is_taken_to_compare_with() -> None:
    model, account, _ = ready()
    for _ in range(64):
        account.balance = 9.0
        assert model.wish(True, (3,)).n_tokens == 3
        drafted(model, 7, 3)
    assert model.wish(True, (3,)) == Wish(0, 0)


def test_a_step_that_was_held_up_counts_as_three_times_what_it_should_take_at_most() -> None:
    model, account, _ = ready()
    account.balance = 5.0
    drafted(model, 7, 0, cost=100.0)
    assert account.balance == pytest.approx(5 + 1.016 - 3 * 1.16)


def test_plain_steps_bring_the_rate_of_tokens_down_again() -> None:
    model, _, outlook = ready()
    for _ in range(100):
        drafted(model, 6, 3)
    assert outlook.rate > 3
    plain(model, 100)
    assert outlook.rate == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("draft_max", [1, 2])
def test_where_steps_draft_no_less_than_three_tokens_a_shorter_wish_is_for_these(draft_max: int) -> None:
    model, _, _ = ready(draft_max=draft_max)
    assert [model.wish(True, LENGTHS).n_tokens for _ in range(2)] == [3, 3]


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
