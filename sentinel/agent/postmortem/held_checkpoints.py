"""Lists a job's checkpoints in node-local folders when it ends, before they may be wiped.

The daemon names the job's folders while it runs. A marker file makes the job's epilog wait a few seconds until the
listing is done and the marker removed. The listing is made as the job's user without reading the files, and is sent to
the daemon as evidence, since the node may be lost, slow or wiped later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sentinel.agent.collectors.jobs import JobOnNode
from sentinel.agent.collectors.saves import Watched, lister
from sentinel.agent.process.children import Children, Ending, Program
from sentinel.agent.settings import AgentSettings
from sentinel.checkpoints.packed import pack
from sentinel.checkpoints.records import Part
from sentinel.log import Log
from sentinel.model.records import Evidence, Kind, Source, Where, stable_id

log = Log()

NEWEST = 6  # newest checkpoints listed per root; older ones are used only if all of these are broken
Key = tuple[int, int]


class HeldCheckpoints:
    """Writes markers for jobs with node-local checkpoints, and lists those when the jobs end.

    Args:
        watched: the daemon's watch list for the jobs on this node.
    """

    def __init__(
        self,
        node: str,
        settings: AgentSettings,
        children: Children,
        program: Callable[..., Program],
        keep: Callable[[Evidence], None],
        watched: Callable[[], list[Watched]],
    ) -> None:
        self._node = node
        self._deadline_s = settings.collect.listing_s
        self._children = children
        self._program = program
        self._keep = keep
        self._watched = watched
        self._marks = Path(settings.run_dir) / "local"
        self._marks.mkdir(parents=True, exist_ok=True)
        self._known: dict[Key, Watched] = {}
        self._missing: set[Key] = set()

    def look(self, jobs: Mapping[int, JobOnNode]) -> None:
        """Once a second: write markers for jobs that have local folders according to the daemon."""
        for watched in self._watched():
            key = (watched.job, watched.attempt)
            job = jobs.get(watched.job)
            if job is None or job.attempt != watched.attempt or not _local(watched):
                continue
            if key not in self._known:
                self._mark(key).touch()
            self._known[key] = watched
        # A job must be missing in two calls in a row: it may have ended after ended jobs were handled and before this.
        missing = {key for key in self._known if jobs.get(key[0]) is None or jobs[key[0]].attempt != key[1]}
        for key in missing & self._missing:
            del self._known[key]
        self._missing = missing
        for mark in self._marks.iterdir():  # markers of an earlier agent, or of a job whose epilog never ran
            if mark.name not in {_name(key) for key in self._known} and not self._children.running(f"held:{mark.name}"):
                mark.unlink(missing_ok=True)

    def ended(self, job: JobOnNode) -> None:
        """Start listing the checkpoints that the job left; its epilog waits meanwhile."""
        key = (job.job, job.attempt)
        watched = self._known.get(key)
        if watched is None or job.uid is None:
            self._mark(key).unlink(missing_ok=True)
            return
        roots = _local(watched)
        found: dict[int, list[Part]] = {}

        def said(message: Mapping[str, Any]) -> None:
            index, listing = message.get("index"), message.get("listing")
            if isinstance(index, int) and isinstance(listing, list):
                found[index] = [Part.from_json(part) for part in listing]

        def over(ending: Ending) -> None:
            self._mark(key).unlink(missing_ok=True)
            if ending.silent or ending.status != 0 or len(found) < len(roots):
                where = ending.where or (ending.stderr.strip().splitlines() or [""])[-1]
                log.warning("held-not-known", job=job.job, silent=ending.silent, reason=where)
            if found:
                self._keep(self._evidence(job, [part for index in sorted(found) for part in found[index]]))

        started = self._children.start(
            lister(
                self._program,
                f"held:{_name(key)}",
                self._node,
                [("local", path) for path in roots],
                job.uid,
                job.gid,
                NEWEST,
                self._deadline_s,
                said,
                over,
            )
        )
        if not started:
            self._mark(key).unlink(missing_ok=True)

    def _mark(self, key: Key) -> Path:
        return self._marks / _name(key)

    def _evidence(self, job: JobOnNode, parts: list[Part]) -> Evidence:
        now = datetime.now(UTC)
        good = sorted({part.step for part in parts if part.step is not None and part.valid is True}, reverse=True)
        steps = ", ".join(map(str, good[:6])) or "none that is whole"
        return Evidence(
            id=stable_id("held", self._node, job.job, job.attempt),
            at=now,
            seen_at=now,
            source=Source.CHECKPOINT,
            kind=Kind.CHECKPOINTS_HELD,
            where=Where(node=self._node, job=job.job, attempt=job.attempt),
            text=f"{self._node} held these steps of job {job.job} locally when it ended: {steps}",
            data={"listing": pack(parts)},
        )


def _local(watched: Watched) -> list[str]:
    return [path for tier, path in watched.roots if tier == "local"]


def _name(key: Key) -> str:
    return f"{key[0]}.{key[1]}"
