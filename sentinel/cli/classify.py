"""``sentinel classify``: judge a log, or a folder holding one failure's evidence, offline."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sentinel.errors import UserError

if TYPE_CHECKING:
    from sentinel.evidence.logs import Signatures
    from sentinel.model import Evidence, Incident, Source, Verdict

BLOCK = 1 << 20  # bytes read at a time
FILES_IN_FOLDER = 4096  # of one failure; more is not one failure's folder
READ_DEADLINE_S = 30.0  # for a FIFO that nobody writes to
KEEP_STEPS = 64  # last step lines kept for the verdict
_PROGRESS = frozenset({"pause", "resumed"})

# Names that a machine gives its own logs. Content never makes a file trusted: a program can print anything.
_KERNEL_NAME = re.compile(r"(?i)^(?:dmesg|kern(?:el)?[._-]?log|kmsg|messages|syslog|journal(?:ctl)?)\b")
_SLURM_NAME = re.compile(r"(?i)^slurm(?:ctld|d|dbd)\b")
_DCGM_NAME = re.compile(r"(?i)^(?:dcgm|nv-hostengine|fabricmanager)")
_DUMP_NAME = re.compile(r"(?i)(?:nccl_trace|comm_lib_trace|fr_trace|trace_rank)_?(?:rank_?)?\d+")


@click.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON object per path.")
@click.option(
    "--source",
    type=click.Choice(["auto", "job", "kernel", "slurm", "dcgm"]),
    default="auto",
    show_default=True,
    help="Who wrote the files. Only kernel, slurm and dcgm output can name a node to drain.",
)
@click.option("--node", default=None, help="Node that the files come from, where their lines do not say it.")
@click.option(
    "--rules", "rules_path", type=click.Path(path_type=Path), default=None, help="Site rules: file or folder."
)
def classify(paths: tuple[Path, ...], as_json: bool, source: str, node: str | None, rules_path: Path | None) -> None:
    """Judge a log, or a folder holding one failure's logs and outputs.

    \b
    Examples:
      sentinel classify slurm-4711.out
      sentinel classify --json failure-folder/ | jq .cause
      sentinel classify --source kernel --node gpu017 dmesg.txt
      journalctl -k -o short-iso | sentinel classify --source kernel -

    A folder is one failure. Exit status: 0 judged (also when the cause is unknown), 3 a path could not be read.
    """
    from sentinel.adapters.hyperscan import best_screen
    from sentinel.adapters.rules_files import load_rules
    from sentinel.evidence.logs import Signatures

    signatures = Signatures(load_rules(site=rules_path), best_screen)
    now = datetime.now(UTC)
    failed = False
    for path in paths:
        answer = judge_path(path, signatures, now, source=source, node=node)
        failed = failed or "error" in answer
        click.echo(json.dumps(answer, ensure_ascii=False) if as_json else _text(answer))
    if failed:
        raise SystemExit(3)


def judge_path(
    path: Path, signatures: Signatures, now: datetime, *, source: str = "auto", node: str | None = None
) -> dict[str, Any]:
    """The JSON answer for one path; what cannot be read is answered as unknown, with ``error``."""
    from sentinel.classify import classify as judge
    from sentinel.model import Incident

    evidence: list[Evidence] = []
    problems: list[str] = []
    for file in _files(path, problems):
        try:
            evidence.extend(_read(file, signatures, now, source, node))
        except OSError as error:
            problems.append(f"{file}: {error.strerror or error}")
        except UserError as error:
            problems.append(error.message)
    nodes = tuple(dict.fromkeys(e.where.node for e in evidence if e.where.node))
    incident = Incident("offline", now, now, nodes=nodes, evidence=tuple(evidence))
    answer = answer_of(str(path), judge(incident, rules=signatures.rules, now=now), incident)
    if problems:
        answer["error" if not evidence else "unreadable"] = "; ".join(problems[:8])
    return answer


def answer_of(path: str, verdict: Verdict, incident: Incident) -> dict[str, Any]:
    """DESIGN.md's public form; fields may be added, not renamed."""
    from sentinel.wire import to_json

    xids = sorted({int(e.data["xid"] or 0) for e in incident.evidence if isinstance(e.data.get("xid"), int)})
    return {
        "path": path,
        "cause": verdict.cause.value,
        "scope": verdict.scope.value,
        "confidence": verdict.confidence,
        "drain": list(verdict.drain),
        "drain_recommended": verdict.drain_recommended,
        "suspect": list(verdict.suspect),
        "restart": verdict.restart.value,
        "culprits": to_json(verdict.culprits),
        "onset_step": verdict.onset_step,
        "xids": xids,
        "evidence": [_ground(g) for g in verdict.grounds],
        "against": [_ground(g) for g in verdict.against],
        "alternatives": [{"cause": a.cause.value, "confidence": a.confidence} for a in verdict.alternatives],
        "would_change": list(verdict.would_change),
        "advice": verdict.advice,
    }


def _ground(ground: Any) -> dict[str, Any]:
    evidence = ground.evidence
    return {
        "line": evidence.line,
        "kind": evidence.kind,
        "text": evidence.text,
        "rule": evidence.rule,
        "trust": evidence.trust.value,
        "weight": ground.weight,
        "note": ground.note,
        "file": evidence.where.path,
    }


