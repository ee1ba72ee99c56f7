"""Tells which nodes are proven good again, and which their own agent calls bad.

Silence proves nothing: a node of which nothing is heard stays as it was judged.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from sentinel.config.returns import level_told
from sentinel.correlate.attempt_times import by_own_clock
from sentinel.engine import backlog
from sentinel.engine.node_return.put_back import drained_by_us
from sentinel.engine.reconcile.rebooted import against, agent_holds, ended_by_reboot
from sentinel.engine.state import State
from sentinel.engine.transition import Transition
from sentinel.errors import ProtocolError
from sentinel.model.approvals import ASKING
from sentinel.model.changes import SettingChanged
from sentinel.model.records import (
    ANSWERS_AGAIN,
    NODE_STEPS,
    OURS,
    Evidence,
    Fleet,
    Incident,
    Kind,
    Outcome,
    Plan,
    Result,
    Source,
    Step,
    Trust,
)
from sentinel.model.vocabulary import ABSENCE, SEEN_DRAINED
from sentinel.policy.drains import sure_enough
from sentinel.policy.situation import may_be_in_service
from sentinel.wire import time_from

AGENTS_CALLED = "agents_called"  # stored setting: nodes that their agents called bad, and since when good again
DRAINS_SEEN = "drains_seen"  # stored setting: by drain (key in the ledger), when a snapshot last showed it
IN_SERVICE_SEEN = "in_service_seen"  # the same, when a snapshot first showed the node in service after it
_SNAPSHOT_LAG = timedelta(seconds=1)  # a snapshot's contents may be this much older than its time


def watch_agents(state: State, out: Transition, now: datetime) -> None:
    """Note which nodes' agents changed their verdict from bad to good since the last snapshot."""
    before = frozenset(state.called_bad), len(state.called_good)
    for name, seen in state.cluster.nodes.items():
        word = seen.verdict.get("word")
        if word == "BAD":
            state.called_bad.add(name)
        elif word == "OK" and name in state.called_bad:
            state.called_bad.discard(name)
            state.called_good[name] = now
    if before != (frozenset(state.called_bad), len(state.called_good)):
        good = _as_text(state.called_good)
        out.save(SettingChanged(AGENTS_CALLED, {"bad": sorted(state.called_bad), "good": good}))


def agents_called(value: Any) -> tuple[set[str], dict[str, datetime]]:
    """What ``watch_agents`` stored; what cannot be read is left out."""
    kept = value if isinstance(value, dict) else {}
    bad = kept.get("bad")
    named = {name for name in bad if isinstance(name, str)} if isinstance(bad, list) else set()
    return named, times_of_drains(kept.get("good"))


def bad_nodes(state: State) -> frozenset[str]:
    """Nodes whose agent is heard and says that they are bad."""
    nodes = state.cluster.nodes.items()
    return frozenset(name for name, seen in nodes if seen.state == "heard" and seen.verdict.get("word") == "BAD")


def convicted(state: State) -> set[str]:
    """Nodes in service, soon again or perhaps, that an incident convicts, surely enough to act, not proven good since."""
    fleet = state.cluster.fleet
    if fleet is None:
        return set()
    found: set[str] = set()
    for name, verdict in state.verdicts.items():
        plan = state.plans.get(name)
        if plan is not None and plan.observe_only and not any(wait.kind in ASKING for wait in plan.waits):
            continue  # nobody stops a job there
        if verdict.drain and sure_enough(verdict, state.settings.judgement.act_confidence):
            named = {node for node in verdict.drain if may_be_in_service(node, fleet)}
            if named - found:
                found |= named - cleared(state, name, named)
    return found


def cleared(state: State, incident: str, nodes: Iterable[str]) -> frozenset[str]:
    """Those of ``nodes`` that were proven good, or put back by a person, since the incident convicted them."""
    known, named = state.incidents.get(incident), tuple(nodes)
    if known is None or incident not in state.plans:
        return frozenset(named)
    return proven_good(state, known, named) | returned(state, known, named)


