"""safetensors: a length, a JSON header, the data. It has no checksum; what can be seen is seen in the header.

On its own a checkpoint of one file. Used for model weights by the Hugging Face Trainer and by DCP's Hugging Face writer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

from sentinel.checkpoints.files import Broken, Handle, NotKnown, Tree, opened
from sentinel.checkpoints.formats.base import Ask, Finding, neighbours, no_owners, refuse_links
from sentinel.checkpoints.parsing import flipped_names, json_files
from sentinel.checkpoints.parsing.content import OPTIMIZER_KEY, look_at, role_of
from sentinel.checkpoints.parsing.floats import FloatScan
from sentinel.checkpoints.parsing.tensors import MOST_DIMENSIONS
from sentinel.checkpoints.reading import BATCH_BYTES, Work, span_crc
from sentinel.checkpoints.records import level_at_least
from sentinel.text import visible

NAME = "safetensors"
_FORMAT_LIMIT_BYTES = 100_000_000  # the library's own limit for the header
_READ_LIMIT_BYTES = 12 << 20  # what this reader takes into memory
_KEPT_BYTES = 64 << 10  # of a header that is kept: an adapter's, of which there may be thousands
# dtype -> (bits of one element, its torch name)
_TYPES: dict[str, tuple[int, str]] = {
    "F64": (64, "float64"), "F32": (32, "float32"), "F16": (16, "float16"), "BF16": (16, "bfloat16"),
    "I64": (64, ""), "I32": (32, ""), "I16": (16, ""), "I8": (8, ""), "U64": (64, ""), "U32": (32, ""),
    "U16": (16, ""), "U8": (8, ""), "BOOL": (8, ""), "C64": (64, "complex64"), "F8_E4M3": (8, "float8_e4m3fn"),
    "F8_E5M2": (8, "float8_e5m2"), "F8_E8M0": (8, "float8_e8m0fnu"), "F8_E4M3FNUZ": (8, "float8_e4m3fnuz"),
    "F8_E5M2FNUZ": (8, "float8_e5m2fnuz"), "F6_E2M3": (6, ""), "F6_E3M2": (6, ""), "F4": (4, ""),
}  # fmt: skip

_DECIDE = 2  # saves beside that name a tensor alike and otherwise than this one
_TORCH = "pt"  # as libraries call torch's files in the header, of which no other format's name is one bit away
_MOMENTS = frozenset(("exp_avg", "exp_avg_sq", "momentum_buffer", "m", "v", "mu", "nu"))

owners_by_name = no_owners

SpanOf = tuple[str, int, int, str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Table:
    """What the header says: the tensors in the order of their bytes, and where in the file these begin."""

    spans: list[SpanOf]  # name, first byte, behind the last, type, shape
    base: int
    metadata: dict[str, str]


@dataclass(slots=True)
class Header:
    """The tensors of one file: name -> (dtype, shape), and the file's own metadata."""

    tensors: dict[str, tuple[str, tuple[int, ...]]]
    metadata: dict[str, str]
    works: list[Work] = field(default_factory=list)


def torch_type(dtype: str) -> str:
    """Torch's name of a type that can hold a NaN; empty for the others."""
    return _TYPES[dtype][1]


def check_file(tree: Tree, name: str, ask: Ask) -> Header:
    """The header held against the file; at level content the floats as works."""
    table = table_of(tree, name)
    header = Header({key: (dtype, shape) for key, _, _, dtype, shape in table.spans}, table.metadata)
    if ask.level == "content":
        header.works = scans(tree, name, table)
    return header


