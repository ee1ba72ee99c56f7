"""``sentinel replay``: what today's rules and policy would have made of the past, against what was made of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sentinel.cli.offline.progress_bar import count_bar
from sentinel.cli.operator.arguments import GivenText, refuse_unused, rules_option, since_option, since_time
from sentinel.cli.operator.daemon_client import CONFIG
from sentinel.cli.operator.output import counted, say, shown

if TYPE_CHECKING:
    from sentinel.config.settings import Settings
    from sentinel.replay.compare import Comparison

_BAR_FROM = 2000  # items of evidence: a second of work


@click.command()
@click.argument("source", type=GivenText())
@rules_option("Rules of the site instead of the settings'.")
@click.option(
    "--policy", type=click.Path(path_type=Path), envvar="SENTINEL_CONFIG",
    help=f"Settings file with limits and modes.  [default: {CONFIG}, else built-in limits with every step allowed]",
)  # fmt: skip
@click.option(
    "--against", type=click.Path(path_type=Path),
    help="Compare with what this settings file would have done, instead of with what was done.",
)  # fmt: skip
@click.option(
    "--against-rules", "against_rules", type=click.Path(path_type=Path), help="The same with other rules of the site."
)
@since_option("90d")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line: each difference, then the counts.")
def replay(
    source: str, rules_path: Path | None, policy: Path | None, against: Path | None, against_rules: Path | None, since: str,
    as_json: bool,
) -> None:  # fmt: skip
    """Judge the past again, with the rules and the policy of today, and show what would differ.

    SOURCE is a bundle, the folder of a store, its SQLite file, the URL of its database, or a folder of logs whose lines
    have times: jobs' logs with the job's id in their names; machines' logs, named dmesg, kern.log, kmsg, messages, syslog
    or journal with the node's name behind that (dmesg-n7.txt) or as that of their folder (n7/kern.log); and a file
    sacct*.txt (as sentinel import --from takes it) for nodes and times of jobs. Bundles and logs are taken whole, without
    --since. It is only read; nothing is done anywhere. Steps of plans end as the recorded ones did. With --against or
    --against-rules the past is judged twice, and a difference is due to what differs between the two. Incidents of which
    only the evidence is there, as those beside the one that a bundle is of, are not compared. Exit status: 0 all the same,
    1 some differ, 2 a wrong argument.

    \b
    Examples:
      sentinel replay /var/lib/sentinel --since 90d
      sentinel replay incident.bundle --rules ./rules
      sentinel replay /var/lib/sentinel --against /etc/sentinel/sentinel.toml --policy ./new.toml
      sentinel replay ./logs-of-last-month --policy ./sentinel.toml
      sentinel replay postgresql://host/sentinel --json | tail -1
    """
    from sentinel.cli.recordings.sources import is_taken_whole, recording_of
    from sentinel.config.rules_files import load_rules
    from sentinel.replay.compare import as_decided, compare, counts
    from sentinel.replay.run import Replay

    if is_taken_whole(source):
        refuse_unused("of a bundle or a folder of logs: these are taken whole", "leave --since out", "since")
    settings = _settings(policy)
    site = rules_path or (Path(settings.judgement.rules) if settings.judgement.rules else None)
    recording = recording_of(source, since=since_time(since, datetime.now(UTC)), rules=site)
    run = Replay(recording, rules=load_rules(site=site), settings=settings)
    twice = against is not None or against_rules is not None
    with count_bar("evidence", len(recording.evidence) * (2 if twice else 1), least=_BAR_FROM) as progress:
        if twice:
            before = _settings(against) if against is not None else settings
            other = against_rules or (Path(before.judgement.rules) if against and before.judgement.rules else site)
            then = Replay(recording, rules=load_rules(site=other), settings=before).run(progress)
            recording = as_decided(recording, then)
        everything = compare(recording, run.run(progress))
    found = [item for item in everything if item.decided]
    without = len(everything) - len(found)
    differing = [item for item in found if not item.same]
    if as_json:
        for item in differing:
            click.echo(json.dumps(_as_json(item)))
        last = {"incidents": len(found), "same": len(found) - len(differing), "different": len(differing)}
        more = {"not_compared": without, "unreadable": recording.unreadable}
        click.echo(json.dumps({**last, **more, **counts(found)}))
    else:
        for item in differing:
            _print(item)
        _print_sums(counts(found), len(found), len(differing), recording.unreadable)
        if without:
            say(f"{counted(without, 'more incident')} not compared: what was decided then is not in {shown(source)}")
    if differing:
        raise SystemExit(1)


def _print_sums(sums: Mapping[str, Mapping[str, int]], incidents: int, differing: int, unreadable: int) -> None:
    for side, name in (("was", "then"), ("now", "now")):
        said = [
            counted(number, what.removesuffix("s")) if what.endswith("s") else f"{number:,} {what}"
            for what, number in sums[side].items()
        ]
        say(f"{name}: {', '.join(said)}")
    unread = f"; {counted(unreadable, 'record')} could not be read" if unreadable else ""
    say(f"{counted(incidents, 'incident')}: {incidents - differing} the same, {differing} differ{unread}")


def _settings(policy: Path | None) -> Settings:
    from sentinel.config.settings import Mode, Modes, Settings, load

    if policy is not None or Path(CONFIG).exists():
        return load(policy or Path(CONFIG), Settings)
    return Settings(modes=Modes(default=Mode(drain="act", restart="act")))


def _as_json(item: Comparison) -> dict[str, object]:
    return {"incident": item.incident, "at": item.at, "was": item.was, "now": item.now, "reasons": list(item.reasons)}


def _print(item: Comparison) -> None:
    cause = (item.was or item.now or {}).get("cause")
    say(f"{shown(item.incident)}  {item.at[:19]}Z  {shown(cause)}")
    for reason in item.reasons:
        say(shown(reason), "  ")
