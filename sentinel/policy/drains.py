"""Decides which nodes may be drained now, under the budgets of drains (promise 4)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sentinel.config.settings import Limits
from sentinel.model.records import OURS, Cause, Fleet, Incident, NodeView, Scalar, Step, StepKind, Verdict, Wait
from sentinel.model.topology import leaf_of
from sentinel.model.vocabulary import (
    ABSENCE,
    DRAIN_REFUSED,
    MISSING_NODE,
    REBOOT_PENDING,
    REBOOTS,
    UNREAD_NODE,
    only_for_reboot,
)
from sentinel.policy.shares import at_most
from sentinel.policy.situation import RefusedDrain, Situation, in_maintenance, is_startable

SWITCH = "switch"  # code of the wait of nodes that failed together with others under their switch
_HOUR = timedelta(hours=1)
# A node leaves the listing while slurm.conf is edited, or until a dynamic node registers anew: minutes. After this time it
# is taken for one that was removed.
_MISSING_FOR = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Drains:
    steps: tuple[Step, ...] = ()
    waits: tuple[Wait, ...] = ()
    words: str = ""


def drains(
    verdict: Verdict,
    incident: Incident,
    situation: Situation,
    limits: Limits,
    act_confidence: float,
    respect_maintenance: bool,
    now: datetime,
) -> Drains:
    """The steps that take the convicted nodes out of service, or why they wait.

    Args:
        respect_maintenance: whether nodes in a maintenance reservation are left to the people who work on them.
    """
    fleet = situation.fleet
    convicted = [name for name in verdict.drain if name not in situation.good_nodes]
    left = [name for name in convicted if name not in situation.put_back]
    unsettled = [name for name in left if name in fleet.nodes and not _is_out(fleet.nodes[name])]
    unseen = _without_record(left, situation, now)
    unsure = not sure_enough(verdict, act_confidence)
    said = not unsure and any(wait.kind == MISSING_NODE for wait in unseen)
    strangers = "" if said else _strangers(left, fleet)
    words = " ".join(text for text in (strangers, _in_order(verdict, situation)) if text)
    gone = _already_out_and_gone(verdict, incident, fleet, act_confidence)
    kept = [name for name in unsettled if respect_maintenance and in_maintenance(fleet.nodes[name])]
    unsettled = [name for name in unsettled if name not in kept]
    gone = [step for step in gone if not (respect_maintenance and in_maintenance(fleet.nodes[step.node or ""]))]
    rebooted = [] if unsure else [name for name in left if (node := fleet.nodes.get(name)) and _out_for_reboot(node)]
    waits = (*unseen, *((_maintenance(kept, now),) if kept else ()), *_rebooting(rebooted, fleet, now))
    if not unsettled and not unseen:
        # Told meanwhile, too: who looks at the switch now is not asked again when the reservation ends.
        suspected = () if unsure else _under_suspect_switches(kept, situation, limits, now)
        return Drains(tuple(gone), (*waits, *suspected), words)
    if unsure:
        words = f"Not drained: {_confidence(verdict):.2f} sure, {act_confidence:.2f} is asked for. {words}".strip()
        return Drains((), (), words)
    later = {name: seen for name in unsettled if (seen := situation.refused.get(name)) and now < seen.again_at}
    waits = (*waits, refused_wait(later)) if later else waits
    # What Slurm refuses must not take the place of what it would do.
    unsettled = sorted((name for name in unsettled if name not in later), key=lambda name: name in situation.refused)
    suspected = _under_suspect_switches([*unsettled, *kept], situation, limits, now)
    unsettled = [name for name in unsettled if not any(f"drain {name}" in wait.what for wait in suspected)]
    waits = (*waits, *suspected)
    allowed, wait = _within_budget(unsettled, situation, limits, now)
    data: dict[str, Scalar] = {"cause": str(verdict.cause)}
    lost = _lost(verdict, incident)
    kinds = {name: StepKind.DOWN if name in lost else StepKind.DRAIN for name in allowed}
    steps = (*gone, *(Step(kind, node=name, data=data) for name, kind in kinds.items()))
    return Drains(steps, (*waits, *((wait,) if wait is not None else ())), words)


def sure_enough(verdict: Verdict, act_confidence: float) -> bool:
    """Whether its nodes are convicted surely enough to act. Causes that convict the same nodes count together."""
    return _confidence(verdict) >= act_confidence


def _confidence(verdict: Verdict) -> float:
    return max(verdict.confidence, verdict.drain_confidence)


def refused_wait(refused: Mapping[str, RefusedDrain]) -> Wait:
    """The wait of nodes whose drain Slurm refused."""
    words = "; ".join(dict.fromkeys(seen.why.rstrip(".") for seen in refused.values()))
    what = tuple(f"drain {name}" for name in refused)
    since, until = min(seen.since for seen in refused.values()), min(seen.again_at for seen in refused.values())
    return Wait(DRAIN_REFUSED, since, f"{words}. Slurm is asked again.", what, until)


def _maintenance(names: Sequence[str], now: datetime) -> Wait:
    words = f"In a maintenance reservation: {', '.join(names)}. Not drained before it ends."
    return Wait("maintenance", now, words, tuple(f"drain {name}" for name in names))


def _out_for_reboot(node: NodeView) -> bool:
    """Whether the node is drained, not by us, and Slurm is to reboot it, as somebody asked: that may end the drain."""
    return _is_out(node) and not node.reason.startswith(OURS) and not node.flags.isdisjoint(REBOOTS)


def _is_out(node: NodeView) -> bool:
    return node.drained and not only_for_reboot(node.reason, node.flags)


def _rebooting(names: Sequence[str], fleet: Fleet, now: datetime) -> tuple[Wait, ...]:
    """The wait of nodes whose drain by others may end with their reboot (``scontrol reboot ASAP nextstate=RESUME``)."""
    return tuple(
        Wait(
            REBOOT_PENDING,
            now,
            f"{name} is out ({fleet.nodes[name].reason}) until Slurm has rebooted it, as somebody asked before it failed. "
            "Drained then if it is in service, untested.",
            (f"drain {name}",),
        )
        for name in names
    )


def switches(names: Iterable[str], fleet: Fleet) -> dict[str, list[str]]:
    """These nodes by the switch that they share with others. One that all nodes share tells nothing of a few of them."""
    found: dict[str, list[str]] = {}
    for name in names:
        node = fleet.nodes.get(name)
        if node is not None and (switch := leaf_of(node.topology)):
            found.setdefault(switch, []).append(name)
    return {
        switch: under
        for switch, under in found.items()
        if any(leaf_of(node.topology) != switch for node in fleet.nodes.values())
    }


def nodes_under(switch: str, fleet: Fleet) -> list[NodeView]:
    """All nodes of a switch: their places may differ in what else is said there (another topology, the switches above)."""
    return [node for node in fleet.nodes.values() if leaf_of(node.topology) == switch]


def _under_suspect_switches(
    unsettled: Sequence[str], situation: Situation, limits: Limits, now: datetime
) -> tuple[Wait, ...]:
    """Waits of nodes that failed together with others under their switch: people look at it before nodes are drained."""
    if situation.breaker_passed:
        return ()
    failing = situation.failing_nodes | situation.under_suspect_switch | set(unsettled)
    waits = []
    unread = [name for name in failing if name not in situation.fleet.nodes and situation.fleet.may_have_node(name)]
    for switch, seen in switches(sorted(failing), situation.fleet).items():
        together = [*seen, *unread]  # where these hang is not known: perhaps here
        here = [name for name in together if name in unsettled]
        if len(together) < limits.breaker_switch_nodes or not here:
            continue
        words = (
            f"{len(together)} nodes under switch {switch} failed within {limits.breaker_window_s:g} s: more likely the "
            "switch, or what else they share (power, cooling), than so many broken nodes. Not drained before fewer are "
            f"bad, or an operator has looked (sentinel resume): {', '.join(here)}."
        )
        until = now + timedelta(seconds=limits.breaker_window_s)
        waits.append(Wait(SWITCH, now, words, tuple(f"drain {name}" for name in here), until))
    return tuple(waits)


def _within_budget(
    unsettled: Sequence[str], situation: Situation, limits: Limits, now: datetime
) -> tuple[list[str], Wait | None]:
    """As many of the nodes as the budgets allow, and what the others wait for."""
    allowed: list[str] = []
    waiting: list[str] = []
    first: tuple[str, str, datetime | None] | None = None
    for name in unsettled:
        refused = _over_budget([*allowed, name], situation, limits, now)
        if refused is None:
            allowed.append(name)
        else:
            first = first or refused
            waiting.append(name)
    if first is None:
        return allowed, None
    kind, why, until = first
    return allowed, Wait(kind, now, why, tuple(f"drain {name}" for name in waiting), until)


def _over_budget(
    unsettled: Sequence[str], situation: Situation, limits: Limits, now: datetime
) -> tuple[str, str, datetime | None] | None:
    """Code, explanation, and when it ends by itself, of the limit that these drains would exceed; None if there is none."""
    fleet = situation.fleet
    hour = sorted(at for at in situation.drains if now - at <= _HOUR)
    if len(hour) + len(unsettled) > limits.drain_per_hour:
        until = hour[0] + _HOUR if hour else None
        return "drain-budget", f"{len(hour)} drains in the last hour; {limits.drain_per_hour} are allowed.", until
    ours, unread, also = _out(fleet.nodes.values(), fleet)
    if ours + unread + len(unsettled) > limits.drain_count:
        why = f"{ours} nodes are drained by Sentinel{also}; {limits.drain_count} are allowed."
        return "drain-budget", why, None
    for switch, asked in switches(unsettled, fleet).items():
        if (over := _switch_limit(switch, asked, fleet, limits)) is not None:
            return "drain-budget", over, None
    for partition in sorted({p for name in unsettled for p in fleet.nodes[name].partitions}):
        if (refused := _partition_limit(partition, unsettled, fleet, limits)) is not None:
            return *refused, None
    return None


def _out(members: Iterable[NodeView], fleet: Fleet) -> tuple[int, int, str]:
    """How many of these nodes are drained by Sentinel, how many more may be, and the latter in words. Where a node belongs
    whose record cannot be read, and who drained it, is not known: it counts everywhere."""
    ours = sum(1 for node in members if node.drained and node.reason.startswith(OURS))
    unread = sum(1 for item in fleet.unread if item.what == "node")
    return ours, unread, f", {unread} more cannot be read" if unread else ""


def _switch_limit(switch: str, asked: Sequence[str], fleet: Fleet, limits: Limits) -> str | None:
    members = nodes_under(switch, fleet)
    ours, unread, also = _out(members, fleet)
    if ours + unread + len(asked) <= limits.drain_per_switch:
        return None
    return (
        f"switch {switch}: {ours} of its {len(members)} nodes are drained by Sentinel{also}; {limits.drain_per_switch} are "
        "allowed. Look at the switch."
    )


def _lost(verdict: Verdict, incident: Incident) -> frozenset[str]:
    """Those of the nodes to drain that are gone and must be set down instead; of nodes failing together, maybe only one."""
    gone = {item.where.node for item in incident.evidence if item.kind in ABSENCE}
    lost = frozenset(name for name in verdict.drain if name in gone)
    if verdict.cause is Cause.NODE_FAILURE:
        return lost or frozenset(verdict.drain)
    led = {ground.evidence.where.node for ground in verdict.grounds if ground.evidence.kind not in ABSENCE}
    return lost - led  # a broken GPU whose node Slurm sets down as well is drained


def _without_record(names: Sequence[str], situation: Situation, now: datetime) -> tuple[Wait, ...]:
    """The waits of those of these nodes that the snapshot does not show: what is not known ends no conviction."""
    fleet = situation.fleet
    unread = [name for name in names if name not in fleet.nodes and fleet.may_have_node(name)]
    missing = [name for name in names if not fleet.may_have_node(name)]
    waits = []
    if unread:
        words = f"Slurm's record of {', '.join(unread)} cannot be read. Not drained before it can."
        waits.append(Wait(UNREAD_NODE, now, words, tuple(f"drain {name}" for name in unread)))
    until = (situation.missing_since or now) + _MISSING_FOR
    if missing and now < until:
        words = f"Slurm does not know {', '.join(missing)}. Not drained unless listed again before {until:%H:%M} UTC."
        waits.append(Wait(MISSING_NODE, now, words, tuple(f"drain {name}" for name in missing), until))
    return tuple(waits)


def _strangers(names: Sequence[str], fleet: Fleet) -> str:
    """A sentence naming those of these nodes that Slurm does not have; else empty."""
    strangers = [name for name in names if not fleet.may_have_node(name)]
    return f"Slurm does not know {', '.join(strangers)}." if strangers else ""


def _in_order(verdict: Verdict, situation: Situation) -> str:
    good = [name for name in verdict.drain if name in situation.good_nodes]
    return f"Proven good again: {', '.join(good)}." if good else ""


def _already_out_and_gone(verdict: Verdict, incident: Incident, fleet: Fleet, act_confidence: float) -> list[Step]:
    """Steps that set drained nodes down that died under their last job, which would wait for them. They cost no budget."""
    if verdict.cause is not Cause.NODE_FAILURE or not sure_enough(verdict, act_confidence):
        return []
    lost = _lost(verdict, incident)
    named = [fleet.nodes[name] for name in verdict.drain if name in fleet.nodes and name in lost]
    out = [node.name for node in named if node.drained and node.state != "down"]
    return [Step(StepKind.DOWN, node=name, data={"cause": str(verdict.cause)}) for name in out]


def _partition_limit(partition: str, nodes: Sequence[str], fleet: Fleet, limits: Limits) -> tuple[str, str] | None:
    members = [node for node in fleet.nodes.values() if partition in node.partitions]
    ours, unread, also = _out(members, fleet)
    asked = sum(1 for node in members if node.name in nodes)
    # At least one: the share of a small partition could otherwise be zero, or be used up by a record of elsewhere.
    most = max(1, at_most(limits.drain_fraction, len(members)))
    if ours + asked > 1 and ours + unread + asked > most:
        out = f"{ours} of {len(members)} nodes are drained by Sentinel{also}"
        return "drain-budget", f"partition {partition}: {out}; {most} are allowed."
    healthy = [node for node in members if is_startable(node) and node.name not in nodes]
    if len(healthy) < limits.keep_healthy:
        return "last-healthy", f"partition {partition} would be left with {len(healthy)} usable nodes."
    return None
