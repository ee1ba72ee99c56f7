"""DeepSpeed's universal checkpoint: ``zero/<parameter>/{fp32,exp_avg,exp_avg_sq}.pt`` beside the model states.

It is made from an ordinary one by a program of its own and loads at any number of ranks. Every parameter that the model
states name must have its folder, and every folder the same files as the others. Any number of ranks loads the model states
of rank 0, and ``zero/optimizer_state.pt``, which has the groups of parameters.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from sentinel.checkpoints.files import Broken, NotKnown, Tree, opened
from sentinel.checkpoints.formats import one_save, torch_file
from sentinel.checkpoints.formats.base import Ask, Finding, no_owners, refuse_links, unfinished
from sentinel.checkpoints.formats.beside import layers
from sentinel.checkpoints.formats.torch_file import TorchFile
from sentinel.checkpoints.parsing.content import Role, looks_of
from sentinel.checkpoints.reading import Work, archive_works
from sentinel.text import visible

NAME = "deepspeed_universal"
_PARAMETER = re.compile(r"zero/(.+)/([^/]+)\.pt")
_GROUPS = "zero/optimizer_state.pt"
_OF_A_RANK = re.compile(r"(zero_pp_rank_)(\d+)(_mp_rank_\d+_model_states\.pt)")  # of ZeRO 3
_WEIGHT = "fp32"
_SAMPLE_BYTES = 4096
_MOMENTS = frozenset(("exp_avg", "exp_avg_sq"))  # of Adam: both or none

owners_by_name = no_owners


def recognise(tree: Tree) -> bool:
    return not tree.single and "zero" in tree.folders and any(_PARAMETER.fullmatch(name) for name in tree.files)


def check(tree: Tree, ask: Ask) -> Finding:
    refuse_links(tree)
    kinds: dict[str, set[str]] = {
        folder.removeprefix("zero/"): set() for folder in tree.folders if folder.startswith("zero/")
    }
    finding = Finding()
    works: list[Work] = []
    states: list[TorchFile] = []
    parameters: dict[tuple[str, str], TorchFile] = {}
    for name in sorted(tree.files):
        if not name.endswith(".pt"):
            continue
        match = _PARAMETER.fullmatch(name)
        if match:
            kinds.setdefault(match.group(1), set()).add(match.group(2))
        file = torch_file.check_file(tree, name, ask)
        if match:
            parameters[match.group(1), match.group(2)] = file = _as_named(tree, file, match.group(2), ask)
        works += file.works
        (finding.covered.add if file.summed else finding.unsummed.append)(name)
        if "/" not in name and name.endswith("model_states.pt"):
            states.append(file)
    if not states:
        raise unfinished(tree, ask, "no model states: it was not finished")
    _refuse_without_rank_0(tree, ask)
    every = set().union(*kinds.values()) | {_WEIGHT}
    for parameter, mine in sorted(kinds.items()):
        if mine != every and not _holds_folders(parameter, kinds):
            raise unfinished(tree, ask, f"{min(every - mine)}.pt of {visible(parameter)} is missing")
    if every == {_WEIGHT} or len(every & _MOMENTS) == 1:
        raise NotKnown("weights without the whole state of an optimizer: half deleted, or for inference only")
    if _GROUPS not in tree.files:  # not invalid: of older versions it is not known whether they wrote one
        raise NotKnown(f"{_GROUPS} is missing, without which DeepSpeed does not load: half deleted?")
    named = {name for file in states for name in layers.parameters_of(file)}
    if named & kinds.keys() and named - kinds.keys():
        raise unfinished(tree, ask, f"the parameter {visible(min(named - kinds.keys()))} is missing")
    steps = {step for file in states if type(step := file.get("global_steps")) is int}
    if len(steps) > 1:
        raise Broken(f"the model states are of different steps: {sorted(steps)[:4]}")
    finding.step = next(iter(steps), None)
    saved = [name for name in tree.files if _PARAMETER.fullmatch(name)]
    one_save.refuse_older(tree, saved)
    changing = [name for name in saved if not name.endswith("/step.pt")]
    # Weights and moments change in every step: one that is that of another save shows that two were mixed.
    finding.works = [
        *works,
        Work(0, lambda _: one_save.refuse_mixed(tree, ask, changing)),
        Work(0, lambda _: _refuse_copies(tree, parameters)),
    ]
    return finding


def _refuse_without_rank_0(tree: Tree, ask: Ask) -> None:
    matches = [match for name in tree.files if (match := _OF_A_RANK.fullmatch(name))]
    for first in sorted({match[1] + "0" + match[3] for match in matches} - tree.files.keys()):
        if first.removeprefix("zero_pp_rank_0_") not in tree.files:
            raise unfinished(tree, ask, f"{first} is missing, which every rank loads")


def _as_named(tree: Tree, file: TorchFile, kind: str, ask: Ask) -> TorchFile:
    """At level content its numbers are looked at as what its name says: inside the file a tensor is only ``param``.

    Raises:
        NotKnown: torch.save wrote it under another of these names, which it keeps as that of the archive.
    """
    saved_as = file.opened.archive.prefix if file.opened else kind
    if saved_as != kind and saved_as in (_WEIGHT, *_MOMENTS):
        raise NotKnown(f"{visible(file.name)} was saved under the name {saved_as}: files that changed places?")
    if ask.level != "content" or file.opened is None:
        return file
    found = replace(file.opened, looks=looks_of(replace(file.opened.pickled, value={kind: file.value}), Role.OPTIMIZER))
    return replace(file, works=list(archive_works(tree.path(file.name), file.name, found)))


def _refuse_copies(tree: Tree, parameters: Mapping[tuple[str, str], TorchFile]) -> None:
    """`NotKnown` where one moment of a parameter is that of another, and the other moment is not.

    Parameters that are added (``A x + B x``) have the same gradients, and then both moments are the same.
    """
    seen: dict[tuple[str, object], str] = {}
    sums = {place: _sums(file) for place, file in parameters.items()}
    for (parameter, kind), mine in sums.items():
        twin = seen.setdefault((kind, mine), parameter) if kind in _MOMENTS and mine else parameter
        other = next(iter(_MOMENTS - {kind}), "")
        if twin == parameter or sums.get((parameter, other)) == sums.get((twin, other)):
            continue
        start = _start(tree, parameters[parameter, kind])
        if start == _start(tree, parameters[twin, kind]) and start != start[:4] * (len(start) // 4):
            raise NotKnown(f"{kind}.pt of {visible(parameter)} holds the numbers of {visible(twin)}: a copy of it?")


def _sums(file: TorchFile) -> tuple[tuple[int, int], ...]:
    """Lengths and checksums of the numbers; empty where none are recorded."""
    if file.opened is None or not file.opened.archive.has_checksums:
        return ()
    return tuple((r.size, r.crc) for r in file.opened.archive.records.values() if "/data/" in r.name)


def _start(tree: Tree, file: TorchFile) -> bytes:
    """The beginning of the first numbers of a file."""
    records = file.opened.archive.records.values() if file.opened else ()
    record = next((record for record in records if "/data/" in record.name), None)
    if record is None:
        return b""
    with opened(tree.path(file.name), file.name) as handle:
        return handle.read(record.data, min(record.size, _SAMPLE_BYTES) // 4 * 4)


def _holds_folders(folder: str, kinds: dict[str, set[str]]) -> bool:
    """Whether it only leads to the folders of parameters."""
    return not kinds[folder] and any(other.startswith(folder + "/") for other in kinds)
