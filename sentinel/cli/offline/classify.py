"""``sentinel classify``: judge a log, or a folder holding one failure's evidence, offline."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sentinel.cli.operator.arguments import GivenPath, rules_option
from sentinel.model.vocabulary import LOG_LINE

if TYPE_CHECKING:
    from sentinel.evidence.logs.reader import Signatures
    from sentinel.model.records import Evidence, Incident, Verdict


# What only announces lines that follow, or points elsewhere.
_HEADLINE = re.compile(r"Traceback \(most recent call last\)|To enable traceback see|^\S{1,200} FAILED$")
_NOTHING_READ = "Nothing was read: see the error."
_NOTHING_WRITTEN = "Nothing is written in it: look at the job's other logs, and at Slurm's words on how it ended."
MOST_FOR, MOST_AGAINST = 6, 3  # lines that are shown
MOST_TOLD = 8  # files of which it is said that they were not read
MOST_UNREAD = 8  # lines that are shown where none was recognised


@click.command()
@click.argument("paths", nargs=-1, required=True, type=GivenPath())
@click.option("--json", "as_json", is_flag=True, help="One JSON object per path.")
@click.option(
    "--source",
    type=click.Choice(["auto", "job", "kernel", "slurm", "dcgm"]),
    default="auto",
    show_default=True,
    help="Who wrote the files. Only kernel, slurm and dcgm output can name a node to drain.",
)
@click.option("--node", default=None, help="Node that the files come from, where their lines do not say it.")
@rules_option("Site rules: file or folder.")
def classify(paths: tuple[Path, ...], as_json: bool, source: str, node: str | None, rules_path: Path | None) -> None:
    """Judge a log, or a folder holding one failure's logs and outputs.

    \b
    Examples:
      sentinel classify slurm-4711.out
      sentinel classify --json failure-folder/ | jq .cause
      sentinel classify --source kernel --node gpu017 dmesg.txt
      journalctl -k -o short-iso | sentinel classify --source kernel -

    A folder is one failure. Exit status: 0 judged (also when the cause is unknown), 2 a path, or a log in a folder, could
    not be read; the rest is judged.
    """
    from sentinel.adapters.hyperscan import best_screen
    from sentinel.cli.offline.parallel_logs import together
    from sentinel.cli.offline.unread_lines import with_unread
    from sentinel.config.rules_files import load_rules
    from sentinel.evidence.logs.reader import Signatures

    signatures = Signatures(with_unread(load_rules(site=rules_path)), best_screen)
    now = datetime.now(UTC)
    failed = False
    judge = partial(judge_path, signatures=signatures, now=now, source=source, node=node)
    for answer in judged_together(judge, paths) if together(paths) else map(judge, paths):
        failed = failed or "error" in answer or "unreadable" in answer
        if as_json:
            click.echo(json.dumps(answer, ensure_ascii=False))
        else:
            _print(answer)
    if failed:
        raise SystemExit(2)


def judged_together(judge: Callable[[Path], dict[str, Any]], paths: Sequence[Path]) -> list[dict[str, Any]]:
    """The answers of long files, on all cores; all of them at once, since their lines would be drawn into the bar."""
    from sentinel.cli.offline.parallel_logs import on_all_cores
    from sentinel.cli.offline.progress_bar import byte_bar

    sizes = [path.stat().st_size for path in paths]
    answers = []
    with byte_bar(f"{len(paths)} logs", sum(sizes)) as advance:
        for size, answer in zip(sizes, on_all_cores(judge, paths), strict=True):
            answers.append(answer)
            advance(size)
    return answers


def judge_path(
    path: Path, signatures: Signatures, now: datetime, *, source: str = "auto", node: str | None = None
) -> dict[str, Any]:
    """The JSON answer for one path; what cannot be read is answered as unknown, with ``error``."""
    return judge_paths([path], signatures, now, source=source, node=node)


def judge_paths(
    paths: Sequence[Path], signatures: Signatures, now: datetime, *, source: str = "auto", node: str | None = None
) -> dict[str, Any]:
    """The same for the paths of one failure together; the first one names the answer."""
    from sentinel.classify import classify as judge
    from sentinel.cli.offline.classify_input import read_path
    from sentinel.model.records import Incident, Restart

    evidence: list[Evidence] = []
    problems: list[str] = []
    left_out: list[str] = []
    empty = True
    for path in paths:
        found = read_path(path, signatures, now, source=source, node=node)
        evidence += found.evidence
        problems += found.problems
        left_out += found.left_out
        empty = empty and found.empty
    nodes = tuple(dict.fromkeys(e.where.node for e in evidence if e.where.node))
    incident = Incident("offline", now, now, nodes=nodes, evidence=tuple(evidence))
    answer = answer_of(str(paths[0]), judge(incident, rules=signatures.rules, now=now), incident)
    if problems:
        answer["error" if not evidence else "unreadable"] = _told(problems)
    elif empty:
        answer["empty"] = True
    if left_out:
        answer["left_out"] = _told(left_out)
    if "error" in answer or "empty" in answer:  # nothing was judged: nothing says that a restart would help
        answer |= {"restart": Restart.NONE.value, "advice": _NOTHING_READ if problems else _NOTHING_WRITTEN}
    return answer


def _told(reasons: Sequence[str]) -> str:
    more = f"; and {len(reasons) - MOST_TOLD} more" if len(reasons) > MOST_TOLD else ""
    return "; ".join(reasons[:MOST_TOLD]) + more


def answer_of(path: str, verdict: Verdict, incident: Incident) -> dict[str, Any]:
    """DESIGN.md's public form; fields may be added, not renamed."""
    from sentinel.model.records import Cause
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
        "recommendation": verdict.recommendation.value,
        "unknown_kind": verdict.unknown_kind.value if verdict.unknown_kind is not None else None,
        "unread": _unread(incident) if verdict.cause is Cause.UNKNOWN else [],
    }


