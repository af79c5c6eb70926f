"""The transcript in an app: turns, streaming, following the end, keys, clicks, copying, and text that means harm."""

from __future__ import annotations

import re
import time

import pytest
from textual.pilot import Pilot
from textual.strip import Strip
from textual.widgets import Input
from transcript_stage import HOSTILE, NOON, SAFE, Stage, answer, chat, question, row_of, screen, shown, staged, stream

from runner.errors import EngineDied, RunnerError
from runner.events import Notice, Progress, ReasoningDelta, Stats, TextDelta
from runner.telemetry import Timings
from runner.transcript import Turn
from runner.tui.markdown.sections import sections_of
from runner.tui.widgets.transcript import Transcript


def test_a_chat_opens_at_its_end_with_names_times_and_numbers() -> None:
    async def body(stage: Stage, _: Pilot[None]) -> None:
        stage.transcript.show([question(), answer("It **is**.", reasoning="hm " * 5)])
        rows = screen(stage)
        clock = time.strftime("%H:%M", time.localtime(NOON))
        assert rows[0] == f"  you  {clock}".ljust(71) + "[e] edit"
        assert rows[1] == "▌ Why?"
        assert rows[3].startswith(f"  assistant  {clock} · demo")
        assert rows[3].endswith("[y] copy")
        assert re.match(r"  ▸ thought ≈ [\d.]+ m?s · 247 tokens +\[t\] show$", rows[4])
        assert rows[5] == "  It is."
        assert rows[7].startswith("  142.7 tok/s · TTFT 84 ms · 412 tokens")
        assert rows[7].endswith("[r] again")
        assert set(rows[8:]) == {""}

    staged(body)


def test_every_word_is_to_be_seen_of_each_chat_that_is_shown() -> None:
    async def body(stage: Stage, pilot: Pilot[None]) -> None:
        for size in ((80, 24), (60, 24), (100, 24)):
            await pilot.resize_terminal(*size)
            await pilot.pause()
            for start in range(3):
                text = " ".join(f"word{number}" for number in range(start, 40))
                stage.transcript.show([answer(text)])
                stage.transcript.note("Not done.", text, "error")
                await pilot.pause()
                assert " ".join(" ".join(screen(stage)).split()).count(text) == 2

    staged(body)


def test_what_textual_keeps_of_the_rows_of_a_chat_goes_with_the_chat() -> None:
    async def body(stage: Stage, pilot: Pilot[None]) -> None:
        kept = []
        for number in range(4):
            stage.transcript.show([answer(f"word {number} and **more**\n\n" * 60)])
            for _ in range(4):
                await pilot.press("pageup")
                for y in range(stage.transcript.size.height):
                    stage.transcript.render_line(y).render(stage.console)  # as a terminal is written to
            kept.append(Strip.render_ansi.cache_info().currsize)
        assert min(kept) > 50
        assert kept[-1] < 1.5 * kept[0]

    staged(body)


def test_an_empty_transcript_says_what_to_do() -> None:
    async def body(stage: Stage, _: Pilot[None]) -> None:
        assert "Ask something." in "\n".join(screen(stage))
        stage.transcript.show(chat(4))
        stage.transcript.show([])
        assert "Ask something." in "\n".join(screen(stage))

    staged(body)


def test_five_hundred_long_turns_open_at_once_and_scroll_to_the_first() -> None:
    async def body(stage: Stage, pilot: Pilot[None]) -> None:
        stage.transcript.show(chat(500, 40))
        await pilot.pause()
        assert sum(entry.laid is not None for entry in stage.transcript.document.entries) < 50
        assert "x = 1" in "\n".join(screen(stage))
        document = stage.transcript.document
        await pilot.press("g")
        assert screen(stage)[1] == "▌ Question 0"
        await pilot.press("pagedown", "G")
        assert screen(stage)[-1].startswith("  142.7 tok/s")
        assert sum(entry.laid is not None for entry in document.entries) < 150

    staged(body)


