"""Nodes that fail together count together, also those that wait for their judgement."""

from __future__ import annotations

from core_daemon import RULES
from core_records import AT, ended, evidence, incident, later, verdict

from sentinel.daemon.failing import FirstLooks, failing_alike, failing_together
from sentinel.model import Cause, Incident, Verdict
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


def test_other_jobs_count_as_judged_or_as_they_look_while_they_wait() -> None:
    incidents = {name: incident(id=name, job=job) for name, job in (("me", 1), ("a", 2), ("b", 3), ("c", 1), ("d", 4))}
    judged = {"a": verdict(Cause.NETWORK_FABRIC)}

    def look(seen: Incident) -> Verdict:
        return verdict(Cause.UNKNOWN if seen.id == "d" else Cause.FILESYSTEM_STORAGE)

    found = failing_alike(incidents["me"], incidents, judged, ["me", "b", "c", "d"], look)
    assert [(past.job, past.cause) for past in found] == [(2, Cause.NETWORK_FABRIC), (3, Cause.FILESYSTEM_STORAGE)]
    alone = failing_alike(incidents["me"], incidents, judged, ["b"], lambda _: verdict(Cause.USER_CODE))
    assert [past.job for past in alone] == [2]  # what cannot be shared looks at nobody


def test_first_look_is_taken_once_for_as_long_as_nothing_is_added() -> None:
    looks = FirstLooks(RULES)
    bus = evidence("xid", node="n1", data={"xid": 79})
    seen = incident(bus, nodes=["n1"])
    assert looks(seen, AT) is looks(seen, AT) and looks(seen, AT).drain == ("n1",)
    assert looks(incident(bus, ended()), AT) is not looks(seen, AT)
