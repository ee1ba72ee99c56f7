"""``sentinel checkpoints find | validate | inventory``."""

from __future__ import annotations

import json
import os
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from sentinel.checkpoints import inventory as stock
from sentinel.checkpoints import kept_manifest
from sentinel.checkpoints.choose import choose
from sentinel.checkpoints.formats import by_name, nvrx
from sentinel.checkpoints.join import join, place_in_blocks
from sentinel.checkpoints.records import (
    Candidate,
    Costs,
    Decision,
    Level,
    Part,
    Tier,
    level_at_least,
    parse_level,
)
from sentinel.checkpoints.shared_check import parse_share
from sentinel.checkpoints.validate import Settings
from sentinel.checkpoints.verified_files import Memory, default_folder
from sentinel.cli.checkpoints.deadline import check_within, listings, parts_within
from sentinel.cli.checkpoints.named import rejected_among, require_nodes
from sentinel.cli.checkpoints.nodes import Spread, expand_nodes, local_folders, this_host
from sentinel.cli.checkpoints.progress_bar import bar, bytes_of
from sentinel.cli.checkpoints.show import echo_decision, part_line, show_decision, show_validity
from sentinel.cli.operator.arguments import ABOVE_ZERO, Finite, GivenPath, GivenText, require_there
from sentinel.cli.operator.output import say, unbroken
from sentinel.errors import Refused, UserError
from sentinel.text import visible

# Up to so much every candidate is read at the level asked for; beyond it only those that would be chosen.
EAGER_BYTES = 8 << 30
_DEADLINE = "Give a folder so long: a frozen file system is then not known."
_NEXT = "The nodes of the next attempt in Slurm's order: each rank must find its shard on its own, or by replication."
_FIND_LEVEL = (
    "How closely to check (default checksum; content with --onset-step; structural, a quick look, with --deadline)."
)
_CHECK_LEVEL = "How closely to check: structural reads no checksums, which find and a restart do."
_UNREAD = "Checksums were not read: bytes that were damaged in place are not seen at level structural."
_SOME = click.IntRange(1)
_LEVELS = click.Choice(["structural", "checksum", "content"])


def _settings(no_cache: bool) -> Settings:
    return Settings(memory=None if no_cache else Memory(default_folder()), manifests=kept_manifest.default_folder())


