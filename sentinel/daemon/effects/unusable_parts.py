"""Which of a job's checkpoints are moved aside before it is restarted: its script must not take them for its newest."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from shlex import quote

from sentinel.checkpoints.fleet_parts import later_than
from sentinel.checkpoints.records import Candidate, Part, level_at_least
from sentinel.checkpoints.setting_aside.standing_in import BY_ITS_END, BY_ITS_NAME
from sentinel.daemon.effects.folder_listings import Check
from sentinel.daemon.effects.other_runs import FoldersOfOthers, may_be_anothers
from sentinel.model.intent import Intent
from sentinel.model.records import Scalar
from sentinel.text import visible

_MOST_LINKS = 8  # told of one node
_MOST_NAMED = 5  # checkpoints
_MOST_ROOTS = 2


def unusable(parts: Sequence[Part], candidates: Sequence[Candidate], chosen: Mapping[str, Scalar]) -> list[Part]:
    """What is later than the chosen one, and what is invalid: a script that resumes by itself takes the newest."""
    invalid = {(c.tier, c.key or c.path) for c in candidates if c.valid is False}
    step, path = chosen.get("step"), str(chosen.get("path") or "")
    later = {(p.host, p.path, p.step) for p in later_than(parts, step if isinstance(step, int) else None, path)}
    return [
        part
        for part in parts
        if (part.host, part.path, part.step) in later
        or ((part.valid is False or (part.tier, part.key) in invalid) and part.path != path)
    ]


def without_anothers(
    parts: Sequence[Part], others: FoldersOfOthers, intent: Intent
) -> tuple[dict[tuple[str, str], list[Part]], list[str]]:
    """What is moved, by host and root, and in words what is not, since it may be another job's."""
    moves: dict[tuple[str, str], list[Part]] = {}
    left = set()
    for part in parts:
        if part.tier == "global" and (other := may_be_anothers(part.path, others, intent, to_move=True)) is not None:
            left.add(f"nothing was moved in {other.path}: job {other.job} names it, too")
            continue
        moves.setdefault((part.host, part.root), []).append(part)
    return moves, sorted(left)


def words_of(parts: Sequence[Part], check: Check) -> str:
    """What was moved. A checkpoint that was found whole is not called damaged, and may be wanted back; but none that holds
    bad numbers, or was not looked at as thoroughly as was asked."""
    moved = sorted({part.path for part in parts})
    if not moved:
        return ""
    said = [f"quarantined {len(moved)}: " + ", ".join(moved[:_MOST_NAMED])]
    onset = check.before_step
    bad = {part.path for part in parts if onset is not None and (part.step is None or part.step >= onset)}
    late = {part.path for part in parts if part.path in bad and part.step is not None}
    if late:
        said.append(f"{len(late)} of them were saved at or after step {onset}, where the numbers went bad")
    whole: dict[str, set[str]] = {}
    for part in parts:
        if part.valid and part.tier == "global" and part.path not in bad and level_at_least(part.level, check.level):
            whole.setdefault(part.root, set()).add(part.path)
    if whole:
        said.append(f"{len(set().union(*whole.values()))} of them were found valid: {_back(whole)}")
    return "; ".join(said)


def _back(whole: Mapping[str, Collection[str]]) -> str:
    """How they come back. They are named: what else is set aside there, now or before, stays where it is."""
    commands = [
        f"`sentinel checkpoints quarantine {quote(root)} {' '.join(map(quote, sorted(paths)[:_MOST_NAMED]))} --undo`"
        for root, paths in sorted(whole.items())[:_MOST_ROOTS]
    ]
    return " and ".join(commands) + (
        " brings back what it names" if len(commands) == 1 else " bring back what they name"
    )


def words_of_links(answer: object) -> list[str]:
    """What a node says became of links and trackers that named what it moved, and what it left for one."""
    return [
        *(
            f"the link {visible(str(link))} " + (f"now names {visible(str(new))}" if new else "was moved, too")
            for link, new in _pairs(answer, "links")[:_MOST_LINKS]
        ),
        *(f"{visible(one)} now names {visible(new)}" for one, new in _pairs(answer, "trackers")[:_MOST_LINKS]),
        *(
            f"the link {visible(link)} leads nowhere now: it named {visible(path)}, which was moved"
            for link, path in _pairs(answer, "nowhere")[:_MOST_LINKS]
        ),
        *(f"{visible(path)} stays: {_stays_for(tracker)}" for path, tracker in _pairs(answer, "left")[:_MOST_LINKS]),
    ]


def _stays_for(tracker: str) -> str:
    if tracker == BY_ITS_NAME:
        return "programs resume from it by its name, and no copy of the chosen one could be made (no space, or no time)"
    if tracker == BY_ITS_END:
        return f"{tracker} resumes by the end of its name, and else begins anew: set resume_from_path to the chosen one"
    return f"{visible(tracker)} names it, and can name nothing else"


def left_of(answer: object) -> set[str]:
    """The paths that a node says it left in their place."""
    return {path for path, _ in _pairs(answer, "left")}


def _pairs(answer: object, key: str) -> list[tuple[str, str]]:
    told = answer.get(key) if isinstance(answer, Mapping) else None
    pairs = [pair for pair in (told if isinstance(told, list) else ()) if isinstance(pair, list) and len(pair) == 2]
    return [(str(one), str(other)) for one, other in pairs]
