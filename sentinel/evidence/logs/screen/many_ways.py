"""Finds regular expressions that take too long: those that can read a text in ever more ways as it grows longer.

``re`` tries one way after the other. Of an expression seen as an automaton, whose states are its characters, the ways
multiply without end where a state is reached again from itself in two ways by one text: in ``(?:a|aa)+``, ``(?:a+)+``.
That takes exponential time (``multiplies``). What is repeated a few times only is left out, with all that is around it.

Repeats in a row that all take one character (``a+b?a+b?a+x``) share a run of it out among them in as many ways as their
lengths make together (``shares_out``), from each of its characters, unless a text comes before that is no part of it.
Looked for are runs of one character alone.
"""

from __future__ import annotations

import re
import re._constants as kind  # type: ignore[import-not-found]
import re._parser as parser  # type: ignore[import-not-found]
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sentinel.graphs import components

FEW = 4  # times that something is repeated at most: the ways multiply to nothing that matters
_LONGEST = 64  # characters of a fixed number that are written out, as of a UUID; more are taken for any number
_ENDLESS = 1000  # times that what is repeated without end is taken for: a line that has longer runs is rare
# Ways to share out a run that are taken: of two repeats without end, which take 2 s for a run of 1,000 characters, or of
# three of a hundred times each. Of what ships none has a fifth of it.
MOST_SHARES = _ENDLESS**2
_MANY = 2  # ways are counted up to here
_REPEATS = frozenset({kind.MAX_REPEAT, kind.MIN_REPEAT, kind.POSSESSIVE_REPEAT})
_ONE = frozenset({kind.LITERAL, kind.NOT_LITERAL, kind.ANY, kind.IN})  # character, which is read in one way
_ALL = frozenset(range(256))
_CLASSES = {
    "SPACE": frozenset(b" \t\n\r\f\v"),
    "DIGIT": frozenset(b"0123456789"),
    "WORD": frozenset(b"_0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"),
}
_GROUP_REPEATED = re.compile(r"\)[*+{]")
_Ways = dict[int, int]  # by state: in how many ways it comes next


@dataclass(slots=True)
class _Part:
    """A part of the automaton: which states may begin and end it, and in how many ways it may be empty."""

    first: _Ways = field(default_factory=dict)
    last: _Ways = field(default_factory=dict)
    empty: int = 1


class _Automaton:
    """One state for each character of an expression, and in how many ways another follows it."""

    def __init__(self, folds: bool, few: int) -> None:
        self.taken: list[frozenset[int]] = []  # characters, by state
        self.follows: list[_Ways] = []
        self.lengths: list[int] = []  # how often each state may come again, by all repeats around it
        self.multiplies = False
        self.looks_behind = False  # whether something but a character may fail
        self._length = 1
        self._folds = folds
        self._few = few
        self._rounds = 1  # how often what is read now is repeated by all that is around it

    def sequence(self, items: Iterable[Any]) -> _Part:
        whole = _Part()
        for op, value in items:
            whole = self._joined(whole, self._part(op, value))
        return whole

    def _part(self, op: Any, value: Any) -> _Part:
        if op in _REPEATS:
            return self._repeated(*value)
        if op is kind.SUBPATTERN:
            return self.sequence(value[-1])
        if op is kind.ATOMIC_GROUP:
            return self.sequence(value)
        if op is kind.BRANCH:
            return _either([self.sequence(branch) for branch in value[1]])
        if op in (kind.ASSERT, kind.ASSERT_NOT):
            self.looks_behind = True
            self.sequence(value[1])  # what it looks at is read by itself
            return _Part()
        if op is kind.AT:
            self.looks_behind = True
            return _Part()
        if op is kind.GROUPREF_EXISTS:
            return _either([self.sequence(branch or ()) for branch in value[1:]])
        return self._character(_characters([(op, value)]) if op is not kind.GROUPREF else _ALL)

    def _character(self, taken: frozenset[int]) -> _Part:
        if self._folds:
            taken |= frozenset(code ^ 32 for code in taken if chr(code).isalpha() and code < 128)
        state = len(self.taken)
        self.taken.append(taken)
        self.follows.append({})
        self.lengths.append(self._length)
        return _Part({state: 1}, {state: 1}, 0)

    def _joined(self, one: _Part, other: _Part) -> _Part:
        self._follow(one.last, other.first)
        return _Part(
            _sum(one.first, _times(other.first, one.empty)),
            _sum(other.last, _times(one.last, other.empty)),
            min(_MANY, one.empty * other.empty),
        )

    def _follow(self, before: _Ways, after: _Ways) -> None:
        for state, ways in before.items():
            self.follows[state] = _sum(self.follows[state], _times(after, ways))

    def _repeated(self, least: int, most: int, body: Any) -> _Part:
        low, high = body.getwidth()
        counted = least == most and low == high and most * max(1, int(low)) <= _LONGEST
        if counted or most <= self._few:
            rounds, self._rounds = self._rounds, self._rounds * int(most)
            if self._rounds > self._few and not self.multiplies:
                self.multiplies = self._each_round_multiplies(self._rounds if least else 0, body)
            whole = _Part()
            for number in reversed(range(most)):  # (x(x(x)?)?)?: as often as it may be, the rest only behind the first
                whole = self._joined(self.sequence(body), whole)
                if number >= least:
                    whole = _either([whole, _Part()])
            self._rounds = rounds
            return whole
        length, self._length = self._length, min(_ENDLESS, self._length * int(most))
        part = self.sequence(body)
        self._length = length
        if part.empty and least > self._few:
            self.multiplies = True  # which of the rounds are empty is open
        self._follow(part.last, part.first)
        return _Part(part.first, part.last, 1 if least == 0 or part.empty else 0)

    def _each_round_multiplies(self, least: int, body: Any) -> bool:
        """Whether a group whose rounds are written out multiplies the ways in each of them, as it would without end."""
        if not body or (len(body) == 1 and body[0][0] in _ONE):
            return False
        return _reads_in_ways([(kind.MAX_REPEAT, (least, kind.MAXREPEAT, body))], self._folds, self._few)


