"""Which hash a file must have, and how a rate limit spreads bytes over time."""

from __future__ import annotations

import hashlib

from hub_server import git_sha1
from hypothesis import given
from hypothesis import strategies as st

from runner.hub.hashes import Expected, expected_hash
from runner.hub.listing import RemoteFile
from runner.hub.rate import RateLimit

DATA = b"some contents"
SHA256 = hashlib.sha256(DATA).hexdigest()


def test_large_files_are_checked_by_sha256_and_small_ones_as_git_does() -> None:
    assert expected_hash(RemoteFile("a", 13, SHA256, "0" * 40)) == Expected("sha256", SHA256, 13)
    assert expected_hash(RemoteFile("a", 13, "", git_sha1(DATA))) == Expected("git", git_sha1(DATA), 13)
    assert expected_hash(RemoteFile("a", 13), SHA256) == Expected("sha256", SHA256, 13)
    assert expected_hash(RemoteFile("a", 13), "an-etag") == Expected("", "", 13)


@given(
    st.lists(st.tuples(st.integers(1, 10_000), st.floats(0, 2)), min_size=1, max_size=30),
    st.integers(100, 10_000),
)
def test_over_any_stretch_no_more_bytes_are_used_than_the_limit_allows(
    takes: list[tuple[int, float]], bytes_s: int
) -> None:
    now = 0.0
    limit = RateLimit(bytes_s, lambda: now)
    used: list[tuple[float, int]] = []  # when they may be used, and how many
    for n_bytes, pause_s in takes:
        now += pause_s
        used.append((now + limit.reserve(n_bytes), n_bytes))
    for first in range(len(used)):
        for last in range(first + 1, len(used)):
            stretch_s = used[last][0] - used[first][0]
            assert sum(n for _, n in used[first + 1 : last + 1]) <= bytes_s * stretch_s + 1e-6 * bytes_s


def test_without_a_limit_nobody_waits() -> None:
    assert RateLimit(None).reserve(10**12) == 0.0
