"""Makes evidence from what the collector found: error files, dumps, leftover processes, and the folder with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sentinel.agent.probes import become
from sentinel.agent.probes.leftovers import Leftover
from sentinel.config.rules_files import load_rules
from sentinel.evidence.logs.error_file import MOST, read_error_file
from sentinel.evidence.logs.reader import Signatures
from sentinel.model.records import Evidence, Kind, Source, Trust, Where, stable_id, utc
from sentinel.wire import to_json

ERROR_FILES = 16  # most error files of one node that become evidence; usually all workers fail with the same error


class Findings:
    """What was found for one attempt on one node."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self._node, self._job, self._attempt = arguments["node"], int(arguments["job"]), int(arguments["attempt"])
        self._began = utc(float(arguments["began_s"]))
        self._ended = utc(float(arguments["ended_s"]))
        self._rules = str(arguments.get("rules") or "")
        self._errors: list[dict[str, Any]] = []
        self.error_files: list[tuple[str, bytes]] = []  # path and content of torchelastic's
        self.full = ""  # the job's log, where its file system has no space left

    def error_file(self, path: str, content: bytes) -> None:
        """Add one of torchelastic's error files."""
        if len(self.error_files) < ERROR_FILES:
            self.error_files.append((path, content))

    def judge(self, arguments: Mapping[str, Any], put: Callable[[Mapping[str, Any], bytes], None]) -> None:
        """In a process of its own: become the job's user, and send what rules recognise in the error files."""
        # Read before: the job's user may not be able to read the rules. Only now, since compiling them takes a while.
        signatures = Signatures(load_rules(site=Path(self._rules) if self._rules else None))
        become(int(arguments["uid"]), arguments.get("gid"))
        for path, content in self.error_files:
            where = self._where(path)
            for item in read_error_file(content, where, signatures, self._began, datetime.now(UTC)):
                put({"evidence": to_json(item)}, b"")

    def judged(self, header: Mapping[str, Any]) -> None:
        """Take one of these. Its sender is not trusted: it says something about this job, and as often as files allow.

        Raises:
            KeyError, TypeError: it is no evidence. The agent, which has the means, looks at the rest of it.
        """
        item = header["evidence"]
        where = {**item["where"], "node": self._node, "job": self._job, "attempt": self._attempt}
        if len(self._errors) < MOST * ERROR_FILES:
            self._errors.append({**item, "source": to_json(Source.ERROR_FILE), "where": where})

    def evidence(
        self,
        folder: str | None,
        files: Sequence[Mapping[str, Any]],
        dumps: Sequence[Mapping[str, Any]],
        left: Sequence[Leftover],
        notes: Sequence[str],
        hung: int | None,
    ) -> list[dict[str, Any]]:
        """All evidence as JSON; empty when nothing was found."""
        items = [self._leftover(item) for item in left]
        if dumps:
            items.append(self._dumped(dumps, folder))
        if self.full:
            text = f"no space is left where the job's log lies: {self.full}"
            items.append(self._make("log_no_space", Source.AGENT, text, self.full, {}))
        if hung is not None:
            items.append(self._hung(hung, notes))
        if folder is not None:
            items.append(self._kept(folder, files, notes))
        return [*self._errors, *(to_json(item) for item in items)]

    def _where(self, path: str | None = None) -> Where:
        return Where(node=self._node, job=self._job, attempt=self._attempt, path=path)

    def _dumped(self, dumps: Sequence[Mapping[str, Any]], folder: str | None) -> Evidence:
        ranks = sorted({rank for item in dumps if isinstance(rank := _rank(item), int)})
        torn = sum("unreadable" in item for item in dumps)
        text = f"{len(dumps)} flight-recorder dumps on {self._node}, of ranks {_some(ranks)}"
        text += f"; {torn} of them cannot be read" if torn else ""
        return self._make("dumps", Source.FLIGHT_RECORDER, text, folder, {"count": len(dumps), "unreadable": torn})

    def _leftover(self, item: Leftover) -> Evidence:
        held = ", ".join(item.uuids) or ", ".join(f"GPU {minor}" for minor in item.gpus)
        text = (
            f"process {item.pid} ({item.command}, uid {item.uid}, state {item.state}) of job {self._job} is still there"
        )
        text += f" and holds {held}" if held else ""
        text += {"no": "", "still there": "; it does not die"}.get(item.ended, f"; it was ended ({item.ended})")
        return Evidence(
            id=stable_id("left-behind", self._node, self._job, self._attempt, item.pid, item.began),
            at=self._ended,
            seen_at=datetime.now(UTC),
            source=Source.HOST,
            kind=Kind.LEFT_BEHIND,
            where=Where(
                node=self._node,
                job=self._job,
                attempt=self._attempt,
                gpu=item.gpus[0] if item.gpus else None,
                gpu_uuid=item.uuids[0] if item.uuids else None,
            ),
            text=text,
            data={"pid": item.pid, "command": item.command, "uid": item.uid, "why": item.why, "ended": item.ended},
        )

    def _hung(self, pid: int, notes: Sequence[str]) -> Evidence:
        text = f"reading the job's files hangs, and process {pid} does not die: {'; '.join(notes[-1:])}"
        return self._make(Kind.PROBE_HUNG, Source.AGENT, text, None, {"probe": "collect", "unkillable": True})

    def _kept(self, folder: str, files: Sequence[Mapping[str, Any]], notes: Sequence[str]) -> Evidence:
        text = f"{len(files)} files that explain the end are kept on {self._node} in {folder}"
        text += f" ({'; '.join(notes)[:500]})" if notes else ""
        size = sum(int(file["bytes"]) for file in files)
        return self._make(Kind.BUNDLE, Source.AGENT, text, folder, {"files": len(files), "bytes": size})

    def _make(self, kind: str, source: Source, text: str, path: str | None, data: Mapping[str, Any]) -> Evidence:
        """Make evidence with the trust of the job's user, who chose the files and the file systems."""
        return Evidence(
            id=stable_id("collected", self._node, self._job, self._attempt, kind),
            at=self._ended,
            seen_at=datetime.now(UTC),
            source=source,
            kind=kind,
            where=self._where(path),
            text=text,
            data=dict(data),
            trust=Trust.USER,
        )


def _rank(item: Mapping[str, Any]) -> object:
    part = item.get("trace") or item.get("unreadable")
    return part.get("rank") if isinstance(part, dict) else None


def _some(ranks: Sequence[int]) -> str:
    if not ranks:
        return "that are not known"
    shown = ", ".join(map(str, ranks[:16]))
    return shown + (f" and {len(ranks) - 16} more" if len(ranks) > 16 else "")
