"""Log lines -> evidence, streaming, in constant memory.

The same reader serves a 10 GB file and a job's log that grows by a few bytes at a time. One screen over a block of whole
lines finds the lines that rules know; only those are looked at one by one. What a hostile log can make it keep is bounded:
per rule and unit ``LIMIT`` evidences, then a count.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from sentinel.evidence.bad_numbers import numbers_of
from sentinel.evidence.launcher import BLOCK, first_failure
from sentinel.evidence.lines import clean, prefix_of, time_of, uptime_of, visible
from sentinel.evidence.screen import PlainScreen, Screen
from sentinel.evidence.timers import TIMERS, Blocks, Report, Timed, data_of
from sentinel.evidence.xid import xid_data
from sentinel.model import Evidence, Kind, Scalar, Source, Trust, Where, stable_id
from sentinel.rules import Form, Role, Rule, Rules

LINE_LIMIT = 65536  # bytes; a longer line is read in pieces of this size
WINDOW = 2048  # bytes around a hit that are looked at
LIMIT = 6  # evidences kept per rule and unit; further ones are counted
XID_LIMIT = (
    128  # lines with one Xid of one device that are looked at; nodes of a merged log may share the device's address
)
UNIT_LIMIT = 2048  # rules times units kept
FORGET_S = 600.0  # while following a live log, the limits above hold for so long
ENOUGH = 4096  # hits of one rule after which its lines are only counted; Xids, which differ by number, are all read
FIRST_FAILURE = "first-failure"  # a launcher's headline; the worker it means stands in the lines behind it
REPORT_S = 10.0  # one report of timers in this time is enough to see who is slow for minutes
STEPS_PER_BLOCK = 96  # a block with more step lines yields the first and last of them, evenly thinned

# A machine's own log is read with the rules of its form; a job's log may quote any of them.
FORMS = {
    Source.KERNEL: frozenset({Form.KERNEL, Form.FABRIC, Form.STORAGE}),
    Source.SLURM: frozenset({Form.SLURM}),
    Source.DCGM: frozenset({Form.DCGM, Form.KERNEL}),
}

# A line of source that a traceback quotes names an error that may never have happened.
_QUOTED = re.compile(
    rb"[^\n]{0,60}?(?: {4,}|\t)(?:raise|if|elif|return|except|assert|with|for|while|yield|warnings\.warn)[ (]"
    rb"[^\n]{0,200}(?:[(:,\[{]|\))\s*$",
    re.MULTILINE,
)
# Words before the number of a step that say where a job takes up, not what it has gained.
_READ_BACK = re.compile(
    rb"(?i)\b(?:resum(?:e|ed|ing)|(?:re)?load(?:ed|ing)?|restor(?:ed|ing)|continu(?:e|ing))\b[^|\n]{0,120}"
    rb"\b(?:from|at|checkpoint|ckpt|state)\b"
)
_OUTRIGHT = frozenset({Role.CAUSE, Role.SYMPTOM, Role.FALLBACK})
Matcher = Callable[[Sequence[str]], Screen]


@dataclass(slots=True)
class _Compiled:
    rule: Rule
    pattern: re.Pattern[bytes]
    capture: re.Pattern[bytes] | None


class Signatures:
    """Rules compiled for reading: make one, share it between readers."""

    def __init__(self, rules: Rules, matcher: Matcher = PlainScreen) -> None:
        self.rules = rules
        self.compiled = [
            _Compiled(rule, rule.compiled(), re.compile(rule.capture.encode()) if rule.capture else None)
            for rule in rules.rules
        ]
        self.progress = frozenset(i for i, c in enumerate(self.compiled) if c.rule.role is Role.PROGRESS)
        self.timers = frozenset(i for i, c in enumerate(self.compiled) if c.rule.kind == TIMERS)
        self.screen = matcher([rule.pattern for rule in rules.rules])


class LogReader:
    """Feed it bytes as they come; it answers evidence. ``finish`` reads a last line without its newline."""

    def __init__(
        self,
        rules: Rules | Signatures,
        matcher: Matcher = PlainScreen,
        source: Source = Source.JOB_LOG,
        where: Where | None = None,
        *,
        trust: Trust = Trust.SYSTEM,
        first_line: int = 1,
        own_times: bool = False,
    ) -> None:
        """``own_times``: trust a line's own time even without a zone (an old file); a live log is timed as it is read."""
        self._signatures = rules if isinstance(rules, Signatures) else Signatures(rules, matcher)
        self._source = source
        self._forms = FORMS.get(source)
        self._trust = trust
        self._own_times = own_times
        self._where = where or Where()
        self._pending = b""
        self._line = first_line
        self._kept: dict[tuple[str, object], int] = {}
        self._kept_since: datetime | None = None
        self._xids: dict[tuple[str, str | None, str | None], int] = {}
        self._timers = Blocks()
        self._timed_at: dict[str, datetime] = {}  # by form of report
        self.counts: dict[str, int] = {}  # hits per rule, also of those not kept
        self.bytes_read = 0
        self.lines_read = 0

    def feed(self, data: bytes, now: datetime) -> list[Evidence]:
        self.bytes_read += len(data)
        cut = max(data.rfind(b"\n"), data.rfind(b"\r") if not data.endswith(b"\r") else data.rfind(b"\r", 0, -1))
        if cut < 0:
            self._pending += data
            if len(self._pending) < LINE_LIMIT:
                return []
            block, self._pending = self._pending, b""
            return self._read(block, now, whole=False)
        block = self._pending + data[: cut + 1]
        self._pending = data[cut + 1 :]
        return self._read(block, now, whole=True)

    def finish(self, now: datetime) -> list[Evidence]:
        block, self._pending = self._pending, b""
        found = self._read(block, now, whole=True) if block else []
        return found + self._timed(list(self._timers.finish()), now)

    def _read(self, block: bytes, now: datetime, *, whole: bool) -> list[Evidence]:
        block = clean(block)
        self._forget(now)
        hits = self._signatures.screen.scan(block)
        found = self._confirm(block, hits, now) if hits else []
        live = self._forms is None and not self._own_times  # an old file's timers say nothing of who is slow now
        heads = [end for index, end in hits if index in self._signatures.timers] if live else []
        if heads or self._timers.open:
            found.extend(self._timed(self._timers.read(block, heads, now), now))
        count = block.count(b"\n") + (whole and not block.endswith(b"\n"))
        self._line += count
        self.lines_read += count
        return found

    def _timed(self, reports: list[Timed], now: datetime) -> list[Evidence]:
        """Evidence of the newest report of timers of each form, unless one of it was passed on a moment ago."""
        newest = {report.form: (at, report) for at, report in reports}
        return [self._report(*newest[form], now) for form in newest if self._due(form, newest[form][0])]

    def _due(self, form: str, at: datetime) -> bool:
        last = self._timed_at.get(form)
        if last is not None and 0 <= (at - last).total_seconds() < REPORT_S:
            return False
        self._timed_at[form] = at
        return True

    def _report(self, at: datetime, report: Report, now: datetime) -> Evidence:
        where = self._where
        return Evidence(
            id=stable_id(self._source, where.path, where.job, where.attempt, self._line, TIMERS, report.form),
            at=at,
            seen_at=now,
            source=self._source,
            kind=TIMERS,
            where=where,
            text="timers across ranks",
            line=self._line,
            data=data_of(report),
            trust=self._trust,
        )

    def _forget(self, now: datetime) -> None:
        """What was kept long ago does not silence what a job that runs for weeks says now."""
        if self._kept_since is None or (now - self._kept_since).total_seconds() > FORGET_S:
            self._kept.clear()
            self._xids.clear()
            self.counts.clear()
            self._kept_since = now

    def _confirm(self, block: bytes, hits: list[tuple[int, int]], now: datetime) -> list[Evidence]:
        hits = self._thin(hits)
        found: list[Evidence] = []
        line, start, end = self._line, 0, -1
        seen: set[int] = set()
        batch: list[tuple[int, int]] = []
        hits.sort(key=lambda hit: hit[1])
        for index, hit_end in hits:
            at = max(hit_end - 1, 0)
            if at > end:
                found.extend(self._line_evidence(block, start, end, batch, line, now))
                batch, seen = [], set()
                begin = block.rfind(b"\n", 0, at) + 1
                line += block.count(b"\n", start, begin)
                start = begin
                end = block.find(b"\n", at)
                end = len(block) if end < 0 else end
            if index not in seen:
                seen.add(index)
                batch.append((index, at))
        found.extend(self._line_evidence(block, start, end, batch, line, now))
        return found

    def _thin(self, hits: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """At most STEPS_PER_BLOCK step lines of a block, the last one among them."""
        progress = self._signatures.progress
        if len(hits) <= STEPS_PER_BLOCK:
            return hits
        steps = [hit for hit in hits if hit[0] in progress]
        if len(steps) <= STEPS_PER_BLOCK:
            return hits
        stride = -(-len(steps) // STEPS_PER_BLOCK)
        kept = steps[-1::-stride]
        return [hit for hit in hits if hit[0] not in progress] + kept

    def _line_evidence(
        self, block: bytes, start: int, end: int, batch: list[tuple[int, int]], line: int, now: datetime
    ) -> list[Evidence]:
        matched: list[tuple[_Compiled, re.Match[bytes], bytes]] = []
        told = b"NCCL INFO" in block[start : min(end, start + 400)]  # what NCCL looked for and did without is no fault
        quoted = _QUOTED.match(block, start, min(end, start + 400)) is not None
        for index, at in batch:
            compiled = self._signatures.compiled[index]
            if quoted and compiled.rule.role in _OUTRIGHT and compiled.rule.form is Form.PROGRAM:
                continue
            if told and compiled.rule.role not in {Role.CONSEQUENCE, Role.PROGRESS}:
                continue
            if self._forms is not None and compiled.rule.form not in self._forms:
                continue
            count = self.counts[compiled.rule.id] = self.counts.get(compiled.rule.id, 0) + 1
            if count > ENOUGH and compiled.rule.role is not Role.PROGRESS and compiled.rule.kind != Kind.XID:
                continue
            low, high = max(start, at - WINDOW), min(end, at + WINDOW)
            window = block[low:high]
            hit = compiled.pattern.search(window)
            if hit is not None:
                matched.append((compiled, hit, window))
        known = any(compiled.rule.role not in {Role.FALLBACK, Role.PROGRESS} for compiled, _, _ in matched)
        found = []
        for compiled, hit, window in matched:
            if known and compiled.rule.role is Role.FALLBACK:
                continue
            evidence = self._evidence(compiled, hit, window, line, now)
            if evidence is not None and evidence.kind == FIRST_FAILURE:
                evidence = _named(evidence, block[end : end + BLOCK])
            if evidence is not None:
                found.append(evidence)
        return found

    def _evidence(
        self, compiled: _Compiled, hit: re.Match[bytes], window: bytes, line: int, now: datetime
    ) -> Evidence | None:
        rule = compiled.rule
        groups = {name: value for name, value in hit.groupdict().items() if value is not None}
        if compiled.capture is not None and (more := compiled.capture.search(window)):
            groups.update({name: value for name, value in more.groupdict().items() if value is not None})
        fields = {name: value.decode("utf-8", "replace")[:256] for name, value in groups.items()}
        kind = rule.kind
        if kind == TIMERS:
            return None  # its lines are read as one report
        if kind == Kind.STEP and _only_read_back(window, hit.start(), fields):
            return None
        if kind == Kind.XID and not self._worth(rule.id, fields):
            return None
        text = window.decode("utf-8", "replace")
        where, data = self._place(fields, text, kind)
        if kind == Kind.XID:
            data = {**data, **xid_data(fields, text)}
        if rule.role is not Role.PROGRESS:
            unit = (rule.id, (where.node, where.rank, where.gpu, data.get("pci"), data.get("xid"), data.get("peer")))
            seen = self._kept.get(unit, 0)
            if seen >= LIMIT or (not seen and len(self._kept) >= UNIT_LIMIT):
                return None
            self._kept[unit] = seen + 1
        if (uptime := uptime_of(text)) is not None:
            data["uptime_s"] = uptime
        at = time_of(text, zoned=not self._own_times)
        return Evidence(
            id=stable_id(
                self._source, self._where.path, self._where.job, self._where.attempt, line, rule.id, text[:200]
            ),
            at=at if at is not None and at <= now else now,
            seen_at=now,
            source=self._source,
            kind=kind,
            where=where,
            text=visible(text.strip()[:512]),
            rule=rule.id,
            line=line,
            data=data,
            trust=self._trust,
        )

    def _worth(self, rule: str, fields: dict[str, str]) -> bool:
        """Whether an Xid line is worth reading: one number of one device a hundred times over says nothing new."""
        device = (rule, fields.get("pci"), fields.get("xid"))
        seen = self._xids.get(device, 0)
        if seen >= XID_LIMIT or (not seen and len(self._xids) >= UNIT_LIMIT):
            return False
        self._xids[device] = seen + 1
        return True

    def _place(self, fields: dict[str, str], text: str, kind: str) -> tuple[Where, dict[str, Scalar]]:
        """Who and where: what the rule captured, then the line's prefix, then what the reader was told."""
        prefix = prefix_of(text)
        data: dict[str, Scalar] = {}
        for name, value in fields.items():
            if name in {"node", "rank", "gpu", "nic"}:
                continue
            data[name] = number(value) if name in _NUMBERS else value
        took = "step_time_s" if kind == Kind.STEP else "time_s"  # what a save took is no step's time
        if "time_ms" in data and isinstance(data["time_ms"], (int, float)):
            data[took] = float(data.pop("time_ms") or 0) / 1000
        elif "time_s" in data:
            data[took] = data.pop("time_s")
        if kind == Kind.STEP:
            data.update(numbers_of(text))
        rank = _whole(fields.get("rank"))
        where = replace(
            self._where,
            node=fields.get("node") or prefix.node or self._where.node,
            gpu=_whole(fields.get("gpu")) if "gpu" in fields else self._where.gpu,
            rank=rank if rank is not None else (prefix.rank if prefix.rank is not None else self._where.rank),
            nic=fields.get("nic") or self._where.nic,
        )
        return where, data


def _only_read_back(line: bytes, at: int, fields: Mapping[str, str]) -> bool:
    """Whether the step at ``at`` is that of a checkpoint which is being read: no step was gained by it."""
    return (
        not fields.keys() & {"loss", "time_s", "time_ms"} and _READ_BACK.search(line, max(0, at - 200), at) is not None
    )


def _named(evidence: Evidence, behind: bytes) -> Evidence:
    """Rank, host and status of the worker that the lines behind the headline name."""
    first = first_failure(behind)
    where = replace(
        evidence.where,
        node=first.host or evidence.where.node,
        rank=first.rank if first.rank is not None else evidence.where.rank,
    )
    return replace(evidence, where=where, data={**evidence.data, **first.data})


_NUMBERS = frozenset(
    {
        "xid", "sxid", "step", "total", "loss", "time_s", "time_ms", "pid",
        "action", "signal", "exit_code", "gib_tried", "gib_total", "gib_used",
    }
)  # fmt: skip


def number(text: str) -> float | int | None:
    """The number that a captured field holds; None where it is none (\"nan\" and \"inf\" are numbers)."""
    text = text.replace(",", "").strip().rstrip(".")
    try:
        return int(text)
    except ValueError:
        try:
            return float(text)
        except ValueError:
            return None


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() and len(text) < 7 else None
