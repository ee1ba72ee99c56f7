"""``sentinel incidents`` and ``why``: what happened, and on what grounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from sentinel.alerts.text import culprit_words
from sentinel.cli.operator.arguments import INCIDENT, SUBJECT, asked_filters, filter_options, filter_words
from sentinel.cli.operator.corrections import corrected_words
from sentinel.cli.operator.daemon_client import config_option, view
from sentinel.cli.operator.fleet import describe, drained_by, released_words, return_words
from sentinel.cli.operator.incident_table import incident_table, no_incident, state_words, tell_cut
from sentinel.cli.operator.jobs import as_slurm_shows, attempts_table, say_refusals
from sentinel.cli.operator.output import clock, echo, json_option, paged, print_json, say, shown, table, when
from sentinel.model.approvals import ASKING, beside_waits
from sentinel.model.records import OURS, STOPS, Cause, IncidentState, Kind, Result, Source, StepKind
from sentinel.model.vocabulary import (
    END_NOT_SEEN,
    ENDED_AS_ASKED,
    HELD_BY_OTHERS,
    cause_words,
    how_sure,
    planned_words,
    result_words,
    words_of,
)
from sentinel.text import names

_ALL = 5000  # incidents, which is as many as the daemon reads at once
KEPT = 8  # nodes whose folder is named
LEAST_SHOWN = 0.005  # an alternative less likely than this would be shown as 0 %
_AT_FAULT = {
    "application": "the job's own program, settings or environment, no machine",
    "gpu": "the machine, not the job's code",
    "link": "the machine, not the job's code",
    "node": "the machine, not the job's code",
    "cluster": "something that many nodes share; neither the job's code nor one machine",
    "unknown": "not known",
}


@click.command()
@click.argument("incident", required=False, type=INCIDENT)
@click.option("--all", "whole", is_flag=True, help="All, not only the newest 200.")
@filter_options
@config_option
@json_option
@paged
def incidents(incident: str | None, whole: bool, config: Path, as_json: bool, **filters: Any) -> None:
    """What happened and what was decided; with an incident's id, the same as ``sentinel why``.

    \b
    Examples:
      sentinel incidents
      sentinel incidents --job 1234
      sentinel incidents --node 'n[1-4]' --since 7d
      sentinel incidents 0f3a9c
    """
    if incident is not None:
        _explain(view(config, "why", what=incident), as_json)
        return
    chosen = asked_filters(**filters)
    seen = view(config, "incidents", **chosen, **({"most": _ALL} if whole else {}))
    if whole:
        tell_cut(seen, beside=as_json)
    elif seen.get("cut"):
        echo(f"The newest {len(seen['incidents'])}; --all shows more.", err=as_json)
    if as_json:
        print_json(seen["incidents"])
        return
    if not seen["incidents"]:
        echo(f"{no_incident(seen)}{filter_words(chosen)}{'; sentinel incidents lists all of them' if chosen else ''}.")
        return
    incident_table("", seen["incidents"])


@click.command()
@click.argument("what", type=SUBJECT)
@config_option
@json_option
@paged
def why(what: str, config: Path, as_json: bool) -> None:
    """Why: an incident, the last one, a node, or a job. On what grounds, what was done, what would have changed it.

    \b
    Examples:
      sentinel why last     the newest incident
      sentinel why n2       why that node is drained, and what it did before
      sentinel why 8801     what happened to that job
      sentinel why 0f3a9c   an incident; the beginning of its id is enough
    """
    _explain(view(config, "why", what=what), as_json)


def _explain(seen: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json([seen])
        return
    _subject(seen)
    if seen["incident"] is not None:
        if seen.get("attempts"):
            echo()
        _incident(seen)
    if seen.get("others"):
        incident_table("Before" if seen["incident"] is not None else "Incidents", seen["others"])
    if seen.get("others_cut"):
        kind, name = seen["asked"]["kind"], shown(seen["asked"]["name"])
        which = "those that point to it" if kind == "node" else "them"  # here are those, too, that only name the node
        say(f"There are more: sentinel incidents --all --{kind} {name} lists {which}")


def _subject(seen: dict[str, Any]) -> None:
    """What is known of the node or the job that was asked about, before the incident that explains it."""
    asked = seen.get("asked") or {}
    if node := seen.get("node"):
        if seen["incident"] is None:
            describe(node)
            say(f"{no_incident(seen)} names this node.")
        else:
            say(f"{shown(node['node'])} is {shown(node['state'])}{drained_by(node)}.")
            for sentence in (*released_words(node), *return_words(node)):
                say(sentence)
            if (node["reason"] or "").startswith(OURS) and seen.get("to_do") is None:  # an operator asks
                say(f"Next: when it is mended, sentinel release {shown(node['node'])}")
    elif asked.get("kind") == "node":
        say(f"Slurm has no node {shown(asked['name'])} any more.")
    if slurm := seen.get("slurm"):
        as_slurm_shows(slurm, seen.get("refused", ()))
    if seen.get("attempts"):
        attempts_table(seen["attempts"])
        say_refusals(seen.get("refused", ()))
        if seen["incident"] is None and seen["attempts"][-1]["state"] in ("unknown", END_NOT_SEEN):
            say("No incident names this job. How it ended is not known: Slurm had forgotten it when it was asked.")
        elif seen["incident"] is None:
            say("No incident names this job: nothing of it was judged a failure.")


def _incident(seen: dict[str, Any]) -> None:
    row, verdict, plan = seen["incident"], seen["verdict"], seen["plan"]
    waiting = [wait["explanation"] for wait in (plan or {}).get("waits", ())]
    ended = f"; {shown(row['outcome'])}" if row["outcome"] and row["outcome"] not in waiting else ""
    say(f"Incident {shown(row['id'])}, {when(row['opened_at'])}: {state_words(row)}{ended}")
    if row["job"] is not None:
        say(f"Job {row['job']} attempt {shown(row['attempt'])} of {shown(row['user'])}")
    for told in row.get("corrections") or ():
        note = f": {shown(told['note'])}" if told["note"] else ""
        say(f"Corrected by {shown(told['by'])}, {when(told['at'])}: {corrected_words(told)}{note}")
    if verdict is not None:
        _verdict(verdict, plan)
    if plan is not None:
        _plan(plan)
    if to_do := seen.get("to_do"):  # for who is no operator, where the advice is for these
        say(f"Next: {shown(to_do)}")
    elif row["state"] == IncidentState.HELD and row["job"] is not None and any(map(_left_held, seen["steps"])):
        theirs = any((step["data"] or {}).get(HELD_BY_OTHERS) for step in seen["steps"])
        first = "whoever held it, not Sentinel, lets it start:" if theirs else "mend what is wrong, then"
        say(f"Next: {first} scontrol release {shown(row.get('job_spec') or row['job'])}")
    if seen["steps"]:
        columns = ("began", "step", "result", "reason")
        steps = [(_at(s["intended_at"]), words_of(s), result_words(s["result"]), s["reason"]) for s in seen["steps"]]
        table(f"Done ({_zone(seen['steps'][0]['intended_at'])})", columns, steps, whole=("began", "result"))
    _kept(seen["evidence"])


def _left_held(step: dict[str, Any]) -> bool:
    """Whether the step held the job, or found it held. Of one that could not be stopped there is nothing to release."""
    data = step["data"] or {}
    return bool(data.get("held") or data.get(HELD_BY_OTHERS)) or (
        step["kind"] in STOPS and step["result"] == Result.DONE
    )


def _at(time: Any) -> str:
    """A time of the day to a hundredth of a second, in the zone of the terminal."""
    from datetime import datetime

    return f"{datetime.fromisoformat(time).astimezone():%H:%M:%S.%f}"[:11]


def _zone(time: Any) -> str:
    return clock(time).rpartition(" ")[2]


def _kept(evidence: list[dict[str, Any]]) -> None:
    """Where the nodes keep what explains the job's end: dumps, error files, ends of logs, kernel lines."""
    kept = [item["where"] for item in evidence if item["kind"] == Kind.BUNDLE and item["source"] == Source.AGENT]
    for where in kept[:KEPT]:
        echo(f"Kept on {shown(where['node'])}: {shown(where['path'])}")
    if len(kept) > KEPT:
        echo(f"... and on {len(kept) - KEPT} more nodes (--json names them all)")


