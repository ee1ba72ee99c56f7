"""``sentinel audit``: who changed what, from where, why, and what it was before and after."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from sentinel.cli.offline.progress_bar import count_bar
from sentinel.cli.operator.arguments import since_option, since_time
from sentinel.cli.operator.daemon_client import config_option, view
from sentinel.cli.operator.output import echo, json_option, paged, print_json, say, shown, when
from sentinel.model.vocabulary import STEP_WORDS

_VERIFY_S = 600.0  # deadline of one part; of all where the daemon is of an earlier release: a million take it a minute


@click.command()
@since_option()
@click.option("--verify", is_flag=True, help="Compute the chain of digests again, from the first entry on.")
@config_option
@json_option
@paged
def audit(since: str | None, verify: bool, config: Path, as_json: bool) -> None:
    """Who changed what, from where and why: operators, and Sentinel itself.

    The newest 50 entries; with --since all from then on, with --json all that there are. Entries are never changed or
    deleted; --verify finds one that was, and exits with status 1. That the newest are missing it cannot see: compare the
    last digest with the copy in syslog ([daemon] audit_syslog).

    \b
    Examples:
      sentinel audit
      sentinel audit --since 7d
      sentinel audit --verify
      sentinel audit --json | jq 'select(.who != "sentinel")'
    """
    if verify:
        _verify(config, as_json)
        return
    asked = {} if since is None else {"since": since_time(since, datetime.now(UTC)).isoformat()}
    if as_json:
        print_json(_all(config, {**asked, "all": True}))
        return
    found = False
    for entry in _all(config, asked):
        found = True
        _show(entry)
    if not found:
        echo("No change" + (f" since {shown(since)}." if since else "."))


def _all(config: Path, asked: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Page by page: the daemon gives so many at once."""
    more, after = True, 0
    while more:
        seen = view(config, "audit", **asked, **({"after": after} if after else {}))
        yield from seen["entries"]
        more = seen["more"]
        after = seen["entries"][-1]["number"] if more else after


def _show(entry: dict[str, Any]) -> None:
    action = STEP_WORDS.get(entry["action"], f"{entry['action']} {{}}").replace("{}", entry["target"])
    what = f"{shown(action)}: {shown(entry['stage'])}"
    by = shown(entry["who"]) + (f" from {shown(entry['origin'])}" if entry["origin"] else "")
    say(f"{entry['number']:>6}  {when(entry['at'])}  {what}, by {by}", hanging=8)
    if entry["why"]:
        say(f"why: {shown(entry['why'])}" + (f" ({shown(entry['incident'])})" if entry["incident"] else ""), " " * 8)
    for name in ("before", "after"):
        if entry[name]:
            say(f"{name}: {shown(json.dumps(entry[name], ensure_ascii=False))}", " " * 8)


def _checked(config: Path) -> dict[str, Any]:
    """What the check of the whole chain found: part by part, which a daemon of an earlier release does not know."""
    seen = view(config, "audit", deadline_s=_VERIFY_S, verify=True, part=True)
    found: dict[str, Any] = seen["checked"]
    with count_bar("entries", seen.get("of", 0), least=found["entries"] + 1) as progress:
        progress(found["entries"])
        while seen.get("more"):
            after = found["entries"]
            seen = view(config, "audit", deadline_s=_VERIFY_S, verify=True, part=True, after=after, head=found["head"])
            found = seen["checked"]
            progress(found["entries"] - after)
    return found


def _verify(config: Path, as_json: bool) -> None:
    found = _checked(config)
    if as_json:
        print_json([found])
    else:
        echo(f"{found['entries']} {'entry' if found['entries'] == 1 else 'entries'} in order")
        echo(f"last digest: {shown(found['head'])}")
        if found["fault"]:
            echo(f"then: {shown(found['fault'])}", err=True)
            say("do: keep the database as it is, and compare it with the copy in syslog", "  ")
    if found["fault"]:
        raise SystemExit(1)
