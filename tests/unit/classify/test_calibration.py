"""A verdict states how often its like proved right; a surer one never states less."""

from __future__ import annotations

import dataclasses

import pytest
from in_memory.daemon import RULES
from made_records import AT
from shipped import shipped_signatures

from sentinel.classify import classify
from sentinel.classify.calibration import along, calibrated
from sentinel.config.judgement_settings import Judgement
from sentinel.config.rules import Rules
from sentinel.config.rules_toml import parse_rules
from sentinel.config.settings import Limits
from sentinel.errors import FileError
from sentinel.evidence.logs.reader import LogReader
from sentinel.model.records import Incident, Source, Verdict, Where

LOST = "NVRM: Xid (PCI:0000:5d:00): 79, pid=0, GPU has fallen off the bus."
CURVE = ((0.0, 0.0), (0.4, 0.6), (1.0, 0.9))


@pytest.mark.parametrize(("share", "right"), [(0.0, 0.0), (0.2, 0.3), (0.4, 0.6), (0.7, 0.75), (1.0, 0.9), (1.2, 0.9)])
def test_between_two_points_the_curve_is_straight(share: float, right: float) -> None:
    assert along(CURVE, share) == pytest.approx(right)


def verdict_of(source: Source, *lines: str, rules: Rules = RULES) -> Verdict:
    reader = LogReader(shipped_signatures(), source=source, bare=True, where=Where(node="gpu9"))
    found = reader.feed("".join(f"{line}\n" for line in lines).encode(), AT) + reader.finish(AT)
    return classify(Incident("i1", AT, AT, evidence=tuple(found)), rules=rules, now=AT)


def test_what_only_a_program_said_is_stated_along_the_curve() -> None:
    program, machine = verdict_of(Source.JOB_LOG, LOST), verdict_of(Source.KERNEL, LOST)
    assert program.cause is machine.cause
    assert program.confidence <= RULES.judgement.program_curve[-1][1]
    assert machine.confidence <= RULES.judgement.machine_curve[-1][1]


def test_what_a_machine_said_has_a_curve_of_its_own_and_its_drain_a_factor() -> None:
    """A card that runs hot beside one that is lost leaves the cause open, not whether the node goes."""
    changed = dataclasses.replace(RULES.judgement, machine_curve=((0.0, 0.0), (1.0, 0.25)), calibration=0.5)
    verdict = verdict_of(Source.KERNEL, LOST, rules=dataclasses.replace(RULES, judgement=changed))
    assert verdict.drain
    assert verdict.confidence == pytest.approx(0.25, abs=0.01)
    assert verdict.drain_confidence == pytest.approx(0.5, abs=0.01)


def test_a_node_that_was_added_to_the_drain_is_as_sure_as_the_cause_is_likely() -> None:
    verdict = dataclasses.replace(verdict_of(Source.KERNEL, LOST), confidence=0.6, drain_confidence=0.0)
    added = calibrated(verdict, RULES)
    assert added.drain_confidence == pytest.approx(0.6 * RULES.judgement.calibration)
    assert calibrated(dataclasses.replace(verdict, drain=()), RULES).drain_confidence == 0.0


def test_an_even_chance_is_where_stops_and_holds_begin() -> None:
    """Both curves cross it at the odds at which a stop began with the curves of before, so that no decision moved."""
    least = Limits().stop_confidence
    assert along(RULES.judgement.program_curve, 0.607) == pytest.approx(least, abs=0.002)
    assert along(RULES.judgement.machine_curve, 0.62 / 0.85) == pytest.approx(least, abs=0.002)


def test_no_curve_drains_what_the_factor_does_not() -> None:
    """A drain counts the higher of both; the cause's own share must not lift it over a limit."""
    least = Judgement().act_confidence
    for share in (step / 100 for step in range(101)):
        stated, factor = along(RULES.judgement.machine_curve, share), RULES.judgement.calibration * share
        assert (max(stated, factor) >= least) is (factor >= least), share


def test_a_bare_traceback_is_surer_than_what_is_tried_again() -> None:
    text = ("Traceback (most recent call last):", '  File "train.py", line 7, in <module>', "KeyError: 7")
    assert verdict_of(Source.JOB_LOG, *text).confidence > Limits().stop_confidence


@pytest.mark.parametrize(
    "value",
    [
        "0.5",
        "[]",
        "[[0.0, 0.5], [0.5]]",
        "[[0.0, 0.5], [0.5, 0.4]]",
        "[[0.5, 0.1], [0.5, 0.4]]",
        "[[0, 2]]",
        "[[0, nan]]",
        f"[[0, 1{'0' * 400}]]",
        "[[0, true]]",
    ],
)
@pytest.mark.parametrize("key", ["program_curve", "machine_curve"])
def test_a_curve_that_does_not_grow_is_refused(value: str, key: str) -> None:
    with pytest.raises(FileError) as caught:
        parse_rules([("a.toml", f"[judgement]\n{key} = {value}\n")])
    assert caught.value.key == key