def _verdict(verdict: dict[str, Any], plan: dict[str, Any] | None) -> None:
    sure = how_sure(verdict["confidence"], verdict.get("drain_confidence", 0.0))
    say(f"Verdict: {shown(cause_words(verdict['cause']))} ({shown(verdict['cause'])}){f', {sure}' if sure else ''}")
    as_asked = verdict["cause"] == Cause.SCHEDULER_PREEMPT_OR_TIMELIMIT
    say(f"At fault: {ENDED_AS_ASKED if as_asked else _AT_FAULT.get(verdict['scope'], 'not known')}")
    culprits = verdict["culprits"]
    if where := culprit_words(culprits["nodes"], culprits["gpus"], culprits["ranks"]):
        say(f"Where: {where}")
    if verdict.get("onset_step") is not None:
        restarts = plan is not None and any(step["kind"] == StepKind.CHOOSE_CHECKPOINT for step in plan["steps"])
        say(f"Numbers went bad at step {verdict['onset_step']}{': the restart begins before it' if restarts else ''}")
    if verdict["suspect"]:
        _suspects(verdict["suspect"], plan)
    others = ", ".join(
        f"{shown(a['cause'])} {a['confidence']:.0%}"
        for a in verdict["alternatives"][:3]
        if a["confidence"] >= LEAST_SHOWN
    )
    if others:
        say(f"Else: {others}")
    if verdict["advice"]:
        say(f"Advice: {shown(verdict['advice'])}")
    for title, key in (("What decided", "grounds"), ("What spoke against", "against")):
        if grounds := verdict[key][:12]:
            zone = _zone(grounds[0]["evidence"]["at"])
            columns = ("at", "source", "where", "weight", "text")
            table(
                f"{title} ({zone})", columns, map(_ground, grounds), wide=("source",), whole=("at", "source", "weight")
            )
    for sentence in verdict["would_change"]:
        say(f"Would change it: {shown(sentence)}")


