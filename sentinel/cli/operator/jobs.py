"""``sentinel jobs`` and ``lost``: each job's attempts, steps gained, and what failures cost in GPU-hours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from sentinel.cli.operator.arguments import JOB, asked_filters, filter_options, filter_words
from sentinel.cli.operator.daemon_client import config_option, view
from sentinel.cli.operator.fleet import drained_by
from sentinel.cli.operator.incident_table import incident_table, tell_cut
from sentinel.cli.operator.output import (
    causes_words,
    clock,
    counted,
    echo,
    json_option,
    paged,
    print_json,
    say,
    shown,
    span,
    styled_state,
    table,
    when,
)
from sentinel.errors import UserError

_NODES = 8  # nodes of its own list for which a job waits
_SHOWN = 30  # rows of `lost`; --all shows the rest
LOST_COLUMNS = ("lost GPU-h", "failures", "redone steps", "redone GPU-h", "down GPU-h", "not known", "causes")


@click.command()
@click.argument("number", type=JOB, required=False, metavar="[JOB]")
@filter_options
@config_option
@json_option
@paged
def jobs(number: int | str | None, config: Path, as_json: bool, **filters: Any) -> None:
    """Jobs: attempts, steps gained, time lost. With a job's id, the attempts side by side.

    With --json, one object for each attempt; of a job without any, one with what Slurm or its incidents say.

    \b
    Examples:
      sentinel jobs
      sentinel jobs 1234
      sentinel jobs --user ada --since 7d
    """
    if number is not None:
        filters["job"] = number
    chosen = asked_filters(**filters)
    seen = view(config, "jobs", **chosen)
    attempts, slurm = seen["attempts"], seen.get("slurm")
    if number is not None and not attempts and slurm is not None:
        refused = seen.get("refused", ())
        print_json([{**slurm, "refused_by": refused}]) if as_json else as_slurm_shows(slurm, refused)
        return
    if number is not None and not attempts:
        _without_attempts(number, seen, as_json)
        return
    tell_cut(seen, "attempts" if number is not None else "jobs", beside=as_json)
    if as_json:
        print_json(attempts)
        return
    if number is not None:
        attempts_table(attempts, seen.get("incidents", ()))
        say_refusals(seen.get("refused", ()))
    elif not attempts:
        echo(f"No job{filter_words(chosen) or ' in the last 30 days'}.")
    else:
        _listing(attempts)


def _without_attempts(number: int | str, seen: dict[str, Any], as_json: bool) -> None:
    """A job that only its incidents tell of.

    Raises:
        UserError: there is none.
    """
    if not seen.get("incidents"):
        fix = "squeue and sacct may know it; sentinel jobs lists others"
        raise UserError(f"nothing is known of job {number}", fix=fix)
    echo(f"No attempt of job {number} was seen, or none is kept any more.", err=as_json)
    if as_json:
        print_json([{"job": number, "attempt": None, "state": None, "incidents": seen["incidents"]}])
    else:
        incident_table("Incidents", seen["incidents"], of_one_job=True)


def _listing(attempts: Iterable[dict[str, Any]]) -> None:
    by_job: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for row in attempts:
        by_job.setdefault(_which(row), []).append(row)
    columns = (
        "job",
        "state",
        "attempts",
        "last step",
        "lost GPU-h",
        "user",
        "name",
        "nodes",
        "started",
        "steps gained",
    )
    table(
        "",
        columns,
        [_job_row(rows) for rows in by_job.values()],
        wide=("attempts", "lost GPU-h", "user", "name", "nodes", "started", "steps gained"),
        whole=("job", "state", "attempts", "last step", "lost GPU-h", "user", "started", "steps gained"),
    )


def _which(row: dict[str, Any]) -> tuple[int, int]:
    """The job of an attempt, also where others had its id before."""
    return row["job"], row.get("nth_of_id", 0)


def _job_row(rows: list[dict[str, Any]]) -> tuple[object, ...]:
    newest = rows[-1]
    return (
        newest["job"],
        _state(newest),
        len(rows),
        newest["last_step"],
        lost_words(rows),
        newest["user"],
        newest["name"],
        newest["nodes"],
        when(newest["started_at"]),
        net_steps(rows),
    )


def _state(newest: dict[str, Any]) -> Any:
    """How the newest attempt is, and whether the job waits held for a person."""
    state = styled_state(newest["state"])
    if newest.get("incident_state") == "held":
        state.append(", held", style="yellow")
    return state


def net_steps(rows: list[dict[str, Any]]) -> int | None:
    """Steps that the job has gained over all its attempts: those made twice count once."""
    firsts = [row["first_step"] for row in rows if row["first_step"] is not None]
    lasts = [row["last_step"] for row in rows if row["last_step"] is not None]
    return max(lasts) - min(firsts) + 1 if firsts and lasts else None


def lost_words(rows: list[dict[str, Any]]) -> str | None:
    """GPU-hours that failures of these attempts cost, as `lost` sums them; ``+ ?`` where a part is not known."""
    failed = [row for row in rows if row.get("incident")]
    known = [part for row in failed if (part := row.get("known_lost_gpu_h", row["lost_gpu_h"])) is not None]
    whole = all(row["lost_gpu_h"] is not None for row in failed)
    return _sum_words(sum(known) if known else None, whole=whole) if failed else None


def _sum_words(known: float | None, *, whole: bool) -> str:
    """GPU-hours of which a part, or all, may be unknown."""
    return "not known" if known is None else hours(known) + ("" if whole else " + ?")


def hours(number: float) -> str:
    """GPU-hours, short."""
    return f"{number:.0f}" if number >= 99.5 else f"{number:.1f}" if number >= 0.95 else f"{number:.2g}"


def attempts_table(attempts: list[dict[str, Any]], incidents: Iterable[dict[str, Any]] = ()) -> None:
    """One job: who, what it gained and lost, its attempts side by side, its incidents; and the attempts of others with its
    id."""
    newest = attempts[-1]
    own = [row for row in attempts if _which(row) == _which(newest)]
    say(f"Job {newest['job']} {shown(newest['name'])} of {shown(newest['user'])} in {shown(newest['partition'])}: "
        f"{_state(newest).plain}")  # fmt: skip
    gained, lost = net_steps(own), lost_words(own)
    words = [counted(len(own), "attempt"), "no step seen" if gained is None else f"{gained} steps gained"]
    known = lost != "not known"
    words += [f"{lost} GPU-hours lost" if known else "GPU-hours lost: not known"] if lost is not None else []
    say("; ".join(words), "  ")
    if len(own) < len(attempts):
        say(f"Jobs before it had the same id: {counted(len(attempts) - len(own), 'attempt')} below.", "  ")
    if newest.get("log_unread"):
        say(f"Its log is not read, so that its steps are not known. {shown(newest['log_unread'])}", "  ")
    if preempted := [row["preemption"] for row in own if row.get("preemption")]:
        say(shown(preempted[-1]), "  ")
    _say_comment_problem(newest)
    if newest.get("save_interval_s") or newest.get("interval_reason"):
        should = newest.get("recommended_interval_s")
        saves_s = newest.get("save_interval_s")
        often = f"Saves every {span(saves_s)}" if saves_s else "How often it saves is not known"
        better = f"; every {span(should)} would be best" if should else ""
        why = shown(newest.get("interval_reason"))
        say(f"{often}{better}. {why[:1].upper()}{why[1:]}", "  ")
    if newest.get("read_back_bytes"):
        say(f"Its saves were read once: {_read_once(newest)}", "  ")
    columns = (
        "attempt",
        "state",
        "started",
        "ended",
        "nodes",
        "first step",
        "last step",
        "redone steps",
        "down",
        "cause",
    )
    table(
        "Attempts",
        columns,
        [_attempt_row(row) for row in attempts],
        wide=("nodes", "cause", "down", "redone steps", "ended", "first step"),
        whole=("attempt", "state", "started", "ended", "first step", "last step", "redone steps", "down", "cause"),
    )
    rows = list(incidents)
    if rows:
        incident_table("Incidents", rows, of_one_job=True)


def _say_comment_problem(row: dict[str, Any]) -> None:
    if problem := row.get("comment_problem"):
        why = shown(problem)
        say(
            "Its comment is not understood: what it asks for, as a restart after a failure, is not done. "
            f"{why[:1].upper()}{why[1:]}",
            "  ",
        )


def say_refusals(refused: Sequence[dict[str, Any]], indent: str = "") -> None:
    """Which nodes' prologs did not let the job begin there, and why."""
    for one in refused[-_NODES:]:
        say(
            f"{shown(one['node'])} refused attempt {one['attempt']} at {clock(one['at'])}: {shown(one['reason'])}",
            indent,
        )


