"""``sentinel drain``, ``release``, ``pause`` and ``resume``: the state is shown first, the effect named, then asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from sentinel.cli.operator.arguments import nodes_argument
from sentinel.cli.operator.daemon_client import ask, config_option, view
from sentinel.cli.operator.output import counted, echo, folded, json_option, print_json, shown
from sentinel.errors import Refused, SentinelError, UserError
from sentinel.model.records import OURS


def _yes_option(command: Any) -> Any:
    return click.option("--yes", is_flag=True, help="Answer the question.")(command)


def _change(
    config: Path, change: str, as_json: bool, done: Callable[[dict[str, Any]], str], **arguments: object
) -> None:
    """Ask for the change. ``done``: its answer in words."""
    from sentinel.protocol import CHANGE

    result = ask(config, CHANGE, {"change": change, "arguments": arguments})
    if as_json:
        print_json([result])
    else:
        echo(done(result))


def _state_of(row: Mapping[str, Any]) -> str:
    job = f", runs job {row['job']}" if row["job"] is not None else ""
    reason = f", reason: {shown(row['reason'])}" if row["reason"] else ""
    absent = ", and ".join(_absent(row))
    sentence = f" {absent[0].upper()}{absent[1:]}." if absent else ""
    return f"{row['node']} is {row['state']}{job}{reason}.{sentence}{_bad(row)}"


def _shown_first(config: Path, nodes: str, as_json: bool) -> list[dict[str, Any]]:
    """The nodes that are meant, after their state was shown."""
    rows: list[dict[str, Any]] = view(config, "nodes", node=nodes)["nodes"]
    for row in rows:
        echo(_state_of(row), err=as_json)
    return rows


def _each(rows: Sequence[Mapping[str, Any]], change: Callable[[str], None]) -> None:
    """Change one node after the other. A node that is refused does not keep the others from their turn."""
    refused: list[SentinelError] = []
    through = []
    for row in rows:
        try:
            change(row["node"])
            through.append(row)
        except (Refused, UserError) as error:
            if len(rows) == 1:
                raise
            refused.append(error)
            echo(f"{shown(row['node'])}: {shown(error.message)}", err=True)
    if refused:
        fix = refused[0].fix
        if through:  # the usual words would say that nothing was done
            fix = f"{fix or 'sentinel status shows what is in force'}\n{_names(through)} went through, and stays so"
        raise Refused(f"{len(refused)} of {counted(len(rows), 'node')} refused", fix=fix)


def _absent(row: Mapping[str, Any]) -> list[str]:
    """What does not answer on the node, in words. What is not known is not held against it."""
    agent = row.get("agent")
    words = ["it does not answer Slurm"] if row.get("responds") is False else []
    return [*words, *([f"its agent is {agent}"] if agent in ("silent", "unreachable") else [])]


def _bad(row: Mapping[str, Any]) -> str:
    """What the node says against itself, if it does: whoever returns it should know that its prolog would refuse jobs."""
    verdict = row.get("verdict") or {}
    if verdict.get("word") != "BAD":
        return ""
    words = shown(verdict.get("sentence", ""))
    return f" Its own last verdict is BAD: {words}. While that holds, its prolog refuses jobs where drains act."


@click.command()
@nodes_argument()
@click.option("--reason", required=True, help="Why; it shows in sinfo -R.")
@_yes_option
@config_option
@json_option
def drain(nodes: str, reason: str, yes: bool, config: Path, as_json: bool) -> None:
    """Drain NODES: they take no new work; the jobs on them go on.

    The limits of sentinel.toml bound what Sentinel drains by itself; what a person asks for is done, also where no usable
    node is left.

    \b
    Examples:
      sentinel drain n7 --reason "fan broken"
      sentinel drain n2 n3 --reason "cables"
      sentinel drain 'n[1-3]' --reason "switch repair" --yes
    """
    if not reason.strip():
        raise UserError("--reason is empty", fix="say why: whoever finds the node drained reads it in sinfo -R")
    rows = _shown_first(config, nodes, as_json)
    if not yes:
        what = "It takes no new work until it is" if len(rows) == 1 else "They take no new work until they are"
        out = [row for row in rows if (row["reason"] or "").startswith(OURS)]
        replaced = f"; the reason of {_names(out)} is replaced" if out else ""
        click.confirm(f"Drain {_names(rows)}? {what} released{replaced}", abort=True, err=as_json)
    _each(rows, lambda node: _change(config, "drain", as_json, partial(_drained, node), node=node, reason=reason))


def _drained(node: str, answer: Mapping[str, Any]) -> str:
    """What Slurm holds after the drain. The answer of an earlier release's daemon does not say it."""
    before, reason = answer.get("before"), str(answer.get("reason"))
    if answer.get("drained") is False:
        return f"{node} was drained, and is in service again by now."
    if not before:
        return f"{node} is drained."
    was, now = (shown(words.removeprefix(OURS)) for words in (before, reason))
    if before == reason:
        return f"{node} is drained already ({now}); nothing was changed."
    whose = " Only sentinel release returns it." if reason.startswith(OURS) else ""
    return f"{node} was drained already ({was}); its reason is now {now}.{whose}"


