"""``sentinel drain``, ``release``, ``pause`` and ``resume``: the state is shown first, the effect named, then asked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from sentinel.cli.asking import ask, config_option, json_option, print_json, shown, view


def _yes_option(command: Any) -> Any:
    return click.option("--yes", is_flag=True, help="Answer the question; limits stay in force.")(command)


def _change(config: Path, change: str, as_json: bool, done: str, **arguments: object) -> None:
    from sentinel.protocol import CHANGE

    result = ask(config, CHANGE, {"change": change, "arguments": arguments})
    if as_json:
        print_json([result])
    else:
        click.echo(done)


def _state_of(row: Mapping[str, Any]) -> str:
    job = f", runs job {row['job']}" if row["job"] is not None else ""
    reason = f", reason: {shown(row['reason'])}" if row["reason"] else ""
    return f"{row['node']} is {row['state']}{job}{reason}.{_bad(row)}"


def _node(config: Path, node: str) -> dict[str, Any]:
    row: dict[str, Any] = view(config, "nodes", node=node)["nodes"][0]
    return row


def _bad(row: Mapping[str, Any]) -> str:
    """What the node says against itself, if it does: whoever returns it should know that its prolog would refuse jobs."""
    verdict = row.get("verdict") or {}
    if verdict.get("word") != "BAD":
        return ""
    return f" Its own last verdict is BAD: {shown(verdict.get('sentence', ''))}. While that holds, its prolog refuses jobs."


@click.command()
@click.argument("node")
@click.option("--reason", required=True, help="Why; it shows in sinfo -R.")
@_yes_option
@config_option
@json_option
def drain(node: str, reason: str, yes: bool, config: Path, as_json: bool) -> None:
    """Drain NODE: it takes no new work; the job on it goes on."""
    click.echo(_state_of(_node(config, node)), err=as_json)
    if not yes:
        click.confirm(f"Drain {node}? It takes no new work until it is released", abort=True, err=as_json)
    _change(config, "drain", as_json, f"{node} is drained.", node=node, reason=reason)


@click.command()
@click.argument("node")
@_yes_option
@config_option
@json_option
def release(node: str, yes: bool, config: Path, as_json: bool) -> None:
    """Return NODE, if Sentinel drained it. What others drained is left alone."""
    row = _node(config, node)
    click.echo(_state_of(row), err=as_json)
    if not yes:
        although = " although its own verdict is BAD" if _bad(row) else ""
        click.confirm(f"Return {node} to work{although}?", abort=True, err=as_json)
    _change(config, "release", as_json, f"{node} is back.", node=node)


@click.command()
@config_option
@json_option
def pause(config: Path, as_json: bool) -> None:
    """Stop acting; go on observing and judging. Plans under way stop after their current step."""
    _change(config, "pause", as_json, "Paused: Sentinel observes and does nothing. sentinel resume ends it.")


@click.command()
@config_option
@json_option
def resume(config: Path, as_json: bool) -> None:
    """Act again; plans that were stopped are carried on."""
    _change(config, "resume", as_json, "Active again.")
