"""``sentinel checkpoints find | validate | inventory``."""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from sentinel.checkpoints import inventory as stock
from sentinel.checkpoints.choose import choose
from sentinel.checkpoints.files import visible
from sentinel.checkpoints.formats import nvrx
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
from sentinel.checkpoints.remembered import Memory, default_folder
from sentinel.checkpoints.share import parse_share
from sentinel.checkpoints.validate import Settings
from sentinel.cli.checkpoints_bar import bar
from sentinel.cli.checkpoints_deadline import check_within, listings, parts_within
from sentinel.cli.checkpoints_show import echo_decision, part_line, show_decision, show_validity
from sentinel.errors import Refused, UserError

# Up to so much every candidate is read at the level asked for; beyond it only those that would be chosen.
EAGER_BYTES = 8 << 30
_DEADLINE = "Give a folder so long: a frozen file system is then not known."
_NEXT = "The nodes of the next attempt in Slurm's order: each rank must find its shard on its own, or by replication."
_LEVELS = click.Choice(["structural", "checksum", "content"])


class Spread(click.Command):
    """A command whose listed options take several values: ``--lost a b`` is ``--lost a --lost b``."""

    several: frozenset[str] = frozenset({"--local", "--lost", "--nodes", "--next", "--global", "--peer"})

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        spread: list[str] = []
        option = ""
        taken = 0
        for word in args:
            if word.startswith("-") and word != "-":
                name = word.partition("=")[0]
                option = name if name in self.several else ""
                taken = 1 if "=" in word and option else 0
                spread.append(word)
                continue
            if option and taken:
                spread.append(option)
            taken += 1
            spread.append(word)
        return super().parse_args(ctx, spread)


def expand_nodes(texts: Iterable[str]) -> list[str]:
    """Node names of ``a,b``, ``n[1-3,07-09]`` and several such; in order, each once."""
    names: dict[str, None] = {}
    for text in texts:
        for word in re.findall(r"(?:[^,\[\]\s]|\[[^\]]*\])+", text):
            for name in _expand_word(word):
                names[name] = None
                if len(names) > 100_000:
                    raise UserError(f"{visible(text, 60)} names more than 100,000 nodes", fix="Name fewer.")
    return list(names)


def _expand_word(word: str) -> list[str]:
    match = re.fullmatch(r"([^\[\]]*)\[([^\]]*)\](.*)", word)
    if not match:
        return [word]
    head, ranges, tail = match.groups()
    names: list[str] = []
    for item in ranges.split(","):
        low, dash, high = item.partition("-")
        if not low.isdigit() or (dash and not high.isdigit()):
            raise UserError(f"{visible(word)} is no list of nodes", fix="Write it like node[1-4,7] or a,b,c.")
        last = int(high) if dash else int(low)
        if last - int(low) > 100_000:
            raise UserError(f"{visible(word)} names more than 100,000 nodes", fix="Name fewer.")
        for number in range(int(low), last + 1):
            names.extend(f"{head}{number:0{len(low)}d}{rest}" for rest in _expand_word(tail))
    return names


def local_folders(texts: Sequence[str], nodes: Sequence[str]) -> list[tuple[str, Path]]:
    """(host, folder) pairs of the --local options.

    ``NODE=DIR``; ``DIR`` with ``%N`` or ``{node}``, one per node; ``DIR`` that holds a folder per node; ``DIR`` with a
    node's name in its path; otherwise a folder of this host.
    """
    known = set(nodes)
    pairs: list[tuple[str, Path]] = []
    for text in texts:
        node, equals, folder = text.partition("=")
        if equals and "/" not in node and node:
            pairs.append((node, Path(folder)))
            continue
        if "%N" in text or "{node}" in text:
            if not nodes:
                raise UserError(f"--local {visible(text)} needs --nodes", fix="Name the nodes: --nodes node[1-4].")
            pairs.extend((name, Path(text.replace("%N", name).replace("{node}", name))) for name in nodes)
            continue
        path = Path(text)
        inside = [name for name in nodes if (path / name).is_dir()]
        if inside:
            pairs.extend((name, path / name) for name in inside)
            continue
        named = next((part for part in reversed(path.absolute().parts) if part in known), None)
        pairs.append((named or _this_host(), path))
    return pairs


def _settings(no_cache: bool) -> Settings:
    return Settings(memory=None if no_cache else Memory(default_folder()))


@click.command(cls=Spread)
@click.option("--global", "global_", multiple=True, metavar="DIR", help="A folder that every node sees.")
@click.option("--local", multiple=True, metavar="[NODE=]DIR", help="A node's own folder; %N is the node's name.")
@click.option("--nodes", multiple=True, metavar="LIST", help="The job's nodes: a,b or node[1-4].")
@click.option("--lost", multiple=True, metavar="NODE", help="A node that the next attempt will not have.")
@click.option("--next", "following", multiple=True, metavar="LIST", help=_NEXT)
@click.option("--onset-step", type=int, help="The first step whose numbers were bad: only earlier ones count.")
@click.option("--step-last", type=int, help="The last step that was completed (default: the newest checkpoint's).")
@click.option("--step-time", "step_time_s", type=float, default=10.0, show_default=True, help="Seconds per step.")
@click.option("--world-size", type=int, help="Ranks of the next attempt.")
@click.option("--level", type=_LEVELS, help="How closely to check (default structural; content with --onset-step).")
@click.option("--rejected", multiple=True, metavar="PATH", help="A checkpoint that failed to load already.")
@click.option("--limit", type=int, default=stock.MAX_CANDIDATES, show_default=True, help="Newest so many per folder.")
@click.option("--all", "everything", is_flag=True, help="Read all candidates at that level, not only the best ones.")
@click.option("--deadline", "deadline_s", type=click.FloatRange(0, min_open=True), metavar="SECONDS", help=_DEADLINE)
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
    wanted: Level = parse_level(level) if level else ("content" if onset_step is not None else "structural")
    roots: list[tuple[Tier, str, Path]] = [("global", "", Path(text)) for text in global_]
    roots += [("local", host, path) for host, path in local_folders(local, [*names, *sorted(gone - set(names))])]
    question: dict[str, Any] = {
        "step_last": step_last,
        "onset_step": onset_step,
        "step_time_s": step_time_s,
        "next_nodes": frozenset(ordered or names) - gone if ordered or names else None,
        "lost_nodes": gone,
        "world_size": world_size,
        "costs": Costs(),
        "rejected": frozenset(rejected),
    }
    candidates, decision = _search(
        roots, wanted, (names, ordered), limit, everything, _settings(no_cache), question, deadline_s
    )
    if as_json:
        echo_decision(decision)
    else:
        show_decision(decision)
    if decision.chosen is None:
        raise Refused(f"no checkpoint was chosen: {decision.explanation}", fix=_advice(candidates))


