"""Garbage in cycles is not looked for where it is put off, and is again behind it, whatever happens."""

from __future__ import annotations

import gc

import pytest

from runner.garbage import no_garbage_collection


@pytest.mark.parametrize("was_enabled", [True, False])
def test_it_is_behind_it_as_it_was_before(was_enabled: bool) -> None:
    before = gc.isenabled()
    (gc.enable if was_enabled else gc.disable)()
    try:
        with pytest.raises(ValueError, match="of the work"), no_garbage_collection():
            with no_garbage_collection():
                assert not gc.isenabled()
            assert not gc.isenabled()
            raise ValueError("of the work")
        assert gc.isenabled() == was_enabled
    finally:
        (gc.enable if before else gc.disable)()
