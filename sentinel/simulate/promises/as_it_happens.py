"""Promises that are checked against everything that happens, before it has its effect."""

from __future__ import annotations

from collections.abc import Iterator

from sentinel.engine.audit import target_of
from sentinel.model.records import OURS, StepKind
from sentinel.policy.shares import at_most
from sentinel.simulate.crossings import SLURM_DEADLINE_S
from sentinel.simulate.happened import (
    AttemptBegan,
    Bug,
    DaemonWrote,
    Happened,
    NoticeArrived,
    ResumeWritten,
    SlurmWrite,
)
from sentinel.simulate.observer import Observer, lends, number_of, puts_back, stops, takes_out
from sentinel.simulate.promises.node_returns import record_of

HOUR_S = 3600.0
_SEEN_S = 0.2  # from the moment at which slurmctld answers to that at which it gets what follows from the answer
_ASKED_AGAIN_S = 50.0  # asked when the news is 10 s old; then four requests of slurmctld, of 10 s at most each
_SNAPSHOT_S = 5.0  # oldest snapshot of Slurm that something is decided with
_DEFERRED_S = 86_400.0  # eligible later than this: deferred by Sentinel, which defers by 30 days
# A failure is judged this long after it at the latest, when nothing is in the way; the window ends there
_JUDGED_S = 3.0


def no_bug(_seen: Observer, what: Happened) -> Iterator[str]:
    """The daemon meets no error of its own."""
    if isinstance(what, Bug):
        yield what.text


# -- 1 and 2: what is not known, and what users say ----------------------------------------------------------------


def unknown_drains_nobody(seen: Observer, what: Happened) -> Iterator[str]:
    """What is missing, late or unreadable never drains a node; nor is one set down that is there again."""
    if isinstance(what, SlurmWrite) and what.verb == "set_node" and what.fields["state"] == "DOWN":
        back_s = seen.answers_since.get(what.target)
        if (
            back_s is not None
            and seen.world.slurm.nodes[what.target].alive
            and seen.world.now_s - back_s > _ASKED_AGAIN_S
        ):
            yield f"{what.target} is set down, and answers again since {back_s:.1f} s"
    if not isinstance(what, SlurmWrite) or not takes_out(what) or what.target in {*seen.broken, *seen.accused}:
        return
    if seen.world.now_s - seen.resumed.get(what.target, -1e9) <= _flight_s(seen):
        return  # repaired and put back between the requests of one step
    if what.task is None or not seen.seems_forgotten(what.target, what.task.incident.id):
        yield f"{what.target} is taken out of service and nothing broke there: {what.fields['reason']}"


def never_drained_on_user_words(seen: Observer, what: Happened) -> Iterator[str]:
    """What a user's program prints never drains a node."""
    if isinstance(what, SlurmWrite) and takes_out(what) and what.target in seen.accused - seen.broken.keys():
        yield f"{what.target} is taken out of service on the words of a job's log: {what.fields['reason']}"


# -- 3: nothing lost, nothing twice --------------------------------------------------------------------------------


def saved_before_done(seen: Observer, what: Happened) -> Iterator[str]:
    """Nothing is asked of Slurm before the store holds the step that asks for it."""
    if isinstance(what, SlurmWrite) and puts_back(what):
        stage = record_of(seen, what.target).get("stage")
        if stage not in ("returning", "probation"):  # its answer was lost, and a snapshot showed it before
            yield f"{what.target} is put back into service, and its record says {stage}"
    elif isinstance(what, SlurmWrite) and what.verb != "notify":
        if what.task is None and lends(what):
            return  # compared with each snapshot, see ``loans_end``
        if what.task is None:
            yield f"{what.verb} {what.target} belongs to no step of a plan"
        elif what.task.step.key(what.task.incident.id) not in seen.world.store.steps:
            yield f"{what.verb} {what.target}: the step {what.task.step.kind} is not in the ledger"


