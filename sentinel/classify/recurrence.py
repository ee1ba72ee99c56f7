"""What happened before and elsewhere: the same node under other jobs, the same job on other nodes, bad numbers that follow
one machine, one fault under many jobs at once, parts that age, and how often which cause is met here.

Each rule is one function that adds readings of its own, so that a verdict lists it among its grounds.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta
from math import exp, isfinite, log

from sentinel.classify.faults.agreement import widely_told
from sentinel.classify.history import APPLICATION, History, PastFailure, without_repeats
from sentinel.classify.readings import GPU_CAUSES, Reading, of_context
from sentinel.config.rules import Drain, Role, Rules
from sentinel.model.records import Cause, Incident, Kind, Scope, Trust
from sentinel.model.vocabulary import BAD_NUMBER_KINDS

C = Cause
# Words that a program's own mistake and a failing GPU print alike.
AMBIGUOUS = frozenset({"cuda-illegal-access", "cuda-unspecified", "cuda-unknown", "nan", "oom-gpu", "xid-soft"})
SOFT = frozenset({C.USER_CODE, C.APP_OOM_GPU, C.NUMERICAL_NAN, C.UNKNOWN})
OF_A_GPU = frozenset({*GPU_CAUSES, C.GPU_THERMAL_POWER})
# Causes that many jobs have in common when something shared breaks.
SHARED = frozenset({C.FILESYSTEM_STORAGE, C.NETWORK_FABRIC, C.GPU_THERMAL_POWER})
AT_ONCE = timedelta(minutes=5)
MANY_JOBS = 3  # this one among them
LEAST_COMMON = 2  # earlier attempts with bad numbers before the one machine that all had counts
JOB_AGAIN = timedelta(days=1)  # a program that fails by its own mistake does so again soon
STORAGE_AGAIN = timedelta(hours=1)  # after longer the same rank may well be the first to meet another fault
STEP_SLACK = 5  # steps apart that count as the same: a loss is not printed at every step
LEAST_FAILURES = 20  # before the cluster's own rates say anything
RATE_STRENGTH = 20.0  # failures' worth of belief that this cluster is like others
MOST_RATE = 1.0  # log odds that rates may add or take


def ambiguous(readings: Sequence[Reading], rules: Rules) -> dict[str, list[Reading]]:
    """Readings whose words leave open whether the program or the machine is at fault, by kind.

    Of Xids those that the table marks with ``repeat``: hardware when the same unit shows them under different jobs.
    """
    by_kind: dict[str, list[Reading]] = {}
    for reading in readings:
        kind = reading.evidence.kind
        if kind == Kind.XID:
            entry = rules.xid_of(reading.evidence)
            kind = "xid-soft" if entry is not None and entry.repeat else kind
        if kind in AMBIGUOUS:
            by_kind.setdefault(kind, []).append(reading)
    return by_kind


def onset(incident: Incident) -> int | None:
    """The step at which numbers went bad: of the first bad line, or of the last step before it."""
    last: int | None = None
    told = [item.data.get("onset_step") for item in incident.evidence if item.kind == Kind.NUMBERS]
    if told and isinstance(told[0], int):
        return told[0]  # what was bad for a moment before it was good again
    for evidence in sorted(incident.evidence, key=lambda e: (e.at, e.line or 0)):
        step = evidence.data.get("step")
        if evidence.kind in BAD_NUMBER_KINDS:  # a spike of the loss is none: it may pass
            first = evidence.data.get("onset_step", step)
            return first if isinstance(first, int) else (last + 1 if last is not None else None)
        if evidence.kind == Kind.STEP and isinstance(step, int):
            loss = evidence.data.get("loss")
            if isinstance(loss, float) and not isfinite(loss):
                return step
            last = step
    return None


def recurring(
    incident: Incident, readings: Sequence[Reading], history: History, rules: Rules, now: datetime
) -> list[Reading]:
    if not readings:
        return []
    return [
        *_node_again(incident, readings, history, rules, now),
        *_job_again(incident, readings, history, rules, now),
        *_storage_again(incident, readings, history, now),
        *_numbers_explained(readings),
        *_numbers_again(incident, readings, history, now),
        *_many_jobs_at_once(incident, readings, history, now),
        *_ageing(incident, readings, history, rules),
        *_rates(readings, history, rules, now),
    ]


def _node_again(
    incident: Incident, readings: Sequence[Reading], history: History, rules: Rules, now: datetime
) -> list[Reading]:
    """Failures of several jobs on one node, and not of other GPUs of it, point to the node. Bad numbers have their own rule
    unless a part failed, and memory that is used up is any program's: both need a machine's own word."""
    kinds = ambiguous(readings, rules)
    node = _one_node(incident, [r for group in kinds.values() for r in group])
    if node is None or not kinds:
        return []
    units = _units(r for group in kinds.values() for r in group)
    past = [p for p in history.under_other_jobs(node, incident.job, now) if not _another_unit(p, units)]
    # A hang, a start without its peers or failing storage names a node and says nothing of its GPU.
    hard = [p for p in past if p.blamed and p.cause in OF_A_GPU]
    machine = [p for p in hard if not p.users_words]
    soft = [p for p in past if p.cause in SOFT or (p in hard and p.users_words)]
    jobs = {p.user or p.job for p in soft}  # one user's jobs may all print the same: users count, where they are known
    if len(jobs) < 2 or kinds.keys() <= {"nan", "oom-gpu"} or _one_users_program(soft, node, history, now):
        soft, jobs = [], set()
    if not machine and not soft:
        return []
    group = next(iter(kinds.values()))
    weight = min(2.0 + 0.5 * (len(machine) + len(jobs)), 3.5)
    counted: dict[Cause, float] = {C.GPU_GSP_OR_DRIVER: weight}
    for p in machine:
        if p.cause in GPU_CAUSES:
            counted[p.cause] = weight + 0.5
    counted.update({C.USER_CODE: -2.0, C.APP_OOM_GPU: -2.0, C.NUMERICAL_NAN: -2.0})
    times = len(machine) + len(soft)
    note = f"{node} failed {times} time{'s' if times > 1 else ''} in 30 days under other jobs"
    return [of_context(group[0].evidence, "node-again", counted, note, Scope.GPU)]


def _units(readings: Iterable[Reading]) -> set[str]:
    """The GPUs that these readings are about, as verdicts name them; empty: not known of all."""
    named = [r.evidence.where.gpu if r.evidence.where.gpu is not None else r.evidence.data.get("pci") for r in readings]
    return {str(gpu) for gpu in named} if None not in named else set()


def _another_unit(past: PastFailure, units: Collection[str]) -> bool:
    """Whether that was the failure of another GPU; an index and an address may be the same one."""
    known = [past.gpu, *units] if past.gpu is not None and units else []
    return bool(known) and past.gpu not in units and len({name.isdigit() for name in known if name is not None}) == 1


def _one_node(incident: Incident, readings: Sequence[Reading]) -> str | None:
    nodes = {r.evidence.where.node for r in readings if r.evidence.where.node}
    nodes = nodes or set(incident.nodes if len(incident.nodes) == 1 else ())
    return nodes.pop() if len(nodes) == 1 else None


def _one_users_program(soft: Sequence[PastFailure], node: str, history: History, now: datetime) -> bool:
    """Whether one user's program failed on this node as it failed on others: then the program is the cause."""
    users = {p.user for p in soft}
    if len(users) != 1 or None in users:
        return False
    return any(p.user in users and p.cause in SOFT and p.node not in (node, None) for p in history.recent(now))


