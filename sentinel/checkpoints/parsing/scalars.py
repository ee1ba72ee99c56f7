"""The number in a tensor of one element, of which a ``data.pkl`` says only where it lies."""

from __future__ import annotations

import struct

from sentinel.checkpoints.reading import Opened
from sentinel.inert_pickle import Opaque

_LAYOUTS = {"float32": "<f", "int32": "<i", "int64": "<q"}


def place_of(found: Opened, value: Opaque) -> tuple[struct.Struct, int] | None:
    """How the number in a tensor of one float32, int32 or int64 is packed, and at which byte; None for anything else."""
    tensor = next((tensor for tensor in found.pickled.tensors if tensor.made is value and tensor.size == ()), None)
    layout = _LAYOUTS.get(tensor.dtype) if tensor else None
    record = found.archive.get(f"data/{tensor.storage.key}") if tensor else None
    if tensor is None or layout is None or record is None:
        return None
    at = tensor.view.offset * struct.calcsize(layout)
    return (struct.Struct(layout), record.data + at) if 0 <= at <= record.size - struct.calcsize(layout) else None
