"""Incident + history + rules -> verdict. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from sentinel.classify.calibration import calibrated
from sentinel.classify.context import context
from sentinel.classify.faults.agreement import agreeing, widely_told
from sentinel.classify.faults.independent import with_others
from sentinel.classify.faults.kernel import of_modules
from sentinel.classify.faults.other_programs import services_weakened
from sentinel.classify.faults.passed import passed
from sentinel.classify.history import APPLICATION, EMPTY, History
from sentinel.classify.log_levels import records_of_lines
from sentinel.classify.out_together import most_at_once, out_together
from sentinel.classify.outlived import outlived
from sentinel.classify.ranks.watchdogs import behind_others
from sentinel.classify.readings import Reading, read
from sentinel.classify.recurrence import NUMBERS_MOVED, onset
from sentinel.classify.roles import points_to
from sentinel.classify.unanswered import unanswered
from sentinel.classify.weights import (
    SHADOW,
    Weighed,
    grounds,
    odds,
    order,
    shares,
    siblings,
    weigh,
    with_rivals,
    with_siblings,
)
from sentinel.classify.who_ended_it import failed_before, for_want_of_a_partition
from sentinel.config.rules import Drain, Role, Rules
from sentinel.model.records import (
    Alternative,
    Cause,
    Culprits,
    Incident,
    Kind,
    Recommendation,
    Restart,
    Scope,
    Trust,
    Verdict,
)
from sentinel.model.vocabulary import BROKEN_OFF
from sentinel.text import whole_number

C = Cause
NEVER_DRAIN = APPLICATION - {C.UNKNOWN} | {
    C.NUMERICAL_NAN,
    C.NCCL_HANG_UNKNOWN,
    C.FILESYSTEM_STORAGE,
    C.NETWORK_BOOTSTRAP,
}
OF_A_HOST = frozenset({C.SOFTWARE_ENV, C.USER_CONFIG, C.DISK_FULL})  # of one host, where the scope says node
# What a broken machine also brings about: neither speaks against it, nor for it.
SYMPTOMS = frozenset({C.NUMERICAL_NAN, C.NCCL_HANG_UNKNOWN})
MANY_NODES = 3  # so many nodes with one shared fault are one cluster incident


def classify(incident: Incident, *, history: History = EMPTY, rules: Rules, now: datetime) -> Verdict:
    """What broke, where, and who, with grounds; *unknown* where the evidence does not carry a cause."""
    by_id = rules.by_id()
    before = records_of_lines(incident.evidence)
    read_all = (read(e, rules, by_id, before.get(e.where.path)) for e in incident.evidence)
    readings = order(reading for reading in read_all if reading is not None)
    readings = outlived(passed(of_modules(services_weakened(readings, incident.evidence))), incident)
    readings, of_single_nodes = out_together(readings, rules)
    readings = failed_before(for_want_of_a_partition(readings), rules)
    told = [reading for reading in readings if reading.key != BROKEN_OFF]
    verdict = _judge(incident, told, history, rules, now)
    if verdict.cause is C.UNKNOWN and len(told) < len(readings):  # where nothing else names a cause
        verdict = _judge(incident, readings, history, rules, now)
    verdict = with_others(
        verdict, of_single_nodes, lambda some: _judge(incident, some, history, rules, now), NEVER_DRAIN
    )
    return calibrated(verdict, rules)


def _judge(incident: Incident, readings: list[Reading], history: History, rules: Rules, now: datetime) -> Verdict:
    added = context(incident, readings, history, rules, now)
    leading = order([*readings, *(reading for reading in added if reading.role is Role.CAUSE)])
    weighed = weigh(leading, rules) + [Weighed(reading, 1.0) for reading in added if reading.role is not Role.CAUSE]
    ranked = with_siblings(shares(odds(weighed, rules), rules.judgement.temperature), weighed)
    ranked = with_rivals(ranked, rules)
    if not ranked:
        return unanswered(incident, weighed, ranked, rules)
    together, support = siblings(ranked, weighed)
    if support < rules.judgement.least_weight or together < rules.judgement.unknown_below:
        return unanswered(incident, weighed, ranked, rules)
    return _verdict(incident, weighed, ranked, rules)


def _verdict(
    incident: Incident,
    weighed: Sequence[Weighed],
    ranked: list[tuple[Cause, float]],
    rules: Rules,
) -> Verdict:
    cause, confidence = ranked[0]
    entry = rules.causes[cause]
    support, every = _speaking_for(cause, weighed)
    scope = _scope(cause, entry.scope, support, every)
    machine = sum(share for one, share in ranked if one not in NEVER_DRAIN)
    other = sum(share for one, share in ranked if one in NEVER_DRAIN and one not in SYMPTOMS)
    sure = machine > 0 and machine / (machine + other) >= rules.judgement.drain_above
    drain = _drain(cause, scope, every) if sure else ()
    together = min((_together(name, cause, ranked, weighed, rules) for name in drain), default=0.0)
    own_host = _of_its_host(cause, scope, support)
    culprits, suspect = _culprits_and_suspects(cause, every, incident, drain, own_host)
    culprits = replace(culprits, gpus=_gpus(cause, every, weighed, drain))
    if scope is Scope.CLUSTER and cause in {C.NODE_FAILURE, C.NODE_OS_OR_HOST}:
        suspect = ()  # what put many nodes out at once is in none of them
    recommendation = _recommendation(cause, scope, support, weighed, drain, suspect, sure)
    if own_host and recommendation is Recommendation.NONE:
        recommendation = Recommendation.SUSPECT
    restart = Restart(entry.restart)
    if cause is C.NUMERICAL_NAN and any(item.reading.key == NUMBERS_MOVED for item in weighed):
        restart = Restart.HOLD
    if (drain or suspect) and restart is Restart.RESUME:
        restart = Restart.RESUME_EXCLUDING
    spoke_for, against = grounds(weighed, cause)
    return Verdict(
        cause=cause,
        scope=scope,
        confidence=round(confidence, 3),
        culprits=culprits,
        drain=drain,
        may_pass=_by_no_sign_alone(drain, weighed),
        drain_confidence=round(together, 3),
        suspect=suspect,
        drain_recommended=recommendation is Recommendation.DRAIN,
        recommendation=recommendation,
        restart=restart,
        onset_step=onset(incident),
        alternatives=tuple(Alternative(c, round(p, 3)) for c, p in ranked[1:4]),
        grounds=spoke_for,
        against=against,
        would_change=_would_change(cause, ranked, rules, bool(drain)),
        advice=next((item.reading.advice for item in support if item.reading.advice), "") or entry.advice,
    )


def _scope(cause: Cause, usual: Scope, support: Sequence[Weighed], every: Sequence[Reading]) -> Scope:
    told = widely_told(every)
    if cause in {C.FILESYSTEM_STORAGE, C.NETWORK_FABRIC, C.GPU_THERMAL_POWER}:
        nodes = {r.evidence.where.node for r in told if r.evidence.where.node}
        if len(nodes) >= MANY_NODES:
            return Scope.CLUSTER
    for item in sorted(support, key=lambda item: item.reading.role is not Role.CONTEXT):
        if item.reading.scope is not None and item.reading in told:
            return item.reading.scope
    return usual


def _drain(cause: Cause, scope: Scope, every: Sequence[Reading]) -> tuple[str, ...]:
    """Nodes that trusted evidence convicts: one line that is enough, or two that agree."""
    if cause in NEVER_DRAIN or _shared(cause, scope):
        return ()
    convicting = [r for r in every if r.drain.convicts and r.evidence.trust is Trust.SYSTEM]
    enough = (r for r in convicting if r.drain is Drain.YES and r.evidence.where.node)
    two = agreeing(convicting)
    if cause is C.NODE_OS_OR_HOST:
        # Disks and kernels of many hosts that fail within minutes have met one event: their storage, their power.
        of_two = order(r for r in convicting if r.evidence.where.node in two)
        two = two if most_at_once(of_two) < MANY_NODES else []
    return tuple(dict.fromkeys((*(str(r.evidence.where.node) for r in enough), *two)))


def _by_no_sign_alone(drain: tuple[str, ...], weighed: Sequence[Weighed]) -> tuple[str, ...]:
    """Those of these nodes that two signs convict which agree, none of them by itself: either may pass."""
    told = [item.reading for item in weighed if item.reading.drain is Drain.YES]
    alone = {reading.evidence.where.node for reading in told if reading.evidence.trust is Trust.SYSTEM}
    return tuple(name for name in drain if name not in alone)


def _together(
    node: str, cause: Cause, ranked: Sequence[tuple[Cause, float]], weighed: Sequence[Weighed], rules: Rules
) -> float:
    """How sure the causes together are that this node is broken.

    An ECC error, and a GPU that falls off the bus after it or runs hot beside it, leave the cause open, not whether the node
    goes. Where one line of a machine is enough, each cause counts that is a machine's and that a trusted line of this node
    speaks for; else only those that convict it.
    """
    own = [item.reading for item in weighed if item.reading.evidence.where.node == node]
    trusted = [reading for reading in own if reading.evidence.trust is Trust.SYSTEM]
    enough = any(reading.drain is Drain.YES for reading in trusted)

    def counts(one: Cause) -> bool:
        spoken = [reading for reading in trusted if reading.weights.get(one, 0.0) > 0.3]
        if one is cause or one in NEVER_DRAIN or not spoken:
            return one is cause
        usual = rules.causes[one].scope
        if _shared(one, _scope(one, usual, *_speaking_for(one, weighed))):
            return False
        return enough or node in _drain(one, usual, spoken)

    return sum(share for one, share in ranked if counts(one))


def _speaking_for(cause: Cause, weighed: Sequence[Weighed]) -> tuple[list[Weighed], list[Reading]]:
    """What carries the cause, the strongest first, and all that names it, also where other lines took its weight."""
    support = [item for item in weighed if item.of(cause) > 0.3 and item.factor > 0]
    support.sort(key=lambda item: -item.of(cause))
    return support, [item.reading for item in weighed if item.reading.weights.get(cause, 0.0) > 0.3]


def _shared(cause: Cause, scope: Scope) -> bool:
    """A fault that no drain of a node helps. A rack's NVLink switch takes its nodes out of service until it is repaired."""
    return scope is Scope.APPLICATION or (scope is Scope.CLUSTER and cause is not C.GPU_NVLINK)


