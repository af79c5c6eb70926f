"""Parts of remote files, from hubs with and without ranges, in order and not."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from fetching import IMPATIENT, QUICK, REPO, noise
from hub_server import Fault, Hub
from waiting import wait_for

from runner import hub
from runner.errors import BadModelFile, BusyError, RunnerError, UsageError
from runner.hub import ranged
from runner.hub.http import MAX_REDIRECTS
from runner.types import CancelToken

DATA = noise(50_000)


@pytest.fixture
def listing(server: Hub) -> hub.Listing:
    server.repos[REPO].files["big.gguf"] = DATA
    return hub.list_files(REPO)


def read(listing: hub.Listing, start: int, length: int) -> bytes:
    return hub.read_range(listing, "big.gguf", start, length, tuning=IMPATIENT)


@pytest.mark.parametrize("cdn", [False, True], ids=["hub", "cdn"])
def test_a_part_of_a_file_is_read_and_nothing_else(server: Hub, listing: hub.Listing, cdn: bool) -> None:
    server.cdn = cdn
    assert read(listing, 1000, 24) == DATA[1000:1024]
    assert server.ranges() == ["bytes=1000-1023"]
    assert server.sent_bytes() == 24


@pytest.mark.parametrize(
    ("start", "length"), [(0, 0), (49_990, 100), (49_999, 1), (50_000, 1), (60_000, 5), (0, 60_000)]
)
@pytest.mark.usefixtures("server")
def test_at_the_end_of_a_file_there_are_fewer_bytes(listing: hub.Listing, start: int, length: int) -> None:
    assert read(listing, start, length) == DATA[start : start + length]
    bare = replace(listing, files=(hub.RemoteFile("big.gguf", 0),))  # a list without sizes
    assert read(bare, start, length) == DATA[start : start + length]


@pytest.mark.usefixtures("server")
def test_small_files_are_read_too(listing: hub.Listing) -> None:
    assert hub.read_range(listing, "sub/a.json", 0, 100) == b"{}"


@pytest.mark.parametrize("fault", [Fault("stall", at=0), Fault("status", status=503, headers={"Retry-After": "15"})])
def test_cancelling_a_reader_waits_neither_for_silence_nor_for_the_next_try(
    server: Hub, listing: hub.Listing, fault: Fault
) -> None:
    server.faults = [fault]
    cancel = CancelToken()

    def press() -> None:
        wait_for(lambda: not server.faults[0].times, "nobody has asked")
        cancel.cancel()

    threading.Thread(target=press).start()
    began = time.monotonic()
    with hub.RemoteReader(listing, cancel=cancel) as reader, pytest.raises(RunnerError, match="cancelled"):
        reader.read("big.gguf", 0, 10)
    assert time.monotonic() - began < 5  # the server's silence is waited for 15 s, and its wish too
    assert not reader._client.is_closed  # under a read that goes on: another file might have the connection's number
    if fault.kind == "stall":
        server.ended.set()
        wait_for(lambda: reader._client.is_closed, "the read that was left behind has not closed it")


@pytest.mark.usefixtures("server")
def test_reading_what_may_be_cancelled_leaves_no_thread_behind(listing: hub.Listing) -> None:
    before = threading.enumerate()
    assert hub.read_range(listing, "big.gguf", 0, 10, cancel=CancelToken()) == DATA[:10]
    own = [thread for thread in threading.enumerate() if thread not in before and "_work" in thread.name]
    wait_for(lambda: not any(thread.is_alive() for thread in own), "a thread waits for more")


def test_a_reader_asks_once_where_a_file_is(server: Hub, listing: hub.Listing) -> None:
    server.cdn = True
    with hub.RemoteReader(listing) as reader:
        assert b"".join(reader.read("big.gguf", start, 10) for start in range(0, 50, 10)) == DATA[:50]
    assert len([path for _, path in server.requests if "/resolve/" in path]) == 1


def test_an_address_that_has_expired_is_asked_for_again(server: Hub, listing: hub.Listing) -> None:
    server.cdn = True
    with hub.RemoteReader(listing, tuning=QUICK) as reader:
        reader.read("big.gguf", 0, 10)
        server.faults = [Fault("status", status=403)]
        assert reader.read("big.gguf", 10, 10) == DATA[10:20]
    assert len([path for _, path in server.requests if "/resolve/" in path]) == 2


@pytest.mark.parametrize(
    "fault",
    [
        Fault("drop", at=5),
        Fault("stall", at=5),
        Fault("status", status=503),
        Fault("status", status=429, headers={"Retry-After": "0"}),
        Fault("status", status=408),
        Fault("wrong range", at=7),
        Fault("wrong range", at=-50),  # as many bytes as were asked for, and others
        Fault("shorter", at=49_880, headers={"Content-Range": "bytes 100-149/50000"}),
        Fault("headers", headers={"Content-Range": ""}),
        Fault("circle", times=MAX_REDIRECTS),
        Fault("page", at=300),
    ],
    ids=lambda fault: fault.kind + str(fault.status or fault.at or ""),
)
def test_what_fails_once_is_tried_again(server: Hub, listing: hub.Listing, fault: Fault) -> None:
    server.faults = [replace(fault)]
    assert read(listing, 100, 50) == DATA[100:150]


def test_a_part_that_comes_in_two_is_joined(server: Hub, listing: hub.Listing) -> None:
    server.faults = [Fault("shorter", at=49_880)]
    assert read(listing, 100, 50) == DATA[100:150]
    assert server.ranges() == ["bytes=100-149", "bytes=120-149"]


def test_before_each_new_try_there_is_a_wait_as_long_as_the_server_says(
    server: Hub, listing: hub.Listing, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(ranged, "time", SimpleNamespace(sleep=waits.append))
    longest = {"Retry-After": str(int(QUICK.wait_max_s))}
    server.faults = [Fault("status", status=429, headers=longest), Fault("status", status=503, times=2)]
    assert read(listing, 100, 50) == DATA[100:150]
    assert waits == [QUICK.wait_max_s, QUICK.backoff(2), QUICK.backoff(3)]
    server.requests.clear()
    server.faults = [Fault("status", status=503, times=None)]
    with pytest.raises(BusyError, match="503"):
        read(listing, 100, 50)
    assert len(server.requests) == QUICK.max_tries


def test_a_server_without_ranges_is_read_up_to_the_part_and_no_further(server: Hub, listing: hub.Listing) -> None:
    server.bytes_s = 50_000
    server.faults = [Fault("whole")]
    assert read(listing, 1000, 24) == DATA[1000:1024]
    assert server.sent_bytes() < 40_000


def test_a_server_without_ranges_is_not_read_through_for_a_part_far_behind(
    server: Hub, listing: hub.Listing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranged, "MAX_SKIPPED_BYTES", 1000)
    server.faults = [Fault("whole", times=None)]
    assert read(listing, 1000, 24) == DATA[1000:1024]
    with pytest.raises(BusyError, match="whole files only"):
        read(listing, 1001, 24)


def test_what_stays_wrong_is_an_error(server: Hub, listing: hub.Listing) -> None:
    server.faults = [Fault("status", status=500, times=None)]
    with pytest.raises(BusyError, match="500"):
        read(listing, 0, 10)
    server.faults = [Fault("gzip", times=None)]
    with pytest.raises(BusyError, match="gzip"):
        read(listing, 0, 10)


def test_a_long_rate_limit_is_not_waited_for(server: Hub, listing: hub.Listing) -> None:
    server.faults = [Fault("status", status=429, headers={"Retry-After": "300"}, times=None)]
    with pytest.raises(BusyError, match="rate limit"):
        hub.read_range(listing, "big.gguf", 0, 10)


def test_refusals_are_those_of_a_fetch(server: Hub, listing: hub.Listing) -> None:
    with pytest.raises(UsageError, match="no file"):
        hub.read_range(listing, "nothing.gguf", 0, 1)
    with pytest.raises(BadModelFile):
        hub.read_range(listing, "../x", 0, 1)
    with pytest.raises(ValueError, match="no part of a file"):
        read(listing, -1, 1)
    server.faults = [Fault("status", status=302, headers={"Location": "file:///etc/passwd"}, times=None)]
    with pytest.raises(RunnerError, match="no address"):
        read(listing, 0, 1)
    server.repos[REPO].is_gated = True
    server.requests.clear()
    with pytest.raises(UsageError, match="gated"):
        read(listing, 0, 1)
    assert len(server.requests) == 1  # asking again would not help
