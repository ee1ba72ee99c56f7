"""A folder of torch files and safetensors that no particular format claims: trainers write them by hand, one file per rank
or one per part of the state (``checkpoint_<rank>.pt`` of torch's experimental checkpointer, Composer's
``ep0-ba10-rank3.pt``, ``model.pt`` beside ``optimizer.pt``, a folder of Ray Train).

There is no end marker. What can be shown: every file is whole, ranks have no hole, all that state a step state the same,
nothing is missing that the save beside it has, and the files are of one save.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from sentinel.checkpoints.files import BeingWritten, Broken, Foreign, NotKnown, Tree
from sentinel.checkpoints.formats import one_save, registered, safetensors_file, safetensors_set, torch_file
from sentinel.checkpoints.formats.base import NEAREST, Ask, Finding, neighbours, refuse_links, unfinished
from sentinel.checkpoints.formats.beside import extras
from sentinel.checkpoints.formats.beside.trained import Trained, is_states
from sentinel.checkpoints.formats.huggingface import hf_inside
from sentinel.checkpoints.parsing import json_files, plain_states
from sentinel.checkpoints.parsing.content import Role
from sentinel.checkpoints.parsing.copy_names import ranks_files
from sentinel.checkpoints.parsing.ranks import first_hole
from sentinel.checkpoints.reading import Work
from sentinel.checkpoints.records import level_at_least
from sentinel.checkpoints.steps import step_of
from sentinel.inert_pickle import Opaque
from sentinel.text import visible

NAME = "torch_folder"
_SUFFIXES = (*torch_file.SUFFIXES, ".tar")  # torch.save under the name of an archive is common
_RANK = re.compile(r"(?P<stem>(?:.*[-_.])?(?:checkpoint|rank|shard|worker|part|r)[-_]?)(?P<rank>\d+)(?P<rest>[^0-9]*)")
# Names that state how many there are: verl's model_world_size_8_rank_3.pt, model-00003-of-00008.bin.
_STATED = (
    re.compile(r".*world[-_]?size[-_]?(?P<count>\d{1,6})[-_]rank[-_]?(?P<number>\d{1,6})[^/0-9]*"),
    re.compile(r".*[-_.](?P<number>\d{1,6})[-_]of[-_](?P<count>\d{1,6})[^/0-9]*"),
)
_OF_AN_OPTIMIZER = re.compile(
    r"(?P<stem>(?:.*[-_./])?opt(?:im[a-z]*)?(?:[-_]?states?)?[-_]?)(?P<rank>\d{1,6})(?P<rest>[-_.][^0-9]*)"
)
_OTHER_STATES = (".distcp", ".msgpack", ".h5", ".keras")  # beside which what NumPy and pickle wrote is not the model
_INDEX = ".bin.index.json"
_COUNTED = 8  # parameters of an optimizer whose counts of steps are read: of experts some may be idle
_DEPTH = 3  # of folders in a step: model/pp_00/tp_00/sdp_00.pt
_NAME_OF_AN_OPTIMIZER = re.compile(
    r"(?:^|[^a-z])(?:optimi[sz]er|optim[a-z]?(?![a-z])|opt(?:im)?[-_]?state)", re.IGNORECASE
)
# Models are called OPT, too (opt-1.3b.safetensors), and people name files after much: what is inside decides of these.
_PERHAPS_OF_AN_OPTIMIZER = re.compile(
    r"(?:^|[^a-z])(?:opt(?:[-_]?\d{1,4})?\.[a-z]+$|(?:adamw?|sgd)[-_.])", re.IGNORECASE
)
_MOMENTS = frozenset(("exp_avg", "momentum_buffer"))
_PAIRS_OF_MOMENTS = (frozenset("mv"), frozenset(("mu", "nu")))
_MOMENTS_OF_ONE = _MOMENTS | {"momentum"}  # a setting, where it is a number
_WHOLE_STATE_KEYS = ("optimizer", "optim", "optimizer_state_dict", "optimizer_states")


def recognise(tree: Tree) -> bool:
    if tree.single:
        return False
    of_a_step = step_of(tree.root.name) is not None
    suffixes = (*_SUFFIXES, ".safetensors", *(plain_states.SUFFIXES if of_a_step else ()))
    depth = _DEPTH if of_a_step else 1
    names = [name for name in tree.files if name.endswith(suffixes) and name.count("/") <= depth]
    names += [name for name in ranks_files(tree.files) if name.count("/") <= depth]
    # Files of several steps are several checkpoints in one folder.
    return bool(names) and len({step for name in names if (step := step_of(name.rpartition("/")[2])) is not None}) <= 1


def owners_by_name(tree: Tree) -> frozenset[int]:
    return frozenset(rank for ranks in _ranks(tree).values() for rank in ranks)


def check(tree: Tree, ask: Ask) -> Finding:
    unended = ""
    if ask.fresh(tree) and not registered.is_registered(tree.root):
        unended = f"it has no end marker, and {ask.age(tree)}: being written?"
    try:
        finding = _check(tree, ask)
    except Broken as error:
        if unended:
            raise BeingWritten(f"{error.reason}; {unended}", error.reason) from None
        raise
    finding.unended = unended
    return finding


def _check(tree: Tree, ask: Ask) -> Finding:
    refuse_links(tree)
    works: list[Work] = []
    finding = Finding(marked=False)
    files = _torch_files(tree, ask, finding, works)
    for folder in sorted({name.rpartition("/")[0] for name in tree.files if name.endswith(".safetensors")}):
        inner = tree.below(folder) if folder else tree
        more, names = safetensors_set.check_models(inner, ask)
        works += more
        finding.unsummed += [f"{folder}/{name}" if folder else name for name in names]
    if files and not finding.unsummed and all(_holds_no_model(file) for file in files.values()):
        hf_inside.check_programs(tree, ask, finding, works)
    plain = _plain_files(tree, ask, files, finding, works)
    if not files and not finding.unsummed and not plain:
        raise NotKnown(f"no known checkpoint format among its {len(tree.files)} files")
    json_files.check_read_at_resume(tree)
    _as_indexed(tree, ask, files)
    _sets_of_ranks(tree, ask)
    _same_step(files, finding)
    if level_at_least(ask.level, "checksum"):
        _same_counts(tree, files)
    _last_ranks_as_beside(tree)
    one_save.refuse_lost_state(tree, files)
    _of_one_save(tree, ask, files, finding.unsummed)
    finding.works = works
    extras.check_unnamed(tree, ask, finding)
    finding.optimizer = _holds_optimizer(tree, files, [*finding.unsummed, *plain])
    finding.resumable = finding.optimizer or any(torch_file.may_be_resumed(file.value) for file in files.values())
    finding.owners = owners_by_name(tree)
    finding.note = (
        "every file is whole; there is no end marker that says that these are all" if ask.level == "structural" else ""
    )
    return finding


def check_loose(tree: Tree, ask: Ask, finding: Finding) -> dict[str, torch_file.TorchFile]:
    """Torch files of any names beside what else a checkpoint holds: whole, their ranks without a hole, of one step."""
    works: list[Work] = []
    files = _torch_files(tree, ask, finding, works)
    finding.works = [*finding.works, *works]
    _as_indexed(tree, ask, files)
    _sets_of_ranks(tree, ask)
    _same_step(files, finding)
    return files


def check_states(tree: Tree, ask: Ask, files: dict[str, torch_file.TorchFile]) -> None:
    """`NotKnown` where a part of an optimizer's states is that of another save, and the weights beside it are not."""
    shards = [name for name, file in files.items() if is_states(file.value)]
    weights = [name for name in tree.files if name.endswith(".safetensors")]
    trained = Trained(tree, files, shards, [*files, *weights])
    one_save.refuse_mixed(tree, ask, shards, weights, explains=trained.explains)


