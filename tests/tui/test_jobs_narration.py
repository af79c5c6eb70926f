"""What the command line says on stderr, read back."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from runner.tui.jobs.narration import Step, Words, read_step


def test_a_line_of_progress_is_read() -> None:
    line = json.dumps(
        {
            "schema": "runner.progress/1",
            "stage": "download",
            "label": "m",
            "done": 5,
            "total": 10,
            "unit": "bytes",
            "rate_bytes_s": 2,
            "left_s": None,
            "trouble": "The hub answered 500.",
            "files": [{"name": "a.gguf", "done": 5, "total": 10, "state": "downloading"}],
        }
    )
    assert read_step(line) == Step(
        stage="download",
        done=5,
        total=10,
        unit="bytes",
        rate_bytes_s=2.0,
        eta_s=None,
        files=("a.gguf",),
        trouble="The hub answered 500.",
    )


def test_what_is_no_progress_is_none() -> None:
    for line in ("Fetching m: 3 files", "", "{", '{"schema": "other/1"}', "[1]", '{"a": ' * 5000):
        assert read_step(line) is None


@given(
    st.dictionaries(
        st.sampled_from(["stage", "done", "total", "unit", "rate_bytes_s", "left_s", "trouble", "files"]),
        st.one_of(
            st.none(),
            st.booleans(),
            st.integers(),
            st.floats(allow_nan=False),
            st.text(),
            st.lists(st.integers()),
        ),
    )
)
def test_values_of_any_type_raise_nothing(values: dict[str, object]) -> None:
    step = read_step(json.dumps({"schema": "runner.progress/1", **values}))
    assert step is not None
    assert step.done >= 0
    assert step.rate_bytes_s is None or step.rate_bytes_s >= 0


def test_an_error_is_told_with_its_hint_over_several_lines() -> None:
    words = Words()
    for line in (
        "Fetching m.",
        "warning: it is old.",
        "hint: Take the new one.",
        "error: It broke",
        "in the middle.",
        "hint: Mend it",
        "and try again.",
    ):
        words.take(line)
    assert words.error == ("It broke in the middle.", "Mend it and try again.")
    assert words.warning == ("it is old.", "Take the new one.")
    assert words.last == "and try again."


def test_narration_after_a_warning_is_no_part_of_it() -> None:
    words = Words()
    for line in ("warning: it is old.", "It is complete."):
        words.take(line)
    assert words.warning == ("it is old.", "")
    assert words.error == ("", "")
