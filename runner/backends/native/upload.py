"""Bytes of files onto a device, ahead of whoever asks for them, as fast as the bus takes them.

Several threads read a block of 64 MiB at a time into pinned memory, from where it is copied while the next one is read.
Blocks that were asked for come first, a few more follow in the order that was foretold; no more than those are on the
device beside what was taken. It knows files and offsets, no tensors of a model.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Final, Protocol

import torch
from torch import Tensor

log = logging.getLogger(__name__)

BLOCK_BYTES: Final = 64 * 2**20
_BUFFERS: Final = 3  # one is read into while another is copied; the third takes up what they differ
_AHEAD_BYTES: Final = 4 * BLOCK_BYTES  # on the device, before anybody asks for them
_READERS: Final = 4  # one thread copies some 8 GB/s out of the page cache, the bus takes 25 to 50
_STEP_BYTES: Final = 4 * 2**20  # between looks at whether to stop
_LARGEST_GAP: Final = 4096  # between two extents that are read as one
_LOOK_S: Final = 0.05
_MANY: Final = 32  # copies: the first launch for many takes 14 ms (H200), each one alone some 10 us


class Extent(Protocol):
    """`nbytes` bytes at `offset` of a file."""

    @property
    def path(self) -> Path: ...

    @property
    def offset(self) -> int: ...

    @property
    def nbytes(self) -> int: ...


class Stopped(Exception):
    """Raised where bytes are waited for that nobody wants any more."""


@dataclass(frozen=True, kw_only=True)
class _Arrived:
    """A block on the device. copied: the event after which its bytes are there, None where they already are."""

    data: Tensor
    copied: torch.cuda.Event | None


@dataclass(kw_only=True)
class _Block:
    """A run of a file. n_left: the pieces of it that were not taken. arrival: its bytes, from sent to taken; data: what
    came of it, once it was waited for."""

    path: Path
    offset: int
    nbytes: int = 0
    n_left: int = 0
    is_sent: bool = False
    arrival: Future[_Arrived] | None = None
    data: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class _Piece:
    """What of an extent lies in a block: its `nbytes` from `start` on."""

    block: _Block
    start: int
    nbytes: int


class Upload:
    """The extents of `wanted` on the device, each once; the order foretells in which they are taken.

    is_cancelled is looked at while something is waited for. Threads run only while there is something to read.
    """

    def __init__(
        self, wanted: Mapping[str, Extent], device: torch.device, is_cancelled: Callable[[], bool] = lambda: False
    ) -> None:
        self._device = device
        self._is_cancelled = is_cancelled
        self._is_stopped = False
        self._blocks, self._pieces = _plan(wanted)
        self._next = 0  # of the blocks, to be sent ahead
        self._bytes_held = 0
        self._files: dict[Path, int] = {}
        self._staging = _Staging(device)
        self._sender = ThreadPoolExecutor(1, "upload")
        self._readers = ThreadPoolExecutor(_READERS, "read")

    def take(self, wanted: Iterable[tuple[str, Tensor]]) -> Iterator[None]:
        """Put the bytes of extents into tensors, contiguous, on the device, of as many bytes; always on one stream.

        Yields for one after the other, once what follows on that stream finds its bytes: many may be copied at once.
        Raises OSError when those of the next cannot be read, Stopped when cancelled, torch.OutOfMemoryError.
        """
        block: _Block | None = None
        copies: list[tuple[Tensor, Tensor]] = []  # out of that block
        n_whole = 0  # extents that are there with these copies
        for key, out in wanted:
            pieces = self._pieces.pop(key)
            assert out.nbytes == sum(piece.nbytes for piece in pieces), key
            for piece in pieces:
                self._send(piece.block)
            octets, done = out.view(-1).view(torch.uint8), 0
            for piece in pieces:
                if piece.block is not block:
                    self._copy_out(block, copies)
                    yield from repeat(None, n_whole)
                    block, copies, n_whole = piece.block, [], 0
                    self._send_ahead()
                copies.append(
                    (octets.narrow(0, done, piece.nbytes), self._arrived(block).narrow(0, piece.start, piece.nbytes))
                )
                done += piece.nbytes
            n_whole += 1
        self._copy_out(block, copies)
        self._send_ahead()
        yield from repeat(None, n_whole)

    def _copy_out(self, block: _Block | None, copies: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Copy pieces of a block to where they belong, many by one launch, and count them as taken."""
        if block is None:
            return
        if len(copies) < _MANY:
            for target, source in copies:
                target.copy_(source)
        else:
            torch._foreach_copy_([target for target, _ in copies], [source for _, source in copies])
        self._release(block, len(copies))

    def close(self) -> None:
        """Stop, and let go of files and memory. Harmless when done twice."""
        self._is_stopped = True
        for pool in (self._sender, self._readers):
            pool.shutdown(wait=True, cancel_futures=True)
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files.clear()
        self._blocks.clear()
        self._pieces.clear()
        self._staging.free()

    def _send(self, block: _Block) -> None:
        if not block.is_sent:
            block.is_sent = True
            self._bytes_held += block.nbytes
            block.arrival = self._sender.submit(self._transfer, block)

    def _send_ahead(self) -> None:
        while self._next < len(self._blocks) and self._bytes_held < _AHEAD_BYTES:
            self._send(self._blocks[self._next])
            self._next += 1

    def _arrived(self, block: _Block) -> Tensor:
        """The block, whose bytes are there for everything that the current stream gets from now on."""
        if block.data is not None:
            return block.data
        assert block.arrival is not None
        while not wait([block.arrival], _LOOK_S).done:
            if self._is_cancelled():
                self._is_stopped = True
                raise Stopped
        arrived = block.arrival.result()
        if arrived.copied is not None:
            torch.cuda.current_stream(self._device).wait_event(arrived.copied)
        block.data = arrived.data
        return arrived.data

    def _release(self, block: _Block, n_pieces: int) -> None:
        block.n_left -= n_pieces
        if not block.n_left:
            self._bytes_held -= block.nbytes
            block.arrival = block.data = None

    # --- in the sender's thread --------------------------------------------------------------------------------------

    def _transfer(self, block: _Block) -> _Arrived:
        data = torch.empty(block.nbytes, dtype=torch.uint8, device=self._device)
        buffer = self._staging.room_for(data)
        view = memoryview(buffer.numpy().data)
        size = max(_STEP_BYTES, -(-block.nbytes // _READERS))
        spans = [(start, min(start + size, block.nbytes)) for start in range(0, block.nbytes, size)]
        descriptor = self._descriptor(block.path)
        reads = [self._readers.submit(self._read, descriptor, view, block.offset, *span) for span in spans[1:]]
        self._read(descriptor, view, block.offset, *spans[0])
        for read in reads:
            read.result()
        return _Arrived(data=data, copied=self._staging.send(data))

    def _descriptor(self, path: Path) -> int:
        if path not in self._files:
            self._files[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        return self._files[path]

    def _read(self, descriptor: int, view: memoryview, offset: int, start: int, stop: int) -> None:
        while start < stop:
            if self._is_stopped:
                raise Stopped
            n_read = os.preadv(descriptor, [view[start : min(start + _STEP_BYTES, stop)]], offset + start)
            if not n_read:
                raise OSError(f"the file ends at byte {offset + start}, before it")
            start += n_read


def _plan(wanted: Mapping[str, Extent]) -> tuple[list[_Block], dict[str, list[_Piece]]]:
    """The blocks to read, in order, and where each extent lies in them. Neighbours share a block."""
    blocks: list[_Block] = []
    pieces: dict[str, list[_Piece]] = {}
    for key, extent in wanted.items():
        pieces[key] = []
        start, end = extent.offset, extent.offset + extent.nbytes
        while start < end:
            block = blocks[-1] if blocks and _reaches(blocks[-1], extent.path, start) else None
            if block is None:
                blocks.append(block := _Block(path=extent.path, offset=start))
            at = start - block.offset
            nbytes = min(end - start, BLOCK_BYTES - at)
            pieces[key].append(_Piece(block=block, start=at, nbytes=nbytes))
            block.nbytes, block.n_left = at + nbytes, block.n_left + 1
            start += nbytes
    return blocks, pieces


def _reaches(block: _Block, path: Path, offset: int) -> bool:
    """Whether what is at `offset` can be the end of the block."""
    if block.path is not path and block.path != path:  # to compare two takes as long as all the rest
        return False
    at = offset - block.offset
    return block.nbytes <= at <= block.nbytes + _LARGEST_GAP and at < BLOCK_BYTES


class _Staging:
    """Pinned buffers on the way to a GPU, in turn; a CPU needs none. Where the system pins no memory, plain ones."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffers: list[Tensor] = []
        self._copied: list[torch.cuda.Event] = []  # of each buffer, what was in it last
        self._turn = 0
        self._stream: torch.cuda.Stream | None = None

    def room_for(self, data: Tensor) -> Tensor:
        """Where to put the bytes of `data`, which was allocated just now: a buffer that nothing is copied from."""
        if self._device.type == "cpu":
            return data
        if len(self._buffers) < _BUFFERS:
            self._buffers.append(_pinned(BLOCK_BYTES))
            self._copied.append(torch.cuda.Event())  # type: ignore[no-untyped-call]
        self._copied[self._turn].synchronize()
        return self._buffers[self._turn][: data.nbytes]

    def send(self, data: Tensor) -> torch.cuda.Event | None:
        """Copy the buffer to `data`. Returns the event after which it is there."""
        if self._device.type == "cpu":
            return None
        with torch.cuda.device(self._device):
            stream = self._stream = self._stream or torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
            # The memory of `data` may be what another tensor gave back, which kernels still read.
            stream.wait_stream(torch.cuda.current_stream(self._device))
            with torch.cuda.stream(stream):
                data.copy_(self._buffers[self._turn][: data.nbytes], non_blocking=True)
                copied = self._copied[self._turn] = torch.cuda.Event()  # type: ignore[no-untyped-call]
                copied.record(stream)
        self._turn = (self._turn + 1) % _BUFFERS
        return copied

    def free(self) -> None:
        """Let go of the buffers, once nothing is copied from them."""
        for copied in self._copied:
            copied.synchronize()
        self._buffers.clear()
        self._copied.clear()


def _pinned(nbytes: int) -> Tensor:
    try:
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
    except RuntimeError:  # a container's limit on locked memory; copies then wait, and are slower
        log.warning("%d bytes of memory cannot be pinned: loading is slower", nbytes)
        return torch.empty(nbytes, dtype=torch.uint8)
