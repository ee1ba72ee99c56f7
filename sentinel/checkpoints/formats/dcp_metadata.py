"""The metadata of a PyTorch distributed checkpoint: what tensors there are, how they are cut, where the pieces lie.

Source of the layout: torch.distributed.checkpoint (metadata.py, filesystem.py, planner) of torch 2.13; older versions
lack some fields. Read with the inert pickle reader, then held against itself: every piece must be stored, every stored
piece must be one, and the pieces must tile their tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sentinel.checkpoints import pickles
from sentinel.checkpoints.files import Broken, NotKnown, visible
from sentinel.checkpoints.pickles import Global, Inert
from sentinel.checkpoints.steps import step_of
from sentinel.checkpoints.tensors import ITEM_BYTES, integers

_META = "torch.distributed.checkpoint.metadata"
_NAMES: dict[str, frozenset[str]] = {
    _META: frozenset({
        "Metadata", "MetadataIndex", "TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata",
        "TensorProperties", "StorageMeta", "_MEM_FORMAT_ENCODING",
    }),
    "torch.distributed.checkpoint.filesystem": frozenset({"_StorageInfo", "_StoragePrefix"}),
    "torch.distributed._shard.sharded_tensor.metadata": frozenset({"MEM_FORMAT_ENCODING", "TensorProperties"}),
    "torch.distributed.checkpoint.planner": frozenset({
        "SavePlan", "WriteItem", "WriteItemType", "TensorWriteData", "BytesIOWriteData",
    }),
    "torch.distributed.checkpoint._extension": frozenset({"ZStandard", "StreamTransformExtension"}),
    "torch": frozenset({"Size", "device", *ITEM_BYTES}),
    "torch.serialization": frozenset({"_get_layout"}),
    "pathlib": frozenset({"PosixPath", "PurePosixPath", "Path", "WindowsPath"}),
    "pathlib._local": frozenset({"PosixPath", "PurePosixPath"}),
    "collections": frozenset({"OrderedDict", "defaultdict"}),
    "builtins": frozenset({"set", "frozenset", "slice", "complex", "bytearray", "getattr"}),
}  # fmt: skip
_FOREIGN = ("megatron.", "nvidia_resiliency_ext.", "nemo.", "torchtitan.", "lightning.", "numpy")
_FIELDS: dict[str, frozenset[object]] = {
    "Metadata": frozenset({
        "state_dict_metadata", "planner_data", "storage_data", "storage_meta", "version", "all_local_plans", "mcore_data",
    }),
    "MetadataIndex": frozenset({"fqn", "offset", "index"}),
    "_StorageInfo": frozenset({"relative_path", "offset", "length", "transform_descriptors"}),
    "ChunkStorageMetadata": frozenset({"offsets", "sizes"}),
    "TensorStorageMetadata": frozenset({"properties", "size", "chunks"}),
    "StorageMeta": frozenset({"checkpoint_id", "save_id", "load_id", "modules"}),
}  # fmt: skip
_LAYOUTS = tuple((f"torch.{name}",) for name in ("strided", "sparse_coo", "sparse_csr", "jagged", "_mkldnn"))
_MEMORY_FORMATS = ("TORCH_CONTIGUOUS_FORMAT", "TORCH_CHANNELS_LAST", "TORCH_PRESERVE_FORMAT")
_NESTED_LIMIT = 64  # pieces of one tensor that are compared in pairs when they form no grid

Shape = tuple[int, ...]


def volume(shape: Shape) -> int:
    """The number of elements of that shape."""
    product = 1
    for length in shape:
        product *= length
    return product


@dataclass(frozen=True, slots=True)
class TensorInfo:
    dtype: str
    size: Shape
    chunks: dict[Shape, Shape]  # offsets -> sizes; empty pieces may share an offset and are left out

    @property
    def elements(self) -> int:
        return volume(self.size)


@dataclass(frozen=True, slots=True)
class Item:
    """One stored piece: a complete torch.save archive in ``file`` at ``offset`` (plain unless transformed)."""

    name: str
    file: str
    offset: int
    length: int
    plain: bool
    dtype: str = ""  # of a tensor piece
    size: Shape | None = None


@dataclass(slots=True)
class Metadata:
    tensors: dict[str, TensorInfo] = field(default_factory=dict)
    blobs: set[str] = field(default_factory=set)
    items: list[Item] = field(default_factory=list)
    saved_step: int | None = None  # in the name of the folder that it was saved to

    def files(self) -> dict[str, list[Item]]:
        """The items of every file, in the order of the file."""
        found: dict[str, list[Item]] = {}
        for item in self.items:
            found.setdefault(item.file, []).append(item)
        for items in found.values():
            items.sort(key=lambda item: (item.offset, item.length))
        return found


def read_metadata(data: bytes, what: str) -> Metadata:
    """Read and check one metadata file. `Broken` where it is not what torch writes."""
    if not data.strip(b"\0"):
        raise Broken(f"{what}: empty" if not data else f"{what}: nothing but zeros")
    try:
        value, census = pickles.load_counted(data)
        if not isinstance(value, Inert) or value.name != "Metadata":
            raise Broken(f"{what}: not the metadata of a distributed checkpoint")
        _known(census, what)
        metadata = Metadata()
        _described(_dict(value.get("state_dict_metadata"), what), metadata, what)
        stored = value.get("storage_data")
        if stored is None:
            raise Broken(f"{what}: says nothing about where the pieces are")
        _stored(_dict(stored, what), metadata, what)
        metadata.saved_step = _saved_step(value.find("storage_meta"))
        planner = value.find("planner_data")
        if isinstance(planner, dict):
            _planned(planner, metadata, what)
    except pickles.PickleTooLarge as error:
        raise NotKnown(f"{what}: {error}") from None
    except pickles.PickleError as error:
        raise Broken(f"{what}: {error}") from None
    return metadata


def _saved_step(meta: object) -> int | None:
    """The step of the folder that this was saved to, which may have been renamed or copied since."""
    place = meta.find("checkpoint_id") if isinstance(meta, Inert) else None
    if isinstance(place, Inert) and isinstance(place.args, tuple) and place.args:
        place = place.args[-1]  # a path, in parts
    return step_of(place.rstrip("/").rpartition("/")[2]) if isinstance(place, str) else None


def _known(census: pickles.Census, what: str) -> None:
    """Names that torch does not have, and fields that its records do not have, are damage or another version."""
    for named in census.names:
        if not _is_known(named):
            raise NotKnown(f"{what}: names {visible(named.qualified)}, which this reader does not know")
    for name, fields in census.fields:
        known = _FIELDS.get(name)
        if known and not set(fields) <= known:
            odd = sorted(str(key) for key in set(fields) - known)[0]
            raise NotKnown(f"{what}: {name} with a field {visible(odd)}, which this reader does not know")


def _is_known(maker: Global) -> bool:
    names = _NAMES.get(maker.module)
    return maker.name in names if names is not None else maker.module.startswith(_FOREIGN)


def _dict(value: object, what: str) -> dict[object, object]:
    if isinstance(value, Inert) and value.items is not None:  # a dict subclass
        return dict(pair for pair in value.items if isinstance(pair, tuple) and len(pair) == 2)
    if not isinstance(value, dict):
        raise Broken(f"{what}: a table is missing")
    return value


def _described(table: dict[object, object], metadata: Metadata, what: str) -> None:
    while table:  # what is done is given up at once: the tables of large jobs are most of the memory
        name, entry = table.popitem()
        if not isinstance(name, str) or not isinstance(entry, Inert):
            raise Broken(f"{what}: an entry that is neither tensor nor bytes")
        if entry.name == "BytesStorageMetadata":
            metadata.blobs.add(name)
        elif entry.name == "TensorStorageMetadata":
            metadata.tensors[name] = _tensor(name, entry, what)
        else:
            raise Broken(f"{what}: {visible(name)}: an entry of unknown kind {visible(entry.name)}")


def _tensor(name: str, entry: Inert, what: str) -> TensorInfo:
    size = integers(entry.get("size"))
    chunks = entry.get("chunks")
    properties = entry.get("properties")
    dtype = _dtype(properties)
    if size is None or not isinstance(chunks, list) or min(size, default=0) < 0 or not dtype:
        raise Broken(f"{what}: {visible(name)}: a tensor without size, type or pieces")
    found: dict[Shape, Shape] = {}
    for chunk in chunks:
        if not isinstance(chunk, Inert) or chunk.name != "ChunkStorageMetadata":
            raise Broken(f"{what}: {visible(name)}: a piece that cannot be understood")
        offsets, sizes = integers(chunk.get("offsets")), integers(chunk.get("sizes"))
        if offsets is None or sizes is None or len(offsets) != len(size) or len(sizes) != len(size):
            raise Broken(f"{what}: {visible(name)}: a piece without place or size")
        for start, length, full in zip(offsets, sizes, size, strict=True):
            if start < 0 or length < 0 or start + length > full:
                raise Broken(f"{what}: {visible(name)}: a piece outside of its tensor")
        if volume(sizes) == 0 and size and volume(size):
            found.setdefault(offsets, sizes)
        elif offsets in found and volume(found[offsets]):
            raise Broken(f"{what}: {visible(name)}: two pieces at one place")
        else:
            found[offsets] = sizes
    return TensorInfo(dtype, size, found)


def _dtype(properties: object) -> str:
    """The dtype, after a look at the rest. TensorProperties keeps a tuple since torch 2.1, a dict before."""
    if not isinstance(properties, Inert) or properties.name != "TensorProperties":
        return ""
    state = properties.state
    fields = list(state.values()) if isinstance(state, dict) else list(state) if isinstance(state, tuple) else []
    if len(fields) != 5 or type(fields[2]) is not bool or type(fields[4]) is not bool:
        return ""
    dtype, layout, memory = fields[0], fields[1], fields[3]
    if not isinstance(layout, Inert) or layout.name != "_get_layout" or layout.args not in _LAYOUTS:
        return ""
    if not _is_memory_format(memory):
        return ""
    known = isinstance(dtype, Global) and dtype.module == "torch" and dtype.name in ITEM_BYTES
    return dtype.name if known and isinstance(dtype, Global) else ""


def _is_memory_format(value: object) -> bool:
    """A member of torch's enumeration: by value, or by name as the enums of Python 3.11.0 to 3.11.3 are pickled."""
    if not isinstance(value, Inert) or not isinstance(value.args, tuple):
        return False
    if value.name != "getattr":
        return value.args in ((0,), (1,), (2,), (3,))
    return (
        len(value.args) == 2
        and isinstance(value.args[0], Global)
        and value.args[0].name in ("_MEM_FORMAT_ENCODING", "MEM_FORMAT_ENCODING")
        and value.args[1] in _MEMORY_FORMATS
    )