def _job_again(
    incident: Incident, readings: Sequence[Reading], history: History, rules: Rules, now: datetime
) -> list[Reading]:
    """The same failure of one job on other nodes points to the job.

    Convicted machines, hangs and network faults say nothing about its program: a job on 2,048 nodes meets several a day.
    """
    if incident.job is None:
        return []
    here = {r.evidence.where.node for r in readings if r.evidence.where.node} or set(incident.nodes)
    kinds = {kind: group for kind, group in ambiguous(readings, rules).items() if kind != "nan"}
    if not kinds:
        return []
    of_job = (
        p for p in history.of_job(incident.job, now) if now - p.at <= JOB_AGAIN and p.cause in SOFT.union(GPU_CAUSES)
    )
    elsewhere = [p for p in of_job if p.node and p.node not in here and not (p.blamed and p.cause in GPU_CAUSES)]
    nodes = {p.node for p in elsewhere}
    if not nodes:
        return []
    first = next(iter(kinds.values()))[0].evidence
    own = {"oom-gpu": C.APP_OOM_GPU}.get(next(iter(kinds)), C.USER_CODE)
    weights = {own: 1.5 + 0.5 * min(len(nodes), 3), **dict.fromkeys(GPU_CAUSES, -2.0)}
    note = f"the same job failed on {len(nodes)} other node{'s' if len(nodes) > 1 else ''}"
    return [of_context(first, "job-again", weights, note, Scope.APPLICATION)]


