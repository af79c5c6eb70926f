"""A running hub for each test, which HF_ENDPOINT names."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fetching import FILES, REPO
from hub_server import Hub, Repo, serving


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has come of a download that ends is on the disk then, however long writing it takes."""
    monkeypatch.setattr("runner.hub.download.FAREWELL_S", 60.0)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serving(Hub(repos={REPO: Repo(dict(FILES))})) as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield running
