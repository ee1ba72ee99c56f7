"""Looks at every drained node with each snapshot, begins what it needs next, and takes the answers."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from sentinel.alerts import needs_repair
from sentinel.config.modes import ACT as ACT_MODE
from sentinel.config.return_settings import filled
from sentinel.config.returns import Remedial, level_told
from sentinel.detect.own_host import of_own_clock
from sentinel.engine import notices
from sentinel.engine.events import DiagnosticEnded, NodeReturnAnswered
from sentinel.engine.node_return.next_step import Act, NodeNow, PutBack, Repair, RunTest, Wait, command, next_step
from sentinel.engine.node_return.records import after_failure, broken_again, drop, put
from sentinel.engine.node_return.state import (
    HAS_WORK,
    IN_SERVICE,
    UNDER_WAY,
    NodeReturn,
    Stage,
    is_out,
    plain_reason,
)
from sentinel.engine.state import State
from sentinel.engine.transition import OpenTicket, ReturnNode, RunDiagnostic, RunSiteCommand, Transition
from sentinel.model.records import NODE_STEPS, OURS, Fleet, NodeView, Outcome, Result, stable_id
from sentinel.model.vocabulary import DRAIN_LOST, POWERED_OFF, REBOOT_ASKED, REBOOTS
from sentinel.policy import in_maintenance

TEST = "return-test"  # ids of effects begin with these
ACT = "return-act"
PUT_BACK = "return"
TICKET = "ticket"
_ANSWER_S = 60.0  # beyond the deadline of an effect: then its answer is lost
_WRITE_S = 60.0  # a return takes two requests to slurmctld
_TICKETS = 10  # tries to open a ticket, one each ``retry_s``


def drained(state: State, out: Transition, incident: str, outcome: Outcome) -> None:
    """A step of a plan ended: remember the node that it drained, with what must be proven before it returns."""
    node, verdict, about = outcome.step.node, state.verdicts.get(incident), state.incidents.get(incident)
    if outcome.step.kind not in NODE_STEPS or outcome.result is not Result.DONE or outcome.reason or node is None:
        return  # a reason: somebody else had drained it
    if verdict is None or about is None:
        return
    before, now = state.returns.known.get(node), outcome.at
    if before is not None and before.stage not in IN_SERVICE:
        if before.incident != incident:
            put(state, out, node, broken_again(state, before, about, node, verdict.cause, now))
        return
    failures, failed = (before.failures, before.failed) if before is not None else ((), "")
    if before is not None and before.returned_at is not None:
        failures, failed = (*failures, now), f"drained again for {verdict.cause} after its return"
    jobs = {*(before.jobs if before is not None else ()), *((about.job,) if about.job is not None else ())}
    record = NodeReturn(
        incident, verdict.cause, now, now, jobs=tuple(sorted(jobs)), failures=failures, failed=failed,
        reboot=bool(outcome.data.get(REBOOT_ASKED)),
    )  # fmt: skip
    put(state, out, node, record)


def snapshot_taken(state: State, out: Transition, fleet: Fleet, now: datetime) -> None:
    """Begin what each node needs, if it may begin."""
    for node in sorted(state.returns.known):
        record = state.returns.known[node]
        if fleet.at <= record.changed_at:
            continue  # the snapshot is older than what is known here
        view = fleet.nodes.get(node)
        if view is None:
            if not fleet.may_have_node(node):
                drop(state, out, node, "Slurm has no such node any more")
        elif record.stage in IN_SERVICE:
            lost = is_out(view) and plain_reason(view.reason) == record.reason
            if lost and not _kept_from(state, record, view):
                _put_back(state, out, node, record, now)  # slurmctld was killed before it had saved the return
            else:
                _in_service(state, out, node, record, fleet, now)
        elif not is_out(view):
            _found_in_service(state, out, node, record, now)
        elif (seen := _with_reason(state, record, view)) is None:
            drop(state, out, node, "its drain is no longer Sentinel's")
        else:
            _look(state, out, node, _rebooted(seen, view), view, now)


def _with_reason(state: State, record: NodeReturn, view: NodeView) -> NodeReturn | None:
    """The record with its drain's reason; None: the drain is not ours, or not the one that we made."""
    reason = plain_reason(view.reason)
    if record.reason:
        return record if reason == record.reason else None
    name = reason.removeprefix(OURS).partition(" ")[0]
    ours = reason.startswith(OURS) and (name == record.incident or name in state.verdicts)
    return replace(record, reason=reason) if ours else None


def _rebooted(record: NodeReturn, view: NodeView) -> NodeReturn:
    """The record of a drained node whose reboot, asked for before its drain, is over: who returns it now is a person."""
    over = record.reboot and REBOOTS.isdisjoint(view.flags) and DRAIN_LOST not in view.flags
    return replace(record, reboot=False) if over else record


