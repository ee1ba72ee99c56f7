"""Reads what Sentinel may do, is doing and would have done: modes, breakers, budgets, steps. Read-only."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from sentinel.adapters.store.store import Store
from sentinel.config.settings import Limits, Mode, Modes, Settings
from sentinel.daemon.api.accounts import name_of, uids_of
from sentinel.detect.seen import NodeSeen
from sentinel.engine.delivery import due
from sentinel.engine.ledger import Ledger, LedgerRow
from sentinel.engine.notices import BREAKERS_TOLD
from sentinel.engine.pending_drains import stops_of, unfinished, with_pending_drains
from sentinel.model.approvals import ASKING, asked
from sentinel.model.audit import EXPORTED, REWRITTEN
from sentinel.model.intent import intent_of
from sentinel.model.jobs.chains import SINGLETON, waiting
from sentinel.model.records import INTERRUPTIONS, NODE_STEPS, OURS, Fleet, NodeView, Plan, Wait, stable_id
from sentinel.model.vocabulary import REFUSED_BY_SLURM, switched_by_slurm
from sentinel.policy.stops import stops_allowed
from sentinel.wire import time_from, to_json

_HOUR = timedelta(hours=1)
_SNAPSHOT_LAG = timedelta(seconds=1)  # by which a snapshot may be older than its time
_OBSERVED = timedelta(days=7)  # how far back plans of observe mode are shown
_UNREAD = 20  # unreadable records listed in a view
_FAR_FUTURE = datetime.max.replace(tzinfo=UTC)
_UNDELIVERED = 1000  # messages that were not delivered, the newest
_MOST_PLANS = 20  # newest plans of observe mode that are shown
_NOT_OVER = frozenset({"pending", "configuring", "running", "suspended"})  # states of jobs
_FINAL = frozenset(
    {"afterok", "afternotok", "afterany", SINGLETON}
)  # kinds of dependencies to which a failure is an end

Visible = Callable[[Collection[str]], set[str]]  # which of these incidents the person may see


def shown_state(node: NodeView) -> str:
    if node.state == "down":
        return "down"
    if node.drained:
        return "drained" if node.state == "idle" else "draining"
    return "not responding" if "not_responding" in node.flags else node.state


def responds_to_slurm(node: NodeView) -> bool | None:
    """Whether slurmd on the node answers slurmctld; None: not known, as of a node that is set down."""
    if "not_responding" in node.flags:
        return False
    return None if node.state in ("down", "unknown") else True


def as_slurm_says(node: NodeView) -> dict[str, Any]:
    """A node as Slurm shows it."""
    return {
        "node": node.name,
        "state": shown_state(node),
        "responds": responds_to_slurm(node),
        "reason": node.reason,
        "partitions": list(node.partitions),
        "gpus": node.gpus,
        "topology": node.topology,
    }


def agent_of(seen: NodeSeen | None) -> dict[str, Any]:
    """What a node's agent says of itself; None: it has said nothing."""
    return {
        "agent": seen.state if seen else "unknown",
        "version": seen.version if seen else "",
        "verdict": seen.verdict if seen else {},
        "clock_offset_s": seen.clock_offset_s if seen else None,
        "kernel_readable": seen.kernel_readable if seen else None,
        "evidence_lost": seen.lost if seen else None,
    }


def switched(fleet: Fleet | None, name: str) -> dict[str, bool]:
    """Whether Slurm has switched a node off, or switches it off or on now: that its agent is silent is no fault."""
    node = fleet.nodes.get(name) if fleet is not None else None
    return {"switched": node is not None and switched_by_slurm(node.state, node.flags)}


def mode_of(mode: Mode, *, paused: bool) -> str:
    """The mode of a partition as one word, e.g. "act", "paused" or "mixed"."""
    if paused:
        return "paused"
    words = {mode.drain, mode.restart, *(word for one in mode.causes.values() for word in (one.drain, one.restart))}
    words.discard("")  # "": the cause has the mode of the partition
    return words.pop() if len(words) == 1 else "mixed"


def modes_by_partition(modes: Modes, fleet: Fleet | None, *, paused: bool) -> dict[str, dict[str, Any]]:
    """The mode of each partition in Slurm or in the settings; ``known``: whether Slurm has it."""
    partitions = {name for node in fleet.nodes.values() for name in node.partitions} if fleet is not None else set()
    found = {}
    for name in sorted(partitions | modes.partitions.keys()):
        mode = modes.partitions.get(name, modes.default)
        found[name] = {
            "mode": mode_of(mode, paused=paused),
            "drain": mode.drain,
            "restart": mode.restart,
            "causes": to_json(mode.causes),
            "known": name in partitions if fleet is not None else None,
        }
    return found


