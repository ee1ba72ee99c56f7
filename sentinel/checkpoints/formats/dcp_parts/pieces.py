"""The pieces of a distributed checkpoint in little memory: numbers in arrays, every name once.

A job of a thousand ranks stores a million pieces. As objects they would take a gigabyte; here a piece of a matrix takes
about 50 bytes, and an `Item` is made of it only while somebody looks at it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import overload

Shape = tuple[int, ...]


def volume(shape: Shape) -> int:
    """The number of elements of that shape."""
    product = 1
    for length in shape:
        product *= length
    return product


def numbers(values: Sequence[int]) -> array[int]:
    """The narrowest array that holds these whole numbers from 0 on. OverflowError beyond 64 bits."""
    try:
        return array("I", values)
    except OverflowError:
        return array("Q", values)


class TensorInfo:
    """One tensor and how it is cut: of each piece the place and the size, one after the other."""

    __slots__ = ("_cuts", "count", "dtype", "size")

    def __init__(self, dtype: str, size: Shape, chunks: Mapping[Shape, Shape]) -> None:
        """``chunks``: place -> size; empty pieces may share a place and are left out."""
        self.dtype = dtype
        self.size = size
        self.count = len(chunks)
        self._cuts = numbers([number for place, cut in chunks.items() for number in (*place, *cut)])

    @property
    def elements(self) -> int:
        return volume(self.size)

    @property
    def bytes_taken(self) -> int:
        return 300 + self._cuts.itemsize * len(self._cuts)

    def cut(self, index: int) -> Shape:
        """The size of that piece."""
        rank = len(self.size)
        return tuple(self._cuts[(2 * index + 1) * rank : (2 * index + 2) * rank])

    @property
    def chunks(self) -> dict[Shape, Shape]:
        """Place -> size of all pieces, in their order."""
        rank, cuts = len(self.size), self._cuts
        if not rank:
            return {(): ()} if self.count else {}
        return {
            tuple(cuts[at : at + rank]): tuple(cuts[at + rank : at + 2 * rank]) for at in range(0, len(cuts), 2 * rank)
        }


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


_NO_CUT = 0xFFFFFFFF


class Pieces:
    """All stored pieces. They are added as they are read; `cut` says later which piece of its tensor each one is."""

    def __init__(self) -> None:
        self.names: dict[str, int] = {}
        self.paths: dict[str, int] = {}
        self._name = array("I")
        self._path = array("I")
        self._offset = array("Q")
        self._length = array("Q")
        self._plain = bytearray()
        self._cut = array("I")
        self._short = array("I")
        self._tensors: list[TensorInfo | None] = []

    def __len__(self) -> int:
        return len(self._name)

    def add(self, name: str, path: str, offset: int, length: int, plain: bool) -> int:
        """Returns the bytes that it takes. OverflowError for numbers that no file has."""
        self._offset.append(offset)
        self._length.append(length)
        self._name.append(self.names.setdefault(name, len(self.names)))
        self._path.append(self.paths.setdefault(path, len(self.paths)))
        self._plain.append(plain)
        self._cut.append(_NO_CUT)
        return 34

    def by_name(self) -> Iterator[tuple[str, array[int]]]:
        """The numbers of the pieces of every name."""
        found = [array("I") for _ in self.names]
        for index, name in enumerate(self._name):
            found[name].append(index)
        yield from zip(self.names, found, strict=True)

    def length(self, index: int) -> int:
        return self._length[index]

    def plain(self, index: int) -> bool:
        return bool(self._plain[index])

    def cut(self, index: int, place: int) -> None:
        self._cut[index] = place

    def too_short(self, index: int) -> None:
        """Keep in mind that this piece is shorter than the numbers that are described."""
        self._short.append(index)

    def short(self, is_here: Callable[[str], bool], most: int) -> list[Item]:
        """Of each tensor one of the pieces that are too short and lie in files that are here, so many at most."""
        paths, texts = list(self.paths), list(self.names)
        first: dict[int, int] = {}
        for index in self._short:
            if len(first) < most and is_here(paths[self._path[index]]):
                first.setdefault(self._name[index], index)
        return [self.item(index, paths[self._path[index]], texts) for index in first.values()]

    def describe(self, tensors: Mapping[str, TensorInfo]) -> None:
        self._tensors = [tensors.get(name) for name in self.names]

    def files(self) -> Files:
        """The pieces of every file, in the order of the file."""
        found = {path: array("I") for path in self.paths}
        rows = list(found.values())
        for index, path in enumerate(self._path):
            rows[path].append(index)
        return Files(self, found)

    def named(self, names: Iterable[str]) -> list[Item]:
        """The first piece of each of these names."""
        wanted = {self.names[name] for name in names if name in self.names}
        if not wanted:
            return []
        texts = list(self.names)
        first: dict[int, int] = {}
        for index, name in enumerate(self._name):
            if name in wanted:
                first.setdefault(name, index)
        paths = list(self.paths)
        return [self.item(index, paths[self._path[index]], texts) for index in first.values()]

    def item(self, index: int, path: str, texts: Sequence[str]) -> Item:
        name = self._name[index]
        tensor = self._tensors[name] if name < len(self._tensors) else None
        plain = bool(self._plain[index])
        offset, length = self._offset[index], self._length[index]
        if tensor is None:
            return Item(texts[name], path, offset, length, plain)
        return Item(texts[name], path, offset, length, plain, tensor.dtype, tensor.cut(self._cut[index]))

    def order(self, rows: Iterable[int]) -> array[int]:
        """These pieces in the order of their file."""
        offset, length = self._offset, self._length
        return array("I", sorted(rows, key=lambda index: (offset[index], length[index])))

    def spans(self, rows: Iterable[int]) -> Iterator[tuple[int, int, int]]:
        """(offset, length, number) of these pieces."""
        for index in rows:
            yield self._offset[index], self._length[index], index


class Files(Mapping[str, "Sequence[Item]"]):
    """File -> its pieces in order; nothing of them is made before it is asked for."""

    def __init__(self, pieces: Pieces, rows: Mapping[str, array[int]]) -> None:
        self._pieces = pieces
        self._rows = rows
        self._texts = list(pieces.names)

    def __getitem__(self, path: str) -> Sequence[Item]:
        return FilePieces(self._pieces, path, self._pieces.order(self._rows[path]), self._texts)

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def only(self, paths: Iterable[str]) -> Files:
        return Files(self._pieces, {path: self._rows[path] for path in paths})

    def count(self) -> int:
        """The number of all pieces."""
        return sum(len(rows) for rows in self._rows.values())

    def end(self, path: str) -> int:
        """How long the file must be."""
        return max((offset + length for offset, length, _ in self._pieces.spans(self._rows[path])), default=0)

    def gap(self, path: str) -> str | None:
        """The name of the first piece that does not begin where the one before it ends; None where all do."""
        reached = 0
        for offset, length, index in self._pieces.spans(self._pieces.order(self._rows[path])):
            if offset != reached:
                return self._pieces.item(index, path, self._texts).name
            reached = offset + length
        return None


class FilePieces(Sequence[Item]):
    """The pieces of one file."""

    def __init__(self, pieces: Pieces, path: str, rows: array[int], texts: Sequence[str]) -> None:
        self._pieces = pieces
        self._path = path
        self._rows = rows
        self._texts = texts

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Item: ...

    @overload
    def __getitem__(self, index: slice) -> FilePieces: ...

    def __getitem__(self, index: int | slice) -> Item | FilePieces:
        if isinstance(index, slice):
            return FilePieces(self._pieces, self._path, self._rows[index], self._texts)
        return self._pieces.item(self._rows[index], self._path, self._texts)


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


_NESTED_LIMIT = 64  # pieces of one tensor that are compared in pairs when they form no grid


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
