"""One file that torch.save wrote: an archive, or the older stream of pickles that has no checksum.

Used by the formats that consist of such files; on its own it is a checkpoint of one file (``.pt``, ``.pth``, ``.bin``;
Lightning's ``.ckpt`` is the same with ``global_step`` inside).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sentinel import inert_pickle
from sentinel.checkpoints.files import BeingWritten, Broken, Handle, NotKnown, Tree, opened
from sentinel.checkpoints.formats.base import Ask, Finding, no_owners, refuse_links
from sentinel.checkpoints.parsing import pickle_names, scalars, zips
from sentinel.checkpoints.parsing.content import OPTIMIZER_KEY, Role, looks_of, storages_of
from sentinel.checkpoints.parsing.floats import FloatScan, Look
from sentinel.checkpoints.parsing.tensors import (
    ITEM_BYTES,
    SHAPES,
    Pickled,
    Storage,
    limits,
    read_storage_reference,
)
from sentinel.checkpoints.reading import Opened, Work, archive_works, open_archive, span_crc
from sentinel.checkpoints.steps import STEP_KEYS, epoch_in, number_of, step_of, steps_by_other_names, without_numbers
from sentinel.inert_pickle import Opaque, load_counted_from, load_from
from sentinel.text import visible

NAME = "torch"
SUFFIXES = (".pt", ".pth", ".bin", ".ckpt")
OF_SPEECHBRAIN = "CKPT.yaml"  # in the folder of each of its saves, whose files are all called .ckpt: counters are text
_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
_LEGACY_START = b"\x80\x02\x8a\x0a"
_LEGACY_HEAD_BYTES = 48 << 20
_OPTIMIZER_FILE = re.compile(r"optimizer(_\d+)?\.|distrib_optim\.|.*optim_states\.pt$")
_OTHER_FILE = re.compile(
    r"(lr_)?scheduler(_\d+)?\.|sampler(_\d+)?\.|scaler\.|random_states_\d+\.|rng_state|training_args\.|dl_state_dict|dataloader"
)
_RANK_AT_END = re.compile(r"\.\d+$")  # state.pt.3
_MOST_STEPS = 1 << 53  # below it a float holds every whole number
_TABLES = 3  # of tables inside each other, in which trainers keep an optimizer
# Lightning goes on only from a file with the second one; its loops speak of an optimizer in weights alone, too.
_LIGHTNING, _OPTIMIZERS_OF_LIGHTNING = "pytorch-lightning_version", "optimizer_states"

owners_by_name = no_owners


@dataclass(slots=True)
class TorchFile:
    """What the structural check of one file found."""

    name: str
    value: object
    works: list[Work] = field(default_factory=list)
    summed: bool = True
    opened: Opened | None = None

    def steps(self) -> list[int]:
        """The step that the file states, under the names that frameworks use; whole numbers only."""
        value = self.value
        found: list[int] = []
        if isinstance(value, dict):
            found = [value[key] for key in STEP_KEYS if type(value.get(key)) is int]
        return found

    def get(self, *keys: str) -> object:
        """A value in nested dicts (and in the state of objects); None where there is none."""
        value = self.value
        for key in keys:
            if isinstance(value, Opaque):
                value = value.state
            value = value.get(key) if isinstance(value, dict) else None
        return value


def check_file(tree: Tree, name: str, ask: Ask) -> TorchFile:
    """Structure now, the bytes as works. `Broken` where it is not a whole torch.save file."""
    with opened(tree.path(name), name) as handle:
        if handle.size == 0:
            raise Broken(f"{visible(name)}: empty")
        key = _inode_of(handle, name, ask)
        file: TorchFile | None = ask.held.files.get(key)
        if file is None:
            file = _read_file(tree, name, handle, ask)
            if key:
                ask.held.files[key] = file
        else:
            file = replace(file, name=name, works=[])  # its bytes are read under its other name
    if file.opened is not None and not tree.single:
        _refuse_renumbered(name, file.opened.archive.prefix)
    return file


def _inode_of(handle: Handle, name: str, ask: Ask) -> tuple[object, ...]:
    """What the names of one file share, where they say the same of what it holds; empty for a file of one name."""
    status = os.fstat(handle.fd)
    return (status.st_dev, status.st_ino, file_role(name), ask.level) if status.st_nlink > 1 else ()


def _read_file(tree: Tree, name: str, handle: Handle, ask: Ask) -> TorchFile:
    shown = visible(name)
    head = handle.read(0, min(16, handle.size))
    if not zips.looks_like_zip(head):
        return _legacy(tree, name, handle, head, ask)
    zips.refuse_program(handle.read, handle.size, shown)
    role = file_role(name) if ask.level == "content" else None
    found = open_archive(handle.read, handle.size, shown, role)
    ask.say(pickle_names.judge(found.pickled.names, shown))
    return _file_of(tree, name, found, ask)


def _file_of(tree: Tree, name: str, found: Opened, ask: Ask) -> TorchFile:
    ask.held.add(found.archive, visible(name))
    works = [] if ask.level == "structural" else list(archive_works(tree.path(name), name, found))
    return TorchFile(name, _dict_of(found.pickled.value), works, found.archive.has_checksums, found)


def check_records(tree: Tree, name: str, ask: Ask) -> TorchFile:
    """A file of torch.save whose pickle is more than is taken into memory: that its records are there, and their bytes."""
    with opened(tree.path(name), name) as handle:
        archive = zips.parse(handle.read, handle.size, visible(name))
    return _file_of(tree, name, Opened(archive, Pickled(None, {}, [])), ask)


def check_program(tree: Tree, name: str, ask: Ask) -> TorchFile:
    """A program of TorchScript that is a model: its archive, with the tensors that it holds. `Broken` where it is not whole.

    Raises:
        NotKnown: another kind of program, whose tensors are not looked for.
    """
    shown = visible(name)
    with opened(tree.path(name), name) as handle:
        role = Role.MODEL if ask.level == "content" else None
        archive = zips.parse(handle.read, handle.size, shown, program=True)
        if archive.get("data.pkl") is None or archive.get("constants.pkl") is None:
            raise NotKnown(f"{shown}: a program of torch.export or torch.package: its numbers are not read")
        found = open_archive(handle.read, handle.size, shown, role, program=True)
    return replace(_file_of(tree, name, found, ask), value=found.pickled.value)


def _refuse_renumbered(name: str, saved_as: str) -> None:
    """`NotKnown` where torch.save wrote the file under a name with other numbers: it is another rank's, or another save's.

    torch.save to a path keeps the file's name, without what follows its last dot, as that of the archive.
    """
    file = name.rpartition("/")[2]
    mine = file.rpartition(".")[0] or file
    if saved_as != mine and without_numbers(saved_as) == without_numbers(mine):
        raise NotKnown(f"{visible(name)} was saved under the name {visible(saved_as)}: files that changed places?")


def _dict_of(value: object) -> object:
    """A model's state_dict is an ``OrderedDict``, which a pickle makes by a call: its names count like those of a dict."""
    if not isinstance(value, Opaque) or value.qualified != "collections.OrderedDict":
        return value
    pairs = [item for item in value.items or () if isinstance(item, tuple) and len(item) == 2]
    return {key: held for key, held in pairs if type(key) in (str, int)}