def audited_before_done(seen: Observer, what: Happened) -> Iterator[str]:
    """Nothing is asked of Slurm before the audit says that it is begun."""
    if isinstance(what, SlurmWrite) and puts_back(what):
        if ("", "return", f"node {what.target}") not in seen.world.store.audited:
            yield f"{what.target} is put back into service: the audit has no entry of it"
    elif isinstance(what, SlurmWrite) and what.task is None and lends(what):
        if not any(action == "spares" for _, action, _ in seen.world.store.audited):
            yield f"{what.verb} {what.target}: the audit has no entry of it"
    elif isinstance(what, SlurmWrite) and what.verb != "notify" and what.task is not None:
        step, incident = what.task.step, what.task.incident.id
        if (incident, step.kind, target_of(step)) not in seen.world.store.audited:
            yield f"{what.verb} {what.target}: the audit has no entry of it"


def nothing_twice(seen: Observer, what: Happened) -> Iterator[str]:
    """An incident stops a job once and drains a node once, however often the daemon is killed.

    What slurmctld may not have saved when it died, or the daemon not have known as done, may be done again: if a person puts
    the node back before a daemon looks, nothing tells that from a drain that was forgotten or never arrived.
    """
    if not isinstance(what, SlurmWrite) or what.task is None:
        return
    incident = what.task.incident.id
    if stops(what) and what.job is not None:
        before = [stop for stop in seen.stops if stop[1] == incident and stop[2] == what.job.id]
        if before and before[-1][3] != what.job.attempt:
            yield f"incident {incident} stops job {what.job.id} again, in attempt {what.job.attempt}"
    if takes_out(what):
        back = seen.resumed.get(what.target, -1.0)
        again = any(d.node == what.target and d.incident == incident and d.at_s < back for d in seen.drains)
        just = seen.world.now_s - back <= _flight_s(seen)  # between the requests of one step
        if again and not just and not seen.seems_forgotten(what.target, incident):
            yield f"incident {incident} drains {what.target} again, which a person put back into service"


def one_daemon_acts(_seen: Observer, what: Happened) -> Iterator[str]:
    """Of two daemons the one with the lease changes something; one that goes on after it has lost it changes nothing.

    A request that slurmctld has already takes effect later: it counts when it is sent.
    """
    if isinstance(what, DaemonWrote) and not what.active:
        yield f"{what.what} by {what.daemon}, which has lost the lease"


# -- 4: blast radius -----------------------------------------------------------------------------------------------


def blast_radius(seen: Observer, what: Happened) -> Iterator[str]:
    """Drains keep to their budgets: in all, in an hour, of a partition; the last healthy nodes stay.
    One that slurmctld forgot is done again. A node counts as put back by a person although it forgot that."""
    if not isinstance(what, SlurmWrite) or not takes_out(what) or what.node is None:
        return
    limits, nodes, now_s = seen.world.settings.limits, seen.world.slurm.nodes, seen.world.now_s
    if what.task is not None:
        number = what.task.incident.id
        before = [drain.at_s for drain in seen.drains if (drain.node, drain.incident) == (what.target, number)]
        ours_s = min(before, default=now_s)
        if any(at_s > ours_s for at_s in seen.slurmctld_died):
            return
    drained_s = {drain.node: drain.at_s for drain in seen.drains}  # when last
    ours = [n for n in seen.ours() if n != what.target and seen.resumed.get(n, -1.0) <= drained_s.get(n, now_s)]
    if len(ours) + 1 > limits.drain_count:
        yield f"{what.target} is the {len(ours) + 1}th node out of service, {limits.drain_count} are allowed"
    hour = {drain.node for drain in seen.drains if now_s - drain.at_s <= HOUR_S} | {what.target}
    if len(hour) > limits.drain_per_hour:
        yield f"{what.target} is the {len(hour)}th node drained in an hour, {limits.drain_per_hour} are allowed"
    under = [name for name in ours if what.node.topology and nodes[name].topology == what.node.topology]
    if len(under) + 1 > limits.drain_per_switch:
        yield f"{what.target} is the {len(under) + 1}th node out under its switch, {limits.drain_per_switch} are allowed"
    for partition in what.node.partitions:
        members = [node for node in nodes.values() if partition in node.partitions]
        most = max(1, at_most(limits.drain_fraction, len(members)))
        out = [name for name in ours if partition in nodes[name].partitions]
        if len(out) + 1 > most:
            yield f"{what.target}: {len(out) + 1} nodes of partition {partition} are out, {most} are allowed"
        left = [node for node in members if not node.out and node.name != what.target]
        if len(left) < limits.keep_healthy:
            yield f"{what.target} is among the last {limits.keep_healthy} healthy nodes of partition {partition}"


