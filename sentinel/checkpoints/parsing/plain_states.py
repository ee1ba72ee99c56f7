"""States that NumPy and pickle wrote: ``.npy``, ``.npz``, ``.pkl``. Looked at for being whole; ``.npz`` records checksums.

A pickle is never run, and of one that is too large for memory its two ends are looked at.
"""

from __future__ import annotations

import ast
import math
import re
from dataclasses import dataclass

from sentinel import inert_pickle
from sentinel.checkpoints.files import Broken, Handle, NotKnown, Tree, opened
from sentinel.checkpoints.parsing import zips
from sentinel.checkpoints.parsing.tensors import MOST_DIMENSIONS, Pickled, limits
from sentinel.checkpoints.reading import Held, Opened, Work, archive_works

SUFFIXES = (".npy", ".npz", ".pkl", ".pickle")
PICKLE_BYTES = 48 << 20  # of all pickles of a save that are read
_MOST_ARRAYS = 1000
_HEADER_BYTES = 10_000  # NumPy's own limit
_JOBLIB = b"joblib.numpy_pickle"
_MAGIC = b"\x93NUMPY"
_TYPE = re.compile(r"[<>|=]?([biufcSVU?mM])(\d{1,6})")


@dataclass(slots=True)
class PickleBudget:
    """How much more of a save's pickles is read; one that is larger is judged by its ends, and costs nothing."""

    left_bytes: int


def check(tree: Tree, name: str, budget: PickleBudget, held: Held) -> list[Work]:
    """What is left to read: the records of a ``.npz`` whose checksums are recorded.

    Raises:
        Broken: cut short or damaged.
        NotKnown: more than is taken into memory, or compressed.
    """
    with opened(tree.path(name), name) as handle:
        if handle.size == 0:
            raise Broken(f"{handle.name}: empty")
        if name.endswith(".npz"):
            archive = zips.parse(handle.read, handle.size, handle.name)
            held.add(archive, handle.name)
            return list(archive_works(tree.path(name), name, Opened(archive, Pickled(None, {}, []))))
        if name.endswith(".npy"):
            _check_arrays(handle)
        else:
            _check_pickle(handle, budget)
    return []


def _check_arrays(handle: Handle) -> None:
    """One array as a rule; of several that were saved to one open file the first thousand are looked at."""
    at = 0
    for _ in range(_MOST_ARRAYS):
        end = _check_array(handle, at)
        if end is None or end >= handle.size:
            return
        at = end


def _check_array(handle: Handle, at: int) -> int | None:
    """Where the array that begins there ends; None where that is not known."""
    head = handle.read(at, min(12, handle.size - at))
    if head[:6] != _MAGIC or len(head) < 12:
        if at:
            raise Broken(f"{handle.name}: {handle.size} bytes, its array ends at {at}")
        raise Broken(
            f"{handle.name}: does not begin as an array of NumPy" + (" (zeros)" if not head.strip(b"\0") else "")
        )
    width = 2 if head[6] == 1 else 4
    length = int.from_bytes(head[8 : 8 + width], "little")
    start = at + 8 + width + length
    if length > _HEADER_BYTES or start > handle.size:
        raise Broken(f"{handle.name}: its header is cut short or damaged")
    try:
        told = ast.literal_eval(handle.read(at + 8 + width, length).decode("utf-8").strip())
        kind, shape = told["descr"], tuple(told["shape"])
        counted = len(shape) <= MOST_DIMENSIONS and all(type(n) is int and 0 <= n < 1 << 60 for n in shape)
    except (ValueError, SyntaxError, KeyError, TypeError, RecursionError, MemoryError):
        counted = False
    if not counted:
        raise Broken(f"{handle.name}: its header is damaged")
    # The unit of a time follows its size.
    match = _TYPE.fullmatch(kind.partition("[")[0]) if isinstance(kind, str) else None
    if match is None:
        return None  # objects, or records of several types: how long it must be is not known
    end: int = start + math.prod(shape) * int(match[2]) * (4 if match[1] == "U" else 1)
    if end > handle.size:
        raise Broken(f"{handle.name}: {handle.size} bytes, its array ends at {end}")
    return end


def _check_pickle(handle: Handle, budget: PickleBudget) -> None:
    head, end = handle.read(0, min(2, handle.size)), handle.read(handle.size - 1, 1)
    if not head.strip(b"\0"):
        raise Broken(f"{handle.name}: starts with zeros")
    if head[:1] != b"\x80":
        return  # compressed, or of protocol 0: nothing is shown
    if end != b".":
        raise Broken(f"{handle.name}: does not end as a pickle does (cut short?)")
    if handle.size > budget.left_bytes:
        return
    budget.left_bytes -= handle.size
    data = handle.read(0, handle.size)
    if _JOBLIB in data:
        return  # arrays lie between the parts of its pickle
    try:
        _, stop = inert_pickle.load_from(data, 0, limits=limits())
    except inert_pickle.PickleTooLarge as error:
        raise NotKnown(f"{handle.name}: {error}") from None
    except inert_pickle.PickleError as error:
        raise Broken(f"{handle.name}: {error}") from None
    if stop != handle.size:
        _check_more(handle, stop)


def _check_more(handle: Handle, at: int) -> None:
    """Some write several pickles into one file."""
    if handle.read(at, 1) != b"\x80":
        raise Broken(f"{handle.name}: {handle.size - at} bytes after its pickle")
