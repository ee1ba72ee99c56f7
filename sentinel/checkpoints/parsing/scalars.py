"""The number in a tensor of one element, of which a ``data.pkl`` says only where it lies."""

from __future__ import annotations

import struct

from sentinel.checkpoints.parsing.tensors import Tensor
from sentinel.checkpoints.reading import Opened
from sentinel.inert_pickle import Opaque

_LAYOUTS = {"float32": "<f", "int32": "<i", "int64": "<q"}


def place_of(found: Opened, value: Opaque) -> tuple[struct.Struct, int] | None:
    """How the number in a tensor of one float32, int32 or int64 is packed, and at which byte; None for anything else."""
    tensor = next((tensor for tensor in found.pickled.tensors if _is(value, tensor)), None)
    layout = _LAYOUTS.get(tensor.dtype) if tensor else None
    record = found.archive.get(f"data/{tensor.storage.key}") if tensor else None
    if layout is None or record is None or record.size < struct.calcsize(layout):
        return None
    return struct.Struct(layout), record.data


def _is(value: Opaque, tensor: Tensor) -> bool:
    args = value.args
    return isinstance(args, tuple) and bool(args) and args[0] is tensor.storage and not any(tensor.size)