def _of_its_host(cause: Cause, scope: Scope, support: Sequence[Weighed]) -> bool:
    """Whether what is usually the application's, as a full disk or a missing library, is this node's own: to be tested."""
    said = any(item.reading.drain is not Drain.NO and item.reading.scope is Scope.NODE for item in support)
    return scope is Scope.NODE and cause in OF_A_HOST and said


def _recommendation(
    cause: Cause,
    scope: Scope,
    support: Sequence[Weighed],
    weighed: Sequence[Weighed],
    drain: Sequence[str],
    suspect: Sequence[str],
    sure: bool,
) -> Recommendation:
    """What these lines, were they a trusted source's, ask for; says nothing about which node.

    Where a machine's cause leads, a line that convicts or accuses the node counts also if it speaks for another such cause.
    """
    if cause in NEVER_DRAIN or _shared(cause, scope):
        return Recommendation.SUSPECT if suspect else Recommendation.NONE
    others = [item for item in weighed if item.factor > SHADOW and not item.reading.warned]
    causes = (item for item in others if item.reading.role is not Role.SYMPTOM)
    machines = (item for item in causes if points_to(item.reading) not in NEVER_DRAIN)
    if sure and (drain or any(item.reading.drain.convicts for item in (*support, *machines))):
        return Recommendation.DRAIN
    accused = suspect or any(item.reading.drain is not Drain.NO for item in (*support, *others))
    return Recommendation.SUSPECT if accused else Recommendation.NONE


