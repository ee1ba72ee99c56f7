"""Read a pickle without running it.

Checkpoints describe themselves with pickles (DCP's ``.metadata``, ``data.pkl`` in a torch.save file), and a pickle is a
program. This reader interprets its opcodes and builds plain data only: numbers, text, bytes, tuples, lists, dicts, and
`Inert` in the place of every object. Nothing is imported and nothing is called. A hostile pickle cannot exhaust the
memory: a first pass walks the opcodes, refuses those that no checkpoint needs, checks every length against the bytes
that are there, adds up what the objects would take, and notes which memo entries are ever read back (only those are
kept, which also halves the memory for honest pickles).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from sentinel.checkpoints.pickle_machine import Machine, number
from sentinel.checkpoints.pickle_values import Global, Inert, PickleError, PickleTooLarge

__all__ = ["Census", "Global", "Inert", "PickleError", "PickleTooLarge", "load", "load_counted", "load_from"]

_MEMORY_SETTING = "SENTINEL_PICKLE_MEMORY_MB"


def _allowed_bytes() -> int:
    """What the objects of one pickle may take: 150 MB, so that a check stays below 200 MB whatever it is given.

    The metadata of a very large job (beyond some 70,000 pieces: ranks x tensors) needs more: a person who wants it read
    says so in the environment, SENTINEL_PICKLE_MEMORY_MB.
    """
    text = os.environ.get(_MEMORY_SETTING, "")
    return (int(text) if text.isdigit() else 150) << 20


MEMORY_BYTES = _allowed_bytes()


# opcode -> bytes of its fixed argument, or: -1 a line, -2 two lines, -3, -4, -8 a length of 1, 4 or 8 bytes and so many
_SIZES: dict[int, int] = {
    **dict.fromkeys(b"(.012NRabd}el]ost)uQ\x81\x85\x86\x87\x88\x89\x8f\x90\x91\x92\x93\x94", 0),
    **dict.fromkeys(b"Khq\x80", 1),
    **dict.fromkeys(b"M", 2),
    **dict.fromkeys(b"Jjr", 4),
    **dict.fromkeys(b"G\x95", 8),
    **dict.fromkeys(b"FILSVgpP", -1),
    **dict.fromkeys(b"ci", -2),
    **dict.fromkeys(b"\x8cCU\x8a", -3),
    **dict.fromkeys(b"XBT\x8b", -4),
    **dict.fromkeys(b"\x8d\x8e\x96", -8),
}
# What one opcode may add to the memory, beside the bytes of its argument.
_WEIGHT = [8] * 256
for _op in b"}]\x8f\x91ldu":
    _WEIGHT[_op] = 96
for _op in b"R\x81\x92iocs\x93t\x85\x86\x87QP(":
    _WEIGHT[_op] = 72
for _op in b"JMGFIL\x8a\x8b":
    _WEIGHT[_op] = 32
for _op in b"\x8cXVSUTBC\x8d\x8e\x96":
    _WEIGHT[_op] = 60
_SIZE_OF = [_SIZES.get(_op, -99) for _op in range(256)]


def _survey(data: bytes, start: int, budget_bytes: int) -> tuple[set[int], int]:
    """The memo entries that are read back, and where the pickle ends.

    Refuses unknown opcodes, lengths past the end and what would not fit.
    """
    size_of, weight = _SIZE_OF, _WEIGHT
    position, end, cost, frame_end = start, len(data), 0, 0
    wanted: set[int] = set()
    find = data.find
    while position < end:
        op = data[position]
        position += 1
        size = size_of[op]
        cost += weight[op]
        if size == 0:
            if op == 0x2E:
                break
            continue
        if size > 0:
            if op == 0x68 and position < end:
                wanted.add(data[position])
            elif op == 0x6A:
                wanted.add(int.from_bytes(data[position : position + 4], "little"))
            elif op == 0x95:
                frame_end = position + 8 + int.from_bytes(data[position : position + 8], "little")
                if frame_end > end:
                    raise PickleError("a frame that reaches past its end")
            elif op == 0x80 and data[position : position + 1] > b"\x05":
                raise PickleError("an unknown protocol")
            position += size
        elif size >= -2:
            for _ in range(-size):
                newline = find(b"\n", position)
                if newline < 0:
                    raise PickleError("a line that does not end")
                if op == 0x67:
                    wanted.add(number(data[position:newline]))
                position = newline + 1
        elif size == -99:
            raise PickleError(f"opcode {op:#x}, which no checkpoint needs")
        else:
            width = 1 if size == -3 else -size
            length = int.from_bytes(data[position : position + width], "little")
            position += width + length
            cost += length
        if position > end:
            raise PickleError("ends in the middle of a value")
        if cost > budget_bytes:
            break
    else:
        raise PickleError("ends without its end mark")
    if cost > budget_bytes:
        raise PickleTooLarge(f"describes more than {budget_bytes >> 20} MB of objects ({_MEMORY_SETTING} allows more)")
    if frame_end not in (0, position):
        raise PickleError("its last frame does not end where it ends")
    return wanted, position


def load(
    data: bytes,
    *,
    persistent: Callable[[object], object] | None = None,
    budget_bytes: int = MEMORY_BYTES,
) -> object:
    """The value that the pickle describes, as plain data. Raises `PickleError`; never anything else."""
    value, end = load_from(data, 0, persistent=persistent, budget_bytes=budget_bytes)
    if end != len(data):
        raise PickleError("bytes after its end mark")
    return value


@dataclass(frozen=True, slots=True)
class Census:
    """The names that a pickle would import, and of its objects the class and fields, each once."""

    names: list[Global]
    tensors: list[Inert]  # calls that make a tensor
    fields: list[tuple[str, tuple[object, ...]]]


def load_counted(
    data: bytes,
    *,
    persistent: Callable[[object], object] | None = None,
    budget_bytes: int = MEMORY_BYTES,
) -> tuple[object, Census]:
    """`load`, and what the pickle names."""
    wanted, end = _survey(data, 0, budget_bytes)
    if end != len(data):
        raise PickleError("bytes after its end mark")
    machine = Machine(data, wanted, persistent)
    value = machine.read()
    return value, Census(list(machine.names.values()), machine.tensors, list(machine.fields))


def load_from(
    data: bytes,
    start: int,
    *,
    persistent: Callable[[object], object] | None = None,
    budget_bytes: int = MEMORY_BYTES,
) -> tuple[object, int]:
    """The value of the pickle that starts there, and where it ends."""
    wanted, end = _survey(data, start, budget_bytes)
    machine = Machine(data, wanted, persistent)
    machine.position = start
    return machine.read(), end
