"""Changes what is remembered of a drained node, and saves it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from datetime import datetime, timedelta

from sentinel.config.returns import Remedial
from sentinel.engine.node_return.state import IN_SERVICE, KEPT, NodeReturn, Stage, written
from sentinel.engine.reconcile import node_proof
from sentinel.engine.state import State
from sentinel.engine.transition import Transition
from sentinel.model.changes import SettingChanged
from sentinel.model.records import Cause, Incident, Kind, Trust, Verdict, stable_id
from sentinel.policy.drains import sure_enough

_TESTED = frozenset({Stage.TESTING, Stage.PASSED})


def put(state: State, out: Transition, node: str, record: NodeReturn) -> None:
    if state.returns.known.get(node) != record:
        state.returns.known[node] = record
        _save(state, out)


def drop(state: State, out: Transition, node: str, words: str) -> None:
    del state.returns.known[node]
    _save(state, out)
    out.say("node-return-left", node=node, reason=words)


def _save(state: State, out: Transition) -> None:
    out.save(SettingChanged(KEPT, written(state.returns.known)))


def after_failure(state: State, record: NodeReturn, words: str, now: datetime) -> NodeReturn:
    """The record after a failure: the next round begins anew, after a pause."""
    pause = timedelta(seconds=state.settings.returns.retry_s)
    return replace(
        record, failures=(*record.failures, now), failed=words, passed=0, acted=Remedial.NONE, not_before=now + pause,
        waits=words, unclear="",
    )  # fmt: skip


def judged(
    state: State, out: Transition, incident: Incident, verdict: Verdict, now: datetime, *, counts: bool = True
) -> None:
    """An incident was judged: nodes that it convicts and that are out of service have to be proven good of that, too.

    Args:
        counts: see ``broken_again``; not where the node only says again what was told already.
    """
    if not sure_enough(verdict, state.settings.judgement.act_confidence):
        return
    for node in verdict.drain:
        record = state.returns.known.get(node)
        if record is not None and record.stage not in IN_SERVICE:
            put(state, out, node, broken_again(state, record, incident, node, verdict.cause, now, counts=counts))


def heard_late(
    state: State,
    out: Transition,
    incident: Incident,
    news: Collection[str],
    look: Callable[[Incident], Verdict],
    now: datetime,
) -> None:
    """Evidence came late to a closed incident, which nobody judges any more: more of the same failure, or a graver one."""
    for node in {item.where.node for item in incident.evidence if item.id in news}:
        record = state.returns.known.get(node or "")
        if node is None or record is None or record.stage in IN_SERVICE:
            continue
        own = tuple(item for item in incident.evidence if item.id in news and item.where.node == node)
        # An id of this evidence alone: verdicts are kept by id and number of items.
        own_id = stable_id("late", incident.id, *(item.id for item in own))
        alone = replace(incident, id=own_id, job=None, attempt=None, nodes=(node,), evidence=own)
        verdict = look(alone)
        if node in verdict.drain and sure_enough(verdict, state.settings.judgement.act_confidence):
            put(state, out, node, broken_again(state, record, alone, node, verdict.cause, now, counts=False))


def broken_again(
    state: State, record: NodeReturn, incident: Incident, node: str, cause: Cause, now: datetime, *, counts: bool = True
) -> NodeReturn:
    """The record of a node that is out and is convicted once more: what passed before proves nothing of a later fault.

    Args:
        counts: whether a fault after its first test, reset or reboot is a failure; if not, the round only begins anew.
    """
    broke_at = max(
        (
            node_proof.happened_at(state, item)
            for item in incident.evidence
            if item.where.node == node and item.trust is Trust.SYSTEM and item.kind != Kind.DIAG_PASSED
        ),
        default=record.since,
    )
    anew, other = broke_at > max(record.since, record.broke_at or record.since), cause not in record.causes
    if not anew and not other:
        return record
    jobs = {*record.jobs, *((incident.job,) if incident.job is not None else ())}
    seen = replace(
        record, also=(*record.also, cause) if other else record.also, jobs=tuple(sorted(jobs)),
        broke_at=broke_at if anew else record.broke_at,
    )  # fmt: skip
    begun = record.passed > 0 or record.acted is not Remedial.NONE or record.stage in _TESTED
    if not begun or record.stage not in (*_TESTED, Stage.WAITING):
        return seen  # what is under way goes on: a reset or a reboot, whose round has no test yet, or a repair
    seen = replace(
        seen, stage=Stage.WAITING, effect="", until=None, changed_at=now
    )  # the answer of a test is not taken
    if anew and counts:
        return after_failure(state, seen, f"broke again while it was out: {cause}", now)
    return replace(seen, passed=0, acted=Remedial.NONE)
