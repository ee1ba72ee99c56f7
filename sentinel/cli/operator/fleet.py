"""``sentinel nodes`` and ``repairs``: how nodes are, which fail more than others, and which to pull."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from sentinel.cli.operator.arguments import asked_filters, nodes_argument, since_option
from sentinel.cli.operator.daemon_client import config_option, view
from sentinel.cli.operator.incident_table import incident_table, tell_cut
from sentinel.cli.operator.output import (
    ago,
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
from sentinel.model.records import OURS
from sentinel.model.vocabulary import cause_words


@click.command()
@nodes_argument(required=False)
@click.option("--suspects", is_flag=True, help="Only nodes that fail more than others, or whose parts age.")
@since_option()
@config_option
@json_option
@paged
def nodes(nodes: str | None, suspects: bool, since: str | None, config: Path, as_json: bool) -> None:
    """Nodes: Slurm's state, what the agent says, failures of the last 30 days over the work done; recurring ones first.

    "per month" is failures in a month of work, with the range it lies in for nine nodes in ten that look like this one:
    three failures in a busy month and three in an hour differ. It is told after a day of the node's work and 30 of the
    others'. LEMON: it failed more often than chance explains at the others' rate, or one part of it did; two failures can
    be enough, so it may be told before its rate is.

    \b
    Examples:
      sentinel nodes
      sentinel nodes --suspects
      sentinel nodes 'n[1-3,7]'
      sentinel nodes n17 --since 7d
      sentinel nodes --json | jq 'select(.score.lemon) | .node'
    """
    seen = view(config, "nodes", **asked_filters(node=nodes, since=since))
    rows = [row for row in seen["nodes"] if row.get("suspect") or not suspects]
    if as_json:
        print_json(rows)
        return
    if not rows:
        echo("No suspect node." if seen["nodes"] else "Slurm knows no node.")
        return
    if nodes is not None and len(rows) == 1:
        describe(rows[0])
    else:
        _listing(rows)
    if nodes is not None and seen["incidents"]:
        incident_table(f"Incidents of {shown(nodes)}", seen["incidents"])
        tell_cut(seen)


@click.command()
@config_option
@json_option
@paged
def repairs(config: Path, as_json: bool) -> None:
    """Which nodes to pull: node, GPU, serial number, evidence and advice. Drained nodes first, then suspects.

    \b
    Examples:
      sentinel repairs
      sentinel repairs --json | jq -r '[.node, .gpu, .serial] | @tsv'
    """
    rows = view(config, "repairs")["repairs"]
    if as_json:
        print_json(rows)
        return
    if not rows:
        echo("Nothing to repair: Sentinel has drained no node, and none is suspect.")
    for row in rows:
        _repair(row)
    if rows:
        echo("When one is mended: sentinel release NODE")


def _repair(row: dict[str, Any]) -> None:
    gpu = f" GPU {shown(row['gpu'])}" if row["gpu"] else ""
    since = f" since {when(row['since'])}" if row["since"] else ""
    cause = f": {shown(cause_words(row['cause']))}" if row["cause"] else ""
    say(f"{shown(row['node'])}{gpu} {shown(row['why'])}{since}{cause}")
    if told := row.get("corrected"):  # a daemon of an earlier release does not tell
        say(f"Corrected by an operator, {when(told['at'])}: it had been judged {shown(told['was'])}.", "  ")
        if told["no_machine"]:
            say(f"No machine is at fault, nothing is to be pulled: sentinel release {shown(row['node'])}", "  ")
    if row["gpu"]:
        serial = shown(row["serial"]) if row["serial"] else "not known"
        uuid = f"; UUID {shown(row['gpu_uuid'])}" if row["gpu_uuid"] else ""
        say(f"Serial number {serial}{uuid}", "  ")
    if row["advice"]:
        say(f"Advice: {shown(row['advice'])}", "  ")
    for text in row["evidence"]:
        say(f"Seen: {shown(text)}", "  ")
    for reason in row["reasons"]:
        say(f"Why: {shown(reason)}", "  ")
    if row["incident"]:
        # A daemon of an earlier release does not tell who may read it.
        who = "More" if row.get("readable", True) else "More, for operators"
        say(f"{who}: sentinel why {shown(row['incident'])}", "  ")


def _listing(rows: list[dict[str, Any]]) -> None:
    columns = ("node", "state", "agent", "job", "failures 30d", "per month", "gpus", "verdict", "why")
    table(
        "",
        columns,
        [_node_row(row) for row in rows],
        wide=("failures 30d", "per month", "gpus", "verdict"),
        whole=("node", "state", "agent", "failures 30d", "per month"),
        cut=("why",),
    )


def _node_row(row: dict[str, Any]) -> tuple[object, ...]:
    lemon = bool(row["score"] and row["score"]["lemon"])
    back = row.get("return") or {}
    reasons = [
        *(["LEMON"] if lemon else []),
        *([row["reason"]] if row["reason"] else []),
        *(["no prolog"] if (row.get("prolog") or {}).get("runs") is False else []),
        *([f"return: {back['stage']}"] if back and back["stage"] != "returned" else []),
        *row["suspect_reasons"],
    ]
    return (
        row["node"],
        styled_state(row["state"]),
        styled_state(row["agent"]),
        row["job"],
        row["failures_30d"],
        rate(row["score"]) if row["failures_30d"] else None,
        row["gpus"],
        said(row),
        "; ".join(reasons),
    )


def said(row: dict[str, Any]) -> str | None:
    """The node's own verdict in one word."""
    verdict = row["verdict"] if isinstance(row["verdict"], dict) else {}
    return next((str(verdict[name]) for name in ("word", "state", "answer") if verdict.get(name)), None)


