"""A verdict states how often its like proved right; a surer one never states less."""

from __future__ import annotations

import pytest
from in_memory.daemon import RULES
from made_records import AT
from shipped import shipped_signatures

from sentinel.classify import classify
from sentinel.classify.calibration import along
from sentinel.config.rules_toml import parse_rules
from sentinel.errors import FileError
from sentinel.evidence.logs.reader import LogReader
from sentinel.model.records import Incident, Source, Verdict

CURVE = ((0.0, 0.0), (0.4, 0.6), (1.0, 0.9))


@pytest.mark.parametrize(("share", "right"), [(0.0, 0.0), (0.2, 0.3), (0.4, 0.6), (0.7, 0.75), (1.0, 0.9), (1.2, 0.9)])
def test_between_two_points_the_curve_is_straight(share: float, right: float) -> None:
    assert along(CURVE, share) == pytest.approx(right)


def verdict_of(source: Source, *lines: str) -> Verdict:
    reader = LogReader(shipped_signatures(), source=source, bare=True)
    found = reader.feed("".join(f"{line}\n" for line in lines).encode(), AT) + reader.finish(AT)
    return classify(Incident("i1", AT, AT, evidence=tuple(found)), rules=RULES, now=AT)


def test_what_only_a_program_said_is_stated_along_the_curve() -> None:
    lost = "NVRM: Xid (PCI:0000:5d:00): 79, pid=0, GPU has fallen off the bus."
    program, machine = verdict_of(Source.JOB_LOG, lost), verdict_of(Source.KERNEL, lost)
    assert program.cause is machine.cause
    assert program.confidence <= RULES.judgement.program_curve[-1][1]
    assert machine.confidence <= RULES.judgement.calibration


@pytest.mark.parametrize(
    "value",
    [
        "0.5",
        "[]",
        "[[0.0, 0.5], [0.5]]",
        "[[0.0, 0.5], [0.5, 0.4]]",
        "[[0.5, 0.1], [0.5, 0.4]]",
        "[[0, 2]]",
        "[[0, true]]",
    ],
)
def test_a_curve_that_does_not_grow_is_refused(value: str) -> None:
    with pytest.raises(FileError) as caught:
        parse_rules([("a.toml", f"[judgement]\nprogram_curve = {value}\n")])
    assert caught.value.key == "program_curve"