@click.command()
@nodes_argument()
@_yes_option
@config_option
@json_option
def release(nodes: str, yes: bool, config: Path, as_json: bool) -> None:
    """Return NODES, if Sentinel drained them. What others drained is left alone.

    \b
    Examples:
      sentinel release n7
      sentinel release n2 n3
      sentinel release 'n[1-3,7]' --yes
    """
    rows = _shown_first(config, nodes, as_json)
    if not yes:
        click.confirm(f"Return {_names(rows)} to work{_although(rows)}?", abort=True, err=as_json)
    _each(rows, lambda node: _change(config, "release", as_json, partial(_released, node), node=node))


def _although(rows: Sequence[Mapping[str, Any]]) -> str:
    """What speaks against the return of these nodes, as the end of a question."""
    alone = len(rows) == 1
    bad = [row for row in rows if _bad(row)]
    dead = [row for row in rows if row.get("responds") is False]
    unseen = [row for row in rows if _absent(row) and row not in dead]
    words = [f"{'its own verdict' if alone else f'the own verdict of {_names(bad)}'} is BAD"] if bad else []
    words += [f"{'it' if alone else _names(dead)} does not answer"] if dead else []
    words += [f"{'its agent' if alone else f'the agent of {_names(unseen)}'} is {unseen[0]['agent']}"] if unseen else []
    return f" although {' and '.join(words)}" if words else ""


def _released(node: str, answer: Mapping[str, Any]) -> str:
    """How the node is after its return. The answer of an earlier release's daemon does not say it."""
    absent = ", and ".join(_absent(answer))
    if answer.get("drained"):
        return f"{node} was returned, and is drained again by now."
    if answer.get("responds") is False:
        return f"{node} is returned and gets no job yet: {absent}."
    return f"{node} is back{f'; {absent}: Sentinel sees nothing of what happens there' if absent else ''}."


def _names(rows: Sequence[Mapping[str, Any]]) -> str:
    names = folded([row["node"] for row in rows])
    return names if len(rows) == 1 else f"{names} ({len(rows)} nodes)"


@click.command()
@config_option
@json_option
def pause(config: Path, as_json: bool) -> None:
    """Stop acting; go on observing and judging. Plans under way stop after their current step."""
    done = "Paused: Sentinel observes and does nothing. sentinel resume ends it."
    _change(config, "pause", as_json, lambda _: done)


@click.command()
@config_option
@json_option
def resume(config: Path, as_json: bool) -> None:
    """Act again; plans that were stopped are carried on."""
    _change(config, "resume", as_json, lambda _: "Active again.")
