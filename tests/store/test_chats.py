"""Chats in the database: writing, finding, and deleting them for good."""

from __future__ import annotations

import dataclasses
import errno
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runner.errors import StoreError, StoreUnwritable, UsageError
from runner.store import Store
from runner.transcript import LAST_SECOND, Turn

HOSTILE = [
    "",
    "\x1b]52;c;ZXZpbA==\x07 \x9b31m",
    "a[/]b [@click=app.quit]x[/]",
    "'; DROP TABLE turns; --",
    'nul \0 in the middle, "quotes", back\\slash',
    "日本語 العربية 👩‍👩‍👧‍👦 e\u0301 \u202eevil",
    "x" * 200_000,
]


class Clock:
    """Seconds that pass by one a reading."""

    def __init__(self) -> None:
        self.seconds = 1_700_000_000.0

    def __call__(self) -> float:
        self.seconds += 1
        return self.seconds


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path / "data" / "chats.sqlite3", now=Clock())
    yield made
    made.close()


def user(text: str) -> Turn:
    return Turn(role="user", content=text)


def assistant(text: str) -> Turn:
    return Turn(role="assistant", content=text)


def files_with(directory: Path, text: str) -> list[str]:
    needle = text.encode()
    return [path.name for path in directory.rglob("*") if path.is_file() and needle in path.read_bytes()]


def test_nothing_is_made_before_the_first_write(store: Store) -> None:
    assert store.sessions() == []
    assert store.latest() is None
    assert store.search("x") == []
    assert store.turns("abc") == []
    store.check()
    assert store.delete([session.id for session in store.sessions()]).n_sessions == 0
    assert store.update_session("abc", lambda session: session) is None
    with pytest.raises(UsageError, match="no chat"):
        store.get("abc")
    assert not store.path.parent.exists()


def test_a_place_where_nothing_can_be_made_is_told_by_the_first_write_with_its_reason_and_a_remedy(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, remedy in ((errno.EROFS, "RUNNER_HOME"), (errno.EACCES, "RUNNER_HOME"), (errno.ENOSPC, "Make room")):

        def refuse(*_: object, number: int = number) -> int:
            raise OSError(number, os.strerror(number))  # root may write everywhere

        monkeypatch.setattr(os, "open", refuse)
        store.check()
        with pytest.raises(StoreUnwritable, match=os.strerror(number)) as caught:
            store.create_session(model="demo")
        assert remedy in caught.value.hint


def test_a_store_that_cannot_be_used_says_how_its_user_does_without(tmp_path: Path) -> None:
    path = tmp_path / "chats.sqlite3"
    path.write_bytes(b"garbage " * 1000)
    for use in (Store.check, Store.sessions, Store.latest):
        with pytest.raises(StoreError) as caught:
            use(Store(path, without="Go without."))
        assert caught.value.hint.endswith("starts a new one. Go without.")
        with pytest.raises(StoreError) as caught:
            use(Store(path))
        assert caught.value.hint.endswith("starts a new one.")


def test_a_turn_comes_back_as_it_was_written(store: Store) -> None:
    turn = Turn(
        role="assistant",
        content="answer",
        reasoning="thought",
        state="cancelled",
        model="demo",
        seed=2**64 - 1,
        timings={"ttft_s": 0.25, "decode_s": 1.5, "completion_tokens": 3},
        created_at=1_700_000_000.125,
    )
    session = store.create_session(
        model="demo", backend="fake", title="t", system="be brief", settings={"params": {"stop": ["a"]}}
    )
    assert store.write_turns(session.id, 0, [user("q"), turn]) == 1
    store.close()
    assert store.turns(session.id)[1] == turn
    assert store.get(session.id) == dataclasses.replace(session, revision=1, updated_at=session.updated_at + 1)


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_kept_raw_and_harms_nothing(store: Store, text: str) -> None:
    session = store.create_session(model=text, title=text, system=text, settings={text: text}, turns=[user(text)])
    store.close()
    kept = store.get(session.id)
    assert (kept.model, kept.title, kept.system, kept.settings) == (text, text, text, {text: text})
    assert store.turns(session.id)[0].content == text
    assert store.search(text) == [] or store.search(text)[0].session.id == session.id
    assert store.sessions()[0].n_turns == 1


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(st.characters(exclude_categories=()), max_size=40))
def test_any_text_is_kept_but_for_halves_of_surrogate_pairs(store: Store, text: str) -> None:
    session = store.create_session(model="m", turns=[user(text)])
    kept = store.turns(session.id)[0].content
    assert len(kept.encode("utf-8")) >= len(kept)
    if not any("\ud800" <= character <= "\udfff" for character in text):
        assert kept == text


