"""A hub, a CDN, proxies and wires that misbehave: in the end the right bytes are there, or an error says why not."""

from __future__ import annotations

import asyncio
import json
import os
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Literal

import pytest
from fetching import FILES, IMPATIENT, QUICK, REPO, blob_names, fetch, noise
from hub_server import Fault, Hub, etag_of
from tls_front import tls_front

from runner import hub
from runner.errors import BusyError, RunnerError, UsageError, VerificationFailed
from runner.hub import remote
from runner.hub.http import MAX_REDIRECTS, Tuning
from runner.hub.progress import Trouble, Troubles
from runner.hub_cache import repo_directory
from runner.types import CancelToken

SIZE = 200_000
DATA = noise(SIZE)
ETAG = etag_of("big.gguf", DATA)


@pytest.fixture
def big(server: Hub) -> Hub:
    """The hub with one larger file."""
    server.repos[REPO].files["big.gguf"] = DATA
    return server


def fetch_big(tuning: Tuning = QUICK) -> list[hub.FetchState]:
    directory, seen = fetch(["big.gguf"], tuning=tuning)
    assert (directory / "big.gguf").read_bytes() == DATA
    assert not [name for name in blob_names() if "runner-part" in name]
    return seen


def part_file() -> Path:
    return repo_directory(REPO) / "blobs" / f"{ETAG}.runner-part"


# --- what breaks off goes on ---


@pytest.mark.parametrize("cdn", [False, True], ids=["hub", "cdn"])
def test_dropped_connections_go_on_where_they_were(big: Hub, cdn: bool) -> None:
    big.cdn = cdn
    big.faults = [Fault("drop", at=50_000), Fault("drop", at=1), Fault("drop", at=100_000)]
    fetch_big()
    assert big.ranges() == ["", "bytes=50000-", "bytes=50001-", "bytes=150001-"]
    assert big.sent_bytes() == SIZE


def test_any_number_of_drops_is_survived_while_bytes_arrive(big: Hub) -> None:
    big.faults = [Fault("drop", at=12_000, times=16)]
    fetch_big()
    assert big.sent_bytes() == SIZE


def test_a_server_that_stops_sending_is_asked_again(big: Hub) -> None:
    big.faults = [Fault("stall", at=70_000)]
    fetch_big(IMPATIENT)
    assert big.ranges() == ["", "bytes=70000-"]


