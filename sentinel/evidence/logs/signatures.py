"""Rules compiled for reading, and which of them know a line of a machine's own log."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from sentinel.config.rules import Drain, Form, Rule, Rules
from sentinel.evidence.logs.machine_logs import said
from sentinel.evidence.logs.screen.line_templates import LineTemplates
from sentinel.evidence.logs.screen.prefilter import PlainScreen, Screen
from sentinel.evidence.logs.timers import TIMERS
from sentinel.model.records import Kind, Scalar, Source, Trust
from sentinel.model.vocabulary import ANY_USER

# Bytes of a line of a machine's own log that are read; the kernel's end at 1024, Slurm's lists are longer
OWN_LINE = 8192

# Behind the words of a fault: a counter of faults at zero, which ends its field; or the word no, which ends the line.
_AT_ZERO = re.compile(
    rb"(?:[A-Za-z_%()][\w%()]{0,23})?((?: (?:last|in|since) \w{1,8}(?: \w{1,8})?)?)"
    rb"(?:['\"]?\s{0,40}([:=]|\bdelta\b)\s{0,4}['\"]?0['\"]?\s{0,8}"
    rb"(?:$|[|;)\]}]|, {0,2}[A-Za-z_'\"]| [A-Za-z_]\w{1,40}[:=])"
    rb"| 0\b\s{0,60}(?:$|[|;)\]}]|, {0,2}[A-Za-z_'\"]|PASS\b|OK\b))"
)
_AT_NONE = re.compile(
    rb"(?i)[^\n:=]{0,40}(?:[:=]|\.{2,4})\s{0,4}(?:no|none|ok|false|passed)\.?\s{0,8}$"
    rb"|[^\n|]{0,40}\| {0,4}(?:pass|skip|ok)(?:ed)?(?: - all)?\s{0,80}\|?\s{0,8}$"  # a cell of DCGM's table
)
_QUOTING = re.compile(
    rb"\b(?:[a-z]{2,}|(?i:prompt|sample|example|completion|question|answer):) ['\"`][^'\"`\n]{0,60}$"
    rb"|::test_\w{1,80}\[[^\]\n]{0,60}$"
)
_TOLD = re.compile(rb"(?i:\b(?:info|debug|example|prompt|sample|completion)\b)|::test_")
_WOULD = re.compile(rb"\b(?:otherwise|would (?:abort|fail|stop|exit|end|be|mean)\b[^\n.;]{0,30}:) $")
# A machine's words in a template, or of what was mended long ago.
_NOT_SAID = re.compile(rb"\{\{ ?[.$\w]")
_MENDED = re.compile(
    rb"\b(?:(?:board|card|GPU|DIMM|cable|module|node) (?:was |were |has been )?(?:swapped|exchanged|replaced|repaired)"
    rb"|(?:back|returned) (?:in|to) service|burn-?in ok)\b"
)
_METRIC_AT_ZERO = re.compile(rb"\{[^{}\n]{1,400}\} {1,4}0(?:\.0{1,6})?\s{0,4}$")
_OF_FAULTS = re.compile(
    rb"(?i)(?:err(?:or)?s?|counts?|counters?|totals?|downed|failures?|violations?|events?|retries|drop(?:s|ped)|uncorrect(?:able|ed)"
    rb"|dbe|sbe|throttled?|brake)$"
)
# Without a sign between them a number behind one fault may be its code: "Receive error 0".
_SEVERAL = re.compile(rb"(?i)(?:errors|counts|totals|downed|failures|violations|events|retries|drops|uncorrected)$")

Matcher = Callable[[Sequence[str]], Screen]


class Compiled:
    """A rule whose expressions are compiled when a line first asks for them: most of hundreds never are."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule

    @cached_property
    def pattern(self) -> re.Pattern[bytes]:
        return self.rule.compiled()

    @cached_property
    def capture(self) -> re.Pattern[bytes] | None:
        return re.compile(self.rule.capture.encode()) if self.rule.capture else None

    @cached_property
    def anchors(self) -> Mapping[Source, re.Pattern[bytes]]:
        return {source: re.compile(anchor.encode("ascii")) for source, anchor in self.rule.anchors.items()}


@dataclass(frozen=True, slots=True)
class Hit:
    """A rule that knows a line. ``head`` is where the line's time and host stand."""

    compiled: Compiled
    match: re.Match[bytes]
    searched: bytes
    head: str
    node: str | None
    trust: Trust
    data: Mapping[str, Scalar] = field(default_factory=dict, hash=False)


