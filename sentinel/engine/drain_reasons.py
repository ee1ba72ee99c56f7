"""Replaces Slurm's "Prolog error" by the real reason on nodes that Sentinel's prolog refused.

The agent's verdict, on which the prolog acted, comes with each heartbeat; a prolog without an agent sends its evidence.
Only Slurm's own "Prolog error" is replaced, only if the node is convicted, not during a pause, and only where draining for
its cause is in act mode (promise 7). The drain then counts as Sentinel's, which may undo it.

In the same way a node is drained again whose drain by Sentinel ended as Slurm switched it off or rebooted it
(``engine.node_return.switched_off``): with the reason that it still has.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from sentinel.engine.events import DrainReasonWritten
from sentinel.engine.state import DrainReason, State
from sentinel.engine.transition import StartTimer, Transition, WriteDrainReason
from sentinel.model.records import OURS, NodeView
from sentinel.model.vocabulary import DRAIN_LOST, POWERED_OFF, PROLOG_ERROR
from sentinel.policy.drains import sure_enough

DRAIN_REASONS = "drain-reasons"  # timer
_EVERY = timedelta(seconds=5)  # reads the newest snapshot and sends no request to Slurm
_ANSWER_LOST = timedelta(seconds=60)  # a write without an answer for so long is tried again: its answer was lost


def start(_state: State, out: Transition, now: datetime) -> None:
    out.do(StartTimer(DRAIN_REASONS, now + _EVERY))


def timer_due(state: State, out: Transition, now: datetime) -> None:
    """Write the reason of every refused node that is convicted, once."""
    if state.watch.running:
        start(state, out, now)
    reasons, fleet = state.drain_reasons, state.cluster.fleet
    nodes = fleet.nodes.values() if fleet is not None else ()
    refused = {
        node.name: node for node in nodes if DRAIN_LOST in node.flags or (node.drained and node.reason == PROLOG_ERROR)
    }
    for name in set(reasons.written) - set(refused):
        del reasons.written[name]  # it was resumed; a later refusal is explained anew
    for name, node in refused.items():
        reason, under_way = _reason(state, node), reasons.under_way.get(name)
        if reason is None or (reasons.written.get(name) == reason and DRAIN_LOST not in node.flags):
            continue
        if under_way is None or now - under_way.at >= _ANSWER_LOST:
            effect = f"drain-reason:{name}:{now.isoformat()}"
            reasons.under_way[name] = DrainReason(effect, reason, now)
            again = DRAIN_LOST in node.flags and POWERED_OFF.isdisjoint(node.flags)
            out.do(WriteDrainReason(effect, name, reason, drain=again))


def written(state: State, out: Transition, event: DrainReasonWritten) -> None:
    reasons = state.drain_reasons
    under_way = reasons.under_way.get(event.node)
    if under_way is None or under_way.effect != event.effect:
        return
    del reasons.under_way[event.node]
    if event.result == "unavailable":
        out.say("refusal-not-explained", warning=True, node=event.node, reason=event.reason)
        return  # tried again
    if event.result == "refused":
        out.say("refusal-explained-already", node=event.node, reason=event.reason)
    else:
        out.say("refusal-explained", node=event.node, reason=under_way.reason)
    reasons.written[event.node] = under_way.reason


def _reason(state: State, node: NodeView) -> str | None:
    seen = state.cluster.nodes.get(node.name)
    verdicts, act_confidence = reversed(state.verdicts.items()), state.settings.judgement.act_confidence
    convicting = next(
        (
            (name, verdict.cause)
            for name, verdict in verdicts
            if node.name in verdict.drain and sure_enough(verdict, act_confidence)
        ),
        None,
    )
    if state.paused or state.settings.modes.of(node.partitions, convicting[1] if convicting else None).drain != "act":
        return None
    if DRAIN_LOST in node.flags:
        return node.reason
    if seen is not None and seen.verdict.get("word") == "BAD":
        incident = convicting[0] if convicting else "prolog"
        return f"{OURS}{incident} {seen.verdict.get('code', '')}: {seen.verdict.get('sentence', '')}"[:200]
    # Without an agent the prolog itself sent its evidence, which opened an incident.
    return f"{OURS}{convicting[0]} {convicting[1].value}" if convicting else None
