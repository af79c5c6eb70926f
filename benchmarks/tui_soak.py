"""Whether the terminal interface stays as small and as quick as it was, however long it is used.

    python benchmarks/tui_soak.py [--minutes 5] [--chats N] [--every 50] [--kept 20] [--json FILE]

`runner` itself runs in a pseudo-terminal of 120 x 40 that is read as fast as it is written, on a scripted model in an
engine process of its own, and a user works with it by its keys without pause: a new chat, questions, an answer stopped,
asked again or taken back, thoughts unfolded, an old chat resumed and deleted, other modes, settings, help, the palette,
themes and sizes. Each --every chats a row says, of the interface and of the engine: private memory (USS: what ends
with the process), threads and open files; and of the event loop, how much later than asked a sleep of 5 ms ended since
the row before. The last line is the growth for 1000 chats, fitted to the rows of the second half.

The first chats open every mode and fill the caches of Textual and Rich, and the engine's drafter remembers up to 65,536
tokens: judge the growth by a run of a hundred chats and more.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pexpect
import psutil
from textual.events import Key, Resize
from textual.geometry import Size

from runner.backends.fake import CHAT_TEMPLATE
from runner.paths import user_paths
from runner.settings import load_settings
from runner.tui import app_for
from runner.tui.app import RunnerApp
from runner.tui.screens.chat import ChatScreen

COLUMNS, ROWS = 120, 40
MIB = 2**20
_SLEEP_S = 0.005
_KEY_S = 0.03  # between two keys: faster than anybody types
_PATIENCE_S = 120.0
_LEFT_SCREEN = b"\x1b[?1049l"  # an error is told after that
_SIZES = ((120, 40), (80, 24), (200, 60), (40, 12))
_MARKDOWN = """## An answer

Some **bold** words, `code`, and a list:

1. one
2. two

| format | bits |
|:-------|-----:|
| MQ4 | 4.25 |

```python
def gate(lo, hi):
    return lo * hi
```

