"""The sections of docs/BENCHMARKS.md that are measured on a GPU, from the lines of JSON that the benchmarks write.

    python benchmarks/page.py [docs/benchmarks.jsonl] [--docs docs]

A section is what lies between its two markers; where no line is there for it, it says so. Of lines that measure the
same thing on the same device the last one counts, and each device has its tables. Text, and two plots beside it, of the
first device.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import speed_plots
from arguments import existing
from records import SCHEMA

CHECKOUT = Path(__file__).parent.parent
BEGIN, END = "<!-- {}: made by benchmarks/page.py -->", "<!-- end of {} -->"
NOTHING = "No figures are here yet: run the command above on a GPU with `--json docs/benchmarks.jsonl`.\n"
_KEYS = {
    "matmul": ("shape", "matrix", "m", "way"),
    "decode_layer": ("shape", "layers", "format", "rows", "depth"),
    "models": ("shape", "layers", "engine", "test"),
    "load_time": ("model", "n_prompt"),
    "speculation": ("kind", "model", "backend", "drafter", "adversary", "genre", "category", "temperature"),
}
Row = dict[str, Any]


def read_rows(path: Path) -> list[Row]:
    """The lines of the file that are of a section; none if it is not there.

    Other benchmarks' are passed over, since one file may be for all. Raises ValueError for a line of something else.
    """
    if not path.is_file():
        return []
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        row = json.loads(line)
        if row.get("schema") != SCHEMA:
            raise ValueError(f"{path}, line {number}: no line of these benchmarks")
        if row["benchmark"] in _KEYS:
            rows.append(row)
    return rows


def latest(rows: Sequence[Row], benchmark: str) -> list[Row]:
    """The rows of that benchmark whose run is the last one that measured their key, in their order."""
    mine = [row for row in rows if row["benchmark"] == benchmark]
    last = {_key(row): _run(row) for row in mine}
    return [row for row in mine if _run(row) == last[_key(row)]]


def _key(row: Row) -> tuple[Any, ...]:
    return row["origin"]["device"], *(row.get(name) for name in _KEYS[row["benchmark"]])


def _run(row: Row) -> str:
    return json.dumps(row["origin"], sort_keys=True)


# --- sections --------------------------------------------------------------------------------------------------------


def matmul(rows: list[Row]) -> str:
    """A table a shape: microseconds by way, and the first way's share of the read stream."""
    parts = []
    for shape in _distinct(rows, "shape"):
        mine = [row for row in rows if row["shape"] == shape]
        by_place: dict[tuple[str, int, int, int], dict[str, Row]] = {}
        for row in mine:
            by_place.setdefault((row["matrix"], row["n"], row["k"], row["m"]), {})[row["way"]] = row
        ways = _distinct(mine, "way")
        lines = [_head("product", "N x K", "M", "floor us", *(f"{way} us" for way in ways), "share of the stream")]
        for (matrix, n, k, m), found in by_place.items():
            first = next(iter(found.values()))
            cells = [f"{found[way]['us']:.1f}" if way in found else "" for way in ways]
            share = first["bytes_s"] / first["origin"]["read_bytes_s"]
            lines.append(_line(matrix, f"{n} x {k}", m, f"{first['floor_us']:.1f}", *cells, f"{100 * share:.0f} %"))
        parts.append(f"**{shape}**\n\n" + "\n".join(lines))
    return "\n\n".join(parts)


def decode_layer(rows: list[Row]) -> str:
    """A table a shape, format and kind of step, and what a step takes in all."""
    parts = []
    names = ("shape", "format", "rows", "depth")
    for place in dict.fromkeys(tuple(row[name] for name in names) for row in rows):
        mine = [row for row in rows if tuple(row[name] for name in names) == place]
        total = next(row for row in mine if row["place"] == "step")
        lines = [_head("where", "kernel", "calls", "us each", "gap before, us", "share of the step")]
        for row in mine:
            if row is not total:
                share = f"{100 * row['share']:.1f} %"
                lines.append(
                    _line(
                        row["place"],
                        f"`{row['kernel']}`",
                        row["calls"],
                        f"{row['us']:.2f}",
                        f"{row['gap_us']:.2f}",
                        share,
                    )
                )
        said = (
            f"**{place[0]}, {place[1]}, {_tokens(place[2])}after {place[3]} tokens**: {total['calls']} kernels a step "
            f"of {total['us']:.0f} us, {total['busy_us']:.0f} of which some kernel runs; without the profiler "
            f"{total['unprofiled_us']:.0f} us."
        )
        parts.append(f"{said}\n\n" + "\n".join(lines))
    return "\n\n".join(parts)


