"""``sentinel bundle``: a part of the past as one file, for a replay elsewhere, a bug report or a vendor's ticket."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import click

from sentinel.cli.operator.arguments import refuse_unused, since_option, since_time
from sentinel.cli.operator.daemon_client import config_option
from sentinel.cli.operator.output import counted, say


@click.command()
@click.argument("what", required=False)
@since_option("30d")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="File to write.  [default: sentinel-WHAT-DATE.bundle; anonymised: without WHAT]",
)
@click.option("--anonymise", is_flag=True, help="Replace names of nodes, users, jobs, folders and addresses.")
@click.option("--store", "source", default=None, help="Store to read.  [default: that of the settings file]")
@config_option
def bundle(what: str | None, since: str, out: Path | None, anonymise: bool, source: str | None, config: Path) -> None:
    """Export evidence, verdicts, plans and outcomes of an incident, of a node, or of a time.

    WHAT is the id of an incident (four characters of its beginning are enough), last, or a node. The store is read as a
    file or over its URL, so run it as the account of the daemon. The file can be read by its owner only; give it to
    `sentinel replay`.

    \b
    Examples:
      sentinel bundle last
      sentinel bundle 3f2a91c0de
      sentinel bundle gpu017 --since 30d --anonymise
      sentinel bundle --since 7d --out week.bundle
    """
    from sentinel.cli.recordings.sources import incident_named, is_taken_whole, recording_of, store_of
    from sentinel.config.settings import Settings, load
    from sentinel.replay.anonymise import Pseudonyms
    from sentinel.replay.bundle import lines_of, write_bundle

    if source is not None:
        refuse_unused("beside --store, which names the store", "leave --config out", "config")
        if is_taken_whole(source):
            refuse_unused("of a bundle or a folder of logs: these are taken whole", "leave --since out", "since")
    where = source or store_of(load(config, Settings))
    begin = since_time(since, datetime.now(UTC))
    incident = incident_named(where, what) if what is not None and not is_taken_whole(where) else None
    if incident is not None:
        refuse_unused("for an incident: it is exported whole, whenever it was", "leave --since out", "since")
    recording = recording_of(where, since=begin, incident=incident, node=None if incident is not None else what)
    named = "anonymised" if anonymise else incident or what or "all"  # a node's name is not told by that of the file
    made = out or Path(f"sentinel-{named}-{datetime.now(UTC):%Y%m%d-%H%M%S}.bundle")
    lines = lines_of(recording)
    names = Pseudonyms(recording) if anonymise else None
    count = write_bundle(made, lines if names is None else map(names.line, lines), anonymised=anonymise)
    around = sum(not item.decided for item in recording.incidents)
    decided = len(recording.incidents) - around
    say(
        f"{made}: {counted(decided, 'incident')}, {counted(len(recording.evidence), 'item')} of evidence, "
        f"{counted(count, 'record')}, {counted(made.stat().st_size, 'byte')}"
    )
    if around:
        say(f"{counted(around, 'incident')} beside, of which it has evidence, but not what was decided")
    if names is not None:
        say(
            f"{counted(len(names), 'name')} replaced. Not replaced: names that only people recognise; lines that users' "
            f"programs wrote ({names.kept:,}) are in it with their text."
        )
    if recording.unreadable:
        say(f"{counted(recording.unreadable, 'record')} could not be read: not in it", err=True)
