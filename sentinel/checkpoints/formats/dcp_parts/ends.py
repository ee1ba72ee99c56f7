"""How the pieces of a distributed checkpoint begin and end: as archives of torch.save, or as frames of zstd."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from sentinel.checkpoints.files import Broken, Handle, Tree, opened
from sentinel.checkpoints.formats.dcp_parts.pieces import Item
from sentinel.checkpoints.reading import Work
from sentinel.text import visible

_ENDS_CHECKED = 50_000  # pieces whose two ends are looked at by a structural check; beyond, the ends of each file
_BLOCKS_LOOKED_AT = (
    64  # of a compressed piece by a structural check: 8 MB when uncompressed, as blocks hold at most 128 KB
)
_FRAME = b"\x28\xb5\x2f\xfd"
_SKIPPED = range(0x184D2A50, 0x184D2A60)  # frames that hold something else, to be stepped over
_MOST_BLOCK_BYTES = 128 << 10

Layout = Mapping[str, Sequence[Item]]


def works(tree: Tree, files: Layout) -> Iterator[Work]:
    """The ends of all pieces, a few files at a time."""
    count = 0
    for name in files:
        count += len(files[name])
        if count > _ENDS_CHECKED:
            break
    every = count <= _ENDS_CHECKED
    batch: list[str] = []
    for name in files:
        batch.append(name)
        if len(batch) >= 32:
            yield _ends_work(tree, batch, files, every)
            batch = []
    if batch:
        yield _ends_work(tree, batch, files, every)


def _ends_work(tree: Tree, names: list[str], files: Layout, every: bool) -> Work:
    def run(buffer: bytearray) -> None:
        del buffer
        for name in names:
            items = files[name]
            if items:
                with opened(tree.path(name), name) as handle:
                    _check_ends(handle, items, every)

    return Work(0, run)


def _check_ends(handle: Handle, items: Sequence[Item], every: bool) -> None:
    """Each piece starts and ends as an archive does. Where one ends the next starts: one read sees both."""
    looked = items if every else [items[0], *(() if len(items) == 1 else (items[-1],))]
    if looked[0].plain and handle.read(looked[0].offset, 4) != b"PK\x03\x04":
        raise Broken(f"{handle.name}: does not start with an archive ({_what_instead(handle, looked[0])})")
    for item, following in pairwise([*looked, None]):
        assert item is not None
        if not item.plain:
            check_frames(handle, item, _BLOCKS_LOOKED_AT)
        end = item.offset + item.length
        more = 4 if following is not None and following.offset == end and following.plain else 0
        data = handle.read(end - 22, 22 + more)
        if item.plain and data[:4] != b"PK\x05\x06":
            raise Broken(f"{handle.name}: {visible(item.name)} does not end as an archive does")
        if more and data[22:] != b"PK\x03\x04":
            assert following is not None
            raise Broken(f"{handle.name}: {visible(following.name)} does not start as an archive does")
        if following is not None and not more and following.plain:
            start = handle.read(following.offset, 4)
            if start != b"PK\x03\x04":
                raise Broken(f"{handle.name}: {visible(following.name)} does not start as an archive does")


def _what_instead(handle: Handle, item: Item) -> str:
    head = handle.read(item.offset, min(item.length, 64))
    return "zeros" if not head.strip(b"\0") else "something else"


def check_frames(handle: Handle, item: Item, most_blocks: int | None = None) -> None:
    """A compressed piece consists of whole frames, one after another up to its end (RFC 8878). Nothing is inflated.

    ``most_blocks``: look at so many blocks from the start only; the end is then checked where they reach it.
    """
    what = f"{handle.name}: {visible(item.name)}"
    position, end, blocks = item.offset, item.offset + item.length, 0
    while position < end:
        head = handle.read(position, min(18, end - position))
        if len(head) >= 8 and int.from_bytes(head[:4], "little") in _SKIPPED:
            position += 8 + int.from_bytes(head[4:8], "little")
            continue
        if len(head) < 6 or head[:4] != _FRAME:
            instead = "zeros" if not head.strip(b"\0") else "something else"
            raise Broken(f"{what}: no frame of zstd where one should start ({instead})")
        left = None if most_blocks is None else most_blocks - blocks
        position, seen, whole = _frame_end(handle, position, end, what, left)
        blocks += seen
        if not whole:
            return
    if position != end:
        raise Broken(f"{what}: its last frame is cut short")


def first_frame(handle: Handle, item: Item) -> int:
    """How long the frame is with which a piece begins; `Broken` where its blocks do not end in the piece."""
    what = f"{handle.name}: {visible(item.name)}"
    return _frame_end(handle, item.offset, item.offset + item.length, what, None)[0] - item.offset


def _frame_end(handle: Handle, position: int, end: int, what: str, most_blocks: int | None) -> tuple[int, int, bool]:
    """Behind how much of a frame was looked at, how many blocks that were, and whether it was all of it."""
    head = handle.read(position, min(18, end - position))
    position += _frame_header_bytes(head, what)
    last, blocks = False, 0
    while not last:
        if position + 3 > end:
            raise Broken(f"{what}: its last frame is cut short")
        block = int.from_bytes(handle.read(position, 3), "little")
        last, kind, size = bool(block & 1), block >> 1 & 3, block >> 3
        if kind == 3 or size > _MOST_BLOCK_BYTES or (kind == 2 and not size):
            raise Broken(f"{what}: a damaged block in a frame of zstd")
        position += 3 + (1 if kind == 1 else size)
        blocks += 1
        if most_blocks is not None and blocks >= most_blocks and not last:
            return position, blocks, False
    position += 4 if head[4] & 4 else 0  # its own checksum, of the uncompressed bytes
    return position, blocks, True


def _frame_header_bytes(head: bytes, what: str) -> int:
    flags = head[4]
    if flags & 8:
        raise Broken(f"{what}: a damaged frame of zstd")
    single = bool(flags & 0x20)
    content = (1 if single else 0, 2, 4, 8)[flags >> 6]
    return 5 + (0 if single else 1) + (0, 1, 2, 4)[flags & 3] + content