def test_half_a_surrogate_pair_becomes_a_replacement_character(store: Store) -> None:
    session = store.create_session(model="m", turns=[user("a\udcffb")])
    assert store.turns(session.id)[0].content == "a\ufffdb"


def test_write_turns_appends_corrects_and_removes(store: Store) -> None:
    session = store.create_session(model="m", turns=[user("q")])
    store.write_turns(session.id, 1, [Turn(role="assistant", content="an", state="partial")], durable=False)
    store.write_turns(session.id, 1, [assistant("answer"), user("q2")])
    assert [turn.content for turn in store.turns(session.id)] == ["q", "answer", "q2"]
    store.write_turns(session.id, 1, [])
    assert [turn.content for turn in store.turns(session.id)] == ["q"]


def test_a_write_at_an_old_revision_or_to_a_missing_chat_does_nothing(store: Store) -> None:
    session = store.create_session(model="m", turns=[user("q")])
    assert store.write_turns(session.id, 1, [assistant("mine")], revision=0) == 1
    assert store.write_turns(session.id, 1, [assistant("theirs")], revision=0) is None
    assert store.write_turns("absent00", 0, [user("q")]) is None
    assert [turn.content for turn in store.turns(session.id)] == ["q", "mine"]


def test_lists_begin_with_the_chat_that_was_used_last(store: Store) -> None:
    first, second = (store.create_session(model="m", title=title).id for title in ("first", "second"))
    assert [summary.id for summary in store.sessions()] == [second, first]
    store.write_turns(first, 0, [user("again")])
    assert [summary.id for summary in store.sessions(limit=1)] == [first]
    latest = store.latest()
    assert latest is not None
    assert latest.id == first


def test_a_changed_title_keeps_the_rest_of_the_chat_and_its_place(store: Store) -> None:
    first = store.create_session(model="m", title="old", system="s")
    second = store.create_session(model="m")
    changed = store.update_session(first.id, lambda session: dataclasses.replace(session, title="new"))
    assert changed == store.get(first.id) == dataclasses.replace(first, title="new")
    assert store.sessions()[0].id == second.id


def test_a_unique_beginning_of_an_id_is_enough(store: Store) -> None:
    session = store.create_session(model="m")
    assert store.get(session.id[:4].upper()) == session
    assert store.get(f" {session.id} ") == session


