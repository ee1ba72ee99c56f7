"""Nodes that fail together count together, also those that wait for their judgement."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
from in_memory.daemon import RULES, SETTINGS, Daemon, fail, states
from in_memory.world import World
from made_records import AT, ended, evidence, incident, later, verdict

from sentinel.config.settings import Limits
from sentinel.engine import mass_failures
from sentinel.engine.mass_failures import PreliminaryVerdicts, failing_alike, failing_together, hung_together
from sentinel.model.records import Cause, Ground, Incident, Kind, Source, Verdict

XID = {"xid": 79, "pci": "0000:3b:00"}
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
    printed = Ground(evidence(source=Source.JOB_LOG, node="n1"), 2.0)
    judged = {"a": dataclasses.replace(verdict(Cause.NETWORK_FABRIC), grounds=(printed,))}

    def look(seen: Incident) -> Verdict:
        return verdict(Cause.UNKNOWN if seen.id == "d" else Cause.FILESYSTEM_STORAGE)

    def owner(seen: Incident) -> str:
        return {"a": "ada"}.get(seen.id, "")

    found = failing_alike(incidents["me"], incidents, judged, ["me", "b", "c", "d"], look, owner)
    assert [(past.job, past.cause, past.user, past.users_words) for past in found] == [
        (2, Cause.NETWORK_FABRIC, "ada", True), (3, Cause.FILESYSTEM_STORAGE, None, False),
    ]  # fmt: skip
    alone = failing_alike(incidents["me"], incidents, judged, ["b"], lambda _: verdict(Cause.USER_CODE), owner)
    assert [past.job for past in alone] == [2]  # what cannot be shared looks at nobody


def test_the_many_jobs_of_one_user_that_wait_hide_none_of_others() -> None:
    """An array that fails with the storage comes before everybody else's jobs, and counts as one."""
    owners = {"me": "ada", **dict.fromkeys(("e1", "e2", "e3", "e4", "e5", "e6"), "eve"), "b": "bob", "c": "cy"}
    incidents = {name: incident(id=name, job=job) for job, name in enumerate(owners, 1)}
    looked: list[str] = []

    def look(seen: Incident) -> Verdict:
        looked.append(seen.id)
        return verdict(Cause.FILESYSTEM_STORAGE)

    found = failing_alike(incidents["me"], incidents, {}, list(owners), look, lambda seen: owners[seen.id])
    assert {past.user for past in found} == {"eve", "bob", "cy"}
    assert len(looked) == 5  # its own, and as many as before
    own = failing_alike(incidents["e1"], incidents, {}, list(owners), look, lambda seen: owners[seen.id])
    assert [past.user for past in own].count("eve") > 1  # one's own jobs count each


def test_first_look_is_taken_once_for_as_long_as_nothing_is_added() -> None:
    looks = PreliminaryVerdicts(RULES)
    bus = evidence("xid", node="n1", data={"xid": 79})
    seen = incident(bus, nodes=["n1"])
    assert looks(seen, AT) is looks(seen, AT) and looks(seen, AT).drain == ("n1",)
    assert looks(incident(bus, ended()), AT) is not looks(seen, AT)


def test_jobs_that_were_called_hung_within_the_window_count_whatever_became_of_them() -> None:
    def hung(name: str, job: int | None, at_s: float, kind: str = Kind.STALL) -> Incident:
        return incident(evidence(kind, at_s=at_s, job=job, attempt=0), id=name, job=job)

    known = [hung("a", 1, 0.0), hung("b", 2, -100.0), hung("c", 3, -130.0), hung("d", 1, -5.0), hung("e", None, 0.0)]
    found = hung_together([*known, hung("f", 4, 0.0, Kind.JOB_ENDED)], Limits(hung_window_s=120.0), AT)
    assert {job: seen.id for job, seen in found.items()} == {1: "a", 2: "b"}


async def test_a_failure_that_comes_alone_is_classified_once(
    world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What its own verdict convicts, policy counts by itself."""
    looks: list[object] = []
    monkeypatch.setattr(mass_failures, "classify", lambda seen, **_: looks.append(seen))
    daemon = Daemon(there := world())
    await fail(daemon, evidence(node="n1", data={"xid": 79}))
    assert looks == [] and there.slurm.nodes["n1"].drained


async def test_a_window_longer_than_closed_incidents_are_kept_for_news_is_honoured(world: Callable[..., World]) -> None:
    there = world(nodes=12, wide=1)
    limits = Limits(drain_fraction=1.0, drain_count=99, drain_per_hour=99, breaker_nodes=3, breaker_window_s=900.0)
    daemon = Daemon(there, settings=dataclasses.replace(SETTINGS, limits=limits))
    broken = ("n4", "n6", "n8", "n10")
    text = "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."
    for number, name in enumerate(broken):
        bus = evidence(Kind.XID, node=name, at_s=number * 60.0, data={"xid": 79, "pci": "0000:3b:00"}, text=text)
        await fail(daemon, bus)
        for _ in range(3):
            await daemon.pass_time(20.0)
            await daemon.housekeeping()
    assert [name for name in broken if there.slurm.nodes[name].drained] == ["n4", "n6"]
    await daemon.pass_time(900.0)
    await daemon.housekeeping()
    assert set(states(there)) == {"closed"} and there.slurm.nodes["n10"].drained, "two are fewer than three"


@pytest.mark.parametrize("starts_anew", [False, True])
async def test_a_breaker_with_a_long_window_counts_on_after_a_restart_of_the_daemon(
    world: Callable[..., World], starts_anew: bool
) -> None:
    there = world(nodes=12, wide=1)
    limits = Limits(breaker_nodes=3, breaker_window_s=7200.0, drain_fraction=1.0, drain_count=9)
    settings = dataclasses.replace(SETTINGS, limits=limits)
    daemon = Daemon(there, settings=settings)
    for number, name in enumerate(("n5", "n6")):
        await fail(daemon, evidence(Kind.XID, node=name, at_s=number / 2, data=XID, text="NVRM: Xid 79"))
    assert states(there) == ["closed", "closed"]
    await daemon.pass_time(3600.0)
    await daemon.housekeeping()
    if starts_anew:
        daemon = Daemon(there, settings=settings)
        await daemon.start()
        await daemon.housekeeping()
    now_s = (there.slurm.clock.now() - AT).total_seconds()
    await fail(daemon, evidence(Kind.XID, node="n7", at_s=now_s, data=XID, text="NVRM: Xid 79"))
    assert [plan.refusal for plan in there.store.open_plans()] == ["breaker"], daemon.said
