"""``sentinel checkpoints manifest | drain | replicate``."""

from __future__ import annotations

import json
import re
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import click

from sentinel.checkpoints import copying
from sentinel.checkpoints import manifest as manifests
from sentinel.checkpoints.copies.peers import choose_peers
from sentinel.checkpoints.formats.beside.rank_files import files_of
from sentinel.checkpoints.records import Validity
from sentinel.checkpoints.validate import Settings, validate_part
from sentinel.cli.checkpoints.deadline import GIVE_UP_AFTER, bounded, check_within, parts_within
from sentinel.cli.checkpoints.nodes import expand_nodes
from sentinel.cli.checkpoints.progress_bar import bar, bytes_of
from sentinel.cli.operator.arguments import ABOVE_ZERO, ExistingPath, GivenPath, GivenText
from sentinel.cli.operator.output import counted, say
from sentinel.errors import Refused, UserError
from sentinel.text import visible


def parse_rate(text: str | None) -> float | None:
    """``200M``, ``1.5GB/s``, ``800 MiB/s``, ``8Gbit/s`` in bytes per second.

    Raises:
        UserError: no rate, or a number without a unit.
    """
    from sentinel.cli.plan.inputs import answering
    from sentinel.planning import quantities

    if text is None:
        return None
    if re.fullmatch(r"\s*[\d.]+\s*(?:/s)?\s*", text):
        raise UserError(f"--rate {visible(text)} has no unit", fix="Write it like 200MB/s or 1.5GiB/s.")
    with answering():
        if re.fullmatch(r"\s*[\d.]+\s*(?:[kKMGT]i?[bB]?|B)\s*", text):  # as dd and rsync take it: bytes a second
            text = re.sub(r"[bB]?\s*$", "B/s", text, count=1)
        return quantities.rate(text, "--rate").value


@click.command()
@click.argument("paths", nargs=-1, required=True, type=ExistingPath(), metavar="PATH...")
@GIVE_UP_AFTER
def manifest(paths: tuple[Path, ...], deadline_s: float | None) -> None:
    """Record checksums beside checkpoints that have none (safetensors, metadata), so that they can be proven later.

    Run it right after the save: it proves that the bytes are those of that moment.

    \b
    sentinel checkpoints manifest /lustre/run7/checkpoint-500
    """
    paths = _one_of_each(paths, deadline_s)
    _require_known(paths, deadline_s)
    for path in paths:
        written = bounded(deadline_s, f"reading {path}", partial(_manifest, path))
        click.echo(visible(written))


def _one_of_each(paths: tuple[Path, ...], deadline_s: float | None) -> tuple[Path, ...]:
    """Each save once: of one in a file per rank that of the lowest rank stands for all, as where saves are listed."""
    found = bounded(deadline_s, f"looking at {paths[0]}", lambda: [_standing_for(path) for path in paths])
    return tuple(dict.fromkeys(map(Path, found)))


def _standing_for(path: Path) -> str:
    try:
        return str(next(iter(files_of(path)), path))
    except OSError:
        return str(path)


def _require_known(paths: tuple[Path, ...], deadline_s: float | None) -> list[Validity]:
    """What each of them is by its structure.

    Raises:
        Refused: one of them is no checkpoint of a known format: nothing could ever be said of its copy or its checksums.
    """
    answers = [check_within(path, "structural", Settings(), deadline_s) for path in paths]
    for path, found in zip(paths, answers, strict=True):
        if found.format == "unknown":
            raise Refused(
                f"{visible(str(path))} is no checkpoint that is known here: {visible(found.reason)}",
                fix="Name the folder of one save; `sentinel checkpoints inventory --global DIR` lists those in a folder.",
            )
    return answers


def _manifest(path: Path) -> str:
    return str(manifests.write(path))


_TO = "The run's folder on the shared tier. It is made; the folder above it must be there."
_TO_PEER = "The peer's folder; %P or {peer} is its name. It is made; the folder above it must be there."
_RATE = click.option("--rate", metavar="RATE", help="At most so fast, like 200MB/s.")
_INTERVAL = click.option(
    "--interval", "interval_s", type=ABOVE_ZERO, metavar="SECONDS", help="Time between checkpoints."
)


