"""Tracks the jobs on this node, as reported by the prolog and epilog hooks, and follows their logs."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sentinel.agent.collectors.log_path import pattern_of
from sentinel.agent.collectors.log_reading import Reading
from sentinel.agent.collectors.unreported_jobs import UnreportedJobs
from sentinel.agent.process.children import Children, Ending, Program
from sentinel.agent.process.state_files import own_bytes, restore, save
from sentinel.agent.settings import AgentSettings
from sentinel.errors import ProtocolError
from sentinel.log import Log
from sentinel.model.records import Evidence, Kind, Source, Trust, Where, stable_id
from sentinel.text import json_with_bytes
from sentinel.wire import evidence_from

log = Log()
MARK_S = 86400.0
_DIGITS = 19  # longest decimal number accepted from a hook

_FIRST = re.compile(r"(?:[^,\[]|\[[^\]]*\])+")
_RANGE = re.compile(r"\[(\w+)[^\]]*\]")


@dataclass(frozen=True, slots=True)
class JobOnNode:
    job: int
    attempt: int
    uid: int | None
    gid: int | None
    nodelist: str
    stdout: str
    user: str = ""
    work_dir: str = ""
    gpus: str = ""
    found_by: str = ""  # by whom it was found where no prolog reported it: "squeue"

    @property
    def name(self) -> str:
        return f"log:{self.job}.{self.attempt}"


def first_node(nodelist: str) -> str:
    """The first host of a Slurm host list: where the batch script runs."""
    match = _FIRST.match(nodelist.strip())
    return _RANGE.sub(r"\1", match[0]) if match else ""


def job_from(value: Any) -> JobOnNode:
    """Parse the content of a job file.

    Raises:
        ProtocolError: not what a prolog hook writes.
    """

    def whole(name: str) -> int | None:
        text = str(value.get(name, "") or "")
        return int(text) if text.isdecimal() and len(text) <= _DIGITS else None

    if not isinstance(value, dict) or whole("job") is None:
        raise ProtocolError(f"not a job file: {value!r:.80}")
    return JobOnNode(
        job=whole("job") or 0,
        attempt=whole("attempt") or 0,
        uid=whole("uid"),
        gid=whole("gid"),
        nodelist=str(value.get("nodelist", "")),
        stdout=str(value.get("stdout", "")),
        user=str(value.get("user", "")),
        work_dir=str(value.get("work_dir", "")),
        gpus=str(value.get("gpus", "")),
        found_by=str(value.get("found_by", ""))[:20],
    )


def read_job(path: Path) -> JobOnNode:
    """Read a job file. It may contain bytes that are not UTF-8, since the prolog copies the user's log name into it.

    Raises:
        OSError, ValueError, ProtocolError: it cannot be read, or is not what a prolog hook writes.
    """
    return job_from(json_with_bytes(own_bytes(path)))


class Jobs:
    """Reads the job files and keeps a follower for each job whose batch host we are.

    Args:
        program: makes the child program of a module.
        keep: takes evidence and gives its number in the spool.
    """

    def __init__(
        self,
        node: str,
        settings: AgentSettings,
        children: Children,
        program: Callable[..., Program],
        keep: Callable[[Evidence], int],
    ) -> None:
        self.node = node
        self.jobs: dict[int, JobOnNode] = {}
        self.lines = 0
        self.on_came: Callable[[JobOnNode], None] = lambda _: None
        self.on_left: Callable[[JobOnNode], None] = lambda _: None
        self._settings = settings
        self._folder = Path(settings.run_dir) / "jobs"
        self._ended = Path(settings.run_dir) / "ended"
        self._cursors = Path(settings.state) / "jobs"
        self._children = children
        self._program = program
        self._keep = keep
        self._seen: dict[str, int] = {}
        self._broken: dict[str, int] = {}
        self._following: dict[str, JobOnNode] = {}
        self._young: dict[str, tuple[JobOnNode, float]] = {}  # jobs too short so far for a follower, with their start
        self._last: dict[str, dict[str, Any]] = {}
        self._reading: dict[str, Reading] = {}  # by name of the running follower
        self.unreported = UnreportedJobs(
            node, settings, children, program, lambda: {job.job: job.attempt for job in list(self.jobs.values())}
        )
        for folder in (self._folder, self._ended, self._cursors):
            folder.mkdir(parents=True, exist_ok=True)

    def scan(self) -> None:
        """Read the job files and start or end followers for jobs that began or ended."""
        present: dict[str, Path] = {path.name: path for path in self._folder.glob("[0-9]*.json")}
        for name in set(self._seen) - set(present):
            del self._seen[name]
            ended = self.jobs.pop(int(name.partition(".")[0]), None)
            if ended is not None:
                log.info("job-left", job=ended.job, attempt=ended.attempt)
                self.on_left(ended)
                self._mark_ended(ended)
        for name, path in present.items():
            changed = 0
            try:
                changed = path.stat().st_mtime_ns
                if self._seen.get(name) == changed:
                    continue
                self._seen[name] = changed
                job = read_job(path)
            except FileNotFoundError:
                continue  # its job has just left: the next scan finds it gone
            except (OSError, ValueError, ProtocolError) as error:
                self._seen.pop(name, None)  # may be half written: read it again at the next scan
                if self._broken.get(name) != changed:
                    self._broken[name] = changed
                    log.warning("job-file-unreadable", path=path, error=error)
                continue
            self._began(job, changed / 1e9)
        self._follow_older()

    def ended(self, job: JobOnNode, began_s: float) -> None:
        """Read the log of a job that began and ended between two scans, if it failed."""
        before = self.jobs.get(job.job)
        if (
            (before is not None and before.attempt == job.attempt)
            or job.name in self._following
            or not (self._ended / f"{job.job}.{job.attempt}").exists()  # read to its end, or it need not be read
        ):
            return
        self._wait_to_follow(job, began_s)
        self._mark_ended(job)

    def _mark_ended(self, job: JobOnNode) -> None:
        """Tell the job's follower by a marker file that the job ended, unless the epilog has written it already."""
        mark = self._ended / f"{job.job}.{job.attempt}"
        young = self._young.pop(job.name, None)
        if young is not None and not _ended_well(mark):
            self._follow(*young)  # read its whole log, which says why it ended
        if job.name in self._following:
            mark.touch()
        else:
            mark.unlink(missing_ok=True)

    def _began(self, job: JobOnNode, began_s: float) -> None:
        before = self.jobs.get(job.job)
        if before is not None and before.attempt != job.attempt:
            self._mark_ended(before)
        self.jobs[job.job] = job
        log.info("job-came", job=job.job, attempt=job.attempt)
        self.on_came(job)
        (self._ended / f"{job.job}.{job.attempt}").unlink(missing_ok=True)
        self._wait_to_follow(job, began_s)

    def _wait_to_follow(self, job: JobOnNode, began_s: float) -> None:
        own = self._settings.jobs.follow and job.stdout != os.devnull and first_node(job.nodelist) == self.node
        if own and job.name not in self._following:  # a late prolog may report it once more
            self._young[job.name] = (job, began_s)

    def _follow_older(self) -> None:
        """Start followers for jobs that run for some seconds by now: for short jobs they would cost too much."""
        now_s, after_s = time.time(), self._settings.jobs.follow_after_s
        # One that begins in the future began before the clock was set back.
        for name in [name for name, (_, began_s) in self._young.items() if not 0 <= now_s - began_s < after_s]:
            self._follow(*self._young.pop(name))

    def _follow(self, job: JobOnNode, began_s: float) -> None:
        if not job.stdout or job.uid is None:
            self._unreadable(job, f"the prolog could not tell where its log is: {job.stdout!r:.200}")
            return
        limits = self._settings.jobs
        kept = restore(self._cursors / f"{job.job}.{job.attempt}.json") or {}
        arguments = {
            "node": self.node,
            "job": job.job,
            "attempt": job.attempt,
            "uid": job.uid,
            "gid": job.gid,
            "path": pattern_of(job.stdout, job=job.job, user=job.user, node=self.node, work_dir=job.work_dir),
            "began_s": began_s,
            "cursor": kept.get("cursor"),
            "ended": str(self._ended / f"{job.job}.{job.attempt}"),
            "poll_s": limits.poll_s,
            "linger_s": limits.linger_s,
            "lines_per_s": limits.lines_per_s,
            "burst": limits.burst,
            "read_bytes": limits.read_bytes,
            "silent_s": limits.silent_s,
            "rules": self._settings.rules,
        }
        self._following[job.name] = job
        self._last[job.name] = arguments
        self._start(job)

    def resume(self) -> None:
        """Once, at the start: read the rest of the logs of jobs that ended while the agent was not running."""
        self.scan()
        for mark in self._ended.iterdir():
            # Job files in this folder belong to the collector; their modification time is the job's start.
            if mark.suffix != ".json" and time.time() - mark.stat().st_mtime > MARK_S:
                mark.unlink(missing_ok=True)  # marker of a job whose log was not followed to its end
        for path in self._cursors.glob("*.json"):
            kept = restore(path)
            if (
                isinstance(kept, dict)
                and f"log:{path.stem}" not in self._following
                and f"log:{path.stem}" not in self._young
                and isinstance(kept.get("path"), str)
            ):
                job = job_from({**kept, "stdout": kept["path"]})
                (self._ended / path.stem).touch()
                self._following[job.name] = job
                self._last[job.name] = kept
                self._start(job)

    def running(self) -> list[dict[str, Any]]:
        """For a heartbeat: the jobs on this node; ``found_by`` says who told of one that no prolog reported."""
        return [
            {"job": job.job, "attempt": job.attempt, "gpus": job.gpus, "found_by": job.found_by}
            for job in list(self.jobs.values())
        ]

    def logs(self, acknowledged: int) -> list[dict[str, Any]]:
        """For a heartbeat: how many seconds ago each log's end was reached; used by ``detect/observed_silence.py``.

        Args:
            acknowledged: evidence up to this number of the spool is with the daemon.
        """
        told = []
        for name, reading in list(self._reading.items()):
            job, ago_s = self._following.get(name), reading.looked_ago_s(acknowledged, time.monotonic())
            if job is not None and ago_s is not None:
                told.append({"job": job.job, "attempt": job.attempt, "looked_ago_s": round(ago_s, 3)})
        return told

    def _start(self, job: JobOnNode) -> None:
        arguments = self._last[job.name]
        self._reading[job.name] = Reading()
        self._children.start(
            self._program(
                job.name,
                "sentinel.agent.probes.joblog",
                arguments,
                silent_s=self._settings.jobs.silent_s,
                on_message=lambda message: self._heard(job, message),
                on_end=lambda ending: self._over(job, ending),
                restart=True,
            )
        )

    def _heard(self, job: JobOnNode, message: dict[str, Any]) -> None:
        kind = message.get("type")
        reading = self._reading.setdefault(job.name, Reading())
        if kind == "evidence":
            for item in map(evidence_from, message["items"]):
                self.lines += 1
                # The follower runs as the job's user and is not trusted: its evidence is about this job only.
                where = replace(item.where, job=job.job, attempt=job.attempt)
                reading.kept(self._keep(replace(item, source=Source.JOB_LOG, where=where)))
        elif kind == "looked":
            reading.looked(float(message["at_s"]))
        elif kind == "trouble":
            self._unreadable(job, str(message.get("reason", "")))
        if isinstance(message.get("cursor"), dict) and message["cursor"] != self._last[job.name].get("cursor"):
            # Saved after the evidence: after a crash in between, the lines are read again and get the same ids.
            self._last[job.name]["cursor"] = message["cursor"]
            save(self._cursors / f"{job.job}.{job.attempt}.json", self._last[job.name])
        if kind == "done":
            self._following.pop(job.name, None)
            self._last.pop(job.name, None)
            self._reading.pop(job.name, None)
            self._children.stop(job.name)
            (self._ended / f"{job.job}.{job.attempt}").unlink(missing_ok=True)
            (self._cursors / f"{job.job}.{job.attempt}.json").unlink(missing_ok=True)
            log.info("log-done", job=job.job, attempt=job.attempt)

    def _over(self, job: JobOnNode, ending: Ending) -> None:
        if ending.silent:
            self._say(
                job,
                Kind.PROBE_HUNG,
                f"the follower of {job.stdout} was silent and killed ({ending.where or 'no state'})",
            )
        else:
            log.warning("follower-ended", job=job.job, status=ending.status, error=ending.stderr[-300:])
            reason = (ending.stderr.strip().splitlines() or [""])[-1]
            self._unreadable(job, f"its follower ended with status {ending.status}: {reason}")

    def _unreadable(self, job: JobOnNode, reason: str) -> None:
        self._say(job, Kind.UNREADABLE, f"log of job {job.job}: {reason}")

    def _say(self, job: JobOnNode, kind: Kind, text: str) -> None:
        now = datetime.now(UTC)
        where = Where(node=self.node, job=job.job, attempt=job.attempt, path=job.stdout or None)
        identity = stable_id("joblog", self.node, job.job, job.attempt, kind, text, now.strftime("%Y%m%d%H%M"))
        # Trust.USER: the job's user can stop the follower (same uid), or name a log on a file system of their own.
        self._keep(
            Evidence(
                id=identity, at=now, seen_at=now, source=Source.AGENT, kind=kind, where=where, text=text[:2000],
                trust=Trust.USER,
            )
        )  # fmt: skip


def _ended_well(mark: Path) -> bool:
    """Whether the epilog recorded exit status 0; only newer releases of Slurm give it the status."""
    try:
        return mark.read_text(encoding="utf-8", errors="replace").strip() == "0"
    except OSError:
        return False
