"""Makes the views (JSON) that the command line and the web page show. Read-only.

Researchers see incidents and attempts of their own jobs; operators (``[daemon] operators``, root, the daemon's uid) all.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from sentinel import __version__
from sentinel.adapters.resume_file import ResumeFiles
from sentinel.adapters.store.store import Store
from sentinel.classify.ageing import Counter as AgeingCounter
from sentinel.config.settings import Settings
from sentinel.daemon.api import status as state_of
from sentinel.daemon.api.accounts import account_of
from sentinel.daemon.api.commands import RELEASED_BY
from sentinel.daemon.api.explanation import NOTHING, Meant, by_id, explained, job_named, meant, others, shown_row
from sentinel.daemon.api.fleet_history import fleet_history
from sentinel.daemon.api.histories import (
    FailureFilter,
    components,
    days_of,
    failure_filter,
    groups,
    job_of,
    node_list,
    picked,
    since_of,
    with_task_ids,
)
from sentinel.daemon.api.jobs import JobAttempts
from sentinel.daemon.api.lost import BY, grouped, rounded, sums
from sentinel.daemon.api.repairs import repairs
from sentinel.daemon.api.report import past_of, report, reported_since
from sentinel.daemon.api.scores import CachedScores, running
from sentinel.daemon.audit.listing import audit
from sentinel.daemon.effects.messages import messages
from sentinel.daemon.effects.orders import OrderBook
from sentinel.daemon.incident_search import SHOWN, Found, IncidentSearch, listed
from sentinel.daemon.ingest.fleets import FleetSnapshots
from sentinel.daemon.ingest.prologs import Prologs
from sentinel.daemon.ingest.prometheus_signals import PrometheusSignals
from sentinel.detect.cluster_view import ClusterView
from sentinel.engine.diagnostics.state import KEPT as CHECKUPS
from sentinel.engine.node_return import state as returns
from sentinel.errors import Unavailable, UserError
from sentinel.model.hostlist import natural
from sentinel.model.records import OURS, Fleet, IncidentState, NodeView, Wait
from sentinel.ports import Clock

Place = AbstractAsyncContextManager[None]
Make = Callable[[dict[str, Any], str | None], Awaitable[dict[str, Any]]]
_HISTORY_DAYS = 30.0
_RECENT = 10  # newest incidents of the status
_ATTEMPTS = 2000  # attempts in a view of jobs that are over; those that run are shown beside
_NODE_MAX_AGE_S = 0.5  # greatest age of the snapshot when one node is shown, as it may be drained or released next
_LISTING_S = 5.0  # greatest age of the snapshot for listings
_FOLDER_S = 2.0  # after which it is not known whether the resume folder can be written


class Views:
    def __init__(
        self,
        *,
        store: Store,
        live: ClusterView,
        fleets: FleetSnapshots,
        orders: OrderBook,
        settings: Settings,
        operators: set[int],
        clock: Clock,
        counters: Mapping[str, AgeingCounter] | None = None,
        signals: PrometheusSignals | None = None,
        prologs: Prologs,
        daemons: Callable[[], list[dict[str, Any]]] = list,
        outage: Callable[[], dict[str, Any] | None] = lambda: None,
    ) -> None:
        """``daemons``: all on this database, active and standby. ``outage``: since when the store takes nothing, and why."""
        self._daemons, self.outage = daemons, outage
        self._prologs = prologs
        self._signals = signals
        self._board = CachedScores(store, live, counters or {}, clock)
        self._store = store
        self._live = live
        self._fleets = fleets
        self._orders = orders
        self._settings = settings
        self._resume = ResumeFiles(settings.daemon.resume, deadline_s=_FOLDER_S)
        self._operators = operators
        self._clock = clock
        self._attempts = JobAttempts(store, live, clock)
        self._search = IncidentSearch(store)
        self._filter = partial(failure_filter, live=live, store=store)
        self._views: dict[str, Make] = {
            "jobs": self._jobs,
            "incidents": self._incidents,
            "history": self._history,
            "doctor": self._doctor,
            "past": self._past,
            "lost": self._lost,
            "names": self._names,
            "audit": lambda arguments, user: audit(store, arguments, user),
            "curves": self._curves,
            "report": self._report,
            "alerts": lambda asked, user: messages(store, clock.now(), asked, user, settings.alerts.channels),
        }
        # What is asked of Slurm for a view, and what makes the view of it.
        self._of_slurm: dict[str, tuple[Callable[[dict[str, Any]], Awaitable[Any]], Callable[..., Any]]] = {
            "status": (lambda _arguments: fleets.after_changes(), self._status),
            "nodes": (self._asked_nodes, self._nodes),
            "why": (lambda arguments: fleets.node(str(arguments.get("what", "")), _NODE_MAX_AGE_S), self._why),
            "repairs": (lambda _arguments: fleets.take(_LISTING_S), self._repairs),
        }

    async def show(self, view: str, arguments: dict[str, Any], uid: int, place: Place | None = None) -> dict[str, Any]:
        user = None if uid in self._operators else await account_of(uid)
        return await self.show_to(view, arguments, user, place)

    async def show_to(
        self, view: str, arguments: dict[str, Any], user: str | None, place: Place | None = None
    ) -> dict[str, Any]:
        """Make a view as ``user`` may see it; None: an operator, who sees everything.

        Args:
            place: waited for and held while the view is computed, not while Slurm is asked, which may not answer.
        """
        make: Make | None = self._views.get(view)
        arguments = with_task_ids(arguments, self._live)
        if view in self._of_slurm:
            ask, of = self._of_slurm[view]
            make = partial(of, await ask(arguments))
        if make is None:
            raise UserError(f"no view {view!r}", fix="upgrade the daemon or the command line: their releases differ")
        async with place or nullcontext():
            made = await make(arguments, user)
        return made if user is None else {**made, "own_only": True}

    async def _status(self, fleet: Fleet | None, _arguments: dict[str, Any], user: str | None) -> dict[str, Any]:
        nodes = list(fleet.nodes.values()) if fleet else []
        still_open = await asyncio.to_thread(self._search.newest, user, still_open=True)
        recent = await asyncio.to_thread(self._search.newest, user, most=_RECENT)
        waits = await asyncio.to_thread(self._waits, still_open.rows)
        scores = await self._board.read()
        return {
            "at": self._clock.now(),
            "version": __version__,
            "cluster": self._settings.cluster,
            "daemons": self._daemons(),
            "outage": self.outage(),
            "slurm": {
                "answers": fleet is not None and not self._fleets.problem,
                "problem": self._fleets.problem,
                "snapshot_at": fleet.at if fleet else None,
                **state_of.unread_records(fleet),
            },
            **await asyncio.to_thread(self._acting, fleet, user, waits),
            "nodes": dict(Counter(state_of.shown_state(node) for node in nodes)),
            "agents": dict(Counter(self._agent(node.name)["agent"] for node in nodes)),
            "without_prolog": [node.name for node in nodes if self._prologs.missing(node.name)],
            "clock_ahead_s": self._live.own_clock_ahead_s(),
            "jobs": dict(Counter(job.state for job in fleet.jobs.values())) if fleet else {},
            "drained_by_us": sorted(node.name for node in nodes if node.drained and node.reason.startswith(OURS)),
            "prometheus": self._signals.shown if self._signals is not None else None,
            "suspects": scores.suspects([node.name for node in nodes]),
            "open_incidents": [shown_row(row, waits) for row in still_open.rows],
            "open_cut": still_open.cut,
            "recent_incidents": [shown_row(row, waits) for row in recent.rows],
        }

    def _acting(self, fleet: Fleet | None, user: str | None, waits: Mapping[str, Sequence[Wait]]) -> dict[str, Any]:
        """What Sentinel may do, is doing, would have done and asks for. Blocking."""
        now, settings = self._clock.now(), self._settings
        paused = bool(self._store.get("paused", False))
        modes = state_of.modes_by_partition(settings.modes, fleet, paused=paused)
        return {
            "paused": paused,
            "mode": state_of.overall(settings.modes, modes, paused=paused),
            "modes": modes,
            "breakers": state_of.breaker(self._store, settings.limits, now),
            "budget": state_of.budget(self._store, fleet, settings.limits, now),
            "under_way": state_of.under_way(self._store, partial(self._search.visible, user=user)),
            **state_of.would_have_done(self._store, partial(self._search.visible, user=user), now),
            "asked": state_of.asked_for(waits),
            "comment_problems": state_of.comment_problems(fleet, user),
        }

    def _waits(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, tuple[Wait, ...]]:
        """What the incidents of these rows wait for. Blocking."""
        return self._store.waits_of([row["id"] for row in rows if row["state"] != IncidentState.CLOSED])

    async def _asked_nodes(self, arguments: dict[str, Any]) -> tuple[tuple[str, ...] | None, Fleet]:
        chosen = await asyncio.to_thread(node_list, arguments)
        try:
            return chosen, await self._fleets.take(_LISTING_S if chosen is None else _NODE_MAX_AGE_S)
        except Unavailable:
            if not arguments.get("last_known") or self._live.fleet is None:
                raise
            return chosen, self._live.fleet  # may be old: the caller shows its age

    async def _nodes(
        self, asked: tuple[tuple[str, ...] | None, Fleet], arguments: dict[str, Any], user: str | None
    ) -> dict[str, Any]:
        chosen, fleet = asked
        shown = picked(chosen, (*fleet.nodes.values(), *state_of.unread_nodes(fleet)))
        scores = await self._board.read()
        shown.sort(key=lambda node: natural(node.name))
        shown.sort(key=lambda node: scores.suspicion(node.name), reverse=True)  # suspect nodes first
        found = Found()
        if chosen is not None:
            since = since_of(arguments) or self._clock.now() - timedelta(days=_HISTORY_DAYS)
            named = FailureFilter(nodes=frozenset(chosen))
            found = await asyncio.to_thread(self._search.matching, user, named, since=since)
        waits = await asyncio.to_thread(self._waits, found.rows)
        tested = await asyncio.to_thread(self._store.get, CHECKUPS, {})
        returning = await asyncio.to_thread(self._store.get, returns.KEPT, {})
        released_by = await asyncio.to_thread(self._store.get, RELEASED_BY, {})
        return {
            "nodes": [
                {
                    **self._node(node, released_by),
                    "diagnostic": tested.get(node.name, {}),
                    "return": returns.of_node(returning, node),
                    **scores.shown(node.name),
                }
                for node in shown
            ],
            "incidents": [shown_row(row, waits) for row in found.rows],
            "cut": found.cut,
            "seen_at": fleet.at,
        }

    def _node(self, node: NodeView, released_by: Mapping[str, str]) -> dict[str, Any]:
        seen = self._live.nodes.get(node.name)
        job = self._live.job_on(node.name)
        return {
            **state_of.as_slurm_says(node),
            "released": state_of.released(seen, released_by.get(node.name)),
            "agent": seen.state if seen else "unknown",
            "orders": self._orders.connected(node.name),
            "verdict": seen.verdict if seen else {},
            "prolog": self._prologs.of(node.name),
            "clock_offset_s": seen.clock_offset_s if seen else None,
            "job": job.id if job else None,
            "holders": {str(job): sorted(gpus) for (job, _), gpus in seen.gpus.items()} if seen else {},
        }

    async def _jobs(self, arguments: dict[str, Any], user: str | None) -> dict[str, Any]:
        chosen = await asyncio.to_thread(self._filter, arguments)
        since = since_of(arguments) or self._clock.now() - timedelta(days=_HISTORY_DAYS)
        return await asyncio.to_thread(self._made, chosen, user, since, arguments.get("page"))

    def _made(self, chosen: FailureFilter, user: str | None, since: datetime | None, page: object) -> dict[str, Any]:
        """Whole jobs that match: what one gained and lost is known from all its attempts. Blocking."""
        jobs, since = ({chosen.job}, None) if chosen.job is not None else (None, since)
        failed = Found()
        if user is not None and chosen.user not in (None, user):
            jobs = set()
        elif chosen.cause is not None:
            failed = self._search.matching(user, chosen, since=since)
            jobs = {row["job"] for row in failed.rows if row["job"] is not None}
        attempts, cut, of_page = self._attempts.of_jobs(
            since=since, user=user or chosen.user, nodes=chosen.nodes, jobs=jobs, most=_ATTEMPTS, page=page
        )
        slurm = self._attempts.in_slurm(chosen.job, user or chosen.user) if not attempts else None
        refused = self._prologs.refusals.of(chosen.job, self._live) if attempts or slurm else []
        found = self._search.of_jobs(user, {row["job"] for row in attempts} | chosen.parts, since=since)
        shown = self._attempts.shown(attempts, found.rows)
        rows = list(map(partial(shown_row, waits=self._waits(found.rows)), found.rows))
        cut = cut or failed.cut or found.cut
        return {"attempts": shown, "incidents": rows, "slurm": slurm, "refused": refused, "cut": cut, **of_page}

    async def _incidents(self, arguments: dict[str, Any], user: str | None) -> dict[str, Any]:
        chosen, since = await asyncio.to_thread(self._filter, arguments), since_of(arguments)
        most = listed(arguments, chosen)
        found = await asyncio.to_thread(self._search.matching, user, chosen, since=since, most=most)
        waits = await asyncio.to_thread(self._waits, found.rows)
        return {"incidents": [shown_row(row, waits) for row in found.rows], "cut": found.cut}

    async def _lost(self, arguments: dict[str, Any], user: str | None) -> dict[str, Any]:
        by = arguments.get("by", "job")
        if by not in BY:
            raise UserError(f"{by!r:.40} is nothing to group by", fix=f"known are {', '.join(BY)}")
        chosen = await asyncio.to_thread(self._filter, arguments)
        since = since_of(arguments) or self._clock.now() - timedelta(days=_HISTORY_DAYS)
        seen = await asyncio.to_thread(self._search.of_attempts, user, chosen, since=since)
        attempts = await asyncio.to_thread(self._attempts.read, since=since)
        found = await asyncio.to_thread(self._attempts.lost, seen.rows, attempts, chosen)
        return {
            "by": by,
            "since": since,
            "rows": grouped(found, by),
            "failures": len(found),
            **rounded(sums((loss, 1.0) for loss in found)),
            "cut": seen.cut,
        }

    async def _report(self, arguments: dict[str, Any], user: str | None) -> dict[str, Any]:
        now = self._clock.now()
        since = reported_since(arguments, now)
        seen = await asyncio.to_thread(self._search.counted, user, since=since - (now - since))
        past = await asyncio.to_thread(past_of, self._attempts, self._live, seen, since=since, until=now, user=user)
        made = await asyncio.to_thread(report, self._store, self._attempts, past, await self._board.read())
        return {"cluster": self._settings.cluster, "cut": seen.cut, **made}

    async def _repairs(self, fleet: Fleet, _arguments: dict[str, Any], user: str | None) -> dict[str, Any]:
        scores = await self._board.read()
        return {"repairs": await asyncio.to_thread(repairs, self._store, fleet, scores, user=user)}

    async def _names(self, _arguments: dict[str, Any], user: str | None) -> dict[str, Any]:
        """Names for shell completion: nodes, and the jobs and incidents that the person may see."""
        rows = (await asyncio.to_thread(self._search.newest, user, most=SHOWN)).rows
        fleet = self._live.fleet
        jobs = {row["job"]: None for row in rows if row["job"] is not None}
        return {
            "nodes": sorted(fleet.nodes, key=natural) if fleet is not None else [],
            "jobs": list(jobs),
            "incidents": [row["id"] for row in rows],
        }

    async def _curves(self, arguments: dict[str, Any], user: str | None) -> dict[str, Any]:
        """Loss and step time of a job's attempts."""
        job = job_of(arguments)
        if job is None:
            raise UserError("no job is named", fix="squeue and sacct list them")
        return {"job": job, "curves": await asyncio.to_thread(self._attempts.curves, job, user)}

    async def _why(self, node: NodeView | None, arguments: dict[str, Any], user: str | None) -> dict[str, Any]:
        if "what" not in arguments:
            name = str(arguments.get("incident", ""))
            row = by_id(name, await asyncio.to_thread(self._search.beginning, name, user))
            return await asyncio.to_thread(explained, self._store, row, self._live.fleet, user or arguments.get("asks"))
        what, attempts = str(arguments["what"]), []
        parts = await asyncio.to_thread(components, self._live, job := job_named(what), self._store)
        if job is not None:
            attempts = await asyncio.to_thread(self._attempts.read, job=job, user=user)
        slurm = self._attempts.in_slurm(job, user) if not attempts else None
        rows = await asyncio.to_thread(self._search.named, what, parts, user, is_node=node is not None)
        asked = meant(what, rows, node=node, has_job=bool(attempts or slurm), parts=parts, user=user)
        refused = self._prologs.refusals.of(job, self._live) if attempts or slurm else []
        return await self._answer(asked, node, attempts, user) | {"slurm": slurm, "refused": refused}

    async def _answer(
        self, asked: Meant, node: NodeView | None, attempts: list[dict[str, Any]], user: str | None
    ) -> dict[str, Any]:
        fleet, first = self._live.fleet, {**NOTHING, "to_do": None if user is None else ""}
        if asked.found:
            first = await asyncio.to_thread(explained, self._store, asked.found[0], fleet, user)
        answer = {"asked": {"kind": asked.kind, "name": asked.name}, **first, **others(asked)}
        if asked.kind == "node" and node is not None:
            scores = await self._board.read()
            known = returns.of_node(await asyncio.to_thread(self._store.get, returns.KEPT, {}), node)
            released_by = await asyncio.to_thread(self._store.get, RELEASED_BY, {})
            answer["node"] = {**self._node(node, released_by), "return": known, **scores.shown(node.name)}
        if asked.kind == "job":
            answer["attempts"] = await asyncio.to_thread(self._attempts.shown, attempts, asked.found)
        return answer

    async def _history(self, arguments: dict[str, Any], user: str | None) -> dict[str, Any]:
        days, chosen = days_of(arguments, _HISTORY_DAYS), await asyncio.to_thread(self._filter, arguments)
        since = since_of(arguments) or self._clock.now() - timedelta(days=days)
        seen = await asyncio.to_thread(self._search.matching, user, chosen, since=since)
        rows, scores = chosen.counted(seen.rows), await self._board.read()
        by = groups(rows)
        for group in by["node"]:
            group["score"] = scores.shown(group["key"])["score"]
        counted = {row["id"] for row in rows}
        # As judged; what operators said is beside.
        shown = [shown_row(row) for row in seen.rows if row["id"] in counted]
        return {"days": days, "since": since, "cut": seen.cut, "incidents": shown, "by": by}

    async def _past(self, arguments: dict[str, Any], _user: str | None) -> dict[str, Any]:
        now = self._clock.now()
        since = now - timedelta(days=days_of(arguments, _HISTORY_DAYS))
        return await asyncio.to_thread(fleet_history, self._store, self._live.fleet, since, now, running(self._live))

    async def _doctor(self, _arguments: dict[str, Any], user: str | None) -> dict[str, Any]:
        fleet = self._live.fleet
        return {
            "version": __version__,
            "daemons": self._daemons(),
            "outage": self.outage(),
            "slurm_problem": self._fleets.problem,
            **state_of.unread_records(fleet),
            "dependents": state_of.dependents(fleet),
            **await asyncio.to_thread(state_of.own_state, self._settings, self._store, fleet, user),
            "resume_writable": await self._resume.writable(),
            "resume_read_only": await self._resume.read_only(),
            "nodes": {n: self._agent(n) | state_of.switched(fleet, n) for n in sorted(fleet.nodes if fleet else {})},
        }

    def _agent(self, name: str) -> dict[str, Any]:
        return {**state_of.agent_of(self._live.nodes.get(name)), "prolog": self._prologs.of(name)}