def good_since(state: State, node: str, since: datetime, level: int, *, agent: bool = True) -> bool:
    """Whether the node was proven good after ``since``: released by an operator, passed a diagnostic, or its agent took its
    verdict back.

    Args:
        level: of the diagnostic, at least; 0: any (``proving_level``).
        agent: whether what its agent took back is what the node is convicted for (``agent_judges``).
    """
    seen = state.cluster.nodes.get(node)
    if seen is None:
        return False
    if seen.released_at is not None and seen.released_at > since:
        return True
    if (proven := state.returns.proves(node, since)) is not None:
        return proven  # one passed test of several proves nothing yet
    good = state.called_good.get(node)
    if agent and good is not None and good > since:
        return seen.verdict.get("word") != "BAD"
    tested = state.diagnostics.known.get(node)  # kept for good: evidence of nodes is forgotten within the hour
    if tested is not None and tested.suspect is None and tested.has_passed(since, level):
        return True
    passes = [
        item  # of all its GPUs
        for item in seen.pool
        if item.kind == Kind.DIAG_PASSED and item.source is Source.DIAGNOSTIC and "gpus" not in item.data
    ]
    return any(happened_at(state, item) > since for item in passes if level_told(item.data.get("level")) >= level)


def proving_level(state: State, incident: Incident | None, node: str) -> int:
    """The least level of the diagnostic that proves this node good of what the incident convicts it for: the deepest that
    failed there, and for all else the last that the cause asks for. 0: the node is a suspect at most, and any will do."""
    verdict = state.verdicts.get(incident.id) if incident is not None else None
    if incident is None or verdict is None or node not in verdict.drain:
        return 0
    failed = [
        level_told(item.data.get("level")) if item.kind == Kind.DIAG_FAILED else 0
        for item in incident.evidence
        if item.where.node == node and item.trust is Trust.SYSTEM and item.kind != Kind.DIAG_PASSED
    ]
    return max(state.rules.returns.proving_level(verdict.cause, level) for level in failed or [0])


def agent_judges(state: State, incident: Incident | None, node: str) -> bool:
    """Whether the node's agent holds all that the incident convicts the node for against it by itself, and so takes it back
    only once that is disproven (``agent.health.verdict``): it says nothing of a fault for which two reports are needed, nor
    of one that others saw. Of a suspect its word is enough."""
    verdict = state.verdicts.get(incident.id) if incident is not None else None
    if incident is None or verdict is None or node not in verdict.drain:
        return True
    return agent_holds(state, against(state, incident, node))


def see_drains(state: State, out: Transition, fleet: Fleet) -> None:
    """Note which drains of ours the snapshot shows, and whose nodes are in service again; during a pause too.

    Saved for the next daemon: the former until slurmctld has surely saved the drains, so that a node found in service was
    then put back by a person; the latter once, as a slurmctld that is started later lost nothing.
    """
    see_put_back(state, out, fleet)
    seen, back, news = {}, {}, False
    for plan in state.plans.values():
        for step in (step for step in plan.to_do if step.kind in NODE_STEPS and step.node is not None):
            outcome, node = state.ledger.outcome(plan.incident, step), fleet.nodes.get(step.node or "")
            key = step.key(plan.incident)
            if key in state.seen_drained:
                seen[key] = state.seen_drained[key]
            if key in state.seen_in_service:
                back[key] = state.seen_in_service[key]
            if outcome is None or fleet.at <= outcome.at or node is None:
                continue
            if node.drained:
                news = news or not state.was_saved(key, outcome)
                seen[key] = fleet.at
                back.pop(key, None)
            elif not state.was_saved(key, outcome):
                back.setdefault(key, fleet.at)
    state.seen_drained = seen
    if news:
        out.save(SettingChanged(DRAINS_SEEN, _as_text(seen)))
    if back != state.seen_in_service:
        state.seen_in_service = back
        out.save(SettingChanged(IN_SERVICE_SEEN, _as_text(back)))


def later_drains_kept(state: State, fleet: Fleet, since: datetime) -> list[datetime]:
    """When nodes were drained after ``since`` that the snapshot still shows as drained for that.

    slurmctld saves all nodes in one file: if it lost one drain, it lost all later ones.
    """
    found = []
    for plan in state.plans.values():
        for outcome in state.ledger.outcomes(plan.incident, [step for step in plan.to_do if step.kind in NODE_STEPS]):
            node = fleet.nodes.get(outcome.step.node or "")
            done = outcome.result is Result.DONE and not outcome.reason and since < outcome.at < fleet.at
            if done and node is not None and node.drained and node.reason.startswith(f"{OURS}{plan.incident} "):
                found.append(outcome.at)
    return found


