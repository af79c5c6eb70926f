"""The terminal interface: chat, models, bench and doctor on one screen each, over the same engine as the command line.

`run_tui` opens it. Nothing else of runner imports Textual.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from functools import partial
from typing import TYPE_CHECKING

from runner.paths import Paths
from runner.settings import Settings

if TYPE_CHECKING:
    from runner.tui.app import RunnerApp


def run_tui(paths: Paths, settings: Settings) -> int:
    """Open the terminal interface; returns the exit code when the user has left it."""
    from runner.tui import bursts, narrowing, pasting

    app = app_for(paths, settings)
    pasting.install(app.pace.answered)
    narrowing.install()
    bursts.install()
    asyncio.run(_until_left(app))
    return app.return_code or 0


def app_for(paths: Paths, settings: Settings) -> RunnerApp:
    """The interface, not yet open."""
    from runner.hub_cache import hub_settings
    from runner.store import Store
    from runner.tui.app import RunnerApp
    from runner.tui.services import Services

    # A variable: where the database cannot be written, the settings seldom can.
    without = "`RUNNER_SAVE_CHATS=false runner` chats without it."
    services = Services(
        paths=paths,
        settings=settings,
        load_options=settings.load_options(),
        store=Store(paths.database, without=without) if settings.save_chats else None,
        model=settings.model,
        is_offline=settings.is_offline() or hub_settings().is_offline,
    )
    return RunnerApp(services)


async def _until_left(app: RunnerApp) -> None:
    """Run the app. SIGTERM leaves it as the user would; when the terminal is gone there is nothing to leave."""
    leave = partial(app.exit, return_code=128 + signal.SIGTERM)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, leave)
    signal.signal(signal.SIGHUP, lambda *_: _hang_up(app))
    await app.run_async()


def _hang_up(app: RunnerApp) -> None:
    """Keep what there is to keep, end the child processes, and end: Textual would wait for its dead terminal."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # once is enough
    try:
        app.keep_draft()
        app.close_down()
    except Exception:  # a full disk, or a locked one: nobody is there to be told
        logging.getLogger(__name__).exception("not all was kept when the terminal was closed")
    finally:
        os._exit(128 + signal.SIGHUP)
