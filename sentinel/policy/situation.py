"""What policy reads besides verdict and incident: the state of cluster, job and budgets at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from sentinel.config.settings import Recovery
from sentinel.model.approvals import Answer
from sentinel.model.changes import may_be_of_any_user
from sentinel.model.intent import NOTHING, Intent
from sentinel.model.records import (
    Cause,
    Fleet,
    Ground,
    Incident,
    JobView,
    Kind,
    NodeView,
    Source,
    Step,
    Trust,
    Verdict,
    Wait,
)
from sentinel.model.spares import Spares
from sentinel.model.vocabulary import ANY_USER, OPEN_ENGINE, POWERED_OFF

_WHILE_OFF = POWERED_OFF | {"not_responding"}
NO_NODE = "no-node"  # kind of the wait of a job for which too few good nodes are left
SILENCE = "silence"  # ground of a stop, in its step's data: a running job printed nothing
_MACHINES = frozenset(
    {Source.KERNEL, Source.DCGM, Source.NVML, Source.AMD_SMI, Source.DIAGNOSTIC, Source.SLURM, Source.PROBE}
)
_UNLESS_SET = Recovery()


@dataclass(frozen=True, slots=True)
class PastRestart:
    """One restart of a job by Sentinel."""

    at: datetime
    cause: Cause
    step_before: int | None  # last step that the failed attempt is known to have reached
    resumed_step: int | None
    observed: bool = True  # whether that attempt was watched from its beginning: it reached no later step


@dataclass(frozen=True, slots=True)
class Stop:
    """One job that Sentinel stopped or is about to stop, to restart or hold it."""

    job: int
    at: datetime
    silent: bool  # whether its silence was the only reason
    user: str | None = None  # None: not known


@dataclass(frozen=True, slots=True)
class NodeHurt:
    """A node that an earlier incident of this job convicted."""

    at: datetime
    cause: Cause
    node: str
    attempt: int | None


@dataclass(frozen=True, slots=True)
class RefusedDrain:
    """A drain that Slurm refused for an unknown reason."""

    since: datetime
    again_at: datetime  # when Slurm is asked again
    why: str
    times: int = 1


@dataclass(frozen=True, slots=True)
class Situation:
    """Everything that policy reads, at one moment."""

    fleet: Fleet
    intent: Intent = NOTHING
    job: JobView | None = None
    last_step: int | None = None  # that the failed attempt reached
    last_save: int | None = None  # step of the newest save of the attempt that was seen
    observed: bool = True  # whether the attempt was watched from its beginning: it reached no later step
    drains: tuple[datetime, ...] = ()  # of ours in the last hour
    failing_nodes: frozenset[str] = frozenset()  # convicted within the breaker's window, any incident
    under_suspect_switch: frozenset[str] = frozenset()  # bad nodes that are not drained since their switch is suspected
    restarts: tuple[PastRestart, ...] = ()  # of this job, oldest first
    hurt: tuple[NodeHurt, ...] = ()  # nodes that broke under earlier attempts of this job, oldest first
    stops: tuple[Stop, ...] = ()  # of any job in the last hour, with those under way
    hung_jobs: Mapping[int, str] = field(
        default_factory=dict
    )  # called hung at about this job's time: users ("" unknown)
    paused: bool = False  # by an operator, or at a start with an incomplete state
    opt_in: bool = True
    onset_step: int | None = None  # at which the attempt's numbers went bad, if they stay so
    slow_nodes: tuple[str, ...] = ()  # suspected of slowing this attempt down
    bad_nodes: frozenset[str] = frozenset()  # whose agent says that they are bad now, whatever the incident
    convicted_nodes: frozenset[str] = frozenset()  # in service, or perhaps, and convicted by any incident
    good_nodes: frozenset[str] = frozenset()  # proven good since this incident's evidence
    missing_since: datetime | None = None  # since when nodes that it convicts are not in Slurm's listing
    refused: Mapping[str, RefusedDrain] = field(default_factory=dict)  # by node, of this incident
    put_back: frozenset[str] = frozenset()  # taken out for it, or since for another one, and put back by a person
    excluded_by_us: tuple[str, ...] = ()  # nodes in the job's exclusions that Sentinel added, and still wants there
    on_probation: tuple[str, ...] = ()  # nodes that hurt this job, and that were returned lately
    added_by_us: frozenset[str] = frozenset()  # nodes in the job's exclusions that Sentinel added at any time
    required: tuple[str, ...] = ()  # nodes that the job's user insists on; not those of a list that Sentinel wrote
    goes_on: bool = False  # the attempt made steps after the newest evidence of this incident
    held: Step | None = None  # this incident's hold of the attempt, as it was planned; None: none was
    recovered_by: str = ""  # the incident that restarts or holds this attempt already
    left_stopped: bool = False  # requeued by us, or perhaps, and nothing is known of it: an older copy of the store
    answers: tuple[Answer, ...] = ()  # of people who were asked to approve parts of this incident's plan, oldest first
    request: Wait | None = None  # what people are asked now, or were and did not answer
    request_cause: Cause | None = None  # that this request was for
    wait_s: float | None = _UNLESS_SET.wait_s  # until another node is there; None: it should have been there by now
    smaller_for_s: float = _UNLESS_SET.smaller_for_s  # how long a job that starts smaller stays so
    restart_takes_s: float = _UNLESS_SET.restart_takes_s  # from the job's stop to its next start at the earliest
    run_nodes: tuple[str, ...] = ()  # on which a job with spare nodes trains; empty: on all of them
    spares: Spares | None = None  # nodes kept for restarts; None: none, or not known
    allocation_failed: bool = False  # this incident's restart in the allocation could not be done
    chain: tuple[int, ...] = ()  # jobs that wait for the end of this one by --dependency=singleton, or waited for it
    steps_back: bool = False  # the job's checkpoint is left out: two attempts in a row did not resume from it
    unread_components: tuple[JobView, ...] = ()  # of its job, as they were last seen: their records cannot be read
    breaker_passed: bool = False  # an operator let this incident go on in spite of the breakers


def in_maintenance(node: NodeView) -> bool:
    """Whether the node is in a reservation with the flag MAINT now."""
    return "maintenance" in node.flags


def is_startable(node: NodeView) -> bool:
    """Whether Slurm gives the node work now, or when its job ends. One that power saving has switched off, and that answers
    nobody, it switches on for that."""
    off = not POWERED_OFF.isdisjoint(node.flags)
    return replace(node, flags=node.flags - _WHILE_OFF).usable if off else node.usable


def in_service(node: NodeView) -> bool:
    """Whether Slurm gives the node jobs, or will in the second in which its maintenance reservation ends."""
    return is_startable(replace(node, flags=node.flags - {"maintenance"}) if in_maintenance(node) else node)


def may_be_in_service(name: str, fleet: Fleet) -> bool:
    """Whether Slurm gives the node work, will once its maintenance ends, or may, as its record cannot be read."""
    node = fleet.nodes.get(name)
    return in_service(node) if node is not None else fleet.may_have_node(name)


def from_silence(verdict: Verdict, incident: Incident) -> bool:
    """Whether a running job is judged only by its silence: it has not ended, and there is no hardware evidence. Storage that
    jobs share is no hardware of theirs: it may answer again, and then they all go on."""
    kinds = {item.kind for item in incident.evidence}
    told = [g for g in verdict.grounds if g.weight > 0 and g.evidence.source in _MACHINES]
    hard = any(g.evidence.trust is Trust.SYSTEM and not may_be_of_any_user(g.evidence) for g in told)
    alone = not hard or of_shared_storage(verdict)
    return Kind.STALL in kinds and Kind.JOB_ENDED not in kinds and not verdict.drain and alone


def of_shared_storage(verdict: Verdict) -> bool:
    """Whether storage that is no part of a node is at fault."""
    return verdict.cause is Cause.FILESYSTEM_STORAGE and not verdict.drain


def from_open_engine(verdict: Verdict) -> bool:
    """Whether only an engine of DCGM says it, in which any user of the node may write."""
    told = [ground for ground in verdict.grounds if ground.weight > 0]
    return bool(told) and all(map(_by_open_engine, told))


def by_any_user(verdict: Verdict) -> bool:
    """Whether a line of a machine's log speaks for it that any user of the node can cause, as of a damaged image."""
    told = (g.evidence for g in verdict.grounds if g.weight > 0 and g.evidence.source in _MACHINES)
    return any(item.trust is Trust.USER or item.data.get(ANY_USER) is True for item in told)


