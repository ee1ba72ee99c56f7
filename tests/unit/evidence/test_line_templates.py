"""Lines that differ in their numbers alone are looked at once, and the answer is that of looking at each."""

from __future__ import annotations

import random
import re
from datetime import UTC, datetime
from itertools import islice

import pytest
from shipped import shipped_rules, shipped_signatures

from sentinel.evidence.logs.reader import LogReader
from sentinel.evidence.logs.screen import line_templates
from sentinel.evidence.logs.screen.digit_folding import FOLD, fold_digits
from sentinel.evidence.logs.screen.line_templates import LineTemplates
from sentinel.evidence.logs.screen.prefilter import PlainScreen
from sentinel.model.records import Kind

RULES = shipped_rules()
NOW = datetime(2026, 3, 4, tzinfo=UTC)
PATTERNS = [r"pump \d{1,3} hot", r"valve 7\b", r"\bturn \d{1,6}\b", r"leak [1-9]", r"[^5]bar$", r"gauge [02-4]x"]
TURN = frozenset({2})


class CountingScreen(PlainScreen):
    lines = 0

    def scan(self, block: bytes) -> list[tuple[int, int]]:
        CountingScreen.lines += block.count(b"\n") + 1
        return super().scan(block)


def naive(block: bytes) -> set[tuple[int, int]]:
    """(line number, pattern) of every match, line by line."""
    compiled = [re.compile(pattern.encode()) for pattern in PATTERNS]
    lines = block.split(b"\n")
    return {(n, i) for n, line in enumerate(lines) for i, one in enumerate(compiled) if one.search(line)}


def made(rng: random.Random, lines: int) -> bytes:
    forms = [
        "pump %d hot",
        "pump %d cold",
        "valve %d",
        "turn %d of many",
        "leak %d, turn %d",
        "%dbar",
        "gauge %dx",
        "quiet %d",
    ]
    made = []
    for _ in range(lines):
        form = rng.choice(forms)
        made.append(form % tuple(rng.randrange(12) for _ in range(form.count("%d"))))
        if rng.random() < 0.02:
            made[-1] = "x" * 3000 + made[-1] + "y" * 3000
    return "\n".join(made).encode() + b"\n"


@pytest.mark.parametrize("seed", range(8))
def test_hits_hold_every_match_and_hardly_more(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_templates, "MOST", 40)  # forgets on the way
    monkeypatch.setattr(line_templates, "MANY", 8)
    rng = random.Random(seed)
    templates = LineTemplates(PATTERNS, PlainScreen, TURN)
    for _ in range(6):
        block = made(rng, 120)
        others, steps = templates.hit_lines(block, list)
        lines = block.split(b"\n")
        for line in (*others, *steps):
            assert block[line.start : line.end] == lines[line.number]
            assert all(0 < at <= line.end - line.start for _, at in line.hits)
        found = {(line.number, index) for line in (*others, *steps) for index, _ in line.hits}
        assert found >= naive(block)
        certain = {i for i, pattern in enumerate(PATTERNS) if not fold_digits(pattern).sensitive}
        assert {hit for hit in found if hit[1] in certain} == {hit for hit in naive(block) if hit[1] in certain}


def test_a_block_in_which_templates_are_forgotten_keeps_the_hits_known_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_templates, "MOST", 4)
    templates = LineTemplates(PATTERNS, PlainScreen, TURN)
    assert templates.hit_lines(b"pump 12 hot\n", list)[0]
    others, _ = templates.hit_lines(b"pump 48 hot\nnew a\nnew b\nnew c\nnew d\nnew e\n", list)
    assert [line.number for line in others] == [0]


def test_a_line_that_differs_in_its_numbers_is_not_read_again() -> None:
    templates = LineTemplates(PATTERNS, CountingScreen, TURN)
    templates.hit_lines(b"pump 12 hot at 3\nnothing 4\n", list)
    CountingScreen.lines = 0
    others, _ = templates.hit_lines(b"nothing 7\npump 48 hot at 9\n" * 500, list)
    assert len(others) == 500
    assert CountingScreen.lines == 0


def test_of_one_line_the_hits_are_in_the_rules_order_whatever_the_screen_s_is() -> None:
    """Which of two is kept, where only one may be, must not depend on the screen."""

    class Reversed(PlainScreen):
        def scan(self, block: bytes) -> list[tuple[int, int]]:
            return super().scan(block)[::-1]

    for screen in (PlainScreen, Reversed):
        found = LineTemplates([r"pump \w+ stalled", "stalled"], screen, frozenset()).scan(b"pump four stalled\n")
        assert found == [(0, 17), (1, 17)]


def test_a_pattern_that_asks_for_certain_digits_is_asked_once_for_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    templates = LineTemplates(PATTERNS, PlainScreen, TURN)
    others, steps = templates.hit_lines(b"leak 0, turn 5\n" * 200, lambda numbers: islice(numbers, 3))
    assert not others and [line.number for line in steps] == [197, 198, 199]
    others, _ = templates.hit_lines(b"leak 0, turn 5\n" * 200 + b"leak 3, turn 6\n", list)
    assert others[-1].number == 200


@pytest.mark.parametrize(
    ("pattern", "folded", "sensitive"),
    [
        (r"Xid 79", "Xid 00", True),
        (r"[1-9]\d{2,3}", r"(?:0|[1-9])\d{2,3}", True),
        (r"[0-9a-f]{4}", r"[0-9a-f]{4}", False),
        (r"[^0]x", r"(?:0|[^0])x", True),
        (r"(?P<n1>a{3})(?i:b4)", r"(?P<n1>a{3})(?i:b0)", True),
        (r"\x31\.\d", r"0\.\d", True),
        (r"plain", "plain", False),
    ],
)
def test_folding(pattern: str, folded: str, sensitive: bool) -> None:
    assert fold_digits(pattern) == (type(fold_digits("x"))(folded, sensitive))


def test_what_a_rule_matches_its_folded_pattern_matches_folded() -> None:
    for rule in RULES.rules:
        folded = re.compile(fold_digits(rule.pattern).pattern.encode())
        for line in rule.match:
            assert folded.search(line.encode().translate(FOLD)), rule.id


def test_of_an_old_log_the_last_steps_are_evidence_and_no_others() -> None:
    text = "".join(
        f"iteration {i:8d}/ 5000 | lm loss: 2.1 | number of nan iterations:   0 |\n" for i in range(300)
    ).encode()
    reader = LogReader(shipped_signatures(), own_times=True, last_steps=5)
    assert reader.feed(text[:9000], NOW) + reader.feed(text[9000:], NOW) == []
    steps = reader.finish(NOW)
    assert [(item.kind, item.line, item.data["step"]) for item in steps] == [
        (Kind.STEP, i + 1, i) for i in range(295, 300)
    ]
