"""Pickles and archives byte for byte as torch.save writes them, without torch."""

from __future__ import annotations

import io
import pickle
import struct
import zlib

DTYPES = {
    "float32": ("FloatStorage", 4),
    "bfloat16": ("BFloat16Storage", 2),
    "float16": ("HalfStorage", 2),
    "int32": ("IntStorage", 4),
    "int64": ("LongStorage", 8),
    "uint8": ("ByteStorage", 1),
}


class Name:
    """A global name in a pickle."""

    def __init__(self, module, name):
        self.module, self.name = module, name


class Call:
    """REDUCE: a name called with arguments."""

    def __init__(self, module, name, *args):
        self.maker, self.args = Name(module, name), args


class Made:
    """NEWOBJ and BUILD: an object of that class with that state."""

    def __init__(self, module, name, state):
        self.maker, self.state = Name(module, name), state


class Stored:
    """A persistent reference to a storage."""

    def __init__(self, key, dtype, count):
        self.reference = ("storage", Name("torch", DTYPES[dtype][0]), str(key), "cpu", count)


class Pickler(pickle._Pickler):
    def save(self, obj, save_persistent_id=True):
        if isinstance(obj, Name):
            if id(obj) in self.memo:
                self.write(self.get(self.memo[id(obj)][0]))
                return
            if self.proto >= 4:
                super().save(obj.module)
                super().save(obj.name)
                self.write(pickle.STACK_GLOBAL)
            else:
                self.write(pickle.GLOBAL + f"{obj.module}\n{obj.name}\n".encode())
            self.memoize(obj)
        elif isinstance(obj, Call):
            self.save(obj.maker)
            super().save(obj.args)
            self.write(pickle.REDUCE)
            self.memoize(obj)
        elif isinstance(obj, Made):
            self.save(obj.maker)
            self.write(pickle.EMPTY_TUPLE + pickle.NEWOBJ)
            self.memoize(obj)
            super().save(obj.state)
            self.write(pickle.BUILD)
        elif isinstance(obj, Stored):
            super().save(obj.reference)
            self.write(pickle.BINPERSID)
        else:
            super().save(obj, save_persistent_id)


def dumps(value, protocol=4):
    buffer = io.BytesIO()
    Pickler(buffer, protocol).dump(value)
    return buffer.getvalue()


def torch_zip(records, prefix="archive", crc=True):
    """An archive as torch's writer lays it out: stored, padded to 64, notes after the data, 64-bit end record."""
    out = bytearray()
    directory = bytearray()
    for name, data in records:
        full = f"{prefix}/{name}".encode()
        start = len(out)
        gap = (start + 30 + len(full) + 4) % 64
        padding = (64 - gap) % 64
        extra = b"FB" + struct.pack("<H", padding) + b"Z" * padding
        value = zlib.crc32(data) if crc else 0
        flags = 0x0808 if data else 0x0800
        out += struct.pack("<4s5H3L2H", b"PK\x03\x04", 0, flags, 0, 0, 0, 0, 0, 0, len(full), len(extra))
        out += full + extra + data
        if data:
            out += struct.pack("<4sLLL", b"PK\x07\x08", value, len(data), len(data))
        directory += struct.pack(
            "<4s6H3L5H2L", b"PK\x01\x02", 0, 0, flags, 0, 0, 0, value, len(data), len(data), len(full), 0, 0, 0, 0, 0,
            start,
        )  # fmt: skip
        directory += full
    offset, size, count = len(out), len(directory), len(records)
    end64 = struct.pack("<4sQ2H2L4Q", b"PK\x06\x06", 44, 0x031E, 45, 0, 0, count, count, size, offset)
    locator = struct.pack("<4sLQL", b"PK\x06\x07", 0, offset + size, 1)
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, count, count, size, offset, 0)
    return bytes(out + directory + end64 + locator + end)
