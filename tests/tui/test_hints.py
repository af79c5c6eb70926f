"""Remedies that name flags of the command line, in the words of the chat."""

from __future__ import annotations

import pytest

from runner.tui.hints import in_chat


@pytest.mark.parametrize(
    ("hint", "said"),
    [
        ("Load it with a larger context (-c).", "Load it with a larger context (/set ctx_size N)."),
        ("A context of 512 tokens would fit: -c 512.", "A context of 512 tokens would fit: /set ctx_size 512."),
        ("It would fit on the CPU: -ngl 0.", "It would fit on the CPU: /set n_gpu_layers 0."),
        ("Use --kv-type f16, or --backend llamacpp.", "Use /set kv_type f16, or /set backend llamacpp."),
        ("It would fit without one: --spec suffix.", "It would fit without one: /set speculation suffix."),
        ("`runner show -c 512` says; --force tries.", "`runner show -c 512` says; --force tries."),
        ("A well-c known word, and a - dash.", "A well-c known word, and a - dash."),
        ("", ""),
    ],
)  # fmt: skip
def test_a_flag_that_set_knows_is_said_as_the_command(hint: str, said: str) -> None:
    assert in_chat(hint) == said