def _sets_of_ranks(tree: Tree, ask: Ask) -> None:
    """Each without a hole, and written at one time: no marker shows that one file was written over later."""
    if not ask.part:
        _as_many_as_stated(tree, ask)
    for stem, files in _ranks(tree).items():
        low, high = min(files), max(files)
        hole = first_hole(files, min(low, 1), high + 1)
        if hole is not None and low <= 1 and not ask.part:
            raise unfinished(tree, ask, f"{visible(stem.replace('*', str(hole)))} is missing")
        one_save.refuse_pause(tree, files.values(), one_save.RANKS_HANG_S)
    for stem, files in _ranks(tree, _OF_AN_OPTIMIZER).items():
        hole = first_hole(files, min(*files, 1), max(files) + 1)
        if hole is not None and min(files) <= 1 and not ask.part:
            raise NotKnown(f"{visible(stem.replace('*', str(hole)))} is missing: of a rank, or one that is not saved?")


def _as_many_as_stated(tree: Tree, ask: Ask) -> None:
    sets: dict[tuple[str, str, int], dict[int, str]] = {}
    for name in tree.files:
        match = next((found for stated in _STATED if (found := stated.fullmatch(name))), None)
        if match and name.endswith(_SUFFIXES):
            start, end = match.span("number")
            sets.setdefault((name[:start], name[end:], int(match["count"])), {})[int(match["number"])] = match["number"]
    for (before, after, count), numbers in sets.items():
        first = 1 if "of" in after and 0 not in numbers else 0
        hole = first_hole(numbers, first, first + count)
        if hole is not None:
            digits = max(len(number) if number[0] == "0" else 1 for number in numbers.values())
            raise unfinished(tree, ask, f"{visible(before + str(hole).zfill(digits) + after)} is missing")