@click.command(cls=Spread)
@click.option(
    "--global", "global_", multiple=True, type=GivenText(), metavar="DIR", help="A folder that every node sees."
)
@click.option(
    "--local", multiple=True, type=GivenText(), metavar="[NODE=]DIR", help="A node's own folder; %N is the node's name."
)
@click.option("--nodes", multiple=True, metavar="LIST", help="The job's nodes: a,b or node[1-4].")
@click.option("--lost", multiple=True, metavar="NODE", help="A node that the next attempt will not have.")
@click.option("--next", "following", multiple=True, metavar="LIST", help=_NEXT)
@click.option(
    "--onset-step", type=click.IntRange(0), help="The first step whose numbers were bad: only earlier ones count."
)
@click.option(
    "--step-last", type=click.IntRange(0), help="The last step that was completed (default: the newest checkpoint's)."
)
@click.option("--step-time", "step_time_s", type=Finite(0), default=10.0, show_default=True, help="Seconds per step.")
@click.option("--world-size", type=click.IntRange(1), help="Ranks of the next attempt.")
@click.option("--level", type=_LEVELS, help=_FIND_LEVEL)
@click.option(
    "--rejected", multiple=True, type=GivenText(), metavar="PATH", help="A checkpoint that failed to load already."
)
@click.option("--limit", type=_SOME, default=stock.MAX_CANDIDATES, show_default=True, help="Newest so many per folder.")
@click.option("--all", "everything", is_flag=True, help="Read all candidates at that level, not only the best ones.")
@click.option("--deadline", "deadline_s", type=ABOVE_ZERO, metavar="SECONDS", help=_DEADLINE)
@click.option("--no-cache", is_flag=True, help="Do not use or keep remembered results.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def find(
    global_: tuple[str, ...],
    local: tuple[str, ...],
    nodes: tuple[str, ...],
    lost: tuple[str, ...],
    following: tuple[str, ...],
    onset_step: int | None,
    step_last: int | None,
    step_time_s: float,
    world_size: int | None,
    level: str | None,
    rejected: tuple[str, ...],
    limit: int,
    everything: bool,
    deadline_s: float | None,
    no_cache: bool,
    as_json: bool,
) -> None:
    """Choose the checkpoint to go back to, and say why not the others.

    Exit status 4 when nothing can be chosen.

    \b
    sentinel checkpoints find --global /lustre/run7
    sentinel checkpoints find --global /lustre/run7 --local /nvme/%N/run7 --nodes node[1-4] --lost node3 --json
    sentinel checkpoints find --local /nvme/%N/run7 --nodes node[1-4] --lost node3 --next node[1-2,4-5]
    sentinel checkpoints find --global /lustre/run7 --onset-step 1200 --level content
    """
    if not global_ and not local:
        raise UserError("no folder to look in", fix="Name one with --global DIR or --local DIR.")
    names = expand_nodes(nodes)
    gone = frozenset(expand_nodes(lost))
    ordered = [name for name in expand_nodes(following) if name not in gone]
    # All bytes are seldom read within a deadline, and what is listed late is not known at all.
    usual = "content" if onset_step is not None else "structural" if deadline_s is not None else "checksum"
    wanted: Level = parse_level(level or usual)
    roots: list[tuple[Tier, str, Path]] = [("global", "", Path(text)) for text in global_]
    pairs = local_folders(local, [*names, *sorted(gone - set(names))])
    require_nodes(gone, names, {host for host, path in pairs if host not in gone or os.path.lexists(path)})
    roots += [("local", host, path) for host, path in pairs]
    _require_one([path for _, _, path in roots])
    question: dict[str, Any] = {
        "step_last": step_last,
        "onset_step": onset_step,
        "step_time_s": step_time_s,
        "next_nodes": frozenset(ordered or names) - gone if ordered or names else None,
        "lost_nodes": gone,
        "world_size": world_size,
        "costs": Costs(),
    }
    look = _Look(wanted, limit, everything, _settings(no_cache), deadline_s, watched=not as_json and deadline_s is None)
    candidates, decision, lower = _search(roots, look, (names, ordered), question, rejected)
    if as_json:
        echo_decision(decision, wanted, lower)
    else:
        show_decision(decision)
        if wanted == "structural":
            say(f"{_UNREAD} Leave --level out to read them.")
    if decision.chosen is None:
        raise Refused(f"no checkpoint was chosen: {decision.explanation}", fix=advice(candidates, wanted, lower))


def _require_one(folders: Sequence[Path]) -> None:
    """One that is missing is listed as not known, since its file system may be away; all of them are a wrong argument.

    Raises:
        FileError: none of the folders is there.
    """
    if not any(os.path.lexists(folder) for folder in folders):
        require_there(folders[0])


@dataclass(frozen=True, slots=True)
class _Look:
    """How the folders are looked at. ``watched``: what is read at a level is counted on a terminal."""

    level: Level
    limit: int
    everything: bool
    settings: Settings
    deadline_s: float | None
    watched: bool

    def listed(self, roots: Sequence[tuple[Tier, str, Path]], level: Level, size: int = 0) -> list[Part]:
        with bar("reading", lambda: size, self.watched and level != "structural") as advance:
            settings = replace(self.settings, progress=advance)
            found = listings(roots, level, settings, self.limit, self.deadline_s)
        return [part for parts in found for part in parts]

    def closer(self, parts: list[Part], chosen: Candidate) -> list[Part]:
        """The chosen one's parts read at that level; not known where the deadline passes."""
        with bar("reading", lambda: chosen.bytes, self.watched) as advance:
            settings = replace(self.settings, progress=advance)
            work = partial(stock.deepen, parts, chosen, self.level, settings=settings)
            deeper = parts_within(self.deadline_s, work)
        if deeper is not None:
            return deeper
        reason = f"was not read within {self.deadline_s:g} s"
        ours = (chosen.key, chosen.tier)
        return [
            replace(p, valid=None, level=self.level, reason=reason) if (p.key, p.tier) == ours else p for p in parts
        ]


