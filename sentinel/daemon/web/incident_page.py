"""Makes the page of an incident: a timeline of evidence, verdict, steps and outcome."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from sentinel.model.approvals import ASKING, beside_waits
from sentinel.model.vocabulary import cause_words, result_words, words_of

if TYPE_CHECKING:
    from sentinel.daemon.web.pages import Asked

_EVIDENCE = 100  # most evidence in a timeline; evidence that decided the verdict is always shown


async def make(asked: Asked) -> tuple[str, dict[str, Any]]:
    asks = None if asked.viewer.operator else asked.viewer.name  # also where everybody sees everything
    seen = await asked.view("why", incident=asked.name, asks=asks)
    return "incident.html", {**seen, "events": timeline(seen), "more": max(0, len(seen["evidence"]) - _EVIDENCE)}


def timeline(seen: dict[str, Any]) -> list[dict[str, Any]]:
    """Events in order of time: each with ``at``, ``kind`` (evidence, verdict, step, wait, outcome), ``what``, ``where``,
    ``text``."""
    incident, verdict, plan = seen["incident"], seen["verdict"], seen["plan"]
    decisive = {ground["evidence"]["id"] for ground in (verdict or {}).get("grounds", ())}
    evidence = sorted(seen["evidence"], key=lambda item: (item["id"] not in decisive, _time(item)))[:_EVIDENCE]
    events = [
        {
            "at": item["at"], "kind": "evidence", "what": item["kind"].replace("_", " "), "where": _where(item["where"]),
            "text": item["text"], "source": item["source"], "decisive": item["id"] in decisive, "trust": item["trust"],
        }
        for item in evidence
    ]  # fmt: skip
    if incident["decided_at"] and verdict:
        events.append(
            {
                "at": incident["decided_at"],
                "kind": "verdict",
                "what": cause_words(verdict["cause"]),
                "where": "",
                "text": "",
            }
        )
    waits = (plan or {}).get("waits", ())
    waiting = {wait["explanation"] for wait in waits}
    asked = any(wait["kind"] in ASKING for wait in waits)
    said = beside_waits(plan["explanation"], waits) if plan else ""
    if plan and not asked and (said or not waits) and (plan["refusal"] or plan["observe_only"]):
        word = plan["refusal"] or "observe mode: planned, not done"
        events.append({"at": plan["at"], "kind": "wait", "what": word, "where": "", "text": said})
    for wait in waits:
        events.append({"at": wait["since"], "kind": "wait", "what": wait["kind"], "where": ", ".join(wait["what"]),
                       "text": wait["explanation"]})  # fmt: skip
    for step in seen["steps"]:
        what = f"{words_of(step)}: {result_words(step['result'])}"
        events.append({"at": step["finished_at"] or step["intended_at"], "kind": "step", "what": what, "where": "",
                       "text": step["reason"]})  # fmt: skip
    if incident["closed_at"] or (incident["outcome"] and incident["outcome"] not in waiting):
        events.append({"at": incident["closed_at"] or incident["updated_at"], "kind": "outcome", "what": incident["state"],
                       "where": "", "text": incident["outcome"]})  # fmt: skip
    order = ("evidence", "verdict", "wait", "step", "outcome")
    events.sort(key=lambda event: (_time(event), order.index(event["kind"])))
    return events


def _time(event: Mapping[str, Any]) -> datetime:
    """Not the text: a whole second has no fraction in it."""
    return datetime.fromisoformat(event["at"])


def _where(where: dict[str, Any]) -> str:
    parts = [where["node"] or ""]
    parts += [f"GPU {where['gpu']}"] if where["gpu"] is not None else []
    parts += [where["nic"]] if where["nic"] else []
    parts += [f"rank {where['rank']}"] if where["rank"] is not None else []
    return " ".join(part for part in parts if part)
