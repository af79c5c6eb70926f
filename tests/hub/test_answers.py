"""What the API answers: read where it is what it should be, refused with the place where it is not."""

from __future__ import annotations

import copy
import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from runner import hub
from runner.errors import BadModelFile, RunnerError
from runner.hub import api
from runner.hub.answers import BadAnswer, read_found, read_listing

LISTING: dict[str, Any] = {
    "id": "o/m",
    "sha": "a" * 40,
    "siblings": [
        {"rfilename": "m.gguf", "size": 10, "blobId": "c" * 40, "lfs": {"sha256": "b" * 64, "size": 10}},
        {"rfilename": "README.md"},
    ],
}


def changed(path: tuple[str | int, ...], value: object) -> dict[str, Any]:
    """LISTING with that value somewhere in it."""
    whole = copy.deepcopy(LISTING)
    place: Any = whole
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return whole


def test_what_is_said_is_read_and_what_is_not_said_is_empty() -> None:
    listing = read_listing(LISTING, "o/m", "main")
    assert listing.files == (hub.RemoteFile("m.gguf", 10, "b" * 64, "c" * 40), hub.RemoteFile("README.md", 0, "", ""))
    assert (listing.commit, listing.renamed_to, listing.is_gated) == ("a" * 40, "", False)


@pytest.mark.parametrize("unused", ["lastModified", "createdAt", "cardData", "author", "inferenceProviderMapping"])
def test_what_is_not_used_may_be_anything(unused: str) -> None:
    assert read_listing({**LISTING, unused: 5}, "o/m", "main") == read_listing(LISTING, "o/m", "main")


@pytest.mark.parametrize(
    ("path", "value", "complaint"),
    [
        (("sha",), None, "commit"),
        (("sha",), "a" * 7, "commit"),
        (("id",), 5, "name is 5"),
        (("siblings",), {"a": 1}, "files is an object"),
        (("siblings", 0), None, "a file is None"),
        (("siblings", 0, "rfilename"), 5, "name is 5"),
        (("siblings", 0, "size"), "10", "size of m.gguf is '10'"),
        (("siblings", 0, "size"), -5, "size of m.gguf is -5"),
        (("siblings", 0, "size"), float("nan"), "size of m.gguf is nan"),
        (("siblings", 0, "size"), 10**30, "size of m.gguf is 10"),
        (("siblings", 0, "size"), True, "size of m.gguf is True"),
        (("siblings", 0, "blobId"), [1], "hash of m.gguf is a list"),
        (("siblings", 0, "lfs"), "x", "storage of m.gguf is 'x'"),
        (("siblings", 0, "lfs", "sha256"), 5, "SHA-256 of m.gguf is 5"),
        (("siblings", 0, "lfs", "sha256"), "../../x", "SHA-256 of m.gguf is '../../x'"),
    ],
)
def test_a_listing_with_a_value_of_another_kind_is_refused(
    path: tuple[str | int, ...], value: object, complaint: str
) -> None:
    with pytest.raises(BadAnswer, match=complaint):
        read_listing(changed(path, value), "o/m", "main")


@pytest.mark.parametrize("size", [0, 2**53 - 1])
def test_a_file_may_be_empty_and_as_large_as_json_can_say(size: int) -> None:
    assert read_listing(changed(("siblings", 0, "size"), size), "o/m", "main").files[0].size_bytes == size
    with pytest.raises(BadAnswer, match="the size of m"):
        read_listing(changed(("siblings", 0, "size"), -1 if size == 0 else size + 1), "o/m", "main")


@pytest.mark.parametrize("length", [40, 64])
def test_a_blob_is_named_by_sha_1_or_sha_256(length: int) -> None:
    assert (
        read_listing(changed(("siblings", 0, "blobId"), "C" * length), "o/m", "main").files[0].blob_id == "c" * length
    )
    with pytest.raises(BadAnswer, match="the hash of m"):
        read_listing(changed(("siblings", 0, "blobId"), "c" * (length - 1)), "o/m", "main")


def test_a_name_with_half_a_character_is_unsafe() -> None:
    with pytest.raises(BadModelFile, match="unsafe name"):
        read_listing(changed(("siblings", 1, "rfilename"), "\ud800.gguf"), "o/m", "main")


@pytest.mark.parametrize("answer", [{"a": 1}, [None], [{"id": 5}], [{"downloads": "many"}], [{"tags": "gguf"}], 7])
def test_a_search_with_a_value_of_another_kind_is_refused(answer: object) -> None:
    with pytest.raises(BadAnswer):
        read_found(answer, 10)


def test_a_search_result_that_says_little_is_shown_all_the_same() -> None:
    assert read_found([{"id": "a/b", "lastModified": "soon", "gguf": {"total": -1}}], 10) == (
        hub.Found("a/b", 0, 0, "", False, 0, ()),
    )
    assert [found.num_parameters for found in read_found([{"gguf": {"total": n}} for n in (1, 2**53)], 10)] == [1, 0]


# --- answers without an end ---


class _Endless(http.server.BaseHTTPRequestHandler):
    """Sends a listing that does not end, in a chunked body as fast as it goes."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        return None

    def do_GET(self) -> None:
        piece = json.dumps({"rfilename": "x" * 65000}).encode() + b","
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            while True:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        except OSError:
            self.close_connection = True


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Endless)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_address[1]}")
    yield
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.usefixtures("endless")
def test_an_answer_that_is_too_large_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "MAX_ANSWER_BYTES", 2**20)
    for ask in (lambda: hub.list_files("o/m"), lambda: hub.search("x")):
        with pytest.raises(RunnerError, match="more than 1 MiB"):
            ask()


@pytest.mark.usefixtures("endless")
def test_an_answer_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "MAX_ANSWER_S", 0.0)
    with pytest.raises(RunnerError, match="has not ended"):
        hub.list_files("o/m")
