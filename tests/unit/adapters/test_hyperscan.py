"""The fast screen: words in place of patterns, the rest of what they need, and exact answers where digits count."""

from __future__ import annotations

from pathlib import Path

import pytest

from sentinel.adapters import hyperscan, pattern_cache
from sentinel.adapters.hyperscan import HyperscanScreen
from sentinel.evidence.logs.screen.line_templates import LONGEST, LineTemplates
from sentinel.evidence.logs.screen.prefilter import PlainScreen, Screen

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
    expressions, lookups = hyperscan._lookups([r"0000-00-00 ab \d", VALVE])
    assert expressions[0] == r"0000-00-00 ab \d"
    assert [index for index, _ in lookups] == [0, 1]


def test_a_pattern_alone_is_asked_as_it_is_written() -> None:
    asked = HyperscanScreen([VALVE]).alone(VALVE)
    assert asked(b"x\nvalve 7 of the turbine stuck\n")
    assert not asked(b"valve seven of the turbine stuck\n")


@pytest.mark.parametrize("matcher", [HyperscanScreen, PlainScreen])
@pytest.mark.parametrize("before", [0, 12, 60])
def test_a_match_in_a_long_line_is_found_behind_words_that_are_none(
    matcher: type[HyperscanScreen], before: int
) -> None:
    """The reader looks around the end that it is told, so that must be the match's own and no word's before it."""
    line = (b"valve turbine " + b"." * 4000) * before + b"." * LONGEST + b"valve 7 of the turbine stuck"
    found = LineTemplates([VALVE], matcher, frozenset()).scan(line + b"\n")
    assert found == [(0, len(line))]


def test_words_that_stand_close_together_are_one_place_of_a_long_line() -> None:
    line = b"valve turbine stuck of the " * 3000 + b"valve 7 of the turbine stuck"
    assert LineTemplates([VALVE], HyperscanScreen, frozenset()).scan(line + b"\n") == [(0, len(line))]


@pytest.mark.parametrize("told", [b"", b"{", b"[]", b"[1]", b'[["a", []]]', b"[[0, 3]]", b"[" * 99_999])
def test_a_kept_automaton_whose_words_cannot_be_read_is_as_good_as_none(
    told: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    HyperscanScreen([VALVE], keep=True)
    (name,) = (path.stem for path in (tmp_path / "sentinel").iterdir())
    kept = pattern_cache.load(name)
    assert kept is not None
    assert pattern_cache.save(name, told + b"\n" + kept.split(b"\n", 1)[1])
    assert lines_hit(HyperscanScreen([VALVE], keep=True), b"valve 7 of the turbine stuck\n") == {(0, 0)}


def test_a_word_of_many_patterns_stands_for_none_of_them() -> None:
    parts = ("rotor", "blade", "shaft", "bearing", "casing")
    expressions, lookups = hyperscan._lookups(
        [*(f"turbine: [a-z]{{2,9}} in {part}" for part in parts), "turbine: [a-z]{3} stopped"]
    )
    assert len(parts) > hyperscan.SHARING
    assert expressions[:5] == [f"(?i)\\ in\\ {part}" for part in parts]
    assert expressions[5] == "(?i)\\ stopped" and lookups[5] == (5, [["turbine: "]])
