"""Words that every match of a pattern must hold: sound for every rule, and there for nearly all of them."""

from __future__ import annotations

import re

import pytest
from shipped import shipped_rules

from sentinel.evidence.logs.screen.digit_folding import fold_digits
from sentinel.evidence.logs.screen.literals import ways_of

RULES = shipped_rules().rules
# A template, as the screen reads it, with what most lines hold.
CHATTER = b"0000-00-00 00:00:00,000 info data: shard kaqe-000 of 0d0f.tar opened, 0000 samples read in 0.000 s (rank 0)"


def needs(pattern: str) -> tuple[tuple[tuple[bytes, ...], ...], ...]:
    """The groups of words of each way in which it can match; nothing where some way need not hold any word."""
    ways = ways_of(pattern)
    return tuple(way.groups for way in ways) if all(way.groups for way in ways) else ()


@pytest.mark.parametrize(
    ("pattern", "ways"),
    [
        (r"boiler pressure \d low", (((b"boiler pressure ",), (b" low",)),)),
        (r"\b(?:lamp|valve)s? \d{1,3}", (((b"lamp", b"valve"),),)),
        (r"(?i)(?:Pump|Motor) (?:hot|cold)", (((b"pump", b"motor"), (b"hot", b"cold")),)),
        (r"turbine(?: \d+)? stopped", (((b" stopped",), (b"turbine",)),)),
        (r"x?yz|abcd", ()),
        (r"colou?r of \w", (((b"colo",),),)),  # no part of "r of " is long enough
        (r"(?:red)? \w", ()),
        (r"[abc]\[wind\]", (((b"[wind]",),),)),
        (r"(?P<node>rack\d{1,2}) is dark", (((b" is dark",), (b"rack",)),)),
        (r"end{2}ing", (((b"end",), (b"ing",)),)),
        (r"(?i:STORM|hail) warning|calm", (((b"storm", b"hail"), (b" warning",)), ((b"calm",),))),
        (r"(?i:storm \d|(?:hail|snow) of \d{1,4} tons)", (((b"storm ",),), ((b" tons",), (b"hail", b"snow")))),
        (r"loader of coal", (((b"loader of coal",),),)),
        (r"(?:loss|time) of \d{1,2}", (((b"loss of ",),), ((b"time of ",),))),  # more than ordinary words
        (r"(?:loader|worker) \d{1,2} fell", (((b" fell",), (b"loader", b"worker")),)),  # an ordinary word comes last
    ],
)
def test_words(pattern: str, ways: tuple[tuple[tuple[bytes, ...], ...], ...]) -> None:
    assert needs(pattern) == ways


def test_a_match_holds_a_word_of_each_group_of_one_way() -> None:
    for rule in RULES:
        ways = needs(rule.pattern)
        for line in rule.match:
            found = rule.compiled().search(line.encode())
            assert found is not None, (rule.id, line)
            match = found[0].lower()
            one_way = any(all(any(word in match for word in words) for words in way) for way in ways)
            assert not ways or one_way, (rule.id, line)


@pytest.mark.parametrize(
    ("pattern", "ways"),
    [
        (r"(?:^|\]:? )[a-z]{1,9}: \S", [(r"^[a-z]{1,9}: \S", b": ", True), (r"\]:? [a-z]{1,9}: \S", b"]", False)]),
        (r"(?i)(?:^X|\d)/\d", [(r"(?i)^X/\d", b"x/", True), (r"(?i)\d/\d", b"/", False)]),
        (r"(?i:^X|\d)/\d", [(r"(?i:^X)/\d", b"x/", False), (r"(?i:\d)/\d", b"/", False)]),
        (r"(?:\d|[a-c]){2}z?", [(r"(?:\d|[a-c]){2}z?", b"", False)]),
        (r"\b(?:QZ0|QZ0): ", [(r"\b(?:QZ0|QZ0): ", b"qz0", False)]),
        (r"\bQ[1-4]000: ", [(r"\bQ[1-4]000: ", b"000: ", False)]),
    ],
)
def test_ways_without_a_word_are_told_apart(pattern: str, ways: list[tuple[str, bytes, bool]]) -> None:
    assert [(way.pattern, way.mark, way.first) for way in ways_of(pattern)] == ways


def test_hardly_a_rule_must_be_tried_on_every_line() -> None:
    assert sum(not needs(rule.pattern) for rule in RULES) <= 4


def test_no_mark_of_a_way_without_a_word_stands_in_an_ordinary_line() -> None:
    for rule in RULES:
        for way in ways_of(fold_digits(rule.pattern).pattern):
            worded = any(all(re.search(rb"[a-z]{3}", word) for word in group) for group in way.groups)
            assert worded or way.first or way.mark not in CHATTER, (rule.id, way)
