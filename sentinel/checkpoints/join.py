"""Joins the listings of several hosts: only then is it known whether a checkpoint spread over nodes is complete.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from sentinel.checkpoints.parsing.ranks import first_hole
from sentinel.checkpoints.records import LEVELS, NOTHING, Candidate, Part
from sentinel.text import visible


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


def joined_by_root(groups: Iterable[Sequence[Part]], *, world_size: int | None) -> list[Candidate]:
    """The checkpoints of several roots, by root; ``world_size`` is for those on nodes' own disks."""
    return [
        candidate
        for parts in groups
        for candidate in join([parts], world_size=world_size if parts[0].tier == "local" else None)
    ]


def _join(parts: list[Part], world_size: int | None) -> Candidate:
    first = min(parts, key=lambda part: (part.host, part.path))
    steps = {part.step for part in parts if part.step is not None}
    formats = {part.format for part in parts if part.format != "unknown"}
    valid, level, reason = _verdict(parts)
    shards: Mapping[int, frozenset[str]] = {}
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
        number=first.number,
        written_s=max(part.newest_mtime_s for part in parts),
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


class Shards(Mapping[int, frozenset[str]]):
    """Owner rank -> the hosts that hold its shard. What holds those of all ranks is not written down for each of them: their
    number is one that a checkpoint states, and each of hundreds may state another."""

    def __init__(self, of: Mapping[int, frozenset[str]], everywhere: frozenset[str], world: int) -> None:
        """
        Args:
            everywhere: hosts that hold the shards of the ranks below ``world`` that are not in ``of``.
        """
        self._of = of
        self._everywhere = everywhere
        self._world = world if everywhere else 0

    def __getitem__(self, rank: int) -> frozenset[str]:
        if rank not in self._of and 0 <= rank < self._world:
            return self._everywhere
        return self._of[rank]

    def __iter__(self) -> Iterator[int]:
        yield from range(self._world)
        yield from (rank for rank in self._of if not 0 <= rank < self._world)

    def __len__(self) -> int:
        return self._world + sum(not 0 <= rank < self._world for rank in self._of)


def _shards(parts: list[Part], world: int | None) -> Mapping[int, frozenset[str]]:
    """Owner rank -> the hosts whose copy of it is not known to be damaged."""
    sound = [part for part in parts if part.valid is not False]
    everywhere = frozenset(part.host for part in sound if part.whole and not part.owners)
    nowhere = frozenset[str]()
    held: dict[int, frozenset[str]] = {}
    with_host: dict[tuple[frozenset[str], str], frozenset[str]] = {}  # most ranks have the same hosts
    for part in sound:
        for rank in part.owners:
            key = held.get(rank, everywhere if rank < (world or 1) else nowhere), part.host
            if key not in with_host:
                with_host[key] = key[0] | {part.host}
            held[rank] = with_host[key]
    return Shards(dict(sorted(held.items())), everywhere, world or 1)


def _lacking(parts: list[Part], shards: Mapping[int, frozenset[str]], world: int | None) -> str:
    """What is missing although every part is sound; empty where nothing is."""
    if any(part.whole and part.valid for part in parts):
        return ""
    missing = first_hole(shards, 0, world or 0)
    if missing is not None:
        others = (world or 0) - sum(0 <= rank < (world or 0) for rank in shards) - 1
        more = f" and {others} more" if others else ""
        return f"no host that was looked at holds the shard of rank {missing}{more}"
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