def test_an_ambiguous_beginning_names_the_chats(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    letters = iter("aaaaaaaa" + "aaaaaaaa" + "aaaaaaab")  # the second id is taken, so it is drawn again
    monkeypatch.setattr("runner.store.chats.secrets.choice", lambda _: next(letters))
    ids = [store.create_session(model="m", title=title).id for title in ("one", "two")]
    assert ids == ["aaaaaaaa", "aaaaaaab"]
    with pytest.raises(UsageError, match="2 chats") as caught:
        store.get("aaaa")
    assert "one" in caught.value.hint
    assert "aaaaaaab" in caught.value.hint
    assert store.get("aaaaaaaa").title == "one"


@pytest.mark.parametrize("wanted", ["", "%", "_______", "' OR 1=1", "nothing like it", "\0"])
def test_an_unknown_id_is_refused_with_what_there_is(store: Store, wanted: str) -> None:
    store.create_session(model="m", title="Quantum physics")
    with pytest.raises(UsageError, match="no chat") as caught:
        store.get(wanted)
    assert "sessions list" in caught.value.hint


def test_a_title_given_for_an_id_leads_to_the_id(store: Store) -> None:
    session = store.create_session(model="m", title="Quantum physics")
    with pytest.raises(UsageError) as caught:
        store.get("quantum phisics")
    assert session.id in caught.value.hint


@pytest.mark.parametrize(
    ("content", "query"),
    [
        ("The Straße of Zürich", "STRASSE"),
        ("caf\u00e9 au lait", "CAFE\u0301"),
        ("我喜欢机器学习", "机器"),
        ("Ελλάδα ΟΔΟΣ", "οδος"),
        ("two words far\napart here", "here two"),
        ("100% of_it", "0% f_i"),
        ("ｆｕｌｌ width", "full"),
    ],
)
def test_search_finds_text_however_it_is_written(store: Store, content: str, query: str) -> None:
    store.create_session(model="m", turns=[user("something else")])
    session = store.create_session(model="m", turns=[user("x"), assistant(content)])
    matches = store.search(query)
    assert [(match.session.id, match.position, match.role) for match in matches] == [(session.id, 1, "assistant")]


def test_search_needs_every_word_looks_at_titles_and_stops_at_the_limit(store: Store) -> None:
    store.create_session(model="m", title="alpha beta", turns=[user("alpha beta"), assistant("alpha")])
    assert [match.position for match in store.search("alpha beta")] == [None, 0]
    assert len(store.search("alpha", limit=2)) == 2
    assert store.search("alpha gamma") == []
    assert store.search("  ") == []


def test_excerpts_show_the_place_on_one_safe_line(store: Store) -> None:
    text = "é\u0301" * 300 + " before \x1b[31m\nthe NEEDLE\r\nafter " + "y" * 300
    store.create_session(model="m", turns=[user(text)])
    (match,) = store.search("needle")
    assert "the NEEDLE after" in match.excerpt
    assert match.excerpt.startswith("…")
    assert match.excerpt.endswith("…")
    assert len(match.excerpt) <= 82
    assert "\x1b" not in match.excerpt


def test_a_deleted_chat_leaves_no_trace_in_any_file(store: Store) -> None:
    long = " ".join(f"SECRET-{number}-word" for number in range(3000))  # many pages
    secret = store.create_session(model="m", title="SECRET title", system="SECRET system", settings={"k": "SECRET s"})
    keep = store.create_session(model="m", title="kept", turns=[user("kept text")])
    for position in range(20):
        for length in (10, 2000, len(long)):  # as an answer grows while it streams
            store.write_turns(secret.id, position, [assistant(long[:length])], durable=False)
    assert files_with(store.path.parent, "SECRET")
    deleted = store.delete([secret.id, "absent00"])
    assert (deleted.n_sessions, deleted.n_turns) == (1, 20)
    assert deleted.freed_bytes > 100_000
    assert files_with(store.path.parent, "SECRET") == []
    assert files_with(store.path.parent, "kept text") == [store.path.name]
    assert [turn.content for turn in store.turns(keep.id)] == ["kept text"]


def test_a_deletion_wipes_the_files_while_another_process_has_them_open(store: Store) -> None:
    session = store.create_session(model="m", turns=[user("SECRET text")])
    other = Store(store.path)
    other.write_turns(session.id, 1, [assistant("SECRET answer")])
    assert store.delete([session.id for session in store.sessions()]).n_turns == 2
    assert files_with(store.path.parent, "SECRET") == []
    assert other.sessions() == []
    other.close()


def test_turns_that_are_taken_back_leave_no_trace_either(store: Store) -> None:
    session = store.create_session(model="m", turns=[user("hello"), assistant("SECRET " * 500)])
    store.write_turns(session.id, 1, [assistant("another")])
    assert files_with(store.path.parent, "SECRET") == []


def test_what_was_written_survives_a_kill_right_after_it(tmp_path: Path) -> None:
    path = tmp_path / "chats.sqlite3"
    code = (
        "import os, signal, sys; from pathlib import Path\n"
        "from runner.store import Store; from runner.transcript import Turn\n"
        "store = Store(Path(sys.argv[1]))\n"
        "session = store.create_session(model='m', turns=[Turn(role='user', content='q')])\n"
        "store.write_turns(session.id, 1, [Turn(role='assistant', content='half', state='partial')], durable=False)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert subprocess.run([sys.executable, "-c", code, str(path)], check=False).returncode == -9
    store = Store(path)
    (summary,) = store.sessions()
    assert [(turn.content, turn.state) for turn in store.turns(summary.id)] == [("q", "complete"), ("half", "partial")]
    store.close()


def test_two_processes_write_at_once_and_no_turn_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "chats.sqlite3"
    code = (
        "import sys; from pathlib import Path\n"
        "from runner.store import Store; from runner.transcript import Turn\n"
        "store = Store(Path(sys.argv[1])); sys.stdin.readline()\n"
        "session = store.create_session(model='m', title=sys.argv[2])\n"
        "for i in range(40):\n"
        "    store.write_turns(session.id, i, [Turn(role='user', content=str(i))], durable=i % 2 == 0)\n"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", code, str(path), name], stdin=subprocess.PIPE, stderr=subprocess.PIPE)
        for name in ("a", "b", "c")
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
    outputs = [process.communicate(timeout=60) for process in processes]
    assert [error for _, error in outputs] == [b""] * 3
    store = Store(path)
    for summary in store.sessions():
        assert [turn.content for turn in store.turns(summary.id)] == [str(i) for i in range(40)]
    assert sorted(summary.title for summary in store.sessions()) == ["a", "b", "c"]
    store.close()


def test_threads_share_one_store(store: Store) -> None:
    def work(name: str) -> None:
        session = store.create_session(model="m", title=name)
        for position in range(20):
            store.write_turns(session.id, position, [user(name)], durable=False)
            store.sessions()

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted((summary.title, summary.n_turns) for summary in store.sessions()) == [(name, 20) for name in "abcd"]


NO_TIMES = (b"\x00\xff", "yesterday", -1, 9e999)
NO_TEXTS = (b"\x00\xff",)
NO_OBJECTS = (b"{}", "not json", "[1]", "5", "[" * 100_000)
DAMAGE = [
    *(("sessions", name, NO_TEXTS) for name in ("title", "model", "backend", "system")),
    ("sessions", "settings", NO_OBJECTS),
    *(("sessions", name, NO_TIMES) for name in ("created_at", "updated_at")),
    ("sessions", "revision", (b"1", "one", 1.5)),
    *(("turns", name, NO_TEXTS) for name in ("content", "reasoning", "model")),
    *(("turns", name, (b"user", "nobody")) for name in ("role", "state")),
    ("turns", "seed", (b"5", "five", "-5", "1.5", str(2**64), "9" * 5000)),
    ("turns", "timings", NO_OBJECTS),
    ("turns", "created_at", NO_TIMES),
]


@pytest.mark.parametrize(("table", "column", "values"), DAMAGE, ids=[f"{row[0]}.{row[1]}" for row in DAMAGE])
def test_a_row_that_is_not_what_was_written_damages_its_chat_alone(
    store: Store, table: str, column: str, values: tuple[object, ...]
) -> None:
    well = store.create_session(model="m", title="well", turns=[user("good morning")])
    for value in values:
        ill = store.create_session(model="m", title="ill", system="s", turns=[user("good evening")])
        with store._write() as database:
            database.execute("PRAGMA ignore_check_constraints = ON")
            key = "id" if table == "sessions" else "session_id"
            database.execute(f"UPDATE {table} SET {column} = ? WHERE {key} = ?", (value, ill.id))
        with pytest.raises(StoreError, match=f"Chat {ill.id} is damaged: its {column}") as caught:
            store.turns(store.get(ill.id).id)
        assert f"runner sessions delete {ill.id}" in caught.value.hint
        listed = {summary.id: summary for summary in store.sessions()}
        assert listed.keys() == {well.id, ill.id}
        assert (listed[well.id].created_at, listed[well.id].updated_at) == (well.created_at, well.updated_at)
        assert all(0 <= time <= LAST_SECOND for time in (listed[ill.id].created_at, listed[ill.id].updated_at))
        assert store.get(well.id) == well
        assert [turn.content for turn in store.turns(well.id)] == ["good morning"]
        assert well.id in [match.session.id for match in store.search("good")]
        assert store.delete([store.find(ill.id[:5]).id]).n_sessions == 1


def test_a_chat_without_an_id_of_ours_hides_no_other(store: Store) -> None:
    kept = [store.create_session(model="m", title=title) for title in ("a", "b", "c")]
    with store._write() as database:
        database.execute("UPDATE sessions SET id = x'00ff' WHERE id = ?", (kept[1].id,))
        database.execute("UPDATE sessions SET id = NULL WHERE id = ?", (kept[2].id,))
    assert [summary.id for summary in store.sessions()] == [kept[0].id]
    assert store.latest() == store.get(kept[0].id) == kept[0]


def test_turns_whose_wiping_fails_are_written_all_the_same(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    session = store.create_session(
        model="m", turns=[Turn(role="user", content="q"), Turn(role="assistant", content="old")]
    )

    def full(_: object) -> bool:
        raise StoreUnwritable("full")

    monkeypatch.setattr("runner.store.chats.truncate_log", full)
    revision = store.write_turns(session.id, 1, [Turn(role="assistant", content="new")], revision=session.revision)
    assert revision == store.get(session.id).revision
    assert [one.content for one in store.turns(session.id)] == ["q", "new"]
