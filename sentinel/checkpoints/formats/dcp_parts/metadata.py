"""The metadata of a PyTorch distributed checkpoint: what tensors there are, how they are cut, where the pieces lie.

Source of the layout: torch.distributed.checkpoint (metadata.py, filesystem.py, planner) of torch 2.13; older versions
lack some fields. Read with the inert pickle reader, then held against itself: every piece must be stored, every stored
piece must be one, and the pieces must tile their tensor.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from sentinel import inert_pickle
from sentinel.checkpoints.files import Broken, Handle, NotKnown
from sentinel.checkpoints.formats.dcp_parts.pieces import Files, Item, Pieces, Shape, TensorInfo, volume
from sentinel.checkpoints.parsing.tensors import ITEM_BYTES, SHAPES, integers, limits
from sentinel.checkpoints.steps import step_in
from sentinel.inert_pickle import Name, Opaque
from sentinel.text import visible

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
_OTHERS = {"bytecheckpoint": "ByteCheckpoint", "paddle": "Paddle"}  # who else keeps a pickle of that name
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
_ROOTS = ("Metadata", "MCoreMetadata")  # torch's, and the subclass that megatron-core 0.15 writes
_FIELDS["MCoreMetadata"] = _FIELDS["Metadata"]
_LAYOUTS = tuple((f"torch.{name}",) for name in ("strided", "sparse_coo", "sparse_csr", "jagged", "_mkldnn"))
_MEMORY_FORMATS = ("TORCH_CONTIGUOUS_FORMAT", "TORCH_CHANNELS_LAST", "TORCH_PRESERVE_FORMAT")
_META_BYTES = 1 << 30  # of one metadata file
_PIECE = 64  # bytes of a pair of small tuples


@dataclass(slots=True)
class Metadata:
    tensors: dict[str, TensorInfo] = field(default_factory=dict)
    blobs: set[str] = field(default_factory=set)
    pieces: Pieces = field(default_factory=Pieces)
    saved_step: int | None = None  # in the name of the folder that it was saved to
    of_megatron: bool = False  # it holds what only megatron-core's own backend, torch_dist, adds to torch's

    def files(self) -> Files:
        """The items of every file, in the order of the file."""
        return self.pieces.files()

    def bytes_items(self, most: int) -> list[Item]:
        """So many of the pieces that are bytes."""
        return self.pieces.named(sorted(self.blobs)[:most])

    def named(self, names: tuple[str, ...]) -> dict[str, Item]:
        return {item.name: item for item in self.pieces.named(names)}


def read_metadata(handle: Handle) -> Metadata:
    """Read and check one metadata file. `Broken` where it is not what torch writes."""
    what = handle.name
    head = handle.read(0, min(handle.size, 1 << 16))
    if not head.strip(b"\0"):
        raise Broken(f"{what}: empty" if not head else f"{what}: nothing but zeros")
    gathered = _Gathered()
    try:
        value, census = inert_pickle.stream(
            handle.read,
            handle.size,
            makers=SHAPES,
            folds=_FOLDS,
            rows=gathered.take,
            limits=limits(_META_BYTES),
        )
        if not isinstance(value, Opaque) or value.name not in _ROOTS:
            raise Broken(f"{what}: not the metadata of a distributed checkpoint")
        _known(census, what)
        metadata = Metadata(pieces=gathered.pieces)
        _described(_dict(value.get("state_dict_metadata"), what), metadata, what)
        if value.get("storage_data") is None:
            raise Broken(f"{what}: says nothing about where the pieces are")
        _dict(value.get("storage_data"), what)
        gathered.match(metadata, what)
        metadata.of_megatron = value.name == "MCoreMetadata" or value.find("mcore_data") is not None
        metadata.saved_step = _saved_step(value.find("storage_meta"), what)
        planner = value.find("planner_data")
        if isinstance(planner, dict):
            _planned(planner, metadata, what)
    except inert_pickle.PickleTooLarge as error:
        raise NotKnown(f"{what}: {error} (SENTINEL_PICKLE_MEMORY_MB allows more)") from None
    except inert_pickle.PickleError as error:
        raise Broken(f"{what}: {error}") from None
    return metadata


def _saved_step(meta: object, what: str) -> int | None:
    """The step of the folder that this was saved to, which may have been renamed or copied since."""
    place = meta.find("checkpoint_id") if isinstance(meta, Opaque) else None
    if isinstance(place, Opaque) and isinstance(place.args, tuple):  # a path, in parts
        if not all(isinstance(part, str) for part in place.args):
            raise Broken(f"{what}: the path that it was saved to has a part that is no text")
        place = "/".join(str(part) for part in place.args)
    return step_in(place) if isinstance(place, str) else None


def _known(census: inert_pickle.Census, what: str) -> None:
    """Names that torch does not have, and fields that its records do not have, are damage or another version."""
    for named in census.names:
        other = _OTHERS.get(named.module.partition(".")[0])
        if other:
            raise NotKnown(f"{what}: format {other}: recognised by what it names, not checked")
        if not _is_known(named):
            raise NotKnown(f"{what}: names {visible(named.qualified)}, which this reader does not know")
    for name, fields in census.fields:
        known = _FIELDS.get(name)
        if known and not set(fields) <= known:
            odd = sorted(str(key) for key in set(fields) - known)[0]
            raise NotKnown(f"{what}: {name} with a field {visible(odd)}, which this reader does not know")


def _is_known(maker: Name) -> bool:
    names = _NAMES.get(maker.module)
    return maker.name in names if names is not None else maker.module.startswith(_FOREIGN)


def _dict(value: object, what: str) -> dict[object, object]:
    if isinstance(value, Opaque) and value.items is not None:  # a dict subclass
        return dict(pair for pair in value.items if isinstance(pair, tuple) and len(pair) == 2)
    if not isinstance(value, dict):
        raise Broken(f"{what}: a table is missing")
    return value


def _described(table: dict[object, object], metadata: Metadata, what: str) -> None:
    while table:  # what is done is given up at once: the tables of large jobs are most of the memory
        name, entry = table.popitem()
        if isinstance(name, str) and isinstance(entry, TensorInfo):
            metadata.tensors[name] = entry
        elif isinstance(name, str) and isinstance(entry, _Odd):
            raise Broken(f"{what}: {visible(name)}: {entry.reason}")
        elif not isinstance(name, str) or not isinstance(entry, Opaque):
            raise Broken(f"{what}: an entry that is neither tensor nor bytes")
        elif entry.name == "BytesStorageMetadata":
            metadata.blobs.add(name)
        else:
            raise Broken(f"{what}: {visible(name)}: an entry of unknown kind {visible(entry.name)}")


@dataclass(frozen=True, slots=True)
class _Odd:
    """Stands for a description that cannot be right."""

    reason: str


def _fold_chunk(entry: Opaque) -> tuple[object, int]:
    offsets, sizes = integers(entry.find("offsets")), integers(entry.find("sizes"))
    if offsets is None or sizes is None or len(offsets) != len(sizes):
        return _Odd("a piece without place or size"), _PIECE
    return (offsets, sizes), _PIECE


def _fold_tensor(entry: Opaque) -> tuple[object, int]:
    tensor = _tensor(entry)
    return tensor, tensor.bytes_taken if isinstance(tensor, TensorInfo) else 100


def _dropped(entry: Opaque) -> tuple[object, int]:
    """Plans of the ranks, which Megatron keeps for its next save: nothing in them says where a piece lies."""
    del entry
    return None, 0


_FOLDS: inert_pickle.Folds = {
    "ChunkStorageMetadata": _fold_chunk,
    "TensorStorageMetadata": _fold_tensor,
    **dict.fromkeys(("SavePlan", "WriteItem", "TensorWriteData", "BytesIOWriteData"), _dropped),
}


def _tensor(entry: Opaque) -> TensorInfo | _Odd:
    size = integers(entry.find("size"))
    chunks = entry.find("chunks")
    dtype = _dtype(entry.find("properties"))
    if size is None or not isinstance(chunks, list) or min(size, default=0) < 0 or not dtype:
        return _Odd("a tensor without size, type or pieces")
    found: dict[Shape, Shape] = {}
    for chunk in chunks:
        if not isinstance(chunk, tuple):
            return chunk if isinstance(chunk, _Odd) else _Odd("a piece that cannot be understood")
        offsets, sizes = chunk
        if len(offsets) != len(size):
            return _Odd("a piece without place or size")
        for start, length, full in zip(offsets, sizes, size, strict=True):
            if start < 0 or length < 0 or start + length > full:
                return _Odd("a piece outside of its tensor")
        if volume(sizes) == 0 and size and volume(size):
            found.setdefault(offsets, sizes)
        elif offsets in found and volume(found[offsets]):
            return _Odd("two pieces at one place")
        else:
            found[offsets] = sizes
    try:
        return TensorInfo(dtype, size, found)
    except OverflowError:
        return _Odd("a tensor of impossible size")


def _dtype(properties: object) -> str:
    """The dtype, after a look at the rest. TensorProperties keeps a tuple since torch 2.1, a dict before."""
    if not isinstance(properties, Opaque) or properties.name != "TensorProperties":
        return ""
    state = properties.state
    fields = list(state.values()) if isinstance(state, dict) else list(state) if isinstance(state, tuple) else []
    if len(fields) != 5 or type(fields[2]) is not bool or type(fields[4]) is not bool:
        return ""
    dtype, layout, memory = fields[0], fields[1], fields[3]
    if not isinstance(layout, Opaque) or layout.name != "_get_layout" or layout.args not in _LAYOUTS:
        return ""
    if not _is_memory_format(memory):
        return ""
    known = isinstance(dtype, Name) and dtype.module == "torch" and dtype.name in ITEM_BYTES
    return dtype.name if known and isinstance(dtype, Name) else ""


def _is_memory_format(value: object) -> bool:
    """A member of torch's enumeration: by value, or by name as the enums of Python 3.11.0 to 3.11.3 are pickled."""
    if not isinstance(value, Opaque) or not isinstance(value.args, tuple):
        return False
    if value.name != "getattr":
        return value.args in ((0,), (1,), (2,), (3,))
    return (
        len(value.args) == 2
        and isinstance(value.args[0], Name)
        and value.args[0].name in ("_MEM_FORMAT_ENCODING", "MEM_FORMAT_ENCODING")
        and value.args[1] in _MEMORY_FORMATS
    )