def refuse_other_names(tree: Tree, headers: Mapping[str, Header], ask: Ask) -> None:
    """`NotKnown` where names changed places, became others, or one of a tensor without elements was lost, against the
    save beside.

    The library writes tensors in the order of their names; a file that somebody else writes has an order of its own. The
    loss of any other tensor leaves a gap. What became another name is seen from level checksum on, by the other layers of
    the model or by two saves.
    """
    closely = level_at_least(ask.level, "checksum")
    beside = neighbours(tree.root, _DECIDE if closely else 1)
    for name, header in headers.items():
        if closely:
            _refuse_flipped(name, header)
        found = [(path, theirs) for path in beside if (theirs := _header_in(path, name, tree.single)) is not None]
        for path, theirs in found[:1]:
            mine, where = header.tensors, f"that in {visible(path.name)}"
            if theirs.tensors == mine and _in_order(theirs.tensors) and not _in_order(mine):
                raise NotKnown(f"{visible(name)} has the tensors of {where} in another order: names exchanged?")
            lost = sorted(theirs.tensors.keys() - mine.keys())
            if lost and theirs.tensors.items() >= mine.items() and all(0 in theirs.tensors[key][1] for key in lost):
                raise NotKnown(f"{visible(name)} is {where} without {visible(lost[0])}: a name lost?")
            # Of two that differ it is not known which is damaged: two that agree show it.
            renamed = {_renamed(header, other) for _, other in found} if len(found) == _DECIDE else set()
            if len(renamed) == 1 and (key := renamed.pop()):
                raise NotKnown(f"{visible(name)} names {visible(key[0])} otherwise than {where}: damaged?")


def _refuse_flipped(name: str, header: Header) -> None:
    if (key := flipped_names.flipped(header.tensors)) is not None:
        raise NotKnown(
            f"{visible(name)} names {visible(key[0])} what is {visible(key[1])} by its other layers: damaged?"
        )
    form = header.metadata.get("format", _TORCH)
    if json_files.one_bit_apart(form, _TORCH):
        raise NotKnown(f"{visible(name)} is of format {visible(form)}, which no library has: {_TORCH}, damaged?")


def _header_in(folder: Path, name: str, single: bool) -> Header | None:
    try:
        return check_file(Tree(folder, single=single), name, Ask("structural", 0.0))
    except (Broken, NotKnown, OSError):
        return None


def _renamed(mine: Header, theirs: Header) -> tuple[str, str] | None:
    """The one name that a flipped bit made of one in the other header, of a tensor of that type and shape, and that one.

    Another version of a library may name tensors otherwise. ``format`` is what a library loads a file by.
    """
    ours, other = mine.metadata.get("format", ""), theirs.metadata.get("format", "")
    if json_files.one_bit_apart(ours, other):
        return "format", other
    gained, lost = mine.tensors.keys() - theirs.tensors.keys(), theirs.tensors.keys() - mine.tensors.keys()
    if len(gained) != 1 or len(lost) != 1:
        return None
    (new,), (old,) = gained, lost
    alike = mine.tensors[new] == theirs.tensors[old] and json_files.one_bit_apart(new, old)
    return (new, old) if alike else None