def _as_indexed(tree: Tree, ask: Ask, files: dict[str, torch_file.TorchFile]) -> None:
    """Every index of torch files, Hugging Face's and Colossal-AI's, against those that it names.

    One that names none of the files beside it is of another model, copied in with its settings, or its set is gone:
    only a save beside tells.
    """
    if ask.part:
        return  # its files may be on other nodes
    for name in sorted(name for name in tree.files if name.endswith(_INDEX) and name.count("/") <= _DEPTH):
        folder, _, index = name.rpartition("/")
        inner = tree.below(folder) if folder else tree
        mapped = safetensors_set.mapped_by(inner, index)
        if mapped is None:
            mapped = {file for file in inner.files if file.endswith(".bin")}
        if inner.files.keys().isdisjoint(mapped):
            continue
        inside = {file: files.get(f"{folder}/{file}" if folder else file) for file in inner.files}
        held = {file: {str(key) for key in f.value} for file, f in inside.items() if f and isinstance(f.value, dict)}
        safetensors_set.check_index(inner, ask, index, held)


def _torch_files(tree: Tree, ask: Ask, finding: Finding, works: list[Work]) -> dict[str, torch_file.TorchFile]:
    files: dict[str, torch_file.TorchFile] = {}
    of_ranks = ranks_files(tree.files)
    for name in sorted(tree.files):
        hidden = name.rpartition("/")[2].startswith(".")  # no framework names its files so
        if (
            hidden
            or not (name in of_ranks or name.endswith((*_SUFFIXES, ".pkl")))
            or not torch_file.is_torch(tree, name)
        ):
            continue
        try:
            file = files[name] = torch_file.check_file(tree, name, ask)
        except Foreign:
            continue
        works += file.works
        (finding.covered.add if file.summed else finding.unsummed.append)(name)
    return files


def _plain_files(
    tree: Tree, ask: Ask, files: dict[str, torch_file.TorchFile], finding: Finding, works: list[Work]
) -> list[str]:
    """What NumPy and pickle wrote where it is the model, whole; their names.

    Beside another state such a file may be anything: predictions, a scaler of somebody's, compressed by any method.
    """
    if files or finding.unsummed or any(name.endswith(_OTHER_STATES) for name in tree.files):
        return []
    names = [name for name in sorted(tree.files) if name.endswith(plain_states.SUFFIXES)]
    budget = plain_states.PickleBudget(plain_states.PICKLE_BYTES)
    for name in names:
        try:
            more = plain_states.check(tree, name, budget, ask.held)
        except Broken as error:  # it may be no part of the state: what is invalid is moved aside
            raise NotKnown(error.reason) from None
        works += more
        if more:
            finding.covered.add(name)
        else:
            finding.unsummed.append(name)
        finding.unread = "what NumPy or pickle wrote"
    return names