def overall(modes: Modes, by_partition: dict[str, dict[str, Any]], *, paused: bool) -> str:
    """One word for the whole cluster: paused, act, suggest, observe, or mixed."""
    words = {entry["mode"] for entry in by_partition.values() if entry["known"] is not False}
    words = words or {mode_of(modes.default, paused=paused)}
    return words.pop() if len(words) == 1 else "mixed"


def own_state(settings: Settings, store: Store, fleet: Fleet | None, user: str | None) -> dict[str, Any]:
    """For ``sentinel doctor``: the running daemon's account and settings. Blocking: reads the store.

    ``user``: of messages that were not delivered only those about this user's jobs; None: all.
    """
    return {
        "account": name_of(os.getuid()),
        "uid": os.getuid(),
        "settings": settings_digest(settings),
        "modes": to_json(settings.modes),
        "partitions": modes_by_partition(settings.modes, fleet, paused=bool(store.get("paused", False))),
        "resume": settings.daemon.resume,
        "database": store.engine.dialect.name,
        "wire": settings.daemon.wire,
        "audit_syslog": settings.daemon.audit_syslog,
        "audit_exported": store.get(EXPORTED),
        "audit_rewritten": store.get(REWRITTEN),
        "audit_entries": store.audit_length(),
        "operators_unknown": uids_of(settings.daemon.operators)[1],
        "spares": _spares(settings.recovery.spares, fleet),
        "undelivered": [
            {
                "receiver": name, "at": due(settings.alerts.channels.get(name), one),
                "given_up": one.delivery.given_up, "reason": one.delivery.reason,
            }
            for one, name, delivered in store.notices(since=_FAR_FUTURE, most=_UNDELIVERED, user=user)
            if one.delivery.tries and not delivered
        ],
    }  # fmt: skip


def _spares(reservation: str, fleet: Fleet | None) -> dict[str, Any] | None:
    """The spare-node reservation in the settings, with its nodes (None: not known); None if there is none."""
    known = fleet.spares if fleet is not None else None
    return (
        {"reservation": reservation, "nodes": list(known.nodes) if known is not None else None} if reservation else None
    )


def unread_records(fleet: Fleet | None) -> dict[str, Any]:
    """How many records of the newest snapshot could not be read, and the first of them."""
    unread = fleet.unread if fleet else ()
    return {"unread_count": len(unread), "unread": to_json(unread[:_UNREAD])}


def unread_nodes(fleet: Fleet) -> list[NodeView]:
    """Nodes whose Slurm record cannot be read, shown with state "unknown"."""
    return [
        NodeView(name=item.name, state="unknown", reason=f"Slurm's record cannot be read: {item.reason}")
        for item in fleet.unread
        if item.what == "node" and item.name
    ]


def dependents(fleet: Fleet | None) -> list[dict[str, Any]]:
    """Pending jobs that Slurm starts or cancels, by their dependency, if a job that Sentinel may restart fails."""
    jobs = fleet.jobs if fleet is not None else {}
    return [
        {"job": job, "on": on, "kind": kind}
        for job, kind, on in waiting(jobs.values())
        if kind in _FINAL and on in jobs and intent_of(jobs[on].comment).restart
    ]


def comment_problems(fleet: Fleet | None, user: str | None) -> list[int]:
    """Jobs, of ``user`` or of all, whose comment asks for something and is not understood: it will not be done.

    Slurm shows those that are over for minutes; their comments ask for nothing any more.
    """
    jobs = fleet.jobs.values() if fleet is not None else ()
    alive = (job for job in jobs if job.state in _NOT_OVER and user in (None, job.user))
    return sorted(job.id for job in alive if intent_of(job.comment).problem)


def settings_digest(settings: Settings) -> str:
    """A digest of the settings, to compare a file with the settings of a running daemon."""
    return stable_id(json.dumps(to_json(settings), sort_keys=True))


def breaker(store: Store, limits: Limits, now: datetime) -> dict[str, Any]:
    """State of the breaker that suspends all actions: which incident opened it, and what would open it."""
    windows = {"breaker": limits.breaker_window_s, "hang-breaker": limits.hung_window_s}
    found = {}
    for refusal, setting in BREAKERS_TOLD.items():
        told = store.get(setting)
        at = time_from(told["at"]) if isinstance(told, dict) and told.get("at") else None
        found[refusal] = {
            "open": at is not None and now - at <= timedelta(seconds=windows[refusal]),
            "last_at": at,
            "incident": told.get("incident") if isinstance(told, dict) else None,
        }
    found["breaker"] |= {"opens_at_nodes": limits.breaker_nodes, "window_s": limits.breaker_window_s}
    found["hang-breaker"] |= {"opens_at_jobs": limits.hung_jobs, "window_s": limits.hung_window_s}
    return found


