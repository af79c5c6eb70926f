"""How responsive the transcript of the TUI is: event-loop lag while an answer streams, and the opening of a long chat.

    python benchmarks/tui_stream.py [--tokens 20000] [--rate 400] [--turns 500] [--cases prose code ...] [--json FILE]

Each case runs in its own process, in a pseudo-terminal of 120 x 40 that is read as fast as it is written. The lag is
how much later than asked a sleep of 5 ms ends in the event loop that shows the answer. `prose` streams a mixed answer
at --rate tokens/s, `flood` the same one at 20 times that, and all other cases one block that never ends. `burst` is the
whole answer at once. `open` shows a chat of --turns long turns, scrolls through all of it page by page, and opens it
again and again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pexpect
from arguments import positive
from textual.app import App, ComposeResult
from textual.widgets import Input

from runner.events import ReasoningDelta, TextDelta
from runner.machine import peak_bytes
from runner.transcript import Turn
from runner.tui.widgets.transcript import Transcript

COLUMNS, ROWS = 120, 40
CASES = ("prose", "flood", "paragraph", "code", "table", "list", "thought", "burst", "open")
_SLEEP_S = 0.005
_BATCH_S = 0.025  # the engine's process joins what it says to 40 lines a second
_TOKEN = 4  # characters
_FASTER = 20
_REOPENINGS = 20
_MIXED = """## Part {n}