def _storage_again(incident: Incident, readings: Sequence[Reading], history: History, now: datetime) -> list[Reading]:
    """Storage that fails a job on one node in attempt after attempt, and nobody elsewhere, is that node's own disk or mount.

    It becomes a suspect: without it the next attempt shows whether what all nodes share has failed.
    """
    group = [r for r in readings if r.weights.get(C.FILESYSTEM_STORAGE, 0.0) >= 1.5]
    node = _one_node(incident, group)
    if node is None or incident.job is None:
        return []
    earliest = incident.opened_at - STORAGE_AGAIN
    lately = [p for p in history.recent(now) if p.cause is C.FILESYSTEM_STORAGE and p.at >= earliest]
    before = [p for p in lately if p.job == incident.job and p.attempt != incident.attempt]
    since = min((p.at for p in before if p.node == node), default=None)
    if since is None or _heard([p for p in lately if p.node != node and p.at >= since], incident, history):
        return []
    weights = {C.NODE_OS_OR_HOST: 3.4, C.FILESYSTEM_STORAGE: -3.0}  # as for a directory that only the node itself has
    note = f"storage failed on {node} in an earlier attempt of this job, and since then on no other node"
    return [of_context(group[0].evidence, "storage-again", weights, note, Scope.NODE)]


def _numbers_explained(readings: Sequence[Reading]) -> list[Reading]:
    """A convicted machine explains bad numbers, also if these were seen first; bad numbers explain no machine fault."""
    bad = any(r.evidence.kind in BAD_NUMBER_KINDS for r in readings)
    hard = [r for r in readings if r.drain is Drain.YES and r.role is Role.CAUSE and r.evidence.trust is Trust.SYSTEM]
    if not bad or not hard:
        return []
    note = "the machine's own words explain the bad numbers"
    return [of_context(hard[0].evidence, "numbers-explained", {C.NUMERICAL_NAN: -3.0}, note, None)]


