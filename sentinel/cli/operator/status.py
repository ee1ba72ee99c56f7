"""``sentinel status`` and ``watch``: the fleet, what Sentinel may do and does, and the open incidents at a glance."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from sentinel.cli.operator.daemon_client import config_option, view
from sentinel.cli.operator.incident_table import incident_table, no_incident, tell_cut
from sentinel.cli.operator.output import (
    ago,
    clock,
    collected,
    counted,
    echo,
    folded,
    json_option,
    paged,
    print_json,
    say,
    shown,
    span,
    when,
)
from sentinel.detect.own_host import in_words
from sentinel.errors import SentinelError, UserError
from sentinel.model.approvals import LAPSED, REFUSED
from sentinel.model.vocabulary import planned_words, words_of

_JOBS = 5  # jobs that are named; --json has all
_WOULD = 3  # plans of observe mode that are shown; --json has more
_ANSWERED = {LAPSED: "Lapsed", REFUSED: "Refused"}  # what became of a request, by the kind of its wait
_LEAST_EVERY_S = 0.2  # a watcher must not be what the daemon is busy with


@click.command()
@config_option
@json_option
@paged
def status(config: Path, as_json: bool) -> None:
    """The fleet, what Sentinel may do and does now, and the open incidents, at a glance.

    \b
    ACT      it drains and restarts      OBSERVE  it judges, plans and tells
    PAUSED   a person stopped it         MIXED    not the same everywhere

    \b
    Examples:
      sentinel status
      sentinel status --json | jq .open_incidents
    """
    seen = view(config, "status")
    if as_json:
        print_json([seen])
        return
    show(seen)


@click.command()
@click.option("--every", default="2s", show_default=True, help="Time between two looks.")
@config_option
def watch(every: str, config: Path) -> None:
    """``sentinel status``, refreshed in place until Ctrl-C.

    \b
    Examples:
      sentinel watch
      sentinel watch --every 10s
    """
    from sentinel.planning.limits import PlanningError
    from sentinel.planning.quantities import duration

    try:
        every_s = max(_LEAST_EVERY_S, duration(every, "--every").value)
    except PlanningError as error:
        raise UserError(error.message, fix=error.fix) from error
    if not sys.stdout.isatty():
        raise UserError("watch needs a terminal", fix="sentinel status shows the same once")
    try:
        follow(lambda: view(config, "status"), every_s)
    except KeyboardInterrupt:
        echo()


def follow(look: Callable[[], dict[str, Any]], every_s: float) -> None:
    """Show what ``look`` finds again and again, until it is interrupted. An error is shown, and the next look is made."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console()
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            with collected(terminal=True) as buffer:
                try:
                    show(look())
                except SentinelError as error:
                    echo(f"sentinel: {shown(error.message)}")
                echo()
                echo(f"every {every_s:g} s; Ctrl-C ends it")
            live.update(Text.from_ansi(buffer.getvalue()), refresh=True)
            time.sleep(every_s)


def show(seen: dict[str, Any]) -> None:
    """The answer of the view ``status`` in words."""
    where = f" on {shown(seen['cluster'])}" if seen["cluster"] else ""
    say(f"Sentinel {shown(seen['version'])}{where}: {mode_words(seen)}. {clock(seen['at'])}")
    if len({entry["mode"] for entry in seen["modes"].values()}) > 1:
        for name, entry in seen["modes"].items():
            say(f"{shown(name)}: {_partition_words(entry)}", "  ")
    _daemons(seen.get("daemons") or ())
    if outage := seen.get("outage"):
        say(f"Store:  {outage_words(outage)}")
    _slurm(seen["slurm"])
    if ahead_s := seen.get("clock_ahead_s"):
        say(f"Clock:  the daemon's is {in_words(ahead_s)} its nodes': check NTP or chrony on its host")
    _breakers(seen["breakers"])
    _budget(seen["budget"])
    say(f"Nodes:  {_counts(seen['nodes'])}")
    say(f"Agents: {_counts(seen['agents'])}")
    say(f"Jobs:   {_counts(seen['jobs'])}")
    if problems := seen.get("comment_problems"):
        say(f"Comment not understood of {_jobs(problems)}; sentinel jobs JOB says why")
    _signals(seen.get("prometheus"))
    if seen["drained_by_us"]:
        say(f"Drained by Sentinel: {shown(seen['drained_by_us'])}")
    if without := seen.get("without_prolog"):
        say(f"Prolog: does not run on {folded(without)}, where jobs begin unchecked: see sentinel doctor")
    for suspect in seen.get("suspects", ()):
        say(f"Suspect: {shown(suspect['node'])}: {shown('; '.join(suspect['reasons']))}")
    for step in seen["under_way"]:
        since = ago(step["since"]).removesuffix(" ago")
        again = f"; tried again: {shown(step['reason'])}" if step.get("reason") else ""
        say(f"Now: {shown(words_of(step))} (incident {shown(step['incident'])}), since {since}{again}")
    for wait in seen.get("asked", ()):
        word = _ANSWERED.get(wait["kind"], "Asked")
        say(f"{word} (incident {shown(wait['incident'])}, {when(wait['since'])}): {shown(wait['explanation'])}")
    for plan in seen["would_have_done"][:_WOULD]:
        steps = shown(planned_words(plan["steps"]))
        say(f"Would have done: {steps} (incident {shown(plan['incident'])}, {when(plan['at'])})")
    if (more := len(seen["would_have_done"]) - _WOULD + seen.get("would_have_done_more", 0)) > 0:
        say(f"... and {counted(more, 'plan')} more that observe mode did not carry out (--json has the newest)")
    _incidents(seen)


