"""Chooses the checkpoint to resume from. Pure: candidates in, a decision out that accounts for every one of them.

In this order: is it proven whole at the level that the cause asks for; is it of this run, and from before its numbers went
bad; can every rank of the next attempt read its shard; and then the least cost, in seconds until the job is where it was:

    lost steps x step time + reading back + validating + waiting for hosts

Equal costs: the better validated one, then global, then the higher step, then what is not called the best or an average (a
trainer goes on from its last one), then the path. Fewer bytes are no reason to take such a copy before what lies beside it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sentinel.checkpoints.listed.models import halves
from sentinel.checkpoints.records import (
    LEVELS,
    Candidate,
    Costs,
    Decision,
    Level,
    Ranked,
    Run,
    level_at_least,
)
from sentinel.text import visible

# How much the storage's clock may be behind Slurm's, with the time that a job takes before its first save could begin.
_CLOCKS_S = 300.0
# NeMo writes step=30-EMA.ckpt beside step=30.ckpt, and loads the other.
_COPY = re.compile(r"best|(?<![a-z])ema(?![a-z])", re.IGNORECASE)
_Save = tuple[str, str, int | None, int | None]


@dataclass(frozen=True, slots=True)
class _Question:
    step_last: int | None
    onset_step: int | None
    margin_steps: int
    step_time_s: float
    next_nodes: frozenset[str] | None
    lost_nodes: frozenset[str]
    world_size: int | None
    costs: Costs
    rank_hosts: Mapping[int, str] | None
    rejected: Mapping[str, str]
    level: Level
    local_survives: bool
    fetch_peers: bool
    passed_over: Mapping[tuple[str, int | None], str]  # path and step -> why


def choose(
    candidates: Iterable[Candidate],
    *,
    step_last: int | None,
    step_time_s: float,
    next_nodes: frozenset[str] | None,
    lost_nodes: frozenset[str],
    world_size: int | None,
    costs: Costs,
    onset_step: int | None = None,
    rank_hosts: Mapping[int, str] | None = None,
    rejected: Mapping[str, str] | None = None,
    level: Level | None = None,
    margin_steps: int = 1,
    local_survives: bool = True,
    fetch_peers: bool = False,
    run: Run | None = None,
) -> Decision:
    """Choose. ``step_last``: the last step that was completed (None: the highest step among the candidates).

    ``onset_step``: the first step whose numbers were bad; then only checkpoints at least ``margin_steps`` earlier count,
    and at level content unless ``level`` says otherwise. ``next_nodes``: the hosts of the next attempt, None where they
    are not known (then every host that is not lost counts). ``rank_hosts``: which host each rank will run on; without
    ``fetch_peers`` a rank must find its own shard there. ``rejected``: paths that are to be
    left out (``path@step`` where several steps share one folder), and why.
    ``local_survives``: whether node-local folders outlive the end of the job on this site. ``run``: what is known of the run
    itself; saves that an earlier run left in its folder at higher steps are not taken for its own then.
    """
    items = list(candidates)
    foreign = _of_another_run(items, run) if run is not None else {}
    own = [c for c in items if c.step is not None and (c.path, c.step) not in foreign]
    if step_last is None:
        step_last = max((c.step for c in own if c.step is not None), default=None)
    else:  # a batch host that dies takes the last lines of the log with it, and a valid save proves its step
        step_last = max([step_last, *(c.step for c in own if c.step is not None and c.valid)])
    wanted: Level = level or ("content" if onset_step is not None else "structural")
    question = _Question(
        step_last=step_last,
        onset_step=onset_step,
        margin_steps=margin_steps,
        step_time_s=max(0.0, step_time_s),
        next_nodes=next_nodes,
        lost_nodes=lost_nodes,
        world_size=world_size,
        costs=costs,
        rank_hosts=rank_hosts,
        rejected=rejected or {},
        level=wanted,
        local_survives=local_survives,
        fetch_peers=fetch_peers,
        passed_over={**halves(items), **foreign},
    )
    ranked = [_rank(c, question) for c in items]
    originals = _costs_of_originals(ranked)
    return _decide(sorted(ranked, key=lambda entry: _order(entry, originals)))


def _of_another_run(candidates: Iterable[Candidate], run: Run) -> dict[tuple[str, int | None], str]:
    """Path and step -> why, for what was saved before the run began, at steps that it has not reached.

    A run may go on from an older one's save: then its steps are higher. And its log may count other steps than its saves:
    only where it has saved since, at steps that its log says it made, are the two known to be the same count.
    """
    items = [c for c in candidates if c.step is not None and c.written_s > 0]
    since = {
        c.step
        for c in items
        if c.step is not None
        and c.valid
        and c.written_s > run.began_s
        and run.first_step - 1 <= c.step <= run.last_step
    }
    if not since:
        return {}
    steps = f"steps {min(since)} to {max(since)}" if len(since) > 1 else f"step {min(since)}"
    made = f"which has saved {steps} since and made step {run.last_step}: of another run"
    return {
        (c.path, c.step): f"written {run.began_s - c.written_s:.0f} s before this run began, {made}"
        for c in items
        if c.step is not None and c.step > run.last_step and c.written_s < run.began_s - _CLOCKS_S
    }


def _decide(ranked: list[Ranked]) -> Decision:
    """The decision over candidates that are in order, best first."""
    if not ranked:
        return Decision(None, (), "there is no checkpoint to choose from")
    best = ranked[0]
    if not best.feasible:
        return Decision(
            None,
            tuple(ranked),
            f"none of {len(ranked)} candidates can be used; the newest: {best.verdict}",
        )
    named = [_name_verdict(entry, best, index) for index, entry in enumerate(ranked)]
    return Decision(
        best.candidate,
        tuple(named),
        _explain(best, ranked),
        lost_steps=best.lost_steps,
        cost_s=best.cost_s,
    )


def _costs_of_originals(ranked: Iterable[Ranked]) -> dict[_Save, float]:
    """Of each save in a folder that can be used, what the cheapest that is no copy costs."""
    costs: dict[_Save, float] = {}
    for entry in ranked:
        if entry.feasible and entry.cost_s is not None and not _is_copy(entry.candidate):
            save = _save_of(entry.candidate)
            costs[save] = min(entry.cost_s, costs.get(save, entry.cost_s))
    return costs


def _save_of(candidate: Candidate) -> _Save:
    return candidate.path.rpartition("/")[0], candidate.tier, candidate.step, candidate.number


def _is_copy(candidate: Candidate) -> bool:
    return _COPY.search(candidate.path.rpartition("/")[2]) is not None


def _order(entry: Ranked, originals: Mapping[_Save, float]) -> tuple[bool, bool, float, int, bool, int, bool, str]:
    candidate = entry.candidate
    level = LEVELS.index(parse) if (parse := candidate.level) in LEVELS else -1
    place = candidate.step if candidate.step is not None else candidate.number
    step = -1 if place is None else place
    cost = entry.cost_s if entry.cost_s is not None else float(-step if entry.feasible else 0)
    copy = _is_copy(candidate)
    if copy and entry.cost_s is not None:
        cost = max(cost, originals.get(_save_of(candidate), cost))
    return (
        not entry.feasible,
        entry.cost_s is None,
        cost,
        -level,
        candidate.tier != "global",
        -step,
        copy,
        candidate.path,
    )


def _rank(candidate: Candidate, question: _Question) -> Ranked:
    lost = (
        max(0, question.step_last - candidate.step)
        if question.step_last is not None and candidate.step is not None
        else None
    )
    obstacle = _obstacle(candidate, question)
    if obstacle:
        return Ranked(candidate, False, sys.intern(obstacle), None, lost)
    tier, obstacle = _reach(candidate, question)
    if not obstacle and candidate.step is None:  # saves that are numbered are in order, though not at known steps
        return Ranked(candidate, True, "", None, None)
    if obstacle or lost is None:
        return Ranked(candidate, False, obstacle or "its step is not known", None, lost)
    return Ranked(candidate, True, "", _cost(candidate, tier, lost, question), lost)


def _cost(candidate: Candidate, tier: str, lost: int, question: _Question) -> float:
    costs = question.costs
    rate = costs.read_bytes_per_s.get(tier, 0.0)
    seconds = lost * question.step_time_s + costs.restore_s.get(tier, 0.0) + costs.wait_s.get(tier, 0.0)
    if rate > 0:
        seconds += candidate.bytes / rate
    if costs.validate_bytes_per_s > 0:
        seconds += candidate.bytes / costs.validate_bytes_per_s
    return seconds


def _obstacle(candidate: Candidate, question: _Question) -> str:
    """Why it cannot be used whatever the hosts; empty where nothing speaks against it."""
    for name in (candidate.path, f"{candidate.path}@{candidate.step}"):
        if name in question.rejected:
            return question.rejected[name]
    if candidate.valid is False:
        return f"invalid: {candidate.reason}"
    if candidate.valid is None:
        return f"not known to be valid: {candidate.reason}"
    if not level_at_least(candidate.level, question.level):
        return f"validated at level {candidate.level} only, {question.level} is asked for"
    if candidate.step is None and (candidate.number is None or question.onset_step is not None):
        return "its step is not known"
    if other := question.passed_over.get((candidate.path, candidate.step)):
        return other
    onset, step = question.onset_step, candidate.step
    if onset is not None and step is not None and step > onset - question.margin_steps:
        return f"step {candidate.step} is not before the numbers went bad (step {question.onset_step})"
    return ""


def _reach(candidate: Candidate, question: _Question) -> tuple[str, str]:
    """(the tier that it will really be read from, why it cannot be read)."""
    if candidate.tier == "global":
        return "global", ""
    if not question.local_survives:
        return candidate.tier, "node-local folders do not outlive the job on this site"
    world = question.world_size if question.world_size is not None else candidate.world_size
    if world is None:
        return candidate.tier, "the number of ranks is not known"
    if candidate.world_size is not None and candidate.world_size != world:
        return candidate.tier, f"saved by {candidate.world_size} ranks, the next attempt has {world}"
    extra = [rank for rank in candidate.shards if not 0 <= rank < world]
    if extra:
        return candidate.tier, f"holds a shard of rank {extra[0]}, the next attempt has {world} ranks"
    tier: str = candidate.tier
    for rank in range(world):
        hosts = candidate.shards.get(rank, frozenset())
        usable = hosts - question.lost_nodes
        if question.next_nodes is not None:
            usable &= question.next_nodes
        if not usable:
            return tier, _unreachable(rank, hosts, question)
        home = question.rank_hosts.get(rank) if question.rank_hosts is not None else None
        if home is not None and home not in usable:
            if not question.fetch_peers:
                held = visible(", ".join(sorted(usable)))
                return tier, f"rank {rank} will run on {visible(home)}, its shard is on {held}"
            tier = "peer"
    return tier, ""


def _unreachable(rank: int, hosts: frozenset[str], question: _Question) -> str:
    if not hosts:
        return f"no host holds the shard of rank {rank}"
    alive = hosts - question.lost_nodes
    if not alive:
        return f"the shard of rank {rank} was only on {visible(', '.join(sorted(hosts)))}, which is lost"
    return f"the shard of rank {rank} is on {visible(', '.join(sorted(alive)))}, not in the next allocation"


def _name_verdict(entry: Ranked, best: Ranked, index: int) -> Ranked:
    if not entry.feasible:
        return entry
    if entry.cost_s is None or best.cost_s is None:
        text = "chosen: " if index == 0 else "not chosen: "
        text += f"save number {entry.candidate.number}, at a step that is not known"
    elif index == 0:
        text = f"chosen: {entry.lost_steps} steps lost, {entry.cost_s:.0f} s until the job is where it was"
    elif entry.cost_s > best.cost_s:
        text = f"costs {entry.cost_s - best.cost_s:.0f} s more ({entry.lost_steps} steps lost)"
    else:
        text = "costs the same; the other is validated better, global, or newer"
    return Ranked(entry.candidate, True, text, entry.cost_s, entry.lost_steps)


def _explain(best: Ranked, ranked: list[Ranked]) -> str:
    candidate = best.candidate
    if best.cost_s is None:
        return (
            f"save number {candidate.number} from the {candidate.tier} tier ({candidate.level} level), the last that can be"
            " used; no step is known, so the saves are taken in the order of their numbers"
        )
    newer = [r for r in ranked if not r.feasible and (r.candidate.step or -1) > (candidate.step or -1)]
    text = (
        f"step {candidate.step} from the {candidate.tier} tier ({candidate.level} level): "
        f"{best.lost_steps} steps lost, about {best.cost_s:.0f} s until the job is where it was"
    )
    if newer:
        first = max(newer, key=lambda r: r.candidate.step or -1)
        text += (
            f"; passed over {len(newer)} newer, first step {first.candidate.step}"
            f" ({first.candidate.tier}): {first.verdict}"
        )
    return text
