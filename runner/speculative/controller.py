"""How many drafted tokens to verify in the next step, so that it pays.

The length is the one that leaves most at the rate at which tokens come now (`Outlook.best`), as far as the loss
account could pay for a draft that fails entirely. There are three states: "on" verifies drafts; "learning" only
compares guesses with what is written anyway, until one promises a gain; "off" asks for none after drafts that did not
pay, twice as long each time. It sees costs and counts of what was accepted: no target and no text, of the drafter only
whether guessing takes the device's time, and a clock only to stop a drafter that takes too much of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from runner.speculative.account import ALLOWED_LOSS, INITIAL_ALLOWANCE, LossAccount
from runner.speculative.control import Control
from runner.speculative.drafter import NO_DRAFT, Clock, Draft, Drafter, Gate
from runner.speculative.outlook import Outlook, RecentRounds, Shadow
from runner.speculative.record import Passed, Round, SpeculationState
from runner.speculative.strides import Strides, Wish

_LEAST_GAIN = 1.03  # over the recent rounds; below it drafts rest
_RETURN_GAIN = 1.10  # that a guess must promise before any is verified (again)
_RICH_GAIN = 2.0  # of the recent rounds, looks between them included: from here on looks in vain are paid by it
_REST = 256  # tokens of the first rest
_LONGEST_REST = 1 << 14
_REFUSALS = 16  # times in a row that no guess was worth its time: look on
_LEAST_ROUNDS = 4  # to judge by, when the time that may be lost is used up
_SHADOW_SHARE = 0.01  # of the time may go into guesses that are only compared, or asked for in vain
_LONGEST_SHADOW, _LONGEST_PAID_SHADOW = 8, 3
_MOST_GRACE = 1.0  # plain steps; see Controller._grace
_FIRST_STEPS = 2  # plain ones of an answer, which drafts are compared with
_LONGEST_WAIT = 32  # tokens until a draft that was not covered is asked for again
_SURPRISE = 10  # times as long as expected: what a drafter may suddenly take


class Controller(Control):
    """See the module. draft_max: the longest draft. clock: see clock_for."""

    def __init__(self, drafter: Drafter, draft_max: int, clock: Clock) -> None:
        self._outlook = Outlook(drafter, draft_max)
        self.steps = self._outlook.steps
        self._account = LossAccount()
        self._strides = Strides(self._outlook, self._account, draft_max)
        self._recent = RecentRounds()
        self._is_free, self._clock = drafter.is_host_only, clock
        self._phase: SpeculationState = "learning" if self._is_free else "on"
        self._rest, self._next_rest = 0, _REST
        self._n_refused = self._n_unread = self.wait = 0
        # What the look took that chose a draft too late for the step that had begun: not held against that draft.
        self._grace: float | None = None
        self._next_grace: float | None = None
        self._n_least = 0  # tokens of the shortest draft that was worth waiting for
        self._idle = 0.0  # plain steps that went into guessing since the last draft
        self._shadow_left = 0.0  # plain steps that may go into looking on
        self._shadow: Shadow | None = None
        self._gate: _Gate | None = None
        self._chosen = NO_DRAFT
        self._guessed_s = 0.0
        self._is_ahead = False  # whether the next step had begun when the last one was over
        self._doubt: str | Callable[[], str] = ""  # put into words when somebody asks, where it comes often

    def begin(self) -> None:
        self.steps.begin()
        self._account.begin()
        self._strides.begin()
        self._bound_account()
        self._shadow, self._gate, self._chosen = None, None, NO_DRAFT
        self.wait, self._next_grace = _FIRST_STEPS, None

    # --- how far to guess --------------------------------------------------------------------------------------------

    def gate(self, limit: int) -> Gate | None:
        # Plain steps now and then are what drafts are compared with.
        if limit <= 0 or self.wait > 0 or self._phase == "off" or not self.steps.is_fresh:
            return None
        is_trial = self._phase == "on"
        call = self._outlook.call_cost(self._n_unread)
        is_earned = is_trial and self._is_free and self._has_earned(call)
        self._grace, self._next_grace = self._next_grace, None
        is_due = self._grace is not None
        if self._shadow_left < 0 and (self._is_free or not is_trial) and not is_earned and not is_due:
            self.wait = min(int(-self._shadow_left / _SHADOW_SHARE), _LONGEST_WAIT)
            return None
        if not is_trial:
            if self._shadow is not None and not self._is_free:
                return None
            limit = min(limit, _LONGEST_SHADOW if self._is_free else _LONGEST_PAID_SHADOW)
        if not self._covers_call(call) and not is_due:
            self._wait_for(call)
            self._doubt = self._not_asked(call)
            return None
        if is_trial and self._n_least and not is_due:
            loss = call + self._outlook.failing(self._n_least)
            if not self._account.covers(loss) and not self._account.is_full:
                self._wait_for(loss)
                return None
        gate = _Gate(self, limit, is_trial, self._clock(), is_earned=is_earned)
        if is_trial and not gate.is_open:
            self._doubt = self._not_begun(limit, call)
            self._n_refused += 1
            if self._n_refused >= _REFUSALS:
                self._phase, self._n_refused = "learning", 0
            return None
        self._n_refused = 0
        self._gate = gate
        return gate

    def _covers_call(self, call: float) -> bool:
        """Whether a look may be taken that costs so many plain steps before any is verified."""
        if not self._is_free:
            return self._account.covers(call) and self._account.survives(_SURPRISE * call)
        return self._account.covers(call) or self._account.is_full  # waiting makes a look no better then

    def _has_earned(self, call: float) -> bool:
        """Whether a look in vain is paid by what drafts have gained: where that is much, not to look costs more."""
        is_gaining = len(self._recent) > 0 and self._recent.gain >= _RICH_GAIN
        return is_gaining and self._account.covers(INITIAL_ALLOWANCE + call)

    def goes_on(self, gate: _Gate) -> bool:
        """Whether it is worth its time to guess one token more."""
        n = len(gate.buckets)
        if n >= gate.limit:
            return False
        if self._is_free:
            return True
        spent = self._spent(gate)
        at_risk = spent + self._outlook.token_cost + (self._outlook.failing(n + 1) if gate.is_trial else 0)
        # Half of what may be lost: a first draft that fails must not be the last for long.
        if not self._account.covers(2 * at_risk):
            return False
        return not gate.is_trial or self._pays(gate.buckets, n, gate.limit, spent, beyond=n)

    def reach(self, gate: _Gate) -> int:
        """How many tokens are worth their time, as far as can be said before any is guessed; see goes_on."""
        n, token = gate.limit, self._outlook.token_cost
        if self._is_free:
            return n
        if gate.is_trial:
            n = self._outlook.best([self._outlook.acceptance.any_bucket] * n, 0, 0.0).n
        while n and not self._account.covers(2 * (n * token + (self._outlook.failing(n) if gate.is_trial else 0))):
            n -= 1
        return n

    def admits(self, gate: _Gate, bucket: int) -> bool:
        """Whether a token of this bucket, just guessed, is worth verifying."""
        n = len(gate.buckets)
        if n >= gate.limit:
            return False
        if self._is_free or not gate.is_trial or n < gate.n_begun:
            return True
        spent = self._spent(gate)
        if not self._account.covers(spent + self._outlook.failing(n + 1)):
            return False
        return self._pays([*gate.buckets, bucket], n + 1, gate.limit, spent, beyond=n)

    def _pays(self, buckets: Sequence[int], n_guessed: int, limit: int, spent: float, beyond: int) -> bool:
        """Whether the best draft that starts so is longer than `beyond`."""
        rest = [self._outlook.acceptance.any_bucket] * (limit - len(buckets))
        return self._outlook.best([*buckets, *rest], n_guessed, spent, least=beyond).n > beyond

    def _spent(self, gate: _Gate) -> float:
        return (self._clock() - gate.began) / self.steps.plain_s

    @property
    def _left(self) -> float:
        return max(0.0, self._account.balance)

    # --- what to verify ----------------------------------------------------------------------------------------------

    def cut(self, proposed: Draft) -> Draft:
        gate = self._gate
        if gate is None:
            return NO_DRAFT
        self._n_unread = 0
        self._guessed_s = self._clock() - gate.began
        if not len(proposed):
            return NO_DRAFT
        self._choose(proposed, self._guessed_s / self.steps.plain_s)
        self._guessed_s = self._clock() - gate.began  # choosing included
        return self._chosen

    def _choose(self, proposed: Draft, spent: float) -> None:
        """spent: plain steps that guessing took."""
        if self._is_ahead:  # a device hides most of it
            spent = min(spent, self._outlook.call_cost(0))
        wanted = self._judge(proposed, spent)
        # A guess that took time is there now, and only its verification is still to be paid.
        n = self._length(proposed, spent, wanted) if self._phase == "on" or not self._is_free else 0
        if n:
            self._chosen = Draft(proposed.tokens[:n], proposed.buckets[:n])
        elif self._shadow is None:
            self._shadow = Shadow(proposed)

    def _judge(self, proposed: Draft, spent: float) -> int:
        """How long the draft is to be; goes over to verifying when a guess promises enough."""
        best = self._outlook.best(proposed.buckets, len(proposed), spent)
        if not best.n:
            self._doubt = partial(self._not_worth, proposed.buckets, len(proposed), spent)
            return 0
        self._doubt = ""
        if self._phase != "learning":
            return best.n
        if best.tokens < _RETURN_GAIN * best.cost:
            self._doubt = (
                f"a draft of {best.n} promises {best.tokens / best.cost:.2f}x, and {_RETURN_GAIN:.2f}x is wanted"
            )
        else:
            self._phase, self._idle = "on", 0.0
        return best.n

    def _length(self, proposed: Draft, spent: float, wanted: int) -> int:
        """The length that pays most of those whose failing is covered."""
        n = wanted
        risk = spent - (self._grace or 0.0)
        while n and not self._account.covers(risk + self._outlook.failing(n)):
            n -= 1
        self._n_least = 0
        if n == wanted:
            return n
        n = self._outlook.best(proposed.buckets[:n], n, spent).n
        least = self._outlook.shortest(proposed.buckets[:wanted], spent)
        if self._is_ahead and self._grace is None:
            # A shorter one hardly pays for what it stops where steps begin early, if that is not stopped yet.
            least = max(least, (wanted + 3) // 4)
        if n >= least:
            return n
        self._n_least = least
        loss = spent + self._outlook.failing(least)
        self._wait_for(loss)
        self._doubt = f"a draft of {least} could lose {loss:.1f} plain steps, and {self._left:.1f} may be lost now"
        return 0

    def _wait_for(self, loss: float) -> None:
        """Ask no more until so much can be lost: asking would use up what it waits for."""
        self.wait = min(int((loss - self._account.balance) / ALLOWED_LOSS), _LONGEST_WAIT)

    # --- what came of it ---------------------------------------------------------------------------------------------

    def learn_guessing(self, n_tokens: int, seconds: float) -> None:
        self._outlook.guessing.learn(n_tokens, seconds)

    def learn_reading(self, n_tokens: int, seconds: float) -> None:
        self._outlook.guessing.learn_reading(n_tokens, seconds)
        self._n_unread = 0

    def learn(self, done: Round) -> Callable[[float], None]:
        self._is_ahead = done.is_ahead
        self._pass(done.tokens)
        gate, chosen, guessed_s = self._gate, self._chosen, self._guessed_s
        self._gate, self._chosen, self._guessed_s = None, NO_DRAFT, 0.0
        return lambda own_s: self._learn(done, own_s, gate, chosen, guessed_s)

    def _learn(self, done: Round, own_s: float, gate: _Gate | None, proposed: Draft, guessed_s: float) -> None:
        """What came of `proposed`, which the gate let through in so many seconds."""
        n_tokens, n_drafted = len(done.tokens), len(done.draft)
        guess_s = guessed_s if self._is_free else done.draft_s
        # What a device hides costs nothing.
        unhidden_s = done.unhidden_s(guess_s + own_s, self.steps.plain_s)
        if n_drafted:
            step = self.steps.learn_step(n_drafted + 1, done.step_s, done.n_handed)
        else:
            seconds = done.step_s - (unhidden_s if done.is_ahead else 0.0)
            step = self.steps.learn_plain(seconds, is_asked=gate is not None, is_ahead=done.is_ahead)
            if len(proposed):
                self.steps.learn_break()
        if self.steps.plain_s <= 0:
            return
        spent = unhidden_s / self.steps.plain_s
        self._bound_account()
        self._enter(n_tokens, step, spent)
        # What was written tells even of guesses that the target did not compute: it cannot if a token is outside its
        # vocabulary, nor if its next step had begun before.
        if len(proposed):
            compared = Shadow(proposed)
            self._outlook.compare(compared, done.tokens)
            if compared.n_right == n_tokens:  # of a draft that was verified it is one token less
                self._next_grace = min(spent, _MOST_GRACE)
        if gate is not None:
            self._outlook.guessing.learn(gate.n_asked, min(guess_s, unhidden_s))
            is_in_vain = not gate.is_trial or (self._is_free and not len(proposed))
            if is_in_vain and not gate.is_earned:
                self._shadow_left -= spent if n_drafted else spent + self.steps.unseen
        if done.n_accepted:
            self._shadow_left = max(self._shadow_left, 0.0)
        if n_drafted or (gate is not None and gate.is_trial and not self._is_free):
            self._learn_gain(n_drafted, n_tokens, step)

    def _bound_account(self) -> None:
        self._account.most = INITIAL_ALLOWANCE + 2 * max(0.0, self._outlook.worst_loss)

    def pass_by(self, passed: Passed, own_s: float) -> None:
        first, n_steps = passed.first, len(passed)
        self._next_grace = None
        self._is_ahead = passed.last.is_ahead
        self._pass(passed.tokens)
        cost = self.steps.learn_passed(n_steps, first.step_s, passed.last.step_s, is_ahead=self._is_ahead)
        if self.steps.plain_s > 0:
            # It took them before the first of these.
            spent = first.unhidden_s(own_s, self.steps.plain_s) / self.steps.plain_s
            self._enter(len(passed.tokens), cost, spent, n_steps)

    def _pass(self, tokens: Sequence[int]) -> None:
        """These were written: what a next look begins with."""
        self._n_unread += 0 if self._is_free else len(tokens)  # what works on the host reads as it goes
        self.wait -= len(tokens)
        if self._shadow is not None and self._outlook.compare(self._shadow, tokens):
            self._shadow = None

    def _enter(self, n_tokens: int, step: float, spent: float, n_rounds: int = 1) -> None:
        """Enter steps that cost so many plain steps, and `spent` for guessing and deciding."""
        self._outlook.learn_rate(n_tokens, step + spent, n_rounds)
        self._account.enter(n_tokens, step + spent)
        self._idle += spent
        self._shadow_left = min(self._shadow_left + _SHADOW_SHARE * n_tokens, 1.0)
        if self._phase == "off":
            self._pass_rest(n_tokens)

    def _learn_gain(self, n_drafted: int, n_tokens: int, step: float) -> None:
        """A round for a draft is over: rest, if the last of them did not pay."""
        recent = self._recent
        recent.add(n_drafted, n_tokens, step + self._idle)
        self._idle = 0.0
        can_go_on = self._account.covers(self._outlook.token_cost)
        if not (recent.is_full or (not can_go_on and len(recent) >= _LEAST_ROUNDS)):
            return
        if recent.gain >= _RETURN_GAIN:
            self._next_rest = _REST
        # Bad luck over a few rounds is not enough while earlier gains cover it.
        if recent.gain < _LEAST_GAIN and not self._account.covers(INITIAL_ALLOWANCE):
            self._phase, self._shadow = "off", None
            self._rest, self._next_rest = self._next_rest, min(2 * self._next_rest, _LONGEST_REST)

    def _pass_rest(self, n_tokens: int) -> None:
        self._rest -= n_tokens
        if self._rest <= 0:
            self._phase, self._doubt = "learning", ""
            self._recent.clear()

    # --- steps that draft by themselves ------------------------------------------------------------------------------

    def wish(self, is_known: bool, lengths: Sequence[int]) -> Wish:
        return self._strides.wish(is_known, lengths)

    def learn_stride(self, done: Round) -> None:
        strides = self._strides
        strides.learn(done)
        if done.draft and len(strides.recent):
            self._phase, self._doubt = "on" if strides.recent.gain >= _LEAST_GAIN else "learning", ""
            self._bound_account()

    # --- why ---------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> SpeculationState:
        return self._phase

    @property
    def reason(self) -> str:
        if self._phase == "off":
            return f"{self._recent}; again in {self._rest} tokens"
        if len(self._strides.recent):
            return str(self._strides.recent)
        doubt = self._doubt if isinstance(self._doubt, str) else self._doubt()
        if self._phase == "on" and len(self._recent):
            return f"{self._recent}; now {doubt}" if doubt else str(self._recent)
        return doubt or "no guess yet"

    def _not_asked(self, call: float) -> str:
        """Why no look was taken, see _covers_call."""
        if self._account.covers(call):
            return (
                f"a guess takes {call:.2f} plain steps, and {_SURPRISE} times that, if it is held up, may not be lost"
            )
        return f"a guess takes {call:.2f} plain steps, and {self._left:.2f} may be lost now"

    def _not_begun(self, limit: int, call: float) -> str | Callable[[], str]:
        """Why no token is guessed, see goes_on: too much may be lost by it, or it promises too little."""
        loss = call + self._outlook.failing(1)
        if not self._account.covers(2 * loss):
            return f"a draft of 1 could lose {loss:.1f} plain steps, and {self._left / 2:.1f} may be lost by it now"
        return partial(self._not_worth, [self._outlook.acceptance.any_bucket] * limit, 0, 0.0)

    def _not_worth(self, buckets: Sequence[int], n_guessed: int, spent: float) -> str:
        best = self._outlook.best(buckets, n_guessed, spent, least=1)
        return f"a draft of {best.n} would cost {best.cost:.1f} plain steps and bring {best.tokens:.1f} tokens"


class _Gate(Gate):
    """Asks the controller before each token, and remembers what was let through and since when."""

    def __init__(
        self, controller: Controller, limit: int, is_trial: bool, began: float, *, is_earned: bool = False
    ) -> None:
        self.limit, self.is_trial, self.began, self.is_earned = limit, is_trial, began, is_earned
        self.buckets: list[int] = []
        self.n_asked = self.n_begun = 0
        self._controller = controller

    @property
    def is_open(self) -> bool:
        return self._controller.goes_on(self)

    @property
    def reach(self) -> int:
        self.n_begun = self._controller.reach(self)
        return self.n_begun

    def admits(self, bucket: int) -> bool:
        self.n_asked += 1
        if not self._controller.admits(self, bucket):
            return False
        self.buckets.append(bucket)
        return True
