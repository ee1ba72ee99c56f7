"""``sentinel incidents`` and ``why``: what happened, and on what grounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from sentinel.cli.asking import ago, config_option, json_option, print_json, say, shown, table, view
from sentinel.cli.fleet import incident_table
from sentinel.model import Kind, Source

KEPT = 8  # nodes whose folder is named


@click.command()
@click.argument("incident", required=False)
@click.option("--job", type=int, help="Only those of this job.")
@config_option
@json_option
def incidents(incident: str | None, job: int | None, config: Path, as_json: bool) -> None:
    """What happened and what was decided; with an incident's id, the same as ``sentinel why``.

    \b
    Examples:
      sentinel incidents
      sentinel incidents --job 1234
      sentinel incidents 0f3a9c
    """
    if incident is not None:
        _explain(view(config, "why", incident=incident), as_json)
        return
    seen = view(config, "incidents", **({"job": job} if job is not None else {}))
    if as_json:
        print_json(seen["incidents"])
        return
    if not seen["incidents"]:
        click.echo(
            "No incident." if job is None else f"No incident of job {job}; sentinel incidents lists all of them."
        )
        return
    incident_table("", seen["incidents"])


@click.command()
@click.argument("incident")
@config_option
@json_option
def why(incident: str, config: Path, as_json: bool) -> None:
    """On what grounds an incident was judged, what was done, and what would have changed it.

    \b
    Examples:
      sentinel why 0f3a9c           the beginning of an id is enough
      sentinel why 0f3a9c --json
    """
    _explain(view(config, "why", incident=incident), as_json)


def _explain(seen: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json([seen])
        return
    row, verdict, plan = seen["incident"], seen["verdict"], seen["plan"]
    ended = f"  {shown(row['outcome'])}" if row["outcome"] else ""
    opened = f"{str(row['opened_at'])[:19].replace('T', ' ')} UTC ({ago(row['opened_at'])})"
    click.echo(f"Incident {row['id']}  {opened}  {row['state']}{ended}")
    if row["job"] is not None:
        click.echo(f"Job {row['job']} attempt {shown(row['attempt'])} of {shown(row['user'])}")
    if verdict is not None:
        _verdict(verdict)
    if plan is not None:
        _plan(plan)
    if seen["steps"]:
        columns = ("began", "step", "target", "result", "why")
        steps = [
            (str(s["intended_at"])[11:22], s["kind"], s["node"] or s["job"], s["result"] or "not known", s["reason"])
            for s in seen["steps"]
        ]
        table("Done", columns, steps, whole=("began", "step", "result"))
    _kept(seen["evidence"])


def _kept(evidence: list[dict[str, Any]]) -> None:
    """Where the nodes keep what explains the job's end: dumps, error files, ends of logs, kernel lines."""
    kept = [item["where"] for item in evidence if item["kind"] == Kind.BUNDLE and item["source"] == Source.AGENT]
    for where in kept[:KEPT]:
        click.echo(f"Kept on {shown(where['node'])}: {shown(where['path'])}")
    if len(kept) > KEPT:
        click.echo(f"... and on {len(kept) - KEPT} more nodes (--json names them all)")


def _verdict(verdict: dict[str, Any]) -> None:
    click.echo(f"Verdict: {verdict['cause']} ({verdict['scope']}), {verdict['confidence']:.0%} sure")
    culprits = verdict["culprits"]
    named = [f"{kind} {shown(culprits[kind])}" for kind in ("nodes", "gpus", "ranks") if culprits.get(kind)]
    if named:
        click.echo(f"Culprits: {'; '.join(named)}")
    if verdict.get("onset_step") is not None:
        click.echo(f"Numbers went bad at step {verdict['onset_step']}: the restart begins before it")
    if verdict["suspect"]:
        click.echo(f"Suspect, excluded and not drained: {shown(verdict['suspect'])}")
    others = ", ".join(f"{a['cause']} {a['confidence']:.0%}" for a in verdict["alternatives"][:3])
    if others:
        click.echo(f"Else: {others}")
    if verdict["advice"]:
        say(f"Advice: {shown(verdict['advice'])}")
    for title, key in (("What decided", "grounds"), ("What spoke against", "against")):
        if verdict[key]:
            table(
                title, ("when", "source", "where", "weight", "seen"), map(_ground, verdict[key][:12]), whole=("when",)
            )
    for sentence in verdict["would_change"]:
        say(f"Would change it: {shown(sentence)}")


def _ground(ground: dict[str, Any]) -> tuple[object, ...]:
    item = ground["evidence"]
    where = item["where"]
    place = where["node"] or (f"rank {where['rank']}" if where["rank"] is not None else None)
    if where["gpu"] is not None:
        place = f"{place or ''}:{where['gpu']}"
    text = shown(item["text"] or item["kind"])
    note = f" ({shown(ground['note'])})" if ground["note"] else ""
    return str(item["at"])[11:22].rstrip("Z"), item["source"], place, f"{ground['weight']:+.1f}", text[:200] + note


def _plan(plan: dict[str, Any]) -> None:
    if plan["refusal"]:
        say(f"Refused ({shown(plan['refusal'])}): {shown(plan['explanation'])}")
    elif plan["explanation"]:
        say(f"Plan: {shown(plan['explanation'])}")
    if plan["observe_only"] and plan["steps"]:
        would = ", ".join(f"{s['kind']} {shown(s['node'] or s['job'])}" for s in plan["steps"])
        click.echo(f"Would have done: {would}")
