"""Which weights of a save its optimizers train, and whether the files that are those of another save may have stayed so.

A file that stays the same in every save beside those that change shows no damage by itself: a reference model, the best
weights so far, a part whose training is over with its optimizer. It does where the weights of an optimizer that went on
are in it. An optimizer of Adam's kind keeps moments of the shapes of its parameters; of another only their number is known.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sentinel.checkpoints.files import Broken, NotKnown, Tree, Unread, opened
from sentinel.checkpoints.formats import one_save, safetensors_file, torch_file
from sentinel.checkpoints.formats.base import Ask
from sentinel.checkpoints.formats.dcp_parts.pieces import Shape
from sentinel.checkpoints.formats.torch_file import TorchFile
from sentinel.checkpoints.parsing.content import is_average
from sentinel.checkpoints.reading import Opened

_MOMENTS = ("exp_avg", "momentum_buffer", "exp_avg_sq", "sum", "square_avg")  # as large as their parameter
_EXACT = frozenset(("F64", "F32", "float64", "float32"))  # in which a step of training changes every weight
_SAMPLE_BYTES = 4096
_NAMES = re.compile(r"[./-]")


def moments_of(opened_file: Opened | None, states: object) -> Counter[Shape]:
    """The shapes of the parameters of which an optimizer keeps a moment as large as they are."""
    if opened_file is None or not isinstance(states, dict):
        return Counter()
    by_call = {id(tensor.made): tensor.size for tensor in opened_file.pickled.tensors}
    each = (
        [by_call.get(id(state.get(key))) for key in _MOMENTS] for state in states.values() if isinstance(state, dict)
    )
    return Counter(shape for shapes in each for shape in [s for s in shapes if s is not None][:1])


@dataclass(frozen=True, slots=True)
class _Held:
    """The shapes of the parameters that an optimizer has trained, how many have a state, and if all shapes are known."""

    moments: Counter[Shape] = field(default_factory=Counter)
    states: int = 0
    known: bool = True


@dataclass(slots=True)
class Trained:
    """The optimizers of a save, and the files that may hold the weights which they train.

    ``files``: torch files as they were read. ``sets``: files of ranks, which were written of one state. A file may hold
    weights and their optimizer.
    """

    tree: Tree
    files: Mapping[str, TorchFile]
    optimizers: Collection[str]
    weights: Collection[str]
    sets: Iterable[Collection[str]] = ()
    _read: dict[str, tuple[Counter[Shape], set[str]]] = field(default_factory=dict)  # shapes and types of tensors

    def __post_init__(self) -> None:
        # An average changes with the weights, whichever save these are of.
        averages = {name for name in self.weights if is_average(_NAMES.split(name))}
        self.weights = [name for name in self.weights if name not in averages] or list(self.weights)

    def all_here(self) -> bool:
        """Whether every parameter of the optimizers has a tensor of its shape in these weights."""
        held = [self._held(name) for name in self.optimizers]
        known = all(one.known for one in held) and any(one.states for one in held)
        return known and _cover(self.sizes_of(self.weights), held)

    def wholly_trained(self) -> list[str]:
        """The torch files without an optimizer of which each tensor has a shape that the optimizers train, as often."""
        trained = sum((self._held(name).moments for name in self.optimizers), Counter[Shape]())
        found = [name for name in self.weights if name in self.files and name not in self.optimizers]
        return [name for name in found if (sizes := self._kept(name)[0]) and sizes <= trained]

    def exact(self) -> bool:
        """Whether all weights are kept in types in which a step shows."""
        return all(self._kept(name)[1] <= _EXACT for name in self.weights)

    def explains(self, folder: Path, alike: Mapping[str, bool | None]) -> bool:
        """Whether the files that are those of the save in ``folder`` may be the same here though the others are not.

        The weights of the optimizers that went on are in the files that changed, and those of the others did not change
        either. Several optimizers of the same weights may have been used one after the other.

        Raises:
            Unread: a file of that save cannot be read.
        """
        went_on = [name for name in self.optimizers if alike.get(name) is False]
        stayed = [self._held(name) for name in self.optimizers if alike.get(name)]
        begun = [self._begun(name, folder) for name in self.optimizers if alike.get(name) is None]
        moved = [held for held in begun if held.states]
        if not (went_on or moved) or any(len({alike.get(name) for name in ranks} - {None}) > 1 for ranks in self.sets):
            return False
        changed = self.sizes_of(name for name in self.weights if not alike.get(name))
        moving = [name for name in went_on if not (self.at_rest(name) and self.at_rest(name, folder))]
        if not _cover(changed, [*(self._held(name) for name in moving), *moved]):
            return False
        everything = [*stayed, *moved, *(self._held(name) for name in went_on)]
        if not stayed or not _cover(self.sizes_of(self.weights), everything):
            return True
        same: Counter[Shape] = Counter()
        for name in self.weights:
            same += self._kept(name)[0] if alike.get(name) else self._same_in(name, folder)
        return _cover(same, stayed)

    def _held(self, name: str) -> _Held:
        return _held_by(self.files[name])

    def _begun(self, name: str, folder: Path) -> _Held:
        """What an optimizer that has no state yet holds in that later save."""
        theirs = None if self._held(name).states else _file_in(folder, name)
        return _held_by(theirs) if theirs else _Held()

    def at_rest(self, name: str, folder: Path | None = None) -> bool:
        """Whether the optimizer, here or in that folder, has no learning rate but 0."""
        return set(self.rates(name, folder)) == {0.0}

    def rates(self, name: str, folder: Path | None = None) -> list[float | None]:
        """The learning rates of the optimizer's groups, here or in that folder; None for what is no number."""
        rates: list[float | None] = []
        for part in (name, *self._groups_beside(name)):
            tree, file = self.tree, self.files.get(part)
            if folder is not None:
                tree, file = Tree(folder), _file_in(folder, part)
            rates += [torch_file.number_in(tree, file, group.get("lr")) for group in _groups(file)] if file else []
        return rates

    def _groups_beside(self, name: str) -> list[str]:
        """Of a part of an optimizer's states the files with its groups of parameters: in its folder, as of Colossal-AI."""
        if not is_states(self.files[name].value):
            return []
        inside = name.rpartition("/")[0]
        return [
            other for other, file in self.files.items() if other.rpartition("/")[0] == inside and _lists_groups(file)
        ]

    def sizes_of(self, names: Iterable[str]) -> Counter[Shape]:
        """The shapes of all tensors in these files that are no optimizer's."""
        sizes: Counter[Shape] = Counter()
        for name in names:
            sizes += self._kept(name)[0]
        return sizes

    def _kept(self, name: str) -> tuple[Counter[Shape], set[str]]:
        if name not in self._read:
            tensors = self._tensors(name)
            self._read[name] = Counter(size for _, size, _ in tensors), {dtype for _, _, dtype in tensors}
        return self._read[name]

    def _tensors(self, name: str) -> list[tuple[str, Shape, str]]:
        """Of each tensor that is no optimizer's: what it is called in its file, its shape and type."""
        if name in self.files:
            return _weights_in(self.files[name])
        if name not in self.tree.files or not name.endswith(".safetensors"):
            return []
        spans = safetensors_file.table_of(self.tree, name).spans
        return [(key, shape, dtype) for key, _, _, dtype, shape in spans]

    def _same_in(self, name: str, folder: Path) -> Counter[Shape]:
        """The shapes of the tensors that are the same in the file of that name in that save."""
        mine = self.files.get(name)
        if mine is None:
            return _same_spans(self.tree, name, folder) if name.endswith(".safetensors") else Counter()
        theirs = _file_in(folder, name)
        if theirs is None or theirs.opened is None or mine.opened is None:
            return Counter()
        one, other = mine.opened.archive, theirs.opened.archive
        if not (one.has_checksums and other.has_checksums):
            return Counter()
        pairs = ((size, one.get(f"data/{key}"), other.get(f"data/{key}")) for key, size, _ in _weights_in(mine))
        return Counter(size for size, a, b in pairs if a and b and (a.size, a.crc) == (b.size, b.crc))