The epilogue adds **bias**, applies `SiLU` and multiplies by the gate, *before* anything is written: see [the
docs](https://example.org/{n}). Nothing is read twice, so that the bandwidth is left for the weights alone.

1. The product is in registers already, and what follows it costs no kernel of its own.
2. One launch fewer:
   - a nested item with `code` in it
   - and another one, which is long enough to be wrapped to a second row when the window is narrow

| format | bits | tok/s |
|:-------|-----:|------:|
| MQ4 | 4.25 | 142.6 |
| Q4_K_M | 4.85 | 121.0 |

```python
def relu_squared(lo: Tensor, hi: Tensor) -> Tensor:
    \"\"\"Square what is positive.\"\"\"
    y = maximum(lo, 0.0)  # the first stream
    return y * y if hi.sum() > {n} else "nothing"
```

> A quote, so that there is one of everything.

"""


def answer_of(case: str, tokens: int) -> str:
    """The text of a case, long enough for that many tokens."""
    size = tokens * _TOKEN
    unit = {
        "paragraph": "words that go on and on, with **emphasis** and `code`, but with no line end; ",
        "code": "    value_{n} = compute({n}, scale=0.5)  # one of very many lines\n",
        "table": "| row {n} | 4.25 | 142.6 | some words |\n",
        "list": "- item {n} with **bold** words and `code`\n",
        "thought": "Then there is {n}, which has to be considered too.\n",
    }.get(case, _MIXED)
    head = {"code": "```python\n", "table": "| a | b | c | d |\n|---|--:|--:|---|\n"}.get(case, "")
    parts, length, number = [head], len(head), 0
    while length < size:
        parts.append(unit.replace("{n}", str(number)))
        length += len(parts[-1])
        number += 1
    return "".join(parts)[:size]


class Stage(App[dict[str, Any]]):
    """A transcript above a field, and what a case measures with them."""

    def __init__(self, case: str, tokens: int, rate: float, turns: int) -> None:
        super().__init__()
        self.case, self.tokens, self.rate, self.turns = case, tokens, rate, turns
        self.lags: list[float] = []

    def compose(self) -> ComposeResult:
        yield Transcript()
        yield Input()

    def on_mount(self) -> None:
        self.run_worker(self.measure())

    async def measure(self) -> None:
        await asyncio.sleep(0.5)  # the first frame is not what is measured
        meter = asyncio.create_task(self.watch())
        figures = await (self.opened() if self.case == "open" else self.streamed())
        meter.cancel()
        self.exit({"case": self.case, **figures, **lag_figures(self.lags)})

    async def watch(self) -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(_SLEEP_S)
            self.lags.append(time.perf_counter() - before - _SLEEP_S)

    async def streamed(self) -> dict[str, Any]:
        transcript = self.query_one(Transcript)
        text = answer_of(self.case, self.tokens)
        kind = ReasoningDelta if self.case == "thought" else TextDelta
        pieces = [kind(text[start : start + _TOKEN]) for start in range(0, len(text), _TOKEN)]
        rate = self.rate * {"prose": 1, "burst": 1e9}.get(self.case, _FASTER)
        step = max(1, round(rate * _BATCH_S))
        transcript.ask(Turn(role="user", content="Go on.", created_at=time.time()))
        transcript.begin_answer("fake")
        started = time.perf_counter()
        for number, start in enumerate(range(0, len(pieces), step), 1):
            for piece in pieces[start : start + step]:
                transcript.take(piece)
            await asyncio.sleep(max(0.0, started + number * _BATCH_S - time.perf_counter()))
        answer = Turn(role="assistant", content="" if self.case == "thought" else text, created_at=time.time())
        transcript.end_answer(answer, None)
        await self.painted()
        seconds = time.perf_counter() - started
        return {"tokens": len(pieces), "seconds": seconds, "tok_s": len(pieces) / seconds}

    async def opened(self) -> dict[str, Any]:
        transcript = self.query_one(Transcript)
        turns = chat(self.turns)
        started = time.perf_counter()
        transcript.show(turns)
        await self.painted()
        open_s = time.perf_counter() - started
        pages = await self.scrolled_up(transcript)
        sizes = []
        for _ in range(_REOPENINGS):
            transcript.show(turns)
            await self.painted()
            sizes.append(resident_bytes())
        return {
            "turns": self.turns,
            "open_s": open_s,
            "pages": len(pages),
            "page_median_s": statistics.median(pages),
            "page_max_s": max(pages),
            "peak_bytes": peak_bytes(),
            "growth_bytes": sizes[-1] - sizes[2],
        }

    async def scrolled_up(self, transcript: Transcript) -> list[float]:
        """Seconds of each page up to the first one."""
        pages = []
        while transcript.scroll_offset.y > 0:
            started = time.perf_counter()
            transcript.action_page_up()
            await self.painted()
            pages.append(time.perf_counter() - started)
        return pages

    async def painted(self) -> None:
        """Until what is there now is on the screen."""
        done = asyncio.Event()
        self.call_after_refresh(done.set)
        await done.wait()


def chat(n: int) -> list[Turn]:
    turns = []
    for number in range(n // 2):
        text = "".join(_MIXED.replace("{n}", f"{number}.{part}") for part in range(4))
        turns.append(Turn(role="user", content=f"Question {number}: explain the fused epilogue.", created_at=1e9))
        turns.append(Turn(role="assistant", content=text, reasoning="First, this. " * 40, created_at=1e9, model="m"))
    return turns


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def lag_figures(lags: list[float]) -> dict[str, float]:
    lags = sorted(lags)
    return {
        "lag_p50_s": statistics.median(lags),
        "lag_p99_s": lags[min(len(lags) - 1, int(len(lags) * 0.99))],
        "lag_max_s": lags[-1],
    }


def in_terminal(case: str, args: argparse.Namespace) -> dict[str, Any]:
    """Run one case in a process of its own, in a pseudo-terminal."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "row.json"
        numbers = ["--tokens", str(args.tokens), "--rate", str(args.rate), "--turns", str(args.turns)]
        command = [str(Path(__file__).resolve()), "--child", case, *numbers, "--json", str(out)]
        environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
        child = pexpect.spawn(sys.executable, command, env=environment, dimensions=(ROWS, COLUMNS), timeout=600)
        child.expect(pexpect.EOF)
        child.close()
        if not out.is_file():
            raise SystemExit(f"{case} ended with {child.exitstatus}:\n{child.before.decode(errors='replace')[-2000:]}")
        row: dict[str, Any] = json.loads(out.read_text())
        return row


def show(row: dict[str, Any]) -> None:
    lag = "".join(f"{1000 * row[name]:9.1f}" for name in ("lag_p50_s", "lag_p99_s", "lag_max_s"))
    if row["case"] == "open":
        about = (
            f"{row['turns']} turns in {1000 * row['open_s']:.0f} ms; {row['pages']} pages up, each in "
            f"{1000 * row['page_median_s']:.1f} ms, at most {1000 * row['page_max_s']:.0f} ms; "
            f"{row['growth_bytes'] / 1e6:+.1f} MB over {_REOPENINGS} openings"
        )
    else:
        about = f"{row['tokens']} tokens, {row['tok_s']:.0f} tok/s"
    print(f"{row['case']:10}{lag}   {about}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=positive, default=20_000)
    parser.add_argument("--rate", type=float, default=400.0)
    parser.add_argument("--turns", type=int, default=500)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", choices=CASES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        args.json.write_text(json.dumps(Stage(args.child, args.tokens, args.rate, args.turns).run()))
        return
    print(f"{'case':10}{'p50 ms':>9}{'p99 ms':>9}{'max ms':>9}")
    rows = []
    for case in args.cases:
        rows.append(in_terminal(case, args))
        show(rows[-1])
    if args.json:
        args.json.write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()
