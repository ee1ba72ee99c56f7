"""Lists hardware to repair: nodes and GPUs at fault, with serial numbers, evidence and advice. Read-only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sentinel.adapters.store.batches import batched
from sentinel.adapters.store.store import Store
from sentinel.daemon.api.explanation import drained_for
from sentinel.daemon.api.scores import Scores
from sentinel.daemon.api.status import shown_state
from sentinel.daemon.incident_search import IncidentSearch
from sentinel.engine.history import as_corrected
from sentinel.model.records import OURS, Evidence, Fleet, NodeView, Scope, Trust, Verdict
from sentinel.wire import to_json

_TEXTS = 3  # lines of evidence quoted per node


def repairs(store: Store, fleet: Fleet, scores: Scores, *, user: str | None) -> list[dict[str, Any]]:
    """Drained nodes first, then those that fail more often than others or whose error counters age. Blocking.

    ``user``: texts of the machines themselves only, which anybody may read, and ``readable`` says whether this user may see
    the incident; None: all, and texts of jobs too.
    """
    drained = [node for node in fleet.nodes.values() if node.drained and _is_ours(node)]
    rows = [_drained(store, node, scores, user is None) for node in drained]
    seen = IncidentSearch(store).visible({row["incident"] for row in rows if row["incident"]}, user)
    rows = [row | {"readable": row["incident"] in seen} for row in rows]
    rows = _as_corrected(store, rows)
    named = {row["node"] for row in rows}
    for suspect in scores.suspects(name for name in fleet.nodes if name not in named):
        rows.append(_row(fleet.nodes[suspect["node"]], "suspect") | {"reasons": suspect["reasons"]})
    return rows


def _is_ours(node: NodeView) -> bool:
    return node.reason.startswith(OURS)


def _row(node: NodeView, why: str) -> dict[str, Any]:
    return {
        "node": node.name, "why": why, "state": shown_state(node), "incident": None, "since": None, "cause": None,
        "gpu": None, "gpu_uuid": None, "serial": None, "advice": "", "evidence": [], "reasons": [],
        "readable": False, "corrected": None,
    }  # fmt: skip


def _drained(store: Store, node: NodeView, scores: Scores, all_texts: bool) -> dict[str, Any]:
    row = _row(node, "drained") | {"reasons": scores.shown(node.name)["suspect_reasons"]}
    name = drained_for(node.reason)
    incident, verdict = store.incident(name), store.last_verdict(name)
    if incident is None or verdict is None:
        return row | {"reasons": [node.reason, *row["reasons"]]}
    return row | {
        "incident": incident.id,
        "since": to_json(incident.opened_at),
        "cause": str(verdict.cause),
        "advice": verdict.advice,
        "evidence": _texts(verdict, node.name, all_texts),
        **_part(verdict, incident.evidence, node.name),
    }


def _as_corrected(store: Store, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """With the causes that operators gave, and without the advice for what it was not: where no machine is at fault by
    their word, no GPU is named, either."""
    ids = [row["incident"] for row in rows if row["incident"]]
    known = {row["id"]: row for part in batched(ids) for row in store.incident_rows(ids=part, limit=len(part))}
    return [_corrected(row, known.get(row["incident"], {})) for row in rows]


def _corrected(row: dict[str, Any], incident: Mapping[str, Any]) -> dict[str, Any]:
    told = as_corrected(incident)
    if told is incident:
        return row
    gone: dict[str, Any] = {"advice": ""} if told["cause"] != row["cause"] else {}
    nobody = told["scope"] in (Scope.APPLICATION, Scope.CLUSTER)
    if nobody:
        gone = {"advice": "", "gpu": None, "gpu_uuid": None, "serial": None, "evidence": []}
    at = incident["corrections"][-1]["at"]
    return {**row, **gone, "cause": told["cause"], "corrected": {"was": row["cause"], "at": at, "no_machine": nobody}}


def _part(verdict: Verdict, evidence: Iterable[Evidence], node: str) -> dict[str, Any]:
    """The GPU at fault: its index, and UUID and serial number where the evidence has them."""
    indexes = [gpu.removeprefix(f"{node}:") for gpu in verdict.culprits.gpus if gpu.startswith(f"{node}:")]
    if not indexes:
        return {}
    of_gpu = [item for item in evidence if item.where.node == node and str(item.where.gpu) in indexes]
    uuids = {item.where.gpu_uuid: None for item in of_gpu if item.where.gpu_uuid}
    serials = {str(serial): None for item in of_gpu if (serial := _serial(item.data))}
    return {
        "gpu": ",".join(indexes),
        "gpu_uuid": ",".join(uuids) or None,
        "serial": ",".join(serials) or None,
    }


def _serial(data: Mapping[str, object]) -> object:
    return data.get("serial")


def _texts(verdict: Verdict, node: str, all_texts: bool) -> list[str]:
    grounds = [ground.evidence for ground in verdict.grounds if ground.evidence.where.node == node]
    shown = [item for item in grounds if all_texts or (item.trust is Trust.SYSTEM and item.where.job is None)]
    return list(dict.fromkeys(item.text or item.kind for item in shown))[:_TEXTS]