def breaker(seen: Observer, what: Happened) -> Iterator[str]:
    """When many nodes fail at once, they are not drained one after the other."""
    if not isinstance(what, SlurmWrite) or not takes_out(what):
        return
    limits = seen.world.settings.limits
    failed = {name: times[0][0] for name, times in seen.broken.items()}
    out = {drain.node for drain in seen.drains} | {what.target}
    since_s = seen.world.now_s - limits.breaker_window_s + _JUDGED_S
    near = [name for name in out if failed.get(name, -1.0) >= since_s]
    if len(near) >= limits.breaker_nodes:
        yield f"{what.target} is the {len(near)}th node drained of those that failed within {limits.breaker_window_s:g} s"
    nodes = seen.world.slurm.nodes
    place = nodes[what.target].topology if what.target in nodes else ""
    under = [name for name in near if place and nodes[name].topology == place]
    if len(under) >= limits.breaker_switch_nodes:
        yield f"{what.target} is the {len(under)}th node drained of those under its switch that failed together"


def no_fruitless_restarts(seen: Observer, what: Happened) -> Iterator[str]:
    """A job that gains no step is not restarted again and again."""
    if not isinstance(what, AttemptBegan) or seen.releases.get(what.job) is None:
        return
    limits = seen.world.settings.limits
    ours = [stop for stop in seen.stops if stop[2] == what.job]
    if len(ours) > limits.restarts_per_job:
        yield f"job {what.job} is restarted for the {len(ours)}th time"
    fruitless = seen.world.programs.fruitless(what.job)
    most = 2 * limits.restarts_without_progress  # of different causes; of one cause half as often
    if fruitless > most:
        yield f"job {what.job} begins attempt {what.attempt} after {fruitless} attempts without a step gained"


# -- 5: only what is ours ------------------------------------------------------------------------------------------


def only_what_is_ours(seen: Observer, what: Happened) -> Iterator[str]:
    """Drains, holds, cancellations and node lists of people and other tools are left as they are."""
    if not isinstance(what, SlurmWrite):
        return
    if what.verb == "set_node" and what.node is not None:
        theirs = what.node.drained and not what.node.reason.startswith(OURS)
        # A write acts on what was seen a request ago: Slurm knows no "only if it is still so".
        just = seen.world.now_s - seen.drained_by_people.get(what.target, -1e9) <= _flight_s(seen)
        if theirs and not just and puts_back(what):
            yield f"{what.target} is put back into service, and was drained by somebody else: {what.node.reason}"
        if theirs and not just and not puts_back(what) and what.fields["reason"] != what.node.reason:
            yield f"{what.target}: the reason {what.node.reason!r} of somebody else is replaced"
    if what.job is None:
        return
    cancelled_s = seen.cancelled.get(what.job.id)
    # Slurm refuses a release that was on its way then; a requeue would bring the job back, unless it says "Incomplete".
    late = stops(what) or (
        what.verb == "release" and cancelled_s is not None and seen.world.now_s - cancelled_s > _flight_s(seen)
    )
    if cancelled_s is not None and late:
        yield f"{what.verb} of job {what.job.id}, which its user cancelled"
    if what.job.id in seen.held and what.job.held and what.verb == "release":
        yield f"job {what.job.id} is released, and a person holds it"
    spec = seen.world.spec_of(what.job.id)
    if "ExcNodeList" in what.fields:
        lost = set(spec.excluded) - set(what.fields["ExcNodeList"].split(","))
        if lost:
            yield f"job {what.job.id} was submitted without {','.join(sorted(lost))}, and may get it now"
    if "ReqNodeList" in what.fields and set(spec.required) - set(what.fields["ReqNodeList"].split(",")):
        yield f"job {what.job.id} was submitted for {','.join(spec.required)}, and need not get it now"


