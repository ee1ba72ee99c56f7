"""``sentinel status``, ``nodes`` and ``jobs``: the fleet at a glance."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from sentinel.cli.asking import ago, config_option, json_option, print_json, shown, styled_state, table, view


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
    click.echo(f"Sentinel {seen['version']} on {shown(seen['cluster'])}: {mode}; Slurm {slurm}")
    click.echo(f"Nodes:  {_counts(seen['nodes'])}")
    click.echo(f"Agents: {_counts(seen['agents'])}")
    click.echo(f"Jobs:   {_counts(seen['jobs'])}")
    if seen["drained_by_us"]:
        click.echo(f"Drained by Sentinel: {shown(seen['drained_by_us'])}")
    if seen["open_incidents"]:
        incident_table("Open incidents", seen["open_incidents"])
    else:
        click.echo("No open incident.")
    if seen["recent_incidents"]:
        incident_table("Latest", seen["recent_incidents"])


@click.command()
@click.argument("node", required=False)
@config_option
@json_option
def nodes(node: str | None, config: Path, as_json: bool) -> None:
    """Nodes: Slurm's state, what the agent says, failures of the last 30 days.

    \b
    Examples:
      sentinel nodes
      sentinel nodes n17
    """
    seen = view(config, "nodes", **({"node": node} if node else {}))
    if as_json:
        print_json(seen["nodes"])
        return
    columns = ("node", "state", "agent", "GPUs", "job", "failures 30 d", "verdict of the agent", "reason")
    rows = [_node_row(row) for row in seen["nodes"]]
    table("", columns, rows, wide=("verdict of the agent", "failures 30 d"), whole=("node", "state", "agent"))
    if node is not None and seen["incidents"]:
        incident_table(f"Incidents of {shown(node)}", seen["incidents"])


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
    said = row["verdict"].get("state") or row["verdict"].get("answer") if isinstance(row["verdict"], dict) else None
    return (
        row["node"],
        styled_state(row["state"]),
        styled_state(row["agent"]),
        row["gpus"],
        row["job"],
        row["failures_30d"],
        said,
        row["reason"],
    )


def _counts(counts: dict[str, int]) -> str:
    return (
        ", ".join(f"{count} {shown(name)}" for name, count in sorted(counts.items(), key=lambda item: -item[1])) or "-"
    )
