"""Answers of a running job: the debug endpoints of a PyTorch worker, and py-spy.

Pure: bytes in, records out; who asks, and how often, is an adapter's business. What a process says of itself is what its
user's program may have made it say.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

from sentinel.model.live_collectives import Stack, StackGroups

MAX_BYTES = 32 << 20
_MAX_FRAMES = 64
_SPIED = re.compile(r"^Thread (?:0x)?[0-9a-fA-F]{1,32}[^\"\n]{0,60}(?:\"([^\"\n]{0,100})\")?")
_SPIED_FRAME = re.compile(r"^\s+(\S.{0,200}?) \(([^()\n]{1,400}:\d{1,9})\)$")
_THREAD = re.compile(r"^(?:Current thread|Thread) 0x[0-9a-fA-F]+")
_FRAME = re.compile(r'^\s+File "([^"]{0,400})", line (\d{1,9})(?: in (.{1,200}))?$')


def read_stack(data: bytes) -> Stack | None:
    """The main thread in an answer of ``dump_traceback``: the one whose outermost frame is a module. None: no such."""
    threads: list[list[tuple[str, str]]] = []
    for line in data[:MAX_BYTES].decode("utf-8", "replace").splitlines():
        if _THREAD.match(line):
            threads.append([])
        elif threads and (frame := _FRAME.match(line)) and len(threads[-1]) < _MAX_FRAMES:
            name = frame[3] or ""
            threads[-1].append((name, f"{name} ({frame[1]}:{frame[2]})"))
    main = [thread for thread in threads if thread and thread[-1][0] == "<module>"]
    chosen = main or [thread for thread in threads if thread][-1:]
    return Stack(tuple(text for _, text in chosen[-1])) if chosen else None


def read_py_spy(data: bytes) -> Stack | None:
    """The main thread in the output of ``py-spy dump``: by its name, else by its outermost frame, a module."""
    threads: list[tuple[str, list[tuple[str, str]]]] = []
    for line in data[:MAX_BYTES].decode("utf-8", "replace").splitlines():
        if heading := _SPIED.match(line):
            threads.append((heading[1] or "", []))
        elif threads and (frame := _SPIED_FRAME.match(line)) and len(threads[-1][1]) < _MAX_FRAMES:
            threads[-1][1].append((frame[1], f"{frame[1]} ({frame[2]})"))
    found = [frames for name, frames in threads if name == "MainThread" and frames]
    found = found or [frames for _, frames in threads if frames and frames[-1][0] == "<module>"]
    return Stack(tuple(text for _, text in found[0])) if found else None


def group_stacks(stacks: Mapping[int, Stack]) -> StackGroups:
    """Ranks by the frames they are in; the stack of most ranks is taken as the one that waits."""
    kinds = Counter(stack.frames for stack in stacks.values())
    if not kinds:
        return StackGroups((), (), {}, clear=False)
    dominant = max(kinds, key=lambda frames: (kinds[frames], frames))
    inside = tuple(sorted(rank for rank, stack in stacks.items() if stack.frames == dominant))
    outliers = {rank: stacks[rank].frames for rank in sorted(stacks) if stacks[rank].frames != dominant}
    return StackGroups(dominant, inside, outliers, clear=2 * len(inside) > len(stacks))