def _stored(table: dict[object, object], metadata: Metadata, what: str) -> None:
    pieces: dict[str, set[Shape]] = {name: set() for name in metadata.tensors}
    blobs: set[str] = set()
    while table:
        index, info = table.popitem()
        if not isinstance(index, Inert) or not isinstance(info, Inert) or index.name != "MetadataIndex":
            raise Broken(f"{what}: a stored piece that cannot be understood")
        name = index.get("fqn")
        place = index.find("offset")
        if isinstance(name, str) and name in metadata.blobs:
            if name in blobs:
                raise Broken(f"{what}: {visible(name)} is stored twice")
            blobs.add(name)
            metadata.items.append(_item(name, info, what))
            continue
        tensor = metadata.tensors.get(name) if isinstance(name, str) else None
        if tensor is None or not isinstance(name, str):
            raise Broken(f"{what}: {visible(str(name))} is stored but not described")
        offsets = integers(place) if place is not None else (0,) * len(tensor.size)
        if offsets is None or offsets not in tensor.chunks or offsets in pieces[name]:
            raise Broken(f"{what}: {visible(name)}: a stored piece that is not one of its pieces")
        pieces[name].add(offsets)
        metadata.items.append(_item(name, info, what, tensor.dtype, tensor.chunks[offsets]))
    for name in metadata.blobs - blobs:
        raise Broken(f"{what}: {visible(name)} is described but not stored")
    for name, tensor in metadata.tensors.items():
        for offsets, sizes in tensor.chunks.items():
            if offsets not in pieces[name] and volume(sizes):
                raise Broken(f"{what}: a piece of {visible(name)} is described but not stored")