def file_role(name: str) -> Role:
    """What a file holds whose name frameworks give to one thing only; undecided where its contents must say."""
    file = name.rpartition("/")[2]
    if _OPTIMIZER_FILE.match(file):
        return Role.OPTIMIZER
    return Role.OTHER if _OTHER_FILE.match(file) else Role.UNDECIDED


def number_in(tree: Tree, file: TorchFile, value: object) -> float | None:
    """A plain number, or the one in a tensor of a single float32, int32 or int64; None for anything else.

    Raises:
        NotKnown: it counts no steps: it is not finite, or beyond what a float counts one by one.
    """
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return counted(file.name, value)
    if not isinstance(value, Opaque) or file.opened is None:
        return None
    place = scalars.place_of(file.opened, value)
    if place is None:
        return None
    layout, at = place
    with opened(tree.path(file.name), file.name) as handle:
        return counted(file.name, layout.unpack(handle.read(at, layout.size))[0])


def counted(name: str, number: float) -> float:
    """A count of steps that a file states. Raises `NotKnown` as `number_in` does."""
    if not abs(number) <= _MOST_STEPS:  # also where it is not a number
        raise NotKnown(f"{visible(name)} counts steps by a number that no training reaches: damaged?")
    return float(number)


def optimizer_step(tree: Tree, file: TorchFile, *path: str) -> float | None:
    """The number of steps that the optimizer state below ``path`` has made, from its first parameter."""
    states = file.get(*path)
    if isinstance(states, dict) and states:
        first = next(iter(states.values()))
        if isinstance(first, dict):
            return number_in(tree, file, first.get("step"))
    return None


