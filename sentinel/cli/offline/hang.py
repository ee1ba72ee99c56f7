"""``sentinel hang PATH...``: flight-recorder dumps -> which rank, which collective, why."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import click

from sentinel.classify.hang.analyse import HangFinding, analyse, some
from sentinel.classify.hang.group_state import newest_of_each
from sentinel.cli.offline.hang_input import Found, read_all
from sentinel.cli.operator.arguments import ExistingPath
from sentinel.errors import UserError
from sentinel.model.collectives import Call, GroupTrace, RankTrace, Unreadable
from sentinel.text import printable

MAX_FILES = 20_000
_BAR = 64  # files from which a bar is shown, on a terminal only
MAX_DEPTH = 6  # folders below the given one
_ROWS = 40
_LISTED = 50


@dataclass(slots=True)
class _Read:
    traces: list[RankTrace] = field(default_factory=list)
    unreadable: list[Unreadable] = field(default_factory=list)
    ignored: int = 0


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...", type=ExistingPath())
@click.option("--json", "as_json", is_flag=True, help="One JSON object on one line.")
@click.option("--world-size", type=click.IntRange(1, 1 << 17), help="Ranks in the job, where the dumps do not tell.")
def hang(paths: tuple[Path, ...], as_json: bool, world_size: int | None) -> None:
    """Say which rank holds the others up, in which collective, and why.

    PATH is a flight-recorder dump or a folder of them (pickled or JSON, any version, any names; other files are left
    alone). Dumps are data here: nothing in them is run. Ranks without a dump count as evidence.

    \b
    Examples:
      sentinel hang /shared/run7/attempt-2/flight
      sentinel hang --json nccl_trace_rank_*
    """
    read = _read_all(paths)
    if not read.traces:
        reasons = "; ".join(f"{_visible(item.source)}: {item.reason}" for item in read.unreadable[:3])
        raise UserError(
            f"no flight-recorder dump could be read in {', '.join(_visible(str(path)) for path in paths[:3])}"
            + (f" ({reasons})" if reasons else ""),
            fix="Give the folder that TORCH_FR_DUMP_TEMP_FILE or TORCH_NCCL_DEBUG_INFO_TEMP_FILE names: one file per rank, "
            "its name ending in the rank.",
        )
    if all(trace.rank is None for trace in read.traces):
        raise UserError(
            f"{len(read.traces)} dumps were read, but neither their names nor their content tell a rank",
            fix="Name the files so that they end in the rank, as in nccl_trace_rank_3.",
        )
    finding = analyse(read.traces, read.unreadable, world_size=world_size)
    if as_json:
        click.echo(json.dumps(_as_json(finding, read)))
    else:
        _print(finding, read)


def _read_all(paths: tuple[Path, ...]) -> _Read:
    files: list[Path] = []
    for path in paths:
        for count, file in enumerate(_files(path)):
            if count >= MAX_FILES:
                raise UserError(
                    f"more than {MAX_FILES} files below {_visible(str(path))}",
                    fix="Give the folder of one attempt's dumps.",
                )
            files.append(file)
    read = _Read()
    bar = click.progressbar(length=len(files), label="dumps", file=sys.stderr, hidden=len(files) < _BAR)
    with bar:

        def told(file: Path, found: Found) -> None:
            _keep(file, found, read)
            bar.update(1)

        read_all(files, told)
    # Children answer in any order; what is said of the same files is always the same.
    read.traces.sort(key=lambda trace: trace.source)
    read.unreadable.sort(key=lambda item: item.source)
    return read


def _files(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    base = len(path.parts)
    for folder, folders, names in os.walk(path):
        here = Path(folder)
        folders[:] = sorted(folders) if len(here.parts) - base < MAX_DEPTH else []
        for name in sorted(names):
            yield here / name


def _keep(file: Path, found: Found, read: _Read) -> None:
    if isinstance(found, RankTrace):
        read.traces.append(found)
        if found.rank is None:
            reason = "neither the name nor the content tells the rank"
            read.unreadable.append(Unreadable(str(file), None, reason))
    elif isinstance(found, Unreadable):
        read.unreadable.append(found)
    else:
        read.ignored += 1


def _visible(text: str) -> str:
    """Text from outside without control characters, and of bounded length."""
    return printable(text[:400], "?")


def _as_json(finding: HangFinding, read: _Read) -> dict[str, object]:
    ranks = newest_of_each(read.traces)
    return {
        "culprit_ranks": list(finding.culprit_ranks),
        "kind": finding.kind,
        "collective": finding.collective,
        "sequence": finding.sequence,
        "waiting": {str(rank): list(others) for rank, others in finding.waiting.items()},
        "explanation": finding.explanation,
        "confidence": finding.confidence,
        "basis": finding.basis,
        "group": finding.group,
        "group_ranks": list(finding.group_ranks),
        "without_dump": list(finding.without_dump),
        "versions": sorted({trace.version for trace in read.traces}),
        "ranks_read": len(ranks),
        "files_read": len(read.traces),
        "files_ignored": read.ignored,
        "torn": [trace.source for trace in read.traces if trace.torn][:_LISTED],
        "unreadable": [{"path": item.source, "reason": item.reason} for item in read.unreadable[:_LISTED]],
        "call_sites": {
            str(rank): list(call.frames)
            for rank in _shown(finding, ranks, 5)
            if (call := _last_call(ranks[rank], finding)) is not None and call.frames
        },
    }


def _shown(finding: HangFinding, ranks: dict[int, RankTrace], count: int) -> list[int]:
    """Culprits first, then who waits, then the rest; at most so many of each."""
    first = [rank for rank in finding.culprit_ranks if rank in ranks][:count]
    rest = [rank for rank in finding.waiting if rank in ranks and rank not in first][:count]
    more = [rank for rank in sorted(ranks) if rank not in first and rank not in rest]
    return [*first, *rest, *more[: max(0, count - len(rest))]]


def _last_call(trace: RankTrace, finding: HangFinding) -> Call | None:
    """What the rank called last; of a waiting rank, the call that it waits in."""
    calls = [call for group in trace.groups for call in group.calls]
    for group in trace.groups:
        if group.name == finding.group_name:
            waiting_in = [call for call in group.calls if call.sequence == finding.sequence]
            if waiting_in:
                return waiting_in[0]
    return max(calls, key=lambda call: call.created_ns or 0, default=None)


def _state(group: GroupTrace) -> str:
    known = [
        "?" if number is None else "-" if number < 0 else str(number) for number in (group.enqueued, group.completed)
    ]
    return "/".join(known)


def _print(finding: HangFinding, read: _Read) -> None:
    from rich.text import Text

    from sentinel.cli.operator.output import counted, say, table

    ranks = newest_of_each(read.traces)
    title = {"missing": "never called", "mismatch": "called something else", "stuck": "stuck", "none": "no hang found"}
    named = some(finding.culprit_ranks) if finding.culprit_ranks else "no rank named"
    say(f"{named}: {title[finding.kind]}  (confidence {finding.confidence:.2f})")
    say(printable(finding.explanation))
    labels = _labels(ranks, finding)
    rows = []
    for rank in _shown(finding, ranks, _ROWS // 2):
        states = {group.name: _state(group) for group in ranks[rank].groups}
        name = Text(str(rank), style="bold red" if rank in finding.culprit_ranks else "")
        rows.append((name, *(states.get(label, "") for label in labels)))
    if rows:
        table("last called / last completed, per group", ("rank", *map(_visible, labels)), rows, whole=("rank",))
    for rank in _shown(finding, ranks, 2):
        call = _last_call(ranks[rank], finding)
        if call is not None and call.frames:
            say(f"rank {rank}, {_visible(call.operation)} number {call.sequence}, called from:")
            for frame in call.frames[:8]:
                say(_visible(frame), "    ")
    if finding.without_dump:
        say(f"without a dump: {some(finding.without_dump)}")
    for trace in [trace for trace in read.traces if trace.torn][:_LISTED]:
        say(f"torn: {_visible(trace.source)} ends early; what stands before that was used")
    for item in read.unreadable[:_LISTED]:
        say(f"not read: {_visible(item.source)}: {_visible(item.reason)}")
    dumps, others = counted(len(read.traces), "dump"), counted(read.ignored, "other file")
    say(f"{dumps} of {counted(len(ranks), 'rank')} read, {others} left alone")


def _labels(ranks: dict[int, RankTrace], finding: HangFinding) -> list[str]:
    """The group in question first, then the others by name; a table shows a few."""
    names = {group.name for trace in ranks.values() for group in trace.groups if group.calls}
    return sorted(names, key=lambda name: (name != finding.group_name, name))[:6]
