"""Tells the writers of one log apart, ranks that print at once, by the label before their lines."""

from __future__ import annotations

import re

from sentinel.evidence.logs.screen.digit_folding import FOLD

# Bytes around a labelled line in which lines of its writer are looked for: some thirty ranks that print line for line.
REACH = 16_384
EMPTY = 2  # empty lines between a line and the next one
LINES = 32  # lines above it among which its writer's last one is looked for
# The time of a record, and what a container runtime or a launcher's logger writes behind it.
_TIME = (
    rb"(?:\[?\d{4}-\d\d-\d\d(?:T|,? )\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d| UTC)?\]? "
    rb"(?:std(?:out|err) [FP] |(?:- [\w.]{1,60} |\{[\w.]{1,60}:\d{1,5}\} |)(?:- )?[A-Z]{4,8} - "
    rb"|\| [A-Z]{4,8} {0,4}\| [\w.:<>]{1,80} - )?)?(?:(?:DEBUG|INFO|WARNING): )?"
)
# srun --label, torchrun --tee and torch's excepthook, Open MPI --tag-output, Ray, pdsh, docker compose.
_LABEL = (
    rb"(?: {0,6}\d{1,6}: |\[(?:(?:rank|default) ?)?\d{1,6}\]:? ?|\[\d{1,6},\d{1,6}\]<std(?:out|err)>:? ?"
    rb"|\(\w{1,60}(?:\([^)\n]{0,60}\))? pid=\d{1,10}(?:, ip=[\w.:]{1,64})?\) "
    rb"|[A-Za-z][\w-]{0,60}\d(?:\.[\w.-]{1,100})?: |[a-z][\w.-]{0,62}\d +\| )"
)
_LABELS = re.compile(rb"%s(%s{1,3})" % (_TIME, _LABEL))


def text_above(block: bytes, start: int, most: int) -> bytes:
    """What the writer of the line at ``start`` wrote above it: lines that hold the last ``most`` bytes.

    All lines count where no label stands before the line, or before any of those above.
    """
    plain = block[max(0, start - most) : start]
    label = label_of(block, start)
    if not label:
        return plain
    lines = block[max(0, start - REACH) : start].split(b"\n")[:-1]
    own, size, labelled = [], 0, False
    for line in reversed(lines):
        if size > most:
            break
        other = label_of(line, 0)
        labelled = labelled or other != b""
        if other == label:
            own.append(line)
            size += len(line) + 1
    return b"\n".join((*reversed(own), b"")) if labelled else plain


def line_above(block: bytes, start: int, longest: int) -> bytes:
    """The line, with its end, that the writer of the line at ``start`` wrote before it; of a long one the last bytes.

    Empty where none of the ``LINES`` lines above is its writer's.
    """
    label, end = label_of(block, start), start
    for _ in range(LINES if label else 1):
        begin = block.rfind(b"\n", 0, max(end - 1, 0)) + 1
        if not label or label_of(block, begin) == label:
            return block[max(begin, end - longest) : end]
        end = begin
    return b""


def line_below(block: bytes, start: int, end: int, longest: int) -> bytes:
    """The beginning of the first line with text that the writer of the line from ``start`` to ``end`` wrote below it.

    Empty where none of the ``LINES`` lines below is its writer's, or where more than two empty ones follow it.
    """
    label, begin = label_of(block, start), end + 1
    for _ in range(LINES if label else EMPTY + 1):
        if begin >= len(block):
            break
        stop = block.find(b"\n", begin)
        stop = len(block) if stop < 0 else stop
        if stop > begin and (not label or label_of(block, begin) == label):
            return block[begin : min(stop, begin + longest)]
        begin = stop + 1
    return b""


def text_below(block: bytes, start: int, end: int, most: int) -> bytes:
    """The first ``most`` bytes that the writer of the line from ``start`` to ``end`` wrote below it; without a label all."""
    label = label_of(block, start)
    if not label:
        return block[end + 1 : end + most]
    lines = block[end + 1 : end + REACH].split(b"\n")
    return b"\n".join(line for line in lines if label_of(line, 0) == label)[:most]


def begins_as(line: bytes, prefix: bytes) -> bool:
    """Whether a line begins with ``prefix``, but for digits: each line of a record has a time of its own."""
    return line[: len(prefix)].translate(FOLD) == prefix.translate(FOLD)


def label_of(block: bytes, start: int) -> bytes:
    """The label before the line at ``start``; empty where there is none."""
    found = _LABELS.match(block, start, start + 240)
    return found[1].rstrip() if found else b""  # of some the blank behind it is the message's
