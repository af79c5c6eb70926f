"""Doctor mode: the checks appear, their remedies stand under them, the report is copied, and r runs them again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from live_samples import RAM_SAMPLE, gpu_sample, machine
from one_screen import HARMLESS, HOSTILE, SIZES, OneScreen, running, seen, services, until
from textual.pilot import Pilot
from textual.widgets import Static

from runner.doctor import Check
from runner.doctor_report import report, summary
from runner.tui.messages import GoTo
from runner.tui.screens.doctor import DoctorScreen
from runner.tui.widgets.check_list import checks_content
from runner.tui.widgets.machine_panel import MachinePanel

FINE = Check(name="Python", status="ok", detail="3.12.3")
DOUBT = Check(name="llama.cpp", status="warning", detail="without GPU support", remedy="Reinstall it with GPU support.")
BAD = Check(name="Disk, data", status="error", detail=HOSTILE, remedy=f"Free some: {HOSTILE}")
FOUND = (FINE, DOUBT, BAD)


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[Check]:
    """What the checks find; the test may change it."""
    given = list(FOUND)

    def checks(*_: object) -> Iterator[Check]:
        yield from given

    monkeypatch.setattr("runner.tui.screens.doctor.checks", checks)
    return given


def doctor() -> OneScreen:
    return OneScreen(lambda: DoctorScreen(services()))


def head(app: OneScreen) -> str:
    return str(app.screen.query_one("#doctor-head", Static).render())


@pytest.mark.parametrize("size", SIZES)
def test_checks_and_remedies_are_shown_as_they_stand(size: tuple[int, int], found: list[Check]) -> None:
    app = doctor()

    async def body(pilot: Pilot[Any]) -> None:
        await until(pilot, lambda: "1 error and 1 warning." in head(app))
        assert head(app).startswith("✗")
        text = seen(app)
        assert "✗  Disk, data" in text
        assert "!  llama.cpp" in text
        assert "\x1b" not in text
        assert max(len(line) for line in text.split("\n")) <= size[0]

    running(app, body, size)
    assert len(found) == len(FOUND)


def test_what_is_to_be_mended_is_seen_without_scrolling_once_all_is_checked(found: list[Check]) -> None:
    found[:0] = [FINE] * 20
    app = doctor()

    async def body(pilot: Pilot[Any]) -> None:
        await until(pilot, lambda: "1 error and 1 warning." in head(app))
        await pilot.pause()
        text = " ".join(seen(app).split())
        assert "→ Reinstall it with GPU support." in text
        assert text.index("Disk, data") < text.index("llama.cpp") < text.index("Python")

    running(app, body, (80, 24))


def test_the_real_checks_of_this_machine_come_one_by_one() -> None:
    app = doctor()

    async def body(pilot: Pilot[Any]) -> None:
        await until(pilot, lambda: "Checking" not in head(app), 60)
        assert "Demo model" in seen(app)

    running(app, body, (120, 60))


def test_checks_that_fail_are_over_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> Iterator[Check]:
        yield FINE
        raise ValueError("nobody thought of that")

    monkeypatch.setattr("runner.tui.screens.doctor.checks", broken)
    app = doctor()

    async def body(pilot: Pilot[Any]) -> None:
        await until(pilot, lambda: "1 error" in head(app))
        assert "ValueError: nobody thought of that" in " ".join(seen(app).split())

    running(app, body)


def test_the_report_is_copied_whole(found: list[Check]) -> None:
    app = doctor()
    copied: list[str] = []

    async def body(pilot: Pilot[Any]) -> None:
        app.copy_to_clipboard = copied.append  # type: ignore[method-assign]
        await until(pilot, lambda: "error" in head(app))
        await pilot.press("y")
        await pilot.pause()
        assert copied == [report(found)]
        assert HARMLESS in copied[0]
        await until(pilot, lambda: "3 checks" in seen(app))

    running(app, body)


def test_r_runs_the_checks_again(found: list[Check]) -> None:
    app = doctor()

    async def body(pilot: Pilot[Any]) -> None:
        await until(pilot, lambda: "1 error" in head(app))
        del found[1:]
        await pilot.press("r")
        await until(pilot, lambda: "Everything is fine." in head(app))
        assert "llama.cpp" not in seen(app)

    running(app, body)


def test_escape_goes_back_to_the_chat(found: list[Check]) -> None:
    app = doctor()

    async def body(pilot: Pilot[Any]) -> None:
        await pilot.press("escape")
        await pilot.pause()
        assert [type(wish) for wish in app.wishes] == [GoTo]

    running(app, body)
    assert found


def test_leaving_while_the_checks_run_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    go_on = threading.Event()

    def checks(*_: object) -> Iterator[Check]:
        yield FINE
        go_on.wait(10)
        yield DOUBT

    monkeypatch.setattr("runner.tui.screens.doctor.checks", checks)
    app = doctor()

    async def body(pilot: Pilot[Any]) -> None:
        await until(pilot, lambda: "Python" in seen(app))
        app.pop_screen()
        await pilot.pause()
        go_on.set()
        await pilot.pause(0.2)

    running(app, body)
    assert app.return_code in (None, 0)


def test_the_machine_is_shown_and_that_there_is_no_gpu_is_said(found: list[Check]) -> None:
    app = doctor()

    async def body(pilot: Pilot[Any]) -> None:
        screen = app.screen
        assert isinstance(screen, DoctorScreen)
        screen.on_machine(machine(RAM_SAMPLE))
        await pilot.pause()
        assert "No GPU was found" in seen(app)
        screen.on_machine(machine(gpu_sample(), RAM_SAMPLE))
        await pilot.pause()
        text = str(screen.query_one(MachinePanel).render())
        assert "GPU 0" in text
        assert "PROCESSOR" in text

    running(app, body)
    assert found


@pytest.mark.parametrize("width", [30, 63, 64, 120])
def test_no_line_of_a_check_is_wider_than_there_is_room(width: int) -> None:
    lines = checks_content(FOUND, width).split("\n")
    assert max(line.cell_length for line in lines) <= width
    assert HARMLESS.split()[0] in checks_content(FOUND, width).plain


def test_the_summary_counts_and_the_report_has_every_remedy() -> None:
    assert summary([FINE]) == "Everything is fine."
    assert summary([FINE, DOUBT, DOUBT]) == "2 warnings."
    assert summary(FOUND) == "1 error and 1 warning."
    text = report(FOUND)
    assert "warning  llama.cpp           without GPU support\n" in text
    assert "-> Reinstall it with GPU support.\n" in text
    assert "\x1b" not in text
