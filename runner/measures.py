"""Numbers and text as people read them: sizes, counts, durations, and how many columns a text takes.

Pure functions. GB is 10^9 bytes and GiB 2^30, and a line never mixes them. It knows nothing of streams or colours.
"""

from __future__ import annotations

from collections.abc import Sequence

_LEAST_ROOM = 24  # columns for text beside a label


def text_width(text: str) -> int:
    """Terminal columns that one line of safe text takes."""
    if text.isascii():
        return len(text)
    from wcwidth import wcswidth

    return max(0, wcswidth(text))


def clip(text: str, width: int) -> str:
    """One line of safe text cut to `width` columns, with "…" where something was cut."""
    if text_width(text) <= width:
        return text
    while text and text_width(text) > width - 1:
        text = text[:-1]
    return text + "…" if width > 0 else ""


def wrap(text: str, width: int) -> str:
    """Lines of safe text broken at spaces, so that each takes at most `width` columns if its words allow it."""
    lines = []
    for line in text.split("\n"):
        shown, *words = line.split(" ")
        for word in words:
            longer = f"{shown} {word}"
            if shown.strip() and text_width(longer) > width:
                lines.append(shown.rstrip(" "))
                longer = word
            shown = longer
        lines.append(shown)
    return "\n".join(lines)


def hung(label: str, text: str, width: int | None, *, narrow: int) -> str:
    """A label, then safe text broken at spaces, its lines under each other; None: one line.

    narrow: how far the text is indented on lines of its own where there is too little room beside the label.
    """
    if width is None:
        return label + text
    indent = text_width(label)
    if width - indent >= _LEAST_ROOM:
        return label + wrap(text, width - indent).replace("\n", "\n" + " " * indent)
    lines = [label.rstrip(), *(" " * narrow + line for line in wrap(text, width - narrow).split("\n"))]
    return "\n".join(lines if lines[0] else lines[1:])


def _scaled(value: float, base: float, units: Sequence[str]) -> str:
    index = 0
    while value >= base and index < len(units) - 1:
        value /= base
        index += 1
    return f"{value:.0f} {units[index]}" if index == 0 or value >= 100 else f"{value:.1f} {units[index]}"


def decimal_size(size_bytes: float) -> str:
    """File and disk sizes: kB, MB, GB in powers of 1000."""
    return _scaled(size_bytes, 1000, ("B", "kB", "MB", "GB", "TB"))


def binary_size(size_bytes: float) -> str:
    """Memory sizes: KiB, MiB, GiB in powers of 1024."""
    return _scaled(size_bytes, 1024, ("B", "KiB", "MiB", "GiB", "TiB"))


def short_count(number: int) -> str:
    """Tokens and parameters: 950, 1.2k, 18.4M, 7.6B."""
    value, unit = float(number), ""
    for unit in ("", "k", "M", "B", "T"):
        if value < 999.5 or unit == "T":
            break
        value /= 1000
    if unit == "":
        return str(number)
    return f"{value:.0f}{unit}" if value >= 99.95 else f"{value:.1f}".removesuffix(".0") + unit


def duration(seconds: float) -> str:
    """84 ms, 3.1 s, 2 min 05 s, 1 h 02 min."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def time_left(seconds: float) -> str:
    """An estimate of what is left: as `duration`, without tenths below a minute."""
    return f"{max(1, round(seconds))} s" if seconds < 59.5 else duration(seconds)