def as_slurm_shows(row: dict[str, Any], refused: Sequence[dict[str, Any]] = ()) -> None:
    """A job of which no attempt was seen: its state in Slurm, and what it may wait for."""
    why = f" ({shown(row['reason'])})" if row["reason"] else ""
    where = f" on {shown(row['nodes'])}" if row["nodes"] else ""
    say(f"Job {row['job']} {shown(row['name'])} of {shown(row['user'])} in {shown(row['partition'])}: "
        f"{shown(row['state'])}{why}{where}, as Slurm shows it")  # fmt: skip
    _say_comment_problem(row)
    if row["waits_for"]:
        say(shown(row["waits_for"]), "  ")
    for node in row["out_of_service"][:_NODES]:
        say(f"{shown(node['node'])} is {shown(node['state'])}{drained_by(node)}.", "  ")
    say_refusals(refused, "  ")
    if (times := row["attempt"]) and not refused:
        often = "once" if times == 1 else f"{times} times"
        say(f"Slurm requeued it {often}, and no attempt was seen to begin: a node's prolog may have refused it. "
            "sentinel why NODE names the reason.", "  ")  # fmt: skip


def _read_once(row: dict[str, Any]) -> str:
    """What the manifests of a running job's saves cost: bytes, seconds, share of its time."""
    share = row.get("read_back_fraction")
    part = "" if share is None else f", {share:.1%} of the time"
    return f"{row['read_back_bytes'] / 1e9:.1f} GB in {row['read_back_s']:.0f} s{part}"