class _Gathered:
    """The table of stored pieces, taken over row by row while the pickle is read."""

    def __init__(self) -> None:
        self.pieces = Pieces()
        self._places = array("Q")
        self._starts = array("Q")
        self._ranks = bytearray()
        self._problem = ""

    def take(self, index: Opaque, info: object) -> int:
        named = index.state if isinstance(index.state, dict) else {}
        name, place = named.get("fqn"), named.get("offset")
        offsets = integers(place) if place is not None else ()
        reason = "" if index.name == "MetadataIndex" else "a stored piece that cannot be understood"
        if not isinstance(name, str):
            reason = reason or "a stored piece without a name"
        if offsets is None or len(offsets) > 250 or min(offsets, default=0) < 0:
            reason = reason or "a stored piece that is not one of its pieces"
        where = _where(info)
        if not reason and isinstance(where, tuple) and isinstance(name, str):
            try:
                taken = self.pieces.add(name, *where)
                self._starts.append(len(self._places))
                self._places.extend(offsets or ())
                self._ranks.append(255 if place is None else len(offsets or ()))
                return taken + 9 + 8 * len(offsets or ())
            except OverflowError:
                where = "a stored piece at an impossible place"
        shown = f"{visible(name)}: " if isinstance(name, str) else ""
        self._problem = self._problem or f"{shown}{reason or where}"
        return 0

    def match(self, metadata: Metadata, what: str) -> None:
        """Every stored piece is one that is described, and every described one is stored."""
        if self._problem:
            raise Broken(f"{what}: {self._problem}")
        stored: set[str] = set()
        for name, rows in self.pieces.by_name():
            stored.add(name)
            tensor = metadata.tensors.get(name)
            if tensor is not None:
                self._match_tensor(name, tensor, rows, what)
            elif name not in metadata.blobs:
                raise Broken(f"{what}: {visible(name)} is stored but not described")
            elif len(rows) > 1:
                raise Broken(f"{what}: {visible(name)} is stored twice")
        for name in metadata.blobs - stored:
            raise Broken(f"{what}: {visible(name)} is described but not stored")
        for name in metadata.tensors.keys() - stored:
            if any(volume(sizes) for sizes in metadata.tensors[name].chunks.values()):
                raise Broken(f"{what}: a piece of {visible(name)} is described but not stored")
        self.pieces.describe(metadata.tensors)
        self._places, self._starts, self._ranks = array("Q"), array("Q"), bytearray()

    def _match_tensor(self, name: str, tensor: TensorInfo, rows: array[int], what: str) -> None:
        chunks = tensor.chunks
        numbered = {offsets: number for number, offsets in enumerate(chunks)}
        width = ITEM_BYTES[tensor.dtype]
        for row in rows:
            start, rank = self._starts[row], self._ranks[row]
            if rank == 255:  # as of what is bytes: a tensor's pieces are looked up by their places
                raise Broken(f"{what}: {visible(name)}: a stored piece without its place")
            offsets = tuple(self._places[start : start + rank])
            number = numbered.pop(offsets, None)
            if number is None:
                raise Broken(f"{what}: {visible(name)}: a stored piece that is not one of its pieces")
            length = self.pieces.length(row)
            self.pieces.cut(row, number)
            if self.pieces.plain(row) and length < volume(chunks[offsets]) * width:
                self.pieces.too_short(row)  # damaged, or a tensor that packs its numbers: its own pickle says which
        if any(volume(chunks[offsets]) for offsets in numbered):
            raise Broken(f"{what}: a piece of {visible(name)} is described but not stored")


def _where(info: object) -> tuple[str, int, int, bool] | str:
    """(file, offset, length, whether plain) of a stored piece, or why there can be none."""
    if not isinstance(info, Opaque) or info.name != "_StorageInfo":
        return "a stored piece of unknown kind"
    state = info.state if isinstance(info.state, dict) else {}
    path, offset, length = state.get("relative_path"), state.get("offset"), state.get("length")
    if not isinstance(path, str) or type(offset) is not int or type(length) is not int:
        return "a stored piece without file or place"
    if offset < 0 or length <= 0 or not _sound(path):
        return "a stored piece at an impossible place"
    return path, offset, length, not state.get("transform_descriptors")


@lru_cache(maxsize=256)
def _sound(path: str) -> bool:
    """Whether the path leads to a file inside of the checkpoint."""
    return bool(path) and not path.startswith("/") and ".." not in path.split("/") and "\0" not in path


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