def _tables(file: TorchFile) -> list[dict[object, object]]:
    """The optimizers in a file; some save no groups of parameters, or the states of some of these alone."""
    found = [table for _, table in one_save.optimizers(file.value)]
    if found or not isinstance(file.value, dict):
        return found
    if is_states(file.value):
        return [{"state": file.value}]
    return [file.value] if isinstance(file.get("state"), dict) else []


def _groups(file: TorchFile) -> list[dict[object, object]]:
    """The groups of parameters of the optimizers in a file, or those that it lists alone."""
    tables = [table.get("param_groups") for table in _tables(file)]
    found = [file.value] if _lists_groups(file) else [groups for groups in tables if isinstance(groups, list)]
    return [group for groups in found if isinstance(groups, list) for group in groups if isinstance(group, dict)]


def _lists_groups(file: TorchFile) -> bool:
    value = file.value
    return isinstance(value, list) and bool(value) and all(isinstance(one, dict) and "params" in one for one in value)


def is_states(value: object) -> bool:
    """Whether it is a part of an optimizer's states, by the numbers of their parameters, as Colossal-AI's shards are."""
    if not isinstance(value, dict) or not value:
        return False
    entries = ((type(key) is int and isinstance(state, dict), state) for key, state in value.items())
    return all(known and not state.keys().isdisjoint(_MOMENTS) for known, state in entries)


