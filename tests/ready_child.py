"""An engine process whose model gets ready by leaving a file in the directory that READY_CHILD names."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from runner.backends.fake import FakeBackend
from runner.engine_child import main
from runner.types import CancelToken


def _get_ready(_backend: FakeBackend, _cancel: CancelToken) -> Iterator[None]:
    (Path(os.environ["READY_CHILD"]) / "ready").touch()
    yield


if __name__ == "__main__":
    FakeBackend.get_ready = _get_ready  # type: ignore[method-assign]
    main()