def _unread(incident: Incident) -> list[dict[str, Any]]:
    """The first and the last lines that look like errors and that no rule knows; mere headlines where no other is there."""
    from sentinel.classify.unanswered import UNREAD

    unread = [item for item in incident.evidence if item.kind == UNREAD]
    lines = [item for item in unread if not _HEADLINE.search(item.text)] or unread
    shown = lines if len(lines) <= MOST_UNREAD else [*lines[: MOST_UNREAD // 2], *lines[-MOST_UNREAD // 2 :]]
    return [{"line": _line(item), "text": item.text, "file": item.where.path} for item in shown]


def _line(evidence: Any) -> Any:
    """Of the log itself, where records of several lines were read as the lines that they hold."""
    return evidence.data.get(LOG_LINE, evidence.line)


def _ground(ground: Any) -> dict[str, Any]:
    evidence = ground.evidence
    return {
        "line": _line(evidence),
        "kind": evidence.kind,
        "text": evidence.text,
        "rule": evidence.rule,
        "trust": evidence.trust.value,
        "weight": ground.weight,
        "note": ground.note,
        "file": evidence.where.path,
    }


def _print(answer: dict[str, Any]) -> None:
    """For people: the verdict, its grounds and what would change it. Names of files are somebody's text."""
    from sentinel.cli.operator.output import say

    for line in _lines(answer):
        text = line.lstrip(" ")
        say(text, line[: len(line) - len(text)])
    if answer.get("error") and answer["path"] != "-":
        say("do: name a log, or a folder with the logs of one failure", "  ")


def _lines(answer: dict[str, Any]) -> list[str]:
    from sentinel.text import visible

    path = visible(answer["path"])
    if answer.get("empty"):
        lines = [f"{path}: unknown: the log is empty"]
    elif answer["unknown_kind"]:
        lines = [f"{path}: unknown: {answer['unknown_kind'].replace('_', ' ')}"]
    else:
        confidence = f"confidence {answer['confidence']:.2f}"
        lines = [f"{path}: {answer['cause']} ({answer['scope']}), {confidence}"]
    if answer.get("error"):
        lines.append(f"  cannot be judged: {visible(answer['error'], 4096)}")
        return lines
    lines += [f"  not read: {visible(answer[key], 4096)}" for key in ("unreadable", "left_out") if answer.get(key)]
    if answer["drain"]:
        lines.append(f"  drain: {visible(', '.join(answer['drain']))}")
    elif answer["recommendation"] == "drain":
        lines.append("  drain: the node these lines come from, once its own kernel log or a diagnostic agrees")
    if answer["suspect"]:
        lines.append(f"  suspect: {visible(', '.join(answer['suspect']))}")
    lines.extend(_unsure(answer))
    lines.append(f"  restart: {answer['restart']}; {answer['advice']}")
    lines.extend(_ground_lines(answer))
    lines.extend(f"  ?        {_place(answer, u)}: {u['text'][:120]}" for u in answer["unread"])
    if answer["alternatives"]:
        others = ", ".join(f"{a['cause']} {a['confidence']:.2f}" for a in answer["alternatives"])
        lines.append(f"  else: {others}")
    lines.extend(f"  would change it: {sentence}" for sentence in answer["would_change"])
    return lines


def _unsure(answer: dict[str, Any]) -> list[str]:
    """A line for a verdict on which the daemon, with its settings' defaults, would stop no running job, nor hold one that
    gained steps."""
    from sentinel.config.settings import Judgement, Limits
    from sentinel.model.records import Cause

    least = max(Judgement().act_confidence, Limits().stop_confidence)
    if answer["drain"] or answer["cause"] == Cause.UNKNOWN or answer["confidence"] >= least:
        return []
    others = answer["alternatives"][:1]
    found = [f"{one['cause']} {one['confidence']:.2f}" for one in (answer, *others)]
    return [f"  not sure (below {least:.2f}): {', or '.join(found)}"]


def _ground_lines(answer: dict[str, Any]) -> list[str]:
    """Each line of a log once, with the sum of what it weighs; below it what that is made of, where that is several."""
    by_line: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for ground in (*answer["evidence"], *answer["against"]):
        by_line.setdefault((ground["file"], ground["line"] or ground["text"]), []).append(ground)
    sums = [(sum(ground["weight"] for ground in grounds), grounds) for grounds in by_line.values()]
    shown = [pair for pair in sums if pair[0] >= 0][:MOST_FOR] + [pair for pair in sums if pair[0] < 0][:MOST_AGAINST]
    lines = []
    for weight, grounds in shown:
        sign = "+" if weight >= 0 else "-"
        lines.append(f"  {sign} {abs(weight):5.2f}  {_place(answer, grounds[0])}: {grounds[0]['text'][:120]}")
        if len(grounds) > 1:
            parts = "; ".join(f"{ground['weight']:+.2f} {ground['note'] or ground['rule']}" for ground in grounds)
            lines.append(f"           = {parts}")
    return lines


def _place(answer: dict[str, Any], row: dict[str, Any]) -> str:
    """The line, and of a folder its file."""
    from sentinel.text import visible

    file, line = row["file"], f"line {row['line'] or '-'}"
    if not file or file == answer["path"]:
        return line
    return f"{visible(file.removeprefix(answer['path'].rstrip('/') + '/'))}, {line}"