def _either(parts: Sequence[_Part]) -> _Part:
    whole = _Part(empty=0)
    for part in parts:
        whole = _Part(_sum(whole.first, part.first), _sum(whole.last, part.last), min(_MANY, whole.empty + part.empty))
    return whole


def _sum(one: Mapping[int, int], other: Mapping[int, int]) -> _Ways:
    return {**one, **{state: min(_MANY, ways + one.get(state, 0)) for state, ways in other.items()}}


def _times(ways: Mapping[int, int], factor: int) -> _Ways:
    return {state: min(_MANY, count * factor) for state, count in ways.items()} if factor else {}


def _characters(items: Iterable[Any]) -> frozenset[int]:
    """What any of the items of one character may take, as codes up to 255."""
    found: frozenset[int] = frozenset()
    for op, value in items:
        if op is kind.LITERAL:
            found |= {min(value, 255)}
        elif op is kind.NOT_LITERAL:
            found |= _ALL - {value}
        elif op is kind.ANY:
            found |= _ALL - {10}
        elif op is kind.IN:
            taken = _characters(item for item in value if item[0] is not kind.NEGATE)
            found |= _ALL - taken if value[0][0] is kind.NEGATE else taken
        elif op is kind.RANGE:
            found |= frozenset(range(min(value[0], 255), min(value[1], 255) + 1))
        elif op is kind.CATEGORY:
            name = str(value)
            known = next(taken for word, taken in _CLASSES.items() if word in name)
            found |= _ALL - known if "NOT_" in name else known
        else:
            return _ALL
    return found


def multiplies(expression: re.Pattern[Any], few: int = FEW) -> bool:
    """Whether there are texts for which ``re`` may take a time that doubles with every few characters more.

    Args:
        few: what is repeated more often counts as if it were repeated without end.
    """
    text, flags = _text_of(expression)
    if not _GROUP_REPEATED.search(text):
        return False  # the same character comes back by one way
    return _reads_in_ways(parser.parse(expression.pattern, flags), bool(flags & re.IGNORECASE), few)


