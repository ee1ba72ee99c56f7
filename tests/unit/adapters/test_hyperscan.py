"""The fast screen: words in place of patterns, the rest of what they need, and exact answers where digits count."""

from __future__ import annotations

import pytest

from sentinel.adapters import hyperscan
from sentinel.adapters.hyperscan import HyperscanScreen
from sentinel.evidence.logs.line_templates import LONGEST, LineTemplates
from sentinel.evidence.logs.prefilter import PlainScreen, Screen

pytest.importorskip("hyperscan")

VALVE = r"valve \d{1,3} of the (?:turbine|chiller) stuck"


def lines_hit(screen: Screen | LineTemplates, text: bytes) -> set[tuple[int, int]]:
    """(pattern, number of the line)"""
    return {(index, text.count(b"\n", 0, end)) for index, end in screen.scan(text)}


def test_a_word_alone_is_no_hit() -> None:
    text = (
        b"valve 12 of the boiler stuck\nthe turbine runs\nvalve 7 of the turbine stuck\nValve of the Turbine, stuck\n"
    )
    assert lines_hit(HyperscanScreen([VALVE]), text) == {(0, 2), (0, 3)}  # the last is for the pattern to refuse
    assert lines_hit(LineTemplates([VALVE], HyperscanScreen, frozenset()), text) == {(0, 2)}


def test_a_word_is_looked_for_as_it_is_written() -> None:
    patterns = [r"valve\(\) \[7\] a\.b\+c", r"(?i)chiller|turbine", r"x{2}"]
    text = b"valve() [7] a.b+c\nCHILLER\nvalve(7) axb+c\nxx\n"
    assert lines_hit(HyperscanScreen(patterns), text) == {(0, 0), (1, 1), (2, 3)}


def test_digits_and_short_words_do_not_stand_for_a_pattern() -> None:
    expressions, forms = hyperscan._forms([r"0000-00-00 ab \d", VALVE])
    assert expressions[0] == r"0000-00-00 ab \d"
    assert [index for index, _ in forms] == [0, 1]


def test_a_pattern_alone_is_asked_as_it_is_written() -> None:
    asked = HyperscanScreen([VALVE]).alone(VALVE)
    assert asked(b"x\nvalve 7 of the turbine stuck\n")
    assert not asked(b"valve seven of the turbine stuck\n")


@pytest.mark.parametrize("matcher", [HyperscanScreen, PlainScreen])
@pytest.mark.parametrize("before", [0, 12])
def test_a_match_in_a_long_line_is_found_behind_words_that_are_none(
    matcher: type[HyperscanScreen], before: int
) -> None:
    """The reader looks around the end that it is told, so that must be the match's own and no word's before it."""
    line = (b"valve turbine " + b"." * 4000) * before + b"." * LONGEST + b"valve 7 of the turbine stuck"
    found = LineTemplates([VALVE], matcher, frozenset()).scan(line + b"\n")
    assert found == [(0, len(line))]


def test_a_word_of_many_patterns_stands_for_none_of_them() -> None:
    parts = ("rotor", "blade", "shaft", "bearing", "casing")
    expressions, forms = hyperscan._forms(
        [*(f"turbine: [a-z]{{2,9}} in {part}" for part in parts), "turbine: [a-z]{3} stopped"]
    )
    assert len(parts) >= hyperscan.SHARING
    assert expressions[:5] == [f"(?i)\\ in\\ {part}" for part in parts]
    assert expressions[5] == "(?i)\\ stopped" and forms[5] == (5, [["turbine: "]])