def _incidents(seen: dict[str, Any]) -> None:
    still_open = {row["id"] for row in seen["open_incidents"]}
    if still_open:
        incident_table("Open incidents", seen["open_incidents"], still_open=True)
        tell_cut({"cut": seen.get("open_cut")}, "open incidents")
    else:
        echo(f"{no_incident(seen, 'open ')}.")
    others = [row for row in seen["recent_incidents"] if row["id"] not in still_open]
    if others:
        incident_table("Latest of the others" if still_open else "Latest", others)


def mode_words(seen: dict[str, Any]) -> str:
    """ACT, OBSERVE, PAUSED or MIXED, and what that means."""
    words = {
        "act": "ACT: it drains and restarts",
        "suggest": "SUGGEST: it asks before it drains or restarts",
        "observe": "OBSERVE: it judges and tells, and changes nothing",
        "paused": "PAUSED: it observes; sentinel resume ends that",
        "mixed": "MIXED: not the same everywhere",
    }
    return words.get(seen["mode"], shown(seen["mode"]))


def _partition_words(entry: dict[str, Any]) -> str:
    if entry["mode"] == "mixed":
        words = f"MIXED: drains {entry['drain'].upper()}, restarts {entry['restart'].upper()}"
        for cause, mode in entry.get("causes", {}).items():
            named = [f"{kind}s {mode[kind].upper()}" for kind in ("drain", "restart") if mode[kind]]
            words += f"; {shown(cause)}: {', '.join(named)}"
    else:
        words = str(entry["mode"]).upper()
    return words + ("; Slurm has no such partition" if entry["known"] is False else "")


def _daemons(daemons: Sequence[dict[str, Any]]) -> None:
    """Which daemon answers, and which others stand by. Of one alone there is nothing to say."""
    others = [row for row in daemons if row["state"] != "active"]
    if others:
        active = ", ".join(shown(row["address"]) for row in daemons if row["state"] == "active")
        say(f"Daemon: {active} is active; {', '.join(shown(row['address']) for row in others)} standing by")


def _slurm(slurm: dict[str, Any]) -> None:
    if slurm["answers"]:
        say(f"Slurm:  answers, seen {ago(slurm['snapshot_at'])}")
    else:
        say(f"Slurm:  not known: {shown(slurm['problem'])}")
    if unread := slurm.get("unread"):
        say(f"Not known: {unread_words(unread, slurm['unread_count'])}")


def _breakers(breakers: dict[str, Any]) -> None:
    """A line for a breaker that is open, and one where none is."""
    words = {
        "breaker": "many nodes failed at once: nothing is drained or restarted",
        "hang-breaker": "many jobs were called hung at once: none is stopped for its silence",
    }
    opened = {name: entry for name, entry in breakers.items() if entry["open"]}
    for name, entry in opened.items():
        say(
            f"Breaker OPEN since {when(entry['last_at'])}: {words.get(name, shown(name))} (why {shown(entry['incident'])})"
        )
    if not opened:
        nodes, jobs = breakers["breaker"], breakers["hang-breaker"]
        limits = (
            f"{nodes['opens_at_nodes']} nodes failing within {span(nodes['window_s'])}",
            f"{jobs['opens_at_jobs']} jobs hung within {span(jobs['window_s'])}",
        )
        say(f"Breaker: closed (opens at {' or '.join(limits)})")


def _budget(budget: dict[str, Any]) -> None:
    names = {
        "drained_at_once": "drained now",
        "drains_last_hour": "drains in an hour",
        "restarts_last_hour": "restarts and holds in an hour",
    }
    parts = [f"{shown(entry['used'])} of {entry['limit']} {names.get(name, name)}" for name, entry in budget.items()]
    say(f"Budget: {', '.join(parts)}")


def outage_words(outage: dict[str, Any]) -> str:
    """That nothing is judged or done, since when, and why."""
    return f"cannot be written since {when(outage['since'])}: nothing is judged or done ({shown(outage['reason'])})"


def unread_words(unread: list[dict[str, Any]], count: int) -> str:
    """Which of Slurm's records cannot be read, and why the first of them cannot."""
    names = [f"{item['what']} {item['name'] or 'without a name'}" for item in unread]
    rest = count - len(names[:5])
    few = ", ".join(names[:5]) + (f" and {rest} more" if rest > 0 else "")
    return f"{shown(few)}: Slurm's record cannot be read ({shown(unread[0]['reason'])})"


def _signals(prometheus: dict[str, Any] | None) -> None:
    """What holds of storage, switches and power; a line only where there is something to say."""
    if prometheus is None:
        return
    if not prometheus["answers"]:
        why = shown(prometheus["problem"]) if prometheus["problem"] else "not asked yet"
        say(f"Storage, switches, power: not known ({why})")
    for signal in prometheus["firing"]:
        say(f"Signal since {ago(signal['since']).removesuffix(' ago')}: {shown(signal['text'])}")
    for name, why in prometheus["refused"].items():
        say(f"Signal {shown(name)} has a wrong query: {shown(why)}")


def _jobs(ids: Sequence[int]) -> str:
    more = f" and {len(ids) - _JOBS} more" if len(ids) > _JOBS else ""
    return f"{counted(len(ids), 'job')}: {', '.join(map(str, ids[:_JOBS]))}{more}"


def _counts(counts: dict[str, int]) -> str:
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    return ", ".join(f"{count} {shown(name)}" for name, count in ordered) or "-"