def describe(row: dict[str, Any]) -> None:
    """Everything that is known of one node, in sentences."""
    say(f"{shown(row['node'])}: {shown(row['state'])}{drained_by(row)}")
    offset = row["clock_offset_s"]
    clock = f", clock {round(offset, 2) + 0.0:+.2f} s" if isinstance(offset, (int, float)) else ""
    word = said(row)
    sentence = row["verdict"].get("sentence") if isinstance(row["verdict"], dict) else None
    agent = f"Agent {shown(row['agent'])}{clock}" + (f"; says {shown(word)}: {shown(sentence)}" if word else "")
    say(agent, "  ")
    gpus = f"{row['gpus']} GPUs" if row["gpus"] is not None else "GPUs not known"
    job = f"job {row['job']}" if row["job"] is not None else "no job"
    say(f"Partitions {shown(row['partitions'])}; {gpus}; {job}", "  ")
    if (prolog := row.get("prolog")) and prolog["without"]:
        unclear = "" if prolog["runs"] is False else ": too few to tell whether it runs here"
        say(
            f"No report of the prolog of {_jobs(prolog['without'])}, the last {when(prolog['last_at'])}{unclear}.", "  "
        )
    score = row["score"]
    if score is None:
        say("No failure and no work in 30 days that we know of.", "  ")
    else:
        for sentence in score_words(score):
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
        say(f"Passed a diagnostic {when(tested['passed'])}.", "  ")
    for sentence in (*released_words(row), *return_words(row)):
        say(sentence, "  ")
    if row["trends"]:
        columns = ("counter", "unit", "value", "per day", "90 %", "")
        table("Counters that grow", columns, [_trend_row(trend) for trend in row["trends"]],
              whole=("value", "per day", "90 %"))  # fmt: skip


def released_words(row: dict[str, Any]) -> list[str]:
    """That a person returned the node, if one did."""
    known = row.get("released")
    return [f"Returned to service by {shown(known['by'] or 'a person')}, {when(known['at'])}."] if known else []