def _search(
    roots: Sequence[tuple[Tier, str, Path]],
    level: Level,
    nodes: tuple[Sequence[str], Sequence[str]],
    limit: int,
    everything: bool,
    settings: Settings,
    question: dict[str, Any],
    deadline_s: float | None,
) -> tuple[list[Candidate], Decision]:
    """List, choose, and read what was chosen; while it does not hold, the next. Little data is read at once."""
    here = _this_host()
    names, ordered = nodes
    spread = names if here not in names else ()
    parts = [part for listed in listings(roots, "structural", settings, limit, deadline_s) for part in listed]
    if level != "structural" and (everything or sum(part.bytes for part in parts) <= EAGER_BYTES):
        parts = [part for listed in listings(roots, level, settings, limit, deadline_s) for part in listed]
    read: set[tuple[str, int | None]] = set()
    while True:
        candidates = [
            stock.place_in_blocks(c, spread, here) for c in stock.join([parts], world_size=question["world_size"])
        ]
        places = _places(candidates, ordered, question["world_size"])
        decision = choose(candidates, level="structural", **question, **places)
        chosen = decision.chosen
        if chosen is None or level_at_least(chosen.level, level):
            return candidates, decision
        if (chosen.path, chosen.step) in read:
            raise AssertionError(f"{chosen.path} was read at level {level} and says {chosen.level}")
        read.add((chosen.path, chosen.step))
        parts = _read_closer(parts, chosen, level, settings, deadline_s)


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


def _read_closer(
    parts: list[Part], chosen: Candidate, level: Level, settings: Settings, deadline_s: float | None
) -> list[Part]:
    """The chosen one's parts read at that level; not known where the deadline passes."""
    deeper = parts_within(deadline_s, lambda: stock.deepen(parts, chosen, level, settings=settings))
    if deeper is not None:
        return deeper
    reason = f"was not read within {deadline_s:g} s"
    ours = (chosen.key, chosen.tier)
    return [replace(p, valid=None, level=level, reason=reason) if (p.key, p.tier) == ours else p for p in parts]


def _this_host() -> str:
    return socket.gethostname().partition(".")[0]


def _advice(candidates: Sequence[Candidate]) -> str:
    if not candidates:
        return "Check the folders that were named."
    return "Each candidate's reason is listed above; `sentinel checkpoints validate PATH` checks one again."


@click.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="PATH...")
@click.option("--level", type=_LEVELS, default="structural", show_default=True, help="How closely to check.")
@click.option("--deadline", "deadline_s", type=click.FloatRange(0, min_open=True), metavar="SECONDS", help=_DEADLINE)
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

    Exit status 0 when all are valid, 4 otherwise.

    \b
    sentinel checkpoints validate /lustre/run7/step-1200
    sentinel checkpoints validate /lustre/run7/step-* --level checksum --json
    sentinel checkpoints validate /lustre/run7/step-1200 --level checksum --slurm 64
    """
    wanted = parse_level(level)
    settings = replace(_settings(no_cache or share is not None), share=_share(share))
    bad = 0
    if nodes is not None:
        from sentinel.cli.checkpoints_slurm import DEADLINE_S, validate_shared

        answers = validate_shared(paths, wanted, nodes, extra=extra, deadline_s=deadline_s or DEADLINE_S)
    else:
        with bar("reading", paths, not as_json and wanted != "structural" and deadline_s is None) as advance:
            settings = replace(settings, progress=advance)
            answers = [check_within(path, wanted, settings, deadline_s) for path in paths]
    for answer in answers:
        bad += answer.valid is not True
        show_validity(answer, as_json)
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
@click.option("--global", "global_", multiple=True, metavar="DIR", help="A folder that every node sees.")
@click.option("--local", multiple=True, metavar="[NODE=]DIR", help="A node's own folder; %N is the node's name.")
@click.option("--nodes", multiple=True, metavar="LIST", help="The job's nodes: a,b or node[1-4].")
@click.option("--host", help="The name of this host (default: its own).")
@click.option("--level", type=_LEVELS, default="structural", show_default=True, help="How closely to check.")
@click.option("--limit", type=int, default=stock.MAX_CANDIDATES, show_default=True, help="Newest so many per folder.")
@click.option("--deadline", "deadline_s", type=click.FloatRange(0, min_open=True), metavar="SECONDS", help=_DEADLINE)
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
    roots += [("local", host if host and len(pairs) == 1 else name, path) for name, path in pairs]
    for parts in listings(roots, parse_level(level), _settings(no_cache), limit, deadline_s):
        for part in parts:
            if as_json:
                click.echo(json.dumps(part.to_json()))
            else:
                click.echo(part_line(part))
