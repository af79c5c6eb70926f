"""Speculation in the live rail: what drafts and how it pays, or why nothing does; opened, how the drafts fared.

It shows LiveNumbers and a SpeculationRecord's own figures; what drafts is not its business.
"""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content

from runner.measures import binary_size, short_count
from runner.safe_text import safe_line
from runner.speculative.record import SpeculationRecord
from runner.status_text import gain
from runner.tui.content import line
from runner.tui.live_numbers import LiveNumbers
from runner.tui.widgets.fold import Fold
from runner.tui.widgets.gauges import bars, both_ends, flow
from runner.tui.widgets.live_section import title

_MUTED = "$text-muted"
_STATES = {"on": "$success", "learning": "$warning", "off": _MUTED}
_CHART_ROWS = 2


def heading_words(record: SpeculationRecord | None, chosen: str) -> Content:
    """ "on · suffix". chosen: what was decided at load, "suffix: why" or "off: why"."""
    if record is not None:
        return Content.assemble((record.state, _STATES[record.state]), " · ", line(record.drafter))
    return line(chosen.partition(":")[0] or "off", _MUTED)


def why(record: SpeculationRecord | None, chosen: str) -> str:
    """A sentence on what drafts now, or on why nothing does; "" when there is nothing to add."""
    return chosen.partition(":")[2].strip() if record is None else record.reason


def figures(record: SpeculationRecord) -> list[Content]:
    """Acceptance, gain, acceptance length and draft length; nothing before the first round."""
    parts: list[Content] = []
    if not record.rounds:
        return parts
    if record.acceptance_rate is not None:
        parts.append(Content(f"accept {100 * record.acceptance_rate:.0f} %"))
    if record.gain is not None:
        parts.append(Content.styled(gain(record.gain), "bold $accent" if record.gain > 1 else ""))
    if record.acceptance_length is not None:
        parts += [Content(f"AL {record.acceptance_length:.2f}"), Content(f"k {record.draft_length}")]
    return parts


def time_split(record: SpeculationRecord, width: int) -> list[Content]:
    """What the rounds' time went into; nothing before the first one."""
    spent = {"draft": record.draft_s, "verify": record.verify_s, "sample": record.sample_s}
    total = sum(spent.values())
    parts = [Content(f"{name} {100 * seconds / total:.0f} %") for name, seconds in spent.items()] if total else []
    return flow(parts, width)


def details(record: SpeculationRecord, width: int) -> list[Content]:
    """How drafts fared: by position, by how many were accepted, in all; where the time went; what it holds."""
    if not record.rounds:
        return []
    by_position = record.conditional_acceptance
    counts = (
        f"{short_count(record.n_accepted)} of {short_count(record.n_drafted)} in {short_count(record.rounds)} rounds"
    )
    rows = [
        Content.styled("accepted at position", _MUTED),
        *bars(by_position, width, _CHART_ROWS, first=1, top=1.0),
        Content.styled("rounds by tokens accepted", _MUTED),
        *bars(record.lengths, width, _CHART_ROWS, first=0),
        Content(counts),
    ]
    if record.drafter_bytes:
        rows.append(Content(f"the drafter holds {binary_size(record.drafter_bytes)}"))
    if record.file_tokens:
        tokens = "token" if record.file_tokens == 1 else "tokens"
        rows.append(Content(f"{short_count(record.file_tokens)} {tokens} of files to quote"))
    return rows


class SpeculationSection(Fold):
    DEFAULT_CSS = """
    SpeculationSection { margin-top: 1; }
    """

    def __init__(self, numbers: LiveNumbers) -> None:
        super().__init__(id="speculation")
        self._numbers = numbers

    def rows(self, width: int) -> Sequence[Content]:
        record = self._numbers.speculation
        chosen = "" if self._numbers.loaded is None else self._numbers.loaded.speculation
        heading = Content.assemble(title("SPECULATION"), f" {self.arrow}")
        words = heading_words(record, chosen)
        if (
            (record or chosen)
            and self._numbers.wanted == "auto"
            and heading.cell_length + words.cell_length + 7 <= width
        ):
            words = Content.assemble("auto: ", words)
        rows = [both_ends(heading, words, width)]
        is_drafting = record is not None and record.state == "on"
        if record is not None:
            rows += flow(figures(record), width)
            split = time_split(record, width)
            rows += split if self.is_open or len(split) == 1 else []
        if (reason := why(record, chosen)) and (self.is_open or not is_drafting):
            rows += [row.stylize(_MUTED) for row in Content(safe_line(reason)).wrap(width)]
        if self.is_open and record is not None:
            rows += details(record, width)
        return rows
