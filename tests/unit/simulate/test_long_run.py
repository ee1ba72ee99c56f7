"""Weeks on a simulated cluster: repeatable, every second accounted for, and wrong actions seen as such."""

from __future__ import annotations

import dataclasses
import math
import random
from pathlib import Path

import pytest

from sentinel.config.settings import Limits, Settings
from sentinel.engine.transition import CarryOutStep
from sentinel.errors import UserError
from sentinel.model.records import Ground, Incident, Plan, Restart, Scope, Step, StepKind, Task, Verdict
from sentinel.model.vocabulary import Cause
from sentinel.planning.history import history_from
from sentinel.simulate.long_run import causes, failures
from sentinel.simulate.long_run.account import SAVES, JobTime
from sentinel.simulate.long_run.assumptions import SILENCE, hang_seen_s
from sentinel.simulate.long_run.behaviours import MAKERS
from sentinel.simulate.long_run.cluster import moment
from sentinel.simulate.long_run.engine_runner import EngineRunner
from sentinel.simulate.long_run.rates import PRESETS, Rates, rates_of
from sentinel.simulate.long_run.run import Run
from sentinel.simulate.long_run.scenario import BEHAVIOURS, Scenario, acting
from sentinel.simulate.long_run.seeds import Ran, mean_interval, proportion_interval, run_one, summary
from sentinel.simulate.long_run.signs import Signs

SMALL = Scenario(nodes=64, days=20, spares=4)


def only(cause: str, per_1000_node_days: float = 10.0) -> Rates:
    return Rates("test", per_1000_node_days, {cause: 1.0}, "this test")


def same(ran: Ran) -> Ran:
    return dataclasses.replace(ran, wall_s=0.0)


# --- time ---------------------------------------------------------------------------------------------------------------


def test_every_second_of_a_job_is_work_or_lost_to_something() -> None:
    time = JobTime(interval_s=100.0, save_s=25.0)
    time.start(10.0, 0.0)
    assert time.reached_s(260.0) == pytest.approx(200.0)  # four fifths of 250 s
    time.stop(290.0, "faulty GPU")
    assert time.saved_s(290.0) == pytest.approx(200.0) and time.saved_s(290.0, torn=True) == pytest.approx(100.0)
    time.start(330.0, time.saved_s(330.0))
    time.close(455.0)
    assert time.work_s == pytest.approx(300.0)
    assert time.lost_s["faulty GPU"] == pytest.approx(40.0 + 24.0)  # down, and trained twice
    assert time.lost_s[SAVES] == pytest.approx(56.0 + 25.0)
    assert time.work_s + sum(time.lost_s.values()) == pytest.approx(455.0)


@pytest.mark.parametrize("name", BEHAVIOURS)
def test_a_seed_gives_the_same_again_and_loses_no_time(name: str) -> None:
    ran = run_one(SMALL, 7, name)
    assert same(run_one(SMALL, 7, name)) == same(ran)
    assert same(run_one(SMALL, 8, name)) != same(ran)
    whole = SMALL.gpus * SMALL.days * 24
    assert ran.ettr * whole + sum(ran.lost_gpu_hours.values()) == pytest.approx(whole)
    assert ran.incidents == ran.automated + ran.by_person + ran.unresolved > 0


def test_several_jobs_share_the_cluster() -> None:
    scenario = dataclasses.replace(SMALL, jobs=4)
    ran = run_one(scenario, 3, "sentinel")
    whole = scenario.gpus * scenario.days * 24
    assert ran.ettr * whole + sum(ran.lost_gpu_hours.values()) == pytest.approx(whole)
    assert ran.ettr > 0.95 and not ran.unsafe


# --- failures -----------------------------------------------------------------------------------------------------------


def test_failures_come_as_often_as_in_the_published_run() -> None:
    scenario = Scenario(nodes=2048, days=54)
    counts = [len(failures.failures_of(scenario, seed)) for seed in range(20)]
    assert sum(counts) / 20 == pytest.approx(419, abs=3 * math.sqrt(419 / 20))
    assert sum(PRESETS["llama3"].shares.values()) == pytest.approx(1.0)


def test_every_published_cause_has_signs_and_every_other_name_one_of_them() -> None:
    for rates in PRESETS.values():
        assert set(rates.shares) <= set(causes.SIGNS)
    assert set(causes.SAME_AS.values()) <= set(causes.SIGNS)


def test_lemons_fail_more_often() -> None:
    names = [f"n{number:05d}" for number in range(1000)]
    lemons = failures.Lemons(names, 1)
    assert len(lemons.names) == 12
    hits = [names[lemons.choose(names, (number + 0.5) / 5000)] in lemons.names for number in range(5000)]
    assert sum(hits) / 5000 == pytest.approx(144 / (144 + 988), abs=0.001)


