"""Work spread over processes: one that raises, dies or hangs costs its own item and no other."""

from __future__ import annotations

import os
import sys
import time

from runner.kernels.compile.spread import Failure, spread


def misbehave(item: str) -> str:
    """What the item says: an answer, or one of the ways not to give one."""
    if item == "raise":
        raise ValueError("no such thing")
    if item == "abort":
        print("a line of no interest", file=sys.stderr)
        print("fatal error: the compiler gives up", file=sys.stderr, flush=True)
        os.abort()
    if item == "hang":
        time.sleep(3600)
    return f"{item} in {os.getpid()}"


def outcomes(items: list[str], *, processes: int, limit_s: float = 60.0) -> dict[str, str | Failure]:
    found = dict(spread(misbehave, items, processes=processes, limit_s=limit_s))
    assert found.keys() == set(items)
    return found


def test_what_raises_dies_or_hangs_costs_no_other_item() -> None:
    found = outcomes(["1", "raise", "2", "abort", "3", "hang", "4"], processes=2, limit_s=5.0)
    for item in "1234":
        assert str(found[item]).startswith(f"{item} in ")
    assert found["raise"] == Failure(reason="ValueError: no such thing")
    died = found["abort"]
    assert isinstance(died, Failure)
    assert died.reason.splitlines() == ["its process died: SIGABRT", "fatal error: the compiler gives up"]
    assert found["hang"] == Failure(reason="it took too long")


def test_a_process_does_one_item_after_another() -> None:
    found = outcomes(["1", "2", "raise", "3"], processes=1)
    assert len({str(found[item]).partition(" in ")[2] for item in "123"}) == 1


def test_who_stops_listening_ends_the_processes() -> None:
    results = spread(misbehave, ["1", "hang"], processes=2, limit_s=3600.0)
    _, first = next(results)
    results.close()
    pid = int(str(first).partition(" in ")[2])
    assert not os.path.exists(f"/proc/{pid}")  # joined, so not even a zombie is left