def _found_in_service(state: State, out: Transition, node: str, record: NodeReturn, now: datetime) -> None:
    if record.stage is Stage.RETURNING:  # the answer was lost
        _returned(state, out, node, record, now)
    else:
        drop(state, out, node, "returned to service by somebody else")


def _in_service(state: State, out: Transition, node: str, record: NodeReturn, fleet: Fleet, now: datetime) -> None:
    """End the probation, and forget the node when its failures no longer count."""
    settings = state.settings.returns
    assert record.returned_at is not None, "it was returned"
    if record.stage is Stage.PROBATION:
        over = now - record.returned_at >= timedelta(seconds=settings.probation_s)
        ran, ahead_s = timedelta(seconds=settings.probation_run_s), state.cluster.own_clock_ahead_s()
        if over or any(
            job.state == "running" and node in job.nodes and job.id not in record.jobs
            and job.started_at is not None
            and now - max(of_own_clock(job.started_at, ahead_s), record.returned_at) >= ran
            for job in fleet.jobs.values()
        ):  # fmt: skip
            out.say("probation-over", node=node)
            put(state, out, node, replace(record, stage=Stage.RETURNED, changed_at=now))
    elif now - record.returned_at > timedelta(seconds=settings.within_s):
        drop(state, out, node, "")


def _look(state: State, out: Transition, node: str, record: NodeReturn, view: NodeView, now: datetime) -> None:
    """One drained node: what is under way is waited for, else the next step begins."""
    if record.stage in UNDER_WAY:
        if record.until is None or now < record.until:
            return
        acted = Remedial.NONE if record.stage is Stage.ACTING else record.acted  # its answer was lost: done again
        record = replace(record, stage=Stage.WAITING, effect="", until=None, acted=acted)
    if record.stage is Stage.STARTING:
        started = _started(state, node, record)
        if not started and (record.until is None or now < _patient_until(state, record.until)):
            return
        record = replace(record, stage=Stage.WAITING, until=None)
        if not started:
            record = after_failure(
                state, record, f"not back within {state.settings.returns.boot_s:g} s of its reboot", now
            )
    if record.stage is Stage.REPAIR:
        _ticket(state, out, node, record, now)
        return
    if words := _kept_from(state, record, view):
        put(state, out, node, replace(record, stage=_waiting(record), waits=words))
        return
    row, settings = state.rules.returns.of_all(record.causes), state.settings.returns
    seen = _seen(state, node, view)
    free_since = None if seen.busy else (record.free_since or now)
    settled_s = state.settings.diagnostics.settled_s
    settled = free_since is not None and now - free_since >= timedelta(seconds=settled_s)
    needed, missing = next_step(record, row, settings, replace(seen, settled=settled), now)
    record = replace(record, free_since=free_since, missing=missing)
    match needed:
        case Wait(words, passed):
            stage = Stage.PASSED if passed else Stage.WAITING
            at = record.changed_at if stage is record.stage else now
            put(state, out, node, replace(record, stage=stage, changed_at=at, waits=words))
        case RunTest(level):
            _test(state, out, node, record, level, now)
        case Act(action):
            _act(state, out, node, record, action, now)
        case PutBack():
            _put_back(state, out, node, record, now)
        case Repair():
            _repair(state, out, node, record, now)


def _kept_from(state: State, record: NodeReturn, view: NodeView) -> str:
    """Why nothing may be done to the node now; empty if it may. The modes are those of its drain."""
    modes = state.settings.modes
    if state.paused:
        return "Sentinel is paused"
    if modes.of(view.partitions, record.cause).drain != ACT_MODE:
        return "draining is not in act mode here"
    if modes.respect_maintenance and in_maintenance(view):
        return "it is in a maintenance reservation: people work on it"
    return ""


def _patient_until(state: State, until: datetime) -> datetime:
    """The end of the wait for a rebooted node; later if this daemon was away and could not hear whether it came back."""
    boot = timedelta(seconds=state.settings.returns.boot_s)
    return until if state.watching_since is None else max(until, state.watching_since + boot)


def _waiting(record: NodeReturn) -> Stage:
    return record.stage if record.stage is Stage.PASSED else Stage.WAITING