def test_an_answer_streams_with_progress_a_thought_and_its_end() -> None:
    async def body(stage: Stage, pilot: Pilot[None]) -> None:
        transcript = stage.transcript
        transcript.ask(question())
        transcript.begin_answer("Qwen3-8B")
        assert "◐ waiting for the model" in screen(stage)[4]
        transcript.take(Progress("prefill", 200, 8000, "tokens"))
        await shown(pilot)
        stage.clock[0] += 1
        transcript.take(Progress("prefill", 1200, 8000, "tokens"))
        await shown(pilot)
        assert "◐ reading 1.2k/8k tokens · 15 % · 7 s left  ━━━━" in screen(stage)[4]
        transcript.take(ReasoningDelta("First this.\nThen that."))
        transcript.take(Stats(Timings(completion_tokens=20), 8000))
        stage.clock[0] += 1
        await shown(pilot)
        stage.clock[0] += 2
        transcript.take(ReasoningDelta(" And more."))
        await shown(pilot)
        assert screen(stage)[4:7] == ["  ◐ thinking 2.0 s · 20 tokens", "  │ First this.", "  │ Then that. And more."]
        stage.clock[0] += 1.1
        await stream(pilot, stage, "The ", "**ans", "wer**")
        assert screen(stage)[4].startswith("  ▸ thought 3.1 s · 20 tokens")
        assert screen(stage)[5] == "  The answer"
        transcript.end_answer(answer("The **answer**", reasoning="First this.\nThen that. And more."), None)
        assert screen(stage)[4].startswith("  ▸ thought 3.1 s · 20 tokens")
        assert "tok/s" in screen(stage)[7]

    staged(body)


def test_a_long_thought_shows_its_last_rows_while_it_is_thought() -> None:
    async def body(stage: Stage, pilot: Pilot[None]) -> None:
        stage.transcript.begin_answer("m")
        stage.transcript.take(ReasoningDelta("".join(f"thought {number}\n" for number in range(40))))
        await shown(pilot)
        assert [row for row in screen(stage) if "│" in row] == [f"  │ thought {number}" for number in range(36, 40)]

    staged(body)


@pytest.mark.parametrize("state", ["partial", "cancelled", "error"])
def test_an_answer_that_was_cut_off_says_why(state: str) -> None:
    async def body(stage: Stage, _: Pilot[None]) -> None:
        stage.transcript.show([question(), answer("Beca", state=state)])
        assert "this answer" in screen(stage)[row_of(stage, "Beca") + 2]

    staged(body)


def test_an_error_is_shown_with_its_hint_and_what_had_come_stays() -> None:
    async def body(stage: Stage, pilot: Pilot[None]) -> None:
        transcript = stage.transcript
        transcript.ask(question())
        transcript.begin_answer("m")
        await stream(pilot, stage, "Beca")
        transcript.end_answer(answer("Beca", state="error"), EngineDied("The engine died.", hint="Ask again."))
        assert screen(stage)[4:8] == ["  Beca", "", "  ✗ The engine died.", "    Ask again."]
        transcript.begin_answer("m")
        transcript.end_answer(None, RunnerError("Full.", hint="Begin a new chat."))
        assert "\n".join(screen(stage)).count("assistant") == 1
        assert screen(stage)[row_of(stage, "✗ Full.") + 1] == "    Begin a new chat."

    staged(body)


def test_notices_stand_above_an_answer_that_has_not_begun_and_below_one_that_has() -> None:
    async def body(stage: Stage, pilot: Pilot[None]) -> None:
        transcript = stage.transcript
        transcript.begin_answer("m")
        transcript.take(Notice("info", "Left out two turns."))
        await stream(pilot, stage, "Text")
        transcript.take(Notice("warning", "Not kept yet.", "Free the disk."))
        await shown(pilot)
        transcript.end_answer(answer("Text"), None)
        transcript.note("By the way.", "Do it.", "warning")
        order = ["○ Left out", "Text", "! Not kept", "Free the disk.", "tok/s", "! By the way", "Do it."]
        places = [row_of(stage, text) for text in order]
        assert places == sorted(places)

    staged(body)


