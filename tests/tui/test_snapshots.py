"""Every screen at four sizes, as it was when somebody last looked at it and found it good.

`make snapshots` writes them anew, in tests/tui/snapshots: look at each that changed before it is committed.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from live_samples import SPECULATION
from staged_app import NOON, SIZES, on_stage, settle, with_model
from textual.pilot import Pilot
from textual.widgets import Input, TextArea

from runner.errors import EngineDied
from runner.events import Progress, ReasoningDelta, Stats, TextDelta
from runner.telemetry import Timings
from runner.transcript import Turn
from runner.tui.app import RunnerApp
from runner.tui.messages import AnswerBegan, AnswerEnded, AnswerStep
from runner.tui.screens.first_run import FirstRun

SNAPSHOTS = Path(__file__).parent / "snapshots"
Scene = Callable[[Pilot[int]], Awaitable[None]]
QUESTION = Turn(role="user", content="Why is the sky blue?", created_at=NOON)


async def empty_chat(pilot: Pilot[int]) -> None:
    """Before a model is loaded, and before anything was said."""


async def ready_chat(pilot: Pilot[int]) -> None:
    await with_model(pilot)


async def kept_chat(pilot: Pilot[int]) -> None:
    """A chat of the store: a thought, a list, code, a table, numbers."""
    await with_model(pilot)
    store = pilot.app.services.store
    pilot.app.screen.resume(store.latest().id)
    await settle(pilot)


async def reading_prompt(pilot: Pilot[int]) -> None:
    await with_model(pilot)
    pilot.app.post_message(AnswerBegan("answering", QUESTION, True))
    pilot.app.post_message(AnswerStep("answering", Progress("prefill", 1200, 8000, "tokens")))


async def streaming(pilot: Pilot[int]) -> None:
    """In the middle of an answer, its thought done; most of it was guessed by a drafter."""
    await with_model(pilot)
    text = "Short waves are **scattered** more:\n\n- blue at `450 nm`\n- red at 650 nm\n\nSo the"
    guessed = tuple(
        (text.index(word), text.index(word) + len(word)) for word in ("waves are **scattered**", "`450 nm`")
    )
    timings = Timings(prompt_tokens=412, completion_tokens=60, ttft_s=0.084, prefill_s=0.08, decode_s=0.42, total_s=0.5)
    pilot.app.post_message(AnswerBegan("answering", QUESTION, True))
    for event in (
        ReasoningDelta("Scattering goes with the fourth power of frequency."),
        TextDelta(text, guessed),
        Stats(timings, 8192, SPECULATION),
    ):
        pilot.app.post_message(AnswerStep("answering", event))


async def drafts_opened(pilot: Pilot[int]) -> None:
    """How drafts fared, in the rail of live numbers, which lies over the answers where there is little room."""
    await streaming(pilot)
    await settle(pilot)
    await pilot.app.screen.run_action("speculation")


async def engine_died(pilot: Pilot[int]) -> None:
    """The engine's process was killed in the middle of an answer."""
    await with_model(pilot)
    pilot.app.post_message(AnswerBegan("answering", QUESTION, True))
    pilot.app.post_message(AnswerStep("answering", TextDelta("Because short waves")))
    await settle(pilot)
    part = Turn(role="assistant", content="Because short waves", state="error", model="Qwen3-8B", created_at=NOON)
    error = EngineDied("The engine was ended by SIGKILL.", hint="Loading the model again starts it anew.")
    pilot.app.post_message(AnswerEnded("empty", part, error))


async def completions(pilot: Pilot[int]) -> None:
    """A slash was typed: the commands lie over what is above the prompt."""
    await with_model(pilot)
    await pilot.press("/")


async def settings_panel(pilot: Pilot[int]) -> None:
    await with_model(pilot)
    await pilot.press("f6")


async def models(pilot: Pilot[int]) -> None:
    await pilot.press("f2")


async def first_run(pilot: Pilot[int]) -> None:
    pilot.app.push_screen(FirstRun(pilot.app.services))


async def quantize_dialog(pilot: Pilot[int]) -> None:
    await pilot.press("f2")
    await settle(pilot)
    await pilot.press("q")


async def compared_models(pilot: Pilot[int]) -> None:
    await pilot.press("f2")
    await settle(pilot)
    await pilot.press("down", "c", "down", "c")


async def delete_chat(pilot: Pilot[int]) -> None:
    await kept_chat(pilot)
    await pilot.app.screen.run_action("delete_chat")


async def bench(pilot: Pilot[int]) -> None:
    await pilot.press("f3")


async def doctor(pilot: Pilot[int]) -> None:
    await with_model(pilot)
    await pilot.press("f4")


async def help_page(pilot: Pilot[int]) -> None:
    await pilot.press("f1")


async def jump(pilot: Pilot[int]) -> None:
    await pilot.press("ctrl+o")


async def palette(pilot: Pilot[int]) -> None:
    await pilot.press("ctrl+p")


SCENES: tuple[Scene, ...] = (
    empty_chat,
    ready_chat,
    kept_chat,
    reading_prompt,
    streaming,
    drafts_opened,
    engine_died,
    completions,
    settings_panel,
    first_run,
    models,
    quantize_dialog,
    compared_models,
    delete_chat,
    bench,
    doctor,
    help_page,
    jump,
    palette,
)


@pytest.mark.parametrize("size", SIZES, ids=lambda size: "x".join(map(str, size)))
@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_a_screen_looks_as_it_did(
    stage: Callable[[], RunnerApp], scene: Scene, size: tuple[int, int], tmp_path: Path
) -> None:
    shown = picture(stage(), size, scene)
    kept = SNAPSHOTS / f"{scene.__name__}-{size[0]}x{size[1]}.svg"
    if os.environ.get("SNAPSHOTS") == "write":
        kept.parent.mkdir(exist_ok=True)
        kept.write_text(shown, encoding="utf-8")
    if not kept.exists() or kept.read_text(encoding="utf-8") != shown:
        now = tmp_path / kept.name
        now.write_text(shown, encoding="utf-8")
        pytest.fail(f"{kept.name} looks otherwise now: compare {kept} with {now}; `make snapshots` accepts it")


def picture(app: RunnerApp, size: tuple[int, int], scene: Scene) -> str:
    """The screen as SVG once the scene has been played and nothing moves."""
    pictures: list[str] = []

    async def play(pilot: Pilot[int]) -> None:
        await scene(pilot)
        await settle(pilot)
        for box in (*pilot.app.screen.query(TextArea), *pilot.app.screen.query(Input)):
            box.cursor_blink = False
        await settle(pilot)
        pictures.append(pilot.app.export_screenshot(simplify=True))

    on_stage(app, size, play)
    return pictures[0]
