"""Makes each page: reads the command line's views, as the person may see them, and renders a template."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sentinel.daemon.api.histories import job_given, node_list
from sentinel.daemon.api.jobs import Page
from sentinel.daemon.api.views import Place, Views
from sentinel.daemon.incident_search import SEARCHED
from sentinel.daemon.web import fleet_map, incident_page, job_page, plan_page, report_page
from sentinel.daemon.web.access import Viewer
from sentinel.daemon.web.charts import bars, of_days, of_rows
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
            found["job"] = job_given(found["job"])
        if "since" in found:
            found["since"] = since_of(found["since"], self.now)
        if "open" in found:
            found["open"] = found["open"] == "yes"
        return found

    def old(self, listing: Mapping[str, Any]) -> str | None:
        """When Slurm was seen as a listing of nodes shows it, where that is old; None: just now."""
        seen_at = listing["seen_at"]
        return seen_at if (self.now - datetime.fromisoformat(seen_at)).total_seconds() > OLD_S else None

    @property
    def start(self) -> int:
        value = self.query.get("from", "")
        return int(value) if value.isdecimal() and len(value) < 9 else 0

    def start_of(self, total: int) -> int:
        """The first row that is shown of a table with so many: of its last page where the request names one behind it."""
        return min(self.start, max(0, total - 1) // ROWS * ROWS)


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
    groups = await _groups(asked, seen, chosen)
    return "fleet.html", {
        "status": status,
        "states": fleet_map.counted(map(fleet_map.state_of, seen)),
        "words": fleet_map.WORDS,
        "healthy": fleet_map.HEALTHY,
        "groups": groups,
        "nodes": len(seen),
        "shown": sum(len(group.cells) for group in groups),
        "chosen": chosen,
        "partitions": sorted({name for row in seen for name in row["partitions"]}),
        "active": [row["address"] for row in status["daemons"] if row["state"] == "active"],
        "others": [row["address"] for row in status["daemons"] if row["state"] != "active"],
        "waiting": [row for row in status["open_incidents"] if row["state"] in ("held", "waiting")],
    }


async def _groups(asked: Asked, seen: Sequence[Mapping[str, Any]], chosen: Mapping[str, Any]) -> list[fleet_map.Group]:
    """The nodes that are chosen, in the groups of all nodes: a group's name stays the same whatever else is chosen."""
    names = await asyncio.to_thread(node_list, {"node": chosen["node"]}) if "node" in chosen else None
    named = frozenset(names) if names is not None else None
    made = [
        fleet_map.Group(group.name, [cell for cell in group.cells if _fits(cell[0], chosen, named)])
        for group in fleet_map.groups(seen, asked.racks)
    ]
    return [group for group in made if group.cells]


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
    rows = []
    for group in await _groups(asked, seen, chosen):
        if chosen.get("group") in (None, group.name):
            rows += [(row, state, group.name) for row, state in group.cells]
    order = [state for state, _ in fleet_map.STATES]
    rows.sort(key=lambda row: order.index(row[1]))
    start = asked.start_of(len(rows))
    return "nodes.html", {
        "old": asked.old(listing),
        "rows": rows[start : start + ROWS],
        "total": len(rows),
        "start": start,
        "step": ROWS,
        "words": fleet_map.WORDS,
        "chosen": chosen,
        "partitions": sorted({name for row in seen for name in row["partitions"]}),
    }


async def _node(asked: Asked) -> tuple[str, dict[str, Any]]:
    try:
        found = await asked.view("nodes", node=asked.name, since=_EPOCH, last_known=True)
    except UserError as unknown:
        return await _node_that_is_gone(asked, unknown)
    (row,) = found["nodes"][:1]
    return "node.html", {
        "old": asked.old(found),
        "node": row,
        "state": fleet_map.state_of(row),
        "words": fleet_map.WORDS,
        "incidents": found["incidents"][:ROWS],
        "more": found["cut"] or len(found["incidents"]) > ROWS,
    }


async def _node_that_is_gone(asked: Asked, unknown: UserError) -> tuple[str, dict[str, Any]]:
    """The page of a node that Slurm has no more: the incidents that name it.

    Raises:
        UserError: none does, of those that the person may see.
    """
    try:
        seen = await asked.view("why", what=asked.name)
    except UserError:
        raise unknown from None
    if seen["asked"]["kind"] != "node" or seen["incident"] is None:
        raise unknown
    return "node_gone.html", {"name": asked.name, "incidents": [seen["incident"], *seen["others"]]}


async def _incidents(asked: Asked) -> tuple[str, dict[str, Any]]:
    chosen = asked.filters("since", "node", "job", "user", "cause", "open")
    wanted = asked.start + ROWS
    seen = await asked.records("incidents", **chosen, most=wanted)
    rows = seen["incidents"]
    start = asked.start_of(len(rows))
    return "incidents.html", {
        "incidents": to_json(rows[start : start + ROWS]),
        "total": len(rows),
        "start": start,
        "step": ROWS,
        "more": seen["cut"] and wanted < SEARCHED,
        "cut": seen["cut"] and wanted >= SEARCHED,
        "chosen": chosen,
        "causes": sorted(Cause),
    }


async def _jobs(asked: Asked) -> tuple[str, dict[str, Any]]:
    chosen = asked.filters("since", "node", "job", "user", "cause")
    seen = await asked.view("jobs", **chosen, page=Page(asked.start, ROWS))
    by_job: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for row in seen["attempts"]:
        by_job.setdefault((row["job"], row["nth_of_id"]), []).append(row)
    return "jobs.html", {
        "jobs": [job_page.summary(rows) for job, nth in seen["jobs"] if (rows := by_job.get((job, nth)))],
        "total": seen["total"],
        "cut": seen["cut"],
        "start": seen["start"],
        "step": ROWS,
        "chosen": chosen,
        "causes": sorted(Cause),
    }


async def _history(asked: Asked) -> tuple[str, dict[str, Any]]:
    chosen = asked.filters("since", "node", "job", "user", "cause", "open")
    seen = await asked.records("history", **chosen)
    charts = []
    for key, name in (("cause", "By cause"), ("node", "By node"), ("user", "By user"), ("time", "By day")):
        groups = seen["by"][key]
        part = groups[-14:] if key == "time" else groups[:12]
        title = (of_days if key == "time" else of_rows)(name, len(part), len(groups))
        drawn = bars(title, [(group["key"], group["failures"], f"{group['failures']}") for group in part])
        if drawn is not None and key not in chosen:
            charts.append((title, key, drawn, part))
    rows = seen["incidents"]
    start = asked.start_of(len(rows))
    return "history.html", {
        "incidents": to_json(rows[start : start + ROWS]),
        "total": len(rows),
        "cut": seen["cut"],
        "start": start,
        "step": ROWS,
        "since": to_json(seen["since"]),
        "chosen": chosen,
        "charts": charts,
        "causes": sorted(Cause),
    }