@pytest.mark.parametrize(
    ("step_s", "share", "measured"),
    [(0.2, 0.949, "94.9 % of 967"), (10.0, 0.949, "94.9 % of 967"), (60.0, 0.917, "91.7 % of 420")],
)
def test_hangs_are_seen_as_often_in_time_as_the_bench_measured(step_s: float, share: float, measured: str) -> None:
    rng, within_s = random.Random(1), max(15.0, 3 * step_s)
    seen = [hang_seen_s(rng, step_s) for _ in range(20_000)]
    assert sum(one <= within_s for one in seen) / len(seen) == pytest.approx(share, abs=0.005)
    assert max(seen) <= max(180.0, 2 * within_s)
    stated = [row for row in SILENCE if measured in row.source]
    assert [row.value[0] for row in stated if isinstance(row.value, list)] == [share], "the source states the figure"
    page = Path(__file__).parents[3] / "docs" / "hang.md"
    assert "docs/hang.md" in stated[0].source and measured in page.read_text(), "and the page that it names has it"


def test_the_history_of_a_site_gives_its_rates() -> None:
    history = history_from(
        {
            "start": "2025-03-01T00:00:00Z",
            "end": "2025-03-11T00:00:00Z",
            "gpus": 800,
            "failures": [
                {"time": "2025-03-02T00:00:00Z", "cause": "gpu_fallen_off_bus"},
                {"time": "2025-03-03T00:00:00Z", "cause": "NIC"},
            ],
        }
    )
    rates = rates_of(history, "site.json")
    assert rates.per_1000_node_days == pytest.approx(2.0) and rates.shares == {"NIC": 0.5, "faulty GPU": 0.5}


# --- what reacts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cause", sorted(causes.SIGNS))
def test_the_engine_puts_a_job_back_to_work_whatever_struck(cause: str) -> None:
    scenario = dataclasses.replace(SMALL, rates=only(cause), needs_code=0.0)
    ran = run_one(scenario, 5, "sentinel")
    assert ran.incidents >= 5 and ran.automated / ran.incidents > 0.6, ran.by_person_causes
    assert (ran.wrong_drains, ran.wrong_restarts, ran.unsafe) == (0, 0, ())


def test_an_error_that_needs_new_code_goes_to_a_person() -> None:
    scenario = dataclasses.replace(SMALL, rates=only(causes.SOFTWARE_BUG), needs_code=1.0)
    ran = run_one(scenario, 5, "sentinel")
    assert ran.automated == 0 and ran.by_person > 0