def shares_out(expression: re.Pattern[Any]) -> int:
    """In how many ways repeats in a row can share out one run of a character, at most; 1 where no two can.

    Those behind which nothing can fail count for nothing: the first way is the answer. What is repeated without end is taken
    for a thousand times. Of a run that begins at one place only, behind a text of a fixed length that is no part of it, a
    thousandth counts: the others are tried anew from each of their characters.
    """
    _, flags = _text_of(expression)
    made = _Automaton(bool(flags & re.IGNORECASE), FEW)
    whole = made.sequence(parser.parse(expression.pattern, flags))
    ends = frozenset() if made.looks_behind else frozenset(whole.last)
    before, first = _before(made), frozenset(whole.first)
    once = _read_once(before, first)
    taking: dict[frozenset[int], None] = {}
    for code in range(256):
        taking[frozenset(state for state, taken in enumerate(made.taken) if code in taken)] = None
    found = 1
    for states in taking:
        repeated = frozenset[int]().union(*(made.taken[state] for state in states if made.lengths[state] > 1))
        for state, ways in _shares(made, states, ends).items():
            others = before[state] - {state}
            if others and others <= states and state not in first:
                continue  # the same run begins before it
            behind = others and others <= once and state not in first  # a text of a fixed length
            own = behind and all(made.taken[other].isdisjoint(repeated) for other in others)  # that no run has in it
            found = max(found, ways // _ENDLESS if own else ways)
    return found


def _before(made: _Automaton) -> dict[int, set[int]]:
    """By state: those that it may follow."""
    before: dict[int, set[int]] = {state: set() for state in range(len(made.taken))}
    for state, after in enumerate(made.follows):
        for other in after:
            before[other].add(state)
    return before


def _read_once(before: Mapping[int, set[int]], first: frozenset[int]) -> set[int]:
    """The states that do not come again, nor any before them."""
    once: set[int] = set()
    for part in components(before):  # what is before a state comes before it
        state = min(part)
        if before[state] <= once and (before[state] or state in first):
            once.add(state)
    return once


def _shares(made: _Automaton, states: frozenset[int], ends: frozenset[int]) -> dict[int, int]:
    """The same by state from which on it is read, for those that take one character: the product of the lengths of the loops
    along the worst path."""
    graph = {state: [after for after in made.follows[state] if after in states] for state in states}
    most: dict[
        int, int
    ] = {}  # by state: from there on; 0 where the end can be reached, which no other way is tried behind
    for part in components(graph):  # those that are reached before those that reach them
        after = [most[other] for state in part for other in graph[state] if other not in part]
        loops = len(part) > 1 or any(state in graph[state] for state in part)
        own = max(made.lengths[state] for state in part) if loops else 1
        most.update(dict.fromkeys(part, 0 if part & ends or 0 in after else own * max(after, default=1)))
    return most


def _text_of(expression: re.Pattern[Any]) -> tuple[str, int]:
    """The expression as text, and the flags with which it is parsed."""
    if isinstance(expression.pattern, bytes):
        return expression.pattern.decode("latin-1"), expression.flags & ~re.UNICODE
    return expression.pattern, expression.flags


def _reads_in_ways(items: Iterable[Any], folds: bool, few: int) -> bool:
    made = _Automaton(folds, few)
    made.sequence(items)
    if made.multiplies:
        return True
    graph = {state: frozenset(ways) for state, ways in enumerate(made.follows)}
    return any(_is_ambiguous(made, loop) for loop in _loops(graph))


def _is_ambiguous(made: _Automaton, loop: frozenset[int]) -> bool:
    """Whether a state of the loop comes back to itself in two ways by one text."""
    inner = {state: [(after, ways) for after, ways in made.follows[state].items() if after in loop] for state in loop}
    if any(ways > 1 for after in inner.values() for _, ways in after):
        return True
    pairs: dict[tuple[int, int], set[tuple[int, int]]] = {}
    pending = [(state, state) for state in loop]
    while pending:
        pair = pending.pop()
        if pair in pairs:
            continue
        pairs[pair] = {
            (one, other)
            for one, _ in inner[pair[0]]
            for other, _ in inner[pair[1]]
            if made.taken[one] & made.taken[other]
        }
        pending.extend(pairs[pair])
    return any(len({one == other for one, other in found}) > 1 for found in _loops(pairs))


def _loops(graph: Mapping[Any, Iterable[Any]]) -> list[frozenset[Any]]:
    """Sets of states that can all be reached from one another, of which one can be reached from itself."""
    return [part for part in components(graph) if len(part) > 1 or any(state in graph[state] for state in part)]