def return_words(row: dict[str, Any]) -> list[str]:
    """How far a node that Sentinel drained is on its way back, in sentences."""
    known = row.get("return")
    if not known:
        return []
    what = {
        "waiting": "waits", "testing": f"level {known['level']} of the diagnostic runs", "repair": "needs repair",
        "acting": f"a {known['acted']} was ordered", "starting": "was rebooted and is not back yet",
        "passed": "passed its tests, and waits", "returning": "is being returned", "returned": "was returned",
        "probation": f"back on probation, kept from {_jobs(known['jobs'])} at first",
    }.get(known["stage"], known["stage"])  # fmt: skip
    waits = known["waits"] if known["stage"] in ("waiting", "passed") else ""
    since = ago(known["changed_at"]).removesuffix(" ago")
    found = [f"Return, for {since}: {shown(what)}{f': {shown(waits)}' if waits else ''}."]
    if known["failed"]:
        failures = counted(len(known["failures"]), "failure")
        found.append(f"{failures}; the last {when(known['failures'][-1])}: {shown(known['failed'])}.")
    if known["missing"]:
        found.append(f"Its cause asks for {shown(known['missing'])}, which is not allowed here.")
    if known["stage"] == "repair":
        ticket = f" Ticket: {shown(known['ticket'])}." if known["ticket"] else ""
        found.append(f"The bundle: sentinel bundle {shown(row['node'])}.{ticket}")
    return found


def _jobs(jobs: list[int]) -> str:
    return f"job {', '.join(map(str, jobs))}" if jobs else "no job"


def drained_by(row: dict[str, Any]) -> str:
    """Who took the node out, and with which words."""
    reason = row["reason"] or ""
    if not reason:
        return ""
    if reason.startswith(OURS):
        return f" (by Sentinel: {shown(reason.removeprefix(OURS))})"
    return (
        f" (not by Sentinel: {shown(reason)})"
        if row["state"] in ("drained", "draining", "down")
        else f" ({shown(reason)})"
    )


def score_words(score: dict[str, Any]) -> list[str]:
    """Whether the node is worse than others, in sentences; "not known" before there is enough work to compare."""
    busy = score["busy_days"]
    work = f"{busy:.1f} days of work" if busy >= 1 else f"{span(busy * 86400)} of work"
    lemon = "LEMON. " if score["lemon"] else ""
    last = f"; the last {when(score['last_at'])}" if score["last_at"] else ""
    why = f" ({shown('; '.join(score['reasons']))})" if score["reasons"] else ""
    failed = counted(score["failures"], "failure") if score["failures"] else "No failure"
    told = f" (and {score['told']} that only programs' words tell of)" if score.get("told") else ""
    first = f"{lemon}{failed}{told} in {work}{last}{why}."
    if score["per_month"] is None:
        others = f"{score['others_busy_days']:.1f} so far"
        answer = f"Not known: that takes a day of its own work and 30 of others' ({others})."
        if score["lemon"]:
            answer = f"More often than chance explains; how much is told after 30 days of others' work ({others})."
        return [first, f"Worse than others? {answer}"]
    if not score["failures"]:
        return [
            first,
            f"Worse than others? No: the others have {_short(score['others_per_month'])} in a month of work.",
        ]
    answer = "Yes" if score["compared"] == "worse" else "Not that one could tell"
    return [
        first,
        f"Worse than others? {answer}: {rate(score)} in a month of work; the other nodes have "
        f"{_short(score['others_per_month'])}.",
    ]


def rate(score: dict[str, Any] | None) -> str | None:
    """Failures in a month of work, with the interval; None: too little work."""
    if score is None or score["per_month"] is None:
        return None
    return f"{_short(score['per_month'])} ({_short(score['low_per_month'])}-{_short(score['high_per_month'])})"


def _short(number: float) -> str:
    return f"{number:.0f}" if number >= 9.95 else f"{number:.1f}" if number >= 0.95 else f"{number:.1g}"


def _trend_row(trend: dict[str, Any]) -> tuple[object, ...]:
    marks = ["suspect"] if trend["suspect"] else []
    marks += ["faster than before"] if trend["faster"] else []
    low, high = trend["low_per_day"], trend["high_per_day"]
    return trend["words"], trend["unit"], trend["value"], trend["per_day"], f"{low:.2g}-{high:.2g}", ", ".join(marks)