def _ranks(tree: Tree, named: re.Pattern[str] = _RANK) -> dict[str, dict[int, str]]:
    """Sets of files that differ in the number of a rank only, by that number; a set of one is none."""
    found: dict[str, dict[int, str]] = {}
    for name in tree.files:
        match = named.fullmatch(name)
        if match and name.endswith(_SUFFIXES):
            found.setdefault(match["stem"] + "*" + match["rest"], {})[int(match["rank"])] = name
    for name in ranks_files(tree.files) if named is _RANK else ():
        stem, _, rank = name.rpartition(".")
        found.setdefault(f"{stem}.*", {})[int(rank)] = name
    return {stem: files for stem, files in found.items() if len(files) > 1}


def _same_step(files: dict[str, torch_file.TorchFile], finding: Finding) -> None:
    stated = {name: steps[0] for name, file in files.items() if len(steps := sorted(set(file.steps()))) == 1}
    if len(set(stated.values())) > 1:
        low, high = min(stated, key=lambda name: stated[name]), max(stated, key=lambda name: stated[name])
        raise Broken(
            f"{visible(low)} is of step {stated[low]}, {visible(high)} of step {stated[high]}: two saves mixed"
        )
    if finding.step is None:
        finding.step = next(iter(stated.values()), None)


def _same_counts(tree: Tree, files: dict[str, torch_file.TorchFile]) -> None:
    """`NotKnown` where the ranks' optimizers or schedules have made different numbers of steps, as in no save beside.

    A stage of the model that was frozen for a while counts less in every save since.
    """
    for names in _ranks(tree).values():
        held = {name: files[name] for name in names.values() if name in files}
        for kind, counts in enumerate(_counts(tree, held)):
            if len(set(counts.values())) < 2:
                continue
            beside = [_counts_beside(folder, held, kind) for folder in neighbours(tree.root, NEAREST)]
            if not any(len(theirs) > 1 for theirs in beside):
                low, high = min(counts, key=lambda name: counts[name]), max(counts, key=lambda name: counts[name])
                raise NotKnown(
                    f"{visible(low)} counts {counts[low]:.0f} steps, {visible(high)} {counts[high]:.0f}: two saves mixed"
                )


def _counts_beside(folder: Path, names: Iterable[str], kind: int) -> set[float]:
    tree, found = Tree(folder), set[float]()
    for name in names:
        try:
            file = torch_file.check_file(tree, name, Ask("structural", 0.0))
            found |= set(_counts(tree, {name: file})[kind].values())
        except (Broken, Foreign, NotKnown, OSError):
            continue
    return found


def _counts(tree: Tree, files: dict[str, torch_file.TorchFile]) -> tuple[dict[str, float], dict[str, float]]:
    """The steps that the files' optimizers have made, and their schedules."""
    optimizers: dict[str, float] = {}
    schedules: dict[str, float] = {}
    for name, file in files.items():
        for _, table in one_save.optimizers(file.value):
            states = table["state"]
            entries = list(states.values())[:_COUNTED] if isinstance(states, dict) else []
            made = [torch_file.number_in(tree, file, entry.get("step")) for entry in entries if isinstance(entry, dict)]
            if known := [count for count in made if count is not None]:
                optimizers[name] = max([optimizers.get(name, 0.0), *known])
        for table in (file.value, *(file.value.values() if isinstance(file.value, dict) else ())):
            if isinstance(table, dict) and type(count := table.get("last_epoch")) is int:
                schedules[name] = torch_file.counted(name, count)
    return optimizers, schedules