@click.command()
@click.argument("paths", nargs=-1, required=True, type=ExistingPath(), metavar="PATH...")
@click.option("--to", "target", required=True, type=GivenPath(), help=_TO)
@_RATE
@_INTERVAL
@GIVE_UP_AFTER
@click.option("--json", "as_json", is_flag=True, help="One JSON object per checkpoint.")
def drain(
    paths: tuple[Path, ...],
    target: Path,
    rate: str | None,
    interval_s: float | None,
    deadline_s: float | None,
    as_json: bool,
) -> None:
    """Copy this node's local checkpoints to the shared tier: bounded rate, resumable, verified, never overwriting.

    When shards lie on several nodes, run it on each: the one that completes the checkpoint puts it in its place.
    Exit status 4 when what lies here is damaged.

    \b
    sentinel checkpoints drain /nvme/run7/step-1200 --to /lustre/run7 --rate 500MB/s --interval 600
    """
    _copy_all(paths, target, rate=rate, interval_s=interval_s, deadline_s=deadline_s, as_json=as_json, whole=True)


@click.command()
@click.argument("paths", nargs=-1, required=True, type=ExistingPath(), metavar="PATH...")
@click.option("--to", "target", required=True, type=GivenText(), metavar="DIR", help=_TO_PEER)
@click.option("--nodes", multiple=True, metavar="LIST", help="The job's nodes, to choose a peer among.")
@click.option("--domain", multiple=True, metavar="NODES=NAME", help="Nodes that fail together (switch, rack).")
@click.option("--host", help="The name of this host (default: its own).")
@click.option("--slurm", "by_slurm", is_flag=True, help="DIR is on the peer's own disk: send it there by srun.")
@click.option("--srun", "extra", multiple=True, metavar="OPTION", help="An option for srun, like --srun=--jobid=4711.")
@_RATE
@_INTERVAL
@GIVE_UP_AFTER
@click.option("--json", "as_json", is_flag=True, help="One JSON object per checkpoint.")
def replicate(
    paths: tuple[Path, ...],
    target: str,
    nodes: tuple[str, ...],
    domain: tuple[str, ...],
    host: str | None,
    by_slurm: bool,
    extra: tuple[str, ...],
    rate: str | None,
    interval_s: float | None,
    deadline_s: float | None,
    as_json: bool,
) -> None:
    """Copy this node's shards to a peer outside its failure domain, so that any single node can be lost.

    \b
    sentinel checkpoints replicate /nvme/run7/step-1200 --to /peers/%P/run7 \\
        --nodes node[1-8] --domain node[1-4]=rack1 --domain node[5-8]=rack2
    sentinel checkpoints replicate /nvme/run7/step-1200 --slurm --to /nvme/run7 --nodes node[1-8]

    Without --slurm DIR must be a folder that is mounted here. With it, a step of the job (run this on its nodes, or name
    it with --srun=--jobid=ID) writes DIR on the peer's own disk, with your rights; sentinel must be installed there too.
    """
    peer = ""
    if "%P" in target or "{peer}" in target or by_slurm:
        me = host or socket.gethostname().partition(".")[0]
        peer = peer_of(me, expand_nodes(nodes), domain)
        click.echo(f"peer of {visible(me)}: {visible(peer)}", err=True)
        target = target.replace("%P", peer).replace("{peer}", peer)
    _copy_all(
        paths,
        Path(target),
        rate=rate,
        interval_s=interval_s,
        deadline_s=deadline_s,
        as_json=as_json,
        whole=False,
        through=partial(_through_slurm, peer, extra) if by_slurm else None,
    )


def _through_slurm(
    peer: str,
    extra: tuple[str, ...],
    path: Path,
    target: Path,
    *,
    pace: copying.Pace,
    progress: Callable[[int], None],
) -> copying.Copied:
    from sentinel.cli.checkpoints.slurm import send_to

    return send_to(path, peer, str(target), extra=extra, pace=pace, progress=progress)


