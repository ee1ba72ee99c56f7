"""What torch.save's ``data.pkl`` says about tensors."""

from __future__ import annotations

import os
from dataclasses import dataclass

from sentinel import inert_pickle
from sentinel.checkpoints.files import Broken, NotKnown
from sentinel.checkpoints.parsing.floats import View
from sentinel.inert_pickle import Limits, Name, Opaque

# dtype -> bytes of one element
ITEM_BYTES: dict[str, int] = {
    "float32": 4, "float64": 8, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "int16": 2, "int8": 1,
    "uint8": 1, "uint16": 2, "uint32": 4, "uint64": 8, "bool": 1, "complex64": 8, "complex128": 16, "complex32": 4,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1,
    "quint8": 1, "qint8": 1, "qint32": 4, "quint4x2": 1, "quint2x4": 1, "float4_e2m1fn_x2": 1,
}  # fmt: skip
_STORAGES: dict[str, str] = {
    "FloatStorage": "float32", "DoubleStorage": "float64", "HalfStorage": "float16", "BFloat16Storage": "bfloat16",
    "LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16", "CharStorage": "int8",
    "ByteStorage": "uint8", "BoolStorage": "bool", "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128", "QUInt8Storage": "quint8", "QInt8Storage": "qint8",
    "QInt32Storage": "qint32", "UntypedStorage": "bytes", "QUInt4x2Storage": "quint4x2",
    "QUInt2x4Storage": "quint2x4",
}  # fmt: skip


MOST_DIMENSIONS = 64  # as numpy's; the product of very many lengths is a number whose length grows with each
_MEMORY_SETTING = "SENTINEL_PICKLE_MEMORY_MB"


def limits(data_bytes: int = 256 << 20) -> Limits:
    """What one pickle may take: 150 MB of objects, so that a check stays below 200 MB whatever it is given.

    A person who wants a larger one read says so in the environment, SENTINEL_PICKLE_MEMORY_MB.
    """
    text = os.environ.get(_MEMORY_SETTING, "")
    return Limits(data_bytes, (int(text) if text.isdigit() else 150) << 20)


def _size(shape: object = ()) -> tuple[object, ...]:
    if not isinstance(shape, tuple):
        raise TypeError("a shape that is no tuple")
    return shape


SHAPES: inert_pickle.Makers = {("torch", "Size"): _size}  # torch.Size is a tuple


@dataclass(slots=True)
class Storage:
    """One storage that a data.pkl refers to: record ``data/<key>`` of exactly ``bytes`` bytes."""

    key: str
    dtype: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor; ``made`` is the call in the pickle that makes it."""

    storage: Storage
    dtype: str
    size: tuple[int, ...]
    view: View
    made: Opaque


@dataclass(frozen=True, slots=True)
class Pickled:
    """A data.pkl, read: its value, the storages it refers to, the tensors it makes of them, the names it would import."""

    value: object
    storages: dict[str, Storage]
    tensors: list[Tensor]
    names: tuple[str, ...] = ()


def read_pickle(data: bytes, what: str) -> Pickled:
    """Read a data.pkl. `Broken` where it is none or where a tensor does not fit its storage."""
    storages: dict[str, Storage] = {}

    def persistent(reference: object) -> object:
        storage = read_storage_reference(reference, what)
        return storages.setdefault(storage.key, storage)

    try:
        value, census = inert_pickle.load_counted(data, persistent=persistent, makers=SHAPES, limits=limits())
    except inert_pickle.PickleTooLarge:
        raise
    except inert_pickle.PickleError as error:
        raise Broken(f"{what}: data.pkl: {error}") from None
    tensors = [tensor for item in census.tensors if (tensor := tensor_of(item, what))]
    return Pickled(value, storages, tensors, tuple(sorted({name.qualified for name in census.names})))


def read_storage_reference(reference: object, what: str) -> Storage:
    """A persistent id as torch writes it: ('storage', type, key, location, elements[, view])."""
    if (
        isinstance(reference, tuple)
        and len(reference) in (5, 6)
        and reference[0] == "storage"
        and isinstance(reference[1], Name)
        and isinstance(reference[2], str)
        and isinstance(reference[4], int)
        and reference[4] >= 0
    ):
        dtype = _STORAGES.get(reference[1].name, "")
        if dtype:
            return Storage(reference[2], dtype, reference[4] * ITEM_BYTES.get(dtype, 1))
    raise Broken(f"{what}: data.pkl: a storage that cannot be understood")


def tensor_of(item: Opaque, what: str) -> Tensor | None:
    """The tensor that this call makes of a storage; None where it makes none. `Broken` where it does not fit."""
    args = item.args
    if not isinstance(args, tuple) or len(args) < 4:
        return None
    storage, offset, size, stride = args[:4]
    if not isinstance(storage, Storage) or not isinstance(offset, int):
        return None
    shape, strides = integers(size), integers(stride)
    if shape is None or strides is None or len(shape) != len(strides):
        raise Broken(f"{what}: data.pkl: a tensor without a shape")
    dtype = storage.dtype
    if len(args) > 6 and isinstance(args[6], Name):  # a storage of bytes, of which each tensor states its own type
        dtype = args[6].name
    if all(shape):
        last = offset + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
        if offset < 0 or (last + 1) * ITEM_BYTES.get(dtype, 1) > storage.bytes:
            raise Broken(f"{what}: data.pkl: a tensor larger than its storage")
    return Tensor(storage, dtype, shape, View(offset, shape, strides), item)


def integers(value: object) -> tuple[int, ...] | None:
    """A tuple of whole numbers, also where it is wrapped as torch.Size; None for anything else.

    Raises:
        NotKnown: there are more of them than dimensions of a tensor that is looked at.
    """
    if isinstance(value, Opaque) and value.name == "Size" and isinstance(value.args, tuple) and len(value.args) == 1:
        value = value.args[0]
    if not isinstance(value, (tuple, list)):
        return None
    if len(value) > MOST_DIMENSIONS:
        raise NotKnown(f"a tensor of {len(value)} dimensions, more than this reader takes")
    for number in value:  # a loop: this is asked for every piece of a large checkpoint
        if type(number) is not int:
            return None
    return value if type(value) is tuple else tuple(value)