def _attempt_row(row: dict[str, Any]) -> tuple[object, ...]:
    down = row.get("down_s")
    return (
        row["attempt"],
        styled_state(row["state"]),
        clock(row["started_at"]),
        clock(row["ended_at"]),
        row["nodes"],
        row["first_step"],
        row["last_step"],
        row.get("redone_steps"),
        span(down) if down is not None else None,
        row.get("cause"),
    )


@click.command()
@click.option("--by", type=click.Choice(["job", "user", "node", "cause"]), default="job", show_default=True)
@click.option("--all", "whole", is_flag=True, help=f"All rows, not the first {_SHOWN}.")
@filter_options
@config_option
@json_option
@paged
def lost(by: str, whole: bool, config: Path, as_json: bool, **filters: Any) -> None:
    """GPU-hours lost to failures, and to what: steps made twice, and time without steps. Without --since, of 30 days.

    A node counts with all its GPUs. What is not known (no step printed, the job did not go on) adds nothing and is
    counted beside. What Slurm or a person ended on purpose (preemption, time limit) is no failure: --cause shows it.

    \b
    Examples:
      sentinel lost --since 7d
      sentinel lost --by cause --since 30d
      sentinel lost --by job --user ada --json
    """
    chosen = asked_filters(**filters)
    seen = view(config, "lost", by=by, **chosen)
    tell_cut(seen, beside=as_json)
    if as_json:
        print_json(seen["rows"])
        return
    words = filter_words(chosen) or f" since {clock(seen['since'])}"
    if not seen["rows"]:
        echo(f"No job failed{words}.")
        return
    count, unknown = seen["failures"], seen["not_known"]
    beside = f", and what is not known of {unknown} of them" if unknown else ""
    known = seen["lost_gpu_h"]
    if known is None:
        say(f"What {counted(count, 'failure')}{words} cost is not known.")
    else:
        say(f"{hours(known)} GPU-hours lost by {counted(count, 'failure')}{words}{beside}.")
    rows = seen["rows"] if whole else seen["rows"][:_SHOWN]
    first = ("job", "name", "user") if by == "job" else (by,)
    table(
        "",
        (*first, *LOST_COLUMNS),
        [_lost_row(first, row) for row in rows],
        wide=("name", "user", "redone steps", "redone GPU-h", "down GPU-h", "not known"),
        whole=(*first, *LOST_COLUMNS[:-1]),
        cut=("causes",),
    )
    if (more := len(seen["rows"]) - len(rows)) > 0:
        echo(f"... and {more} more (--all shows them)")


def _lost_row(first: tuple[str, ...], row: dict[str, Any]) -> tuple[object, ...]:
    redone, down = (hours(row[name]) if row[name] is not None else None for name in ("redone_gpu_h", "down_gpu_h"))
    return (
        *(row[name] for name in first),
        _sum_words(row["lost_gpu_h"], whole=not row["not_known"]),
        row["failures"],
        row["redone_steps"],
        redone,
        down,
        row["not_known"] or None,
        causes_words(row["causes"]),
    )