def test_the_simulated_daemon_lives_all_the_time_and_forgets_what_is_over() -> None:
    """A daemon that stood still would wait with judgements, and keep closed incidents, for what may still come in."""
    run = Run(SMALL, 7, "sentinel")
    runner = EngineRunner(run)
    run.behaviour = runner
    kept: list[int] = []
    run.go(lambda _: kept.append(len(runner.state.incidents)))
    assert runner.state.absence is None
    assert run.counts.incidents >= 5 and max(kept) <= 4, kept
    assert sorted(run.counts.decision_s)[len(run.counts.decision_s) // 2] < 2.0


def test_sentinel_loses_less_than_what_is_there_without_it() -> None:
    scenario = dataclasses.replace(SMALL, rates=only("faulty GPU"))
    lost = {name: sum(run_one(scenario, 2, name).lost_gpu_hours.values()) for name in BEHAVIOURS}
    assert lost["sentinel"] == min(lost.values()) and lost["stock"] > lost["on-call"] > lost["byterobust"]


def drained(ground: str | None) -> Run:
    """A run in which one node is drained on this ground: its kernel's word on a broken node, a program's, or nothing."""
    run = Run(SMALL, 1, "sentinel")
    runner = EngineRunner(run)
    run.behaviour = runner
    now, node = moment(0.0), "n00003"
    lines = Signs()
    if ground == "program":
        found = lines.log(1000, 0, ((3, "torch.AcceleratorError: CUDA error: unknown error"),), now)
    else:
        found = lines.kernel(
            node, "NVRM: Xid (PCI:0000:5d:00): 79, pid=1, name=python, GPU has fallen off the bus.", now, now
        )
    if ground == "broken":
        run.broken[node] = failures.failures_of(dataclasses.replace(SMALL, rates=only("faulty GPU")), 1)[0]
    verdict = Verdict(
        Cause.GPU_FALLEN_OFF_BUS, Scope.GPU, 0.9, drain=(node,), restart=Restart.NONE,
        grounds=tuple(Ground(item, 4.0) for item in found),
    )  # fmt: skip
    incident, step = Incident("i1", now, now), Step(StepKind.DRAIN, node=node)
    runner._steps._done(CarryOutStep("e1", Task(incident, verdict, Plan("p1", "i1", now, (step,)), step)))
    return run


def test_a_drain_of_a_healthy_node_is_counted_wrong_and_one_on_a_programs_word_unsafe() -> None:
    assert (drained("broken").counts.wrong_drains, drained("broken").counts.unsafe) == (0, [])
    assert (drained("nothing").counts.wrong_drains, drained("nothing").counts.unsafe) == (1, [])
    wrong = drained("program").counts
    assert wrong.wrong_drains == 1 and "on a program's output" in wrong.unsafe[0]


def test_a_job_that_is_stopped_while_it_trains_is_an_unsafe_action() -> None:
    run = Run(SMALL, 1, "sentinel")
    runner = EngineRunner(run)
    run.behaviour, job = runner, run.cluster.jobs[0]
    run.start(job)
    run.times[0].start(0.0, 0.0)
    now = moment(0.0)
    step = Step(StepKind.REQUEUE_HOLD, job=job.id, attempt=0)
    verdict = Verdict(Cause.NCCL_HANG_UNKNOWN, Scope.UNKNOWN, 0.5, restart=Restart.RESUME)
    runner._steps._done(
        CarryOutStep("e1", Task(Incident("i1", now, now), verdict, Plan("p1", "i1", now, (step,)), step))
    )
    assert run.counts.wrong_restarts == 1 and "while it made steps" in run.counts.unsafe[0]


def test_budgets_hold_in_a_storm() -> None:
    tight = acting(dataclasses.replace(Settings(), limits=Limits(drain_count=1, drain_per_hour=1)))
    scenario = dataclasses.replace(SMALL, days=5, rates=only("faulty GPU", 100.0), settings=tight, spares=16)
    ran = run_one(scenario, 1, "sentinel")
    assert ran.waits.get("drain-budget", 0) > 0 and not ran.unsafe


# --- figures --------------------------------------------------------------------------------------------------------------


def test_intervals() -> None:
    assert mean_interval([0.5]) is None
    low, high = mean_interval([0.9, 0.92, 0.94]) or (0.0, 0.0)
    assert (low, high) == (
        pytest.approx(0.92 - 4.30 * 0.02 / math.sqrt(3)),
        pytest.approx(0.92 + 4.30 * 0.02 / math.sqrt(3)),
    )
    low, high = proportion_interval(10, 10)
    assert high == 1.0 and low == pytest.approx(0.7225, abs=1e-3)  # Wilson's, from tables


def test_the_summary_says_that_it_is_simulated_and_from_what() -> None:
    runs = [run_one(SMALL, seed, "stock") for seed in (4, 5)]
    told = summary(SMALL, runs)
    assert told["simulated"] is True and told["seeds"] == [4, 5] and told["seed"] == 4
    assert all({"name", "value", "unit", "source"} == set(row) for row in told["assumptions"])  # type: ignore[attr-defined]
    assert told["lost_gpu_hours"] == pytest.approx(sum(told["lost_by_cause"].values()), abs=0.1)  # type: ignore[attr-defined]
    assert set(MAKERS) == set(BEHAVIOURS)


# --- what is refused ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"nodes": 1}, "8 to 16,384"),
        ({"nodes": 0}, "8 to 16,384"),
        ({"nodes": 10**6}, "8 to 16,384"),
        ({"days": 0.0}, "--days"),
        ({"days": -1.0}, "--days"),
        ({"days": 1e-9}, "--days"),
        ({"days": math.nan}, "--days"),
        ({"days": 1e9}, "--days"),
        ({"gpus_per_node": 0}, "--gpus-per-node"),
        ({"jobs": 40}, "two of 64 nodes"),
        ({"spares": -1}, "--spares"),
        ({"interval_s": 0.0}, "--interval"),
        ({"save_s": 400.0}, "as long as"),
        ({"start_s": math.inf}, "--start"),
        ({"needs_code": 2.0}, "--needs-code"),
        ({"errors": "ignore"}, "hold or retry"),
        ({"rates": only("NIC", 1e9)}, "failures are to be expected"),
        (
            {"settings": acting(Settings(limits=Limits(drain_count=10**6, drain_fraction=1.0, keep_healthy=0)))},
            "every node be drained",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_with_what_would(how: dict[str, object], words: str) -> None:
    with pytest.raises(UserError) as refused:
        dataclasses.replace(SMALL, **how)  # type: ignore[arg-type]
    assert words in refused.value.message and refused.value.fix
