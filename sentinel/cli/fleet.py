"""``sentinel status``, ``nodes`` and ``jobs``: the fleet at a glance."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from sentinel.cli.asking import ago, config_option, json_option, print_json, say, shown, styled_state, table, view


@click.command()
@config_option
@json_option
def status(config: Path, as_json: bool) -> None:
    """The fleet and the open incidents at a glance.

    \b
    Examples:
      sentinel status
      sentinel status --json | jq .open_incidents
    """
    seen = view(config, "status")
    if as_json:
        print_json([seen])
        return
    slurm = "answers" if seen["slurm"]["answers"] else f"not known: {shown(seen['slurm']['problem'])}"
    mode = "PAUSED: observing only" if seen["paused"] else "active"
    where = f" on {shown(seen['cluster'])}" if seen["cluster"] else ""
    click.echo(f"Sentinel {seen['version']}{where}: {mode}; Slurm {slurm}")
    click.echo(f"Nodes:  {_counts(seen['nodes'])}")
    click.echo(f"Agents: {_counts(seen['agents'])}")
    click.echo(f"Jobs:   {_counts(seen['jobs'])}")
    _signals(seen.get("prometheus"))
    if seen["drained_by_us"]:
        click.echo(f"Drained by Sentinel: {shown(seen['drained_by_us'])}")
    for suspect in seen.get("suspects", ()):
        say(f"Suspect: {shown(suspect['node'])}: {shown('; '.join(suspect['reasons']))}")
    still_open = {row["id"] for row in seen["open_incidents"]}
    if still_open:
        incident_table("Open incidents", seen["open_incidents"])
    else:
        click.echo("No open incident.")
    others = [row for row in seen["recent_incidents"] if row["id"] not in still_open]
    if others:
        incident_table("Latest of the others" if still_open else "Latest", others)


def _signals(prometheus: dict[str, Any] | None) -> None:
    """What holds of storage, switches and power; a line only where there is something to say."""
    if prometheus is None:
        return
    if not prometheus["answers"]:
        why = shown(prometheus["problem"]) if prometheus["problem"] else "not asked yet"
        click.echo(f"Storage, switches, power: not known ({why})")
    for signal in prometheus["firing"]:
        say(f"Signal since {ago(signal['since']).removesuffix(' ago')}: {shown(signal['text'])}")
    for name, why in prometheus["refused"].items():
        click.echo(f"Signal {shown(name)} has a wrong query: {shown(why)}")


@click.command()
@click.argument("node", required=False)
@click.option("--suspects", is_flag=True, help="Only nodes that fail more than others, or whose parts age.")
@config_option
@json_option
def nodes(node: str | None, suspects: bool, config: Path, as_json: bool) -> None:
    """Nodes: Slurm's state, what the agent says, failures of the last 30 days over the work done; recurring ones first.

    \b
    "a month" is failures in a month of work, with the range it lies in for nine
    nodes in ten that look like this one: three failures in a busy month and three
    in an hour differ. LEMON: the whole range lies above the other nodes.

    \b
    Examples:
      sentinel nodes
      sentinel nodes --suspects
      sentinel nodes n17
      sentinel nodes --json | jq 'select(.score.lemon) | .node'
    """
    seen = view(config, "nodes", **({"node": node} if node else {}))
    rows = [row for row in seen["nodes"] if row.get("suspect") or not suspects]
    if as_json:
        print_json(rows)
        return
    if not rows:
        click.echo("No suspect node." if seen["nodes"] else "Slurm knows no node.")
        return
    if node is not None:
        for row in rows:
            describe(row)
        if seen["incidents"]:
            incident_table(f"Incidents of {shown(node)}", seen["incidents"])
        return
    columns = ("node", "state", "agent", "GPUs", "job", "fails", "a month", "agent says", "why")
    table(
        "",
        columns,
        [_node_row(row) for row in rows],
        wide=("agent says", "GPUs"),
        whole=("node", "state", "agent", "fails", "a month"),
        cut=("why",),
    )


@click.command()
@click.argument("job", type=int, required=False)
@config_option
@json_option
def jobs(job: int | None, config: Path, as_json: bool) -> None:
    """Jobs: attempts, steps gained, and how often a running one saves beside how often it should.

    \b
    Examples:
      sentinel jobs
      sentinel jobs 1234
    """
    seen = view(config, "jobs", **({"job": job} if job is not None else {}))
    if as_json:
        print_json(seen["attempts"])
        return
    if not seen["attempts"]:
        none = (
            "No job in the last 30 days."
            if job is None
            else f"Nothing is known of job {job}; squeue and sacct may know it."
        )
        click.echo(none)
        return
    columns = (
        "job",
        "name",
        "user",
        "attempt",
        "state",
        "nodes",
        "started",
        "first step",
        "last step",
        "step time s",
        "saves every s",
        "should be s",
    )
    table(
        "",
        columns,
        [
            (
                row["job"],
                row["name"],
                row["user"],
                row["attempt"],
                row["state"],
                row["nodes"],
                ago(row["started_at"]),
                row["first_step"],
                row["last_step"],
                row["step_time_s"],
                row.get("save_interval_s"),
                row.get("recommended_interval_s") or row.get("interval_verdict"),
            )
            for row in seen["attempts"]
        ],
        wide=("name", "first step", "step time s", "saves every s", "should be s"),
        whole=("job", "state", "started"),
    )


INCIDENT_COLUMNS = ("incident", "when", "state", "cause", "scope", "sure", "culprit", "job", "outcome")


def incident_table(title: str, rows: Iterable[dict[str, Any]]) -> None:
    whole = ("incident", "when", "state", "cause", "job")
    table(title, INCIDENT_COLUMNS, map(incident_row, rows), wide=("scope", "sure", "outcome"), whole=whole)


def incident_row(row: dict[str, Any]) -> tuple[object, ...]:
    sure = f"{row['confidence']:.0%}" if row["confidence"] is not None else "-"
    return (
        row["id"],
        ago(row["opened_at"]),
        styled_state(row["state"]),
        row["cause"],
        row["scope"],
        sure,
        row["culprit_nodes"] or [],
        row["job"],
        row["outcome"],
    )


def _node_row(row: dict[str, Any]) -> tuple[object, ...]:
    lemon = bool(row["score"] and row["score"]["lemon"])
    reasons = [*(["LEMON"] if lemon else []), *row["suspect_reasons"], *([row["reason"]] if row["reason"] else [])]
    return (
        row["node"],
        styled_state(row["state"]),
        styled_state(row["agent"]),
        row["gpus"],
        row["job"],
        row["failures_30d"],
        rate(row["score"]) if row["failures_30d"] else None,
        _said(row),
        "; ".join(reasons),
    )


def _said(row: dict[str, Any]) -> str | None:
    verdict = row["verdict"] if isinstance(row["verdict"], dict) else {}
    return next((str(verdict[name]) for name in ("word", "state", "answer") if verdict.get(name)), None)


def describe(row: dict[str, Any]) -> None:
    """Everything that is known of one node, in sentences."""
    click.echo(f"{shown(row['node'])}: {shown(row['state'])}" + (f" ({shown(row['reason'])})" if row["reason"] else ""))
    offset = row["clock_offset_s"]
    clock = f", clock {offset:+.2f} s" if isinstance(offset, (int, float)) else ""
    said = _said(row)
    sentence = row["verdict"].get("sentence") if isinstance(row["verdict"], dict) else None
    agent = f"Agent {shown(row['agent'])}{clock}" + (f"; says {shown(said)}: {shown(sentence)}" if said else "")
    say(agent, "  ")
    gpus = f"{row['gpus']} GPUs" if row["gpus"] is not None else "GPUs not known"
    job = f"job {row['job']}" if row["job"] is not None else "no job"
    say(f"Partitions {shown(row['partitions'])}; {gpus}; {job}", "  ")
    score = row["score"]
    if score is None:
        say("No failure and no work in 30 days that we know of.", "  ")
    else:
        for sentence in _score_words(score):
            say(sentence, "  ")
    for reason in (trend["reason"] for trend in row["trends"] if trend["suspect"]):
        say(f"Suspect: {shown(reason)}", "  ")
    tested = row.get("diagnostic") or {}
    if tested.get("suspect"):
        say(
            f"Under suspicion for {ago(tested['suspect']).removesuffix(' ago')}, until a diagnostic passes on all its GPUs.",
            "  ",
        )
    if tested.get("passed"):
        say(f"Passed a diagnostic {ago(tested['passed'])}.", "  ")
    if row["trends"]:
        columns = ("counter", "part", "now", "a day", "90 %", "")
        table(
            "Counters that grow",
            columns,
            [_trend_row(trend) for trend in row["trends"]],
            whole=("now", "a day", "90 %"),
        )


def _score_words(score: dict[str, Any]) -> list[str]:
    work = (
        f"{score['busy_days']:.1f} days of work"
        if score["busy_days"] >= 1
        else f"{score['busy_days'] * 24:.1f} h of work"
    )
    others = f"the other nodes have {_short(score['others_per_month'])}"
    if not score["failures"]:
        return [f"No failure in {work}; {others} in a month of work."]
    lemon = "LEMON. " if score["lemon"] else ""
    last = f"; the last {ago(score['last_at'])}" if score["last_at"] else ""
    count = f"{score['failures']} failure{'s' if score['failures'] != 1 else ''}"
    why = f" ({shown('; '.join(score['reasons']))})" if score["reasons"] else ""
    return [f"{lemon}{count} in {work}{last}{why}.", f"That is {rate(score)} in a month of work; {others}."]


def rate(score: dict[str, Any]) -> str:
    """Failures in a month of work, with the interval."""
    return f"{_short(score['per_month'])} ({_short(score['low_per_month'])}-{_short(score['high_per_month'])})"


def _short(number: float) -> str:
    return f"{number:.0f}" if number >= 9.95 else f"{number:.1f}" if number >= 0.95 else f"{number:.1g}"


def _trend_row(trend: dict[str, Any]) -> tuple[object, ...]:
    marks = ["suspect"] if trend["suspect"] else []
    marks += ["faster than before"] if trend["faster"] else []
    low, high = trend["low_per_day"], trend["high_per_day"]
    return trend["words"], trend["unit"], trend["value"], trend["per_day"], f"{low:.2g}-{high:.2g}", ", ".join(marks)


def _counts(counts: dict[str, int]) -> str:
    return (
        ", ".join(f"{count} {shown(name)}" for name, count in sorted(counts.items(), key=lambda item: -item[1])) or "-"
    )
