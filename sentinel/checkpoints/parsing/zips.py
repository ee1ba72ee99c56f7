"""The zip archives that torch.save writes, read strictly.

torch stores records uncompressed, one after another without gaps, each with its CRC-32; torch.load does not check the
CRC and neither does DCP. Every byte of such an archive is accounted for here: a header that disagrees with the
directory, a gap, padding that is not padding, or a record whose CRC differs, and it is not what was written. Of a
program's archive (TorchScript) the code and its debug information are compressed, and nothing else may be. They are inflated
piece by piece up to the length that is stated, and only where all of an archive is small, so a zip bomb does no harm.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass

from sentinel.checkpoints.files import Broken, Foreign, NotKnown, PerhapsForeign
from sentinel.text import visible

_DIRECTORY_LIMIT_BYTES = 48 << 20
# Each takes 0.5 kB while an archive is read. Of 100,000 tensors with three more of the optimizer for each, a single file has
# 400,000.
MOST_RECORDS = 500_000
_INFLATED_LIMIT_BYTES = 64 << 20  # of one archive: code and its debug information are small
# What torch compresses beside code, where it is of more than 200 bytes: it maps a program's instructions to source lines.
_DEBUG_INFORMATION = ("callstack_debug_map.pkl", "delegated_backends.debug_pkl")
_END = struct.Struct("<4s4H2LH")
_LOCATOR = struct.Struct("<4sLQL")
_END64 = struct.Struct("<4sQ2H2L4Q")
_CENTRAL = struct.Struct("<4s4B4HL2L5H2L")
_LOCAL = struct.Struct("<4s2B4HL2L2H")
_DEFLATED = 8
_END64_MAKERS = (0x031E, 45, 0x032D)  # miniz in torch; Python's zipfile

# torch.save begins with data.pkl. Programs (TorchScript, torch.export, torch.package) begin with their data or their code.
_DATA_FIRST = re.compile(rb"[^/]+/data/\d+")
_PROGRAM_FIRST = re.compile(rb"[^/]+/(data/\d+|constants/\d+|constants\.pkl|code/.+|archive_format|\.data/version)")

Reader = Callable[[int, int], bytes]


@dataclass(frozen=True, slots=True)
class Record:
    """One stored record. Offsets count from the start of the archive."""

    name: str
    header: int
    data: int
    size: int
    crc: int
    packed: int  # bytes that it takes in the archive: another number than its size where it is deflated
    deflated: bool


@dataclass(frozen=True, slots=True)
class Archive:
    """The directory of one archive whose structure has been checked."""

    records: dict[str, Record]
    prefix: str  # torch puts every record below one name

    def get(self, name: str) -> Record | None:
        return self.records.get(f"{self.prefix}/{name}")

    @property
    def has_checksums(self) -> bool:
        """False where the job switched CRCs off: then every CRC field is zero, also of what is not empty."""
        return any(r.crc for r in self.records.values()) or not any(r.size for r in self.records.values())


def looks_like_zip(head: bytes) -> bool:
    return head[:4] == b"PK\x03\x04"


def refuse_program(read: Reader, length: int, what: str) -> None:
    """`Foreign` for the archive of a program, `NotKnown` where it may be one; what torch.save wrote passes, also damaged."""
    lead = read(0, min(length, 256))
    size = int.from_bytes(lead[26:28], "little")
    first = lead[30 : 30 + size]
    if _DATA_FIRST.fullmatch(first):  # so begins a block of torch.save's that is not in its place, too
        try:
            parse(read, length, what, program=True)
        except Broken as error:
            raise PerhapsForeign(f"{what}: begins as a program, and is none that is whole: {error.reason}") from None
    if _PROGRAM_FIRST.fullmatch(first):
        raise Foreign(f"{what}: a program (TorchScript, torch.export or torch.package), no training state")
    if length >= 22 and read(length - 22, 4) == b"PK\x05\x06":
        _, directory, offset, position = _end_record(read, length, what)
        if directory <= _DIRECTORY_LIMIT_BYTES and offset + directory == position:
            names = read(offset, directory)
            if b"/constants.pkl" in names and b"/code/" in names:
                raise Foreign(f"{what}: a program (TorchScript), no training state")


def refuse_to_inflate(archive: Archive, what: str) -> None:
    """`NotKnown` for an archive of which more is compressed than code and what is for debugging, or much of these."""
    inflated = 0
    debug_information = [f"{archive.prefix}/{name}" for name in _DEBUG_INFORMATION]
    for record in archive.records.values():
        if not record.deflated:
            continue
        if not record.name.startswith(f"{archive.prefix}/code/") and record.name not in debug_information:
            raise NotKnown(
                f"{what}: {visible(record.name)} is compressed, which torch does only to code and what is for debugging;"
                " not inflated"
            )
        inflated += record.size
        if inflated > _INFLATED_LIMIT_BYTES:
            raise NotKnown(f"{what}: compressed code of {inflated} bytes and more, more than is inflated here")


def archive_start(read: Reader, end: int, what: str) -> int:
    """Where the archive starts that ends at ``end``: found from its own end record."""
    count, size, offset, position = _end_record(read, end, what)
    del count
    start = position - size - offset
    if start < 0:
        raise Broken(f"{what}: the end record points before the start of the file")
    return start


def _end_record(read: Reader, length: int, what: str) -> tuple[int, int, int, int]:
    """(entries, directory size, directory offset, position of the first end record), from the last bytes."""
    if length < 22:
        raise Broken(f"{what}: {length} bytes, too short for an archive")
    tail = read(max(0, length - 98), min(98, length))
    if tail[-22:-18] != b"PK\x05\x06":
        raise Broken(f"{what}: no end record where the archive should end (truncated, or overwritten)")
    _, disk, disk0, here, count, size, offset, comment = _END.unpack(tail[-22:])
    if disk or disk0 or here != count or comment:
        raise Broken(f"{what}: damaged end record")
    position = length - 22
    if len(tail) == 98 and tail[56:60] == b"PK\x06\x07" and tail[:4] == b"PK\x06\x06":
        _, disk64, at, disks = _LOCATOR.unpack(tail[56:76])
        _, record, made, need, d0, d1, here64, count64, size64, offset64 = _END64.unpack(tail[:56])
        odd = made not in _END64_MAKERS or need != 45  # 4.5 is the version of the format that has 64-bit sizes
        if disk64 or disks != 1 or record != 44 or d0 or d1 or here64 != count64 or odd:
            raise Broken(f"{what}: damaged end record (64 bit)")
        small = ((count, count64, 0xFFFF), (size, size64, 0xFFFFFFFF), (offset, offset64, 0xFFFFFFFF))
        if any(short not in (wide, full) for short, wide, full in small) or at != offset64 + size64:
            raise Broken(f"{what}: the two end records disagree")
        count, size, offset, position = count64, size64, offset64, length - 98
    return count, size, offset, position


def parse(read: Reader, length: int, what: str, *, program: bool = False) -> Archive:
    """The records of the archive that ``read`` gives, checked down to the last byte that is not payload.

    ``program``: some of its records may be deflated.
    """
    count, size, offset, position = _end_record(read, length, what)
    if size > _DIRECTORY_LIMIT_BYTES:
        raise NotKnown(f"{what}: a directory of {size} bytes, more than this reader takes")
    if count > MOST_RECORDS:
        raise NotKnown(f"{what}: {count} records, more than this reader takes")
    if offset + size != position or size < 46 * count:
        raise Broken(f"{what}: the directory does not end where the end record begins")
    if not count:
        raise Broken(f"{what}: an archive without records")
    central = _central(read(offset, size), count, what, program=program)
    records: dict[str, Record] = {}
    expected = 0
    for entry in central:
        if entry.header != expected:
            raise Broken(f"{what}: a gap or an overlap before record {visible(entry.name)}")
        data, expected = _local(read, entry, offset, what)
        if entry.name in records:
            raise Broken(f"{what}: two records named {visible(entry.name)}")
        deflated = entry.fixed[3] == _DEFLATED
        records[entry.name] = Record(entry.name, entry.header, data, entry.size, entry.crc, entry.packed, deflated)
    if expected != offset:
        raise Broken(f"{what}: a gap before the directory")
    prefix = next(iter(records)).partition("/")[0]
    return Archive(records, prefix)


@dataclass(frozen=True, slots=True)
class _Entry:
    """One entry of the directory; ``fixed``: what the header of the record repeats."""

    name: str
    header: int
    size: int
    packed: int
    crc: int
    fixed: tuple[int, ...]


def _central(data: bytes, count: int, what: str, *, program: bool) -> list[_Entry]:
    """Directory entries in the order of the file."""
    found: list[_Entry] = []
    position = 0
    shape: tuple[int, ...] | None = None
    methods: dict[bool, tuple[int, ...]] = {}
    seen: set[int] = set()
    for _ in range(count):
        if position + 46 > len(data):
            raise Broken(f"{what}: the directory ends early")
        (sig, made, system, need, need_hi, flags, method, time, date, crc, packed, size, names, extras, comments,
         disk, internal, external, header) = _CENTRAL.unpack_from(data, position)  # fmt: skip
        stop = position + 46 + names + extras + comments
        if sig != b"PK\x01\x02" or stop > len(data) or comments or disk:
            raise Broken(f"{what}: damaged directory entry")
        name = data[position + 46 : position + 46 + names].decode("utf-8", "surrogateescape")
        extra = data[position + 46 + names : position + 46 + names + extras]
        if 0xFFFFFFFF in (packed, size, header):
            size, packed, header = _wide(extra, size, packed, header, what)
        # torch flags empty records differently; in all else the entries of one writer are alike
        deflated = program and method == _DEFLATED
        now, of_method = (made, system, internal, external), (need, need_hi, method)
        alike = shape in (None, now) and of_method == methods.setdefault(deflated, of_method)
        if not alike or (seen and size and not deflated and flags not in seen):
            raise Broken(f"{what}: directory entries that do not look alike")
        shape = now
        seen |= {flags} if size and not deflated else set()
        if method != 0 and not deflated:
            raise NotKnown(f"{what}: compressed records, which torch does not write; not inflated")
        if flags & 1 or (packed != size and not deflated):
            raise Broken(f"{what}: damaged directory entry for {visible(name)}")
        found.append(_Entry(name, header, size, packed, crc, (need, need_hi, flags, method, time, date)))
        position = stop
    if position != len(data):
        raise Broken(f"{what}: bytes left over in the directory")
    return sorted(found, key=lambda entry: entry.header)


def _wide(extra: bytes, size: int, packed: int, header: int, what: str) -> tuple[int, int, int]:
    """64-bit sizes from the extra field, in the order that the format prescribes."""
    position = 0
    while position + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, position)
        body = extra[position + 4 : position + 4 + length]
        if kind == 1:
            values = [int.from_bytes(body[i : i + 8], "little") for i in range(0, len(body) - 7, 8)]
            wide = iter(values)
            full = 0xFFFFFFFF
            size = next(wide, -1) if size == full else size
            packed = next(wide, -1) if packed == full else packed
            header = next(wide, -1) if header == full else header
            if min(size, packed, header) < 0:
                break
            return size, packed, header
        position += 4 + length
    raise Broken(f"{what}: a 64-bit record without its sizes")


def _local(read: Reader, entry: _Entry, directory: int, what: str) -> tuple[int, int]:
    """(where the payload starts, where the next record must start), after comparing with the directory."""
    name, header, crc = entry.name, entry.header, entry.crc
    if header + 30 > directory:
        raise Broken(f"{what}: record {visible(name)} starts in the directory")
    raw = name.encode("utf-8", "surrogateescape")
    lead = read(header, min(30 + len(raw) + 160, directory - header))
    sig, need, need_hi, flags, method, time, date, crc_here, packed, plain, names, extras = _LOCAL.unpack_from(lead)
    data = header + 30 + names + extras
    if (
        sig != b"PK\x03\x04"
        or lead[30 : 30 + names] != raw
        or (need, need_hi, flags, method, time, date) != entry.fixed
    ):
        raise Broken(f"{what}: the header of record {visible(name)} is not what the directory says")
    if data + entry.packed > directory:
        raise Broken(f"{what}: record {visible(name)} reaches into the directory")
    extra = lead[30 + names : 30 + names + extras]
    if len(extra) < extras:
        extra = read(header + 30 + names, extras)
    if extra[:2] == b"FB":  # torch's padding, up to the alignment of the payload
        count = int.from_bytes(extra[2:4], "little")
        if extra[4:] not in (b"Z" * count, bytes(count)):
            raise Broken(f"{what}: damaged padding before record {visible(name)}")
    elif extra and extra[:2] != b"\x01\0":
        raise NotKnown(f"{what}: record {visible(name)} has an extra field that torch does not write")
    end = data + entry.packed
    if not flags & 8:
        if crc_here != crc or packed not in (entry.packed, 0xFFFFFFFF) or plain not in (entry.size, 0xFFFFFFFF):
            raise Broken(f"{what}: the header of record {visible(name)} is not what the directory says")
        return data, end
    if crc_here or packed not in (0, 0xFFFFFFFF) or plain not in (0, 0xFFFFFFFF):
        raise Broken(f"{what}: the header of record {visible(name)} is not what was written")
    note = read(end, min(24, directory - end))
    for layout in ("<4sLLL", "<4sLQQ"):
        width = struct.calcsize(layout)
        if len(note) >= width and struct.unpack_from(layout, note) == (b"PK\x07\x08", crc, entry.packed, entry.size):
            return data, end + width
    raise Broken(f"{what}: no matching note after record {visible(name)}")