def test_new_text_does_not_move_a_view_that_was_scrolled_up() -> None:
    async def body(stage: Stage, pilot: Pilot[None]) -> None:
        transcript = stage.transcript
        transcript.show(chat(10))
        transcript.ask(question())
        transcript.begin_answer("m")
        await stream(pilot, stage, "one\n\n")
        await pilot.press("pageup")
        assert not transcript.is_following
        before = screen(stage)
        assert before[-1].endswith("↓ [End]")
        await stream(pilot, stage, "two\n\n", "three\n\n")
        assert screen(stage)[:-1] == before[:-1]
        assert screen(stage)[-1].endswith("↓ 4 new [End]")
        await pilot.press("end")
        assert "three" in "\n".join(screen(stage))
        assert transcript.is_following
        await stream(pilot, stage, "four\n\n" * 30, "five")
        assert "five" in screen(stage)[-1]

    staged(body)


def test_a_click_on_the_pill_goes_back_to_the_end() -> None:
    async def body(stage: Stage, pilot: Pilot[None]) -> None:
        stage.transcript.show(chat(10))
        await pilot.press("g")
        await pilot.click(Transcript, offset=(74, 20))
        assert stage.transcript.is_following
        assert "[End]" not in "\n".join(screen(stage))

    staged(body)


def test_the_wheel_leaves_the_end_and_finds_it_again() -> None:
    async def body(stage: Stage, pilot: Pilot[None]) -> None:
        transcript = stage.transcript
        transcript.show(chat(10))
        await pilot.pause()
        before = screen(stage)
        transcript.scroll_relative(y=-3, animate=False)
        await pilot.pause()
        assert screen(stage)[3:-1] == before[:-4]
        transcript.scroll_relative(y=3, animate=False)
        await pilot.pause()
        assert transcript.is_following
        assert screen(stage) == before

    staged(body)


def test_the_view_stays_on_its_text_when_the_window_changes() -> None:
    async def body(stage: Stage, pilot: Pilot[None]) -> None:
        stage.transcript.show(chat(20))
        await pilot.press("pageup", "pageup", "pageup")
        first = next(row for row in screen(stage) if "Line" in row)
        await pilot.resize_terminal(44, 16)
        await pilot.pause()
        assert first[2:20] in "\n".join(screen(stage)[:6])
        await pilot.press("end")
        await pilot.resize_terminal(120, 40)
        await pilot.pause()
        assert screen(stage)[-1].startswith("  142.7 tok/s")

    staged(body)


def test_keys_copy_the_answer_and_its_code_blocks() -> None:
    async def body(stage: Stage, pilot: Pilot[None]) -> None:
        text = "Two:\n```py\na = 1\n```\nand\n```sh\nls\n```\n"
        stage.transcript.show([question("Q one"), answer("first"), question("Q two"), answer(text)])
        assert stage.transcript.copy_answer() == text
        await pilot.press("y", "c")
        assert [(message.text, message.what) for message in stage.posted] == [(text, "answer"), ("ls\n", "code block")]
        stage.posted.clear()
        await pilot.press("left_curly_bracket", "left_curly_bracket", "c")
        assert [message.text for message in stage.posted] == ["a = 1\n"]
        stage.posted.clear()
        await pilot.press("left_square_bracket", "left_square_bracket", "y", "left_square_bracket", "y")
        assert [message.text for message in stage.posted] == ["Q two", "first"]
        assert "▸ assistant" in "\n".join(screen(stage))

    staged(body)


def test_clicks_copy_fold_edit_and_ask_again() -> None:
    async def body(stage: Stage, pilot: Pilot[None]) -> None:
        stage.transcript.show([question(), answer("Text\n```py\na = 1\n```\n", reasoning="deep thought")])
        rows = screen(stage)
        for text in ("[e] edit", "[y] copy", "[c] copy", "[r] again"):
            y = row_of(stage, text)
            await pilot.click(Transcript, offset=(rows[y].index(text) + 1, y))
        await pilot.click(Transcript, offset=(6, row_of(stage, "▸ thought")))
        await pilot.pause()
        kinds = [type(message).__name__ for message in stage.posted]
        assert kinds == ["EditRequested", "CopyRequested", "CopyRequested", "RegenerateRequested"]
        assert stage.posted[0].position == 0
        assert "  │ deep thought" in screen(stage)
        await pilot.press("t")
        assert "  │ deep thought" not in screen(stage)

    staged(body)