def _numbers_again(incident: Incident, readings: Sequence[Reading], history: History, now: datetime) -> list[Reading]:
    """Bad numbers at the same step on another machine are the program's or its data's; those that come back with one
    machine, at other steps or under other jobs, are that machine's. It becomes a suspect: a diagnostic must convict it."""
    bad = [r for r in readings if r.evidence.kind in BAD_NUMBER_KINDS]
    if not bad:
        return []
    first, node, step = bad[0].evidence, _one_node(incident, bad), onset(incident)
    ranks = {r.evidence.where.rank for r in bad} - {None}
    earlier = [p for p in history.recent(now) if p.cause is C.NUMERICAL_NAN or (p.step is not None and p.node == node)]
    this = (incident.job, incident.attempt)  # told while it ran, it is no failure of its own
    earlier = [p for p in earlier if p.job is None or p.attempt is None or (p.job, p.attempt) != this]
    same = [p for p in earlier if incident.job is not None and p.job == incident.job and _same_step(p.step, step)]
    same = [p for p in same if not ranks or not p.ranks or ranks & set(p.ranks)]
    if same:
        moved = [where for p in same if (where := _elsewhere(p, node, history.nodes))]
        weight = 2.0 if moved else 1.0
        weights = {C.NUMERICAL_NAN: weight, **dict.fromkeys(GPU_CAUSES, -weight)}
        note = f"bad numbers at step {same[0].step} {moved[0] if moved else 'again'}: the program or its data"
        return [of_context(first, NUMBERS_MOVED if moved else "numbers-same-step", weights, note, Scope.APPLICATION)]
    here, common = _heard([p for p in earlier if node is not None and p.node == node], incident, history), ""
    wide = _heard([p for p in earlier if p.node is None and p.nodes], incident, history)
    if node is None and (found := _in_common(wide, history.nodes)) is not None:
        node, here = found
        common = ", the one machine that all of them had"
    if not here or node is None or _one_users_program([p for p in here if p.job != incident.job], node, history, now):
        return []
    jobs = {p.job for p in here} - {incident.job}
    note = f"bad numbers follow {node}{common}: " + (
        f"under {len(jobs)} other job{'s' if len(jobs) > 1 else ''} in 30 days"
        if jobs
        else "at another step of this job"
    )
    named = dataclasses.replace(first, data={**first.data, "peer": node})
    return [of_context(named, "numbers-follow-node", {C.NUMERICAL_NAN: 1.0}, note, Scope.GPU)]


NUMBERS_MOVED = "numbers-same-step-elsewhere"  # another restart would only come to the same step again


def _elsewhere(past: PastFailure, node: str | None, nodes: Sequence[str]) -> str:
    """Words for where the same happened before, if no machine that may be at fault was there as well; empty otherwise."""
    if past.node is not None and node is not None:
        return f"on {past.node} before, on {node} now" if past.node != node else ""
    if past.nodes and nodes and not set(past.nodes) & set(nodes):
        return f"on {len(past.nodes)} other node{'s' if len(past.nodes) > 1 else ''} before"
    return ""


def _in_common(earlier: Sequence[PastFailure], nodes: Sequence[str]) -> tuple[str, list[PastFailure]] | None:
    """The one machine of this attempt that was part of every other one whose numbers went bad, where no rank is known. Two
    of them at least: two allocations of a small cluster often have a machine in common."""
    wide = {(p.job, p.at if p.attempt is None else p.attempt): p for p in earlier}
    if len(wide) < LEAST_COMMON or not nodes:
        return None
    common = set(nodes).intersection(*(p.nodes for p in wide.values()))
    return (common.pop(), list(wide.values())) if len(common) == 1 else None


def _same_step(one: int | None, other: int | None) -> bool:
    return one is not None and other is not None and abs(one - other) <= STEP_SLACK


def _many_jobs_at_once(
    incident: Incident, readings: Sequence[Reading], history: History, now: datetime
) -> list[Reading]:
    """The same shared fault under many jobs within minutes is one fault of the cluster.

    Words of programs count by user, and not at all where the machine's own words convict a node.
    """
    added = []
    for cause in sorted(SHARED):
        group = [r for r in readings if r.weights.get(cause, 0.0) >= 1.5]
        if not group:
            continue
        told = widely_told(group)
        others = [
            p
            for p in history.recent(now)
            if p.cause is cause and p.job not in (None, incident.job) and now - p.at <= AT_ONCE
            if told is group or not p.users_words
        ]
        if len(voices(others, history.user)) + 1 >= MANY_JOBS:
            jobs = len({p.job for p in others})
            note = f"{jobs} other jobs failed of the same within {AT_ONCE.total_seconds() / 60:g} minutes"
            added.append(of_context(told[0].evidence, f"jobs-{cause}", {cause: 1.5}, note, Scope.CLUSTER))
    return added


