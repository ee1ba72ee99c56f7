"""Finds where a log begins anew: Slurm appends what a requeued job prints, and its script prints the same first lines.

Ranks of one run print the same first lines, too, late ones behind another's failure: so it is told whether what follows them
comes again as well, and ``classify.outlived`` decides.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from sentinel.evidence.logs.writers import label_of

LINES = 3  # of the log's first ones that tell something, which come again one right behind the other
LEAST = 8  # characters of such a line: shorter ones are rules and blanks
FOLLOWING = 4  # lines behind them, of which one at least comes again, too
MOST = 8192  # bytes of the log's beginning in which they stand
# Lines of the kernel's or of a daemon's, as dmesg, syslog and the journal write them: what they repeat is no other run.
_OF_A_MACHINE = re.compile(
    rb"\[ {0,8}\d{1,8}\.\d{3,6}\]|\[[A-Z][a-z]{2} [A-Z][a-z]{2} |[A-Za-z\x80-\xf4]{3,9}\.? [ \d]\d \d\d:\d\d:\d\d \S+ \S+: "
    rb"|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[.,]?\d{0,9}(?:Z|[+-]\d\d:?\d\d) \S+ \S+: "
)
# Lines that a loop prints over and over.
_OF_STEPS = re.compile(rb"(?i)\b(?:step|iter|iteration|epoch|loss)s?\b[^\n]{0,12}\d")
_RULE = re.compile(rb"^\W+$")
_ERROR = re.compile(rb"(?i)traceback|error|exception|^\s")
# Blanks before a number count from the first on: tried from each of them, a long run of blanks would cost its square.
_VARIES = re.compile(
    rb"(?<! ) *\d+|\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun|Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)\b"
)


@dataclass(frozen=True, slots=True)
class RunStart:
    line: int  # counted from the block's first as 0; negative where it stands in the block before
    followed: bool  # whether a line behind the first ones came again, too, or none stood there


class RunStarts:
    """Feed it a log's blocks of whole lines, from the first on or behind its ``beginning``."""

    def __init__(self, beginning: bytes = b"") -> None:
        self._beginning = b""
        self._head = b""  # the first lines, without what varies; empty where they are not known, or tell nothing
        self._open = True  # whether they are still to be read
        self._label = b""  # of the rank, or the container, that wrote the first line
        self._literal = b""  # their longest part that does not vary, which is looked for first
        self._following: frozenset[bytes] = frozenset()
        self._tail = b""  # the end of what was read: a head may stand in two blocks
        self._read = 0  # lines
        self._found = -1 if beginning else 0  # the line, counted from 0, at which the last one was found
        if beginning:
            self._take(beginning)

    def last(self, block: bytes, lines: int) -> list[RunStart]:
        """Where the log begins anew for the last time, and for the last time with a line that followed before.

        ``lines``: how many the block has.
        """
        if not self._open and not self._head:
            return []
        text, before = self._tail + block, self._tail.count(b"\n")
        first, self._read = self._read - before, self._read + lines
        self._tail = text[-MOST:].partition(b"\n")[2] if len(text) > MOST else text
        if self._open:
            self._take(block)
        if not self._head or self._literal not in text:
            return []
        folded, rows = b"\n" + _folded(text), text.split(b"\n")
        again: list[RunStart] = []
        at, row, counted = folded.find(self._head), 0, 0
        while at >= 0:
            row, counted = row + folded.count(b"\n", counted, at), at
            end = at + len(self._head)
            # Another rank's label before it: no restart.
            if first + row > self._found and label_of(rows[row], 0) == self._label:
                again.append(RunStart(row - before, self._goes_on(folded, end)))
                # Where the lines behind it are still to come, it is looked at once more.
                self._found = first + row if folded.count(b"\n", end, end + MOST) >= FOLLOWING else self._found
            at = folded.find(self._head, at + 1)
        return again[-1:] if not again or again[-1].followed else [*[s for s in again if s.followed][-1:], again[-1]]

    def _goes_on(self, folded: bytes, end: int) -> bool:
        if not self._following:
            return True  # the log's first run ended right behind them
        return not self._following.isdisjoint(folded[end : end + MOST].split(b"\n")[:FOLLOWING])

    def _take(self, block: bytes) -> None:
        self._beginning += block[: MOST - len(self._beginning)]
        lines = self._beginning.split(b"\n")[:-1]
        telling: list[bytes] = []
        for number, line in enumerate(lines):
            folded = _folded(line)
            if len(line.strip()) >= LEAST and not _RULE.match(line) and folded not in telling:
                telling.append(folded)
            if len(telling) == LINES:
                behind = lines[number + 1 : number + 1 + FOLLOWING]
                if len(behind) == FOLLOWING or len(self._beginning) == MOST:
                    self._set(lines[: number + 1], behind)
                return
        self._open = len(self._beginning) < MOST

    def _set(self, head: list[bytes], behind: list[bytes]) -> None:
        self._open = False
        if any(_OF_A_MACHINE.match(line) or _OF_STEPS.search(line) for line in head):
            return
        known = set(map(_folded, head))
        told = [_folded(line) for line in behind if len(line.strip()) >= LEAST and not _ERROR.search(line)]
        self._following = frozenset(line for line in told if line not in known)
        whole = b"\n".join((*head, b""))
        self._literal = max(_VARIES.split(whole), key=len)
        self._label = label_of(head[0], 0)
        self._head = b"\n" + _folded(whole)


def _folded(text: bytes) -> bytes:
    return _VARIES.sub(b"0", text)
