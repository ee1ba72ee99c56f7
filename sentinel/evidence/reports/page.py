"""A file's lines while reports in them are read: what each is replaced by, and what was found."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from sentinel.evidence.diagnostics import MOST_GPUS
from sentinel.model.records import Scalar

MOST_TOLD = 1024  # findings of one file that are kept
# A line of a table, between rows or a row; logs put time and host before it.
RULED = re.compile(r"^[^|+\n]{0,120}(?:\+[-=]{3}|\|-{3}|\|[^\n]{0,600}\|\s{0,200}$)")
_DOCUMENTS = 200  # beginnings of JSON that are tried in one file
_NEAR = 4096  # characters after a brace in which a report says what it is
# DCGM's advice behind a message, with words of faults in it.
_NEXT_STEP = re.compile(r"\s{0,4}Check DCGM and system (?:logs for errors|configuration)\b.*$", re.S)
_KEYS = re.compile(r'"(?:DCGM (?:GPU )?Diagnostic|body|header)"\s{0,64}:')


@dataclass(frozen=True, slots=True)
class Told:
    """A finding that is evidence as it is. ``kind`` and ``data`` are the evidence's."""

    line: int  # from 0
    kind: str
    text: str
    gpu: int | None = None
    data: dict[str, Scalar] = field(default_factory=dict)
    last_known: bool = False  # the newest of its kind, however long ago: no proof of what is now


class Page:
    """Lines of a file, without their ends; numbers from 0."""

    def __init__(self, text: str) -> None:
        self.lines = text.split("\n")
        self.told: list[Told] = []
        self._said: set[tuple[object, ...]] = set()
        self.gpus: dict[int, int] = {}  # line of a sentence → the GPU it is about
        self.read: set[int] = set()  # lines that belong to a report that was read

    def silence(self, first: int, last: int | None = None) -> None:
        """These lines are read; ``last`` belongs to them."""
        for number in range(first, (first if last is None else last) + 1):
            if number not in self.read:
                self.read.add(number)
                self.lines[number] = ""

    def say(self, number: int, sentence: str, gpu: int | None = None) -> None:
        """A sentence for a line that is silenced; of several on one line all are kept."""
        sentence = _NEXT_STEP.sub("", sentence)
        self.silence(number)
        said = self.lines[number]
        self.lines[number] = f"{said}; {sentence}" if said else sentence
        if gpu is not None and not said:
            self.gpus[number] = gpu

    def tell(self, told: Told) -> None:
        """Once for each GPU and what is said of it."""
        same = (told.kind, told.gpu, told.data.get("code"), told.data.get("xid"))
        if same not in self._said and len(self.told) < MOST_TOLD:
            self._said.add(same)
            self.told.append(told)

    def documents(self) -> Iterator[tuple[int, int, dict[str, Any], str]]:
        """JSON objects that may be reports: first line, last line, object, text."""
        text = "\n".join(self.lines)
        at, tried = text.find("{"), 0
        while at >= 0 and tried < _DOCUMENTS:
            end = at + 1
            if _KEYS.search(text, at, at + _NEAR):
                tried += 1
                try:
                    document, end = json.JSONDecoder().raw_decode(text, at)
                except (ValueError, RecursionError):
                    document = None
                if isinstance(document, dict):
                    first = text.count("\n", 0, at)
                    yield first, first + text.count("\n", at, end), document, text[at:end]
            at = text.find("{", end)


def line_of(text: str, document: str, first: int) -> int:
    """The line on which a JSON document, which begins on the line ``first``, has this text; ``first`` where none has."""
    wanted = json.dumps(text)[1:-1][:60]
    at = document.find(wanted) if wanted else -1
    return first + document.count("\n", 0, max(at, 0))


def gpu_number(text: object) -> int | None:
    """A GPU's number; None for anything else."""
    word = str(text).strip()
    number = int(word) if word.isascii() and word.isdigit() and len(word) <= 5 else None
    return number if number is not None and number < MOST_GPUS else None


def positive(text: str) -> bool:
    """Whether the text is a number above 0; "N/A", "[Not Supported]" and damage are none."""
    word = text.strip()
    return re.fullmatch(r"[0-9]{1,18}(?:\.[0-9]{1,9})?(?:e\+?[0-9]{1,2})?", word) is not None and float(word) > 0
