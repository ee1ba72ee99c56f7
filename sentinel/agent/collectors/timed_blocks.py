"""Reads the blocks of a log within a time each: what takes longer is left out, and the rest behind it is read.

A follower that says nothing for too long is killed and started again, where it was: without a limit of its own it would come
back to the same lines for ever.
"""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Callable, Iterator
from typing import TypeVar

from sentinel.adapters.host.logfile import Block
from sentinel.model.records import Evidence

PARTS = 16  # of a block that takes too long; at least a line each

_Found = TypeVar("_Found")


class TooLong(BaseException):
    """Raised by the clock in whatever runs; no handler of ordinary errors takes it."""


def in_time(work: Callable[[], _Found], limit_s: float) -> _Found | None:
    """What ``work`` returns; None where it took longer, and was broken off. In the main thread only.

    Python's own expressions (``re``) look for signals while they search, so that they are broken off too.
    """
    runs = [True]

    def stop(*_: object) -> None:
        if runs[0]:
            raise TooLong

    before = signal.signal(signal.SIGALRM, stop)
    try:
        signal.setitimer(signal.ITIMER_REAL, limit_s, limit_s)  # again: what runs may have lost the first
        found = work()
        runs[0] = False
        return found
    except TooLong:
        return None
    finally:
        runs[0] = False
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def read_in_time(
    block: Block,
    read: Callable[[Block], list[Evidence]],
    forget: Callable[[], None],
    alive: Callable[[], None],
    limit_s: float,
) -> Iterator[tuple[list[Evidence], str]]:
    """What ``read`` finds in the block, or in one part after the other where all of it takes longer than ``limit_s``.

    Args:
        forget: begin anew behind what was broken off, which may have left a state that is none.
        alive: says that this goes on; called before each part.

    Yields:
        what was found, and why lines were left out; one of them is empty.
    """
    found = in_time(lambda: read(block), limit_s)
    if found is not None:
        yield found, ""
        return
    for part in _parts_of(block):
        if found is None:
            forget()
        alive()
        found = in_time(lambda part=part: read(part), limit_s)  # type: ignore[misc]
        if found is None:
            last = part.first_line + max(0, part.content.count(b"\n") - 1)
            size = len(part.content)
            yield [], f"lines {part.first_line} to {last} ({size} bytes) take more than {limit_s:g} s to read: left out"
        else:
            yield found, ""
    if found is None:
        forget()


def _parts_of(block: Block) -> Iterator[Block]:
    least, at, line, fresh = max(1, len(block.content) // PARTS), 0, block.first_line, block.fresh
    while at < len(block.content):
        end = block.content.find(b"\n", min(at + least, len(block.content)) - 1) + 1 or len(block.content)
        part = dataclasses.replace(block, content=block.content[at:end], first_line=line, fresh=fresh)
        at, line, fresh = end, line + part.content.count(b"\n"), False
        yield part
