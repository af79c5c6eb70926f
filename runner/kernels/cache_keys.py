"""One key in Triton's cache for a kernel, whatever this process has launched before it.

Triton's key of a function names the constants of the functions that it calls. Triton 3.6 looks for these before they
are known (triton-lang/triton#10494; 3.9 does not), so that they are part of the key only where the callee was hashed
earlier, by another kernel: what one process has compiled, another does not find. It knows no kernel.
"""

from __future__ import annotations

from typing import Any, Final

_IS_DONE: Final = "_runner_hashes_callees_first"


def hash_callees_first() -> None:
    """From now on a key that this process makes is the same in every process. Call it before the first kernel."""
    from triton.runtime import jit

    mend(getattr(jit, "DependenciesFinder", None))


def mend(finder: Any) -> None:
    """Have `finder`, Triton's class that goes through a function's source, hash each callee before it looks at it.

    Left as it is where Triton has another such class: then kernels are compiled again where they are launched.
    """
    update = getattr(finder, "_update_hash", None)
    if update is None or hasattr(finder, _IS_DONE):
        return

    def update_hash(self: Any, callee: Any) -> None:
        callee.cache_key  # noqa: B018  # a property that does the work, and keeps it
        update(self, callee)

    finder._update_hash = update_hash
    setattr(finder, _IS_DONE, True)
