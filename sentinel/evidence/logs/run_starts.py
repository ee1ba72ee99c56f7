"""Finds where a log begins anew: Slurm appends what a requeued job prints, and its script prints the same first lines."""

from __future__ import annotations

import re

from sentinel.evidence.logs.screen.digit_folding import FOLD

LINES = 3  # of the log's first ones, which come again one right behind the other
LEAST = 8  # bytes of each: shorter ones are rules and blanks
MOST = 4096  # bytes of them all
# Lines of the kernel's or of a daemon's, as dmesg and syslog write them: what they repeat is no other run.
_OF_A_MACHINE = re.compile(
    rb"\[[ 0]{1,12}\.0{3,6}\]|\[[A-Z][a-z]{2} [A-Z][a-z]{2} |[A-Z][a-z]{2} [ 0]0 00:00:00 \S+ \S+: "
)


class RunStarts:
    """Feed it a log's blocks of whole lines from the first on."""

    def __init__(self) -> None:
        self._head: bytes | None = None  # the first lines with every digit read as 0; empty where they tell nothing
        self._part = b""  # their longest part without a digit, which is looked for first

    def last(self, block: bytes) -> int | None:
        """The number of the block's last line, counted from 0, at which the log begins anew; None where none is."""
        if self._head is None:
            self._take(block)
            at = len(self._head or b"")
        else:
            at = 0
        if not self._head or self._part not in block:
            return None
        folded = block.translate(FOLD)
        found = folded.rfind(b"\n" + self._head, max(at - 1, 0)) + 1
        if not found and (at or not folded.startswith(self._head)):
            return None
        return block.count(b"\n", 0, found)

    def _take(self, block: bytes) -> None:
        lines = block[:MOST].translate(FOLD).split(b"\n")[:-1][:LINES]
        telling = len(set(lines)) == LINES and all(len(line.strip()) >= LEAST for line in lines)
        telling = telling and not any(map(_OF_A_MACHINE.match, lines))
        self._head = b"\n".join((*lines, b"")) if telling else b""
        self._part = max(self._head.replace(b"\n", b"0").split(b"0"), key=len)
