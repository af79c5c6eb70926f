"""Frames wait for a terminal that says what it has shown, and for no other."""

from __future__ import annotations

import threading

from runner.tui.pacing import Pace


class Line:
    """A line to a terminal, and a clock. asked: how often the terminal was asked; woken: how often frames may go."""

    def __init__(self) -> None:
        self.now = 0.0
        self.asked = self.woken = 0
        self.pace = Pace(lambda: self.now)
        self.pace.begin(self._ask, self._wake)

    def _ask(self) -> None:
        self.asked += 1

    def _wake(self) -> None:
        self.woken += 1

    def frames(self, n_wanted: int) -> int:
        """How many of so many frames in a row went out."""
        n_shown = 0
        for _ in range(n_wanted):
            if self.pace.may_show():
                n_shown += 1
                self.pace.shown()
        return n_shown


def test_a_terminal_that_never_answered_is_never_waited_for_and_asked_once() -> None:
    line = Line()
    assert line.frames(100) == 100
    assert line.asked == 1


def test_two_frames_go_out_unanswered_and_each_answer_wakes_the_next() -> None:
    line = Line()
    line.pace.answered()
    assert line.frames(10) == 2
    assert line.woken == 0
    line.pace.answered()
    assert line.woken == 1
    assert line.frames(10) == 1


def test_an_answer_wakes_nobody_when_no_frame_waits() -> None:
    line = Line()
    line.pace.answered()
    line.frames(1)
    line.pace.answered()
    assert line.woken == 0


def test_without_answers_frames_become_rare_and_after_half_a_minute_they_wait_for_none() -> None:
    line = Line()
    line.pace.answered()
    line.frames(10)
    for at in (1.0, 3.0, 7.0, 15.0):
        line.now = at - 0.01
        assert line.frames(10) == 0
        line.now = at
        assert line.frames(10) == 1
    line.now = 31.0
    assert line.frames(10) == 10
    line.pace.answered()
    line.pace.answered()
    assert line.frames(10) >= 1


def test_answers_that_come_late_together_open_no_wider_window() -> None:
    line = Line()
    line.pace.answered()
    line.frames(10)
    for line.now in (1.0, 3.0):
        line.frames(1)
    line.now = 5.0
    for _ in range(9):
        line.pace.answered()
    assert line.frames(10) == 2


def test_lost_answers_narrow_the_window_for_a_second_only() -> None:
    line = Line()
    line.pace.answered()
    line.frames(2)  # both answers are lost
    line.now = 1.0
    assert line.frames(1) == 1
    line.now = 1.1
    line.pace.answered()
    assert line.frames(10) == 2


def test_the_end_waits_for_what_is_owed_and_asks_no_more() -> None:
    line = Line()
    line.pace.answered()
    line.frames(2)
    n_answered = 0

    def answer() -> None:
        nonlocal n_answered
        n_answered += 1
        line.pace.answered()

    for number in (1, 2):
        threading.Timer(0.03 * number, answer).start()
    line.pace.settle(60.0)
    assert n_answered == 2
    asked = line.asked
    assert line.frames(5) == 5
    assert line.asked == asked


def test_the_end_waits_no_longer_for_a_terminal_that_is_gone() -> None:
    line = Line()
    line.pace.answered()
    line.frames(2)
    line.pace.settle(0.01)
    assert line.frames(1) == 0


def test_the_end_of_a_terminal_that_never_answered_is_not_delayed() -> None:
    line = Line()
    waiting = threading.Thread(target=line.pace.settle, args=(30.0,))
    waiting.start()
    waiting.join(5.0)
    assert not waiting.is_alive()