def not_silenced(hits: list[Hit]) -> list[Hit]:
    """Of the rules that know a line those that one which says that all is well does not silence.

    What can drain it silences only where both know the same words: "2 corrected ECC errors, 3 uncorrectable ECC errors".
    Nor do words of the kernel's accuse the host that tell of a mounted image.
    """
    hits = [hit for hit in hits if not _accuses_by_an_image(hit)]
    well = [hit for hit in hits if hit.compiled.rule.says_well]
    return [hit for hit in hits if hit in well or not any(_silences(other, hit) for other in well)] if well else hits


def _accuses_by_an_image(hit: Hit) -> bool:
    if hit.compiled.rule.drain is Drain.NO or hit.compiled.rule.form is not Form.KERNEL:
        return False
    return said(Source.KERNEL, hit.searched[:OWN_LINE].decode("utf-8", "replace")).of_image


def _silences(well: Hit, hit: Hit) -> bool:
    if hit.compiled.rule.drain is Drain.NO:
        return True
    same = hit.searched == well.searched
    return same and hit.match.start() < well.match.end() and well.match.start() < hit.match.end()


class Signatures:
    """Rules compiled for reading: make one, share it between readers."""

    def __init__(self, rules: Rules, matcher: Matcher = PlainScreen) -> None:
        self.rules = rules
        self.compiled = [Compiled(rule) for rule in rules.rules]
        self.timers = frozenset(i for i, c in enumerate(self.compiled) if c.rule.kind == TIMERS)
        steps = frozenset(i for i, c in enumerate(self.compiled) if c.rule.kind == Kind.STEP)
        self.screen = LineTemplates([rule.pattern for rule in rules.rules], matcher, steps)


def counts_none(match: re.Match[bytes], rule: Rule, *, own: bool) -> bool:
    """Whether the line says that what the rule knows did not happen: a counter at zero (``link_downed=0``), a check: no.

    ``own``: the line is of a machine's own log, where nobody quotes.
    """
    if not rule.weights and rule.kind != Kind.XID:
        return False
    if not own and _WOULD.search(match.string, max(0, match.start() - 100), match.start()):
        return True
    if rule.form is Form.PROGRAM:
        return False  # an exception may end so: "unsupported type: None"
    if _AT_NONE.match(match.string, match.end()) or (not own and _is_quoted(match)):
        return True
    zero = _AT_ZERO.match(match.string, match.end())
    if zero is None:
        return False
    name = match.string[match.start() : zero.start(1)].rstrip(b" \t'\"")  # without "last 24h"
    return (_OF_FAULTS if zero[2] else _SEVERAL).search(name) is not None


def first_match(compiled: Compiled, text: bytes, *, own: bool) -> re.Match[bytes] | None:
    """The first place in a line that the rule knows and that is no counter at zero, no check that passed."""
    found = compiled.pattern.finditer(text)
    return next((match for match in found if not counts_none(match, compiled.rule, own=own)), None)


def _is_quoted(match: re.Match[bytes]) -> bool:
    """Whether it stands in a quotation within a sentence, in a test's name, in a template, with a metric that is 0, or
    before words of a repair."""
    text, at = match.string, match.start()
    told = _TOLD.search(text, 0, at) is not None and _QUOTING.search(text, max(0, at - 100), at + 1) is not None
    elsewhen = _MENDED.search(text, match.end()) or _NOT_SAID.search(text, match.end())
    return told or elsewhen is not None or _METRIC_AT_ZERO.search(text, at) is not None


def own_hits(source: Source, line: bytes, candidates: Iterable[Compiled], *, bare: bool = False) -> Iterator[Hit]:
    """Which of the candidates know a line of a machine's own log, and whether the log's own program wrote it.

    It is where the log's own writer said it, the message begins as the rule's anchor says, and the rule knows it without the
    names that users chose. A rule without an anchor for this log is not read in its writer's lines: what it would know there
    may be such a name. What another program wrote into the log is a user's claim, and so is what the log's own writer says
    where any user can cause it. Of an image no rule is read that accuses the host.
    """
    told = said(source, line[:OWN_LINE].decode("utf-8", "surrogateescape"), bare=bare)
    text = told.text.encode("utf-8", "surrogateescape")
    message = told.message.encode("utf-8", "surrogateescape")
    for compiled in candidates:
        searched, given = text, Trust.USER
        if told.own:
            anchor = compiled.anchors.get(source)
            if anchor is None or not anchor.match(message):
                continue
            if told.of_image and compiled.rule.drain is not Drain.NO:
                continue
            searched, given = message, Trust.USER if told.by_any_user else Trust.SYSTEM
        if match := first_match(compiled, searched, own=True):
            yield Hit(compiled, match, searched, told.head, told.node, given, {ANY_USER: True} if told.perhaps else {})