def budget(store: Store, fleet: Fleet | None, limits: Limits, now: datetime) -> dict[str, Any]:
    """Each limit and how much of it is used, as policy counts. ``used`` is None where Slurm has not answered."""
    kinds, hour = tuple(NODE_STEPS | INTERRUPTIONS), now - _HOUR
    made, unfinished_ones, steps = store.plans_in_force(kinds, hour)
    ledger = Ledger(LedgerRow(row.incident, row.step, row.intended_at, row.outcome) for row in steps)
    going_on = unfinished([made[name] for name in unfinished_ones], ledger)
    plans = [plan if name in unfinished_ones else _as_far_as_done(plan, ledger) for name, plan in made.items()]
    # Without a snapshot nothing is known to be later than what was done.
    there = fleet if fleet is not None else Fleet(at=now + _SNAPSHOT_LAG, nodes={}, jobs={})
    there, drains = with_pending_drains(there, plans, ledger.drains(hour), now, going_on)
    stops = stops_of(plans, ledger.stops(hour), now, going_on)
    drained = sum(node.drained and node.reason.startswith(OURS) for node in there.nodes.values())
    unread = sum(item.what == "node" for item in there.unread)  # each may be one of ours
    return {
        "drained_at_once": {"used": drained + unread if fleet is not None else None, "limit": limits.drain_count},
        "drains_last_hour": {"used": sum(at >= hour for at in drains), "limit": limits.drain_per_hour},
        "restarts_last_hour": {
            "used": sum(stop.at >= hour for stop in stops),
            "limit": stops_allowed(there, limits)[1],
        },
    }


def _as_far_as_done(plan: Plan, ledger: Ledger) -> Plan:
    """A finished plan without the steps that it never came to."""
    return replace(plan, steps=tuple(step for step in plan.steps if ledger.has(step.key(plan.incident))))


def under_way(store: Store, visible: Visible) -> list[dict[str, Any]]:
    """Steps of plans that have begun and have no result yet; ``reason``: why one is tried again, empty at its first try."""
    steps = _under_way(store)
    seen = visible({row["incident"] for row in steps})
    return [
        {"step": row["kind"], "since": row["intended_at"], "reason": row["reason"], **_about(row)}
        for row in steps
        if row["incident"] in seen
    ]


def longest_under_way_s(store: Store, now: datetime) -> dict[str, float]:
    """By kind, for how long the oldest step has been under way."""
    longest: dict[str, float] = {}
    for row in _under_way(store):
        longest.setdefault(row["kind"], max(0.0, (now - row["intended_at"]).total_seconds()))
    return longest


def _under_way(store: Store) -> list[dict[str, Any]]:
    """Without the drains that Slurm refused: these are shown as waits of their plans."""
    return [row for row in store.steps_under_way() if row["data"].get(REFUSED_BY_SLURM) is not True]


def _about(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in ("incident", "node", "job")}


def would_have_done(store: Store, visible: Visible, now: datetime) -> dict[str, Any]:
    """Plans of the last days that observe mode or a pause stopped, the newest first, and how many more there are."""
    plans = [plan for plan in store.plans_since(now - _OBSERVED) if plan.observe_only and not asked(plan)]
    seen = visible({plan.incident for plan in plans})
    shown = [_observed(plan) for plan in plans if plan.incident in seen]
    return {"would_have_done": shown[:_MOST_PLANS], "would_have_done_more": max(0, len(shown) - _MOST_PLANS)}


def asked_for(waits: Mapping[str, Sequence[Wait]]) -> list[dict[str, Any]]:
    """What waits for approval, by what each open incident waits for; the newest first."""
    waiting = [(incident, wait) for incident, found in waits.items() for wait in found if wait.kind in ASKING]
    waiting.sort(key=lambda one: one[1].since, reverse=True)
    return [{"incident": incident, **to_json(wait)} for incident, wait in waiting]


def _observed(plan: Plan) -> dict[str, Any]:
    steps = [{"step": step.kind, "node": step.node, "job": step.job} for step in plan.steps]
    return {"incident": plan.incident, "at": plan.at, "steps": steps, "why": plan.explanation}


def released(seen: NodeSeen | None, by: str | None) -> dict[str, Any] | None:
    """When an operator last returned the node to service, and who (None: not known)."""
    at = seen.released_at if seen is not None else None
    return {"at": at, "by": by} if at is not None else None
