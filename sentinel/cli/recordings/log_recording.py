"""Makes a recording from a folder of logs, with each line at its own time.

Logs of jobs have the job's id in their names, logs of machines the node's (or lie in a folder of that name, or say it in
each line, as syslog does). A file ``sacct*`` with what ``sentinel import --from`` reads says when attempts began and ended,
where, and how; without it a job is known by its log alone. A line without a time has that of the line before it; a log
without any has the end of its job's last attempt, and is left out where that is not known.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from sentinel.cli.offline.classify_input import in_order, source_of
from sentinel.cli.offline.parallel_logs import Log, on_all_cores, read_log
from sentinel.cli.offline.progress_bar import count_bar
from sentinel.cli.recordings.job_logs import jobs_in, old_logs
from sentinel.cli.recordings.machine_logs import dated, node_of
from sentinel.detect.job_end import job_ended
from sentinel.errors import FileError, UserError
from sentinel.evidence.logs.reader import Signatures
from sentinel.model.accounting import AccountedAttempt
from sentinel.model.recording import RecordedAttempt, Recording
from sentinel.model.records import Evidence, JobView, Source
from sentinel.planning.past_jobs import is_failure

_NUMBER = re.compile(r"(?<!\d)\d{1,10}(?!\d)")
_BAR_FROM = 50
MOST_FILES = 20_000


def recording_of_logs(folder: Path, signatures: Signatures) -> Recording:
    """
    Raises:
        FileError: there is no log with times in it, or too many.
    """
    files = old_logs(folder)
    accounts = [path for path in files if path.name.startswith("sacct")]
    logs = [path for path in files if path not in accounts]
    if len(logs) > MOST_FILES:
        raise FileError(folder, f"holds {len(logs):,} files, at most {MOST_FILES:,} are read", fix="name a part of it")
    attempts = _attempts(accounts)
    known = _Known(attempts)
    span = known.span()
    found: list[Evidence] = []
    undated = unread = 0
    now = datetime.now(UTC)
    tasks = [Log(path, source_of(path), known.node(path, folder)) for path in logs]
    with count_bar("logs", len(tasks), least=_BAR_FROM) as advance:
        read = on_all_cores(lambda log: _read(log, signatures, now), tasks)
        for log, items in zip(tasks, read, strict=True):
            unread += items is None
            timed = items or [] if log.source is Source.JOB_LOG else dated(items or [], now, span)
            placed = known.placed(log, in_order(timed, now), now)
            found += placed
            undated += bool(items) and not placed
            advance(1)
    found += (_end(attempt) for attempt in attempts if is_failure(attempt))
    if not found:
        what = f": nothing in {undated} of them says when it was" if undated else ""
        what += f"; {unread} are no text or may not be read" if unread else ""
        raise FileError(
            folder, f"holds no store (sentinel.db), and no logs from which anything can be judged{what}",
            fix="name the folder that [daemon] state names, or one with logs whose lines have times",
        )  # fmt: skip
    return Recording(
        evidence=tuple(sorted(found, key=lambda item: item.seen_at)),
        attempts=(*map(_recorded, attempts), *_from_logs(found, attempts)),
        unreadable=undated + unread,
    )


def _read(log: Log, signatures: Signatures, now: datetime) -> list[Evidence] | None:
    """None: it is no text, or may not be read. A folder of old logs has such files, too."""
    try:
        return read_log(log, signatures, now)
    except (UserError, OSError):
        return None


class _Known:
    """What accounting says of jobs and nodes."""

    def __init__(self, attempts: Sequence[AccountedAttempt]) -> None:
        self._by_job: dict[int, list[AccountedAttempt]] = defaultdict(list)
        for attempt in attempts:
            self._by_job[attempt.job].append(attempt)
        self._tasks = {attempt.task: attempt.job for attempt in attempts if attempt.task is not None}
        self._nodes = {node for attempt in attempts for node in attempt.nodes}

    def node(self, path: Path, folder: Path) -> str | None:
        return node_of(path, folder, self._nodes)

    def span(self) -> tuple[datetime, datetime] | None:
        """From the begin of the first attempt to the end of the last."""
        attempts = [attempt for own in self._by_job.values() for attempt in own]
        if not attempts:
            return None
        return min(one.started_at for one in attempts), max(one.ended_at for one in attempts)

    def placed(self, log: Log, items: Sequence[Evidence], now: datetime) -> list[Evidence]:
        """The items with their job, its attempt, and times; none where nothing says when it was."""
        if log.source is not Source.JOB_LOG:
            return [replace(item, seen_at=item.at) for item in items if item.at != now]
        job = self._job(log.file)
        own = self._by_job.get(job or -1, [])
        found = []
        for item in items:
            at = item.at if item.at != now else own[-1].ended_at if own else None
            if at is None:
                continue
            attempt = _attempt_at(own, at)
            found.append(replace(item, at=at, seen_at=at, where=replace(item.where, job=job, attempt=attempt)))
        return found

    def _job(self, path: Path) -> int | None:
        """By accounting; without it the only number in the name, which may be anything where there are several."""
        if self._by_job:
            named = jobs_in(path.name, self._by_job.keys(), self._tasks)
            return min(named) if len(named) == 1 else None
        numbers = set(_NUMBER.findall(path.stem))
        return int(numbers.pop()) if len(numbers) == 1 else None


def _attempt_at(attempts: Sequence[AccountedAttempt], at: datetime) -> int | None:
    begun = [one.attempt for one in attempts if one.started_at <= at]
    return begun[-1] if begun else attempts[0].attempt if attempts else 0


def _attempts(accounts: Sequence[Path]) -> list[AccountedAttempt]:
    from sentinel.adapters.slurm import accounting
    from sentinel.cli.recordings.import_jobs import sacct_text

    return accounting.read(sacct_text(accounts), None)[0]


def _end(attempt: AccountedAttempt) -> Evidence:
    view = JobView(
        id=attempt.job, state=attempt.state, user=attempt.user, partition=attempt.partition, nodes=attempt.nodes,
        restarts=attempt.attempt, exit_code=attempt.exit_code, exit_signal=attempt.exit_signal, ended_at=attempt.ended_at,
    )  # fmt: skip
    return job_ended(view, attempt.ended_at, nodes=attempt.nodes)


def _recorded(attempt: AccountedAttempt) -> RecordedAttempt:
    return RecordedAttempt(
        attempt.job, attempt.attempt, attempt.started_at, attempt.nodes, attempt.user, attempt.partition,
        ended_at=attempt.ended_at, state=attempt.state,
    )  # fmt: skip


def _from_logs(found: Sequence[Evidence], attempts: Sequence[AccountedAttempt]) -> Iterator[RecordedAttempt]:
    """Attempts of jobs known only from their logs: from the first line to the last."""
    known = {attempt.job for attempt in attempts}
    spans: dict[int, tuple[datetime, datetime, dict[str, None]]] = {}
    for item in found:
        job = item.where.job
        if job is None or job in known:
            continue
        first, last, nodes = spans.get(job, (item.at, item.at, {}))
        nodes |= {item.where.node: None} if item.where.node else {}
        spans[job] = (min(first, item.at), max(last, item.at), nodes)
    for job, (first, last, nodes) in spans.items():
        yield RecordedAttempt(job, 0, first, tuple(nodes), ended_at=last, state="failed")
