"""Who may ask: Host headers of other names, pages from elsewhere, and tokens."""

from __future__ import annotations

import pytest

from runner.errors import UsageError
from runner.server.access import Access

LOCAL = Access(host="127.0.0.1", port=8383)


def refused(access: Access, **headers: str) -> str | None:
    refusal = access.refusal(headers)
    assert refusal is None or refusal.status == 403
    return None if refusal is None else refusal.code


@pytest.mark.parametrize("host", ["127.0.0.1:8383", "localhost:8383", "LOCALHOST:8383", "[::1]:8383"])
def test_this_machine_may_ask(host: str) -> None:
    assert refused(LOCAL, host=host) is None


@pytest.mark.parametrize(
    "host",
    [
        "",
        "evil.example:8383",
        "127.0.0.1.evil.example:8383",
        "evil.example@localhost:8383",
        "192.168.0.5:8383",
        "localhost",
        "localhost:",
        "localhost:80",
        "localhost:99999999",
        "localhost:8383:8383",
        "localhost.:8383",
        "[::1",
        "::1:x",
    ],
)
def test_a_name_that_is_not_ours_is_refused(host: str) -> None:
    assert refused(LOCAL, host=host) == "wrong_host"


def test_at_the_port_of_http_the_header_has_none() -> None:
    access = Access(host="127.0.0.1", port=80)
    for host in ("localhost", "localhost:80", "[::1]"):
        assert refused(access, host=host) is None
    assert refused(access, host="localhost:81") == "wrong_host"


def test_the_remedy_for_another_name_is_told_where_there_is_one() -> None:
    messages = [refusal.message for host in ("box.lan", "") if (refusal := LOCAL.refusal({"host": host}))]
    assert ["--allow-host" in message for message in messages] == [True, False]


def test_other_names_are_taken_when_they_were_given() -> None:
    access = Access(host="127.0.0.1", port=8383, names=("Box.lan", "front.example:443"))
    for host in ("box.lan", "box.lan:9", "front.example:443"):
        assert refused(access, host=host) is None
    assert refused(access, host="front.example:80") == "wrong_host"


def test_a_name_with_a_scheme_s_own_port_is_taken_as_browsers_write_it_and_so_is_its_page() -> None:
    access = Access(host="127.0.0.1", port=8383, names=("front.example:443", "old.example:80", "own.example:8443"))
    for host in ("front.example", "front.example:443"):
        assert refused(access, host=host, origin="https://front.example") is None
    assert refused(access, host="old.example", origin="http://old.example") is None
    assert refused(access, host="front.example", origin="https://front.example:8443") == "foreign_origin"
    assert refused(access, host="own.example") == "wrong_host"
    assert refused(Access(host="127.0.0.1", port=8383, names=("[fe80::1]",)), host="[FE80::1]:9") is None


@pytest.mark.parametrize("name", ["https://front.example", "front.example/", "front.example:", "a b", "", "fe80::1"])
def test_a_name_that_no_host_header_has_is_refused_at_once(name: str) -> None:
    with pytest.raises(UsageError, match="allow-host"):
        Access(host="127.0.0.1", port=8383, names=(name,))


@pytest.mark.parametrize("origin", ["app.example", "https://app.example/", "https://app.example/chat", "", "**"])
def test_an_origin_that_no_browser_sends_is_refused_at_once(origin: str) -> None:
    with pytest.raises(UsageError, match="allow-origin"):
        Access(host="127.0.0.1", port=8383, origins=(origin,))


def test_from_other_machines_any_address_leads_here_and_no_name() -> None:
    access = Access(host="0.0.0.0", port=8383, is_remote=True)
    for host in ("192.168.0.5:8383", "[fe80::1]:8383", "localhost:8383"):
        assert refused(access, host=host) is None
    for host in ("box.lan:8383", "192.168.0.5:80"):
        assert refused(access, host=host) == "wrong_host"


@pytest.mark.parametrize("origin", ["http://localhost:3000", "https://127.0.0.1", "http://[::1]:5"])
def test_a_page_of_this_machine_may_ask(origin: str) -> None:
    assert refused(LOCAL, host="localhost:8383", origin=origin) is None


@pytest.mark.parametrize(
    "origin",
    [
        "null",
        "https://evil.example",
        "http://localhost.evil.example",
        "file://",
        "http://[",
        "chrome-extension://a",
    ],
)
def test_a_page_from_elsewhere_is_refused_unless_it_was_named(origin: str) -> None:
    assert refused(LOCAL, host="localhost:8383", origin=origin) == "foreign_origin"
    for origins in ((origin,), ("*",)):
        access = Access(host="127.0.0.1", port=8383, origins=origins)
        assert refused(access, host="localhost:8383", origin=origin) is None


def test_a_remote_server_s_own_page_may_ask() -> None:
    access = Access(host="0.0.0.0", port=8383, is_remote=True)
    assert refused(access, host="10.0.0.1:8383", origin="http://10.0.0.1:8383") is None
    assert refused(access, host="10.0.0.1:8383", origin="http://10.0.0.1:8384") == "foreign_origin"


@pytest.mark.parametrize(
    ("header", "is_right"),
    [
        ("Bearer secret", True),
        ("bearer secret", True),
        ("Bearer secre", False),
        ("Bearer secret2", False),
        ("Basic secret", False),
        ("secret", False),
        ("Bearer ", False),
        ("Bearer \xe9", False),
        ("", False),
    ],
)
def test_tokens(header: str, is_right: bool) -> None:
    access = Access(host="127.0.0.1", port=8383, token="secret")
    refusal = access.token_refusal({"authorization": header})
    assert (refusal is None) is is_right
    if refusal is not None:
        assert refusal.status == 401
        assert refusal.headers["WWW-Authenticate"] == "Bearer"
        assert "secret" not in refusal.message
        assert refusal.message.startswith("The token is wrong." if header[7:].strip() else "A token is needed.")
    assert LOCAL.token_refusal({}) is None