def _tokens(n_rows: int) -> str:
    return "" if n_rows == 1 else f"{n_rows} tokens "


_DEFAULT: Final = "runner mq4"
_PEERS: Final = ("llama.cpp q4_k_m", "llama.cpp mxfp4_moe")  # the second for what is published in MXFP4 alone
_LATE: Final = 256  # tokens; before them a context is at its beginning


def models(rows: list[Row]) -> str:
    """All shapes in short, then a table a shape: tests by engine, and how much faster than each peer ours is.

    That is in the format that is the default or, where a shape was not measured in it, in the one that was measured
    last. A peer that was measured more than once in a run, after each of our formats, counts as the best of these.
    Where ours were not all measured at one commit, the head says at which, and a value of an older one says its own.
    """
    parts = [table] if (table := _at_a_glance(rows)) else []
    is_one = len({row["origin"]["commit"] for row in rows if _is_ours(row)}) == 1
    for shape in _distinct(rows, "shape"):
        mine = [row for row in rows if row["shape"] == shape]
        ours = {row["engine"]: row["origin"] for row in mine if _is_ours(row)}
        for row in mine:
            if row["engine"] in ours:
                ours[row["engine"]] = max(ours[row["engine"]], row["origin"], key=lambda origin: origin["date"])
        newest = sorted(ours, key=lambda engine: (engine == _DEFAULT, ours[engine]["date"]), reverse=True)
        peers = [engine for engine in _distinct(mine, "engine") if engine not in ours]
        engines = [*newest, *peers]
        found = _by_test(mine)
        heads = [engine if is_one else f"{engine} at {ours[engine]['commit']}" for engine in newest]
        lines = [_head("test", *heads, *peers, *(f"{engines[0]} / {peer}" for peer in peers))]
        for test in sorted(_distinct(mine, "test"), key=_place):
            cells = [_value(found.get((test, engine)), ours.get(engine)) for engine in engines]
            ratios = [_ratio(found.get((test, engines[0])), found.get((test, peer))) for peer in peers]
            lines.append(_line(test, *cells, *ratios))
        parts.append(f"**{shape}**{_layers(mine)}\n\n" + "\n".join(lines))
    return "\n\n".join(parts)


def _at_a_glance(rows: list[Row]) -> str:
    """A line a shape, the fastest first: decoding, decoding as late as was measured, and prompts, beside the peer.

    That is the first of those that the shape was measured with; a line names the second. Decoding is that of the last
    run that had it at the beginning, and as late as that run went, if it did.
    """
    lines = []
    for shape in _distinct(rows, "shape"):
        found = _by_test([row for row in rows if row["shape"] == shape])
        peer = next((one for one in _PEERS if any(by == one for _, by in found)), _PEERS[0])
        ours, theirs = ({test: row for (test, by), row in found.items() if by == name} for name in (_DEFAULT, peer))
        decoded = sorted((test for test in ours.keys() & theirs if test.startswith("tg")), key=_place)
        if decoded:
            first = max([test for test in decoded if _depth(test) < _LATE] or decoded[:1], key=lambda t: _date(ours[t]))
            later = [test for test in decoded if _depth(test) >= _LATE and test != first]
            of_run = [test for test in later if _date(ours[test]) == _date(ours[first])]
            last = (of_run or later or [first])[-1]
            cells = [
                cell
                for test in (first, last)
                for cell in (f"{ours[test]['median']:.0f}", _ratio(ours[test], theirs[test]))
            ]
            late = [f"{_depth(last)}", *cells[2:]] if last != first else ["", "", ""]
            prompt = _ratio(ours.get("pp512"), theirs.get("pp512"))
            flat = f"{ours['t(8)']['median'] / ours['t(1)']['median']:.2f}" if ours.keys() >= {"t(1)", "t(8)"} else ""
            name = shape if peer == _PEERS[0] else f"{shape}, beside {peer}"
            lines.append((ours[first]["median"], _line(name, *cells[:2], *late, prompt, flat)))
    heads = ("tok/s", f"times {_PEERS[0]}", "after tokens", "tok/s", "times", "prompt of 512, times", "t(8) / t(1)")
    table = "\n".join([_head("shape", *heads), *(line for _, line in sorted(lines, reverse=True))])
    return f"In short, {_DEFAULT}:\n\n{table}" if lines else ""


