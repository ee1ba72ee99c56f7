"""Who holds what, where.

`listing` is what one host sees under one root (a folder of checkpoints, one or a few levels deep); it is made where the
files are, by a process that runs as the job's user. `join` puts the hosts' listings together: only then can it be said
whether a checkpoint that is spread over nodes is complete.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from sentinel.checkpoints.files import visible
from sentinel.checkpoints.formats import nvrx
from sentinel.checkpoints.records import LEVELS, NOTHING, Candidate, Level, Part, Tier
from sentinel.checkpoints.steps import step_of
from sentinel.checkpoints.validate import DEFAULTS, Settings, validate_part

MAX_CANDIDATES = 500  # of one root that are listed; the newest steps first
MAX_FOLDERS = 200_000  # that are looked at under one root
_DEPTH = 3  # root/run/step, and one to spare
_SKIPPED = frozenset({".quarantine", "lost+found", "tb", "tensorboard", "wandb", "__pycache__", ".git"})


@dataclass(frozen=True, slots=True)
class Spot:
    """Where a checkpoint lies; ``step`` only where several share one folder (NVRx local)."""

    place: str  # text: a hundred thousand paths take five times the memory
    step: int | None = None

    @property
    def path(self) -> Path:
        return Path(self.place)

    @property
    def order(self) -> tuple[int, str]:
        step = self.step if self.step is not None else step_of(self.place.rpartition("/")[2])
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


def find(root: Path) -> Found:
    """Look for checkpoints under a root without reading them. Links are not followed."""
    search = _Search(pending=[(root, 0)])
    _explore(root, search)
    search.spots.sort(key=lambda spot: spot.order)
    # A run may itself be named like a step ("sft-step2"): then its folder holds others, and they are meant.
    runs = [spot for spot in search.spots[:MAX_CANDIDATES] if spot.step is None and _holds_steps(spot.path)]
    if runs:
        search.spots = [spot for spot in search.spots if spot not in runs]
        search.pending = [(spot.path, 1) for spot in runs]
        _explore(root, search)
        search.spots.sort(key=lambda spot: spot.order)
    return Found(search.spots, search.notes)


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
            search.notes.append((folder, f"cannot be read ({error.strerror or type(error).__name__})"))


def _sort_out(folder: Path, entries: Sequence[os.DirEntry[str]], depth: int, search: _Search) -> None:
    """One folder: it is a checkpoint itself, or holds checkpoints, or holds folders that may."""
    if _is_checkpoint({entry.name for entry in entries}):
        search.spots.append(Spot(str(folder)))
        return
    local = _local_iterations(entries)
    if local:
        search.spots.extend(Spot(str(folder), step) for step in local)
        return
    for entry in entries:
        if entry.name in _SKIPPED or entry.name.startswith("."):
            continue
        path = folder / entry.name
        try:
            if entry.is_symlink():
                if step_of(entry.name) is not None:
                    search.notes.append((path, "a symbolic link: not followed"))
            elif entry.is_dir(follow_symlinks=False):
                if step_of(entry.name) is not None:
                    search.spots.append(Spot(str(path)))
                elif depth < _DEPTH:
                    search.pending.append((path, depth + 1))
            elif _is_checkpoint_file(entry.name):
                search.spots.append(Spot(str(path)))
        except OSError as error:
            search.notes.append((path, f"cannot be read ({error.strerror or type(error).__name__})"))


def _is_checkpoint(names: set[str]) -> bool:
    """Whether a folder of these names is a checkpoint although its own name may state no step."""
    return (
        bool({".metadata", "__0.metadata", "trainer_state.json", "random_states_0.pkl"} & names)
        or {"weights", "context"} <= names
        or any(name.startswith("__") and name.endswith(".distcp") for name in names)
    )


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
    return name.endswith(".ckpt") or (name.endswith((".pt", ".pth", ".safetensors")) and step_of(name) is not None)


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
    folders do not hide a good one below them. Reading terabytes takes long, so once ``enough`` of them are valid at the
    level asked for, the older ones are checked by structure only; so are those that are not before ``before_step``
    (their numbers are bad anyway). What could not be looked at is a part of its own: valid None, with the
    reason.
    """
    now = time.time() if now_s is None else now_s
    name = host or ""
    found = find(root)
    parts: list[Part] = []
    sound = False
    passed = left = read = 0
    for index, spot in enumerate(found.spots):
        if len(parts) >= limit and sound:
            left = len(found.spots) - index
            break
        late = before_step is not None and spot.order[0] <= -before_step
        closely: Level = "structural" if late or (enough is not None and read >= enough) else level
        part = validate_part(
            spot.path, closely, tier=tier, host=name, root=root, step=spot.step, now_s=now, settings=settings
        )
        read += part.valid is True and part.level == level
        sound = sound or part.valid is True
        if len(parts) < limit or part.valid is True:
            parts.append(replace(part, key=spot.key(root)))
        else:
            passed += 1
    parts += [_unseen(root, path, tier, name, reason) for path, reason in found.notes[:limit]]
    for count, what in (
        (passed, "more were looked at, none of them valid"),
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
        replace(
            validate_part(
                Path(part.path),
                level,
                tier=part.tier,
                host=part.host,
                root=Path(part.root),
                step=part.step if part.format == nvrx.NAME else None,
                settings=settings,
            ),
            key=part.key,
        )
        if part.key == candidate.key and part.tier == candidate.tier and _is_of(part, candidate)
        else part
        for part in parts
    ]


