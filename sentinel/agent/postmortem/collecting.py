"""Decides whether an ended job failed, and if so has the collector (``probes/collect``) save what explains it in a folder.

The exit status that Slurm gives the epilog decides. Releases that give none: a job counts as failed if evidence of the
node or of its log indicates a failure, or if it left dumps or error files. Nothing is collected for a job that
succeeded.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from sentinel.agent.collectors.jobs import JobOnNode, first_node, read_job
from sentinel.agent.collectors.log_path import pattern_of
from sentinel.agent.process.children import Children, Ending, Program
from sentinel.agent.process.state_files import restore, save, write_atomically
from sentinel.agent.settings import AgentSettings
from sentinel.correlate.incidents import opens
from sentinel.errors import ProtocolError
from sentinel.log import Log
from sentinel.model.records import Evidence, Source, Trust
from sentinel.text import whole_numbers
from sentinel.wire import evidence_from

log = Log()

MODULE = "sentinel.agent.probes.collect"
AT_ONCE = 2  # collectors that run at the same time
HUNG = 3  # hung readers of users' files at which no further one is started
REMEMBERED = 500  # marker files kept of attempts that were handled
KEPT_S = 86400.0  # age in s at which marker files for epilogs that never ran are removed
PLACES_BYTES = 24 << 10
Key = tuple[int, int]


class FailureCollection:
    """Keeps evidence of failures of the jobs on this node, notices their ends, and starts collectors for failed ones.

    Args:
        failures: ids of rules whose match in a job's log indicates a failure.
        jobs: jobs on this node now.
        sampled: the last samples of GPU telemetry, as JSON.
    """

    def __init__(
        self,
        node: str,
        settings: AgentSettings,
        children: Children,
        program: Callable[..., Program],
        keep: Callable[[Evidence], None],
        failures: Collection[str],
        jobs: Callable[[], Mapping[int, JobOnNode]],
        sampled: Callable[[], object] = lambda: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.node = node
        self.on_ended: Callable[[JobOnNode, float], None] = lambda _job, _began_s: None
        self._settings = settings
        self._limits = settings.collect
        self._children = children
        self._program = program
        self._keep = keep
        self._failures = failures
        self._jobs = jobs
        self._sampled = sampled
        self._clock = clock
        self._ended = Path(settings.run_dir) / "ended"
        self._against_dir = Path(settings.run_dir) / "against"
        self._bundles = Path(settings.state) / "bundles"
        self._places_file = Path(settings.state) / "places.json"
        for folder in (self._ended, self._against_dir, self._bundles):
            folder.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._against: dict[Key, str] = {}
        kept = restore(self._places_file)
        self._places: dict[str, dict[str, list[str]]] = kept if isinstance(kept, dict) else {}
        self._asked: dict[Key, int] = {}  # how often a job's processes were searched for dump folders
        self._waiting: dict[Key, tuple[float, Path]] = {}  # due, job file
        self._running: set[Key] = set()
        self._again: set[Key] = set()  # to be examined a second time once the end of their logs is read
        self._hung: list[int] = []
        self._missing: set[Key] = set()
        self._here: set[Key] = set()

    # ------------------------------------------------------------------------------------------------ evidence

    def consider(self, evidence: Evidence) -> None:
        """Note evidence of a job's failure, also in a file for its epilog. Safe from any thread."""
        where = evidence.where
        if evidence.source is Source.JOB_LOG:
            if where.job is not None and evidence.rule in self._failures:
                self._speaks(where.job, where.attempt or 0, "log")
        elif evidence.trust is Trust.SYSTEM and where.node in (None, self.node) and opens(evidence):
            for job in list(self._jobs().values()):
                if where.job in (None, job.job):
                    self._speaks(job.job, job.attempt, "node")

    def _speaks(self, job: int, attempt: int, what: str) -> None:
        with self._lock:
            if self._against.get((job, attempt)) in (what, "node"):
                return
            self._against[job, attempt] = what
        write_atomically(self._against_dir / f"{job}.{attempt}", what + "\n")
        self._asked.pop((job, attempt), None)  # search its processes now, they may be gone soon

    # ------------------------------------------------------------------------------------------------ once a second

    def look(self) -> None:
        """Handle jobs that ended since the last call, and search for the dump folders of running ones."""
        now_s = self._clock()
        here = {(job.job, job.attempt) for job in self._jobs().values()}
        for key in here - self._here:
            self._came(key)
        self._here = here
        for path in sorted(self._ended.glob("[0-9]*.json")):
            try:
                job, began_s = read_job(path), path.stat().st_mtime
            except (OSError, ValueError, ProtocolError) as error:
                log.warning("ended-job-unreadable", path=path, error=error)
                path.unlink(missing_ok=True)
                continue
            key = (job.job, job.attempt)
            if key not in self._waiting and key not in self._running:
                self._waiting[key] = (now_s, path)
                self.on_ended(job, began_s)
        for key, (due_s, path) in list(self._waiting.items()):
            if (due_s <= now_s or due_s > now_s + self._limits.settle_s) and len(self._running) < AT_ONCE:
                del self._waiting[key]
                self._ended_job(key, path)
        self._ask_places(now_s)
        self._forget()

    def _came(self, key: Key) -> None:
        """Remove what an earlier job with this id left; evidence against this attempt from before our start is kept."""
        name = f"{key[0]}.{key[1]}"
        began_s = _began_s(Path(self._settings.run_dir), key[0], self._clock())
        mark, done = self._against_dir / name, self._bundles / f"{name}.done"
        try:
            if mark.exists() and mark.stat().st_mtime >= began_s:
                with self._lock:
                    self._against.setdefault(key, mark.read_text(encoding="utf-8").strip())
            else:
                mark.unlink(missing_ok=True)
            if done.exists() and done.stat().st_mtime < began_s:
                done.unlink()
        except (OSError, UnicodeDecodeError) as error:
            log.warning("mark-unreadable", name=name, error=error)

    def _ended_job(self, key: Key, path: Path) -> None:
        try:
            job, began_s = read_job(path), path.stat().st_mtime
        except (OSError, ValueError, ProtocolError) as error:
            log.warning("ended-job-unreadable", path=path, error=error)
            path.unlink(missing_ok=True)
            return
        code = _code_of(path)
        with self._lock:
            against = self._against.get(key, "")
        why = "code" if code not in ("0", "unknown") else "" if code == "0" and against == "log" else against
        nothing = not why and (key in self._again or (code == "0" and not self._limits.end_stray))
        if not self._limits.on or nothing:
            self._finish(key, path, {"folder": None})
            return
        if code == "unknown" and not why:
            self._again.add(key)
        else:
            self._again.discard(key)
        self._running.add(key)
        started = self._children.start(
            self._program(
                f"collect:{job.job}.{job.attempt}",
                MODULE,
                self._arguments(job, began_s, code, why),
                silent_s=self._limits.deadline_s,
                total_s=self._limits.deadline_s,
                on_message=lambda message: self._heard(key, path, message),
                on_end=lambda ending: self._over(key, path, ending),
            )
        )
        if not started:
            self._finish(key, path, {"folder": None, "trouble": "earlier collectors do not die"})

    def _arguments(self, job: JobOnNode, began_s: float, code: str, why: str) -> dict[str, object]:
        limits = self._limits
        self._hung = [pid for pid in self._hung if Path(f"/proc/{pid}").exists()]
        return {
            "node": self.node,
            "job": job.job,
            "attempt": job.attempt,
            "uid": job.uid,
            "gid": job.gid,
            "began_s": began_s,
            "ended_s": self._clock(),
            "code": code,
            "why": why,
            "look": (code != "0" or bool(why)) and len(self._hung) < HUNG,
            "first": first_node(job.nodelist) == self.node,
            "work_dir": job.work_dir,
            "log": pattern_of(job.stdout, job=job.job, user=job.user, node=self.node, work_dir=job.work_dir)
            if job.stdout
            else "",
            "gpus": whole_numbers(job.gpus),
            "others": {str(other.job): other.uid for other in self._jobs().values() if other.job != job.job},
            "here_again": str(Path(self._settings.run_dir) / "jobs" / f"{job.job}.json"),
            "places": _fitting(self._places.get(f"{job.job}.{job.attempt}", {})),
            "folder": str(self._bundles / f"{job.job}.{job.attempt}"),
            "kernel": self._settings.kernel.path if why else "",
            "gpus_seen": self._write_samples(job) if why else "",
            "rules": self._settings.rules,
            "user_s": max(0.5, limits.deadline_s - limits.term_s - 4.0),
            "look_s": max(0.5, limits.deadline_s - limits.term_s - 6.0),
            **{
                name: getattr(limits, name)
                for name in ("files", "dumps", "file_bytes", "total_bytes", "log_bytes", "kernel_lines", "end_stray",
                             "term_s", "bundles", "bundles_bytes")
            },
        }  # fmt: skip

    def _write_samples(self, job: JobOnNode) -> str:
        """Write the last telemetry samples into a file for the collector; returns its path, empty if there are none."""
        samples = self._sampled()
        path = self._bundles / f".{job.job}.{job.attempt}.gpus"
        return str(path) if samples and save(path, samples) else ""

    def _heard(self, key: Key, path: Path, message: Mapping[str, Any]) -> None:
        if message.get("type") == "evidence":
            for item in message["items"]:
                try:
                    self._keep(evidence_from(item))
                except ProtocolError as error:  # what error files say comes from a process of the job's user
                    log.warning("collected-unreadable", job=key[0], attempt=key[1], error=error)
        elif message.get("type") == "collected":
            if isinstance(message.get("hung"), int):
                self._hung.append(message["hung"])
            log.info("collected", job=key[0], attempt=key[1], folder=message.get("folder"), dumps=message.get("dumps"))
            if key in self._again and message.get("folder") is None:
                # Slurm gave no exit status and the job left no files: the end of its log may still show a failure.
                self._waiting[key] = (self._clock() + self._limits.settle_s, path)
                self._running.discard(key)  # after adding it above, so that it is always found in one of the two
            else:
                self._finish(key, path, message)

    def _over(self, key: Key, path: Path, ending: Ending) -> None:
        if key in self._running:  # the collector ended without its last message
            reason = f"killed in state {ending.where}" if ending.silent else ending.stderr.strip()[-300:]
            log.warning("not-collected", job=key[0], attempt=key[1], reason=reason)
            self._finish(key, path, {"folder": None, "trouble": reason})

    def _finish(self, key: Key, path: Path, result: Mapping[str, Any]) -> None:
        """Note that collecting is over, so that the daemon's order for the result can be answered."""
        self._running.discard(key)
        self._again.discard(key)
        with self._lock:
            self._against.pop(key, None)
        name = f"{key[0]}.{key[1]}"
        save(self._bundles / f"{name}.done", {"folder": result.get("folder"), "trouble": result.get("trouble")})
        path.unlink(missing_ok=True)
        if self._places.pop(name, None) is not None:
            save(self._places_file, self._places)
        self._asked.pop(key, None)
        marks = sorted(self._bundles.glob("*.done"), key=lambda mark: mark.stat().st_mtime)
        for mark in marks[: max(0, len(marks) - REMEMBERED)]:
            mark.unlink(missing_ok=True)
        for mark in self._against_dir.iterdir():
            if self._clock() - mark.stat().st_mtime > KEPT_S:
                mark.unlink(missing_ok=True)

    def _forget(self) -> None:
        """Forget jobs that disappeared without an epilog, when two calls in a row do not find them."""
        here = {(job.job, job.attempt) for job in self._jobs().values()} | set(self._waiting) | self._running
        with self._lock:
            missing = (set(self._asked) | set(self._against)) - here
            for key in missing & self._missing:
                self._asked.pop(key, None)
                self._against.pop(key, None)
                self._places.pop(f"{key[0]}.{key[1]}", None)
        self._missing = missing

    # ------------------------------------------------------------------------------------------------ dump folders

    def _ask_places(self, now_s: float) -> None:
        """Read from the environments of a job's processes where they will write dumps; repeated for late workers."""
        present = self._jobs()
        for job in present.values():
            key = (job.job, job.attempt)
            times = self._asked.get(key)
            due = 0 if times is None else times
            age_s = now_s - _began_s(Path(self._settings.run_dir), job.job, now_s)
            urgent = key in self._against and times is None
            if not urgent and (due >= len(self._limits.places_s) or age_s < self._limits.places_s[due]):
                continue
            if self._children.start(
                self._program(
                    f"places:{job.job}.{job.attempt}",
                    "sentinel.agent.probes.places",
                    {"node": self.node, "job": job.job, "uid": job.uid},
                    silent_s=10.0,
                    total_s=10.0,
                    on_message=partial(self._told, key),
                )
            ):
                self._asked[key] = due + 1

    def _told(self, key: Key, message: Mapping[str, Any]) -> None:
        places = message.get("places")
        if not isinstance(places, dict):
            return
        name = f"{key[0]}.{key[1]}"
        before = self._places.get(name, {})
        kinds = {kind: values for kind, values in places.items() if isinstance(values, list)}
        merged = before | {kind: list(dict.fromkeys((*before.get(kind, ()), *kinds[kind]))) for kind in kinds}
        if merged != before:
            self._places[name] = merged
            save(self._places_file, self._places)


def _fitting(places: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """As many paths as fit into a pipe beside the other arguments."""
    kept = {kind: list(values) for kind, values in places.items()}
    while len(json.dumps(kept)) > PLACES_BYTES:
        max(kept.values(), key=lambda values: len(json.dumps(values))).pop()
    return kept


def failures_of(rules: Any) -> frozenset[str]:
    """Ids of rules whose match indicates a failure, not progress or an event without consequence."""
    from sentinel.config.rules import Role

    return frozenset(rule.id for rule in rules.rules if rule.role in (Role.CAUSE, Role.CONSEQUENCE, Role.SYMPTOM))


def _code_of(path: Path) -> str:
    """The exit status in a file name ``JOB.ATTEMPT.CODE.json``."""
    parts = path.name.split(".")
    return parts[2] if len(parts) == 4 and parts[2].isdigit() else "unknown"


def _began_s(run_dir: Path, job: int, now_s: float) -> float:
    try:
        return (run_dir / "jobs" / f"{job}.json").stat().st_mtime
    except OSError:
        return now_s
