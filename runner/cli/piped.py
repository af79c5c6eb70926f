"""Text that is piped into the program and joins a prompt. It knows nothing of prompts."""

from __future__ import annotations

import sys

from runner.attachments import MAX_BYTES, check_size, decode
from runner.cli.render import can_ask


def read_stdin() -> tuple[str, str]:
    """What is piped into the program, up to its end, and a notice or "". Nothing from a terminal."""
    if sys.stdin is None or can_ask():
        return "", ""
    raw = sys.stdin.buffer.read(MAX_BYTES + 1)
    check_size(raw, "What was piped in")
    return decode(raw, "What was piped in")