_LEFT_OUT = {StepKind.EXCLUDE: "nodes", StepKind.GIVE_BACK: "given_up"}  # under which name a step has such nodes


def _suspects(suspect: list[str], plan: dict[str, Any] | None) -> None:
    """Which suspects the next attempt is kept from, and which it may get: it cannot do without, or there is none."""
    steps = plan["steps"] if plan is not None and not plan["observe_only"] else []
    told = [(step.get("data") or {}).get(_LEFT_OUT[step["kind"]]) for step in steps if step["kind"] in _LEFT_OUT]
    left_out = {name for listed in told for name in names(listed)}
    for those, words in (
        ([name for name in suspect if name in left_out], "Suspect, left out of the restart and not drained"),
        ([name for name in suspect if name not in left_out], "Suspect, neither left out of a restart nor drained"),
    ):
        if those:
            say(f"{words}: {shown(those)}")


def _ground(ground: dict[str, Any]) -> tuple[object, ...]:
    item = ground["evidence"]
    where = item["where"]
    place = where["node"] or (f"rank {where['rank']}" if where["rank"] is not None else None)
    if where["gpu"] is not None:
        place = f"{place or ''}:{where['gpu']}"
    text = shown(item["text"] or item["kind"])
    note = f" ({shown(ground['note'])})" if ground["note"] else ""
    return _at(item["at"]), item["source"], place, f"{ground['weight']:+.1f}", text[:200] + note


def _plan(plan: dict[str, Any]) -> None:
    """What is planned, and what waits for what; the words of a wait stand with it alone."""
    waits = plan.get("waits", ())
    said = beside_waits(plan["explanation"], waits)
    if plan["refusal"] and (said or not waits):
        say(f"Refused ({shown(plan['refusal'])}): {shown(said)}")
    elif said:
        say(f"Plan: {shown(said)}")
    for wait in waits:
        named = wait["what"] and wait["kind"] not in ASKING  # those words name it themselves
        what = f"{shown(', '.join(wait['what']))}: " if named else ""
        say(f"Waits ({shown(wait['kind'])}) since {when(wait['since'])}: {what}{shown(wait['explanation'])}")
    if plan["observe_only"] and plan["steps"]:
        say(f"Would have done: {shown(planned_words(plan['steps']))}")