def _search(
    roots: Sequence[tuple[Tier, str, Path]],
    look: _Look,
    nodes: tuple[Sequence[str], Sequence[str]],
    question: dict[str, Any],
    rejected: Sequence[str],
) -> tuple[list[Candidate], Decision, Decision | None]:
    """List, choose, and read what was chosen; while it does not hold, the next. Little data is read at once.

    The last value: what would be chosen by structure among those that are not invalid, where nothing is proven.
    """
    here, level = this_host(), look.level
    names, ordered = nodes
    spread = names if here not in names else ()
    parts = by_structure = look.listed(roots, "structural")
    size = sum(part.bytes for part in parts)
    if level != "structural" and (look.everything or size <= EAGER_BYTES):
        parts = look.listed(roots, level, size)
    read: set[tuple[str, int | None]] = set()
    listed = join([parts], world_size=question["world_size"])
    folders = [path for _, _, path in roots]
    question = question | {"rejected": rejected_among(rejected, listed, folders, look.deadline_s)}

    def decide(parts: list[Part]) -> tuple[list[Candidate], Decision]:
        joined = [place_in_blocks(c, spread, here) for c in join([parts], world_size=question["world_size"])]
        places = _places(joined, ordered, question["world_size"])
        return joined, choose(joined, level="structural", **question, **places)

    while True:
        candidates, decision = decide(parts)
        chosen = decision.chosen
        if chosen is not None and level_at_least(chosen.level, level):
            return candidates, decision, None
        if chosen is None:
            lower = decide(_unproven(by_structure, parts))[1] if level != "structural" else None
            return candidates, decision, lower
        if (chosen.path, chosen.step) in read:
            raise AssertionError(f"{chosen.path} was read at level {level} and says {chosen.level}")
        read.add((chosen.path, chosen.step))
        parts = look.closer(parts, chosen)