@click.command(hidden=True)
@click.argument("root", type=click.Path(path_type=Path))
def receive(root: Path) -> None:
    """The other side of `replicate --slurm`: puts what comes on standard input under ROOT."""
    from sentinel.checkpoints.transfer import receive as take

    take(root, sys.stdin.buffer, sys.stdout.buffer)


def peer_of(me: str, hosts: list[str], domain: tuple[str, ...]) -> str:
    """The peer of this host. `UserError` where there is none outside its failure domain."""
    domains: dict[str, str] = {}
    for text in domain:
        names, equals, label = text.rpartition("=")
        if not equals or not label:
            raise UserError(f"{visible(text)} names no domain", fix="Write it like node[1-4]=rack1.")
        domains |= dict.fromkeys(expand_nodes([names]), label)
    if me not in hosts:
        raise UserError(f"{visible(me)} is not among the nodes", fix="Name it with --host, or add it to --nodes.")
    peers = choose_peers(hosts, domains)
    if me not in peers.of:
        raise UserError(
            f"{visible(me)} has no peer outside its failure domain", fix="Use smaller domains or more nodes."
        )
    return peers.of[me]


def _copy_all(
    paths: tuple[Path, ...],
    target: Path,
    *,
    rate: str | None,
    interval_s: float | None,
    deadline_s: float | None,
    as_json: bool,
    whole: bool,
    through: Callable[..., copying.Copied] | None = None,
) -> None:
    pace = copying.Pace(parse_rate(rate))
    damaged = 0
    paths = _one_of_each(paths, deadline_s)
    for path, found in zip([path.absolute() for path in paths], _require_known(paths, deadline_s), strict=True):
        # Bounded, the copying is done in a child, whose progress nobody sees; so is looking at the size beforehand.
        with bar("copying", partial(bytes_of, [path]), not as_json and deadline_s is None) as advance:
            if through is not None:
                work = partial(through, path, target, pace=pace, progress=advance)
            else:
                place = Path(path.name)
                work = partial(copying.copy, path, target, place, pace=pace, progress=advance, in_place=not whole)
            why = _damage(path, deadline_s) if found.valid is False else ""
            copied = copying.Copied(str(target / path.name), damaged=why) if why else _copied(deadline_s, path, work)
        damaged += bool(copied.damaged)
        line = copied.to_json()
        if interval_s is not None:
            line["overlap_fraction"] = round(copying.overlap_fraction(copied.seconds, interval_s), 4)
        if as_json:
            click.echo(json.dumps(line))
        else:
            say(_line(copied))
        if interval_s is not None and copied.seconds > copying.OVERLAP_WARNING * interval_s:
            share = copied.seconds / interval_s
            click.echo(
                f"warning: copying took {share:.0%} of the {interval_s:g} s between checkpoints"
                f" (warned at {copying.OVERLAP_WARNING:.0%})",
                err=True,
            )
    if damaged:
        raise Refused(f"{damaged} of {counted(len(paths), 'checkpoint')} damaged", fix="The reasons are above.")


def _damage(path: Path, deadline_s: float | None) -> str:
    """Why what lies here would be no part of a whole checkpoint, whatever other nodes hold; empty: nothing says so."""
    part = partial(validate_part, path, "structural", tier="local", host="", root=path.parent)
    parts = parts_within(deadline_s, lambda: [part()])
    return parts[0].reason if parts and parts[0].valid is False else ""


def _copied(deadline_s: float | None, path: Path, work: Callable[[], copying.Copied]) -> copying.Copied:
    return copying.Copied(**bounded(deadline_s, f"copying {path}", lambda: work().to_json()))


def _line(copied: copying.Copied) -> str:
    state = "complete" if copied.complete else f"waiting for other nodes: {visible(copied.waiting_for)}"
    state = f"damaged here: {visible(copied.damaged)}" if copied.damaged else state
    speed = f", {copied.bytes / copied.seconds / 1e6:.0f} MB/s" if copied.seconds > 0 and copied.bytes else ""
    return (
        f"{visible(copied.target)}: {counted(copied.files, 'file')}, {counted(copied.bytes, 'byte')} copied,"
        f" {copied.already} there already{speed}; {state}"
    )