def _seen(state: State, node: str, view: NodeView) -> NodeNow:
    agent = state.cluster.nodes.get(node)
    holds = ("running", "completing", "suspended", "configuring")
    job = next((job.id for job in state.cluster.jobs() if node in job.nodes and job.state in holds), None)
    busy = job is not None or view.state in HAS_WORK  # also of a job whose record cannot be read
    heard = agent is not None and agent.state == "heard"
    word = str(agent.verdict.get("word", "")) if agent is not None else ""
    sentence = str(agent.verdict.get("sentence", ""))[:200] if agent is not None else ""
    level = level_told(agent.verdict.get("level")) if agent is not None else 0
    commands = sum(1 for one in state.returns.known.values() if one.stage in (Stage.ACTING, Stage.STARTING))
    good, judged = word == "OK", _is_judged(state, node)
    return NodeNow(
        job, busy=busy, heard=heard, off=not POWERED_OFF.isdisjoint(view.flags), good=good, sentence=sentence, level=level,
        commands=commands, judged=judged,
    )  # fmt: skip


def _is_judged(state: State, node: str) -> bool:
    """Whether something that was heard of the node is being judged."""
    return any(node in known.nodes for name in state.judging if (known := state.incidents.get(name)) is not None)


def _boot(state: State, node: str) -> str:
    transit = state.watch.transits.get(node)
    return transit.boot if transit is not None else ""


def _started(state: State, node: str, record: NodeReturn) -> bool:
    """Whether the agent is heard from another boot of its host than before."""
    agent = state.cluster.nodes.get(node)
    return agent is not None and agent.state == "heard" and _boot(state, node) not in ("", record.boot)


def _test(state: State, out: Transition, node: str, record: NodeReturn, level: int, now: datetime) -> None:
    deadline_s = state.settings.diagnostics.deadline_s[level - 1]
    effect = RunDiagnostic(f"{TEST}:{node}:{now.isoformat()}", node, level, deadline_s)
    until = now + timedelta(seconds=deadline_s + _ANSWER_S)
    record = replace(record, stage=Stage.TESTING, level=level, effect=effect.id, until=until, waits="", changed_at=now)
    put(state, out, node, record)
    out.say("return-test-ordered", node=node, level=level, incident=record.incident)
    out.do(effect)


def _act(state: State, out: Transition, node: str, record: NodeReturn, action: Remedial, now: datetime) -> None:
    settings = state.settings.returns
    arguments = filled(command(settings, action), node, record.reason)
    effect = RunSiteCommand(
        f"{ACT}:{node}:{now.isoformat()}", node, action, arguments, settings.command_s, record.reason
    )
    until = now + timedelta(seconds=settings.command_s + _ANSWER_S)
    boot = _boot(state, node)
    put(state, out, node, replace(
        record, stage=Stage.ACTING, acted=action, effect=effect.id, until=until, boot=boot, waits="", changed_at=now
    ))  # fmt: skip
    out.say("return-command-ordered", node=node, action=action, incident=record.incident)
    out.do(effect)


def _put_back(state: State, out: Transition, node: str, record: NodeReturn, now: datetime) -> None:
    until = now + timedelta(seconds=_WRITE_S + _ANSWER_S)
    effect = ReturnNode(f"{PUT_BACK}:{node}:{now.isoformat()}", node, record.reason)
    begun = replace(record, stage=Stage.RETURNING, waits="", effect=effect.id, until=until, changed_at=now)
    put(state, out, node, begun)
    out.say("node-return", node=node, incident=record.incident)
    out.do(effect)


def _repair(state: State, out: Transition, node: str, record: NodeReturn, now: datetime) -> None:
    count = record.failures_since(now, state.settings.returns.within_s)
    record = replace(record, stage=Stage.REPAIR, changed_at=now, waits="repair", not_before=None)
    put(state, out, node, record)
    out.say("node-needs-repair", node=node, incident=record.incident, failures=count, warning=True)
    notices.send(state, out, needs_repair(node, record.incident, record.cause, record.since, count, record.failed, now))


def _ticket(state: State, out: Transition, node: str, record: NodeReturn, now: datetime) -> None:
    """Open the site's ticket, once; again while it fails, a few times."""
    settings = state.settings.returns
    wanted = settings.ticket_command or settings.ticket_url
    if not wanted or record.ticket == "sent" or record.tickets >= _TICKETS:
        return
    if (record.not_before is not None and now < record.not_before) or state.paused:
        return
    pause = timedelta(seconds=max(settings.retry_s, settings.command_s + _ANSWER_S))
    record = replace(record, tickets=record.tickets + 1, not_before=now + pause)
    put(state, out, node, record)
    data = {
        "id": stable_id("ticket", node, record.incident, record.since.isoformat())[:16],
        "node": node, "incident": record.incident, "cause": str(record.cause), "drained_at": record.since.isoformat(),
        "reason": record.reason, "failures": len(record.failures), "failed": record.failed, "jobs": list(record.jobs),
    }  # fmt: skip
    out.do(OpenTicket(f"{TICKET}:{node}:{now.isoformat()}", node, data))