def _files(path: Path, problems: list[str]) -> Iterator[Path]:
    """The files of a path in a stable order, without following links out of it."""
    if str(path) == "-":
        yield path
        return
    if not path.exists():
        problems.append(f"{path}: no such file or folder")
        return
    if not path.is_dir():
        yield path
        return
    count = 0
    for folder, names, files in os.walk(path):
        names.sort()
        for name in sorted(files):
            file = Path(folder) / name
            if not file.is_symlink() and file.is_file() and not _DUMP_NAME.search(name):
                count += 1
                if count > FILES_IN_FOLDER:
                    problems.append(f"{path}: more than {FILES_IN_FOLDER} files; the rest was not read")
                    return
                yield file
    if not count:
        problems.append(f"{path}: a folder without a readable file")


def _source(file: Path, told: str) -> Source:
    from sentinel.model import Source

    named = {"job": Source.JOB_LOG, "kernel": Source.KERNEL, "slurm": Source.SLURM, "dcgm": Source.DCGM}
    if told in named:
        return named[told]
    for pattern, source in ((_KERNEL_NAME, Source.KERNEL), (_SLURM_NAME, Source.SLURM), (_DCGM_NAME, Source.DCGM)):
        if pattern.search(file.name):
            return source
    return Source.JOB_LOG


def _read(file: Path, signatures: Signatures, now: datetime, told: str, node: str | None) -> list[Evidence]:
    """Evidence of one file in constant memory: step lines beyond the first and last few are dropped as they come."""
    from collections import deque

    from sentinel.evidence.logs import LogReader
    from sentinel.model import Kind, Where

    reader = LogReader(signatures, source=_source(file, told), where=Where(node=node, path=str(file)))
    kept: list[Evidence] = []
    steps: deque[Evidence] = deque(maxlen=KEEP_STEPS)
    blocks = _blocks(file)
    for found in _feed(reader, blocks, now):
        for item in found:
            if item.kind == Kind.STEP:
                steps.append(item)
            elif item.kind not in _PROGRESS:
                kept.append(item)
    return [replace(item, at=now) if not file.name else item for item in [*kept, *steps]]


def _feed(reader: Any, blocks: Iterable[bytes], now: datetime) -> Iterator[list[Evidence]]:
    for block in blocks:
        yield reader.feed(block, now)
    yield reader.finish(now)


def _blocks(file: Path) -> Iterator[bytes]:
    """Blocks of a file, a FIFO or standard input; a FIFO that stays silent past its deadline ends.

    Raises:
        UserError: a device or socket; binary data.
    """
    import select

    if str(file) == "-":
        while block := os.read(0, BLOCK):
            yield block
        return
    mode = file.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
        raise UserError(f"{file}: neither a file nor a pipe", fix="give a log file or a folder")
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | (os.O_NONBLOCK if stat.S_ISFIFO(mode) else 0))
    try:
        first = True
        while True:
            if stat.S_ISFIFO(mode) and not select.select([descriptor], [], [], READ_DEADLINE_S)[0]:
                raise UserError(f"{file}: nobody wrote into this pipe for {READ_DEADLINE_S:g} s", fix="give a file")
            block = os.read(descriptor, BLOCK)
            if not block:
                return
            if first and _binary(block):
                raise UserError(f"{file}: binary, not a log", fix="give text; for dumps use `sentinel hang`")
            first = False
            yield block
    finally:
        os.close(descriptor)


def _binary(block: bytes) -> bool:
    """Mostly control bytes: a dump, an archive, a checkpoint. Invalid UTF-8 alone is still a log."""
    sample = block[:8192]
    control = sum(sample.count(bytes([byte])) for byte in (*range(0, 9), *range(14, 27), *range(28, 32)))
    return control > max(8, len(sample) // 20)


def _text(answer: dict[str, Any]) -> str:
    """For people: the verdict, its grounds and what would change it."""
    lines = [
        f"{answer['path']}: {answer['cause']} ({answer['scope']}), confidence {answer['confidence']:.2f}",
    ]
    if answer.get("error"):
        lines.append(f"  cannot be judged: {answer['error']}")
        return "\n".join(lines)
    if answer["drain"]:
        lines.append(f"  drain: {', '.join(answer['drain'])}")
    elif answer["drain_recommended"]:
        lines.append("  drain: the node these lines come from, once its own kernel log or a diagnostic agrees")
    if answer["suspect"]:
        lines.append(f"  suspect: {', '.join(answer['suspect'])}")
    lines.append(f"  restart: {answer['restart']}; {answer['advice']}")
    lines.extend(f"  + {g['weight']:5.2f}  line {g['line'] or '-'}: {g['text'][:120]}" for g in answer["evidence"][:6])
    lines.extend(f"  - {-g['weight']:5.2f}  line {g['line'] or '-'}: {g['text'][:120]}" for g in answer["against"][:3])
    if answer["alternatives"]:
        others = ", ".join(f"{a['cause']} {a['confidence']:.2f}" for a in answer["alternatives"])
        lines.append(f"  else: {others}")
    lines.extend(f"  would change it: {sentence}" for sentence in answer["would_change"])
    return "\n".join(lines)