def test_bytes_that_were_changed_under_tls_are_asked_for_again(
    big: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tls_front(big.url, tmp_path, spoiled_at=100_000) as (url, certificate):
        monkeypatch.setenv("HF_ENDPOINT", url)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        fetch_big()
    assert len(big.ranges()) == 2
    assert big.ranges()[1] != ""


def test_drops_that_bring_nothing_end_in_an_error_and_keep_the_part(big: Hub) -> None:
    big.faults = [Fault("drop", at=60_000), Fault("drop", at=0, times=None)]
    with pytest.raises(BusyError, match="connection was lost") as caught:
        fetch(["big.gguf"])
    assert "goes on from there" in caught.value.hint
    assert part_file().read_bytes() == DATA[:60_000]
    about = json.loads(part_file().with_name(part_file().name + ".json").read_text())
    assert about == {"etag": ETAG, "size": SIZE, "sha256": ETAG, "commit": big.repos[REPO].commit, "name": "big.gguf"}
    big.faults = []
    assert fetch_big()[-1].fetched_bytes == SIZE - 60_000


def test_a_part_that_is_whole_already_needs_no_body(big: Hub) -> None:
    big.faults = [Fault("drop", at=60_000), Fault("drop", at=0, times=None)]
    with pytest.raises(BusyError):
        fetch(["big.gguf"])
    part_file().write_bytes(DATA)
    big.bodies.clear()
    fetch_big()
    assert big.bodies == []


@pytest.mark.parametrize("status", [500, 502, 503, 504, 408])
def test_trouble_of_the_server_is_waited_out(big: Hub, status: int) -> None:
    big.faults = [Fault("status", status=status, times=2), Fault("status", status=status, method="HEAD")]
    fetch_big()


def test_trouble_that_stays_is_said_so(big: Hub) -> None:
    big.faults = [Fault("status", status=503, times=None)]
    with pytest.raises(BusyError, match="503"):
        fetch(["big.gguf"])


def test_a_rate_limit_is_waited_for_as_long_as_it_says(big: Hub) -> None:
    big.faults = [Fault("status", status=429, headers={"Retry-After": "1"})]
    began = time.monotonic()
    fetch_big()
    assert time.monotonic() - began >= 1.0


@pytest.mark.parametrize("cdn", [False, True], ids=["hub", "cdn"])
def test_a_rate_limit_that_lasts_too_long_is_an_error_with_the_time(big: Hub, cdn: bool) -> None:
    big.cdn = cdn
    big.faults = [Fault("status", status=429, headers={"Retry-After": "4000"})]
    with pytest.raises(BusyError, match="rate limit") as caught:
        fetch(["big.gguf"])
    assert "in 4000 s" in caught.value.hint


def test_an_address_that_expires_on_the_way_is_asked_for_again(big: Hub) -> None:
    big.cdn = True
    big.faults = [Fault("drop", at=80_000), Fault("status", status=403)]
    fetch_big()
    assert big.sent_bytes() == SIZE
    assert len([path for method, path in big.requests if method == "HEAD" and path.endswith("big.gguf")]) == 2
    assert len({body.path for body in big.bodies}) == 2


def test_an_address_that_never_works_ends_in_an_error(big: Hub) -> None:
    big.cdn = True
    big.faults = [Fault("status", status=403, times=None)]
    with pytest.raises(BusyError, match="403 from where the hub keeps it"):
        fetch(["big.gguf"])


# --- ranges ---


def test_a_whole_body_with_the_same_etag_is_skipped_to_where_the_part_ends(big: Hub) -> None:
    big.faults = [Fault("drop", at=50_000), Fault("whole")]
    fetch_big()
    assert big.ranges() == ["", "bytes=50000-"]
    assert big.sent_bytes() == SIZE + 50_000


def test_a_server_that_sends_a_piece_at_a_time_is_asked_for_the_next(big: Hub) -> None:
    big.faults = [Fault("drop", at=50_000), Fault("piece", at=30_000, times=2)]
    fetch_big()
    assert big.ranges() == ["", "bytes=50000-", "bytes=80000-", "bytes=110000-"]
    assert big.sent_bytes() == SIZE


@pytest.mark.parametrize("etag", ["", '"d41d8cd98f00b204e9800998ecf8427e-1"'], ids=["no ETag", "another ETag"])
def test_a_whole_body_of_unknown_kind_is_compared_with_what_is_here(big: Hub, etag: str) -> None:
    big.cdn = True
    big.faults = [Fault("drop", at=150_000), Fault("whole", headers={"ETag": etag})]
    fetch_big()
    assert big.ranges() == ["", "bytes=150000-"]
    assert big.sent_bytes() == SIZE + 150_000


def test_a_whole_body_with_another_beginning_starts_the_file_over_the_second_time(big: Hub) -> None:
    big.cdn = True
    big.faults = [Fault("drop", at=50_000), Fault("flip whole", at=3, times=2)]
    fetch_big()
    assert big.ranges() == ["", "bytes=50000-", "bytes=50000-", ""]
    assert (part_file().parent / f"{ETAG}.stale-1").read_bytes() == DATA[:50_000]


@pytest.mark.parametrize("length", [True, False], ids=["with its length", "without"])
def test_a_page_of_somebody_else_does_no_harm_to_the_part(big: Hub, length: bool) -> None:
    big.faults = [Fault("drop", at=50_000), Fault("page", at=4000 if length else 0)]
    fetch_big()
    assert big.ranges() == ["", "bytes=50000-"]
    assert big.fetched() == ["big.gguf"] * 3


@pytest.mark.parametrize("header", [{}, {"Content-Type": ""}, {"Content-Type": "application/json"}])
def test_a_note_of_somebody_else_is_not_taken_for_the_beginning(big: Hub, header: dict[str, str]) -> None:
    big.faults = [Fault("page", headers=header)]
    seen = fetch_big()
    assert big.ranges() == [""]
    assert blob_names() == [ETAG]  # nothing had to be set aside
    assert seen[-1].fetched_bytes <= SIZE + 300


@pytest.mark.parametrize("method", ["HEAD", "GET"])
def test_an_answer_whose_headers_do_not_end_is_given_up(big: Hub, method: str) -> None:
    listing = hub.list_files(REPO)
    big.faults = [Fault("slow", method=method)]
    impatient = replace(QUICK, connect_timeout_s=0.2, stall_timeout_s=0.3)
    options = hub.FetchOptions(tuning=replace(impatient, max_tries=100))  # a busy machine may be as slow as that too
    hub.fetch(listing, ["big.gguf"], on_progress=lambda _state: None, cancel=CancelToken(), options=options)
    big.faults = [Fault("slow", method=method, times=None)]
    options = hub.FetchOptions(tuning=replace(impatient, max_tries=2))
    with pytest.raises(BusyError, match=r"the server (does not answer|has stopped sending)"):
        hub.fetch(listing, ["README.md"], on_progress=lambda _state: None, cancel=CancelToken(), options=options)


@pytest.mark.parametrize("elsewhere", ["http://127.0.0.1:9/", "{cdn}/cdn/" + "0" * 64 + "?Number=9&Name=x"])
def test_a_place_that_does_not_work_is_asked_for_anew(big: Hub, elsewhere: str) -> None:
    place = {"Location": elsewhere.format(cdn=big.cdn_url), "X-Repo-Commit": big.repos[REPO].commit}
    big.faults = [Fault("status", status=302, method="HEAD", headers={**place, "X-Linked-ETag": ETAG})]
    fetch_big()


@pytest.mark.parametrize("method", ["HEAD", "GET"])
def test_a_network_that_wants_a_login_is_told_from_the_hub(big: Hub, method: str) -> None:
    listing = hub.list_files(REPO)
    big.faults = [Fault("page", at=4000, method=method, times=None)]
    options = hub.FetchOptions(tuning=QUICK)
    with pytest.raises(BusyError, match="no model hub") as caught:
        hub.fetch(listing, ["big.gguf"], on_progress=lambda _state: None, cancel=CancelToken(), options=options)
    assert "login in the browser" in caught.value.hint


def test_a_server_without_ranges_that_always_drops_is_given_up(big: Hub) -> None:
    big.cdn = True
    big.faults = [Fault("drop whole", at=50_000, times=None)]
    with pytest.raises(BusyError, match="connection was lost"):
        fetch(["big.gguf"])
    assert len(big.bodies) == QUICK.max_tries


@pytest.mark.parametrize("place", ["", "bytes 5-9/10", "x", "bytes 50000-199999/200001"])
def test_a_part_of_unknown_place_is_never_appended(big: Hub, place: str) -> None:
    big.faults = [Fault("drop", at=50_000), Fault("headers", headers={"Content-Range": place}, times=2)]
    fetch_big()
    assert big.ranges() == ["", "bytes=50000-", "bytes=50000-", ""]
    assert f"{ETAG}.stale-1" in blob_names()


@pytest.mark.parametrize("times", [1, 2])
def test_another_part_than_asked_for_is_never_appended(big: Hub, times: int) -> None:
    big.faults = [Fault("drop", at=50_000), Fault("wrong range", at=1, times=times)]
    fetch_big()


@pytest.mark.parametrize("kind", ["wrong range", "status"])
def test_an_answer_that_contradicts_the_part_once_costs_no_byte(
    big: Hub, kind: Literal["wrong range", "status"]
) -> None:
    big.faults = [Fault("drop", at=150_000), Fault(kind, at=1, status=416)]
    seen = fetch_big()
    assert seen[-1].fetched_bytes == SIZE
    assert blob_names() == [ETAG]


def test_contradictions_that_are_far_apart_do_not_add_up(big: Hub) -> None:
    big.faults = [fault for _ in range(4) for fault in (Fault("drop", at=20_000), Fault("wrong range", at=1))]
    fetch_big()
    assert blob_names() == [ETAG]  # it was never begun again


def test_drops_after_a_new_beginning_are_survived_while_bytes_arrive(big: Hub) -> None:
    big.faults = [
        Fault("drop", at=190_000),
        Fault("wrong range", at=7, times=2),
        Fault("drop", at=20_000, times=2 * QUICK.max_tries),
    ]
    fetch_big()
    assert big.ranges()[3:5] == ["", "bytes=20000-"]


def test_a_file_that_is_shorter_than_listed_ends_in_an_error(big: Hub) -> None:
    big.faults = [Fault("shorter", at=10, times=None)]
    with pytest.raises(BusyError, match="199990 bytes of 200000"):
        fetch(["big.gguf"])


def test_a_range_that_the_server_does_not_have_starts_the_file_over_once(big: Hub) -> None:
    beyond = Fault("status", status=416, headers={"Content-Range": "bytes */10"}, times=2)
    big.faults = [Fault("drop", at=50_000), replace(beyond)]
    fetch_big()
    assert big.ranges() == ["", ""]
    big.repos[REPO].files["other.gguf"] = noise(SIZE, 5)
    big.faults = [Fault("drop", at=50_000), replace(beyond, times=None)]
    with pytest.raises(BusyError, match="fewer bytes"):
        fetch(["other.gguf"], tuning=replace(QUICK, max_tries=9))
    assert big.fetched().count("other.gguf") == 4  # asked again, begun again, and that is that


@pytest.mark.parametrize("status", [204, 304, 418, 203])
def test_an_odd_answer_is_not_taken_for_the_file(big: Hub, status: int) -> None:
    big.cdn = True
    big.faults = [Fault("drop", at=50_000), Fault("status", status=status)]
    fetch_big()


def test_a_body_that_is_longer_than_listed_is_cut(big: Hub) -> None:
    big.faults = [Fault("longer", at=5000)]
    fetch_big()


def test_a_body_without_an_etag_is_taken(big: Hub) -> None:
    big.cdn = True
    big.faults = [Fault("headers", headers={"ETag": ""})]
    fetch_big()


def test_a_hub_without_etags_is_taken_at_its_list(big: Hub) -> None:
    big.faults = [
        Fault("headers", method=method, headers={"ETag": "", "X-Linked-ETag": ""}, times=2)
        for method in ("HEAD", "GET")
    ]
    fetch(["big.gguf", "README.md"])
    assert blob_names() == sorted([ETAG, etag_of("README.md", FILES["README.md"])])


def test_a_compressed_body_is_refused(big: Hub) -> None:
    big.faults = [Fault("gzip")]
    with pytest.raises(BusyError, match="gzip") as caught:
        fetch(["big.gguf"])
    assert "NO_PROXY" in caught.value.hint
    assert all(headers["accept-encoding"] == "identity" for headers in big.headers[1:])


# --- what changes ---


def test_a_file_that_changes_between_two_runs_starts_over_and_the_old_part_stays(big: Hub) -> None:
    big.faults = [Fault("drop", at=60_000), Fault("drop", at=0, times=None)]
    with pytest.raises(BusyError):
        fetch(["big.gguf"])
    big.faults = []
    big.bodies.clear()
    new = noise(SIZE, 2)
    big.repos[REPO].files["big.gguf"] = new
    directory, _ = fetch(["big.gguf"])
    assert (directory / "big.gguf").read_bytes() == new
    assert big.ranges() == [""]
    assert part_file().read_bytes() == DATA[:60_000]


def test_a_file_that_changes_while_it_is_fetched_is_an_error_that_says_so(big: Hub) -> None:
    listing = hub.list_files(REPO)
    for fault in (
        Fault("headers", method="HEAD", headers={"X-Linked-ETag": f'"{"0" * 64}"'}),
        Fault("headers", method="HEAD", headers={"X-Repo-Commit": "0" * 40}),
        Fault("headers", method="GET", headers={"X-Linked-ETag": f'"{"0" * 64}"'}),
    ):
        big.faults = [fault]
        with pytest.raises(BusyError, match="has changed at the hub"):
            hub.fetch(listing, ["big.gguf"], on_progress=lambda _state: None, cancel=CancelToken())


def test_a_file_that_has_changed_when_its_address_is_asked_for_again_is_an_error_too(big: Hub) -> None:
    listing = hub.list_files(REPO)
    other = {"X-Linked-ETag": f'"{"0" * 64}"'}
    big.faults = [
        Fault("drop", at=0),
        Fault("headers", method="HEAD", headers={}),
        Fault("headers", method="HEAD", headers=other),
    ]
    with pytest.raises(BusyError, match="has changed at the hub"):
        hub.fetch(
            listing,
            ["big.gguf"],
            on_progress=lambda _: None,
            cancel=CancelToken(),
            options=hub.FetchOptions(tuning=QUICK),
        )


@pytest.mark.parametrize("sidecar", ["", "{", "[]", '{"etag": "x"}', "no file"])
def test_a_part_without_its_sidecar_is_set_aside(big: Hub, sidecar: str) -> None:
    part_file().parent.mkdir(parents=True)
    part_file().write_bytes(b"?" * 500)
    if sidecar != "no file":
        part_file().with_name(part_file().name + ".json").write_text(sidecar)
    fetch_big()
    assert big.ranges() == [""]
    assert (part_file().parent / f"{ETAG}.stale-1").read_bytes() == b"?" * 500


def test_a_part_that_is_too_long_is_set_aside(big: Hub) -> None:
    big.faults = [Fault("drop", at=60_000), Fault("drop", at=0, times=None)]
    with pytest.raises(BusyError):
        fetch(["big.gguf"])
    part_file().write_bytes(DATA + b"x")
    big.faults = []
    fetch_big()
    assert f"{ETAG}.stale-1" in blob_names()


# --- wrong contents ---


@pytest.mark.parametrize("name", ["big.gguf", "sub/a.json"])
def test_wrong_contents_are_set_aside_and_fetched_once_more(big: Hub, name: str) -> None:
    data = big.repos[REPO].files[name]
    big.faults = [Fault("flip", at=1, name=name)]
    directory, seen = fetch([name])
    assert (directory / name).read_bytes() == data
    assert blob_names() == [etag_of(name, data), f"{etag_of(name, data)}.corrupt-1"]
    (told,) = Troubles().news(seen[-1])
    assert told.startswith(f"{name} arrived with other contents than the hub says, and is fetched once more.")
    assert f"{etag_of(name, data)}.corrupt-1: `runner rm --partial {REPO}` deletes it." in told


def test_contents_that_stay_wrong_end_in_an_error(big: Hub) -> None:
    big.faults = [Fault("flip", at=SIZE // 2, times=None)]
    with pytest.raises(VerificationFailed, match=r"corrupt-2") as caught:
        fetch(["big.gguf"])
    assert caught.value.exit_code == 5
    assert blob_names() == [f"{ETAG}.corrupt-1", f"{ETAG}.corrupt-2"]
    assert not list(repo_directory(REPO).glob("snapshots/*/big.gguf"))


def test_a_part_that_was_damaged_on_the_disk_is_found_by_the_hash(big: Hub) -> None:
    big.faults = [Fault("drop", at=60_000), Fault("drop", at=0, times=None)]
    with pytest.raises(BusyError):
        fetch(["big.gguf"])
    part_file().write_bytes(b"!" * 60_000)
    big.faults = []
    fetch_big()
    assert f"{ETAG}.corrupt-1" in blob_names()


# --- redirects and refusals ---


def test_a_redirect_of_the_bytes_themselves_is_followed(big: Hub) -> None:
    place = f"{big.cdn_url}/cdn/{ETAG}?Number=1&Name=big.gguf"
    big.faults = [Fault("status", status=307, headers={"Location": place})]
    fetch_big()
    assert [body.path.partition("?")[0] for body in big.bodies] == [f"/cdn/{ETAG}"]


@pytest.mark.parametrize("method", ["HEAD", "GET"])
def test_a_circle_of_redirects_ends(big: Hub, method: str) -> None:
    big.faults = [Fault("circle", method=method, times=None)]
    with pytest.raises(BusyError, match="circle"):
        fetch(["big.gguf"])
    assert [request[0] for request in big.requests].count(method) <= MAX_REDIRECTS + 1  # it is not tried again


@pytest.mark.parametrize("location", ["file:///etc/passwd", "http://[::bad", "javascript:alert(1)", "http://a..b/"])
def test_a_redirect_to_nowhere_is_an_error_at_once(big: Hub, location: str) -> None:
    big.faults = [Fault("status", status=302, headers={"Location": location}, method="HEAD", times=None)]
    with pytest.raises(RunnerError, match="redirect"):
        fetch(["big.gguf"])
    assert big.bodies == []
    assert [request[0] for request in big.requests].count("HEAD") == 1


@pytest.mark.parametrize("method", ["HEAD", "GET"])
def test_what_holds_up_a_file_is_told_until_it_gets_on(big: Hub, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    big.faults = [Fault("status", status=500, method=method, times=3)]
    troubles: list[Trouble | None] = []
    n_pauses, sleep = 0, asyncio.sleep

    async def until_it_is_told(_seconds: float) -> None:
        """Tries come as fast as they are told of, however busy the machine is."""
        nonlocal n_pauses
        n_pauses += 1
        while not any(one is not None and one.n_failures == n_pauses for one in troubles):
            await sleep(0.01)

    def show(state: hub.FetchState) -> None:
        troubles.extend(file.trouble for file in state.files)

    monkeypatch.setattr(remote, "asyncio", SimpleNamespace(sleep=until_it_is_told, timeout=asyncio.timeout))
    hub.fetch(
        hub.list_files(REPO),
        ["big.gguf"],
        on_progress=show,
        cancel=CancelToken(),
        options=hub.FetchOptions(tuning=QUICK),
    )
    told = dict.fromkeys((one.reason, one.n_failures) for one in troubles if one is not None)
    assert list(told) == [(f"The hub answered 500 for {REPO}.", number) for number in (1, 2, 3)]
    assert troubles[-1] is None


def test_a_long_wait_is_told_from_the_first_failure_on(big: Hub) -> None:
    big.faults = [Fault("status", status=429, headers={"Retry-After": "20"})]
    cancel, told = CancelToken(), []

    def show(state: hub.FetchState) -> None:
        if state.trouble:
            told.append(state.trouble)
            cancel.cancel()

    options = hub.FetchOptions(tuning=replace(QUICK, wait_max_s=30.0))
    with pytest.raises(RunnerError, match="cancelled"):
        hub.fetch(hub.list_files(REPO), ["big.gguf"], on_progress=show, cancel=cancel, options=options)
    assert told == [f"{big.url} takes no more requests for now (rate limit). Trying again in 20 s."]


def test_what_held_up_a_file_is_told_no_more_once_it_gets_on(big: Hub) -> None:
    big.faults = [Fault("status", status=500, times=2)]
    big.bytes_s, big.most_bytes = 2_000_000, SIZE / 2
    under_way = []

    def show(state: hub.FetchState) -> None:
        if 0 < state.done_bytes < SIZE:
            under_way.append(state.trouble)
            big.let_go()

    options = hub.FetchOptions(tuning=QUICK)
    hub.fetch(hub.list_files(REPO), ["big.gguf"], on_progress=show, cancel=CancelToken(), options=options)
    assert set(under_way) == {""}


@pytest.mark.parametrize("etag", ["../../../x", "a/b", ".hidden", "x" * 300, "a b", "COM1:"])
def test_an_etag_that_is_no_file_name_is_refused(server: Hub, etag: str) -> None:
    server.faults = [Fault("headers", method="HEAD", headers={"X-Linked-ETag": etag}, times=None)]
    with pytest.raises(RunnerError, match="ETag"):
        fetch(["README.md"])
    assert blob_names() == []


def test_access_that_is_lost_on_the_way_is_a_refusal(big: Hub) -> None:
    listing = hub.list_files(REPO)
    big.repos[REPO].is_private = True
    with pytest.raises(UsageError, match="or it is private"):
        hub.fetch(listing, ["big.gguf"], on_progress=lambda _state: None, cancel=CancelToken())


def test_a_hub_that_is_gone_is_no_connection(big: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    listing = hub.list_files(REPO)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    options = hub.FetchOptions(tuning=QUICK)
    with pytest.raises(BusyError, match="no connection"):
        hub.fetch(listing, ["big.gguf"], on_progress=lambda _state: None, cancel=CancelToken(), options=options)
    assert big.bodies == []


def test_one_bad_file_ends_the_others_and_keeps_what_they_have(big: Hub) -> None:
    big.bytes_s = 300_000
    big.repos[REPO].files["bad.gguf"] = noise(40_000, 2)
    big.faults = [Fault("flip", name="bad.gguf", at=0, times=None)]
    with pytest.raises(VerificationFailed):
        fetch(["big.gguf", "bad.gguf"])
    kept = part_file().stat().st_size
    assert 0 < kept < SIZE
    big.faults, big.bytes_s = [], 0
    assert fetch_big()[0].done_bytes == kept


# --- cancelling ---


@pytest.mark.parametrize(
    "fault",
    [
        Fault("stall", at=50_000),
        Fault("stall", at=0),
        Fault("status", status=503, headers={"Retry-After": "20"}, times=None),
        Fault("status", status=503, headers={"Retry-After": "20"}, method="HEAD", times=None),
    ],
    ids=["stalled body", "stalled start", "waiting for a body", "waiting for an address"],
)
def test_cancelling_waits_for_nothing(big: Hub, fault: Fault) -> None:
    big.faults = [fault]
    cancel = CancelToken()
    asked_at = [0.0]
    tuning = replace(QUICK, stall_timeout_s=30.0, wait_max_s=30.0)

    def show(state: hub.FetchState) -> None:
        is_asked = any(method == fault.method and path.endswith("big.gguf") for method, path in big.requests)
        if not asked_at[0] and is_asked and state.fetched_bytes >= fault.at:
            cancel.cancel()
            asked_at[0] = time.monotonic()

    listing = hub.list_files(REPO)
    with pytest.raises(RunnerError, match="The download was cancelled"):
        hub.fetch(listing, ["big.gguf"], on_progress=show, cancel=cancel, options=hub.FetchOptions(tuning=tuning))
    assert time.monotonic() - asked_at[0] < 5  # a server's silence lasts 30 s here, its wish 20 s
    if fault.at:
        assert part_file().read_bytes() == DATA[: fault.at]
    big.faults = []
    assert fetch_big()[-1].fetched_bytes == SIZE - fault.at


def test_cancelling_does_not_wait_for_the_hash_of_what_is_here(big: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    big.faults = [Fault("drop", at=150_000), Fault("status", status=404)]
    with pytest.raises(UsageError):
        fetch(["big.gguf"])
    cancel, read, n_read = CancelToken(), os.pread, 0

    def slowly(descriptor: int, length: int, offset: int) -> bytes:
        nonlocal n_read
        n_read += 1
        cancel.cancel()
        time.sleep(0.01)  # 1.5 s in all
        return read(descriptor, min(length, 1000), offset)

    monkeypatch.setattr(os, "pread", slowly)
    with pytest.raises(RunnerError, match="The download was cancelled"):
        hub.fetch(hub.list_files(REPO), ["big.gguf"], on_progress=lambda _: None, cancel=cancel)
    assert 0 < n_read < 150
    assert part_file().stat().st_size == 150_000


def test_what_the_progress_callback_raises_ends_the_download(big: Hub) -> None:
    big.bytes_s = 400_000

    def fail(state: hub.FetchState) -> None:
        if state.done_bytes:
            raise ValueError("the screen is gone")

    with pytest.raises(ValueError, match="screen"):
        hub.fetch(hub.list_files(REPO), ["big.gguf"], on_progress=fail, cancel=CancelToken())
    assert part_file().stat().st_size > 0


def test_a_download_that_is_cancelled_before_it_starts_asks_nothing(server: Hub) -> None:
    listing = hub.list_files(REPO)
    server.requests.clear()
    cancel = CancelToken()
    cancel.cancel()
    with pytest.raises(RunnerError, match="cancelled"):
        hub.fetch(listing, list(FILES), on_progress=lambda _state: None, cancel=cancel)
    assert server.requests == []