def _by_open_engine(ground: Ground) -> bool:
    return ground.evidence.data.get(OPEN_ENGINE) is True


def components_with(fleet: Fleet, job: int) -> tuple[JobView, ...]:
    """The other components of the heterogeneous job that this one belongs to: they stop and start together."""
    this = fleet.jobs.get(job)
    if this is None or this.het is None:
        return ()
    found = (other for other in fleet.jobs.values() if other.het == this.het and other.id != job)
    return tuple(sorted(found, key=lambda other: other.id))


def components_of(situation: Situation) -> tuple[JobView, ...]:
    """The other components of the situation's job; those whose records cannot be read as they were last seen."""
    job = situation.job
    if job is None or job.het is None:
        return ()
    seen = (*situation.unread_components, *situation.fleet.jobs.values())
    found = {other.id: other for other in seen if other.het == job.het and other.id != job.id}
    return tuple(found[name] for name in sorted(found))


def may_use_spares(job: JobView, verdict: Verdict, reservation: str) -> bool:
    """Whether a requeued job may start on these spare nodes: it lost a node, and asked for no other reservation itself."""
    return bool(verdict.drain) and job.reservation in ("", reservation)


def lent(job: JobView, verdict: Verdict, situation: Situation) -> str:
    """What a requeued job may start on beside the nodes of everybody; empty: nothing."""
    spares = situation.spares
    if spares is None or not may_use_spares(job, verdict, spares.name):
        return ""
    count = nodes_text(len(spares.nodes))
    return f"Job {job.id} lost a node: it may start on the {count} of reservation {spares.name}, too."


def nodes_text(number: int) -> str:
    return "1 node" if number == 1 else f"{number} nodes"
