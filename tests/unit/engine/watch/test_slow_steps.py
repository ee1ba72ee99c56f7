"""Jobs that become slower: told once, with whom it points at; the job goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest
from in_memory.daemon import Daemon, FakeSink
from in_memory.world import World
from made_records import evidence, fleet, job, later
from shipped import shipped_signatures

from sentinel.classify.slowdown import slowdown
from sentinel.correlate.incidents import opens
from sentinel.detect.cluster_view import ClusterView
from sentinel.detect.seen import AttemptSeen
from sentinel.detect.slow_steps import RANK_SLOWER, SlowdownWatch
from sentinel.evidence.logs.reader import LogReader
from sentinel.evidence.logs.timers import TIMERS, Report, data_of, timer_of
from sentinel.model.records import Cause, Evidence, Kind, Scope, Source, Trust, Where
from sentinel.wire import evidence_from, to_json

Worlds = Callable[..., World]


class Runs:
    """Two jobs of two nodes each, which make steps; what ``SlowdownWatch`` says of the first."""

    def __init__(self) -> None:
        self.live = ClusterView()
        self.live.see_fleet(fleet(4, [job(), job(102, nodes=("n3", "n4"))]))
        self.slowdowns = SlowdownWatch(self.live)
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

    def timers(self, report: Report) -> None:
        at_s, data = self.now_s[101], data_of(report)
        self.live.note(evidence(TIMERS, at_s=at_s, source=Source.JOB_LOG, job=101, attempt=0, data=data))

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


def timed(runs: Runs, times: Callable[[int], Sequence[float]], timer: str = "forward-compute") -> Evidence:
    """Sixteen steps before and sixty slower ones, with a report of timers after every eighth; what is found."""
    runs.slowdowns = SlowdownWatch(runs.live)
    for i in range(12):
        runs.steps(8, 1.0 if i < 4 else 1.4)
        values = [100.0] * 16 if i < 4 else times(i)
        runs.timers(Report({timer: timer_of(dict(enumerate(values)))}, ranks=len(values)))
    (found,) = runs.found
    return found


def test_timers_that_name_one_rank_point_at_its_node(runs: Runs) -> None:
    runs.seen().rank_nodes.update({11: "n2", 3: "n1"})
    found = timed(runs, lambda _: [100.0] * 11 + [140.0] + [100.0] * 4)
    assert (found.where.rank, found.where.node, found.data["pattern"]) == (11, "n2", "component")
    assert found.data["ranks"] == "11" and "rank 11 on n2" in found.text and "slow in forward-compute" in found.text


def test_ranks_of_a_full_report_lie_on_nodes_as_launchers_fill_them(runs: Runs) -> None:
    found = timed(runs, lambda _: [100.0] * 11 + [140.0] + [100.0] * 4)
    assert runs.seen().top_rank == 15 and (found.where.rank, found.where.node) == (11, "n2")


def test_from_the_lines_of_a_log_to_the_rank_and_its_node(runs: Runs) -> None:
    where = Where(node="n1", job=101, attempt=0, path="/log")
    reader = LogReader(shipped_signatures(), source=Source.JOB_LOG, where=where)
    for report in range(12):
        runs.steps(8, 1.0 if report < 4 else 1.4)
        lines = ["times across ranks (ms):", "  backward-compute:", "[rank3]: a line of another rank"]
        lines += [f"     rank {rank:2d}: {140.5 if report >= 4 and rank == 13 else 100.25:.2f}" for rank in range(16)]
        for item in reader.feed("\n".join([*lines, ""]).encode(), later(runs.now_s[101])):
            runs.live.note(evidence_from(to_json(item)))
    (found,) = runs.found
    assert (found.data["pattern"], found.where.rank, found.where.node) == ("component", 13, "n2")
    assert "slow in backward-compute" in found.text


def test_slow_ranks_that_lie_apart_convict_no_node(runs: Runs) -> None:
    found = timed(runs, lambda _: [140.0] + [100.0] * 14 + [140.0])
    assert (found.data["pattern"], found.where.node) == ("", None) and "ranks 0, 15" in found.text


@pytest.mark.parametrize(
    ("times", "pattern", "words"),
    [
        (lambda i: [100.0] * i + [140.0] + [100.0] * (15 - i), "application", "took turns"),
        (lambda _: [100.0 + 10.0 * rank for rank in range(16)], "application", "grow with the rank"),
        (lambda _: [140.0] * 16, "everyone", "all ranks slower alike"),
        (lambda _: [100.0] * 16, "", "steps take"),
    ],
)
def test_timers_that_name_no_rank(
    runs: Runs, times: Callable[[int], Sequence[float]], pattern: str, words: str
) -> None:
    found = timed(runs, times)
    assert (found.data["pattern"], found.where.node, found.where.rank) == (pattern, None, None) and words in found.text


def slow_from_the_start(runs: Runs, pipeline: int, slow: float = 140.0, reports: int = 45) -> list[Evidence]:
    """Reports over six minutes in which rank 11 of 16 is slow, and was never quicker."""
    for _ in range(reports):
        runs.steps(8, 1.0)
        values = dict(enumerate([100.0] * 11 + [slow] + [100.0] * 4))
        runs.timers(Report({"forward-compute": timer_of(values, pipeline)}, ranks=16, pipeline=pipeline))
    return runs.found


@pytest.mark.parametrize("pipeline", [1, 2])
def test_a_rank_that_was_never_quicker_is_named_where_all_should_be_alike(pipeline: int) -> None:
    (found,) = slow_from_the_start(Runs(), pipeline)
    assert (found.kind, found.where.rank, found.where.node) == (Kind.SLOW, 11, "n2")
    assert (found.data["pattern"], found.data["watched"], found.trust) == ("component", True, Trust.USER)
    assert "1.40 times the others" in found.text and "never quicker" in found.text


def test_a_rank_whose_work_is_not_known_is_noted_and_nobody_is_named() -> None:
    (found,) = slow_from_the_start(Runs(), 0)
    assert found.kind == RANK_SLOWER and not opens(found) and found.where.node is None
    assert "whether its stage has more work is not known" in found.text


@pytest.mark.parametrize(("slow", "reports"), [(115.0, 45), (140.0, 30)])
def test_a_little_or_not_for_long_is_no_slow_rank(slow: float, reports: int) -> None:
    assert slow_from_the_start(Runs(), 1, slow, reports) == []


def test_stages_with_more_work_are_no_slow_ranks() -> None:
    """The last of four stages has the head of the model; one rank of it is slower than the other three."""
    made = Runs()
    for _ in range(45):
        made.steps(8, 1.0)
        times = {rank: 100.0 + 30.0 * (rank >= 12) for rank in range(16)}
        made.timers(Report({"forward-compute": timer_of(times, 4)}, ranks=16, pipeline=4))
    assert made.found == []


def after_a_restart(nodes: tuple[str, str], took_s: float, steps: int = 300) -> list[Evidence]:
    """A job that ran on n1 and n2 with steps of a second, and runs on ``nodes`` now."""
    made = Runs()
    made.steps(100, 1.0)
    made.live.see_fleet(fleet(6, [job(nodes=nodes, restarts=1)]))
    seen = made.live.attempts[101, 1]
    for n in range(steps):
        data = {"step": 101 + n, "step_time_s": took_s * (1.0 + 0.02 * (n % 5))}
        at_s = 200.0 + took_s * n
        made.live.note(evidence(Kind.STEP, at_s=at_s, source=Source.JOB_LOG, job=101, attempt=1, data=data))
        made.found += made.slowdowns.look(seen, later(at_s))
    return made.found


def test_the_one_new_node_of_a_slower_attempt_is_named() -> None:
    (found,) = after_a_restart(("n1", "n5"), 1.4)
    assert (found.where.node, found.where.attempt, found.data["pattern"]) == ("n5", 1, "component")
    assert "n5 is the one node that is new" in found.text


@pytest.mark.parametrize(
    ("nodes", "took_s", "steps"),
    [(("n1", "n5"), 1.1, 300), (("n3", "n4"), 1.4, 300), (("n1", "n2"), 1.4, 300), (("n1", "n5"), 1.4, 200)],
)
def test_an_attempt_that_is_slower_for_no_known_reason_names_nobody(
    nodes: tuple[str, str], took_s: float, steps: int
) -> None:
    assert after_a_restart(nodes, took_s, steps) == []


def test_timers_without_a_layout_disturb_nobody() -> None:
    made = Runs()
    for _ in range(40):
        made.steps(8, 1.0)
        made.timers(Report({"forward-compute": timer_of(dict(enumerate([140.0] + [100.0] * 15)))}, ranks=16))
    assert not any(opens(item) for item in made.found)


async def test_timers_are_remembered_and_not_stored(world: Worlds) -> None:
    there = world()
    daemon = Daemon(there, [FakeSink()])
    await daemon.fleets.take()
    data = data_of(Report({"forward-compute": timer_of({0: 1.0, 1: 1.0, 2: 3.0})}, ranks=3))
    await daemon.observe([evidence(TIMERS, source=Source.JOB_LOG, job=there.job, attempt=0, data=data)])
    await daemon.quiet()
    seen = daemon.live.attempts[there.job, 0]
    assert len(seen.timers) == 1 and len(seen.pool) == 0 and daemon.bugs() == 0


@pytest.mark.parametrize(
    ("pattern", "fact", "cause", "scope"),
    [
        ("component", "pcie_width", Cause.PCIE, Scope.GPU),
        ("component", "link_flap", Cause.NETWORK_FABRIC, Scope.GPU),
        ("component", None, Cause.GPU_THERMAL_POWER, Scope.GPU),
        ("application", None, Cause.USER_CONFIG, Scope.APPLICATION),
        ("everyone", None, Cause.NETWORK_FABRIC, Scope.CLUSTER),
        ("cluster", None, Cause.FILESYSTEM_STORAGE, Scope.CLUSTER),
        ("", None, Cause.GPU_THERMAL_POWER, None),
    ],
)
def test_what_it_speaks_for(pattern: str, fact: str | None, cause: Cause, scope: Scope | None) -> None:
    weights, _, found, _ = slowdown(pattern, fact)
    assert max(weights, key=lambda each: weights[each]) is cause and found is scope


@pytest.mark.parametrize(
    ("pattern", "scope"),
    [("component", "gpu"), ("application", "application"), ("everyone", "unknown"), ("", "unknown")],
)
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


async def slow_then_failed(world: Worlds, nodes: int) -> tuple[World, Daemon]:
    """People are told that n1 holds the job up; an hour and a new daemon later the job fails."""
    there = world(nodes=nodes)
    daemon = Daemon(there, [FakeSink()])
    await daemon.fleets.take()
    slow = evidence(
        Kind.SLOW, source=Source.PROGRESS, job=there.job, attempt=0, node="n1", trust=Trust.USER,
        text="rank 3 on n1 is slow", data={"watched": True, "persistent": True, "pattern": "component"},
    )  # fmt: skip
    await daemon.observe([slow])
    await daemon.quiet()
    verdict = there.store.last_verdict(there.store.incident_ids()[0])
    assert verdict is not None and (verdict.suspect, verdict.drain) == (("n1",), ())  # tested when it is idle
    there.slurm.clock.advance(3600.0)
    daemon = Daemon(there, [FakeSink()])
    await daemon.start()
    await daemon.observe([evidence(Kind.NODE_UNREACHABLE, source=Source.PROBE, node="n2", at_s=3600.0)])
    await daemon.quiet()
    return there, daemon


async def test_a_node_that_held_the_job_up_is_left_out_at_its_next_restart(world: Worlds) -> None:
    there, daemon = await slow_then_failed(world, 6)
    this = there.slurm.jobs[there.job]
    assert this.restarts == 1 and set(this.excluded) == {"n1", "n2"} and this.state == "RUNNING"
    assert not there.slurm.nodes["n1"].drained and daemon.bugs() == 0


async def test_it_is_kept_where_the_job_could_not_run_without_it(world: Worlds) -> None:
    there, _ = await slow_then_failed(world, 3)
    this = there.slurm.jobs[there.job]
    assert this.restarts == 1 and this.excluded == ("n2",) and "n1" in this.on
