"""Promises about which nodes jobs get: returned ones after proof, not first the job that they hurt; spare ones at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sentinel.engine.node_return.state import KEPT
from sentinel.model.records import Cause, StepKind
from sentinel.simulate.agents import signatures
from sentinel.simulate.crossings import SLURM_DEADLINE_S
from sentinel.simulate.happened import AttemptBegan, Happened, SlurmWrite
from sentinel.simulate.observer import Observer, puts_back
from sentinel.simulate.slurm.records import SimulatedJob

_REQUEST_S = 0.2  # from the moment at which slurmctld answers to that at which it gets what follows from the answer
_LAUNCHER = (StepKind.STOP_RUN, StepKind.START_RUN)


def proof_before_return(seen: Observer, what: Happened) -> Iterator[str]:
    """A node that Sentinel drained returns only after what failed has passed, where the site allows it."""
    if not isinstance(what, SlurmWrite) or not puts_back(what):
        return
    if not seen.world.settings.returns.automatic:
        yield f"{what.target} is put back into service, and no diagnostic passed there"
        return
    record = record_of(seen, what.target)
    causes = [Cause(cause) for cause in (record.get("cause", Cause.UNKNOWN), *record.get("also", ()))]
    since_s = max((drain.at_s for drain in seen.drains if drain.node == what.target), default=0.0)
    passed = {level for at_s, level in seen.world.machines.passed.get(what.target, ()) if at_s >= since_s}
    missing = set(signatures().rules.returns.of_all(causes).tests) - passed
    if missing:
        yield f"{what.target} is put back into service, and level {sorted(missing)} did not pass since its drain"


def record_of(seen: Observer, node: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = (seen.world.store.settings.get(KEPT) or {}).get(node) or {}
    return found


def on_probation(seen: Observer, what: Happened) -> Iterator[str]:
    """A node that Sentinel returned is not given to the job that it hurt first, while others are there."""
    if not isinstance(what, AttemptBegan) or what.job in seen.touched or what.job not in seen.let_go_at:
        return
    world, settings = seen.world, seen.world.settings.returns
    let_go_s = (seen.let_go_at[what.job] - world.own_now(-world.now_s)).total_seconds()
    for node in what.nodes:
        back_s = seen.returned.get(node)
        record = record_of(seen, node)
        if back_s is None or what.job not in record.get("jobs", ()) or seen.resumed.get(node, -1.0) > back_s:
            continue
        over = world.now_s - back_s >= settings.probation_s or let_go_s < back_s
        others = any(
            began.job != what.job and node in began.nodes and back_s <= world.began_s(began.job, began.attempt)
            for began in seen.attempts
        )
        tried = [name for name in seen.returned if what.job in record_of(seen, name).get("jobs", ())]
        free = [n.name for n in world.slurm.nodes.values() if not n.out and n.name not in tried]
        if not over and not others and len(free) >= len(what.nodes):
            yield f"job {what.job} begins attempt {what.attempt} on {node}, which hurt it and was just returned"


def not_in_turn(seen: Observer, what: Happened) -> Iterator[str]:
    """A job that failed on two nodes in turn, and gained no step, waits for others rather than try either again."""
    if not isinstance(what, AttemptBegan) or what.job in seen.touched or seen.world.crossings.cut_at:
        return  # a daemon that was away does not know whether an attempt gained a step
    if seen.slurmctld_died:
        return  # what a forgotten attempt printed is told of the one that has its number
    world, store = seen.world, seen.world.store
    fruitless = world.programs.fruitless(what.job)
    if not fruitless:
        return
    failed = range(what.attempt - 1 - fruitless, what.attempt)
    verdicts = [
        store.verdicts[name]
        for name, one in store.incidents.items()
        if one.job == what.job and one.attempt in failed and name in store.verdicts
    ]
    named = [{*verdict.drain, *verdict.suspect} for verdict in verdicts]
    turn = frozenset[str]().union(*(nodes for nodes in named if len(nodes) == 1)) & seen.fails_each
    again = sorted(turn & {*what.nodes})
    if len(turn) == 2 and again and len(world.slurm.nodes) - len(turn) >= len(what.nodes):
        both = " and ".join(sorted(turn))
        yield f"job {what.job} begins attempt {what.attempt} on {','.join(again)}, and failed on {both} in turn"


def stays_in_its_allocation(seen: Observer, what: Happened) -> Iterator[str]:
    """A job that holds good spare nodes is restarted there, and requeued only if that cannot be done."""
    if isinstance(what, AttemptBegan) and what.run:
        job = seen.world.slurm.jobs[what.job]
        if not {*what.nodes} <= {*job.on} or len(what.nodes) != seen.world.spec_of(job.id).trains_on:
            yield f"run {what.run} of job {what.job} begins on {','.join(what.nodes)}, and it holds {','.join(job.on)}"
    if not isinstance(what, SlurmWrite) or what.verb != "requeue_hold" or what.job is None or what.task is None:
        return
    job, task, nodes = what.job, what.task, seen.world.slurm.nodes
    count = seen.world.spec_of(job.id).trains_on
    if not count or job.state != "RUNNING" or job.ghost or task.step.kind is not StepKind.REQUEUE_HOLD or job.held:
        return
    tried = [s for s in seen.world.store.steps.values() if s.incident == task.incident.id and s.step.kind in _LAUNCHER]
    suspect = {*task.verdict.suspect, *task.verdict.drain, *seen.broken, *seen.accused}
    good = [name for name in job.on if not nodes[name].out and name not in suspect]
    if not tried and job.on[0] in good and len(good) >= count:
        yield f"job {job.id} is requeued, and holds {len(good)} good nodes of the {count} that it trains on"


def lends_to_who_lost_a_node(seen: Observer, what: Happened) -> Iterator[str]:
    """Nodes that are kept for restarts are lent to a job that waits and lost a node to a fault, and to nobody else."""
    if not isinstance(what, SlurmWrite) or not what.fields.get("ReservationName") or what.job is None:
        return
    verdicts, incidents = seen.world.store.verdicts, seen.world.store.incidents
    lost = [name for name, one in verdicts.items() if one.drain and incidents[name].job == what.job.id]
    if not lost:
        yield f"job {what.job.id} may start on spare nodes, and no verdict says that it lost a node"
    elif what.job.state != "PENDING" and not _was_pending_just_now(seen, what.job):
        yield f"job {what.job.id} is {what.job.state}, and is lent spare nodes"


def _was_pending_just_now(seen: Observer, job: SimulatedJob) -> bool:
    """Whether the job began or was cancelled while the request was on its way: the next snapshot tells."""
    under_way_s = SLURM_DEADLINE_S if seen.world.crossings.slurm == "slow" else _REQUEST_S
    began_s = seen.world.began_s(job.id, job.restarts) if job.state == "RUNNING" else -1e9
    return seen.world.now_s - max(began_s, seen.cancelled.get(job.id, -1e9)) <= under_way_s


def loans_end(seen: Observer) -> Iterator[str]:
    """In the end nobody may ask for the nodes kept for restarts but who waits for one, and no job hangs on them."""
    kept = seen.world.slurm.kept
    if kept is None or seen.world.paused:
        return
    jobs = [job for job in seen.world.slurm.jobs.values() if not job.over]
    waiting = {str(job.record["user_name"]) for job in jobs if job.state == "PENDING" and job.reservation}
    for user in sorted(kept.users - {"root"} - waiting):
        yield f"jobs of {user} may ask for reservation {kept.name}, and none of them waits for it"
    for job in jobs:
        if job.reservation and job.state != "PENDING":
            yield f"job {job.id} is {job.state} and asks for reservation {job.reservation}"
        elif job.reservation and job.record["user_name"] not in kept.users:
            yield f"job {job.id} waits for reservation {job.reservation}, and may not use it"