# -- answers ---------------------------------------------------------------------------------------------------------------


def tested(state: State, out: Transition, event: DiagnosticEnded) -> bool:
    """Take the answer to a test; False: it was not ordered here."""
    record = _under_way(state, event.node, event.effect)
    if record is None:
        return event.effect.startswith(f"{TEST}:")
    over = replace(record, stage=Stage.WAITING, effect="", until=None, changed_at=event.at)
    if event.result == "pass":
        over = replace(over, passed=record.passed + 1, waits="", unclear="")
    elif event.result == "fail":
        found = next(
            (item.text for item in event.evidence if item.where.node == event.node and item.text), event.reason
        )
        over = after_failure(
            state, over, f"level {record.level} of the diagnostic: {found[:200] or 'failed'}", event.at
        )
    else:
        pause = timedelta(seconds=state.settings.returns.retry_s)
        words = f"level {record.level} gave no result: {event.reason[:200] or event.result}"
        over = replace(over, not_before=event.at + pause, unclear=words)
    put(state, out, event.node, over)
    out.say("return-test-answered", node=event.node, level=record.level, result=event.result, reason=event.reason)
    return True


def answered(state: State, out: Transition, event: NodeReturnAnswered) -> None:
    """A command, a return or a ticket ended."""
    if event.effect.startswith(f"{TICKET}:"):
        _ticket_answered(state, out, event)
        return
    record = _under_way(state, event.node, event.effect)
    if record is None:
        return
    if event.effect.startswith(f"{ACT}:"):
        _acted(state, out, event, record)
    elif event.result == "done":
        _returned(state, out, event.node, record, event.at)
    elif event.result == "refused":
        drop(state, out, event.node, event.reason)  # it is somebody else's now
    elif event.result == "failed":
        _not_returned(state, out, event, record)
    else:  # slurmctld did not answer: the next snapshot shows what became of it
        put(state, out, event.node, replace(record, until=event.at))


def _not_returned(state: State, out: Transition, event: NodeReturnAnswered, record: NodeReturn) -> None:
    """Slurm refuses: tried again after a pause, in which people see why. Whose drain it is the next snapshot shows."""
    out.say("node-return-refused", node=event.node, reason=event.reason, warning=True)
    pause = timedelta(seconds=state.settings.returns.retry_s)
    put(state, out, event.node, replace(
        record, stage=Stage.WAITING, effect="", until=None, changed_at=event.at, not_before=event.at + pause,
        unclear=event.reason[:200],
    ))  # fmt: skip


def _acted(state: State, out: Transition, event: NodeReturnAnswered, record: NodeReturn) -> None:
    settings, ok = state.settings.returns, event.result == "done"
    out.say(
        "return-command-ended", node=event.node, action=record.acted, result=event.result, reason=event.reason,
        warning=not ok,
    )  # fmt: skip
    over = replace(record, stage=Stage.WAITING, effect="", until=None, changed_at=event.at)
    if event.result == "refused":
        drop(state, out, event.node, event.reason)  # it is somebody else's now, or in service
        return
    if event.result == "unavailable":  # not begun, which says nothing of the node
        pause = timedelta(seconds=settings.retry_s)
        over = replace(over, acted=Remedial.NONE, not_before=event.at + pause, unclear=event.reason[:200])
    elif not ok:
        over = after_failure(state, over, f"{record.acted}_command: {event.reason[:200]}", event.at)
    elif record.acted is Remedial.REBOOT:
        over = replace(over, stage=Stage.STARTING, until=event.at + timedelta(seconds=settings.boot_s))
    put(state, out, event.node, over)


def _ticket_answered(state: State, out: Transition, event: NodeReturnAnswered) -> None:
    record = state.returns.known.get(event.node)
    if record is None or record.stage is not Stage.REPAIR:
        return
    sent = event.result == "done"
    out.say("ticket", node=event.node, result=event.result, reason=event.reason, warning=not sent)
    put(state, out, event.node, replace(record, ticket="sent" if sent else event.reason[:200] or event.result))


def _under_way(state: State, node: str, effect: str) -> NodeReturn | None:
    record = state.returns.known.get(node)
    return record if record is not None and record.stage in UNDER_WAY and record.effect == effect else None


def _returned(state: State, out: Transition, node: str, record: NodeReturn, now: datetime) -> None:
    out.say("node-returned", node=node, incident=record.incident)
    put(state, out, node, replace(
        record, stage=Stage.PROBATION, returned_at=now, changed_at=now, effect="", until=None, waits="", unclear=""
    ))  # fmt: skip
