"""What the command line shows, as JSON. Reading only.

Researchers see incidents and attempts of their own jobs; operators see all (uids in ``operators``, root, the daemon's own).
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Any

from sentinel import __version__
from sentinel.adapters.store import Store
from sentinel.classify.ageing import Counter as AgeingCounter
from sentinel.daemon.accounts import name_of
from sentinel.daemon.diagnoses import KEY as CHECKUPS
from sentinel.daemon.fleets import Fleets
from sentinel.daemon.histories import groups, job_of, nodes_of, wanted
from sentinel.daemon.judge import Judge
from sentinel.daemon.live import AttemptSeen, Live
from sentinel.daemon.orders import OrderBook
from sentinel.daemon.past import fleet_history
from sentinel.daemon.scores import Board
from sentinel.daemon.signals import Signals
from sentinel.errors import UserError
from sentinel.model import OURS, IncidentState, NodeView
from sentinel.planning.advice import recommend
from sentinel.planning.history import MtbfEstimate, history_from, job_mtbf
from sentinel.ports import Clock
from sentinel.settings import Settings
from sentinel.wire import to_json

_HISTORY_DAYS = 30.0
_MOST_DAYS = 36500.0
_SHOWN = 200
_SEARCHED = 5000  # newest incidents among which those of one researcher, one node or one id are looked for


class Views:
    def __init__(
        self,
        *,
        store: Store,
        live: Live,
        fleets: Fleets,
        judge: Judge,
        orders: OrderBook,
        settings: Settings,
        operators: set[int],
        clock: Clock,
        counters: Mapping[str, AgeingCounter] | None = None,
        signals: Signals | None = None,
    ) -> None:
        self._signals = signals
        self._board = Board(store, live, counters or {}, clock)
        self._store = store
        self._live = live
        self._fleets = fleets
        self._judge = judge
        self._orders = orders
        self._settings = settings
        self._operators = operators
        self._clock = clock
        self._views: dict[str, Callable[[dict[str, Any], str | None], Awaitable[dict[str, Any]]]] = {
            "status": self._status,
            "nodes": self._nodes,
            "jobs": self._jobs,
            "incidents": self._incidents,
            "why": self._why,
            "history": self._history,
            "doctor": self._doctor,
            "past": self._past,
        }

    async def show(self, view: str, arguments: dict[str, Any], uid: int) -> dict[str, Any]:
        if view not in self._views:
            raise UserError(f"no view {view!r}", fix="upgrade the daemon or the command line: their releases differ")
        return await self._views[view](arguments, None if uid in self._operators else name_of(uid))

    async def _status(self, _arguments: dict[str, Any], user: str | None) -> dict[str, Any]:
        fleet = self._live.fleet
        nodes = list(fleet.nodes.values()) if fleet else []
        rows = await self._seen_by(user)
        still_open = [row for row in rows if row["state"] != IncidentState.CLOSED]
        scores = await self._board.read()
        return {
            "at": self._clock.now(),
            "version": __version__,
            "cluster": self._settings.cluster,
            "paused": await asyncio.to_thread(self._store.get, "paused", False),
            "slurm": {
                "answers": fleet is not None and not self._fleets.problem,
                "problem": self._fleets.problem,
                "snapshot_at": fleet.at if fleet else None,
            },
            "nodes": dict(Counter(_shown_state(node) for node in nodes)),
            "agents": dict(
                Counter(self._live.nodes[n.name].state if n.name in self._live.nodes else "unknown" for n in nodes)
            ),
            "jobs": dict(Counter(job.state for job in fleet.jobs.values())) if fleet else {},
            "drained_by_us": sorted(node.name for node in nodes if node.drained and node.reason.startswith(OURS)),
            "prometheus": self._signals.shown if self._signals is not None else None,
            "suspects": scores.suspects([node.name for node in nodes]),
            "open_incidents": [_row(row) for row in still_open],
            "recent_incidents": [_row(row) for row in rows[:10]],
        }

    async def _seen_by(self, user: str | None, job: int | None = None) -> list[dict[str, Any]]:
        """The newest incidents that ``user`` may see (None: all)."""
        most = _SHOWN if user is None else _SEARCHED
        rows = await asyncio.to_thread(self._store.incident_rows, job=job, limit=most)
        return [row for row in rows if _may_see(row, user)][:_SHOWN]

    async def _nodes(self, arguments: dict[str, Any], user: str | None) -> dict[str, Any]:
        chosen = arguments.get("node")
        fleet = await self._fleets.take(5.0 if chosen is None else 0.5)  # who asks for one is about to change it
        now = self._clock.now()
        shown = [n for n in fleet.nodes.values() if chosen in (None, n.name)]
        if chosen is not None and not shown:
            raise UserError(f"Slurm knows no node {chosen!r}", fix="sinfo -N lists them")
        scores = await self._board.read()
        shown.sort(key=lambda node: _natural(node.name))
        shown.sort(key=lambda node: scores.suspicion(node.name), reverse=True)  # what comes again stands first
        rows = []
        if chosen is not None:
            since = now - timedelta(days=_HISTORY_DAYS)
            rows = await asyncio.to_thread(self._store.incident_rows, since=since, limit=_SEARCHED)
        tested = await asyncio.to_thread(self._store.get, CHECKUPS, {})
        return {
            "nodes": [
                {**self._node(node), "diagnostic": tested.get(node.name, {}), **scores.shown(node.name)}
                for node in shown
            ],
            "incidents": [_row(row) for row in rows if chosen in nodes_of(row) and _may_see(row, user)],
        }

    def _node(self, node: NodeView) -> dict[str, Any]:
        seen = self._live.nodes.get(node.name)
        job = self._live.job_on(node.name)
        return {
            "node": node.name,
            "state": _shown_state(node),
            "reason": node.reason,
            "partitions": list(node.partitions),
            "gpus": node.gpus,
            "agent": seen.state if seen else "unknown",
            "orders": self._orders.connected(node.name),
            "verdict": seen.verdict if seen else {},
            "clock_offset_s": seen.clock_offset_s if seen else None,
            "job": job.id if job else None,
            "holders": {str(job): sorted(gpus) for (job, _), gpus in seen.gpus.items()} if seen else {},
        }

    async def _jobs(self, arguments: dict[str, Any], user: str | None) -> dict[str, Any]:
        asked = job_of(arguments)
        since = None if asked is not None else self._clock.now() - timedelta(days=_HISTORY_DAYS)
        attempts = await asyncio.to_thread(self._store.attempts, job=asked, since=since)
        live = {(job, attempt): seen for (job, attempt), seen in self._live.attempts.items() if asked in (None, job)}
        mtbf = await asyncio.to_thread(self._job_mtbf)
        rows = []
        for row in attempts:
            seen = live.get((row["job"], row["attempt"]))
            now = (
                {"last_step": seen.last_step, "state": seen.view.state, "step_time_s": seen.step_time_s} if seen else {}
            )
            if user is None or row["user"] == user:
                rows.append(to_json({**row, **now, **(self._saving(seen, mtbf) if seen and not seen.ended else {})}))
        return {"attempts": rows}

    def _job_mtbf(self) -> Callable[[int], MtbfEstimate] | None:
        """MTBF of a job of so many GPUs, from our own history; None while there is none."""
        now = self._clock.now()
        document = fleet_history(self._store, self._live.fleet, now - timedelta(days=_HISTORY_DAYS), now)
        if document["gpu_s"] <= 0:
            return None
        past = history_from(document)
        return lambda gpus: job_mtbf(past, gpus)

    def _saving(self, seen: AttemptSeen, mtbf: Callable[[int], MtbfEstimate] | None) -> dict[str, Any]:
        """How often a running job saves, beside how often it should."""
        fleet = self._live.fleet
        gpus = sum((fleet.nodes[name].gpus or 0) for name in seen.nodes if name in fleet.nodes) if fleet else 0
        estimate = mtbf(gpus) if mtbf is not None and gpus > 0 else None
        advice = recommend(
            save_s=seen.save_s(),
            mtbf_s=estimate.mtbf_s if estimate else None,
            mtbf_low_s=estimate.mtbf_low_s if estimate else None,
            mtbf_high_s=estimate.mtbf_high_s if estimate else None,
            interval_s=seen.save_interval_s(),
        )
        return {
            "save_interval_s": seen.save_interval_s(),
            "save_s": seen.save_s(),
            "recommended_interval_s": advice.interval_s,
            "interval_verdict": advice.verdict,
            "interval_reason": advice.reason,
            "overlap_fraction": advice.overlap.overlap_fraction if advice.overlap else None,
            "lost_per_failure_s": advice.lost_per_failure_s,
        }

    async def _incidents(self, arguments: dict[str, Any], user: str | None) -> dict[str, Any]:
        return {"incidents": [_row(row) for row in await self._seen_by(user, job_of(arguments))]}

    async def _why(self, arguments: dict[str, Any], user: str | None) -> dict[str, Any]:
        name = str(arguments.get("incident", ""))
        rows = await asyncio.to_thread(self._store.incident_rows, limit=_SEARCHED)
        found = [row for row in rows if name and row["id"].startswith(name) and _may_see(row, user)]
        if len(found) != 1:
            what = "is ambiguous" if found else "is not known"
            raise UserError(f"incident {name!r} {what}", fix="sentinel incidents lists them")
        return await asyncio.to_thread(self._explain, found[0])

    def _explain(self, row: dict[str, Any]) -> dict[str, Any]:
        incident, verdict = self._store.incident(row["id"]), self._store.last_verdict(row["id"])
        plan = self._store.plan_of(row["id"])
        return {
            "incident": _row(row),
            "verdict": to_json(verdict) if verdict else None,
            "plan": to_json(plan) if plan else None,
            "steps": [
                {
                    name: to_json(step[name])
                    for name in (
                        "kind",
                        "node",
                        "job",
                        "attempt",
                        "intended_at",
                        "result",
                        "finished_at",
                        "reason",
                        "data",
                    )
                }
                for step in self._store.steps_of(row["id"])
            ],
            "evidence": to_json(incident.evidence) if incident else [],
        }

    async def _history(self, arguments: dict[str, Any], user: str | None) -> dict[str, Any]:
        days, chosen = _days(arguments), wanted(arguments)
        now = self._clock.now()
        rows = await asyncio.to_thread(self._store.incident_rows, since=now - timedelta(days=days), limit=_SEARCHED)
        rows = [row for row in rows if _may_see(row, user) and chosen.has(row)]
        scores = await self._board.read()
        by = groups(rows)
        for group in by["node"]:
            group["score"] = scores.shown(group["key"])["score"]
        return {"days": days, "incidents": [_row(row) for row in rows], "by": by}

    async def _past(self, arguments: dict[str, Any], _user: str | None) -> dict[str, Any]:
        now = self._clock.now()
        since = now - timedelta(days=_days(arguments))
        return await asyncio.to_thread(fleet_history, self._store, self._live.fleet, since, now)

    async def _doctor(self, _arguments: dict[str, Any], _user: str | None) -> dict[str, Any]:
        fleet = self._live.fleet
        return {
            "version": __version__,
            "slurm_problem": self._fleets.problem,
            "modes": to_json(self._settings.modes),
            "resume": self._settings.daemon.resume,
            "nodes": {
                name: {
                    "agent": self._live.nodes[name].state if name in self._live.nodes else "unknown",
                    "clock_offset_s": self._live.nodes[name].clock_offset_s if name in self._live.nodes else None,
                }
                for name in sorted(fleet.nodes if fleet else {})
            },
        }


def _days(arguments: dict[str, Any]) -> float:
    days = arguments.get("days", _HISTORY_DAYS)
    if not isinstance(days, (int, float)) or isinstance(days, bool) or not 0.0 < days <= _MOST_DAYS:
        raise UserError(f"{days!r:.40} is no number of days", fix=f"more than 0 and at most {_MOST_DAYS:g}")
    return float(days)


def _may_see(row: dict[str, Any], user: str | None) -> bool:
    return user is None or row["user"] == user


def _row(row: dict[str, Any]) -> dict[str, Any]:
    shown: dict[str, Any] = to_json({key: value for key, value in row.items() if key != "nodes"})
    return shown


def _natural(name: str) -> list[tuple[int, str]]:
    """n2 before n10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name) if part]


def _shown_state(node: NodeView) -> str:
    if node.state == "down":
        return "down"
    if node.drained:
        return "drained" if node.state == "idle" else "draining"
    return "not responding" if "not_responding" in node.flags else node.state
