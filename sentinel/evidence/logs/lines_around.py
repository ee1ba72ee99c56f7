"""What the lines around a line say of it: who failed, in which frame, whether the program caught it and went on."""

from __future__ import annotations

import re
from dataclasses import replace

from sentinel.config.rules import LEADING, Form, Rule
from sentinel.evidence.logs.frames import STACK, crashed_in
from sentinel.evidence.logs.launcher import BLOCK, named
from sentinel.evidence.logs.writers import REACH, begins_as, line_above, line_below, text_below
from sentinel.model.records import Evidence
from sentinel.model.vocabulary import CAUGHT, CRASH_STACK, INTERPRETED

FIRST_FAILURE = "first-failure"  # a launcher's headline; the worker it means stands in the lines behind it
_HEADER = b"Traceback (most recent call last)"
_EXCEPTION = re.compile(rb"^[^\n]{0,100}?[A-Za-z_][\w.]{1,80}(?:Error|Exception)\b", re.MULTILINE)
_RECORD = re.compile(rb"\b(?:WARN(?:ING)?|ERROR|INFO|warning|error)\b")
NEXT = 300  # bytes of the next line that are looked at
_TOOLS = frozenset({Form.PROGRAM, Form.SLURM, Form.TOOL})
_CAUGHT = re.compile(
    rb"(?i)\b(?:attempt|retry|try) \d{1,3}(?:/\d{1,3})? (?:ok\b|succeed)|\b(?:recovered|reconnected)\b"
    rb"|\bfall(?:s|ing)? back\b"
    rb"|\b(?:skipp(?:ed|ing)|ignor(?:ed|ing)) (?:this|the|that|it\b|bad |corrupt\w* )|\((?:skipped|ignored)\b"
    rb"|\bnot available, skipped\b|\bsampling another\b"
    rb"|\bcontinuing (?:without|anyway|with (?:the )?(?:cpu|local|cached|default))"
    rb"|\bretry(?:ing)?(?: (?:in|after|now|again|\d)|$)|\btrying (?:again|\d|(?:the )?(?:next|previous|older|step))"
    rb"|\b(?:using|switch(?:ed|ing) to) [^\n]{1,60}?\binstead\b"
    rb"|\busing (?:the |a )?(?:local|cached?|previous|older|last good)\b"
)
# Slurm's own way out.
_MOVED = re.compile(rb"\bSetting [A-Z]\w{1,40} to /")
_INTERPRETED = re.compile(rb"[^\n]{0,100}?During handling of the above exception, another exception occurred")
_GAVE_UP = re.compile(
    rb"\b(?i:giv(?:ing|en) up|abort\w{0,3}|exit(?:ing)?|fail(?:ed|ing|s)?|fatal|crash\w{0,3}|unhandled|emergency|died"
    rb"|did not|returned [1-9])\b|[a-z]Error\b|\bException ignored\b"
)


def with_lines_around(evidence: Evidence, rule: Rule, block: bytes, start: int, end: int) -> Evidence:
    """``evidence`` of the line from ``start`` to ``end``, with what the lines around it say."""
    if evidence.kind == FIRST_FAILURE:
        return named(evidence, text_below(block, start, end, BLOCK))
    if evidence.kind == CRASH_STACK:
        return crashed_in(evidence, text_below(block, start, end, STACK))
    if rule.role not in LEADING or rule.form not in _TOOLS:
        return evidence
    below = line_below(block, start, end, NEXT)
    if _INTERPRETED.match(below):
        return replace(evidence, data={**evidence.data, INTERPRETED: True})
    going_on = _MOVED if rule.form is Form.SLURM else _CAUGHT
    above = _above_traceback(block, start, end) if rule.form is Form.PROGRAM else b""
    if any(going_on.search(line) and not _GAVE_UP.search(line) for line in (below, above)):
        return replace(evidence, data={**evidence.data, CAUGHT: True})
    return evidence


def _above_traceback(block: bytes, start: int, end: int) -> bytes:
    """The record above the traceback that the line ends, as a logger prints both; empty where there is none."""
    if not _EXCEPTION.search(block, start, min(end, start + NEXT)):
        return b""
    head = block.rfind(_HEADER, max(0, start - REACH), start)
    if head < 0:
        return b""
    begin = block.rfind(b"\n", 0, head) + 1
    prefix = block[begin:head]
    own = [line for line in block[head:start].split(b"\n")[1:-1] if begins_as(line, prefix)]
    if not all(begins_as(line, prefix + b"  ") for line in own):
        return b""
    above = line_above(block, begin, NEXT).rstrip(b"\n")
    its_begin = block.rfind(b"\n", 0, max(block.rfind(above, 0, begin), 0)) + 1
    further = line_above(block, its_begin, NEXT) if above else b""
    return above if _RECORD.search(above) and not _EXCEPTION.search(further) else b""