def _item(name: str, info: Inert, what: str, dtype: str = "", size: Shape | None = None) -> Item:
    if info.name != "_StorageInfo":
        raise Broken(f"{what}: {visible(name)}: a stored piece of unknown kind")
    path, offset, length = info.get("relative_path"), info.get("offset"), info.get("length")
    transforms = info.find("transform_descriptors")
    if not isinstance(path, str) or type(offset) is not int or type(length) is not int:
        raise Broken(f"{what}: {visible(name)}: a stored piece without file or place")
    if offset < 0 or length <= 0 or not path or path.startswith("/") or ".." in path.split("/") or "\0" in path:
        raise Broken(f"{what}: {visible(name)}: a stored piece at an impossible place")
    plain = not transforms
    if plain and size is not None and length < volume(size) * ITEM_BYTES[dtype]:
        raise Broken(f"{what}: {visible(name)}: {length} bytes cannot hold {size} of {dtype}")
    return Item(name, path, offset, length, plain, dtype, size)


def _planned(planner: Mapping[object, object], metadata: Metadata, what: str) -> None:
    """The default planner keeps for every flattened name the path that it came from: both must say the same."""
    for name, path in planner.items():
        if isinstance(name, str) and isinstance(path, tuple) and path:
            if ".".join(str(part) for part in path) != name:
                raise Broken(f"{what}: {visible(name)}: its path is another name")
            if name not in metadata.tensors and name not in metadata.blobs:
                raise Broken(f"{what}: {visible(name)} is planned but not described")
    lacking = (metadata.tensors.keys() | metadata.blobs) - planner.keys()
    if planner and lacking and all(isinstance(path, tuple) for path in planner.values()):
        raise NotKnown(f"{what}: {visible(min(lacking))} is described but not planned")