def _has_optimizer(file: torch_file.TorchFile) -> bool:
    value = file.value
    return isinstance(value, dict) and ("param_groups" in value or any(key in value for key in _WHOLE_STATE_KEYS))


def _is_optimizer(value: object) -> bool:
    """Whether it is an optimizer's state, or holds one, under whatever name."""
    if any(True for _ in one_save.optimizers(value)):
        return True
    return isinstance(value, dict) and _names_moments(value, _MOMENTS)


def _names_moments(table: dict[object, object], single: frozenset[str]) -> bool:
    named = any(not isinstance(table[name], (int, float)) for name in single.intersection(table))
    return named or any(pair <= table.keys() for pair in _PAIRS_OF_MOMENTS)


def _holds_no_model(file: torch_file.TorchFile) -> bool:
    return torch_file.file_role(file.name) is not Role.UNDECIDED


def _is_weights(value: object, depth: int = 0) -> bool:
    """Whether a table holds tensors by their names, or tables of such, and nothing else that has entries.

    Where a table names moments, as of each parameter (``{name: {m, v}}``), it is an optimizer's.
    """
    if not isinstance(value, dict) or not value or depth > _DEPTH or _names_moments(value, _MOMENTS_OF_ONE):
        return False
    tables = [held for held in value.values() if isinstance(held, (dict, list)) and held]
    tensors = [held for held in value.values() if isinstance(held, Opaque) and held.name.startswith("_rebuild")]
    return bool(tables or tensors) and all(_is_weights(table, depth + 1) for table in tables)


def _holds_optimizer(tree: Tree, files: dict[str, torch_file.TorchFile], names: list[str]) -> bool:
    """Whether there is an optimizer: by what is in the files, and by their names where that does not say."""
    if any(torch_file.names_optimizer(file.value) or _is_optimizer(file.value) for file in files.values()):
        return True
    if any(_NAME_OF_AN_OPTIMIZER.search(name) for name in (*files, *names)):
        return True
    weights = {name for name, file in files.items() if _is_weights(file.value)}
    weights |= {
        name for name in names if name.endswith(".safetensors") and not safetensors_file.has_moments(tree, name)
    }
    return any(_PERHAPS_OF_AN_OPTIMIZER.search(name) for name in {*files, *names} - weights)


def _of_one_save(tree: Tree, ask: Ask, files: dict[str, torch_file.TorchFile], names: list[str]) -> None:
    """`NotKnown` where files that every step changes are those of another save: optimizers, and what they train."""
    sets = _ranks(tree).values()
    rank_of = {name: rank for ranks in sets for rank, name in ranks.items()}
    shards = [name for name, file in files.items() if is_states(file.value)]
    trained = [
        name for name, file in files.items() if any(one_save.parameters(t) for _, t in one_save.optimizers(file.value))
    ]
    trained += shards
    changing = [*(name for name, file in files.items() if _has_optimizer(file)), *shards]
    for rank in {rank_of.get(name) for name in trained}:
        inside = [name for name in dict.fromkeys((*files, *names)) if rank_of.get(name) == rank]
        part = Trained(tree, files, [name for name in trained if name in inside], inside)
        changing += part.wholly_trained() if part.all_here() else []
    whole = Trained(tree, files, trained, [*files, *names], [ranks.values() for ranks in sets])
    unread = any(name not in trained for name in changing if _has_optimizer(files[name]))
    explains = None if unread else whole.explains
    one_save.refuse_mixed(tree, ask, list(dict.fromkeys(changing)), [*files, *names], explains=explains)


def _last_ranks_as_beside(tree: Tree) -> None:
    """A rank's file that the save beside it has: without the last one of a set it has no hole."""
    name, theirs = hf_inside.beside(tree)
    mine = {file for file in tree.files if "/" not in file}
    of_ranks = {file for file in theirs if file.endswith(_SUFFIXES) and _RANK.fullmatch(file)} | ranks_files(theirs)
    lacking = sorted(of_ranks - mine)
    if lacking and theirs & mine:
        raise NotKnown(f"{visible(lacking[0])} is missing, which {visible(name)} has: half deleted or half written?")
