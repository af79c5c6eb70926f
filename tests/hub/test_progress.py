"""How far a download is, as front ends are told: sums over files, and what holds one up, in words and once."""

from __future__ import annotations

import pytest

from runner.hub import FetchState, FileState, RemoteFile, Troubles
from runner.hub.progress import SHORT_WAIT_S, Marks, Trouble


def state(*troubles: Trouble | None) -> FetchState:
    files = tuple(FileState(f"{n}.gguf", 0, 9, "downloading", trouble) for n, trouble in enumerate(troubles))
    return FetchState(files=files, done_bytes=0, total_bytes=9 * len(files), fetched_bytes=0)


@pytest.mark.parametrize(
    ("n_failures", "wait_s", "text"),
    [
        (1, SHORT_WAIT_S, ""),
        (1, SHORT_WAIT_S + 1, "It fails. Trying again in 6 s."),
        (2, 0.2, "It fails. Trying again in 1 s."),
        (2, 2.6, "It fails. Trying again in 3 s."),
    ],
)
def test_one_short_trouble_is_no_news(n_failures: int, wait_s: float, text: str) -> None:
    assert Trouble("It fails.", n_failures, wait_s).text == text


def test_the_trouble_of_a_download_is_that_of_the_first_file_that_has_news() -> None:
    silent, first, second = Trouble("a", 1, 0), Trouble("b", 2, 9), Trouble("c", 2, 9)
    assert state(None, silent, first, second).trouble == "b Trying again in 9 s."
    assert state(None, silent).trouble == ""


def test_a_trouble_is_told_once_for_all_files_that_fail_alike_and_again_when_it_stays() -> None:
    troubles = Troubles()
    assert list(troubles.news(state(Trouble("a", 1, 0), None))) == []
    alike = state(Trouble("a", 2, 1), Trouble("a", 2, 3), Trouble("b", 2, 1))
    assert list(troubles.news(alike)) == ["a Trying again in 1 s.", "b Trying again in 1 s."]
    assert list(troubles.news(alike)) == []
    assert list(troubles.news(state(Trouble("a", 3, 1)))) == ["a Trying again in 1 s."]


def test_what_is_done_of_all_files_is_summed_and_never_more_than_there_is() -> None:
    marks = Marks([RemoteFile("a", 10), RemoteFile("b", 20)])
    assert marks.state() == FetchState((FileState("a", 0, 10, "waiting"), FileState("b", 0, 20, "waiting")), 0, 30, 0)
    marks["a"].done_bytes, marks["a"].fetched_bytes, marks["a"].state = 12, 15, "downloading"
    marks["b"].done_bytes, marks["b"].fetched_bytes, marks["b"].trouble = 5, 3, Trouble("a", 1, 0)
    found = marks.state()
    assert [(file.name, file.done_bytes, file.size_bytes) for file in found.files] == [("a", 10, 10), ("b", 5, 20)]
    assert (found.done_bytes, found.total_bytes, found.fetched_bytes) == (15, 30, 18)
    marks["b"].finish()
    assert marks.state().files[1] == FileState("b", 20, 20, "done")