def _depth(test: str) -> int:
    return int(test.partition(" @ d")[2] or 0)


def _date(row: Row) -> str:
    return str(row["origin"]["date"])


def _place(test: str) -> tuple[float, list[int]]:
    """Where a test stands among others: decoding, steps of M rows, the host's share, decoding at depths, prompts."""
    kinds = ("tg", "t(", "host", "pp")
    kind = next((i for i, start in enumerate(kinds) if test.startswith(start)), len(kinds))
    return (2.5 if kind == 0 and " @ " in test else kind), [int(number) for number in re.findall(r"\d+", test)]


def _layers(rows: list[Row]) -> str:
    count = rows[0]["layers"]
    return "" if count is None else f", cut to {count} layers"


def _value(row: Row | None, expected: Row | None) -> str:
    """expected: the origin that the head of the column names, if it does."""
    if row is None:
        return ""
    middle, unit = row["median"], row["unit"]
    shown = {"share": f"{100 * middle:.1f} %", "s": f"{middle:.2f} s", "ms": f"{middle:.3f} ms"}
    mark = "" if row["is_repeatable"] else ", ids differ"
    if expected is not None and row["origin"]["commit"] != expected["commit"]:
        mark += f" (at {row['origin']['commit']})"
    return shown.get(unit, f"{middle:.0f} tok/s") + mark


def _by_test(rows: list[Row]) -> dict[tuple[str, str], Row]:
    """The rows of one shape by test and engine: of a peer's, the fastest."""
    found: dict[tuple[str, str], Row] = {}
    for row in rows:
        key = row["test"], row["engine"]
        found[key] = row if _is_ours(row) else _faster(row, found.get(key))
    return found


def _is_ours(row: Row) -> bool:
    return bool(row["engine"].startswith("runner"))


def _faster(row: Row, other: Row | None) -> Row:
    if other is None:
        return row
    return (min if row["unit"] in ("ms", "s") else max)(other, row, key=lambda one: one["median"])


def _ratio(ours: Row | None, theirs: Row | None) -> str:
    """How many times as fast ours is; a star where the two are of different runs."""
    if ours is None or theirs is None:
        return ""
    ratio = ours["median"] / theirs["median"]
    return f"{1 / ratio if ours['unit'] == 'ms' else ratio:.2f}" + ("" if _run(ours) == _run(theirs) else " *")


def load_time(rows: list[Row]) -> str:
    """A row a process, seconds of each stage."""
    stages = list(rows[0]["stages_s"])
    lines = [_head("model", "GB", "prompt", "kernels", *stages, "all")]
    for row in rows:
        seconds = row["stages_s"]
        cells = [f"{seconds[stage]:.{3 if stage == 'prefill' else 2}f}" for stage in stages]
        size = f"{row['size_bytes'] / 1e9:.2f}"
        lines.append(_line(row["model"], size, row["n_prompt"], row["cache"], *cells, f"{sum(seconds.values()):.2f}"))
    return "\n".join(lines)


_HEADINGS = {
    "gain": "Texts of each genre",
    "texts": "Random weights that write real texts",
    "trace": "Random weights, guessed as real texts are",
    "worst": "Drafters that are wrong, slow or treacherous",
    "prompts": "Prompts that are not part of the project",
}


def speculation(rows: list[Row]) -> str:
    """t(M) of each model, then a table a question: gains as medians and the least, acceptance, ids that differ."""
    parts = [
        f"**{row['model']}** ({row['backend']}), ms of a step: "
        + ", ".join(f"t({n}) {ms:.2f}" for n, ms in row["ms"].items())
        for row in rows
        if row["kind"] == "steps"
    ]
    for kind, heading in _HEADINGS.items():
        mine = [row for row in rows if row["kind"] == kind]
        if mine:
            lines = [
                _head("model", "what", "temperature", "plain tok/s", "gain", "least", "accepted", "AL", "ids differ")
            ]
            lines += [_line(*_speculation_cells(row)) for row in mine]
            parts.append(f"**{heading}**\n\n" + "\n".join(lines))
    return "\n\n".join(parts)


