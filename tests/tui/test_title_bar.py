"""The line over every mode: the model and how it is loaded, for as long as it is."""

from __future__ import annotations

import asyncio

from live_samples import loaded
from model_rows import OneWidget, text_of

from runner.events import Stats
from runner.telemetry import Timings
from runner.transcript import Turn
from runner.tui.messages import AnswerEnded, AnswerStep, Lent, LoadEnded, TakenBack, Unloaded
from runner.tui.widgets.title_bar import TitleBar
from runner.wire import to_plain


def test_an_unloaded_model_is_a_name_alone() -> None:
    bar = TitleBar("chat")
    timings = to_plain(Timings(prompt_tokens=600, completion_tokens=100))

    async def run() -> None:
        app = OneWidget(bar)
        async with app.run_test(size=(120, 3)) as pilot:
            model = loaded()
            bar.on_engine(LoadEnded("ready", model.info.name, model))
            bar.on_engine(AnswerEnded("ready", Turn(role="assistant", content="x", timings=timings, created_at=1.0)))
            await pilot.pause()
            assert f"{model.info.name} · {model.info.quantization} · {model.info.backend}" in text_of(app)
            assert "ctx 700/" in text_of(app)
            step = Stats(Timings(prompt_tokens=750, completion_tokens=10), n_ctx=1000)
            bar.on_engine(AnswerStep("answering", step))
            await pilot.pause()
            assert "ctx 760/1k" in text_of(app)
            bar.on_engine(Unloaded("empty", "A benchmark needs the machine."))
            await pilot.pause()
            assert f"{model.info.name}  " in text_of(app)
            assert model.info.backend not in text_of(app)
            assert "ctx" not in text_of(app)
            assert "no model" in text_of(app)
            bar.on_engine(Lent("empty", "another"))
            await pilot.pause()
            assert "measuring" in text_of(app)
            bar.on_engine(TakenBack("empty"))
            await pilot.pause()
            assert "no model" in text_of(app)

    asyncio.run(run())