def _as_text(times: Mapping[str, datetime]) -> dict[str, str]:
    return {key: at.isoformat() for key, at in times.items()}


def times_of_drains(value: Any) -> dict[str, datetime]:
    """What ``see_drains`` saved. A time that cannot be read is left out."""
    found = {}
    for key, at in value.items() if isinstance(value, dict) else ():
        with contextlib.suppress(ProtocolError):
            found[key] = time_from(at)
    return found


def returned(state: State, incident: Incident, nodes: Iterable[str]) -> frozenset[str]:
    """Nodes that were taken out for this incident, or for another one after what speaks against them here, and that somebody
    has put back into service, whether they answer by now or not."""
    fleet, named = state.cluster.fleet, frozenset(nodes)
    back = {
        name
        for name in named & state.put_back.settled.keys()
        if fleet is not None and (view := fleet.nodes.get(name)) is not None and not view.drained
    }
    said = _said(state, [incident], back)
    settled = {name for name in back if state.put_back.settles(name, said.get(name, {}))}
    return (named & _taken_out_and_back(state, incident)) | settled


def see_put_back(state: State, out: Transition, fleet: Fleet) -> None:
    """Note which nodes are drained by Sentinel, and which somebody has put back into service."""
    gone = _gone(state, fleet)
    followed = {*state.put_back.out, *drained_by_us(fleet), *gone}
    if not followed and not state.put_back.settled:
        return
    concerned = {name for incident in state.incidents.values() for name in incident.nodes}
    concerned |= {name for verdict in state.verdicts.values() for name in verdict.drain}
    said = _said(state, state.incidents.values(), followed)
    state.put_back.snapshot_taken(out, fleet, said, concerned, gone)


def _gone(state: State, fleet: Fleet) -> set[str]:
    """Nodes that a plan took out of service and that Slurm has no more, as it is not noted yet."""
    found = set()
    for plan in state.plans.values():
        for step in (step for step in plan.to_do if step.kind in NODE_STEPS and step.node not in fleet.nodes):
            outcome, node = state.ledger.outcome(plan.incident, step), step.node or ""
            done = outcome is not None and outcome.result is Result.DONE and fleet.at > outcome.at
            if outcome is None or not done or fleet.may_have_node(node):
                continue
            if not state.put_back.is_over(node, outcome.at):
                found.add(node)
    return found


def _said(state: State, incidents: Iterable[Incident], nodes: Collection[str]) -> dict[str, dict[str, datetime | None]]:
    """By node: the reports against it in these incidents, by id when each happened. One incident may have taken its grounds
    over from another."""
    found: dict[str, dict[str, datetime | None]] = {}
    for incident in incidents if nodes else ():
        verdict = state.verdicts.get(incident.id)
        if not {*incident.nodes, *(verdict.drain if verdict is not None else ())}.intersection(nodes):
            continue
        grounds = [ground.evidence for ground in verdict.grounds] if verdict is not None else []
        for item in (*incident.evidence, *grounds):
            node = item.where.node
            if node is not None and node in nodes and item.trust is Trust.SYSTEM and item.kind != Kind.DIAG_PASSED:
                found.setdefault(node, {})[item.id] = by_own_clock(item, state.cluster)
    return found


def happened_at(state: State, item: Evidence) -> datetime:
    """When it happened by the daemon's clock; where it is not known how far the node's is from it, by the node's."""
    return by_own_clock(item, state.cluster) or item.at


def _taken_out_and_back(state: State, incident: Incident) -> frozenset[str]:
    """Nodes that this incident's plan had taken out, and that are in service now, although slurmctld has saved the drain."""
    plan, fleet = state.plans.get(incident.id), state.cluster.fleet
    back = set()
    for step in plan.to_do if plan is not None else ():
        outcome = state.ledger.outcome(incident.id, step) if step.kind in NODE_STEPS else None
        view = fleet.nodes.get(step.node or "") if fleet is not None else None
        if outcome is None or outcome.result is not Result.DONE or fleet is None or view is None:
            continue
        ours = not outcome.reason and not state.was_saved(step.key(incident.id), outcome)
        if not view.drained and fleet.at > outcome.at and (not ours or state.put_back.is_over(view.name, outcome.at)):
            back.add(view.name)
    return frozenset(back)