def done_stays_done(seen: Observer, what: Happened) -> Iterator[str]:
    """A job that was done before anything happened does not run again, as far as slurmctld knows that it was."""
    if not isinstance(what, SlurmWrite) or not stops(what) or what.job is None:
        return
    attempt, state, at_s = seen.ended.get(what.job.id, (-1, "", 0.0))
    before = any(one.at_s <= at_s for one in seen.world.history.happenings)
    if (attempt, state) == (what.job.restarts, "COMPLETED") and not before and not what.job.ghost:
        yield f"job {what.job.id} was done, and is requeued"


def left_to_people(seen: Observer, what: Happened) -> Iterator[str]:
    """A node in a maintenance reservation is not drained and not put back into service: people work on it.

    What was planned before the reservation began is still done.
    """
    since_s = seen.maintained.get(what.target) if isinstance(what, SlurmWrite) and what.verb == "set_node" else None
    if since_s is None or not isinstance(what, SlurmWrite):
        return
    planned_s = (
        seen.world.now_s
        if what.task is None
        else (what.task.plan.at - seen.world.own_now(-seen.world.now_s)).total_seconds()
    )
    if planned_s - since_s > _SNAPSHOT_S + _flight_s(seen):
        yield f"{what.target} is set to {what.fields['state']}, and is in a maintenance reservation since {since_s:.1f} s"


def _flight_s(seen: Observer) -> float:
    """From slurmctld's answer to the moment at which it gets what follows from that."""
    return SLURM_DEADLINE_S if seen.world.crossings.slurm == "slow" else _SEEN_S


def our_reason(_seen: Observer, what: Happened) -> Iterator[str]:
    """A drain of ours says so, and names its incident."""
    if not isinstance(what, SlurmWrite) or not takes_out(what) or what.task is None:
        return
    if not what.fields["reason"].startswith(f"{OURS}{what.task.incident.id}"):
        yield f"{what.target} is drained with the reason {what.fields['reason']!r}"


# -- 6: proof before return ----------------------------------------------------------------------------------------


def not_offered_back(seen: Observer, what: Happened) -> Iterator[str]:
    """A job is not let go to a node again that was known to have broken under it.

    Nothing can stop a request that is on its way while the node is convicted: ``leaves-bad-nodes`` is about that.
    """
    if not isinstance(what, AttemptBegan):
        return
    incident = seen.releases.get(what.job)
    verdict = seen.world.store.verdicts.get(incident) if incident is not None else None
    failed = seen.world.store.incidents[incident].attempt if verdict is not None and incident is not None else None
    forgotten = failed is not None and what.attempt <= failed and bool(seen.slurmctld_died)  # what was let go
    if verdict is not None and what.job not in seen.touched and not forgotten:
        back = {node for node in what.nodes if seen.back_since(node) >= 0.0}  # see on_probation
        at, never = seen.let_go_at[what.job], seen.world.own_now()
        known = {
            node for node in verdict.drain if seen.world.store.convicted_at.get((incident or "", node), never) < at
        }
        again = sorted((known & set(what.nodes) & seen.convicted.keys()) - back)
        if again:
            yield f"job {what.job} begins attempt {what.attempt} on {','.join(again)}, which broke under it"


# -- the way back to work ------------------------------------------------------------------------------------------


def resumed_from_valid(seen: Observer, what: Happened) -> Iterator[str]:
    """The resume point names the newest checkpoint that can be read and is from before the numbers went bad."""
    if not isinstance(what, ResumeWritten) or "SENTINEL_RESUME_STEP" not in what.values:
        return
    step = int(what.values["SENTINEL_RESUME_STEP"])
    good = seen.world.programs.good(what.job)
    if step not in good:
        yield f"job {what.job} is to resume from step {step}, which cannot be read, or holds bad numbers"
    elif step < (newest := min(max(good), seen.good_then.get(what.job, max(good)))):  # its run may still save
        yield f"job {what.job} is to resume from step {step}, and step {newest} is good"


