"""What the agents of a job's nodes say right now, where the job ended soon after it began there.

The reports of a fault that lasts are made once: a job that begins on the node long after them, or after somebody returned
the node to service with the fault still there, fails by what no new report tells of.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from sentinel.config.convictions import Convictions, Drain
from sentinel.correlate import incidents
from sentinel.correlate.attempt_times import ran
from sentinel.detect.cluster_view import ClusterView
from sentinel.detect.seen import NodeSeen
from sentinel.evidence.dcgm_conditions import HOLDS, KINDS
from sentinel.model.records import Evidence, Incident, Source, Trust, Where, stable_id
from sentinel.model.vocabulary import STILL_THERE

_GPU = re.compile(r"\bgpu(\d{1,3})\b")  # as an agent names one in its verdict
_BAD = "BAD"


def standing_faults(
    incident: Incident, cluster: ClusterView, convictions: Convictions, window: timedelta, now: datetime
) -> list[Evidence]:
    """Faults that telemetry shows now on nodes of the incident's job, and of which the incident knows nothing yet.

    Not where the job ran there for longer than ``window``, or may have, nor where all GPUs that are named are known to be
    others' than the job's. A fault that only the past shows is none of these: a return to service settles it.
    """
    job, attempt = incident.job, incident.attempt
    over = [item.at for item in incident.evidence if incidents.ends(item)]
    if job is None or attempt is None or not over:
        return []
    began = ran(job, attempt, cluster.fleet.jobs.get(job) if cluster.fleet is not None else None, cluster)[0]
    if began is None or max(over) - began > window:
        return []
    told = {
        item.where.node for item in incident.evidence if item.trust is Trust.SYSTEM and convictions.of(item).convicts
    }
    found = []
    for name in cluster.nodes_of(job, attempt):
        seen = cluster.nodes.get(name)
        kind = _kind(seen, convictions) if seen is not None and name not in told else None
        if seen is None or kind is None:
            continue
        sentence = str(seen.verdict.get("sentence") or "")
        gpus, held = frozenset(map(int, _GPU.findall(sentence))), seen.gpus.get((job, attempt))
        if gpus and held is not None and not gpus & held:
            continue
        gpu = next(iter(gpus)) if len(gpus) == 1 else None
        identity = stable_id(STILL_THERE, job, attempt, began, name, kind)
        where, text = Where(node=name, gpu=gpu), f"the node's agent says: {sentence}"
        at = min(_said_at(seen) or now, now)
        found.append(Evidence(identity, at, now, Source.AGENT, kind, where, text, data={STILL_THERE: True}))
    return found


def _kind(seen: NodeSeen, convictions: Convictions) -> str | None:
    """The kind of evidence of the fault for which the agent calls its node bad; None: it does not, or for something past."""
    if seen.state != "heard" or seen.verdict.get("word") != _BAD:
        return None
    code = str(seen.verdict.get("code"))
    kind = KINDS.get(code, code)
    return kind if kind in HOLDS and convictions.condition(kind) is Drain.YES else None


def _said_at(seen: NodeSeen) -> datetime | None:
    """When the agent said so, by the node's clock; None: not known."""
    at_s = seen.verdict.get("at_s")
    try:
        return datetime.fromtimestamp(at_s, UTC) if isinstance(at_s, int) else None
    except (OverflowError, OSError, ValueError):
        return None
