"""``sentinel alerts``: which messages were not delivered and why; a test message to each channel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from sentinel.cli.operator.arguments import since_option, since_time
from sentinel.cli.operator.daemon_client import ask, config_option, view
from sentinel.cli.operator.output import counted, echo, json_option, paged, print_json, say, shown, table, when
from sentinel.errors import Unavailable

DELIVERED = "delivered"
_TEST_DEADLINE_S = 60.0  # of a test of all channels: a mail server or a chat may take several answers


@click.group()
def alerts() -> None:
    """Messages: what was not delivered, and tests of the channels."""


@alerts.command("list")
@since_option()
@click.option("--all", "everything", is_flag=True, help="Also what was delivered.")
@config_option
@json_option
@paged
def list_(since: str | None, everything: bool, config: Path, as_json: bool) -> None:
    """Messages that were not delivered, whenever it was; with --all also those of the last day that were.

    A message that was refused, or tried in vain too often, is *given up*: it is tried once more when the daemon starts.

    \b
    Examples:
      sentinel alerts list
      sentinel alerts list --all --since 7d
    """
    asked: dict[str, Any] = {"since": since_time(since, datetime.now(UTC)).isoformat()} if since else {}
    answer = view(config, "alerts", **asked)
    seen: list[dict[str, Any]] = answer["messages"]
    rows = seen if everything else [row for row in seen if row["state"] != DELIVERED]
    if as_json:
        print_json(rows)
        return
    if not rows:
        delivered = counted(len(seen), "message")
        echo(f"Nothing is undelivered; {delivered} sent.")
        return
    states = Counter(row["state"] for row in rows)
    echo(f"{counted(len(rows), 'message')}: {', '.join(f'{number} {state}' for state, number in states.items())}")
    columns = ("time", "to", "state", "again", "incident", "stage", "what", "why not")
    whole = ("time", "to", "state", "again")
    table("", columns, [_cells(row) for row in rows], whole=whole, wide=("what", "why not"))
    if max(states[DELIVERED], len(rows) - states[DELIVERED]) >= answer.get("most", len(rows) + 1):
        echo(f"Of those that were delivered, and of the others, the newest {answer['most']:,} are shown.")


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    tries = f" {row['tries']}x" if row["tries"] and row["state"] != DELIVERED else ""
    again = when(row["next_at"]) if row["next_at"] else "-"
    return (
        when(row["at"]), shown(row["receiver"]), f"{row['state']}{tries}", again, shown(row["incident"] or "-"),
        shown(row["stage"] or "-"), shown(row["title"]), shown(row["reason"] or "-"),
    )  # fmt: skip


@alerts.command("test")
@click.option("--to", "channel", metavar="NAME", help="This channel only.")
@config_option
@json_option
def trial(channel: str | None, config: Path, as_json: bool) -> None:
    """Send a test message to every channel, or to one, now and once. Exit status 3 when one was not delivered.

    \b
    Examples:
      sentinel alerts test
      sentinel alerts test --to ops-chat
    """
    from sentinel.protocol import CHANGE

    body = {"change": "test_alert", "arguments": {"to": channel or ""}}
    results: list[dict[str, Any]] = ask(config, CHANGE, body, deadline_s=_TEST_DEADLINE_S)["results"]
    failed = [row for row in results if not row["delivered"]]
    if as_json:
        print_json(results)
    else:
        for row in results:
            became = "delivered" if row["delivered"] else f"NOT delivered: {shown(row['reason'])}"
            say(f"{shown(row['receiver'])}: {became}")
    if failed:
        fix = "correct its settings ([alerts.channels.NAME], docs/webhooks.md) and restart the daemon"
        names = ", ".join(shown(row["receiver"]) for row in failed)
        raise Unavailable(
            f"{counted(len(failed), 'channel')} of {len(results)} did not take it: {names}",
            fix=fix,
        )
