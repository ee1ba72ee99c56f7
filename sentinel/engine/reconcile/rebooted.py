"""Tells which reports against a node a reboot has ended: those that its agent holds against it by itself until then.

The agent's verdict (``agent.health.verdict``) ends with a reboot, and what a reboot does not mend its telemetry shows again.
A report of the boot before may be heard days later, by a daemon that was away meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from sentinel.config.convictions import Drain
from sentinel.correlate.attempt_times import SLACK
from sentinel.engine.state import State
from sentinel.model.records import Evidence, Incident, Kind, Source, Trust
from sentinel.model.vocabulary import ABSENCE, STILL_THERE

_TELEMETRY = frozenset({Source.DCGM, Source.NVML, Source.AMD_SMI})
_AGENT_KEEPS = frozenset(
    {Kind.XID, Kind.DIAG_FAILED}
)  # what an agent holds against its node, beside what telemetry shows


def against(state: State, incident: Incident, node: str) -> list[Evidence]:
    """What the incident and its verdict have against the node, each once, without what users or its absence say."""
    verdict = state.verdicts.get(incident.id)
    grounds = (ground.evidence for ground in verdict.grounds) if verdict is not None else ()
    told = {
        item.id: item
        for item in (*incident.evidence, *grounds)
        if item.where.node == node and item.trust is Trust.SYSTEM and item.kind not in ABSENCE
    }
    return list(told.values())


def agent_holds(state: State, told: Iterable[Evidence]) -> bool:
    """Whether something of this convicts its node, and the node's agent holds all that does against it by itself."""
    convicting = [item for item in told if state.rules.convictions.of(item).convicts]
    return bool(convicting) and all(
        state.rules.convictions.of(item) is Drain.YES
        and (item.kind in _AGENT_KEEPS or item.source in _TELEMETRY or STILL_THERE in item.data)
        for item in convicting
    )


def ended_by_reboot(state: State, incident: Incident, node: str, since: datetime) -> bool:
    """Whether the node was started anew after ``since``, and its agent, which would hold what the incident convicts it for
    against it, finds nothing against it.

    Not a node that was convicted before: a fault that comes again is not mended by a reboot. Nor where the test failed,
    which says more than the agent sees.
    """
    seen = state.cluster.nodes.get(node)
    if seen is None or seen.state != "heard" or seen.verdict.get("word") != "OK":
        return False
    if seen.booted_at is None or seen.booted_at <= since + SLACK:
        return False
    told = against(state, incident, node)
    if any(item.kind == Kind.DIAG_FAILED for item in told) or not agent_holds(state, told):
        return False
    return not any(past.node == node and past.blamed for past in state.past.failures(without=incident.id).failures)