"""
_TEMPLATE = CHAT_TEMPLATE + "{# </think> #}"  # a model that thinks
_REPLIES = (
    _MARKDOWN * 2,
    {"text": "<think>\nFirst this, then that.\n</think>\n\n" + _MARKDOWN, "token_s": 0.0005},
    {"text": "word " * 400, "token_s": 0.005},
    "[/] \x1b]52;c;eA==\x07 [@click=app.quit]x[/] \x9b31m",
)
_COLUMNS = (
    ("ui MiB", "ui_bytes", 1 / MIB),
    ("engine MiB", "engine_bytes", 1 / MIB),
    ("objects", "objects", 1),
    ("threads", "threads", 1),
    ("files", "files", 1),
    ("lag p99 ms", "lag_p99_s", 1000),
    ("lag max ms", "lag_max_s", 1000),
)


@dataclass
class User:
    """Works with the app by its keys. every: chats a row; kept: chats that are not deleted."""

    app: RunnerApp
    out: Path
    minutes: float
    chats: int
    every: int
    kept: int
    lags: list[float] = field(default_factory=list)

    @property
    def chat(self) -> ChatScreen:
        return next(screen for screen in self.app.screen_stack if isinstance(screen, ChatScreen))

    async def work(self) -> None:
        await self.until(lambda: self.app.chat_engine.state == "ready", "no model")
        began = time.monotonic()
        number = 0
        self.write(0, 0.0)
        while (not self.chats or number < self.chats) and time.monotonic() - began < 60 * self.minutes:
            await self.one_chat(number)
            number += 1
            if number % self.every == 0:
                self.write(number, time.monotonic() - began)

    async def one_chat(self, number: int) -> None:
        await self.press("ctrl+n")
        await self.until(lambda: not self.app.chat_engine.conversation.turns, "no new chat")
        await self.ask(f"question {number}")
        for act in (
            self.ask_and_think,
            self.stop_and_ask_again,
            self.take_back,
            self.see_the_rest,
            self.resume_and_delete,
        )[: 1 + number % 5]:
            await act()
        await self.delete_the_oldest()

    async def ask_and_think(self) -> None:
        await self.ask("and then?")
        await self.press("ctrl+t", "ctrl+t")

    async def stop_and_ask_again(self) -> None:
        await self.type("a long one, please")
        await self.until(lambda: self.app.chat_engine.state == "answering", "no answer began")
        await asyncio.sleep(0.1)
        await self.press("escape")
        await self.ready()
        await self.press("ctrl+r")
        await asyncio.sleep(0.1)
        await self.press("escape")
        await self.ready()

    async def take_back(self) -> None:
        await self.type("/undo")
        await self.ready()
        await self.press("escape", "pageup", "home", "end", "escape")

    async def see_the_rest(self) -> None:
        for key, mode in (("f2", "models"), ("f4", "doctor"), ("f3", "bench"), ("f5", "chat")):
            await self.press(key)
            await self.until(lambda mode=mode: self.app.current_mode == mode, f"{key} did nothing")  # type: ignore[misc]
        for key in ("f6", "f1", "ctrl+p", "ctrl+o"):
            await self.press(key)
            await self.until(lambda: len(self.app.screen_stack) > 1, f"{key} opened nothing")
            await self.press("escape")
            await self.until(lambda: len(self.app.screen_stack) == 1, f"what {key} opened stays")
        await self.press("f9", "f7", "f7", "f8", "f8")
        for columns, rows in (*_SIZES[1:], _SIZES[0]):
            size = Size(columns, rows)
            self.app.post_message(Resize(size, size))
            await asyncio.sleep(0.1)
        self.chat.focus_prompt()

    async def resume_and_delete(self) -> None:
        """The oldest chat, as its words in the list would do it."""
        store = self.app.services.store
        assert store is not None
        oldest = store.sessions()[-1]
        self.chat.resume(oldest.id)
        await self.until(lambda: self.app.chat_engine.conversation.session_id == oldest.id, "the chat did not open")
        await self.ask("go on")
        self.chat.action_delete_chat()
        await self.until(lambda: len(self.app.screen_stack) > 1, "nobody asked whether to delete")
        await self.press("y")
        await self.until(lambda: all(kept.id != oldest.id for kept in store.sessions()), "it was not deleted")

    async def delete_the_oldest(self) -> None:
        store = self.app.services.store
        assert store is not None
        if extra := [kept.id for kept in store.sessions()[self.kept :]]:
            store.delete(extra)

    # --- how ---------------------------------------------------------------------------------------------------------

    async def press(self, *keys: str) -> None:
        for key in keys:
            self.app.post_message(Key(key, key if len(key) == 1 else None))
            await asyncio.sleep(_KEY_S)

    async def type(self, text: str) -> None:
        self.chat.focus_prompt()
        self.chat.box.prompt.put(text)
        await self.press("enter")

    async def ask(self, text: str) -> None:
        before = self.app.chat_engine.conversation.turns
        await self.type(text)
        await self.until(
            lambda: len(self.app.chat_engine.conversation.turns) >= len(before) + 2, f"no answer to {text}"
        )
        await self.ready()

    async def ready(self) -> None:
        engine = self.app.chat_engine
        await self.until(lambda: engine.state == "ready" and not engine.is_busy, "the answer did not end")

    async def until(self, is_true: Callable[[], object], otherwise: str) -> None:
        end = time.monotonic() + _PATIENCE_S
        while not is_true():
            if time.monotonic() > end:
                where = f"{self.app.screen} is on top, the engine is {self.app.chat_engine.state}"
                raise RuntimeError(f"{otherwise}: {where}")
            await asyncio.sleep(_KEY_S)
        await asyncio.sleep(_KEY_S)

    # --- what it costs -----------------------------------------------------------------------------------------------

    async def watch(self) -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(_SLEEP_S)
            self.lags.append(time.perf_counter() - before - _SLEEP_S)

    def write(self, chats: int, seconds: float) -> None:
        gc.collect()
        interface = psutil.Process()
        pids = self.app.chat_engine.pids()
        lags = sorted(self.lags) or [0.0]
        self.lags.clear()
        row = {
            "chats": chats,
            "seconds": round(seconds, 1),
            "ui_bytes": interface.memory_full_info().uss,
            "engine_bytes": psutil.Process(pids[0]).memory_full_info().uss if pids else 0,
            "objects": len(gc.get_objects()),
            "threads": interface.num_threads(),
            "files": interface.num_fds(),
            "lag_p99_s": lags[int(0.99 * (len(lags) - 1))],
            "lag_max_s": lags[-1],
        }
        with self.out.open("a") as out:
            out.write(json.dumps(row) + "\n")


def inside(args: argparse.Namespace) -> None:
    """The process of the interface."""
    paths = user_paths()
    app = app_for(paths, load_settings(paths))

    async def use(_: object) -> None:
        user = User(app, args.json, args.minutes, args.chats, args.every, args.kept)
        watch = asyncio.create_task(user.watch())
        try:
            await user.work()
        finally:
            watch.cancel()
            app.exit(0)

    asyncio.run(app.run_async(auto_pilot=use))
    sys.exit(app.return_code or 0)


def in_terminal(args: argparse.Namespace, home: Path, rows: Path) -> None:
    """Run the interface with a home of its own, and print its rows as they come."""
    script = home / "soak.script.json"
    script.write_text(json.dumps({"replies": _REPLIES, "n_ctx": 200_000, "chat_template": _TEMPLATE}))
    numbers = ["--minutes", str(args.minutes), "--chats", str(args.chats), "--every", str(args.every)]
    command = [str(Path(__file__).resolve()), "--inside", *numbers, "--kept", str(args.kept), "--json", str(rows)]
    places = {"RUNNER_HOME": str(home), "HF_HOME": str(home / "hf"), "HF_HUB_OFFLINE": "1", "RUNNER_MODEL": str(script)}
    environment = {**os.environ, **places, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
    child = pexpect.spawn(sys.executable, command, env=environment, dimensions=(ROWS, COLUMNS), timeout=1)
    tail, n_shown = b"", 0  # the end of what was drawn: where an error would stand
    while True:
        try:
            tail = (tail + child.read_nonblocking(1 << 16, timeout=0.5))[-60000:]
        except pexpect.TIMEOUT:
            pass
        except pexpect.EOF:
            break
        n_shown = show(rows, n_shown)
    child.close()
    show(rows, n_shown)
    if child.exitstatus:
        raise SystemExit(f"It ended with {child.exitstatus}:\n{tail.split(_LEFT_SCREEN)[-1].decode(errors='replace')}")


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def show(path: Path, n_shown: int) -> int:
    """Print the rows that were not printed yet; how many have been by now."""
    rows = rows_of(path)
    for row in rows[n_shown:]:
        figures = "".join(f"{row[key] * factor:>12,.1f}" for _, key, factor in _COLUMNS)
        print(f"{row['chats']:7}{row['seconds']:8.0f}{figures}", flush=True)
    return len(rows)


def growth(rows: list[dict[str, Any]]) -> str:
    """What 1000 chats add, by a line through the second half of the rows."""
    late = rows[len(rows) // 2 :]
    if len(late) < 2:
        return "Too few rows to tell how it grows: more --minutes, or a smaller --every."
    chats = np.array([row["chats"] for row in late], float)
    more = {key: 1000 * np.polyfit(chats, [row[key] for row in late], 1)[0] for _, key, _ in _COLUMNS[:5]}
    memory = f"interface {more['ui_bytes'] / MIB:+.1f} MiB, engine {more['engine_bytes'] / MIB:+.1f} MiB"
    rest = f"{more['objects']:+,.0f} objects, {more['threads']:+.1f} threads, {more['files']:+.1f} files"
    return f"For 1000 chats: {memory}, {rest}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--chats", type=int, default=0, help="end after so many chats, if that is sooner")
    parser.add_argument("--every", type=int, default=50)
    parser.add_argument("--kept", type=int, default=20)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside:
        inside(args)
    print(f"{'chats':>7}{'seconds':>8}" + "".join(f"{name:>12}" for name, _, _ in _COLUMNS))
    with tempfile.TemporaryDirectory(prefix="runner-soak-") as home:
        rows = Path(home) / "rows.jsonl"
        in_terminal(args, Path(home), rows)
        print(growth(rows_of(rows)))
        if args.json:
            args.json.write_text(rows.read_text())


if __name__ == "__main__":
    main()
