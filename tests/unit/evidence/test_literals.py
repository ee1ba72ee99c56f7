"""Words that every match of a pattern must hold: sound for every rule, and there for nearly all of them."""

from __future__ import annotations

import pytest

from sentinel.config.rules import Rule
from sentinel.config.rules_files import load_rules
from sentinel.evidence.logs.literals import literals

RULES = load_rules().rules


@pytest.mark.parametrize(
    ("pattern", "words", "fold"),
    [
        (r"boiler pressure \d low", (b"boiler pressure ",), False),
        (r"\b(?:lamp|valve)s? \d{1,3}", (b"lamp", b"valve"), False),
        (r"(?i)(?:Pump|Motor) (?:hot|cold)", (b"pump", b"motor"), True),
        (r"turbine(?: \d+)? stopped", (b" stopped",), False),
        (r"x?yz|abcd", (), False),
        (r"colou?r of \w", (b"r of ",), False),
        (r"(?:red)? \w", (), False),
        (r"[abc]\[wind\]", (b"[wind]",), False),
        (r"(?P<node>rack\d{1,2}) is dark", (b" is dark",), False),
        (r"end{2}ing", (b"end",), False),
        (r"(?i:STORM) warning|calm", (b" warning", b"calm"), True),
    ],
)
def test_words(pattern: str, words: tuple[bytes, ...], fold: bool) -> None:
    assert literals(pattern) == (words, fold)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_match_holds_one_of_the_words(rule: Rule) -> None:
    words, fold = literals(rule.pattern)
    for line in rule.match:
        found = rule.compiled().search(line.encode())
        assert found is not None
        match = found[0]
        match = match.lower() if fold else match
        assert not words or any(word in match for word in words)


def test_hardly_a_rule_must_be_tried_on_every_line() -> None:
    assert sum(not literals(rule.pattern)[0] for rule in RULES) <= 3
