"""States of recurrent layers, put aside where a text may go on again: llama.cpp keeps the last one alone.

llama.cpp writes what cannot be cut of a sequence to memory and reads it back (LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY, as
its own server does); keys and values, of layers that have them, stay where they are and are cut. It knows positions and
nothing of tokens.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

import llama_cpp

MOST_SAVED: Final = 2
"""Of the last two messages, the older of which is the one to go back to where the newer is taken back or edited."""
_SEQUENCE: Final = 0


class SavedStates:
    """Of a context's only sequence."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._memory = llama_cpp.llama_get_memory(context)
        self._saved: dict[int, Any] = {}  # by how many tokens they come after

    @property
    def nbytes(self) -> int:
        return sum(map(len, self._saved.values()))

    def save(self, length: int) -> None:
        """Put the state aside, which is that after `length` tokens. Where there are too many, the oldest goes."""
        if length in self._saved:
            return
        partial = llama_cpp.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
        size = int(llama_cpp.llama_state_seq_get_size_ext(self._context, _SEQUENCE, partial))
        data = (ctypes.c_uint8 * size)()
        if size and llama_cpp.llama_state_seq_get_data_ext(self._context, data, size, _SEQUENCE, partial) == size:
            self._saved[length] = data
            if len(self._saved) > MOST_SAVED:
                del self._saved[min(self._saved)]

    def go_back(self, length: int) -> int:
        """Make the sequence its first `length` tokens, or fewer whose state was put aside: how many, 0 where none was;
        then nothing has changed, or what is left is of no use."""
        found = max((at for at in self._saved if at <= length), default=0)
        if not found:
            return 0
        data, partial = self._saved[found], llama_cpp.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
        if llama_cpp.llama_state_seq_set_data_ext(self._context, data, len(data), _SEQUENCE, partial) != len(data):
            return 0
        return found if llama_cpp.llama_memory_seq_rm(self._memory, _SEQUENCE, found, -1) else 0

    def forget_after(self, length: int) -> None:
        """The text is another one from there on."""
        self._saved = {at: data for at, data in self._saved.items() if at <= length}
