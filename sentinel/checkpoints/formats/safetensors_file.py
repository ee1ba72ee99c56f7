"""safetensors: a length, a JSON header, the data. It has no checksum; what can be seen is seen in the header.

On its own a checkpoint of one file. Used for model weights by the Hugging Face Trainer and by DCP's Hugging Face writer.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from sentinel.checkpoints.files import Broken, NotKnown, Tree, opened, visible
from sentinel.checkpoints.formats.base import Ask, Finding, no_owners, refuse_links
from sentinel.checkpoints.tensors import FloatScan
from sentinel.checkpoints.work import BATCH_BYTES, Work, span_crc

NAME = "safetensors"
_FORMAT_LIMIT_BYTES = 100_000_000  # the library's own limit for the header
_READ_LIMIT_BYTES = 12 << 20  # what this reader takes into memory
# dtype -> (bits of one element, its torch name)
_TYPES: dict[str, tuple[int, str]] = {
    "F64": (64, "float64"), "F32": (32, "float32"), "F16": (16, "float16"), "BF16": (16, "bfloat16"),
    "I64": (64, ""), "I32": (32, ""), "I16": (16, ""), "I8": (8, ""), "U64": (64, ""), "U32": (32, ""),
    "U16": (16, ""), "U8": (8, ""), "BOOL": (8, ""), "C64": (64, "complex64"), "F8_E4M3": (8, "float8_e4m3fn"),
    "F8_E5M2": (8, "float8_e5m2"), "F8_E8M0": (8, "float8_e8m0fnu"), "F8_E4M3FNUZ": (8, "float8_e4m3fnuz"),
    "F8_E5M2FNUZ": (8, "float8_e5m2fnuz"), "F6_E2M3": (6, ""), "F6_E3M2": (6, ""), "F4": (4, ""),
}  # fmt: skip

owners_by_name = no_owners


@dataclass(slots=True)
class Header:
    """The tensors of one file: name -> (dtype, shape), and the file's own metadata."""

    tensors: dict[str, tuple[str, tuple[int, ...]]]
    metadata: dict[str, str]
    works: list[Work] = field(default_factory=list)


def check_file(tree: Tree, name: str, ask: Ask) -> Header:
    """The header held against the file; at level content the floats as works."""
    shown = visible(name)
    with opened(tree.path(name), name) as handle:
        if handle.size < 10:
            raise Broken(f"{shown}: {handle.size} bytes, too short")
        length = int.from_bytes(handle.read(0, 8), "little")
        if length > _FORMAT_LIMIT_BYTES or 8 + length > handle.size:
            raise Broken(f"{shown}: a header of {length} bytes cannot be in a file of {handle.size}")
        if length > _READ_LIMIT_BYTES:
            raise NotKnown(f"{shown}: a header of {length} bytes, more than this reader takes")
        table = _header(handle.read(8, length), shown)
        size = handle.size
    metadata = table.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        raise Broken(f"{shown}: __metadata__ that is no table of text")
    spans = sorted((_span(key, entry, shown) for key, entry in table.items()), key=lambda span: span[1:3])
    reached = 0
    for key, begin, end, _, _ in spans:
        if begin != reached:
            raise Broken(f"{shown}: a gap or an overlap before {visible(key)}")
        reached = end
    if 8 + length + reached != size:
        raise Broken(f"{shown}: {size} bytes, its header says {8 + length + reached}")
    header = Header({key: (dtype, shape) for key, _, _, dtype, shape in spans}, metadata)
    if ask.level == "content":
        header.works = _scans(tree, name, 8 + length, spans)
    return header


_SpanOf = tuple[str, int, int, str, tuple[int, ...]]


def _header(data: bytes, shown: str) -> dict[str, object]:
    def once(pairs: list[tuple[str, object]]) -> dict[str, object]:
        made = dict(pairs)
        if len(made) != len(pairs):
            raise Broken(f"{shown}: its header names one thing twice")
        return made

    if data[:1] != b"{":
        raise Broken(f"{shown}: its header does not start as JSON")
    try:
        table = json.loads(data.decode("utf-8"), object_pairs_hook=once)
    except (ValueError, RecursionError):
        raise Broken(f"{shown}: its header is not JSON") from None
    if not isinstance(table, dict):
        raise Broken(f"{shown}: its header is no table")
    return table


def _span(key: str, entry: object, shown: str) -> _SpanOf:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise Broken(f"{shown}: {visible(key)}: damaged header entry")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if dtype not in _TYPES or not _naturals(shape) or not _naturals(offsets) or len(offsets) != 2:
        raise Broken(f"{shown}: {visible(key)}: damaged header entry")
    bits = _TYPES[dtype][0]
    for length in shape:
        bits *= length
    if offsets[1] - offsets[0] != (bits + 7) // 8:
        raise Broken(f"{shown}: {visible(key)}: its span does not fit its shape and type")
    return key, offsets[0], offsets[1], dtype, tuple(shape)


def _naturals(value: object) -> bool:
    return isinstance(value, list) and all(type(number) is int and 0 <= number < 1 << 60 for number in value)


def _scans(tree: Tree, name: str, base: int, spans: list[_SpanOf]) -> list[Work]:
    works: list[Work] = []
    batch: list[_SpanOf] = []
    for span in spans:
        batch.append(span)
        if span[2] - batch[0][1] >= BATCH_BYTES:
            works.append(_scan(tree, name, base, batch))
            batch = []
    if batch:
        works.append(_scan(tree, name, base, batch))
    return works


def _scan(tree: Tree, name: str, base: int, spans: list[_SpanOf]) -> Work:
    def run(buffer: bytearray) -> None:
        with opened(tree.path(name), name) as handle:
            for key, begin, end, dtype, _ in spans:
                scan = FloatScan(_TYPES[dtype][1])
                span_crc(handle, base + begin, end - begin, buffer, scan)
                if scan.finding:
                    raise Broken(f"{visible(name)}: {scan.finding} in {visible(key)}", "content")

    return Work(spans[-1][2] - spans[0][1], run)


def recognise(tree: Tree) -> bool:
    return tree.single and next(iter(tree.files)).endswith(".safetensors")


def check(tree: Tree, ask: Ask) -> Finding:
    refuse_links(tree)
    name = next(iter(tree.files))
    return Finding(works=check_file(tree, name, ask).works, unsummed=[name])
