"""Separates independent faults on two nodes of one job, so that neither hides the other.

Causes compete for one verdict. Where trusted lines convict a node that the verdict does not name, that node is judged by
itself, without what the machines of other nodes say, and if need be without what programs say, or by those lines alone of
which one is enough, and is named beside the rest if it is convicted then. A fault that many nodes share stays one fault.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence, Set

from sentinel.classify.readings import Reading
from sentinel.config.rules import Drain, Role
from sentinel.model.records import Cause, Culprits, Recommendation, Restart, Scope, Trust, Verdict

MOST_FAULTS = 4  # judged by themselves; more nodes that fail at once are the breaker's matter

SURE = 0.85  # below it what other nodes say may have made the verdict unsure
LIKELY = 0.7  # below it what was heard beside a node's own fault may have hidden it: judged by less
STRONG = 4.0  # natural-log odds from which a line that only advises accuses a node by itself
TWO_ENDED = frozenset({Cause.NETWORK_FABRIC, Cause.GPU_NVLINK})  # the healthy end of a link complains as well
MOST_GROUNDS = 6  # of each of two faults


def with_others(
    verdict: Verdict,
    readings: Sequence[Reading],
    judge: Callable[[list[Reading]], Verdict],
    never_drain: Set[Cause],
) -> Verdict:
    """``verdict`` with the nodes that another fault convicts.

    Args:
        readings: in order of time.
        judge: the verdict of some of them.
    """
    named = accused(readings, never_drain)
    sure = convicted(readings, set(named))
    verdict = _with_convicted(verdict, sure, never_drain)
    faults: dict[Cause, list[str]] = {}
    for node, cause in named.items():
        shared = cause is verdict.cause and verdict.scope is Scope.CLUSTER
        told = node in (verdict.drain if node in sure else verdict.culprits.nodes)
        if not shared and not (told and verdict.confidence >= SURE):
            faults.setdefault(cause, []).append(node)
    for nodes in list(faults.values())[:MOST_FAULTS]:
        of_nodes = [r for r in readings if r.evidence.where.node in {None, *nodes}]
        without_programs = [r for r in of_nodes if r.evidence.trust is Trust.SYSTEM]
        alone_enough = [r for r in without_programs if r.drain is Drain.YES]
        leads = verdict.grounds[0].evidence.trust if verdict.grounds else Trust.SYSTEM
        # What a program prints may outweigh a machine's fault, but hides none; nothing hides a line that is enough.
        of_machines = (without_programs,) if leads is not Trust.SYSTEM else ()
        judged: list[Verdict] = []
        for some in (of_nodes, *of_machines, *((alone_enough,) if set(nodes) <= set(sure) else ())):
            alone = _with_convicted(judge(some), [node for node in nodes if node in sure], never_drain)
            if set(nodes) <= set(alone.culprits.nodes) and set(nodes) & set(sure) <= set(alone.drain):
                judged.append(alone)
                if not alone.drain or alone.drain_confidence >= LIKELY:
                    break
        if judged:
            # What else was heard leaves the cause open, not whether the node goes.
            goes = max(alone.drain_confidence for alone in judged)
            verdict = _both(verdict, dataclasses.replace(judged[0], drain_confidence=goes))
    return verdict


def accused(readings: Sequence[Reading], never_drain: Set[Cause]) -> dict[str, Cause]:
    """Nodes of which a trusted line says by itself that they are broken, each with the cause of its first such line."""
    found: dict[str, Cause] = {}
    for reading in readings:
        node = reading.evidence.where.node
        if node is None or node in found or not reading.drain.convicts or reading.role is not Role.CAUSE:
            continue
        if reading.evidence.trust is not Trust.SYSTEM or not reading.weights:
            continue
        cause = max(reading.weights, key=lambda c: reading.weights[c])
        alone = reading.drain is Drain.YES or (reading.strength >= STRONG and cause not in TWO_ENDED)
        if alone and cause not in never_drain:
            found[node] = cause
    return found


def convicted(readings: Sequence[Reading], named: Set[str]) -> list[str]:
    """Those for whom a single trusted line is enough, in order of time."""
    lines = [r for r in readings if r.drain is Drain.YES and r.evidence.trust is Trust.SYSTEM and r.role is Role.CAUSE]
    return list(dict.fromkeys(r.evidence.where.node for r in lines if r.evidence.where.node in named))  # type: ignore[misc]


def _with_convicted(verdict: Verdict, sure: Sequence[str], never_drain: Set[Cause]) -> Verdict:
    """One trusted line is enough for a node, also where more was said of another cause on the same machine."""
    if (
        not verdict.drain_recommended
        or verdict.cause in never_drain
        or verdict.scope in (Scope.APPLICATION, Scope.CLUSTER)
    ):
        return verdict
    drain = tuple(dict.fromkeys((*verdict.drain, *(node for node in sure if node in verdict.culprits.nodes))))
    if drain == verdict.drain:
        return verdict
    return dataclasses.replace(
        verdict,
        drain=drain,
        suspect=tuple(name for name in verdict.suspect if name not in drain),
        restart=Restart.RESUME_EXCLUDING if verdict.restart is Restart.RESUME else verdict.restart,
        culprits=dataclasses.replace(verdict.culprits, nodes=tuple(dict.fromkeys((*drain, *verdict.culprits.nodes)))),
    )


def _both(one: Verdict, other: Verdict) -> Verdict:
    """The more confident verdict that drains leads; nodes, parts and grounds of the other are added to its own."""
    first, second = (one, other) if one.drain and one.confidence >= other.confidence else (other, one)
    drain = tuple(dict.fromkeys((*first.drain, *second.drain)))
    suspect = tuple(name for name in dict.fromkeys((*first.suspect, *second.suspect)) if name not in drain)
    lasts = {name for some in (first, second) for name in some.drain if name not in some.may_pass}
    return dataclasses.replace(
        first,
        drain=drain,
        may_pass=tuple(name for name in drain if name not in lasts),
        drain_confidence=max(first.drain_confidence, second.drain_confidence if second.drain else 0.0),
        suspect=suspect,
        drain_recommended=first.drain_recommended or second.drain_recommended,
        recommendation=next(r for r in Recommendation if r in (first.recommendation, second.recommendation)),
        culprits=Culprits(
            tuple(dict.fromkeys((*drain, *first.culprits.nodes, *second.culprits.nodes))),
            tuple(dict.fromkeys((*first.culprits.gpus, *second.culprits.gpus))),
            tuple(dict.fromkeys((*first.culprits.ranks, *second.culprits.ranks))),
        ),
        onset_step=first.onset_step if first.onset_step is not None else second.onset_step,
        grounds=(*first.grounds[:MOST_GROUNDS], *(g for g in second.grounds[:MOST_GROUNDS] if g not in first.grounds)),
    )
