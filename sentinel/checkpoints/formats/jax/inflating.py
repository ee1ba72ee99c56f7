"""Inflates the compressed values of arrays, to see damage inside of them that lengths and ends do not show.

Their frames of zstd record no checksum as a rule, but most damage makes what is inflated impossible.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from typing import Any

from sentinel.checkpoints.files import Broken, Handle, Tree, opened
from sentinel.checkpoints.formats.dcp_parts.ends import first_frame
from sentinel.checkpoints.formats.dcp_parts.pieces import Item
from sentinel.checkpoints.formats.jax.ocdbt import FRAME, Span
from sentinel.checkpoints.reading import Work, batches

_READ_BYTES = 1 << 20
_MOST_BYTES = 4 << 30  # that one value is inflated to: a chunk is far smaller, and a made one may be of any size
_WINDOW_BYTES = 64 << 20  # of memory: compressors that are not asked for more use 8 MiB at most


class _Stretch:
    """A frame as something to read on from."""

    def __init__(self, handle: Handle, offset: int, length: int) -> None:
        self._handle, self._at, self._end = handle, offset, offset + length

    def read(self, count: int = -1) -> bytes:
        count = min(self._end - self._at, _READ_BYTES if count < 0 else count)
        data = self._handle.read(self._at, count)
        self._at += count
        return data


def works(tree: Tree, values: Iterable[Span]) -> Iterator[Work]:
    """Pieces of work that raise `Broken` for a value whose first frame cannot be inflated; none without the library."""
    try:
        library = importlib.import_module("zstandard")
    except ImportError:
        return
    framed = (span for span in values if span.length > len(FRAME))
    for batch, size in batches(framed, lambda span: span.length):
        yield _work(tree, batch, size, library)


def _work(tree: Tree, spans: list[Span], size: int, library: Any) -> Work:
    def run(buffer: bytearray) -> None:
        del buffer
        for span in spans:
            with opened(tree.path(span.file), span.file) as handle:
                if handle.read(span.offset, len(FRAME)) == FRAME:
                    _inflate(handle, span, library)

    return Work(size, run)


def _inflate(handle: Handle, span: Span, library: Any) -> None:
    length = first_frame(handle, Item("a value", span.file, span.offset, span.length, False))  # an index may follow
    decompressor = library.ZstdDecompressor(max_window_size=_WINDOW_BYTES)
    left = _MOST_BYTES
    try:
        with decompressor.stream_reader(_Stretch(handle, span.offset, length), read_size=_READ_BYTES) as reader:
            while left > 0 and (data := reader.read(_READ_BYTES)):
                left -= len(data)
    except library.ZstdError as error:
        if "memory" in str(error) or "window" in str(error).lower():
            return  # more than is taken into memory: nothing is shown
        raise Broken(f"{handle.name}: damaged zstd data in a value ({error!s:.80})", "checksum") from None
