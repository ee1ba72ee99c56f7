"""Builders of records for unit tests: every field has a plain default, a test names only what it is about."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from sentinel.model.records import (
    Cause,
    Culprits,
    Evidence,
    Fleet,
    Incident,
    IncidentState,
    JobView,
    Kind,
    NodeView,
    Plan,
    Restart,
    Scalar,
    Scope,
    Source,
    Step,
    StepKind,
    Trust,
    Verdict,
    Where,
    stable_id,
)

AT = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)  # the moment at which FakeClock begins
OPTED_IN = '{"sentinel": {"restart": true, "global": ["/shared/run"]}}'


def later(seconds: float) -> datetime:
    return AT + timedelta(seconds=seconds)


def evidence(
    kind: str = Kind.XID,
    *,
    at_s: float = 0.0,
    source: Source = Source.KERNEL,
    node: str | None = None,
    job: int | None = None,
    attempt: int | None = None,
    rank: int | None = None,
    text: str = "",
    trust: Trust = Trust.SYSTEM,
    data: Mapping[str, Scalar] | None = None,
    id: str | None = None,
) -> Evidence:
    where = Where(node=node, job=job, attempt=attempt, rank=rank)
    name = id or stable_id(kind, at_s, source, where, text, data)
    return Evidence(
        id=name, at=later(at_s), seen_at=later(at_s), source=source, kind=kind, where=where, text=text, data=data or {},
        trust=trust,
    )  # fmt: skip


def ended(job: int = 101, attempt: int = 0, *, state: str = "failed", at_s: float = 1.0) -> Evidence:
    return evidence(
        Kind.JOB_ENDED,
        at_s=at_s,
        source=Source.SLURM,
        job=job,
        attempt=attempt,
        data={"state": state, "exit_code": 1, "signal": 0},
    )


def incident(
    *items: Evidence,
    id: str = "inc1",
    job: int | None = 101,
    attempt: int | None = 0,
    nodes: Iterable[str] = (),
    state: IncidentState = IncidentState.OPEN,
    opened_s: float = 0.0,
    updated_s: float = 0.0,
) -> Incident:
    return Incident(
        id=id,
        opened_at=later(opened_s),
        updated_at=later(updated_s),
        state=state,
        job=job,
        attempt=attempt,
        nodes=tuple(nodes),
        evidence=items,
        closed_at=later(updated_s) if state is IncidentState.CLOSED else None,
    )


def verdict(
    cause: Cause = Cause.GPU_MEMORY_ECC,
    *,
    scope: Scope = Scope.GPU,
    confidence: float = 0.95,
    drain: Sequence[str] = (),
    suspect: Sequence[str] = (),
    restart: Restart = Restart.RESUME_EXCLUDING,
    onset_step: int | None = None,
    gpus: Sequence[str] = (),
    advice: str = "",
) -> Verdict:
    return Verdict(
        cause=cause,
        scope=scope,
        confidence=confidence,
        culprits=Culprits(nodes=tuple(drain), gpus=tuple(gpus)),
        drain=tuple(drain),
        suspect=tuple(suspect),
        restart=restart,
        onset_step=onset_step,
        advice=advice,
    )


def node(
    name: str,
    *,
    state: str = "allocated",
    flags: Iterable[str] = (),
    reason: str = "",
    partitions: Sequence[str] = ("train",),
    port: int | None = 17001,
    topology: str = "",
) -> NodeView:
    return NodeView(
        name=name, state=state, flags=frozenset(flags), reason=reason, partitions=tuple(partitions),
        address="127.0.0.1", port=port, gpus=8, topology=topology,
    )  # fmt: skip


def job(
    id: int = 101,
    *,
    state: str = "running",
    nodes: Sequence[str] = ("n1", "n2"),
    restarts: int = 0,
    comment: str = OPTED_IN,
    held: bool = False,
    partition: str = "train",
    name: str = "train",
    user: str = "ada",
    admin_comment: str = "",
    started_s: float | None = -3600.0,
) -> JobView:
    return JobView(
        id=id, state=state, user=user, uid=1001, name=name, partition=partition, nodes=tuple(nodes), restarts=restarts,
        comment=comment, held=held, admin_comment=admin_comment,
        started_at=later(started_s) if started_s is not None else None,
    )  # fmt: skip


def fleet(nodes: Iterable[NodeView] | int = 4, jobs: Iterable[JobView] = ()) -> Fleet:
    views = [node(f"n{i}") for i in range(1, nodes + 1)] if isinstance(nodes, int) else list(nodes)
    return Fleet(at=AT, nodes={view.name: view for view in views}, jobs={view.id: view for view in jobs})


def step(kind: StepKind, *, node: str | None = None, job: int | None = None, attempt: int | None = None) -> Step:
    return Step(kind, node=node, job=job, attempt=attempt)


def plan(*steps: Step, incident: str = "inc1", refusal: str = "", observe_only: bool = False) -> Plan:
    return Plan(
        id=stable_id("plan", incident)[:10],
        incident=incident,
        at=AT,
        steps=steps,
        refusal=refusal,
        explanation="because" if refusal else "",
        observe_only=observe_only,
    )


def lost_gpu(node: str, at_s: float = 0.0) -> Evidence:
    """The driver's word that a GPU of ``node`` is gone from PCIe: enough to drain it."""
    return evidence(Kind.XID, node=node, at_s=at_s, data={"xid": 79, "pci": "0000:3b:00"}, text="NVRM: Xid 79")


def step_line(job: int, attempt: int, step: int, at_s: float) -> Evidence:
    """A step that the job's log shows."""
    return evidence(Kind.STEP, source=Source.PROGRESS, job=job, attempt=attempt, at_s=at_s, data={"step": step})
