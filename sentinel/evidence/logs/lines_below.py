"""What the lines right below a line say of it: who failed, in which frame, whether the program caught it and went on."""

from __future__ import annotations

import re
from dataclasses import replace

from sentinel.config.rules import Form, Rule
from sentinel.evidence.logs.frames import STACK, crashed_in
from sentinel.evidence.logs.launcher import BLOCK, named
from sentinel.evidence.logs.python_lines import OUTRIGHT
from sentinel.evidence.logs.writers import text_below
from sentinel.model.records import Evidence
from sentinel.model.vocabulary import CAUGHT, CRASH_STACK, INTERPRETED

FIRST_FAILURE = "first-failure"  # a launcher's headline; the worker it means stands in the lines behind it
NEXT = 300  # bytes in which the next line is looked for
_TOOLS = frozenset({Form.PROGRAM, Form.SLURM, Form.TOOL})
_CAUGHT = re.compile(
    rb"(?i)\b(?:attempt|retry|try) \d{1,3}(?:/\d{1,3})? (?:ok\b|succeed)|\b(?:recovered|reconnected)\b"
    rb"|\bfall(?:s|ing)? back\b|\bskipp(?:ed|ing)\b|\bcontinuing\b|\bignor(?:ed|ing)\b|\b(?:re)?trying\b|\bretry \d"
    rb"|\b(?:us(?:e|ing)|load(?:ed|ing)|switch(?:ed|ing) to|going to) [^\n]{1,60}?\b(?:instead|local|cached?|defaults?)\b"
    rb"|\b[Ss]etting [A-Z]\w{1,40} to \S|\bwill (?:retry|skip|ignore|continue|be (?:retried|skipped|ignored))\b"
)
_INTERPRETED = re.compile(rb"[^\n]{0,100}?During handling of the above exception, another exception occurred")
_GAVE_UP = re.compile(rb"\b(?i:giv(?:ing|en) up|abort\w{0,3}|exit(?:ing)?|fail(?:ed|ing|s)?|fatal)\b|[a-z]Error\b")


def with_lines_below(evidence: Evidence, rule: Rule, block: bytes, start: int, end: int) -> Evidence:
    """``evidence`` of the line from ``start`` to ``end``, with what the lines below it say."""
    if evidence.kind == FIRST_FAILURE:
        return named(evidence, text_below(block, start, end, BLOCK))
    if evidence.kind == CRASH_STACK:
        return crashed_in(evidence, text_below(block, start, end, STACK))
    if rule.role not in OUTRIGHT or rule.form not in _TOOLS:
        return evidence
    below = text_below(block, start, end, NEXT).lstrip(b"\n").split(b"\n")[0]
    if _INTERPRETED.match(below):
        return replace(evidence, data={**evidence.data, INTERPRETED: True})
    if _CAUGHT.search(below) and not _GAVE_UP.search(below):
        return replace(evidence, data={**evidence.data, CAUGHT: True})
    return evidence