def resume_point_first(seen: Observer, what: Happened) -> Iterator[str]:
    """A job is let go only after its resume point is written, for the attempt that follows."""
    if not isinstance(what, SlurmWrite) or what.task is None or what.job is None:
        return
    task = what.task
    waits_on = what.job.eligible - seen.world.slurm.time_s() > _DEFERRED_S  # a release leaves that as it is
    lets_go = what.verb == "release" and not waits_on
    lets_go = lets_go or (what.verb == "set_job" and what.fields.get("StartTime") == "now")
    if task.step.kind is not StepKind.RELEASE or not lets_go or what.job.state == "RUNNING":
        return  # slurmctld forgot the requeue, and lets nothing go
    written = seen.world.programs.resume.get(what.job.id, {})
    if written.get("SENTINEL_INCIDENT") != task.incident.id:
        yield f"job {what.job.id} is let go without a resume point of incident {task.incident.id}"
    elif written.get("SENTINEL_ATTEMPT") != f"{what.job.restarts}":
        if seen.world.now_s - max(seen.slurmctld_died, default=-1e9) <= SLURM_DEADLINE_S:
            return  # it forgot the requeue after this request's look at the job
        yield f"job {what.job.id}: the resume point is for attempt {written.get('SENTINEL_ATTEMPT')}"


# -- 9 and 10: explained, and told ---------------------------------------------------------------------------------


def explained(_seen: Observer, what: Happened) -> Iterator[str]:
    """Every action and every message says why."""
    if isinstance(what, SlurmWrite) and takes_out(what) and what.task is not None and not what.task.verdict.grounds:
        yield f"{what.target} is drained without a ground"
    if isinstance(what, NoticeArrived) and what.notice.incident:
        data = what.notice.data
        if not what.notice.title or not data.get("cause"):
            yield f"the notice of incident {what.notice.incident} names no cause"
        if data.get("refusal") and f"Not done ({data['refusal']}): " not in what.notice.body:
            yield f"the notice of incident {what.notice.incident} does not say why nothing is done"


def one_notice(seen: Observer, what: Happened) -> Iterator[str]:
    """An incident is one thread: each message has its number, comes once, and tells another stage than the one before, or
    asks for more."""
    if not isinstance(what, NoticeArrived) or not what.notice.incident:
        return
    number, stages = number_of(what.notice), what.notice.data.get("told")
    if seen.notices[what.notice.incident].get(number, what.notice).id != what.notice.id:
        yield f"incident {what.notice.incident} has two messages with number {number}"
    before = seen.notices[what.notice.incident].get(number - 1)
    same = isinstance(stages, list) and len(stages) > 1 and stages[-1] == stages[-2]
    asks_more = before is None or str(what.notice.data.get("asked")) > str(before.data.get("asked"))
    if isinstance(stages, list) and same and not (stages[-1] == "asked" and asks_more):
        yield f"incident {what.notice.incident} is told twice to be {stages[-1]}"
    again = seen.arrived[what.notice.id] + 1 - 1 - len(seen.world.crossings.cut_at) - (seen.world.lives - 1)
    if again > 0:
        yield f"the notice of incident {what.notice.incident} arrives again, and no answer was lost"


def true_words(seen: Observer, what: Happened) -> Iterator[str]:
    """A message says what has happened, not what is hoped."""
    if not isinstance(what, NoticeArrived):
        return
    drained = what.notice.data.get("drained")
    for node in drained if isinstance(drained, list) else ():
        there = seen.world.slurm.nodes.get(str(node))
        did = any(drain.node == node for drain in seen.drains)  # slurmctld may have forgotten it since
        if there is not None and not there.out and not did:
            yield f"the notice of incident {what.notice.incident} says that {node} is drained, and it never was"