def _places(candidates: Sequence[Candidate], ordered: Sequence[str], world: int | None) -> dict[str, Any]:
    """Where each rank of the next attempt will run, as Slurm fills nodes by default; nothing where that is not known.

    NVRx looks for a shard in the folder of its rank, on the node where that rank runs now; only with replication (some
    shard lies on two hosts) do the ranks fetch what they lack from each other.
    """
    local = [candidate for candidate in candidates if candidate.tier != "global"]
    ranks = world or max((candidate.world_size or 0 for candidate in local), default=0)
    if not ordered or not ranks or ranks % len(ordered):
        return {}
    share = ranks // len(ordered)
    replicated = any(c.format == nvrx.NAME and any(len(hosts) > 1 for hosts in c.shards.values()) for c in local)
    return {"rank_hosts": {rank: ordered[rank // share] for rank in range(ranks)}, "fetch_peers": replicated}


def _unproven(by_structure: list[Part], read: list[Part]) -> list[Part]:
    """The parts as their structure shows them, without those that turned out invalid when they were read."""
    invalid = {(part.path, part.step, part.host) for part in read if part.valid is False}
    return [part for part in by_structure if (part.path, part.step, part.host) not in invalid]


def advice(candidates: Sequence[Candidate], level: Level, lower: Decision | None) -> str:
    """What it would take that something is chosen, and what would be chosen then."""
    named = {known.NAME: known.title for known in by_name.UNCHECKED}
    others = Counter(named[c.format] for c in candidates if c.format in named)
    if others:
        alike = ", ".join(f"{count} that look like {title}" for title, count in sorted(others.items()))
        return f"Formats that are not checked: {alike}. Choose one of these by hand."
    if not candidates:
        return "Nothing under these folders looks like a checkpoint: name the folder that holds the steps."
    if lower is not None and lower.chosen is not None:
        one = lower.chosen
        path = shlex.quote(visible(one.path, 4096))  # as a shell takes it
        which = f"save number {one.number}" if one.step is None else f"step {one.step}"
        return (
            f"At level structural it would be {which}: {unbroken(path)} (add --level structural). To prove level"
            f" {level}, checksums must be recorded right after each save: `sentinel checkpoints manifest PATH`, or the agent"
            " does it while the job runs ([jobs] manifests)."
        )
    return "Each candidate's reason is listed above; `sentinel checkpoints validate PATH` checks one again."


@click.command()
@click.argument("paths", nargs=-1, required=True, type=GivenPath(readable=False), metavar="PATH...")
@click.option("--level", type=_LEVELS, default="structural", show_default=True, help=_CHECK_LEVEL)
@click.option("--deadline", "deadline_s", type=ABOVE_ZERO, metavar="SECONDS", help=_DEADLINE)
@click.option("--no-cache", is_flag=True, help="Do not use or keep remembered results.")
@click.option("--slurm", "nodes", type=click.IntRange(1), metavar="N", help="Share the reading out over N nodes.")
@click.option(
    "--srun", "extra", multiple=True, metavar="OPTION", help="An option for srun, like --srun=--partition=io."
)
@click.option("--share", hidden=True, help="Read only this share of the files: I/N, or SLURM/N in a task of srun.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per path.")
def validate(
    paths: tuple[Path, ...],
    level: str,
    deadline_s: float | None,
    no_cache: bool,
    nodes: int | None,
    extra: tuple[str, ...],
    share: str | None,
    as_json: bool,
) -> None:
    """Check checkpoints: valid, invalid, or not known, each with the reason.

    Exit status 0 when all are valid, 2 when one is not there, 4 otherwise.

    \b
    sentinel checkpoints validate /lustre/run7/step-1200
    sentinel checkpoints validate /lustre/run7/step-* --level checksum --json
    sentinel checkpoints validate /lustre/run7/step-1200 --level checksum --slurm 64
    """
    wanted = parse_level(level)
    settings = replace(_settings(no_cache or share is not None), share=_share(share))
    bad = 0
    if nodes is not None:
        from sentinel.cli.checkpoints.slurm import DEADLINE_S, validate_shared

        answers = validate_shared(paths, wanted, nodes, extra=extra, deadline_s=deadline_s or DEADLINE_S)
    else:
        with bar(
            "reading", partial(bytes_of, paths), not as_json and wanted != "structural" and deadline_s is None
        ) as advance:
            settings = replace(settings, progress=advance)
            answers = [check_within(path, wanted, settings, deadline_s) for path in paths]
    for answer in answers:
        bad += answer.valid is not True
        show_validity(answer, as_json)
    if wanted == "structural" and any(answer.valid for answer in answers) and not as_json:
        say(f"{_UNREAD} Add --level checksum to read them.")
    gone = [path for path in paths if nodes is None and share is None and not os.path.lexists(path)]
    if gone:
        require_there(gone[0])
    if bad:
        raise Refused(f"{bad} of {len(paths)} not proven valid at level {level}", fix="The reasons are above.")


def _share(text: str | None) -> tuple[int, int] | None:
    """The share asked for; SLURM/N is that of this task of srun."""
    if text is None:
        return None
    if text.startswith("SLURM/"):
        rank = os.environ.get("SLURM_PROCID", "")
        text = f"{int(rank) + 1 if rank.isdigit() else ''}/{text.partition('/')[2]}"
    try:
        return parse_share(text)
    except ValueError as error:
        raise UserError(str(error), fix="--share is for the tasks of --slurm.") from error


@click.command(cls=Spread)
@click.option(
    "--global", "global_", multiple=True, type=GivenText(), metavar="DIR", help="A folder that every node sees."
)
@click.option(
    "--local", multiple=True, type=GivenText(), metavar="[NODE=]DIR", help="A node's own folder; %N is the node's name."
)
@click.option("--nodes", multiple=True, metavar="LIST", help="The job's nodes: a,b or node[1-4].")
@click.option("--host", help="The name of this host (default: its own).")
@click.option("--level", type=_LEVELS, default="structural", show_default=True, help=_CHECK_LEVEL)
@click.option("--limit", type=_SOME, default=stock.MAX_CANDIDATES, show_default=True, help="Newest so many per folder.")
@click.option("--deadline", "deadline_s", type=ABOVE_ZERO, metavar="SECONDS", help=_DEADLINE)
@click.option("--no-cache", is_flag=True, help="Do not use or keep remembered results.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per part.")
def inventory(
    global_: tuple[str, ...],
    local: tuple[str, ...],
    nodes: tuple[str, ...],
    host: str | None,
    level: str,
    limit: int,
    deadline_s: float | None,
    no_cache: bool,
    as_json: bool,
) -> None:
    """List what this host sees: which checkpoints, and whose shards of them.

    \b
    sentinel checkpoints inventory --local /nvme/run7 --json
    sentinel checkpoints inventory --global /lustre/run7 --level checksum
    """
    if not global_ and not local:
        raise UserError("no folder to look in", fix="Name one with --global DIR or --local DIR.")
    roots: list[tuple[Tier, str, Path]] = [("global", host or "", Path(text)) for text in global_]
    pairs = local_folders(local, expand_nodes(nodes))
    _require_one([*map(Path, global_), *(path for _, path in pairs)])
    roots += [("local", host if host and len(pairs) == 1 else name, path) for name, path in pairs]
    for parts in listings(roots, parse_level(level), _settings(no_cache), limit, deadline_s):
        for part in parts:
            if as_json:
                click.echo(json.dumps(part.to_json()))
            else:
                say(part_line(part))
