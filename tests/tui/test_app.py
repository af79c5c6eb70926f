"""What the app makes of its parts, and does with them when it ends."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from chat_stage import Stage, stage
from model_rows import text_of
from tiny_files import write_gguf

from runner.errors import RunnerError
from runner.paths import user_paths
from runner.settings import load_settings
from runner.tui import app_for
from runner.tui.chat_engine import ChatEngine
from runner.tui.jobs import JobQueue
from runner.tui.screens.bench import BenchScreen
from runner.tui.screens.chat import ChatScreen
from runner.tui.screens.models import ModelsScreen

__all__ = ["stage"]  # the fixture


def test_all_that_runs_is_asked_to_end_before_any_of_it_is_waited_for(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[str, str]] = []
    left: list[float] = []

    def watch(part: type[ChatEngine] | type[JobQueue] | type[BenchScreen]) -> None:
        close, wait = part.close, part.wait

        def closed(self: object) -> None:
            told.append(("close", part.__name__))
            close(self)  # type: ignore[arg-type]

        def waited(self: object, timeout_s: float) -> None:
            told.append(("wait", part.__name__))
            left.append(timeout_s)
            wait(self, timeout_s)  # type: ignore[arg-type]

        monkeypatch.setattr(part, "close", closed)
        monkeypatch.setattr(part, "wait", waited)

    parts: tuple[type[ChatEngine] | type[JobQueue] | type[BenchScreen], ...] = (ChatEngine, JobQueue, BenchScreen)
    for part in parts:
        watch(part)

    async def act(on: Stage) -> None:
        await on.ready()
        await on.pilot.press("f3")
        assert isinstance(on.app.screen, BenchScreen)

    stage.play(stage.script("fine"), act)
    names = {part.__name__ for part in parts}
    assert [what for what, _ in told] == ["close"] * 3 + ["wait"] * 3
    assert {name for what, name in told if what == "close"} == names
    assert {name for what, name in told if what == "wait"} == names
    assert left == sorted(left, reverse=True), "one limit for all: who comes later has less of it"


def test_what_other_programs_deleted_is_gone_when_models_are_looked_at_again(stage: Stage) -> None:
    made = user_paths().models / "made-here" / "made-here-q4_0.gguf"
    write_gguf(made)

    async def act(on: Stage) -> None:
        def listed() -> bool:
            return "made-here" in text_of(on.app)

        await on.ready()
        await on.pilot.press("f2")
        await on.until(listed, "it is not listed")
        await on.pilot.press("f5")
        await on.until(lambda: isinstance(on.app.screen, ChatScreen) and listed(), "it is not beside the chat")
        await on.pilot.press("f3")
        await on.until(lambda: isinstance(on.app.screen, BenchScreen), "the mode is the same")
        shutil.rmtree(made.parent)
        await on.pilot.press("f2")
        await on.until(lambda: isinstance(on.app.screen, ModelsScreen) and not listed(), "it is still listed")
        await on.pilot.press("f5")
        await on.until(lambda: isinstance(on.app.screen, ChatScreen) and not listed(), "it is still beside the chat")

    stage.play(stage.script("fine"), act)


def test_where_the_database_cannot_be_written_the_remedy_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").touch()
    monkeypatch.setenv("RUNNER_HOME", str(tmp_path))
    store = app_for(user_paths(), load_settings(user_paths())).services.store
    assert store is not None
    with pytest.raises(RunnerError) as told:
        store.create_session(model="demo")
    (variable,) = re.findall("`(RUNNER_.*)=(.*) runner`", told.value.hint)
    monkeypatch.setenv(*variable)
    assert app_for(user_paths(), load_settings(user_paths())).services.store is None