def test_keys_edit_regenerate_and_toggle_all_thoughts() -> None:
    async def body(stage: Stage, pilot: Pilot[None]) -> None:
        turns = [question(), answer(reasoning="thought A"), question(), answer(reasoning="thought B")]
        stage.transcript.show(turns)
        await pilot.press("e", "r")
        assert [type(message).__name__ for message in stage.posted] == ["EditRequested", "RegenerateRequested"]
        assert stage.posted[0].position == 2
        stage.transcript.toggle_thoughts()
        assert {"  │ thought A", "  │ thought B"} <= set(screen(stage))
        stage.transcript.toggle_thoughts()
        assert not any("│" in row for row in screen(stage))

    staged(body)


def test_letters_that_are_typed_elsewhere_do_nothing_here() -> None:
    async def body(stage: Stage, pilot: Pilot[None]) -> None:
        stage.transcript.show([question(), answer()])
        stage.query_one(Input).focus()
        await pilot.press("y", "e", "r", "t")
        assert stage.query_one(Input).value == "yert"
        assert stage.posted == []

    staged(body)


def test_a_link_is_told_and_not_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda url, *_: opened.append(url))

    async def body(stage: Stage, pilot: Pilot[None]) -> None:
        stage.transcript.show([question(), answer("see [the docs](https://x.y/z) and ![a cat](https://x.y/cat.png)")])
        y = row_of(stage, "the docs")
        row = screen(stage)[y]
        await pilot.click(Transcript, offset=(row.index("docs"), y))
        await pilot.click(Transcript, offset=(row.index("cat"), y))
        await pilot.click(Transcript, offset=(row.index("see"), y))
        assert [message.url for message in stage.posted] == [
            "https://x.y/z",
            "https://x.y/cat.png",
        ]

    staged(body)
    assert opened == []


def test_text_is_selected_with_the_mouse_and_copied_without_what_is_drawn() -> None:
    async def body(stage: Stage, pilot: Pilot[None]) -> None:
        text = "one two\n```py\na = 1\n\nb = 2\n```\nend here"
        stage.transcript.show([question(), answer(text)])
        top, bottom = row_of(stage, "one two"), row_of(stage, "end here")
        await pilot.mouse_down(Transcript, offset=(6, top))
        await pilot.hover(Transcript, offset=(4, bottom))
        await pilot.mouse_up(Transcript, offset=(4, bottom))
        await pilot.pause()
        selected = stage.screen.get_selected_text()
        assert selected is not None
        lines = selected.split("\n")
        assert lines[0] == "two"
        assert lines[3:6] == ["a = 1", "", "b = 2"]
        assert lines[-1] == "end"

    staged(body)


def test_answers_and_turns_are_dropped_before_they_are_asked_for_again() -> None:
    async def body(stage: Stage, pilot: Pilot[None]) -> None:
        transcript = stage.transcript
        transcript.show([question("Q0"), answer("A1"), question("Q2"), answer("A3")])
        transcript.drop_last_answer()
        transcript.begin_answer("m")
        await stream(pilot, stage, "A3 again")
        transcript.end_answer(answer("A3 again"), None)
        assert [row for row in screen(stage) if re.search(r"[AQ]\d", row)] == ["▌ Q0", "  A1", "▌ Q2", "  A3 again"]
        transcript.drop_from(2)
        transcript.ask(question("Q2 new"))
        await pilot.press("e")
        assert stage.posted[-1].position == 2
        assert not any("A3" in row for row in screen(stage))

    staged(body)


def test_a_long_message_is_folded_and_opens_with_a_click() -> None:
    async def body(stage: Stage, pilot: Pilot[None]) -> None:
        text = "\n".join(f"row {number}" for number in range(50))
        stage.transcript.show([question(text), answer()])
        await pilot.press("g")
        y = row_of(stage, "▸ 30 more lines")
        assert screen(stage)[y - 1] == "▌ row 19"
        await pilot.click(Transcript, offset=(4, y))
        await pilot.pause()
        assert screen(stage)[y] == "▌ row 20"

    staged(body, (80, 40))