def is_of_returned_node(state: State, plan: Plan | None, item: Evidence) -> bool:
    """Whether this happened on a node that this plan had taken out, after the node was back in service: a new failure.

    Who returned it, and when exactly, is not always known: later than it was last seen drained.
    """
    if plan is None:
        return False
    at = happened_at(state, item)
    for step in plan.to_do:
        if step.kind not in NODE_STEPS or step.node is None or step.node != item.where.node:
            continue
        outcome = taken_out(state, plan, step)
        if outcome is None:
            continue
        if outcome.data.get(ANSWERS_AGAIN) and item.kind not in ABSENCE and item.seen_at > plan.at:
            return True  # it was never out: what else is said of it since, nobody judges here any more
        seen, fleet = state.cluster.nodes.get(step.node), state.cluster.fleet
        if seen is not None and seen.released_at is not None and outcome.at < seen.released_at:
            return at > seen.released_at
        view = fleet.nodes.get(step.node) if fleet is not None else None
        if fleet is not None and view is not None and not view.drained and fleet.at > outcome.at + _SNAPSHOT_LAG:
            return at > max(outcome.at, _last_seen_drained(state, plan, step, outcome))
    return False


def _last_seen_drained(state: State, plan: Plan, step: Step, outcome: Outcome) -> datetime:
    """When a snapshot last showed the node drained. One that a daemon before this took is known where the drain was to be
    done again since."""
    kept = step.data.get(SEEN_DRAINED)
    before = datetime.fromisoformat(kept) if isinstance(kept, str) else outcome.at
    return max(before, state.seen_drained.get(outcome.step.key(plan.incident), outcome.at))


def taken_out(state: State, plan: Plan, step: Step) -> Outcome | None:
    """The outcome with which this plan's step took its node out of service; None if it did not.

    A step that was to be done once more, and left the node to the person who had returned it, took nothing out.
    """
    for tries in range(step.tries, -1, -1):
        outcome = state.ledger.outcome(plan.incident, dataclasses.replace(step, tries=tries))
        if outcome is not None and outcome.result is Result.DONE and not (tries and outcome.reason):
            return outcome
    return None


def proven_good(state: State, incident: Incident, nodes: Iterable[str]) -> frozenset[str]:
    """Those of ``nodes`` that were proven good since the incident's newest evidence against them."""
    said: dict[str | None, list[Evidence]] = {}
    for item in incident.evidence:
        if item.kind != Kind.DIAG_PASSED:
            said.setdefault(item.where.node, []).append(item)
    return frozenset(name for name in nodes if _is_good(state, incident, name, said))


def is_good_and_in_service(state: State, incident: Incident, step: Step) -> bool | None:
    """Whether the node of this step, which could not be done yet or has just been planned, is proven good since its
    conviction, and a snapshot shows that no request of ours has drained it. None: not known before a later
    snapshot: its agent is to be heard first, or it is proven good, and the last request may have drained it all the same."""
    outcome, fleet = state.ledger.outcome(incident.id, step), state.cluster.fleet
    view = fleet.nodes.get(step.node or "") if fleet is not None else None
    if fleet is None or view is None or view.drained:
        return False
    if backlog.may_be_outdated(state, (view.name,), fleet.at):
        return None
    asked = outcome.at if outcome is not None else None
    if asked is None and state.ledger.has(step.key(incident.id)):
        return False
    if view.name not in proven_good(state, incident, (view.name,)):
        return False
    return True if asked is None or fleet.at > asked else None


def _is_good(state: State, incident: Incident, node: str, said: Mapping[str | None, Sequence[Evidence]]) -> bool:
    """``said``: against nodes, by node; None: what names no node, and so speaks against each."""
    own = said.get(node, ())
    times = (happened_at(state, item) for items in (own, said.get(None, ())) for item in items)
    since = max(times, default=incident.opened_at)
    level, agent = proving_level(state, incident, node), agent_judges(state, incident, node)
    if good_since(state, node, since, level, agent=agent) or _is_back(state, node, own):
        return True
    return ended_by_reboot(state, incident, node, since)


def _is_back(state: State, node: str, own: Sequence[Evidence]) -> bool:
    """Whether a node against which only its absence spoke is heard again, and in service."""
    if not own or any(item.kind not in ABSENCE for item in own):
        return False
    seen = state.cluster.nodes.get(node)
    view = state.cluster.fleet.nodes.get(node) if state.cluster.fleet is not None else None
    return seen is not None and seen.state == "heard" and view is not None and view.usable