def _in_order(tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> bool:
    return all(one[1][0] != two[1][0] or one[0] < two[0] for one, two in pairwise(tensors.items()))


def shapes(tree: Tree, name: str) -> list[tuple[int, ...]]:
    """The shapes of its tensors."""
    return [shape for _, _, _, _, shape in table_of(tree, name).spans]


def has_moments(tree: Tree, name: str) -> bool:
    """Whether the names of its tensors speak of an optimizer: torch's (``exp_avg``), or MLX's (``layers.0.weight.m``)."""
    keys = [span[0] for span in table_of(tree, name).spans]
    return any(OPTIMIZER_KEY.search(key) or key.rpartition(".")[2] in _MOMENTS for key in keys)


def table_of(tree: Tree, name: str) -> Table:
    """The header of a file. It is asked for several times, and once more by the save beside: small ones are kept."""
    with opened(tree.path(name), name) as handle:
        length = int.from_bytes(handle.read(0, 8), "little") if handle.size >= 8 else 0
        if not 0 < length <= _KEPT_BYTES or length > handle.size - 8:
            return read_table(handle, 0, handle.size)
        return _read_small_table(handle.name, handle.read(0, 8 + length), handle.size)


@lru_cache(maxsize=64)
def _read_small_table(shown: str, head: bytes, size: int) -> Table:
    return read_table(_Head(head, size, shown), 0, size)


@dataclass(frozen=True, slots=True)
class _Head:
    """The beginning of a file that was read already."""

    data: bytes
    size: int
    name: str

    def read(self, offset: int, length: int) -> bytes:
        return self.data[offset : offset + length]


def read_table(handle: Handle | _Head, start: int, end: int) -> Table:
    """The header of what lies between these two places, held against it: no gap, no overlap, nothing behind."""
    shown = handle.name
    if end - start < 10:
        raise Broken(f"{shown}: {end - start} bytes, too short")
    length = int.from_bytes(handle.read(start, 8), "little")
    base = start + 8 + length
    if base > end:
        raise Broken(f"{shown}: a header of {length} bytes cannot be in a file of {end - start}")
    if length > _FORMAT_LIMIT_BYTES:
        raise Broken(f"{shown}: a header of {length} bytes, more than the {_FORMAT_LIMIT_BYTES} that the library reads")
    if length > _READ_LIMIT_BYTES:
        raise NotKnown(f"{shown}: a header of {length} bytes, more than this reader takes")
    table = _header(handle.read(start + 8, length), shown)
    metadata = table.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        raise Broken(f"{shown}: __metadata__ that is no table of text")
    spans = sorted((_span(key, entry, shown) for key, entry in table.items()), key=lambda span: span[1:3])
    reached = 0
    for key, begin, finish, _, _ in spans:
        if begin != reached:
            raise Broken(f"{shown}: a gap or an overlap before {visible(key)}")
        reached = finish
    if base + reached != end:
        raise Broken(f"{shown}: {end - start} bytes, its header says {base + reached - start}")
    return Table(spans, base, metadata)


def _header(data: bytes, shown: str) -> dict[str, object]:
    def once(pairs: json_files.Pairs) -> dict[str, object]:
        made = dict(pairs)
        if len(made) != len(pairs):
            raise Broken(f"{shown}: its header names one thing twice")
        return made

    if data[:1] != b"{":
        raise Broken(f"{shown}: its header does not start as JSON")
    try:
        table = json_files.parse(data, shown, once)
    except ValueError:
        raise Broken(f"{shown}: its header is not JSON") from None
    if not isinstance(table, dict):
        raise Broken(f"{shown}: its header is no table")
    return table


def _span(key: str, entry: object, shown: str) -> SpanOf:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise Broken(f"{shown}: {visible(key)}: damaged header entry")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if dtype not in _TYPES or not _naturals(shape) or not _naturals(offsets) or len(offsets) != 2:
        raise Broken(f"{shown}: {visible(key)}: damaged header entry")
    if len(shape) > MOST_DIMENSIONS:
        raise NotKnown(f"{shown}: {visible(key)}: {len(shape)} dimensions, more than this reader takes")
    bits = _TYPES[dtype][0]
    for length in shape:
        bits *= length
    if offsets[1] - offsets[0] != (bits + 7) // 8:
        raise Broken(f"{shown}: {visible(key)}: its span does not fit its shape and type")
    return key, offsets[0], offsets[1], dtype, tuple(shape)


def _naturals(value: object) -> bool:
    return isinstance(value, list) and all(type(number) is int and 0 <= number < 1 << 60 for number in value)


def scans(tree: Tree, name: str, table: Table) -> list[Work]:
    """The floats of that file as pieces of work."""
    works: list[Work] = []
    batch: list[SpanOf] = []
    for span in table.spans:
        batch.append(span)
        if span[2] - batch[0][1] >= BATCH_BYTES:
            works.append(_scan(tree, name, table.base, batch))
            batch = []
    if batch:
        works.append(_scan(tree, name, table.base, batch))
    return works


def _scan(tree: Tree, name: str, base: int, spans: list[SpanOf]) -> Work:
    def run(buffer: bytearray) -> None:
        with opened(tree.path(name), name) as handle:
            for key, begin, end, dtype, shape in spans:
                path = tuple(key.split("."))
                look = look_at(path, torch_type(dtype), shape, role_of(path), in_model=True)
                if look is None:
                    continue
                scan = FloatScan(look)
                span_crc(handle, base + begin, end - begin, buffer, [scan])
                if scan.finding:
                    raise Broken(f"{visible(name)}: {scan.finding} in {visible(key)}", "content")

    return Work(spans[-1][2] - spans[0][1], run)


def recognise(tree: Tree) -> bool:
    return tree.single and next(iter(tree.files)).endswith(".safetensors")


def check(tree: Tree, ask: Ask) -> Finding:
    refuse_links(tree)
    name = next(iter(tree.files))
    header = check_file(tree, name, ask)
    refuse_other_names(tree, {name: header}, ask)
    moments = has_moments(tree, name)
    return Finding(works=header.works, unsummed=[name], resumable=moments, optimizer=moments)