def test_hostile_text_is_shown_as_it_stands_everywhere() -> None:
    async def body(stage: Stage, pilot: Pilot[None]) -> None:
        transcript = stage.transcript
        turn = answer(HOSTILE, reasoning=HOSTILE, model=HOSTILE, state="error")
        transcript.show([question(HOSTILE), turn])
        transcript.ask(Turn(role="tool", content=HOSTILE, created_at=1e300))
        transcript.begin_answer(HOSTILE)
        transcript.take(Notice("warning", HOSTILE, HOSTILE))
        transcript.take(ReasoningDelta(HOSTILE))
        await shown(pilot)
        await stream(pilot, stage, f"```{HOSTILE}\n{HOSTILE}\n```\n[x]({HOSTILE})\n\n|a|b|\n|-|-|\n|{HOSTILE}|b|\n")
        transcript.end_answer(answer("x", timings={"decode_s": HOSTILE}), RunnerError(HOSTILE, hint=HOSTILE))
        transcript.note(HOSTILE, HOSTILE, "error")
        transcript.toggle_thoughts()
        await pilot.press("g")
        rows = "\n".join(screen(stage))
        assert rows.count(SAFE) >= 8
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", rows)
        for y, row in enumerate(screen(stage)):
            if "x[/]" in row:
                await pilot.click(Transcript, offset=(row.index("x[/]"), y))
        assert stage.is_running

    staged(body, (120, 60))


def test_hostile_text_is_shown_the_same_wherever_its_stream_is_split() -> None:
    async def body(stage: Stage, _: Pilot[None]) -> None:
        transcript = stage.transcript
        for place in range(len(HOSTILE) + 1):
            transcript.begin_answer("m")
            transcript.take(TextDelta(HOSTILE[:place]))
            transcript._show_pending()
            transcript.take(TextDelta(HOSTILE[place:]))
            transcript._show_pending()
            assert f"  {SAFE}" in screen(stage), HOSTILE[:place]
            transcript.drop_last_answer()

    staged(body)


def test_memory_does_not_grow_with_the_chats_that_were_shown() -> None:
    async def body(stage: Stage, pilot: Pilot[None]) -> None:
        transcript = stage.transcript
        for _ in range(30):
            transcript.show(chat(20))
            await pilot.pause()
        painter = transcript._painter
        assert len(painter._strips) < 200
        assert len(transcript.document.entries) == 20
        assert transcript._timer is None

    staged(body)


def test_an_answer_that_streams_ends_as_it_would_have_been_opened() -> None:
    async def body(stage: Stage, _: Pilot[None]) -> None:
        text = "# T\n\n- a\n- b\n\n```py\nx = 1\n```\n\n| a |\n|---|\n| 1 |\n\nend"
        transcript = stage.transcript
        transcript.ask(question())
        transcript.begin_answer("demo")
        for start in range(0, len(text), 3):
            transcript.take(TextDelta(text[start : start + 3]))
            transcript._show_pending()
        transcript.end_answer(answer(text), None)
        streamed = screen(stage)
        transcript.show([question(), answer(text)])
        assert screen(stage) == streamed
        assert len(sections_of(text)) > 4

    staged(body, (80, 40))


@pytest.mark.parametrize("size", [(200, 60), (120, 40), (80, 24), (40, 12)])
def test_nothing_is_wider_than_the_window_at_any_size(size: tuple[int, int]) -> None:
    async def body(stage: Stage, _: Pilot[None]) -> None:
        transcript = stage.transcript
        transcript.show([question("word " * 60), answer("| a | b |\n|---|---|\n| " + "cell " * 40 + "| x |\n" * 3)])
        transcript.note("A note that is long enough for two rows. " * 3, "And a hint.", "warning")
        assert all(
            transcript.render_line(y).cell_length == transcript.size.width for y in range(transcript.size.height)
        )
        assert not transcript.show_horizontal_scrollbar

    staged(body, size)


@pytest.mark.parametrize("theme", ["runner-light", "ansi"])
def test_every_theme_draws_the_same_text(theme: str) -> None:
    async def body(stage: Stage, pilot: Pilot[None]) -> None:
        stage.transcript.show([question(), answer("**b** `c` [l](u)\n```py\nx = 'y'\n```", reasoning="r")])
        before = screen(stage)
        stage.theme = theme
        await pilot.pause()
        assert screen(stage) == before
        assert stage.transcript.render_line(0)

    staged(body)