def _held_by(file: TorchFile) -> _Held:
    moments: Counter[Shape] = Counter()
    states = 0
    for table in _tables(file):
        held = table["state"]
        states += len(held) if isinstance(held, dict) else 0
        moments += moments_of(file.opened, held)
    return _Held(moments, states, moments.total() >= states)


def _cover(sizes: Counter[Shape], optimizers: Collection[_Held]) -> bool:
    """Whether there is a tensor for every parameter that these optimizers have trained."""
    if all(held.known for held in optimizers):
        return sum((held.moments for held in optimizers), Counter[Shape]()) <= sizes
    return sum(held.states for held in optimizers) <= sizes.total()


def _weights_in(file: TorchFile) -> list[tuple[str, Shape, str]]:
    held = set()
    for table in _tables(file):
        states = table["state"]
        for state in states.values() if isinstance(states, dict) else ():
            held |= {id(value) for value in state.values()} if isinstance(state, dict) else set()
    tensors = file.opened.pickled.tensors if file.opened else []
    return [(t.storage.key, t.size, t.dtype) for t in tensors if id(t.made) not in held]


def _file_in(folder: Path, name: str) -> TorchFile | None:
    """A file of another save. Raises `Unread` where it is there and cannot be read."""
    try:
        return torch_file.check_file(Tree(folder), name, Ask("structural", 0.0))
    except Unread:
        raise
    except (Broken, NotKnown, OSError):
        return None


def _same_spans(tree: Tree, name: str, folder: Path) -> Counter[Shape]:
    """No checksum is recorded in safetensors: the two ends of each tensor are compared."""
    other = Tree(folder)
    try:
        one, two = safetensors_file.table_of(tree, name), safetensors_file.table_of(other, name)
        theirs = {key: (begin, dtype, shape) for key, begin, _, dtype, shape in two.spans}
        same: Counter[Shape] = Counter()
        with opened(tree.path(name), name) as mine, opened(other.path(name), name) as handle:
            for key, begin, end, dtype, shape in one.spans:
                at = theirs.get(key)
                if at is None or at[1:] != (dtype, shape):
                    continue
                length = min(_SAMPLE_BYTES, end - begin)
                if all(
                    mine.read(one.base + begin + ahead, length) == handle.read(two.base + at[0] + ahead, length)
                    for ahead in (0, end - begin - length)
                ):
                    same[shape] += 1
    except Unread:
        raise
    except (Broken, NotKnown, OSError):
        return Counter()
    return same