def _legacy(tree: Tree, name: str, handle: Handle, head: bytes, ask: Ask) -> TorchFile:
    """The format before torch 1.6: five pickles, then each storage as its length and its bytes."""
    shown = visible(name)
    if not head.strip(b"\0"):
        raise Broken(f"{shown}: starts with zeros")
    if head[:1] != b"\x80":
        raise Broken(f"{shown}: neither an archive nor a pickle")
    data = handle.read(0, min(handle.size, _LEGACY_HEAD_BYTES))
    storages: dict[str, Storage] = {}

    def persistent(reference: object) -> object:
        storage = read_storage_reference(reference, shown)
        return storages.setdefault(storage.key, storage)

    try:
        magic, at = load_from(data, 0)
        if magic != _LEGACY_MAGIC and at == handle.size:
            raise NotKnown(f"{shown}: a whole pickle that torch.save did not write: it has no checksum")
        if magic != _LEGACY_MAGIC:
            raise Broken(f"{shown}: a pickle that torch.save did not write")
        _, at = load_from(data, at)
        _, at = load_from(data, at)
        value, at, census = load_counted_from(data, at, persistent=persistent, makers=SHAPES, limits=limits())
        keys, at = load_from(data, at)
    except inert_pickle.PickleTooLarge as error:
        raise NotKnown(f"{shown}: {error}") from None
    except inert_pickle.PickleError as error:
        if handle.size > len(data):
            raise NotKnown(f"{shown}: its description is longer than this reader takes") from None
        raise Broken(f"{shown}: {error}") from None
    ask.say(pickle_names.judge(sorted({named.qualified for named in census.names}), shown))
    looks = looks_of(storages_of(value), file_role(name)) if ask.level == "content" else {}
    works = list(_legacy_spans(tree, name, handle, storages, (keys, at), looks))
    return TorchFile(name, _dict_of(value), works, summed=False)


def _legacy_spans(
    tree: Tree,
    name: str,
    handle: Handle,
    storages: dict[str, Storage],
    listed: tuple[object, int],
    looks: Mapping[str, Sequence[Look]],
) -> Iterator[Work]:
    keys, at = listed
    if not isinstance(keys, list) or not all(isinstance(key, str) and key in storages for key in keys):
        raise Broken(f"{visible(name)}: its list of storages is damaged")
    for key in keys:
        storage = storages[key]
        if at + 8 + storage.bytes > handle.size:
            raise Broken(f"{visible(name)}: ends before its last storage (truncated)")
        elements = storage.bytes // ITEM_BYTES.get(storage.dtype, 1)
        if int.from_bytes(handle.read(at, 8), "little") not in (elements, storage.bytes):
            raise Broken(f"{visible(name)}: a storage of another length than described")
        at += 8
        if looks.get(key):
            yield _scan_work(tree, name, at, storage, looks[key])
        at += storage.bytes
    if at != handle.size:
        raise Broken(f"{visible(name)}: {handle.size - at} bytes after its last storage")


def _scan_work(tree: Tree, name: str, offset: int, storage: Storage, looks: Sequence[Look]) -> Work:
    def run(buffer: bytearray) -> None:
        scans = [FloatScan(look) for look in looks]
        with opened(tree.path(name), name) as handle:
            span_crc(handle, offset, storage.bytes, buffer, scans)
        for scan in scans:
            if scan.finding:
                raise Broken(f"{visible(name)}: {scan.finding} in a {scan.dtype} tensor", "content")

    return Work(storage.bytes, run)