def tiles(tensor: TensorInfo) -> bool:
    """Whether the pieces cover the tensor exactly once."""
    boxes = [(offsets, sizes) for offsets, sizes in tensor.chunks.items() if volume(sizes)]
    if sum(volume(sizes) for _, sizes in boxes) != tensor.elements:
        return False
    if len(boxes) <= 1 or _grid(boxes, tensor.size):
        return True
    if len(boxes) > _NESTED_LIMIT:
        return True  # as many elements as there are, at different places, inside: no contradiction found
    return not any(_overlap(a, b) for i, a in enumerate(boxes) for b in boxes[:i])


def _grid(boxes: list[tuple[Shape, Shape]], size: Shape) -> bool:
    """Whether the boxes are all the cells of a grid: in each dimension the same cuts, which tile it."""
    cells = 1
    for dimension, full in enumerate(size):
        cuts = sorted({(offsets[dimension], sizes[dimension]) for offsets, sizes in boxes})
        reached = 0
        for start, length in cuts:
            if start != reached:
                return False
            reached = start + length
        if reached != full:
            return False
        cells *= len(cuts)
    return cells == len(boxes)


def _overlap(a: tuple[Shape, Shape], b: tuple[Shape, Shape]) -> bool:
    return all(
        max(start_a, start_b) < min(start_a + size_a, start_b + size_b)
        for start_a, size_a, start_b, size_b in zip(a[0], a[1], b[0], b[1], strict=True)
    )