def voices(failures: Collection[PastFailure], user: str | None) -> set[str | int | None]:
    """Who tells of them: each job in which a machine said it, and each other user whose programs printed it, since one
    user's jobs may all print the same. A job of ``user``, whose own job is judged, or of a user who is not known, counts by
    itself."""
    of_machines = {p.job for p in failures if not p.users_words}
    others = {p.job: p.user for p in failures if p.user not in (None, user)}
    return of_machines | {others.get(p.job, p.job) for p in failures if p.job not in of_machines}


def _heard(failures: Sequence[PastFailure], incident: Incident, history: History) -> Sequence[PastFailure]:
    """Those that count for this job: what a machine said, what its own user's programs printed, and what other users'
    printed where they are as many as make it one fault of ``MANY_JOBS``. One other user may print anything."""

    def own(past: PastFailure) -> bool:
        return not past.users_words or past.job == incident.job or (past.user is not None and past.user == history.user)

    others = [past for past in failures if not own(past)]
    return failures if len(voices(others, None)) + 1 >= MANY_JOBS else [past for past in failures if own(past)]


def _ageing(incident: Incident, readings: Sequence[Reading], history: History, rules: Rules) -> list[Reading]:
    """A part whose counters grow leans what could be either towards the machine; by itself it opens and drains nothing."""
    kinds = ambiguous(readings, rules)
    node = _one_node(incident, [r for group in kinds.values() for r in group])
    trends = [trend for trend in history.trends if trend.node == node and trend.suspect]
    if not kinds or not trends:
        return []
    first = next(iter(kinds.values()))[0].evidence
    weights: dict[Cause, float] = {C.USER_CODE: -0.5}
    for trend in trends:
        weights[trend.cause] = 1.0
    note = f"{node} ages: {trends[0].reason}"
    return [of_context(first, "node-ages", weights, note, None)]


def _rates(readings: Sequence[Reading], history: History, rules: Rules, now: datetime) -> list[Reading]:
    """How often each cause is met here beside how often it is met elsewhere (the rules' priors): a cluster like others gets
    nothing added, a few failures move little, and no rate says more than one line of evidence."""
    causes = _met(without_repeats(history.recent(now)))
    failures = causes.total()
    if failures < LEAST_FAILURES:
        return []
    elsewhere = {cause: exp(entry.prior) for cause, entry in rules.causes.items() if cause is not C.UNKNOWN}
    whole = sum(elsewhere.values())
    weights: dict[Cause, float] = {}
    for cause, odds in elsewhere.items():
        usual = odds / whole
        share = (causes[cause] + RATE_STRENGTH * usual) / (failures + RATE_STRENGTH)
        weights[cause] = max(-MOST_RATE, min(MOST_RATE, 0.5 * log(share / usual)))
    return [of_context(readings[0].evidence, "own-rates", weights, f"rates of {failures} failures here", None)]


def _met(failures: Sequence[PastFailure]) -> Counter[Cause]:
    """How often each cause was met. Of what one user's programs do or print, once more than all else of that cause counts:
    many failed jobs of one user then move nobody's verdict by more than as many of others would."""
    by_cause: dict[Cause, Counter[str]] = {}
    for past in {past.incident or id(past): past for past in failures}.values():
        program = past.users_words or past.cause in APPLICATION
        by_cause.setdefault(past.cause, Counter())[(past.user or "") if program else ""] += 1
    met: Counter[Cause] = Counter()
    for cause, told in by_cause.items():
        most = max((count for user, count in told.items() if user), default=0)
        others = told.total() - most
        met[cause] = others + min(most, others + 1)
    return met
