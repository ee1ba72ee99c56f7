"""Jobs that become slower: told once, with whom it points at; the job goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from core_daemon import Daemon, FakeSink
from core_records import evidence, fleet, job, later
from core_world import World

from sentinel.classify.slowdown import slowdown
from sentinel.daemon.live import AttemptSeen, Live
from sentinel.daemon.slowdown import Slowdowns
from sentinel.model import Cause, Evidence, Kind, Scope, Source, Trust

Worlds = Callable[..., World]


class Runs:
    """Two jobs of two nodes each, which make steps; what ``Slowdowns`` says of the first."""

    def __init__(self) -> None:
        self.live = Live()
        self.live.see_fleet(fleet(4, [job(), job(102, nodes=("n3", "n4"))]))
        self.slowdowns = Slowdowns(self.live)
        self.now_s = dict.fromkeys((101, 102), 0.0)
        self.found: list[Evidence] = []

    def seen(self, number: int = 101) -> AttemptSeen:
        return self.live.attempts[number, 0]

    def steps(self, count: int, took_s: float, number: int = 101, uneven: float = 0.02) -> None:
        for _ in range(count):
            last = self.seen(number).rhythm.last_step
            self.now_s[number] += took_s * (1.0 + uneven * (last % 5))
            data = {"step": last + 1, "step_time_s": took_s * (1.0 + uneven * (last % 5))}
            at_s = self.now_s[number]
            self.live.note(evidence(Kind.STEP, at_s=at_s, source=Source.JOB_LOG, job=number, attempt=0, data=data))
            self.found += self.slowdowns.look(self.seen(number), later(at_s))

    def report(self, ranks: str) -> None:
        self.live.note(
            evidence("straggler", at_s=self.now_s[101], source=Source.JOB_LOG, job=101, attempt=0, data={"text": ranks})
        )


@pytest.fixture
def runs() -> Runs:
    made = Runs()
    made.steps(160, 1.0)
    made.steps(160, 1.0, 102)
    return made


def test_a_lasting_slowdown_is_told_once(runs: Runs) -> None:
    runs.steps(120, 1.4)
    (found,) = runs.found
    assert (found.kind, found.data["persistent"], found.data["watched"], found.data["pattern"]) == (
        "slow",
        True,
        True,
        "",
    )
    assert found.trust is Trust.USER and found.data["ratio"] == pytest.approx(1.4, rel=0.05)


def test_one_that_comes_again_is_told_again(runs: Runs) -> None:
    runs.steps(60, 1.4)
    runs.steps(160, 1.0)
    runs.steps(60, 1.4)
    assert len(runs.found) == 2


@pytest.mark.parametrize("count", [10, 24])
def test_a_short_one_is_not_told(runs: Runs, count: int) -> None:
    runs.steps(count, 1.6)
    runs.steps(100, 1.0)
    assert runs.found == []


def test_uneven_steps_are_no_slowdown() -> None:
    made = Runs()
    made.steps(400, 1.0, uneven=0.4)
    assert made.found == []


def test_reports_that_name_one_rank_point_at_its_node(runs: Runs) -> None:
    runs.seen().rank_nodes.update({3: "n2", 5: "n1"})
    for ranks in ("3", "3, 5", "StragglerId(rank=3)"):
        runs.report(ranks)
    runs.steps(60, 1.4)
    (found,) = runs.found
    assert (found.where.rank, found.where.node, found.data["pattern"]) == (3, "n2", "component")
    assert "rank 3 on n2 was slow in 3 of 3 reports" in found.text


def test_reports_that_name_others_each_time_point_at_the_job(runs: Runs) -> None:
    for ranks in ("3", "5", "0", "7"):
        runs.report(ranks)
    runs.steps(60, 1.4)
    assert runs.found[0].data["pattern"] == "application" and runs.found[0].where.node is None


def test_a_node_whose_clocks_are_slow_is_named(runs: Runs) -> None:
    runs.live.note(evidence("clocks_slowdown", at_s=100.0, source=Source.DCGM, node="n1", text="GPU 3 brakes"))
    runs.steps(60, 1.4)
    (found,) = runs.found
    assert (found.data["pattern"], found.data["fact"], found.where.node) == ("component", "clocks_slowdown", "n1")
    assert "n1: GPU 3 brakes" in found.text


def test_jobs_that_become_slow_together_share_the_reason(runs: Runs) -> None:
    runs.steps(60, 1.4, 102)
    runs.steps(60, 1.4)
    assert [item.data["pattern"] for item in runs.found] == ["", "cluster"]


@pytest.mark.parametrize(
    ("pattern", "fact", "cause", "scope"),
    [
        ("component", "pcie_width", Cause.PCIE, Scope.GPU),
        ("component", "link_flap", Cause.NETWORK_FABRIC, Scope.GPU),
        ("component", None, Cause.GPU_THERMAL_POWER, Scope.GPU),
        ("application", None, Cause.USER_CONFIG, Scope.APPLICATION),
        ("cluster", None, Cause.FILESYSTEM_STORAGE, Scope.CLUSTER),
        ("", None, Cause.GPU_THERMAL_POWER, None),
    ],
)
def test_what_it_speaks_for(pattern: str, fact: str | None, cause: Cause, scope: Scope | None) -> None:
    weights, _, found, _ = slowdown(pattern, fact)
    assert max(weights, key=lambda each: weights[each]) is cause and found is scope


@pytest.mark.parametrize(("pattern", "scope"), [("component", "gpu"), ("application", "application"), ("", "unknown")])
async def test_people_are_told_and_the_job_goes_on(world: Worlds, pattern: str, scope: str) -> None:
    there, sink = world(), FakeSink()
    daemon = Daemon(there, [sink])
    await daemon.fleets.take()
    slow = evidence(
        Kind.SLOW, source=Source.PROGRESS, job=there.job, attempt=0, node="n1" if pattern == "component" else None,
        text="steps take 1.4 s instead of 1.0 s", data={"watched": True, "persistent": True, "pattern": pattern},
    )  # fmt: skip
    await daemon.observe([slow])
    await daemon.quiet()
    (notice,) = sink.got
    assert notice.data["job"] == there.job and notice.data["scope"] == scope and "instead of" in notice.body
    assert there.slurm.jobs[there.job].state == "RUNNING" and there.store.open_plans() == []
    assert not any(node.drained for node in there.slurm.nodes.values()) and daemon.bugs() == 0
    assert asyncio.all_tasks() == {asyncio.current_task()}
