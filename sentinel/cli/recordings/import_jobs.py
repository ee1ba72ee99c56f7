"""``sentinel import``: what Slurm's accounting and old logs say about the time before Sentinel."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sentinel.cli.offline.progress_bar import count_bar
from sentinel.cli.operator.arguments import GivenPath, refuse_unused, since_option, since_time
from sentinel.cli.operator.daemon_client import CONFIG
from sentinel.cli.operator.output import counted, say, table
from sentinel.errors import FileError, UserError
from sentinel.given_files import opened

if TYPE_CHECKING:
    from sentinel.model.accounting import AccountedAttempt
    from sentinel.planning.past_jobs import Judged, Key, PastJobs

_SHOWN = 12  # causes in the table; all of them are in the JSON
MOST_LOGS = 20_000
_BAR_FROM = 50
_WOULD = {
    "resume": "restart it",
    "resume_excluding": "restart it elsewhere",
    "hold": "hold it, tell its user",
    "none": "nothing",
    "not known": "no log: not known",
}


@click.command()
@click.option("--slurm-accounting", is_flag=True, help="Ask sacct here; it needs a slurmdbd.")
@click.option("--from", "file", type=GivenPath(), help="A file with what sacct printed, see above.")
@click.option("--logs", type=GivenPath(), help="Folder of old job logs; a job's id stands in their names.")
@since_option("30d")
@click.option("--gpus-per-node", default=8, show_default=True, type=click.IntRange(1, 64), help="Of the file --out.")
@click.option(
    "--out", type=click.Path(path_type=Path), help="Write the failures for plan --history and simulate --failures."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def import_jobs(
    slurm_accounting: bool, file: Path | None, logs: Path | None, since: str, gpus_per_node: int, out: Path | None,
    as_json: bool,
) -> None:  # fmt: skip
    """What failed before Sentinel, what it cost, and what Sentinel would have done.

    Failures are attempts with GPUs that ended as FAILED, NODE_FAIL, BOOT_FAIL or OUT_OF_MEMORY. Logs with the job's id in
    their names tell the cause, and what would have been done; without one, only Slurm's state is known. Accounting does not
    say what was saved: an attempt counts as lost at most whole. Nothing is changed anywhere.

    What --from takes is made where sacct is:

    \b
      TZ=UTC sacct --local --starttime=now-30days --allusers --duplicates \\
          --allocations --noheader --parsable2 > sacct.txt \\
          --format=JobIDRaw,User,Partition,State,ExitCode,Start,End,AllocTRES,NodeList,JobID

    \b
    Examples:
      sentinel import --slurm-accounting --logs /shared/logs --out history.json
      sentinel simulate --nodes 256 --failures history.json
      sentinel import --from sacct.txt --json
    """
    from sentinel.adapters.slurm import accounting
    from sentinel.planning.past_jobs import history_document, past_jobs

    if slurm_accounting == (file is not None):
        words = "--slurm-accounting and --from name two sources" if slurm_accounting else "where from?"
        raise UserError(words, fix="sentinel import --slurm-accounting, or --from FILE with what sacct printed")
    if out is None:
        refuse_unused("without --out: GPU-hours are what Slurm counted", "add --out history.json", "gpus_per_node")
    until = datetime.now(UTC)
    begin = since_time(since, until)
    if file is not None:
        attempts, unread = accounting.read(sacct_text([file]), None)
    else:
        asked = asyncio.run(accounting.ask(_slurm(), begin, until))
        attempts, unread = accounting.read(asked.decode("utf-8", "replace"), until)
    if not attempts:
        raise UserError(
            f"no attempt of a job in it ({counted(len(unread), 'line')} could not be read)",
            fix="a longer --since; or the format that sentinel import --help names",
        )
    if file is not None:  # --since counts back from the newest time in it
        until = max(attempt.ended_at for attempt in attempts)
        begin = max(attempts[0].started_at, since_time(since, until))
    until = max(until, begin + timedelta(seconds=1))
    judged = _judged([one for one in attempts if begin <= one.ended_at <= until], attempts, logs)
    past = past_jobs(attempts, judged, begin, until)
    if out is not None:
        _write(out, history_document(past, judged, begin, until, gpus_per_node))
    if as_json:
        click.echo(json.dumps(_as_json(past, begin, until, unread, len(judged), out)))
    else:
        _show(past, begin, until, unread, len(judged), out)


def _slurm() -> Any:
    from sentinel.config.settings import Settings, load

    path = Path(os.environ.get("SENTINEL_CONFIG", CONFIG))
    return (load(path, Settings) if path.exists() else Settings()).slurm


def sacct_text(files: Sequence[Path]) -> str:
    """The output of sacct in these files.

    Raises:
        FileError: they cannot be read, or are too large together.
    """
    from sentinel.adapters.slurm.accounting import DEADLINE_S, MOST_BYTES

    texts, left = [], MOST_BYTES
    alone = "is" if len(files) == 1 else "and those before it are"
    too_large = f"{alone} larger than {MOST_BYTES >> 30} GiB"
    for path in files:
        try:
            with opened(path) as file:
                content = file.whole(left, DEADLINE_S, too_large)  # sacct may still be at work behind a pipe
        except OSError as error:
            raise FileError(path, f"cannot be read: {error.strerror}", fix="Check the path.") from error
        left -= len(content)
        texts.append(content.decode("utf-8", "replace"))
    return "\n".join(texts)


def _judged(
    ended: Sequence[AccountedAttempt], attempts: Sequence[AccountedAttempt], logs: Path | None
) -> Mapping[Key, Judged]:
    """The verdict on the logs of each failed job that has some; the last of its failed attempts wrote their end."""
    from sentinel.cli.offline.classify import judge_paths
    from sentinel.cli.recordings.job_logs import logs_by_job
    from sentinel.config.rules_files import load_rules
    from sentinel.evidence.logs.reader import Signatures
    from sentinel.planning.past_jobs import Judged, is_failure

    if logs is None:
        return {}
    if not logs.is_dir():
        raise FileError(logs, "is no folder", fix="--logs takes the folder in which the jobs' logs lie")
    last = {attempt.job: attempt.attempt for attempt in ended if is_failure(attempt) and attempt.gpus != 0}
    files = {job: paths for job, paths in logs_by_job(logs, attempts).items() if job in last}
    if len(files) > MOST_LOGS:
        raise UserError(f"{len(files)} logs, at most {MOST_LOGS} are read", fix="a shorter --since")
    signatures, now, found = Signatures(load_rules()), datetime.now(UTC), {}
    with count_bar("logs", len(files), least=_BAR_FROM) as advance:
        for job, paths in sorted(files.items()):
            answer = judge_paths(paths, signatures, now, source="job")
            if "error" not in answer and not answer.get("empty"):
                found[job, last[job]] = Judged(str(answer["cause"]), str(answer["restart"]))
            advance(1)
    return found


def _write(path: Path, document: Mapping[str, object]) -> None:
    try:
        with path.open("x", encoding="utf-8") as file:
            json.dump(document, file)
    except FileExistsError as error:
        raise FileError(path, "is there already", fix="name another file with --out, or remove this one") from error
    except OSError as error:
        raise FileError(path, f"cannot be written: {error.strerror}", fix="name another file with --out") from error


def _as_json(
    past: PastJobs, since: datetime, until: datetime, unread: Sequence[int], logs: int, out: Path | None
) -> dict[str, object]:
    return {
        "since": since.isoformat(),
        "until": until.isoformat(),
        "attempts": past.attempts,
        "failures": len(past.failures),
        "gpu_hours": round(past.gpu_s / 3600, 3),
        "lost_gpu_hours_at_most": round(sum(lost.gpu_hours_at_most for lost in past.by_cause.values()), 3),
        "by_cause": {
            cause: {
                "failures": lost.failures,
                "lost_gpu_hours_at_most": round(lost.gpu_hours_at_most, 3),
                "sentinel_would": lost.would,
            }
            for cause, lost in past.by_cause.items()
        },
        "requeued": {
            "attempts": past.requeued.failures,
            "lost_gpu_hours_at_most": round(past.requeued.gpu_hours_at_most, 3),
        },
        "logs": logs,
        "gpus_not_known": past.gpus_unknown,
        "unreadable_lines": len(unread),
        "history": str(out) if out is not None else None,
    }


def _show(past: PastJobs, since: datetime, until: datetime, unread: Sequence[int], logs: int, out: Path | None) -> None:
    lost_h = sum(lost.gpu_hours_at_most for lost in past.by_cause.values())
    say(
        f"{since:%Y-%m-%d} to {until:%Y-%m-%d}: {counted(past.attempts, 'attempt')}, {past.gpu_s / 3600:,.0f} GPU-hours, "
        f"{counted(len(past.failures), 'failure')}, at most {lost_h:,.0f} GPU-hours lost; "
        f"logs of {counted(logs, 'job')} read"
    )
    table(
        "",
        ("cause", "failures", "lost at most", "Sentinel would"),
        [
            (
                cause,
                f"{lost.failures:,}",
                f"{lost.gpu_hours_at_most:,.0f} GPU-h",
                ", ".join(f"{_WOULD.get(what, what)} ({count})" for what, count in sorted(lost.would.items())),
            )
            for cause, lost in list(past.by_cause.items())[:_SHOWN]
        ],
        whole=("cause", "failures", "lost at most"),
    )
    if past.requeued.failures:
        say(
            f"Not among them: {counted(past.requeued.failures, 'attempt')} of {past.requeued.gpu_hours_at_most:,.0f} "
            "GPU-hours that a script or a person put back into the queue; whether after a failure, accounting does not say."
        )
    if past.gpus_unknown:
        say(f"GPUs not known of {counted(past.gpus_unknown, 'attempt')}: set AccountingStorageTRES=gres/gpu")
    if unread:
        say(f"{counted(len(unread), 'line')} could not be read, the first is line {unread[0]}")
    if out is not None:
        say(f"written to {out}: sentinel plan ... --history {out}, sentinel simulate --failures {out}")
    elif past.failures:
        say("next: --out history.json, then sentinel simulate --failures history.json shows such a month with Sentinel")