def is_torch(tree: Tree, name: str) -> bool:
    """By its first bytes, or by its name where it lost them: other programs give their files ``.bin``, too.

    Raises:
        NotKnown: it has the name of one and holds something else, or has lost its first bytes and may be one.
    """
    with opened(tree.path(name), name) as handle:
        head = handle.read(0, min(16, handle.size))
    if zips.looks_like_zip(head) or head[:4] == _LEGACY_START:
        return True
    lost, named = not head.strip(b"\0"), _RANK_AT_END.sub("", name)
    if named.endswith((".pt", ".pth", ".ckpt")):
        if name.endswith(".ckpt") and head.isascii() and head[:1].isalnum() and _is_of_speechbrain(tree, name):
            return False
        if not lost and head[:1] != b"\x80":
            raise NotKnown(f"{visible(name)} does not begin as a file of torch.save")
        return True
    if lost and named.endswith((".bin", ".tar")):
        start = "starts with zeros" if head else "empty"
        raise NotKnown(f"{visible(name)}: {start}: a torch file that lost its content, or none")
    return False


def _is_of_speechbrain(tree: Tree, name: str) -> bool:
    return f"{name.rpartition('/')[0]}/{OF_SPEECHBRAIN}".lstrip("/") in tree.files


def recognise(tree: Tree) -> bool:
    name = next(iter(tree.files)) if tree.single else ""
    if number_of(name) is not None and "." not in name and tree.files[name].size:
        with opened(tree.path(name), name) as handle:
            return zips.looks_like_zip(handle.read(0, min(4, handle.size)))
    return name.endswith((*SUFFIXES, ".pt.tar", ".pth.tar"))


def check(tree: Tree, ask: Ask) -> Finding:
    """One file as a checkpoint of its own."""
    refuse_links(tree)
    name = next(iter(tree.files))
    with opened(tree.path(name), name) as handle:
        head = handle.read(0, min(16, handle.size))
    if head.strip(b"\0") and not zips.looks_like_zip(head) and head[:1] != b"\x80":
        raise NotKnown(f"{visible(name)} does not begin as a file of torch.save: another program's, or damaged")
    try:
        file = check_file(tree, name, ask)
    except Broken as error:
        if ask.fresh(tree):
            words = f"{error.reason}; changed less than {ask.fresh_s:.0f} s ago: being written?"
            raise BeingWritten(words, error.reason) from None
        raise
    steps = set(file.steps() or (steps_by_other_names(file.value) if step_of(name) is None else ()))
    return Finding(
        step=steps.pop() if len(steps) == 1 else None,
        epoch=epoch_in(file.value),
        works=file.works,
        unsummed=[] if file.summed else [name],
        covered={name} if file.summed else set(),
        resumable=not isinstance(file.value, dict) or may_be_resumed(file.value),
        optimizer=not isinstance(file.value, dict) or names_optimizer(file.value),
    )


def may_be_resumed(value: object) -> bool:
    """Whether a key of these tables speaks of an optimizer, or a trainer's step is beside the weights."""
    if names_optimizer(value):
        return True
    of_lightning = isinstance(value, dict) and _LIGHTNING in value
    return not of_lightning and any(key in STEP_KEYS for table in _tables(value) for key in table)


def names_optimizer(value: object) -> bool:
    """Whether a key of these tables speaks of an optimizer."""
    if isinstance(value, dict) and _LIGHTNING in value:
        return _OPTIMIZERS_OF_LIGHTNING in value
    return any(
        isinstance(key, str) and _speaks_of_optimizer(key, held)
        for table in _tables(value)
        for key, held in table.items()
    )


def _tables(value: object) -> Iterator[dict[object, object]]:
    """It, where it is a table, and the tables inside, as deep as trainers keep an optimizer."""
    seen: set[int] = set()
    pending = [(value, 0)]
    for table, depth in pending:
        if not isinstance(table, dict) or id(table) in seen:
            continue
        seen.add(id(table))
        yield table
        if depth < _TABLES:
            pending += [(child, depth + 1) for child in table.values()]


def _speaks_of_optimizer(key: str, held: object) -> bool:
    """Of a model's parameters some have "opt" in their names: ``opt_proj.weight``."""
    if OPTIMIZER_KEY.search(key):
        return True
    return "opt" in key.lower() and not (isinstance(held, Opaque) and held.name.startswith("_rebuild"))
