"""Makes the pictures of the README from the real program: `python docs/screenshots.py`.

It runs the interface without a terminal, with the demo model on this machine, does what a user would do, and writes
docs/images/*.svg. What they show was really answered and measured. It has a home directory of its own, in which this
checkout is linked, so that no picture names a path of the machine.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from pathlib import Path

from textual.pilot import Pilot

CHECKOUT = Path(__file__).resolve().parent.parent
IMAGES = CHECKOUT / "docs" / "images"
SIZE = (120, 36)
PATIENCE_S = 180.0
QUESTIONS = (
    "What is the capital of Peru?",
    "Tell me a short story about a lighthouse and a cat.",
)


async def until_ready(pilot: Pilot[int]) -> None:
    """Wait until the model is loaded and nothing is being answered."""
    engine = pilot.app.chat_engine
    deadline = asyncio.get_running_loop().time() + PATIENCE_S
    while engine.state != "ready" or engine.is_busy:
        assert asyncio.get_running_loop().time() < deadline, f"the engine is {engine.state}"
        await pilot.pause(0.1)
    await pilot.pause(1.5)  # the machine is looked at once a second


async def picture(pilot: Pilot[int], name: str) -> None:
    """Write what is on the screen now."""
    await pilot.app.workers.wait_for_complete()
    await pilot.pause(0.3)
    svg = pilot.app.export_screenshot(title="runner")
    (IMAGES / f"{name}.svg").write_text(svg, encoding="utf-8")
    print(IMAGES / f"{name}.svg")


async def chat(pilot: Pilot[int]) -> None:
    await picture(pilot, "first-run")
    await pilot.press("enter")
    await until_ready(pilot)
    for question in QUESTIONS:
        pilot.app.screen.query_one("Prompt").insert(question)
        await pilot.press("enter")
        await until_ready(pilot)
    await picture(pilot, "chat")


async def modes(pilot: Pilot[int]) -> None:
    await pilot.press("f2")
    await pilot.pause(2)  # the headers of the model under the cursor are read
    await picture(pilot, "models")
    await pilot.press("f4")
    await pilot.pause(4)
    await picture(pilot, "doctor")


def move_to(home: Path) -> None:
    """Have `home` for the home directory, with this checkout in it, as which Python finds itself."""
    os.environ.update(HOME=str(home), RUNNER_TEMPERATURE="0", COLORTERM="truecolor")
    for name in ("RUNNER_HOME", "HF_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"):
        os.environ.pop(name, None)
    (home / "runner").symlink_to(CHECKOUT)
    if Path(sys.executable).is_relative_to(CHECKOUT):
        sys.executable = str(home / "runner" / Path(sys.executable).relative_to(CHECKOUT))


async def main() -> None:
    from runner.paths import user_paths
    from runner.settings import load_settings
    from runner.tui import app_for

    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as home:
        move_to(Path(home))
        app = app_for(user_paths(), load_settings(user_paths()))
        async with app.run_test(size=SIZE) as pilot:
            await pilot.pause(1.5)
            await chat(pilot)
            await modes(pilot)


if __name__ == "__main__":
    asyncio.run(main())
