"""Nodes that fail together count together, also those that wait for their judgement."""

from __future__ import annotations

from core_records import AT, evidence, incident, later, verdict

from sentinel.daemon.failing import failing_together
from sentinel.model import Incident, Verdict
from sentinel.settings import Limits

LIMITS = Limits(breaker_nodes=3, breaker_window_s=60.0)


def of(*names: str) -> dict[str, Incident]:
    return {name: incident(evidence(node=name), id=name, job=None, attempt=None, nodes=[name]) for name in names}


def convicts(seen: Incident) -> Verdict:
    return verdict(drain=seen.nodes)


def test_what_waits_counts_by_its_first_look_and_no_longer_than_needed() -> None:
    looked: list[str] = []

    def look(seen: Incident) -> Verdict:
        looked.append(seen.id)
        return convicts(seen)

    found = failing_together(of("n1", "n2", "n3", "n4"), {}, ["n1", "n2", "n3", "n4"], look, LIMITS, AT)
    assert found == {"n1", "n2", "n3"} and looked == ["n1", "n2", "n3"]


def test_a_first_look_that_convicts_nobody_counts_nobody() -> None:
    assert failing_together(of("n1", "n2"), {}, ["n1", "n2"], lambda _: verdict(drain=()), LIMITS, AT) == frozenset()


def test_a_verdict_is_not_looked_at_again_and_old_news_does_not_count() -> None:
    found = failing_together(of("n1", "n2"), {"n1": verdict(drain=("n9",))}, ["n1"], convicts, LIMITS, later(30.0))
    assert found == {"n9"}
    assert (
        failing_together(of("n1"), {"n1": verdict(drain=("n1",))}, ["n1"], convicts, LIMITS, later(61.0)) == frozenset()
    )
