"""Records about checkpoints: parts, candidates, validity, decision. No I/O, no clock.

Validity has three values. True needs proof at the level that is named beside it; False carries its reason; None is *not
known* (being written, being deleted, no checksum recorded, unreadable) and never counts as valid.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from sentinel.checkpoints.parsing.ranks import ranks_or_none

Tier = Literal["local", "peer", "global"]
Level = Literal["structural", "checksum", "content"]
LEVELS: tuple[Level, ...] = ("structural", "checksum", "content")
NOTHING: dict[str, Any] = {}  # one for all who have none: a folder may hold a hundred thousand steps


def level_at_least(level: str, wanted: str) -> bool:
    """Whether a check at ``level`` covers what ``wanted`` asks for. An unknown level covers nothing."""
    return level in LEVELS and wanted in LEVELS and LEVELS.index(level) >= LEVELS.index(wanted)


def parse_level(text: str) -> Level:
    """The level of that name; ValueError for any other."""
    for level in LEVELS:
        if level == text:
            return level
    raise ValueError(f"no level {text!r}: structural, checksum or content")


def parse_tier(text: object) -> Tier:
    if text == "local":
        return "local"
    if text == "peer":
        return "peer"
    if text == "global":
        return "global"
    raise ValueError(f"no tier {text!r}: local, peer or global")


# How the listing of a folder says that the folder itself was not read.
CANNOT_BE_READ = "cannot be read"
NO_ANSWER = "this root did not answer within the deadline"


@dataclass(frozen=True, slots=True)
class Validity:
    """The answer about one path. ``level`` is the highest level that was passed, or the one that failed."""

    path: str
    format: str
    step: int | None
    valid: bool | None
    level: str
    reason: str
    bytes: int = 0

    def to_json(self) -> dict[str, object]:
        return {
            "path": self.path,
            "format": self.format,
            "step": self.step,
            "valid": self.valid,
            "level": self.level,
            "reason": self.reason,
            "bytes": self.bytes,
        }


@dataclass(frozen=True, slots=True)
class Part:
    """What one host sees of one checkpoint under one root.

    ``key`` names the checkpoint below its root, so that the parts of several hosts can be joined. ``whole``: everything
    the checkpoint needs is here. Otherwise ``owners`` are the ranks whose shards are here, ``has`` and ``needs`` are
    shard files with their lengths (``needs`` where this part holds the metadata of all), and ``coverage`` says for
    tensors spread over ranks (``rank:tensor``) how many elements that rank holds, of how many. ``marked``: the end
    marker of what is here is here too. ``saved_step``: the step that the shards themselves were saved as. ``number``: of the
    save, where frameworks count saves and no step is stated. ``unfinished``: what is wrong with one that may be being
    written: it is invalid if nobody writes it any more. ``whole_if_ended``: nothing else speaks against it, it is valid
    then. ``epoch``: that a single file states. ``optimizer``: whether it holds one, by the names inside; ``resumable``: or
    at least a step beside the weights. None where that was not seen. These three stay on their host.
    """

    host: str
    root: str
    path: str
    key: str
    step: int | None
    tier: Tier
    format: str
    bytes: int
    valid: bool | None
    level: str
    reason: str
    whole: bool = True
    world_size: int | None = None
    owners: frozenset[int] = frozenset()
    has: Mapping[str, int] = field(default_factory=lambda: NOTHING)
    needs: Mapping[str, int] = field(default_factory=lambda: NOTHING)
    coverage: Mapping[str, tuple[int, int]] = field(default_factory=lambda: NOTHING)
    marked: bool = False
    saved_step: int | None = None
    newest_mtime_s: float = 0.0
    oldest_mtime_s: float = 0.0
    number: int | None = None
    unfinished: str = ""
    whole_if_ended: bool = False
    epoch: int | None = None
    resumable: bool | None = field(default=None, compare=False)
    optimizer: bool | None = field(default=None, compare=False)

    def to_json(self) -> dict[str, object]:
        return {
            "host": self.host,
            "root": self.root,
            "path": self.path,
            "key": self.key,
            "step": self.step,
            "tier": self.tier,
            "format": self.format,
            "bytes": self.bytes,
            "valid": self.valid,
            "level": self.level,
            "reason": self.reason,
            "whole": self.whole,
            "world_size": self.world_size,
            "owners": sorted(self.owners),
            "has": dict(self.has),
            "needs": dict(self.needs),
            "coverage": {name: list(pair) for name, pair in self.coverage.items()},
            "marked": self.marked,
            "saved_step": self.saved_step,
            "newest_mtime_s": self.newest_mtime_s,
            "oldest_mtime_s": self.oldest_mtime_s,
            "number": self.number,
            "unfinished": self.unfinished,
            "whole_if_ended": self.whole_if_ended,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> Part:
        """The inverse of `to_json`. ValueError for anything that is not such an object: it came over the network."""
        return cls(
            host=_text(data, "host"),
            root=_text(data, "root"),
            path=_text(data, "path"),
            key=_text(data, "key"),
            step=_whole_or_none(data, "step"),
            tier=parse_tier(data.get("tier")),
            format=_text(data, "format"),
            bytes=_whole(data, "bytes"),
            valid=_tristate(data, "valid"),
            level=_text(data, "level"),
            reason=_text(data, "reason"),
            whole=_tristate(data, "whole") is True,
            world_size=ranks_or_none(_whole_or_none(data, "world_size")),
            owners=frozenset(_int(item, "owners") for item in _sequence(data.get("owners", []), "owners")),
            has={name: _int(size, "has") for name, size in _mapping(data, "has").items()},
            needs={name: _int(size, "needs") for name, size in _mapping(data, "needs").items()},
            coverage={name: _pair(pair) for name, pair in _mapping(data, "coverage").items()},
            marked=_tristate(data, "marked") is True,
            saved_step=_whole_or_none(data, "saved_step"),
            newest_mtime_s=_number(data, "newest_mtime_s"),
            oldest_mtime_s=_number(data, "oldest_mtime_s"),
            number=_whole_or_none(data, "number"),
            unfinished=_text(data, "unfinished") if "unfinished" in data else "",  # earlier agents do not say these
            whole_if_ended=_tristate(data, "whole_if_ended") is True,
        )

    def after_its_writer(self) -> Part:
        """The same, where nobody writes it any more: what was not finished is invalid, what is whole is valid."""
        if self.valid is None and self.unfinished:
            return replace(self, valid=False, reason=self.unfinished)
        if self.valid is None and self.whole_if_ended:
            return replace(self, valid=True, reason="whole, and nobody writes it any more: it has no end marker")
        return self


@dataclass(frozen=True, slots=True)
class Candidate:
    """One checkpoint that a job could be resumed from.

    ``shards``: owner rank -> hosts that hold that rank's shard; empty where every node reads the same folder.
    ``paths``: host -> folder, where it is not the same on every host. ``number``: see `Part`. ``written_s``: when the last
    of its files was written, by the storage's clock; 0 where that is not known.
    """

    path: str
    step: int | None
    tier: Tier
    format: str
    bytes: int
    world_size: int | None
    shards: Mapping[int, frozenset[str]]
    valid: bool | None
    level: str
    reason: str
    paths: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    key: str = ""
    number: int | None = None
    written_s: float = 0.0

    def to_json(self) -> dict[str, object]:
        return {
            "path": self.path,
            "step": self.step,
            "tier": self.tier,
            "format": self.format,
            "valid": self.valid,
            "level": self.level,
            "reason": self.reason,
            "bytes": self.bytes,
            "world_size": self.world_size,
            "shards": {str(rank): sorted(hosts) for rank, hosts in sorted(self.shards.items())},
            "paths": dict(self.paths),
            "key": self.key,
            "number": self.number,
            "written_s": self.written_s,
        }


@dataclass(frozen=True, slots=True)
class Run:
    """What the run that is to be resumed has shown: when it began, and the first and the last step in its log."""

    began_s: float
    first_step: int
    last_step: int


@dataclass(frozen=True, slots=True)
class Costs:
    """What a restore takes on this site. The defaults are cautious round numbers; a site sets its own.

    ``restore_s`` and ``wait_s`` per tier: fixed seconds to read back, and to wait (for a particular host, say).
    ``read_bytes_per_s`` per tier: for the part that grows with the size. ``validate_bytes_per_s``: for a candidate that
    is to be checked once more before the restart (0: it is not).
    """

    restore_s: Mapping[str, float] = field(default_factory=lambda: {"local": 5.0, "peer": 15.0, "global": 20.0})
    read_bytes_per_s: Mapping[str, float] = field(default_factory=lambda: {"local": 20e9, "peer": 10e9, "global": 2e9})
    wait_s: Mapping[str, float] = field(default_factory=dict)
    validate_bytes_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Ranked:
    """One candidate as the choice saw it: taken, or why not; and its cost where it could have been taken."""

    candidate: Candidate
    feasible: bool
    verdict: str
    cost_s: float | None = None
    lost_steps: int | None = None

    def to_json(self) -> dict[str, object]:
        return self.candidate.to_json() | {
            "lost_steps": self.lost_steps,
            "cost_s": self.cost_s,
            "feasible": self.feasible,
            "verdict": self.verdict,
        }


@dataclass(frozen=True, slots=True)
class Decision:
    """The chosen candidate, or None; every candidate with its verdict, best first; and one sentence."""

    chosen: Candidate | None
    candidates: tuple[Ranked, ...]
    explanation: str
    lost_steps: int | None = None
    cost_s: float | None = None

    def to_json(self) -> dict[str, object]:
        return {**self.head_to_json(), "candidates": [ranked.to_json() for ranked in self.candidates]}

    def head_to_json(self) -> dict[str, object]:
        """All but the candidates, of which there may be very many."""
        chosen = next((r for r in self.candidates if r.candidate is self.chosen), None)
        return {"chosen": chosen.to_json() if chosen else None, "explanation": self.explanation}


def _text(data: Mapping[str, object], key: str) -> str:
    value = data.get(key)
    if not isinstance(value, str):
        raise ValueError(f"{key}: text expected, not {value!r:.80}")
    return value


def _int(value: object, key: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{key}: a whole number expected, not {value!r:.80}")
    return value


def _whole(data: Mapping[str, object], key: str) -> int:
    return _int(data.get(key), key)


def _whole_or_none(data: Mapping[str, object], key: str) -> int | None:
    return None if data.get(key) is None else _whole(data, key)


def _number(data: Mapping[str, object], key: str) -> float:
    value = data.get(key, 0.0)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{key}: a number expected, not {value!r:.80}")
    try:
        return float(value)
    except OverflowError as error:
        raise ValueError(f"{key}: a number that no float holds") from error


def _tristate(data: Mapping[str, object], key: str) -> bool | None:
    value = data.get(key)
    if value is None or isinstance(value, bool):
        return value
    raise ValueError(f"{key}: true, false or null expected, not {value!r:.80}")


def _mapping(data: Mapping[str, object], key: str) -> dict[str, object]:
    value = data.get(key, {})
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise ValueError(f"{key}: an object expected, not {value!r:.80}")
    return value


def _sequence(value: object, key: str) -> list[object]:
    if not isinstance(value, list):
        raise ValueError(f"{key}: a list expected, not {value!r:.80}")
    return value


def _pair(value: object) -> tuple[int, int]:
    items = _sequence(value, "coverage")
    if len(items) != 2:
        raise ValueError("coverage: a pair of numbers expected")
    return _int(items[0], "coverage"), _int(items[1], "coverage")