def _speculation_cells(row: Row) -> list[str]:
    what = [str(row[name]) for name in ("drafter", "genre", "category", "adversary") if row.get(name) is not None]
    rate, length, gains = row["acceptance_rate"], row["acceptance_length"], row["gains"]
    return [
        f"{row['model']} ({row['backend']})",
        ", ".join(what),
        f"{row['temperature']:g}",
        f"{row['plain_tok_s']:.0f}" if gains else "",
        f"{row['gain']:.2f}x" if gains else "",
        f"{min(gains):.2f}x" if gains else "",
        "" if rate is None else f"{100 * rate:.0f} %",
        "" if length is None else f"{length:.2f}",
        f"{row['n_different']} of {row['n_answers']}",
    ]


SECTIONS: dict[str, Callable[[list[Row]], str]] = {
    "matmul": matmul,
    "decode_layer": decode_layer,
    "models": models,
    "load_time": load_time,
    "speculation": speculation,
}


def _distinct(rows: Sequence[Row], name: str) -> list[Any]:
    return list(dict.fromkeys(row[name] for row in rows))


def _line(*cells: object) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def _head(*cells: object) -> str:
    return _line(*cells) + "\n|" + "---|" * len(cells)


# --- the page --------------------------------------------------------------------------------------------------------


def section(name: str, rows: Sequence[Row]) -> str:
    """The text of one section: where its figures come from, then its tables."""
    mine = latest(rows, name)
    if not mine:
        return NOTHING
    said = "".join(f"{line}\n" for line in _origins(mine))
    devices = by_device(mine)
    tables = [(f"On {device}:\n\n" if len(devices) > 1 else "") + SECTIONS[name](of) for device, of in devices.items()]
    return f"{said}\n" + "\n\n".join(tables) + "\n"


def by_device(rows: Sequence[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row["origin"]["device"], []).append(row)
    return found


def _origins(rows: Sequence[Row]) -> list[str]:
    """A line for each device and its versions: what its memory gave, and the commits with the dates of their runs."""
    found: dict[str, list[dict[str, Any]]] = {}
    for origin in {_run(row): row["origin"] for row in rows}.values():
        versions = f"runner {origin['runner']}, torch {origin['torch']}, Triton {origin['triton']}"
        found.setdefault(f"{origin['device']}, {versions}, Python {origin['python']}", []).append(origin)
    return [f"- {where}{_reads(runs)}. Commits: {_commits(runs)}." for where, runs in found.items()]


def _reads(runs: Sequence[dict[str, Any]]) -> str:
    streams = sorted(run["read_bytes_s"] / 1e12 for run in runs if run["read_bytes_s"] is not None)
    if not streams:
        return ""
    span = " to ".join(dict.fromkeys(f"{stream:.2f}" for stream in (streams[0], streams[-1])))
    return f"; it reads {span} TB/s, measured in the same {'runs' if len(runs) > 1 else 'run'}"


def _commits(runs: Sequence[dict[str, Any]]) -> str:
    dates: dict[str, list[str]] = {}
    for run in sorted(runs, key=lambda run: run["date"]):
        day = run["date"].partition(" ")[0]
        if day not in (days := dates.setdefault(run["commit"], [])):
            days.append(day)
    return ", ".join(f"{commit} ({', '.join(days)})" for commit, days in dates.items())


def replaced(page: str, name: str, text: str) -> str:
    """The page with that section's text. Raises ValueError where the page lacks its markers."""
    begin, end = BEGIN.format(name), END.format(name)
    before, has_begin, rest = page.partition(begin)
    _, has_end, after = rest.partition(end)
    if not has_begin or not has_end:
        raise ValueError(f"the page lacks the markers of the section {name!r}")
    return f"{before}{begin}\n\n{text}\n{end}{after}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("lines", type=existing, nargs="?", default=CHECKOUT / "docs" / "benchmarks.jsonl")
    parser.add_argument("--docs", type=existing, default=CHECKOUT / "docs", help="where BENCHMARKS.md is")
    asked = parser.parse_args()
    path = asked.docs / "BENCHMARKS.md"
    try:
        rows = read_rows(asked.lines)
        page = path.read_text(encoding="utf-8")
        for name in SECTIONS:
            text = section(name, rows)
            first = next(iter(by_device(latest(rows, name)).values()), [])
            if name == "models" and (plots := speed_plots.draw(first, asked.docs)):
                text += "\n" + "".join(f"![{plot}]({plot}.svg)\n" for plot in plots)
            page = replaced(page, name, text)
    except (ValueError, OSError) as error:
        sys.exit(str(error))
    path.write_text(page, encoding="utf-8")
    print(path)


if __name__ == "__main__":
    main()
