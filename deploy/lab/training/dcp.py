"""Checkpoints in PyTorch's DCP layout without PyTorch: what the stand-in writes and reads.

Each item is a Python object in a torch.save zip (with its CRC-32), the table of items is a pickle of DCP's own record types.
Those types are imported by name when a real torch reads the file, so here they stand in modules of the same names.
Must hold: `torch.distributed.checkpoint` loads what is written here.
"""

from __future__ import annotations

import io
import os
import pickle
import sys
import types
import zipfile
from pathlib import Path
from typing import Any

METADATA = "torch.distributed.checkpoint.metadata"
FILESYSTEM = "torch.distributed.checkpoint.filesystem"

Table = dict[str, tuple[str, int, int]]  # item -> file, offset, length


class Record:
    """A plain object whose pickle is that of a dataclass: class name and attributes."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash((type(self).__name__, *sorted((k, str(v)) for k, v in self.__dict__.items())))


def _types() -> dict[str, type[Record]]:
    """DCP's record types under their own names; never called in a process that has torch imported."""
    if "torch" in sys.modules and not hasattr(sys.modules["torch"], "_lab_standin"):
        raise RuntimeError("lab.training.dcp stands in for torch and cannot live beside it")
    made: dict[str, type[Record]] = {}
    for name in ("torch", "torch.distributed", "torch.distributed.checkpoint", METADATA, FILESYSTEM):
        module = sys.modules.setdefault(name, types.ModuleType(name))
        module.__dict__.setdefault("_lab_standin", True)
    wanted = {
        METADATA: ("Metadata", "MetadataIndex", "BytesStorageMetadata", "StorageMeta"),
        FILESYSTEM: ("_StorageInfo",),
    }
    for module_name, names in wanted.items():
        module = sys.modules[module_name]
        for name in names:
            if not hasattr(module, name):
                setattr(module, name, type(name, (Record,), {"__module__": module_name}))
            made[name] = getattr(module, name)
    return made


def item(value: object) -> bytes:
    """torch.save of a plain Python object."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(value, protocol=2))
        archive.writestr("archive/byteorder", "little")
        archive.writestr("archive/version", "3\n")
    return out.getvalue()


def write_part(where: Path, rank: int, items: dict[str, object]) -> Table:
    """Write a rank's items into its file; gives where each one lies."""
    where.mkdir(parents=True, exist_ok=True)
    name = f"__{rank}_0.distcp"
    table: Table = {}
    with (where / name).open("wb") as out:
        for key, value in items.items():
            raw = item(value)
            table[key] = (name, out.tell(), len(raw))
            out.write(raw)
        out.flush()
        os.fsync(out.fileno())
    return table


def write_table(path: Path, table: Table) -> None:
    """The metadata file; it appears whole or not at all."""
    kinds = _types()
    index = {
        kinds["MetadataIndex"](fqn=key, offset=None, index=None): kinds["_StorageInfo"](
            relative_path=name, offset=offset, length=length, transform_descriptors=None
        )
        for key, (name, offset, length) in table.items()
    }
    record = kinds["Metadata"](
        state_dict_metadata={key: kinds["BytesStorageMetadata"]() for key in table},
        planner_data=dict.fromkeys(table),
        storage_data=index,
        storage_meta=kinds["StorageMeta"](checkpoint_id=str(path.parent), save_id=None, load_id=None, modules=[]),
        version="1.0.0",
    )
    partial = path.with_name(path.name + ".tmp")
    with partial.open("wb") as out:
        pickle.dump(record, out)
        out.flush()
        os.fsync(out.fileno())
    partial.replace(path)


def read(where: Path, metadata: str, keys: list[str], optional: tuple[str, ...] = ()) -> dict[str, Any]:
    """Items of a checkpoint of our own; of the ``optional`` ones those that are in it.

    Raises:
        FileNotFoundError, KeyError, ValueError, zipfile.BadZipFile: it is not whole.
    """
    _types()
    with (where / metadata).open("rb") as table:
        record = pickle.load(table)
    places = {index.fqn: place for index, place in record.storage_data.items()}
    found: dict[str, Any] = {}
    for key in keys + [key for key in optional if key in places]:
        place = places[key]
        with (where / place.relative_path).open("rb") as part:
            part.seek(place.offset)
            raw = part.read(place.length)
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            found[key] = pickle.loads(archive.read("archive/data.pkl"))
    return found