def _is_of(part: Part, candidate: Candidate) -> bool:
    return part.path == candidate.path if part.tier == "global" else part.host in candidate.paths


def place_in_blocks(candidate: Candidate, nodes: Sequence[str], unknown: str) -> Candidate:
    """Shards that lie in one folder of unknown host, given to the nodes as Slurm does by default: in blocks, in order.

    Unchanged where the ranks do not divide evenly, or the hosts are known.
    """
    hosts = {host for held in candidate.shards.values() for host in held}
    world = candidate.world_size
    if hosts != {unknown} or not nodes or not world or world % len(nodes) or len(candidate.shards) != world:
        return candidate
    share = world // len(nodes)
    return replace(candidate, shards={rank: frozenset({nodes[rank // share]}) for rank in candidate.shards})


def _unseen(root: Path, path: Path, tier: Tier, host: str, reason: str) -> Part:
    return Part(
        host=host,
        root=str(root),
        path=str(path),
        key=os.path.relpath(path, root),
        step=step_of(path.name),
        tier=tier,
        format="unknown",
        bytes=0,
        valid=None,
        level="structural",
        reason=reason,
        whole=False,
    )


def join(listings: Iterable[Iterable[Part]], *, world_size: int | None = None) -> list[Candidate]:
    """Put the parts of all hosts together, highest step first.

    A global checkpoint is read by every node: one part, and if several hosts list it the worst answer counts. A local
    one is complete when the ranks 0..W-1 are all held by some host: W is ``world_size`` where the caller knows it.
    """
    groups: dict[tuple[str, str], list[Part]] = {}
    for parts in listings:
        for part in parts:
            where = f"{part.root}\0{part.key}" if part.tier == "global" else part.key
            groups.setdefault((part.tier, where), []).append(part)
    joined = [_join(parts, world_size) for parts in groups.values()]
    return sorted(joined, key=lambda c: (-1 if c.step is None else c.step, c.tier), reverse=True)


def _join(parts: list[Part], world_size: int | None) -> Candidate:
    first = min(parts, key=lambda part: (part.host, part.path))
    steps = {part.step for part in parts if part.step is not None}
    formats = {part.format for part in parts if part.format != "unknown"}
    valid, level, reason = _verdict(parts)
    shards: dict[int, frozenset[str]] = {}
    world = world_size if world_size is not None else max((p.world_size or 0 for p in parts), default=0) or None
    if first.tier != "global":
        shards = _shards(parts, world)
        world = world or (max(shards) + 1 if shards else None)
        if valid:
            lacking = _lacking(parts, shards, world)
            if lacking:
                valid, reason = None, lacking
    if len(steps) > 1:
        valid, reason = False, f"the hosts' parts are of different steps: {sorted(steps)[:4]}"
    saved = {part.saved_step for part in parts if part.saved_step is not None}
    if len(saved) > 1:
        valid, reason = False, f"the hosts' shards were saved as different steps: {sorted(saved)[:4]}"
    if len(formats) > 1:
        valid, reason = None, f"the hosts' parts are of different formats: {', '.join(sorted(formats))}"
    return Candidate(
        path=first.path,
        step=steps.pop() if len(steps) == 1 else None,
        tier=first.tier,
        format=formats.pop() if len(formats) == 1 else first.format,
        bytes=first.bytes if first.tier == "global" else sum(part.bytes for part in parts),
        world_size=world,
        shards=shards,
        valid=valid,
        level=level,
        reason=reason,
        paths={part.host: part.path for part in parts} if first.tier != "global" else NOTHING,
        key=first.key,
    )


def _verdict(parts: list[Part]) -> tuple[bool | None, str, str]:
    """The worst answer, with the host where it was given; the lowest level that all of them reached.

    A damaged copy counts for itself only where another host holds the same ranks undamaged.
    """
    sound: set[int] = set()
    for part in parts:
        if part.valid:
            sound |= part.owners
    for part in sorted(parts, key=lambda part: part.valid is not False):
        if part.valid is True or (part.owners and part.owners <= sound):
            continue
        where = f" on {visible(part.host)}" if part.host else ""
        return part.valid, part.level, f"{part.reason}{where}"
    counted = [part for part in parts if part.valid]
    level = min((part.level for part in counted), key=lambda name: LEVELS.index(name) if name in LEVELS else 0)
    return True, level, counted[0].reason


def _shards(parts: list[Part], world: int | None) -> dict[int, frozenset[str]]:
    """Owner rank -> the hosts whose copy of it is not known to be damaged."""
    held: dict[int, set[str]] = {}
    for part in parts:
        if part.valid is False:
            continue
        owners: Iterable[int] = part.owners
        if part.whole and not part.owners:
            owners = range(world or 1)
        for rank in owners:
            held.setdefault(rank, set()).add(part.host)
    return {rank: frozenset(hosts) for rank, hosts in sorted(held.items())}


def _lacking(parts: list[Part], shards: Mapping[int, frozenset[str]], world: int | None) -> str:
    """What is missing although every part is sound; empty where nothing is."""
    if any(part.whole and part.valid for part in parts):
        return ""
    missing = sorted(set(range(world or 0)) - set(shards))
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        return f"no host that was looked at holds the shard of rank {missing[0]}{more}"
    needs = {name: size for part in parts for name, size in part.needs.items()}
    has = {name: size for part in parts if part.valid for name, size in part.has.items()}
    for name, size in sorted(needs.items()):
        if has.get(name) != size:
            return f"no host that was looked at holds {visible(name)} with {size} bytes"
    if not any(part.marked for part in parts):
        return "no host that was looked at holds the end marker of the save (.metadata)"
    sealed = {rank for part in parts if part.marked for rank in part.owners}
    for part in parts:  # where each rank has a marker of its own, another's says nothing of it
        if part.valid and not part.marked and not part.has.keys() & needs.keys() and not part.owners <= sealed:
            return f"rank {min(part.owners - sealed)} has shards without an end marker: its save did not finish"
    return _uncovered(parts)


def _uncovered(parts: list[Part]) -> str:
    """Add up what the ranks hold of the tensors that are spread over them."""
    seen: set[str] = set()
    totals: dict[str, tuple[int, int]] = {}
    for part in parts:
        if not part.valid:
            continue
        for key, (have, need) in part.coverage.items():
            if key in seen:
                continue
            seen.add(key)
            tensor = key.partition(":")[2]
            so_far, need_before = totals.get(tensor, (0, need))
            if need_before != need:
                return "the hosts' parts give one tensor two sizes"
            totals[tensor] = (so_far + have, need)
    if any(have < need for have, need in totals.values()):
        return "the ranks that were found do not cover every tensor: a rank's shard is missing"
    return ""
