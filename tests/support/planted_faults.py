"""Faults planted into the code, one for each promise, each by patching one thing: ``sentinel explore`` has to find them.

Short lists that show them: ``tests/unit/simulate/explore/test_planted_faults.py``; ``tests/bench/planted_faults.py``
counts after how many histories of a plain run each is found.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from sentinel import policy
from sentinel.actions import ACTIONS, Means, requeue
from sentinel.adapters.slurm.writer import Writer
from sentinel.correlate import incidents
from sentinel.daemon.effects import checkpoints
from sentinel.engine import judging, loading, notices, recovery
from sentinel.engine.audit import AuditTrail
from sentinel.engine.ledger import Ledger
from sentinel.engine.node_return.state import NodeReturns
from sentinel.engine.reconcile import exclusions, jobs_on_bad_nodes, situations, spares
from sentinel.engine.watch import jobs, nodes
from sentinel.model.records import IncidentState, Kind, Outcome, Plan, StepKind, Task, Verdict
from sentinel.policy.permissions import Permissions
from sentinel.policy.restarts import JobSteps
from sentinel.simulate.explore import SAME_END
from sentinel.simulate.two_daemons import DaemonsLease

Patch = pytest.MonkeyPatch


def instead_of(patch: Patch, kind: StepKind, action: Callable[[Task, Means], Any]) -> None:
    patch.setitem(ACTIONS, kind, action)  # type: ignore[arg-type]


async def claimed(task: Task, means: Means) -> Outcome:
    return means.done(task)


def judged(patch: Patch, change: Callable[[Any, Verdict], Verdict]) -> None:
    real = judging.classify
    patch.setattr(judging, "classify", lambda incident, **how: change(incident, real(incident, **how)))


def planned(patch: Patch, change: Callable[[Plan], Plan]) -> None:
    real = policy.decide
    patch.setattr(policy, "decide", lambda *what, **how: change(real(*what, **how)))


def broken_messages(patch: Patch) -> None:
    def compose(*_what: Any, **_how: Any) -> None:
        raise KeyError("step")

    patch.setattr(notices, "compose", compose)


def unreadable_convicts(patch: Patch) -> None:
    unread = {Kind.UNREADABLE, Kind.PROBE_HUNG}
    patch.setattr(incidents, "QUIET", incidents.QUIET - unread)

    def change(incident: Any, verdict: Verdict) -> Verdict:
        nodes = tuple({item.where.node for item in incident.evidence if item.kind in unread and item.where.node})
        return dataclasses.replace(verdict, drain=(*verdict.drain, *nodes), confidence=1.0) if nodes else verdict

    judged(patch, change)


def words_convict(patch: Patch) -> None:
    def change(incident: Any, verdict: Verdict) -> Verdict:
        named = {item.where.node for item in incident.evidence if item.where.node} if not verdict.drain else ()
        return dataclasses.replace(verdict, drain=(*verdict.drain, *sorted(named)), confidence=1.0)

    judged(patch, change)


def nothing_in_the_audit(patch: Patch) -> None:
    patch.setattr(AuditTrail, "note", lambda *_: None)


def nothing_in_the_ledger(patch: Patch) -> None:
    real = Ledger.intend

    def intend(self: Ledger, *what: Any) -> bool:
        real(self, *what)
        return False

    patch.setattr(Ledger, "intend", intend)


def drains_again(patch: Patch) -> None:
    real = ACTIONS[StepKind.RELEASE]

    async def release(task: Task, means: Means) -> Outcome:
        outcome = await real(task, means)
        await asyncio.sleep(10.0)  # of virtual time
        for node in task.verdict.drain:
            await means.writer.drain(node, task.reason)
        return outcome

    instead_of(patch, StepKind.RELEASE, release)


def stops_again(patch: Patch) -> None:
    real = ACTIONS[StepKind.RELEASE]

    async def release(task: Task, means: Means) -> Outcome:
        outcome = await real(task, means)
        await asyncio.sleep(10.0)
        assert isinstance(means.writer, Writer)
        await means.writer.verbs.requeue_hold(f"{task.job}", incomplete=False)
        return outcome

    instead_of(patch, StepKind.RELEASE, release)


def unread_records_end_convictions(patch: Patch) -> None:
    patch.setattr("sentinel.policy.drains._without_record", lambda *_what: ())


def plans_no_drain(patch: Patch) -> None:
    def change(plan: Plan) -> Plan:
        return dataclasses.replace(plan, steps=tuple(step for step in plan.steps if step.kind is not StepKind.DRAIN))

    planned(patch, change)


def a_start_forgets(patch: Patch) -> None:
    patch.setattr(loading, "carry_on", lambda *_what: None)


def the_lease_is_by_the_clock_only(patch: Patch) -> None:
    """A daemon that was stopped believes what its clock says; no transaction is rolled back."""
    patch.setattr(DaemonsLease, "require_lease", lambda _self: None)


def no_partition_limit(patch: Patch) -> None:
    patch.setattr("sentinel.policy.drains._partition_limit", lambda *_what: None)


def no_breaker(patch: Patch) -> None:
    patch.setattr(situations, "failing_together", lambda *_what: frozenset())


def any_number_of_restarts(patch: Patch) -> None:
    patch.setattr("sentinel.policy.restarts.no_progress", lambda *_what: "")


def requeues_whatever_it_finds(patch: Patch) -> None:
    async def requeue(task: Task, means: Means) -> Outcome:
        assert isinstance(means.writer, Writer)
        await means.writer.verbs.requeue_hold(f"{task.job}", incomplete=False)
        return means.done(task)

    instead_of(patch, StepKind.REQUEUE_HOLD, requeue)


def drains_only(patch: Patch) -> None:
    patch.setattr("sentinel.policy.plan.job_steps", lambda *_what: JobSteps())


def unsigned_drains(patch: Patch) -> None:
    patch.setattr(Task, "reason", property(lambda _task: "broken"))


def returns_without_proof(patch: Patch) -> None:
    real = ACTIONS[StepKind.RELEASE]

    async def release(task: Task, means: Means) -> Outcome:
        outcome = await real(task, means)
        for node in task.verdict.drain:
            await means.writer.undrain(node)
        return outcome

    instead_of(patch, StepKind.RELEASE, release)


def offered_at_once(patch: Patch) -> None:
    patch.setattr(NodeReturns, "on_probation", lambda *_what: ())


def spared_in_turn(patch: Patch) -> None:
    """The plan leaves both out, and the list that is written while the job waits does not."""
    patch.setattr(exclusions, "_in_turn", lambda *_what: ())


def neither_drained_nor_excluded(patch: Patch) -> None:
    instead_of(patch, StepKind.DRAIN, claimed)
    instead_of(patch, StepKind.EXCLUDE, claimed)


def observing_is_acting(patch: Patch) -> None:
    patch.setattr(Permissions, "of", lambda *_what: "act")


def one_yes_for_all(patch: Patch) -> None:
    def approved(self: Permissions, _name: str) -> bool:
        return any(answer.approved for answer in self.situation.answers)

    patch.setattr(Permissions, "_approved", approved)


def deaf_to_people(patch: Patch) -> None:
    patch.setattr(Permissions, "_approved", lambda *_what: False)


def deaf_to_the_pause(patch: Patch) -> None:
    real = recovery.advance

    def advance(state: Any, *what: Any) -> None:
        paused, state.paused = state.paused, False
        real(state, *what)
        state.paused = paused

    patch.setattr(recovery, "advance", advance)


def every_checkpoint_is_good(patch: Patch) -> None:
    real = checkpoints.choose

    def choose(candidates: Sequence[Any], **how: Any) -> Any:
        return real([dataclasses.replace(one, valid=True) for one in candidates], **how)

    patch.setattr(checkpoints, "choose", choose)


def resume_point_last(patch: Patch) -> None:
    def change(plan: Plan) -> Plan:
        late = [step for step in plan.steps if step.kind is StepKind.WRITE_RESUME]
        return dataclasses.replace(plan, steps=(*(step for step in plan.steps if step not in late), *late))

    planned(patch, change)


def without_grounds(patch: Patch) -> None:
    judged(patch, lambda _incident, verdict: dataclasses.replace(verdict, grounds=()))


def told_again(patch: Patch) -> None:
    real = notices.notify

    def notify(state: Any, out: Any, incident: str, *what: Any) -> None:
        state.told.pop(incident, None)
        real(state, out, incident, *what)

    patch.setattr(notices, "notify", notify)


def nobody_is_told(patch: Patch) -> None:
    patch.setattr(notices, "send", lambda *_what: None)


def never_corrected(patch: Patch) -> None:
    real = notices.next_stage
    patch.setattr(notices, "next_stage", lambda thread, story: real(thread, story) if thread is None else None)


def drains_in_words_only(patch: Patch) -> None:
    instead_of(patch, StepKind.DRAIN, claimed)


def never_lets_go(patch: Patch) -> None:
    instead_of(patch, StepKind.RELEASE, claimed)


def no_reservation_is_seen(patch: Patch) -> None:
    patch.setattr("sentinel.policy.drains.in_maintenance", lambda _node: False)


def no_look_at_jobs_on_bad_nodes(patch: Patch) -> None:
    patch.setattr(jobs_on_bad_nodes, "snapshot_taken", lambda *_what: None)


def never_in_its_allocation(patch: Patch) -> None:
    patch.setattr("sentinel.policy.restarts.in_allocation", lambda *_what: ((), ""))


def never_asks_whether_it_was_done(patch: Patch) -> None:
    patch.setattr(requeue, "was_done", lambda *_what: False)


def silence_convicts(patch: Patch) -> None:
    """An agent that is dead counts as a node that is gone, whatever slurmd answers."""
    real = nodes.probed

    def probed(state: Any, out: Any, event: Any) -> None:
        real(state, out, dataclasses.replace(event, refusal="no answer"))

    patch.setattr(nodes, "probed", probed)


def silent_jobs_are_not_watched(patch: Patch) -> None:
    patch.setattr(jobs, "check", lambda *_what: None)


def silent_nodes_are_not_watched(patch: Patch) -> None:
    patch.setattr(nodes, "check", lambda *_what: None)


def ends_of_running_jobs_are_only_noted(patch: Patch) -> None:
    patch.setattr(judging, "is_over", lambda incident, _plan: incident.state is IncidentState.CLOSED)


def lets_go_whoever_holds(patch: Patch) -> None:
    async def release(task: Task, means: Means) -> Outcome:
        await means.writer.update_job(task.job, start_now=True)
        await means.writer.release(task.job)
        return means.done(task)

    instead_of(patch, StepKind.RELEASE, release)


def loans_never_end(patch: Patch) -> None:
    patch.setattr(spares, "compare", lambda *_: None)


def lends_to_anybody(patch: Patch) -> None:
    patch.setattr(spares, "may_use", lambda state, _incident, _job: state.settings.recovery.spares)


# by promise
PLANTED: dict[str, Callable[[Patch], None]] = {
    "no-bug": broken_messages,
    "unknown-drains-nobody": unreadable_convicts,
    "never-drained-on-user-words": words_convict,
    "saved-before-done": nothing_in_the_ledger,
    "audited-before-done": nothing_in_the_audit,
    "nothing-twice": stops_again,
    "one-daemon-acts": the_lease_is_by_the_clock_only,
    "nothing-lost": plans_no_drain,
    SAME_END: a_start_forgets,
    "blast-radius": no_partition_limit,
    "breaker": no_breaker,
    "no-fruitless-restarts": any_number_of_restarts,
    "left-to-people": no_reservation_is_seen,
    "brought-back": drains_only,
    "only-what-is-ours": requeues_whatever_it_finds,
    "done-stays-done": requeues_whatever_it_finds,
    "holds-stay": requeues_whatever_it_finds,
    "our-reason": unsigned_drains,
    "proof-before-return": returns_without_proof,
    "not-offered-back": neither_drained_nor_excluded,
    "probation": offered_at_once,
    "not-in-turn": spared_in_turn,
    "leaves-bad-nodes": no_look_at_jobs_on_bad_nodes,
    "observe-changes-nothing": observing_is_acting,
    "nothing-unapproved": one_yes_for_all,
    "approved-is-done": deaf_to_people,
    "pause-begins-nothing": deaf_to_the_pause,
    "stays-in-its-allocation": never_in_its_allocation,
    "resumed-from-valid": every_checkpoint_is_good,
    "resume-point-first": resume_point_last,
    "explained": without_grounds,
    "one-notice": told_again,
    "told": nobody_is_told,
    "told-to-the-end": never_corrected,
    "true-words": drains_in_words_only,
    "comes-to-rest": never_lets_go,
    "lends-to-who-lost-a-node": lends_to_anybody,
    "loans-end": loans_never_end,
}
