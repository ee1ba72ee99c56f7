"""Makes each page: reads the command line's views, as the person may see them, and renders a template."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sentinel.daemon.api.histories import node_list
from sentinel.daemon.api.views import Place, Views
from sentinel.daemon.web import fleet_map, incident_page, job_page, plan_page, report_page
from sentinel.daemon.web.access import Viewer
from sentinel.daemon.web.charts import bars
from sentinel.daemon.web.templates import render
from sentinel.errors import UserError
from sentinel.model.vocabulary import Cause
from sentinel.planning.limits import PlanningError
from sentinel.planning.quantities import duration
from sentinel.ports import Clock
from sentinel.wire import to_json

OLD_S = (
    60.0  # age of Slurm's answer that is said: it is asked anew for each page, and shown as it was where it is silent
)
ROWS = 200  # rows of a table per page
_EPOCH = to_json(datetime.fromtimestamp(0, tz=UTC))
_LONGEST = 4096  # most characters of one part of a request

Query = Mapping[str, str]
Make = Callable[["Asked"], Awaitable[tuple[str, dict[str, Any]]]]


@dataclass(frozen=True, slots=True)
class Asked:
    """One request: who made it, the name in its path (a node, job or incident), and its arguments."""

    viewer: Viewer
    user: str | None  # whose jobs may be seen; None: everybody's
    name: str
    query: Query
    now: datetime
    views: Views
    racks: re.Pattern[str] | None
    place: Callable[[], Place] = nullcontext  # held while a view is computed

    async def view(self, name: str, **arguments: Any) -> dict[str, Any]:
        shown: dict[str, Any] = to_json(await self.records(name, **arguments))
        return shown

    async def records(self, name: str, **arguments: Any) -> dict[str, Any]:
        """A view before its conversion to JSON, for a page that shows a small part of it."""
        return await self.views.show_to(name, arguments, self.user, self.place())

    def filters(self, *names: str) -> dict[str, Any]:
        """A view's arguments, taken from those of the request; empty ones are left out.

        Raises:
            UserError: a malformed job id or time.
        """
        found: dict[str, Any] = {
            name: value for name in names if (value := self.query.get(name, "").strip()[:_LONGEST])
        }
        if "job" in found:
            if not found["job"].isdecimal() or len(found["job"]) > 20:
                raise UserError(f"{found['job']!r:.40} is no id of a job", fix="squeue and sacct list them")
            found["job"] = int(found["job"])
        if "since" in found:
            found["since"] = since_of(found["since"], self.now)
        return found

    def old(self, listing: Mapping[str, Any]) -> str | None:
        """When Slurm was seen as a listing of nodes shows it, where that is old; None: just now."""
        seen_at = listing["seen_at"]
        return seen_at if (self.now - datetime.fromisoformat(seen_at)).total_seconds() > OLD_S else None

    @property
    def start(self) -> int:
        value = self.query.get("from", "")
        return int(value) if value.isdecimal() and len(value) < 9 else 0


def since_of(text: str, now: datetime) -> str:
    """The ISO 8601 time for ``7d`` or ``12h`` ago, or for a date.

    Raises:
        UserError: ``text`` is none of these.
    """
    try:
        return datetime.fromtimestamp(now.timestamp() - duration(text, "since").value, tz=UTC).isoformat()
    except (PlanningError, OverflowError, ValueError, OSError):
        pass
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise UserError(
            f"{text!r:.40} is no time", fix="write how long ago, as 7d or 12h, or a date, as 2026-03-01"
        ) from error
    return (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).isoformat()


class Pages:
    """All pages.

    Args:
        see_all: whether people who are not operators see the jobs of others.

    Raises:
        UserError: ``racks`` is not a regular expression with a group.
    """

    def __init__(self, views: Views, clock: Clock, *, cluster: str, racks: str = "", see_all: bool = False) -> None:
        self._views, self._clock, self._cluster, self._see_all = views, clock, cluster, see_all
        self._racks = rack_pattern(racks)
        self._pages: dict[str, Make] = {
            "": _fleet,
            "nodes": _nodes,
            "incidents": _incidents,
            "jobs": _jobs,
            "history": _history,
            "plan": plan_page.make,
            "report": report_page.make,
        }
        self._of_one: dict[str, Make] = {"nodes": _node, "incidents": incident_page.make, "jobs": job_page.make}

    def page_of(self, path: str) -> tuple[Make, str] | None:
        """The function that makes the page at ``path`` (decoded), and the name in it; None: no such page."""
        section, _, name = path.strip("/").partition("/")
        if name:
            make = self._of_one.get(section)
            return (make, name) if make is not None and len(name) <= _LONGEST else None
        make = self._pages.get(section)
        return (make, "") if make is not None else None

    async def html(
        self, page: tuple[Make, str], query: Query, viewer: Viewer, place: Callable[[], Place] = nullcontext
    ) -> str:
        """Render a page. ``place``: what is held while each of its views is computed.

        Raises:
            SentinelError: there is nothing to show; see the views.
        """
        make, name = page
        now = self._clock.now()
        user = None if viewer.operator or self._see_all else viewer.name
        template, values = await make(Asked(viewer, user, name, query, now, self._views, self._racks, place))
        return render(
            template, **values, viewer=viewer, user=user, now=now, cluster=self._cluster, query=query,
            outage=self._views.outage(),
        )  # fmt: skip

    def problem(self, status: int, message: str, fix: str, viewer: Viewer | None) -> str:
        return render(
            "problem.html", status=status, message=message, fix=fix, viewer=viewer, user=None, now=self._clock.now(),
            cluster=self._cluster, query={}, outage=self._views.outage() if viewer is not None else None,
        )  # fmt: skip


def rack_pattern(text: str) -> re.Pattern[str] | None:
    """``[page] racks`` compiled; None where it is empty.

    Raises:
        UserError: not a regular expression with a group.
    """
    if not text:
        return None
    try:
        found = re.compile(text)
    except re.error as error:
        raise UserError(f"[page] racks is no expression: {error}", fix=r"as '^(r\d+)-'") from error
    if found.groups < 1:
        raise UserError("[page] racks has no group", fix=r"put the rack in parentheses, as '^(r\d+)-'")
    return found


async def _fleet(asked: Asked) -> tuple[str, dict[str, Any]]:
    status = await asked.view("status")
    chosen = asked.filters("state", "partition", "node")
    seen = (await asked.view("nodes", last_known=True))["nodes"] if status["slurm"]["snapshot_at"] else []
    named = await _named(chosen)
    rows = [row for row in seen if _fits(row, chosen, named)]
    return "fleet.html", {
        "status": status,
        "states": fleet_map.counted(map(fleet_map.state_of, seen)),
        "words": fleet_map.WORDS,
        "healthy": fleet_map.HEALTHY,
        "groups": fleet_map.groups(rows, asked.racks),
        "nodes": len(seen),
        "shown": len(rows),
        "chosen": chosen,
        "partitions": sorted({name for row in seen for name in row["partitions"]}),
        "active": [row["address"] for row in status["daemons"] if row["state"] == "active"],
        "others": [row["address"] for row in status["daemons"] if row["state"] != "active"],
        "waiting": [row for row in status["open_incidents"] if row["state"] in ("held", "waiting")],
    }


async def _named(chosen: Mapping[str, Any]) -> frozenset[str] | None:
    names = await asyncio.to_thread(node_list, {"node": chosen["node"]}) if "node" in chosen else None
    return frozenset(names) if names is not None else None


def _fits(row: Mapping[str, Any], chosen: Mapping[str, Any], named: frozenset[str] | None) -> bool:
    return (
        (named is None or row["node"] in named)
        and chosen.get("partition") in (None, *row["partitions"])
        and chosen.get("state") in (None, fleet_map.state_of(row))
    )


async def _nodes(asked: Asked) -> tuple[str, dict[str, Any]]:
    chosen = asked.filters("state", "partition", "node", "group")
    listing = await asked.view("nodes", last_known=True)
    seen = listing["nodes"]
    named = await _named(chosen)
    rows = []
    for group in fleet_map.groups(seen, asked.racks):
        if chosen.get("group") in (None, group.name):
            rows += [(row, state, group.name) for row, state in group.cells if _fits(row, chosen, named)]
    order = [state for state, _ in fleet_map.STATES]
    rows.sort(key=lambda row: order.index(row[1]))
    return "nodes.html", {
        "old": asked.old(listing),
        "rows": rows[asked.start : asked.start + ROWS],
        "total": len(rows),
        "start": asked.start,
        "step": ROWS,
        "words": fleet_map.WORDS,
        "chosen": chosen,
        "partitions": sorted({name for row in seen for name in row["partitions"]}),
    }


async def _node(asked: Asked) -> tuple[str, dict[str, Any]]:
    found = await asked.view("nodes", node=asked.name, since=_EPOCH, last_known=True)
    (row,) = found["nodes"][:1]
    return "node.html", {
        "old": asked.old(found),
        "node": row,
        "state": fleet_map.state_of(row),
        "words": fleet_map.WORDS,
        "incidents": found["incidents"][:ROWS],
        "more": found["cut"] or len(found["incidents"]) > ROWS,
    }


async def _incidents(asked: Asked) -> tuple[str, dict[str, Any]]:
    chosen = asked.filters("since", "node", "job", "user", "cause")
    seen = await asked.view("incidents", **chosen)
    return "incidents.html", {**seen, "chosen": chosen, "causes": sorted(Cause)}


async def _jobs(asked: Asked) -> tuple[str, dict[str, Any]]:
    chosen = asked.filters("since", "node", "job", "user", "cause")
    seen = await asked.view("jobs", **chosen)
    attempts = seen["attempts"]
    by_job: dict[int, list[dict[str, Any]]] = {}
    for row in reversed(attempts):
        by_job.setdefault(row["job"], []).insert(0, row)
    jobs = [job_page.summary(rows) for rows in by_job.values()]
    return "jobs.html", {
        "jobs": jobs[asked.start : asked.start + ROWS],
        "total": len(jobs),
        "cut": seen["cut"],
        "start": asked.start,
        "step": ROWS,
        "chosen": chosen,
        "causes": sorted(Cause),
    }


async def _history(asked: Asked) -> tuple[str, dict[str, Any]]:
    chosen = asked.filters("since", "node", "job", "user", "cause")
    seen = await asked.records("history", **chosen)
    charts = []
    for key, title in (("cause", "By cause"), ("node", "By node"), ("user", "By user"), ("time", "By day")):
        groups = seen["by"][key]
        part = groups[-14:] if key == "time" else groups[:12]
        drawn = bars(title, [(group["key"], group["failures"], f"{group['failures']}") for group in part])
        if drawn is not None and key not in chosen:
            charts.append((title, key, drawn, part, len(groups) - len(part)))
    rows = seen["incidents"]
    return "history.html", {
        "incidents": to_json(rows[asked.start : asked.start + ROWS]),
        "total": len(rows),
        "cut": seen["cut"],
        "start": asked.start,
        "step": ROWS,
        "since": to_json(seen["since"]),
        "chosen": chosen,
        "charts": charts,
        "causes": sorted(Cause),
    }
