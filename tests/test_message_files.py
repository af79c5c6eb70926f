"""Files that go with a message: what /read names, what a text mentions, and what only reads like a file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from runner.errors import UsageError
from runner.message_files import (
    Attachment,
    Missing,
    Refused,
    file_to_read,
    mentions,
    read,
    read_mentions,
    with_attachments,
)


def test_read_takes_a_path_quotes_around_it_or_off(tmp_path: Path) -> None:
    assert file_to_read("a.py", tmp_path) == tmp_path / "a.py"
    assert file_to_read("'two words.txt'", tmp_path) == tmp_path / "two words.txt"
    assert file_to_read("off", tmp_path) is None
    assert file_to_read("./off", tmp_path) == tmp_path / "off"
    with pytest.raises(UsageError, match="needs the name") as caught:
        file_to_read("", tmp_path)
    assert "/read off" in caught.value.hint
    with pytest.raises(UsageError, match="no path"):
        file_to_read("~nobody-here/x", tmp_path)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("look at @a.py and @b/c.py.", ("a.py", "b/c.py.")),
        ('@"two words.txt" twice: @a @a', ("two words.txt", "a")),
        ("me@home.org", ()),
        ("mine @a\n\nb.py:\n```\n@app.get\n```", ("a",)),
    ],
)
def test_mentions_are_found_where_a_word_of_the_users_own_begins(text: str, found: tuple[str, ...]) -> None:
    assert mentions(text) == found


def test_pipes_and_devices_are_refused_and_never_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        refused = read(path.name, path)
        assert isinstance(refused, Refused)
        assert "pipe or a device" in refused.error.message
    for path in (tmp_path, tmp_path / ("x" * 300)):
        assert isinstance(read(path.name, path), Refused)
    assert read_mentions(("pipe", "~nobody-here/x", "x" * 300), tmp_path) == ()
    assert read_mentions(("/dev/zero",), tmp_path) == (Missing("/dev/zero"),)


def test_mentioned_files_are_read_and_words_that_are_no_file_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("print(1)\n")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    (tmp_path / "blob").write_bytes(b"\0\1")
    one, latin, blob = read_mentions(("a.py,", "you", "latin.txt", "blob"), tmp_path)
    assert isinstance(one, Attachment)
    sent = with_attachments("what?", [one, one])
    assert sent == "what?\n\na.py:\n```\nprint(1)\n```"
    assert with_attachments(sent + " more", [one]) == sent + " more"  # edited
    assert isinstance(latin, Attachment)
    assert "not UTF-8" in latin.notice
    assert isinstance(blob, Refused)
    assert "not text" in blob.error.message


@pytest.mark.parametrize(
    "name",
    ["nofile.txt", "nofile.txt,", "src/nofile", "./x", "../x", "~/no/such-file", "my notes.md", "/x", "src/A.MD"],
)
def test_a_name_that_reads_like_a_file_and_is_none_is_missed(tmp_path: Path, name: str) -> None:
    (tmp_path / "src").mkdir()
    assert read_mentions((name,), tmp_path) == (Missing(name.rstrip(",")),)


@pytest.mark.parametrize(
    "name",
    [
        *(
            "you",
            "you,",
            "org/team",
            "me@mas.to",
            "app.get('/x')",
            "triton.jit",
            "click.group",
            "example.com",
            "1.5",
            "...",
        ),
        *("", "x\0/y", "src", "src/", "/", "/components/Button", "a@b.md"),
    ],
)
def test_words_with_an_at_sign_are_not_missed(tmp_path: Path, name: str) -> None:
    (tmp_path / "src").mkdir()
    assert read_mentions((name,), tmp_path) == ()