def _culprits_and_suspects(
    cause: Cause,
    every: Sequence[Reading],
    incident: Incident,
    drain: tuple[str, ...],
    own_host: bool,
) -> tuple[Culprits, tuple[str, ...]]:
    """Nodes and ranks at fault, and suspects. Of a refused connection the peer is named, not the node that reports it."""
    nodes: list[str] = []
    ranks: list[int] = []
    for reading in every:
        where, data = reading.evidence.where, reading.evidence.data
        peer = data.get("peer")
        if isinstance(peer, str) and peer:
            _add(nodes, peer)
        elif reading.evidence.kind != Kind.STALL:
            _add(nodes, where.node)
        told = str(data.get("ranks") or "").split(",") if reading.key == "flight" else []
        named: list[int | None] = [rank for word in told if (rank := whole_number(word)) is not None]
        named = named or [where.rank]
        if reading.evidence.kind != Kind.STALL:
            ranks.extend(rank for rank in named if rank is not None and rank not in ranks)
    first = [e.where.rank for e in incident.evidence if e.kind == "first-failure" and e.where.rank is not None]
    if cause in {C.NCCL_HANG_UNKNOWN, C.COLLECTIVE_MISMATCH}:
        first = [*first, *behind_others(incident)]
    ranks = [*dict.fromkeys([*first, *ranks])]  # whom the launcher saw fail first, or who never came
    machine = cause not in APPLICATION or own_host
    suspect = (
        tuple(node for node in nodes if node not in drain)[:8] if machine and cause is not C.FILESYSTEM_STORAGE else ()
    )
    if cause in {C.NUMERICAL_NAN, C.NETWORK_BOOTSTRAP} and not any(r.evidence.data.get("peer") for r in every):
        suspect = ()
    culprit_nodes = tuple(dict.fromkeys((*drain, *suspect))) if machine else ()
    return Culprits(culprit_nodes, ranks=tuple(ranks[:16])), suspect


def _gpus(
    cause: Cause, every: Sequence[Reading], weighed: Sequence[Weighed], drain: tuple[str, ...]
) -> tuple[str, ...]:
    """GPUs that the cause's readings are about; of a drained node also those that another fault convicts."""
    if cause in APPLICATION:
        return ()
    convicting = [
        reading
        for reading in (item.reading for item in weighed)
        if reading.drain is Drain.YES
        and reading.evidence.trust is Trust.SYSTEM
        and reading.evidence.where.node in drain
    ]
    gpus: list[str] = []
    for reading in (*every, *convicting):
        where = reading.evidence.where
        gpu = where.gpu if where.gpu is not None else reading.evidence.data.get("pci")
        if gpu is not None:
            _add(gpus, f"{where.node}:{gpu}" if where.node else str(gpu))
    return tuple(gpus[:16])


def _add(names: list[str], name: str | None) -> None:
    if name and name not in names:
        names.append(name)


def _would_change(cause: Cause, ranked: list[tuple[Cause, float]], rules: Rules, drained: bool) -> tuple[str, ...]:
    sentences = [rules.causes[cause].confirm]
    if len(ranked) > 1 and ranked[1][1] >= 0.1 and ranked[1][0] in rules.causes:
        rival = ranked[1][0]
        sentences.append(f"for {rival.value} instead: {rules.causes[rival].confirm}")
    if drained:
        sentences.append("a passed diagnostic of the drained node")
    return tuple(sentence for sentence in sentences if sentence)
