"""Lists the checkpoints below a root, and which host holds which part.

`listing` is what one host sees under one root (a folder of checkpoints, one or a few levels deep); it is made where the
files are, by a process that runs as the job's user. `sentinel.checkpoints.join` puts the hosts' listings together.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from sentinel.checkpoints.files import entry_at
from sentinel.checkpoints.formats import by_name, marks, nvrx, rank_set, torch_file
from sentinel.checkpoints.formats.jax import msgpack, orbax
from sentinel.checkpoints.listed import below, loose, weights
from sentinel.checkpoints.parsing.copy_names import duplicate_of, holds_none_for_use, is_not_for_use
from sentinel.checkpoints.records import CANNOT_BE_READ, Candidate, Level, Part, Tier
from sentinel.checkpoints.steps import last_number, number_of, step_of
from sentinel.checkpoints.validate import DEFAULTS, Settings, validate_part

MAX_CANDIDATES = 500  # of one root that are listed; the newest steps first
MAX_FOLDERS = 200_000  # that are looked at under one root
_DEPTH = 3  # root/run/step, and one to spare
_DEEPEST = 6  # where there is nothing so far: outputs/date/time/run/checkpoints. Data may lie in very many folders.
_MOST_DEEPER = 20_000  # folders that are kept in mind for that
# torchtitan with torchft (0.3.0 spells it ft-replicat-0): every step, the data loaders of one replica; the model is above.
_PARTIAL = ("ft-replica",)
_OF_LEROBOT = frozenset(("pretrained_model", "training_state"))  # folders in each of its saves, which hold all files
_EXPORT = re.compile(r"ba\d+")  # in a folder "huggingface": LLM Foundry's, for others to load, without the optimizer
# Trainers that keep files beside each other, or one that they write anew: ckpt.pt, checkpoint_last.pt, model_0004999.pth,
# checkpoint-12.pth.tar. What they hold says whether they are checkpoints, and of which step.
_LOOSE = re.compile(
    r"(?:.*(?:ckpt|checkpoint|snapshot|latest|last|best|final|state|epoch|iter).*|(?:.*[A-Za-z_.-])?\d+)\.(?:pt|pth|ckpt)(?:\.tar)?",
    re.IGNORECASE,
)
_DIGITS = 18
_MOST_LOOSE = 64  # of them that are looked at, the highest numbers first
_SKIPPED = frozenset({".quarantine", "lost+found", "tb", "tensorboard", "wandb", "__pycache__", ".git"})


@dataclass(frozen=True, slots=True)
class Spot:
    """Where a checkpoint lies; ``step`` only where several share one folder (NVRx local)."""

    place: str  # text: a hundred thousand paths take five times the memory
    step: int | None = None
    loose: bool = False  # a file whose name does not say that it is a checkpoint

    @property
    def path(self) -> Path:
        return Path(self.place)

    @property
    def order(self) -> tuple[int, str]:
        name = self.place.rpartition("/")[2]
        step = self.step if self.step is not None else step_of(name)
        if step is None:
            step = number_of(name)
        return (1 if step is None else -step, self.place)

    def key(self, root: Path) -> str:
        inside = os.path.relpath(self.place, root)
        return inside if self.step is None else f"{inside}/iter_{self.step:07d}"


@dataclass(frozen=True, slots=True)
class Found:
    """What under a root looks like a checkpoint, highest step first, and what could not be looked at."""

    spots: list[Spot]
    notes: list[tuple[Path, str]]


@dataclass(slots=True)
class _Search:
    spots: list[Spot] = field(default_factory=list)
    notes: list[tuple[Path, str]] = field(default_factory=list)
    pending: list[tuple[Path, int]] = field(default_factory=list)
    loose: list[Spot] = field(default_factory=list)
    deeper: list[tuple[Path, int]] = field(default_factory=list)  # left out so far
    deepest: int = _DEPTH


def find(root: Path) -> Found:
    """Look for checkpoints under a root without reading them. Links are not followed."""
    search = _Search(pending=[(root, 0)])
    _explore(root, search)
    search.spots.sort(key=lambda spot: spot.order)
    # A run may itself be named like a step ("sft-step2"): then its folder holds others, and they are meant.
    folders = [spot for spot in search.spots[:MAX_CANDIDATES] if spot.step is None]
    runs = [spot for spot in folders if not is_not_for_use(spot.path.name) and _holds_steps(spot.path)]
    if runs:
        search.spots = [spot for spot in search.spots if spot not in runs]
        search.pending = [(spot.path, 1) for spot in runs]
        _explore(root, search)
        search.spots.sort(key=lambda spot: spot.order)
    if not search.spots and not search.loose and search.deeper:
        too_many = len(search.deeper) >= _MOST_DEEPER
        search.pending, search.deeper, search.deepest = search.deeper, [], _DEEPEST
        _explore(root, search)
        search.spots.sort(key=lambda spot: spot.order)
        if not search.spots and not search.loose and (search.deeper or too_many):
            deep = _DEPTH if too_many else _DEEPEST
            search.notes.append((root, f"folders more than {deep} deep in it were not all looked at"))
    if not search.spots:
        search.loose.sort(key=_order_of_loose)
        search.spots = search.loose[:_MOST_LOOSE]
    return Found(search.spots, search.notes)


def _order_of_loose(spot: Spot) -> tuple[int, int, str]:
    """By the last number in the name, highest first; a file that is written anew before those with a number."""
    number = last_number(spot.path.name)
    return (1 if number else 0, -int(number[:_DIGITS]) if number else 0, spot.place)


def _explore(root: Path, search: _Search) -> None:
    looked = 0
    while search.pending:
        folder, depth = search.pending.pop()
        looked += 1
        if looked > MAX_FOLDERS:
            search.notes.append((root, f"more than {MAX_FOLDERS} folders: the rest was not looked at"))
            return
        try:
            with os.scandir(folder) as entries:
                _sort_out(folder, list(entries), depth, search)
        except OSError as error:
            search.notes.append((folder, f"{CANNOT_BE_READ} ({_what_is_wrong(folder, error)})"))


def _what_is_wrong(folder: Path, error: OSError) -> str:
    """Of a folder below a link that leads nowhere Linux says that it does not exist, as of one that nobody has made yet."""
    if isinstance(error, FileNotFoundError):
        for link in (folder, *folder.parents):
            with suppress(OSError):
                if link.is_symlink() and not link.exists():
                    return "a symbolic link whose target is missing"
    return error.strerror or type(error).__name__


def _sort_out(folder: Path, entries: Sequence[os.DirEntry[str]], depth: int, search: _Search) -> None:
    """One folder: it is a checkpoint itself, or holds checkpoints, or holds folders that may."""
    if _is_checkpoint({entry.name for entry in entries}) and not (
        below.holds_saves_of_steps(folder, entries) or _holds_files_of_steps(folder, entries)
    ):
        search.spots.append(Spot(str(folder)))
        return
    local = _local_iterations(entries)
    if local:
        search.spots.extend(Spot(str(folder), step) for step in local)
        return
    ranks = _lowest_ranks(entries)
    for entry in entries:
        if entry.name in _SKIPPED or entry.name.startswith("."):
            continue
        if (folder.name == "huggingface" and _EXPORT.fullmatch(entry.name)) or ranks.get(entry.name, True) is False:
            continue
        path = folder / entry.name
        try:
            if entry.is_symlink():
                if step_of(entry.name) is not None:
                    search.notes.append((path, "a symbolic link: not followed"))
            elif entry.is_dir(follow_symlinks=False):
                if step_of(entry.name) is not None or _is_numbered_save(path):
                    search.spots.append(Spot(str(path)))
                elif holds_none_for_use(entry.name):
                    search.notes.append((path, "so is named what was deleted or set aside: not looked at"))
                elif not entry.name.startswith(_PARTIAL):
                    if depth < search.deepest:
                        search.pending.append((path, depth + 1))
                    elif len(search.deeper) < _MOST_DEEPER:
                        search.deeper.append((path, depth + 1))
            elif _is_checkpoint_file(entry.name):
                search.spots.append(Spot(str(path)))
            elif _LOOSE.fullmatch(entry.name) and len(search.loose) < MAX_FOLDERS and not duplicate_of(entry.name):
                search.loose.append(Spot(str(path), loose=True))
        except OSError as error:
            search.notes.append((path, f"cannot be read ({error.strerror or type(error).__name__})"))


def _lowest_ranks(entries: Sequence[os.DirEntry[str]]) -> dict[str, bool]:
    """Files of one rank each: whether it is the lowest of its step, which stands for all of them."""
    sets: dict[str, list[tuple[int, str]]] = {}
    for entry in entries:
        if (known := rank_set.set_of(entry.name)) is not None:
            sets.setdefault(known[0], []).append((known[1], entry.name))
    return {name: name == min(files)[1] for files in sets.values() for _, name in files}


def _is_numbered_save(path: Path) -> bool:
    """Whether a folder that numbers a save holds one: files of a state, not folders of runs."""
    if number_of(path.name) is None:
        return False
    with os.scandir(path) as entries:
        inside = list(entries)
    names = {entry.name for entry in inside}
    # Older Orbax describes only its items: folders inside of the step.
    items = [Path(entry.path) for entry in inside[:16] if entry.is_dir(follow_symlinks=False)]
    # What cannot be looked at there says nothing of the save beside it.
    if any(entry_at(item / name) is not None for item in items for name in (orbax.ITEM, orbax.STORE)):
        return True
    if not _OF_LEROBOT.isdisjoint(names):
        return True
    return _is_checkpoint(names) or any(
        name.endswith((*torch_file.SUFFIXES, ".safetensors")) and step_of(name) is None for name in names
    )


def _is_checkpoint(names: set[str]) -> bool:
    """Whether a folder of these names is a checkpoint although its own name may state no step."""
    return (
        bool({".metadata", "__0.metadata"} & names)
        or any(marks.LIBRARIES.fullmatch(name) for name in names)
        or bool({orbax.ROOT, orbax.ITEM} & names)
        or {"weights", "context"} <= names
        or torch_file.OF_SPEECHBRAIN in names
        or any(name.startswith("__") and name.endswith(".distcp") for name in names)
        or any(known.pattern.search(name) for known in by_name.UNCHECKED for name in names)
    )


def _holds_files_of_steps(folder: Path, entries: Iterable[os.DirEntry[str]]) -> bool:
    """Whether files of several steps, or several numbered ones, lie there, each a save of its own.

    Then what marks the folder was put beside them: an export, a file of another library's.
    """
    names = [
        entry.name for entry in entries if _is_checkpoint_file(entry.name) and entry.is_file(follow_symlinks=False)
    ]
    steps = {step_of(name) for name in names} - {None, step_of(folder.name)}
    # Files named by bare digits are of ranks, too.
    numbers = {number_of(name) for name in names if not name.partition(".")[0].isdigit()} - {None}
    return len(steps) > 1 or len(numbers) > 1


def _local_iterations(entries: Iterable[os.DirEntry[str]]) -> set[int]:
    """The iterations of an NVRx session: folders named by rank, files named by iteration and owner."""
    found: set[int] = set()
    for entry in entries:
        if entry.name.isdigit() and entry.is_dir(follow_symlinks=False):
            with os.scandir(entry.path) as files:
                names = [file.name for file in files]
        else:
            names = [entry.name]
        found |= {int(m.group(3)) for name in names if (m := nvrx.FILE.fullmatch(name))}
    return found


def _is_checkpoint_file(name: str) -> bool:
    if duplicate_of(name):
        return False
    stated = step_of(name) is not None
    flax = msgpack.UNSUFFIXED.fullmatch(name) is not None
    return (
        name.endswith(".ckpt")
        or flax
        or (name.endswith((".pt", ".pth", ".pth.tar", ".safetensors", ".msgpack")) and stated)
    )


def _holds_steps(path: Path) -> bool:
    """Whether there are only folders inside, at least one of them named like a step."""
    try:
        inner = False
        with os.scandir(path) as entries:
            for entry in entries:
                if not entry.is_dir(follow_symlinks=False):
                    return False
                inner = inner or step_of(entry.name) is not None
    except OSError:
        return False
    return inner


def listing(
    root: Path,
    tier: Tier,
    host: str | None,
    *,
    level: Level = "structural",
    limit: int = MAX_CANDIDATES,
    enough: int | None = None,
    before_step: int | None = None,
    now_s: float | None = None,
    settings: Settings = DEFAULTS,
) -> list[Part]:
    """What this host sees under this root, every checkpoint checked at that level; never raises for what lies there.

    The newest steps first, until ``limit`` of them are listed and one of those is valid: a thousand empty or broken
    folders do not hide a good one below them, nor do weights alone. Reading terabytes takes long, so once ``enough`` of
    them are valid at the level asked for, the older ones are checked by structure only; so are those that are not before
    ``before_step`` (their numbers are bad anyway). What could not be looked at is a part of its own: valid None, and why.
    """
    now = time.time() if now_s is None else now_s
    name, found = host or "", find(root)
    parts: list[Part] = []
    sound = False
    passed = left = read = exports = 0
    for index, spot in enumerate(found.spots):
        if len(parts) >= limit and sound:
            left = len(found.spots) - index
            break
        late = before_step is not None and spot.order[0] <= -before_step
        closely: Level = "structural" if late or (enough is not None and read >= enough) else level
        validated = partial(
            validate_part, spot.path, tier=tier, host=name, root=root, step=spot.step,
            now_s=now, loose=spot.loose, settings=settings,
        )  # fmt: skip
        # What is passed over beside whole saves must not keep these from being read.
        skim = enough is not None and exports >= enough and closely != "structural"
        part = validated("structural" if skim else closely)
        if skim and part.valid and part.optimizer is not False:
            part = validated(closely)
        if spot.loose and not loose.may_be_resumed(part):
            continue
        whole = part.valid is True and part.optimizer is not False
        exports += part.valid is True and not whole
        read += part.optimizer is not False and (whole or part.whole_if_ended) and part.level == level
        sound = sound or whole or exports >= MAX_CANDIDATES
        if len(parts) < limit or whole:
            parts.append(replace(part, key=spot.key(root)))
        else:
            passed += 1
    parts = loose.judged(loose.on_one_scale(parts)) if found.spots and found.spots[0].loose else parts
    parts = weights.pass_over_exports(parts)
    parts += [_unseen(root, path, tier, name, reason) for path, reason in found.notes[:limit]]
    for count, what in (
        (passed, "more were looked at, none of them valid and with an optimizer"),
        (left, f"older checkpoints under this root were not looked at (limit {limit})"),
        (len(found.notes[limit:]), "more could not be looked at"),
    ):
        if count:
            parts.append(_unseen(root, root, tier, name, f"{count} {what}"))
    return parts


def deepen(parts: Iterable[Part], candidate: Candidate, level: Level, *, settings: Settings = DEFAULTS) -> list[Part]:
    """The same parts, those of this candidate checked again at that level.

    For large tiers: list everything by structure, choose, and read only what was chosen; if it does not hold, the next.
    """
    return [
        _deeper(part, level, settings)
        if part.key == candidate.key and part.tier == candidate.tier and _is_of(part, candidate)
        else part
        for part in parts
    ]


def _deeper(part: Part, level: Level, settings: Settings) -> Part:
    step = part.step if part.format == nvrx.NAME else None
    path, root = Path(part.path), Path(part.root)
    read = validate_part(path, level, tier=part.tier, host=part.host, root=root, step=step, settings=settings)
    return replace(read, key=part.key, number=part.number if read.step is None else None)


def _is_of(part: Part, candidate: Candidate) -> bool:
    return part.path == candidate.path if part.tier == "global" else part.host in candidate.paths


def _unseen(root: Path, path: Path, tier: Tier, host: str, reason: str) -> Part:
    return Part(
        host=host,
        root=str(root),
        path=str(path),
        key=os.path.relpath(path, root),
        step=step_of(path.name) if path != root else None,  # what is of a later step is moved aside
        tier=tier,
        format="unknown",
        bytes=0,
        valid=None,
        level="structural",
        reason=reason,
        whole=False,
    )
