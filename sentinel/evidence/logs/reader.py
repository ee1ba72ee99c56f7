"""Log lines -> evidence, streaming, in constant memory.

The same reader serves a 10 GB file and a job's log that grows by a few bytes at a time. One screen over a block of whole
lines finds the lines that rules know; only those are looked at one by one. What a hostile log can make it keep is bounded:
per rule and unit ``limits.LIMIT`` evidences and the last one, then a count.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice

from sentinel.config.rules import LEADING, OWN_LOGS, Form, Role, Rule, Rules
from sentinel.evidence.logs.broken_off import PADDING, broken_off
from sentinel.evidence.logs.frames import BEFORE, framed, is_ignored, text_before, what_was_read
from sentinel.evidence.logs.json_records import unwrapped
from sentinel.evidence.logs.limits import UNIT_LIMIT, Limits
from sentinel.evidence.logs.lines_around import with_lines_around
from sentinel.evidence.logs.machine_logs import of_its_form
from sentinel.evidence.logs.prefixes import DAEMON, clean, clean_own, lines_of_log, prefix_of, time_of
from sentinel.evidence.logs.rank_states import rank_states
from sentinel.evidence.logs.run_starts import RunStarts
from sentinel.evidence.logs.screen.line_templates import WINDOW, HitLine
from sentinel.evidence.logs.signatures import OWN_LINE, Hit, Signatures, first_match, not_silenced, own_hits
from sentinel.evidence.logs.source_lines import is_quoted, says_nothing
from sentinel.evidence.logs.step_numbers import numbers_of, only_read_back, value_of
from sentinel.evidence.logs.timers import TIMERS, Blocks, Report, Timed, data_of
from sentinel.evidence.logs.writers import REACH, text_above
from sentinel.evidence.xid import xid_data
from sentinel.model.rank_states import OP_COUNT, RANK_STATE
from sentinel.model.records import Evidence, Kind, Scalar, Source, Trust, Where, stable_id
from sentinel.model.vocabulary import BROKEN_OFF, LOG_LINE, RUN_START
from sentinel.text import visible, whole_number

__all__ = ["LogReader", "Signatures"]

LINE_LIMIT = 65536  # bytes; a longer line is read in pieces of this size
# Lines with one Xid of one device that are looked at; nodes of a merged log may share the device's address
XID_LIMIT = 128
FORGET_S = 600.0  # while following a live log, the limits above hold for so long
ENOUGH = 4096  # hits of one rule after which its lines are only counted; Xids, which differ by number, are all read
REPORT_S = 10.0  # one report of timers in this time is enough to see who is slow for minutes
STEPS_PER_BLOCK = 96  # a block with more step lines yields the first and last of them, evenly thinned

_ALL_READ = frozenset({Kind.XID, OP_COUNT})  # whose lines differ by number, however many
_SAYS_LITTLE = frozenset({Role.FALLBACK, Role.CONTEXT, Role.PROGRESS})  # beside these a fallback still counts


@dataclass(frozen=True, slots=True)
class _LineHit:
    """A line that a rule knows, with what was read from it; ``before`` is the text up to it, for rules that read frames."""

    hit: Hit
    text: bytes
    before: bytes
    line: int
    now: datetime
    where: Where
    data: dict[str, Scalar]
    log_line: int | None = None  # its line in the log, where ``line`` is another one


class LogReader:
    """Feed it bytes as they come; it answers evidence. ``finish`` reads a last line without its newline."""

    def __init__(
        self,
        rules: Rules | Signatures,
        source: Source = Source.JOB_LOG,
        where: Where | None = None,
        *,
        first_line: int = 1,
        own_times: bool = False,
        bare: bool = False,
        last_steps: int | None = None,
        beginning: bytes | None = b"",
    ) -> None:
        """``own_times``: trust a line's own time even without a zone (an old file); a live log is timed as it is read.
        ``bare``: nothing stands before the messages of a machine's own log.
        ``beginning``: the log's first bytes where what is fed begins later (empty: it begins there); None: not known.
        ``last_steps``: only so many step lines, the last ones, are wanted, and only when the log is read to its end."""
        self._signatures = rules if isinstance(rules, Signatures) else Signatures(rules)
        self._source = source
        self._own = source in OWN_LOGS  # a log of the machine's own
        self._own_times = own_times
        self._bare = bare
        self._last_steps: deque[tuple[int, bytes, HitLine]] | None = deque(maxlen=last_steps) if last_steps else None
        # Of a live log the attempts are known.
        compared = own_times and not self._own and beginning is not None
        self._starts = RunStarts(unwrapped(clean(beginning or b""))[0]) if compared else None
        self._goes_on = False  # the next block begins within a line that was too long
        self._where = where or Where()
        self._pending = b""
        self._above = b""  # the end of what was read, of a program's log: a traceback may stand in two blocks
        self._line = first_line
        self._records: list[int] = []  # of a block with unwrapped records: which of them each line was
        self._of_log: list[int] = []  # of a block with carriage returns: which of the log's lines each one is of
        self._kept = Limits()
        self._kept_since: datetime | None = None
        self._latest: dict[tuple[Trust, str, Where, Scalar], _LineHit] = {}  # of units that have enough, the last one
        self._xids: dict[Trust, dict[tuple[str, str | None, str | None], int]] = defaultdict(dict)
        self._timers = Blocks()
        self._timed_at: dict[str, datetime] = {}  # by form of report
        self.counts: dict[str, int] = {}  # hits per rule, also of those not kept
        self.lines_read = 0
        self.lines_added = 0  # of these, what unwrapped records, and bars, have more than the log has

    def feed(self, data: bytes, now: datetime) -> list[Evidence]:
        cut = data.rfind(b"\n")
        if not self._own:  # a progress bar is many lines; in a machine's own log a carriage return is part of a name
            cut = max(cut, data.rfind(b"\r") if not data.endswith(b"\r") else data.rfind(b"\r", 0, -1))
        if cut < 0:
            self._pending += data
            if len(self._pending) < LINE_LIMIT:
                return []
            block, self._pending = self._pending, b""
            return self._read(block, now, whole=False)
        block = b"".join((self._pending, memoryview(data)[: cut + 1]))
        self._pending = data[cut + 1 :]
        return self._read(block, now, whole=True)

    def finish(self, now: datetime, *, ends: bool = True) -> list[Evidence]:
        """``ends``: the log ends here, not only this part of it."""
        block, self._pending = self._pending, b""
        found = self._read(block, now, whole=True) if block else []
        found += self._broken_off(now) if ends else []
        latest, self._latest = [self._made(said) for said in self._latest.values()], {}
        return found + latest + self._held_steps(now) + self._timed(list(self._timers.finish()), now)

    def _broken_off(self, now: datetime) -> list[Evidence]:
        """What a traceback says with which the log breaks off; the line is the log's last one."""
        end = broken_off(self._above)
        if end is None:
            return []
        self._above = self._above.rstrip(PADDING) + b"\n"
        self._line, self.lines_read = self._line - 1, self.lines_read - 1
        before = text_above(self._above + end.exception, len(self._above), BEFORE)
        frame = end.frame.decode("utf-8", "replace")
        unfinished = self._found(BROKEN_OFF, visible(frame.strip(), None), self._line, now, now, "", {})
        return self._read(end.exception, now, whole=True) or [framed(unfinished, before)]

    def _read(self, block: bytes, now: datetime, *, whole: bool) -> list[Evidence]:
        self._of_log = [] if self._own else lines_of_log(block)
        block = clean_own(block) if self._own else clean(block)
        count = block.count(b"\n") + (whole and not block.endswith(b"\n"))
        block, self._records = unwrapped(block) if whole and not self._own else (block, [])
        self._forget(now)
        lines, steps = self._signatures.screen.hit_lines(block, self._wanted_steps)
        timers = self._signatures.timers  # their lines are read as one report
        said = [line for line in lines if any(index not in timers for index, _ in line.hits)]
        added = len(self._records) - count if self._records else 0
        bars = len(self._of_log) - 1 - self._of_log[-1] if self._of_log else 0
        found = self._begun(block, count + added, now) + (
            self._confirm(block, said, steps, now) if said or steps else []
        )
        live = not self._own and not self._own_times  # an old file's timers say nothing of who is slow now
        heads = [line.start + at for line in lines for index, at in line.hits if index in timers] if live else []
        if heads or self._timers.open:
            found.extend(self._timed(self._timers.read(block, heads, now), now))
        self._goes_on = not whole
        self._above = b"" if self._own else (self._above + block if len(block) < REACH else block)[-REACH:]
        self._line += count + added
        self.lines_read += count + added
        self.lines_added += added + bars
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
        return self._found(TIMERS, "timers across ranks", self._line, at, now, report.form, data_of(report))

    def _begun(self, block: bytes, lines: int, now: datetime) -> list[Evidence]:
        starts = self._starts.last(block, lines) if self._starts is not None else []
        told = [(self._line + start.line, {"followed": start.followed}) for start in starts]
        return [self._found(RUN_START, "begins anew", line, now, now, "", data) for line, data in told]

    def _found(
        self, kind: str, text: str, line: int, at: datetime, now: datetime, form: str, data: Mapping[str, Scalar]
    ) -> Evidence:
        """Evidence that no rule gives."""
        where = self._where
        key = stable_id(self._source, where.path, where.job, where.attempt, line, kind, form)
        return Evidence(key, at, now, self._source, kind, where, text, line=line, data=data)

    def _forget(self, now: datetime) -> None:
        """What was kept long ago does not silence what a job that runs for weeks says now."""
        if self._kept_since is None or (now - self._kept_since).total_seconds() > FORGET_S:
            self._kept.clear()
            self._latest.clear()
            self._xids.clear()
            self.counts.clear()
            self._kept_since = now

    def _confirm(self, block: bytes, lines: list[HitLine], steps: list[HitLine], now: datetime) -> list[Evidence]:
        if self._last_steps is not None:
            self._last_steps.extend((self._line + line.number, block[line.start : line.end], line) for line in steps)
            steps = []
        found: list[Evidence] = []
        block, above = self._above + block, len(self._above)
        for line in sorted((*lines, *steps)):
            start = above + line.start
            batch = [(index, start + max(at - 1, 0)) for index, at in line.hits]
            found.extend(self._line_evidence(block, start, above + line.end, batch, self._line + line.number, now))
        return found

    def _log_line(self, line: int) -> int | None:
        """The line's number in the log, where records of several lines, or bars, made it another one; of this block only."""
        number = line - self._line
        if not (self._records or self._of_log or self.lines_added) or number < 0:
            return None
        own = self._records[number] if self._records else number  # of the block's own lines
        of_log = line - self.lines_added - number + (self._of_log[own] if self._of_log else own)
        return of_log if of_log != line else None

    def _wanted_steps(self, numbers: Iterator[int]) -> Iterable[int]:
        """Of the step lines of a block: the last ones where only these are asked for, else some, evenly, with the last."""
        if self._last_steps is not None:
            return islice(numbers, self._last_steps.maxlen)
        every = list(numbers)
        return every[:: -(-len(every) // STEPS_PER_BLOCK)] if every else ()

    def _held_steps(self, now: datetime) -> list[Evidence]:
        """Evidence of the last step lines, where only these are asked for."""
        found: list[Evidence] = []
        for number, text, line in self._last_steps or ():
            batch = [(index, max(at - 1, 0)) for index, at in line.hits]
            found.extend(self._line_evidence(text, 0, len(text), batch, number, now))
        return found

    def _line_evidence(
        self, block: bytes, start: int, end: int, batch: list[tuple[int, int]], line: int, now: datetime
    ) -> list[Evidence]:
        hits = (self._said if self._own else self._printed)(block, start, end, batch)
        known = any(hit.compiled.rule.role not in _SAYS_LITTLE for hit in hits)
        found = []
        for hit in hits:
            if known and hit.compiled.rule.role is Role.FALLBACK:
                continue
            before = text_before(block, start, hit.compiled.rule)
            text = block[start:end][:OWN_LINE] if self._own else hit.searched
            evidence = self._evidence(hit, text, before, line, now)
            if evidence is not None:
                found.append(
                    evidence if self._own else with_lines_around(evidence, hit.compiled.rule, block, start, end)
                )
        return found

    def _printed(self, block: bytes, start: int, end: int, batch: list[tuple[int, int]]) -> list[Hit]:
        """Rules that know a line which a program printed."""
        hits: list[Hit] = []
        if block.startswith((b"# HELP ", b"# TYPE "), start):
            return hits  # an exporter's words on a metric, not its value
        head = block[start : min(end, start + 400)]
        told = b"NCCL INFO" in head and b"NCCL WARN" not in head  # what NCCL looked for and did without is no fault
        outright = any(self._signatures.compiled[index].rule.role in LEADING for index, _ in batch)
        quoted = outright and is_quoted(block, start, min(end, start + 400))
        daemons = DAEMON.match(block, start, min(end, start + 400)) is not None
        for index, at in batch:
            compiled = self._signatures.compiled[index]
            source = quoted and compiled.rule.role in LEADING
            if (source or (daemons and compiled.rule.of_users)) and compiled.rule.form is Form.PROGRAM:
                continue
            if told and compiled.rule.role not in {Role.CONSEQUENCE, Role.PROGRESS}:
                continue
            if says_nothing(block, start, min(end, start + 400), compiled.rule):
                continue
            if not self._counted(compiled.rule):
                continue
            low, high = max(start, at - WINDOW), min(end, at + WINDOW)
            window = block[low:high]
            if match := first_match(compiled, window, own=False):
                text = window.decode("utf-8", "replace")
                hits.append(Hit(compiled, match, window, text, prefix_of(text).node, Trust.SYSTEM))
        return not_silenced(hits)

    def _said(self, block: bytes, start: int, end: int, batch: list[tuple[int, int]]) -> list[Hit]:
        """Rules that know a line of a machine's own log."""
        if not batch or (start == 0 and self._goes_on):
            return []  # the beginning of a line says whose it is
        candidates = [self._signatures.compiled[index] for index, _ in batch]
        hits = own_hits(self._source, block[start:end], candidates, bare=self._bare)
        return [hit for hit in hits if self._counted(hit.compiled.rule)]

    def _counted(self, rule: Rule) -> bool:
        """Counts one more line of this rule; False from where on its lines are only counted."""
        count = self.counts[rule.id] = self.counts.get(rule.id, 0) + 1
        return count <= ENOUGH or rule.role is Role.PROGRESS or rule.kind in _ALL_READ

    def _evidence(self, hit: Hit, line_text: bytes, before: bytes, line: int, now: datetime) -> Evidence | None:
        compiled, rule = hit.compiled, hit.compiled.rule
        groups = {name: value for name, value in hit.match.groupdict().items() if value is not None}
        if compiled.capture is not None and (more := compiled.capture.search(hit.searched)):
            groups.update({name: value for name, value in more.groupdict().items() if value is not None})
        fields = {name: value.decode("utf-8", "replace")[:256] for name, value in groups.items()}
        kind = rule.kind
        if kind == TIMERS:
            return None  # its lines are read as one report
        if kind == Kind.STEP and only_read_back(hit.searched, hit.match.start(), fields):
            return None
        if kind == Kind.XID and not self._worth(hit, fields):
            return None
        searched = hit.searched.decode("utf-8", "replace")
        where, data = self._place(hit, fields, searched, kind)
        data = {**data, **xid_data(fields, searched)} if kind == Kind.XID else data
        taken = True if rule.role is Role.PROGRESS else self._kept.takes(hit.trust, rule.id, where, data)
        line_hit = _LineHit(hit, line_text, before, line, now, where, data, self._log_line(line))
        if taken is None:  # a log may hold several runs: what the last one says is still to come
            self._latest[hit.trust, rule.id, where, data.get("comm")] = line_hit
        return self._made(line_hit) if taken else None

    def _made(self, said: _LineHit) -> Evidence:
        hit, where, data, now = said.hit, said.where, said.data, said.now
        text, rule = said.text.decode("utf-8", "replace"), hit.compiled.rule
        data = {**data, **of_its_form(self._source, hit.head), **hit.data}
        if said.log_line is not None:
            data = {**data, LOG_LINE: said.log_line}
        at = time_of(hit.head, zoned=not self._own_times)
        evidence = Evidence(
            id=stable_id(
                self._source, self._where.path, self._where.job, self._where.attempt, said.line, rule.id, text[:200]
            ),
            at=at if at is not None and at <= now else now,
            seen_at=now,
            source=self._source,
            kind=rule.kind,
            where=where,
            text=visible(text.strip()[:512], None),
            rule=rule.id,
            line=said.line,
            data=data,
            trust=hit.trust,
        )
        if rule.frame:
            return framed(evidence, said.before)
        if rule.content and (reads := what_was_read(said.before)):
            evidence = replace(evidence, data={**evidence.data, "reads": reads})
        ignored = rule.form is Form.PROGRAM and rule.role in LEADING and is_ignored(said.text, said.before)
        return replace(evidence, data={**evidence.data, "ignored": True}) if ignored else evidence

    def _worth(self, hit: Hit, fields: dict[str, str]) -> bool:
        """Whether an Xid line is worth reading: one number of one device a hundred times over says nothing new."""
        device = (hit.compiled.rule.id, fields.get("pci"), fields.get("xid"))
        xids = self._xids[hit.trust]
        seen = xids.get(device, 0)
        if seen >= XID_LIMIT or (not seen and len(xids) >= UNIT_LIMIT):
            return False
        xids[device] = seen + 1
        return True

    def _place(self, hit: Hit, fields: dict[str, str], text: str, kind: str) -> tuple[Where, dict[str, Scalar]]:
        """Who and where: what the rule captured, then the line's prefix, then what the reader was told."""
        told = None if self._own else prefix_of(text).rank  # of a machine's own log only a rule knows a rank
        data: dict[str, Scalar] = {}
        for name, value in fields.items():
            if name in {"node", "rank", "gpu", "nic"}:
                continue
            data[name] = value_of(name, value)
        took = "step_time_s" if kind == Kind.STEP else "time_s"  # what a save took is no step's time
        if "time_ms" in data and isinstance(data["time_ms"], (int, float)):
            data[took] = float(data.pop("time_ms") or 0) / 1000
        elif "time_s" in data:
            data[took] = data.pop("time_s")
        if kind == Kind.STEP:
            data.update(numbers_of(text))
        if kind == RANK_STATE:
            states = rank_states(text)
            told = states[0].rank if len(states) == 1 else told
            data["states"] = "".join(f"{state.packed()};" for state in states)
        rank = _whole(fields.get("rank"))
        where = replace(
            self._where,
            node=fields.get("node") or hit.node or self._where.node,
            gpu=_whole(fields.get("gpu")) if "gpu" in fields else self._where.gpu,
            rank=rank if rank is not None else (told if told is not None else self._where.rank),
            nic=fields.get("nic") or self._where.nic,
        )
        return where, data


def _whole(text: str | None) -> int | None:
    return whole_number(text, digits=6) if text is not None else None
