"""The report's numbers, each against one that is reckoned by hand: two weeks, three jobs, five failures."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from in_memory.daemon import SETTINGS
from in_memory.views import ADA, OPERATOR, Shown, name_people
from in_memory.world import World
from made_records import AT, evidence, incident, job, plan, step, verdict

from sentinel.cli.operator.jobs import lost_words
from sentinel.cli.operator.report import anonymised, as_csv, markdown
from sentinel.daemon import incident_search
from sentinel.daemon.fleet_metrics import FleetMetrics
from sentinel.daemon.web.job_page import summary
from sentinel.daemon.web.report_page import html_file
from sentinel.errors import UserError
from sentinel.model.changes import VerdictCorrected
from sentinel.model.corrections import Correction
from sentinel.model.records import LEFT_IN_SERVICE, Cause, IncidentState, Kind, Outcome, Result, Scope, Step, StepKind
from sentinel.model.vocabulary import WAS_OUT
from sentinel.wire import to_json

Worlds = Callable[..., World]
DAY_S = 86400.0
NODES = ("n3", "n4")  # 16 GPUs


@pytest.fixture(autouse=True)
def people(monkeypatch: pytest.MonkeyPatch) -> None:
    name_people(monkeypatch)


class Weeks:
    """``fail`` adds one failure of a job; times are days before now."""

    def __init__(self, world: World) -> None:
        self.shown = Shown(world)
        self.store = world.store
        for name in ("aaa1", "bbb1", "ccc1"):  # those of Shown: not of these weeks
            old = dataclasses.replace(incident(id=name), opened_at=AT - timedelta(days=90), state=IncidentState.CLOSED)
            self.store.save_incident(old)
        for number in (201, 202):
            view = job(number, nodes=NODES, state="failed", started_s=-91 * DAY_S)
            self.store.save_attempt(
                dataclasses.replace(view, ended_at=AT - timedelta(days=90)), first_step=1, last_step=2, step_time_s=1.0
            )

    def attempt(self, number: int, attempt: int, start: float, end: float, first: int, last: int) -> None:
        view = job(number, nodes=NODES, restarts=attempt, started_s=-start * DAY_S, state="failed", user="ada")
        view = dataclasses.replace(view, ended_at=AT - timedelta(days=end))
        self.store.save_attempt(view, first_step=first, last_step=last, step_time_s=36.0)

    def fail(
        self,
        name: str,
        number: int,
        days: float,
        *,
        cause: Cause = Cause.GPU_MEMORY_ECC,
        scope: Scope = Scope.GPU,
        state: IncidentState = IncidentState.CLOSED,
        done: tuple[Step, ...] = (),
        back_s: float = 600.0,
    ) -> None:
        at = AT - timedelta(days=days)
        item = evidence(Kind.XID, node="n3", id=f"xid-{name}", text=f"NVRM: Xid 48 of {name}")
        self.store.append([item])
        opened = dataclasses.replace(
            incident(item, id=name, job=number), opened_at=at, updated_at=at, state=state, attempt=0,
            closed_at=at if state is IncidentState.CLOSED else None,
        )  # fmt: skip
        self.store.save_incident(opened, user="ada")
        machine = ("n3",) if scope is not Scope.APPLICATION else ()
        self.store.save_verdict(name, dataclasses.replace(verdict(cause, scope=scope, drain=machine)), at)
        made = plan(*done, incident=name)
        if done:
            self.store.save_plan(made)
        for one in done:
            self.store.intend(made, one, at)
            self.store.record(made, Outcome(one, Result.DONE, at + timedelta(seconds=back_s), ""))

    async def report(self, uid: int = OPERATOR, **arguments: Any) -> Any:
        await self.shown.daemon.fleets.take()
        return await self.shown("report", uid, **arguments)


def confirm(number: int) -> Step:
    return step(StepKind.CONFIRM, job=number, attempt=0)


@pytest.fixture
def weeks(world: Worlds) -> Weeks:
    made = Weeks(world())
    # This week: 300 of 301 fails two days ago, steps again after 600 s, 50 steps of 36 s made twice.
    made.attempt(301, 0, 6.0, 2.0, 1, 1000)
    made.attempt(301, 1, 2.0, 1.0, 951, 1500)
    made.fail("week1", 301, 2.0, done=(step(StepKind.DRAIN, node="n3"), confirm(301)))
    made.attempt(302, 0, 5.0, 4.0, 1, 100)
    made.fail("week2", 302, 4.0, cause=Cause.USER_CODE, scope=Scope.APPLICATION, state=IncidentState.HELD)
    made.fail("week3", 303, 3.0, cause=Cause.SCHEDULER_PREEMPT_OR_TIMELIMIT, scope=Scope.APPLICATION)
    # The week before: one failure, closed by nobody known.
    made.attempt(304, 0, 13.0, 9.0, 1, 100)
    made.fail("last1", 304, 9.0)
    return made


async def test_interruptions_by_cause_and_scope(weeks: Weeks) -> None:
    made = await weeks.report()
    assert (made["now"]["interruptions"], made["now"]["of_machines"], made["now"]["on_purpose"]) == (2, 1, 1)
    counts = {(row["cause"], row["scope"]): (row["count"], row["before"]) for row in made["causes"]}
    assert counts == {("gpu_memory_ecc", "gpu"): (1, 1), ("user_code", "application"): (1, 0)}
    assert [(group["key"], group["failures"]) for group in made["days"]] == [("2026-02-25", 1), ("2026-02-27", 1)]


async def test_what_slurm_or_a_person_ended_is_counted_beside_though_nothing_was_judged(weeks: Weeks) -> None:
    """A time limit or scancel opens no incident: the attempt alone says how it ended."""
    for number, state in enumerate(("timeout", "cancelled", "preempted", "deadline", "completed", "failed", "running")):
        view = job(401 + number, nodes=NODES, state=state, started_s=-2 * DAY_S, user="ada")
        over = dataclasses.replace(view, ended_at=AT - timedelta(days=1) if state != "running" else None)
        weeks.store.save_attempt(over, first_step=1, last_step=2, step_time_s=1.0)
    weeks.fail("week4", 402, 1.0)  # hung, and then cancelled: an interruption
    weeks.fail("week5", 403, 1.0, cause=Cause.SCHEDULER_PREEMPT_OR_TIMELIMIT, scope=Scope.APPLICATION)
    made = await weeks.report()
    assert (made["now"]["interruptions"], made["now"]["on_purpose"]) == (3, 1 + 3)
    assert made["previous"]["on_purpose"] == 0


async def test_time_between_failures_with_its_interval(weeks: Weeks) -> None:
    now = (await weeks.report())["now"]
    assert now["worked_gpu_h"] == pytest.approx(16 * 24 * (4 + 1 + 1))
    assert now["mtbf"]["gpu_h"]["mean"] == pytest.approx(16 * 24 * 6 / 2)
    assert now["mtbf"]["hours"]["mean"] == pytest.approx(6 * 24 / 2)  # the first job began six days ago
    # Garwood 1936 for two events: 0.2422 to 7.2247.
    assert now["mtbf"]["hours"]["low"] == pytest.approx(144 / 7.2247, rel=1e-3)
    assert now["mtbf"]["hours"]["high"] == pytest.approx(144 / 0.24221, rel=1e-3)


async def test_time_to_recover_and_what_it_cost(weeks: Weeks) -> None:
    now = (await weeks.report())["now"]
    assert (now["mttr"]["mean_s"], now["mttr"]["median_s"], now["mttr"]["known"], now["mttr"]["not_known"]) == (
        600,
        600,
        1,
        1,
    )
    assert now["mttr"]["low_s"] < 600 < now["mttr"]["high_s"]
    assert now["redone_gpu_h"] == pytest.approx(16 * 50 * 36 / 3600) and now["down_gpu_h"] == pytest.approx(
        16 * 600 / 3600
    )
    assert now["lost_not_known"] == 1
    worked, redone, down = 16 * 24 * 6, 16 * 50 * 36 / 3600, 16 * 600 / 3600
    assert now["ettr"] == pytest.approx((worked - redone - down) / worked)  # the next attempt ran meanwhile


async def test_cost_that_is_not_known_is_not_zero(world: Worlds) -> None:
    weeks = Weeks(world())
    weeks.attempt(301, 0, 6.0, 2.0, 1, 1000)
    weeks.fail("week1", 301, 2.0)  # the job did not go on
    made = await weeks.report()
    assert made["now"]["lost_gpu_h"] is None and made["now"]["ettr"] is None and made["now"]["mttr"]["mean_s"] is None
    assert made["partitions"] == [], "as over all partitions"
    assert [row["lost_gpu_h"] for row in (*made["causes"], *made["nodes"])] == [None, None]
    assert "not known of 1" in markdown(made) and "not known of 1" in html_file(made)
    assert "job,301,train,,,,,GPU-h" in as_csv(made) and made["jobs"][0]["lost_gpu_h"] is None


async def test_a_cost_of_which_a_part_is_known_is_told_so_by_all_that_tell_of_it(weeks: Weeks) -> None:
    """Down for an hour; what was made twice is not known, as the first attempt printed no step."""
    made = Weeks(weeks.shown.world)
    view = job(305, nodes=NODES, state="failed", started_s=-6 * DAY_S, user="ada")
    view = dataclasses.replace(view, ended_at=AT - timedelta(days=5.5))
    made.store.save_attempt(view, first_step=None, last_step=None, step_time_s=None)
    made.attempt(305, 1, 5.5 - 1 / 24, 5.0, 1, 10)
    made.fail("part1", 305, 5.5)
    told, since = await made.report(), (AT - timedelta(days=7)).isoformat()
    (of_job,) = [row for row in told["jobs"] if row["job"] == 305]
    (node,) = told["nodes"]
    assert (of_job["lost_gpu_h"], of_job["not_known"]) == (16.0, 1) and node["not_known"] == 1
    assert "| 305 | `train` | `ada` | 1 | 16 + ? |" in markdown(told) and "16 + ?" in html_file(told)
    (row,) = [row for row in (await made.shown("lost", since=since))["rows"] if row["job"] == 305]
    assert (row["lost_gpu_h"], row["redone_gpu_h"], row["down_gpu_h"], row["not_known"]) == (16.0, None, 16.0, 1)
    first, second = (await made.shown("jobs", job=305))["attempts"]
    assert (first["lost_gpu_h"], first["known_lost_gpu_h"]) == (None, 16.0)
    assert lost_words([first, second]) == "16.0 + ?" and summary([first, second])["lost_gpu_h"] == 16.0


async def test_preempted_work_is_no_failure_in_any_sum(weeks: Weeks) -> None:
    weeks.attempt(303, 0, 6.0, 3.0, 1, 100)
    weeks.attempt(303, 1, 2.0, 1.0, 91, 200)
    since = (AT - timedelta(days=30)).isoformat()
    reported, lost = await weeks.report(since=since), await weeks.shown("lost", OPERATOR, since=since)
    assert lost["lost_gpu_h"] == pytest.approx(reported["now"]["lost_gpu_h"], abs=1e-3)
    attempts = (await weeks.shown("jobs", OPERATOR, job=303))["attempts"]
    assert attempts[0]["cause"] == "scheduler_preempt_or_timelimit" and lost_words(attempts) == "0"
    daemon, clock = weeks.shown.daemon, weeks.shown.world.slurm.clock
    FleetMetrics(weeks.store, daemon.live, SETTINGS, daemon.telemetry, clock).read()
    read = daemon.telemetry.registry.get_sample_value
    counted = {cause: read("sentinel_lost_gpu_seconds", {"cause": str(cause)}) for cause in Cause}
    assert sum(value or 0.0 for value in counted.values()) / 3600 == pytest.approx(reported["now"]["lost_gpu_h"])
    ratio = read("sentinel_effective_training_time_ratio", {"partition": "train"})
    assert ratio == pytest.approx(reported["now"]["ettr"])


async def test_hours_by_cause_are_those_of_sentinel_lost(weeks: Weeks) -> None:
    """Of two incidents of an attempt the one that ended it has its cost; if that was a preemption, no failure has it."""
    weeks.attempt(306, 0, 6.0, 2.0, 1, 1000)
    weeks.attempt(306, 1, 2.0, 1.0, 951, 1500)
    weeks.fail("told", 306, 2.5, cause=Cause.NUMERICAL_NAN, scope=Scope.APPLICATION)
    preempted, stop = Cause.SCHEDULER_PREEMPT_OR_TIMELIMIT, step(StepKind.REQUEUE_HOLD, job=306, attempt=0)
    weeks.fail("over", 306, 2.0, cause=preempted, scope=Scope.APPLICATION, done=(stop, confirm(306)))
    since = (AT - timedelta(days=7)).isoformat()
    made, lost = await weeks.report(since=since), await weeks.shown("lost", OPERATOR, by="cause", since=since)
    assert {row["cause"]: row["lost_gpu_h"] for row in lost["rows"]} == pytest.approx(
        {row["cause"]: row["lost_gpu_h"] for row in made["causes"] if row["cause"] != "numerical_nan"}, abs=1e-3
    )
    costs = {row["cause"]: row["lost_gpu_h"] for row in made["causes"]}
    assert costs["numerical_nan"] == 0.0, "the job went on"
    assert lost["lost_gpu_h"] == pytest.approx(made["now"]["lost_gpu_h"], abs=1e-3)
    assert lost["not_known"] == made["now"]["lost_not_known"]
    told = await weeks.shown("lost", OPERATOR, by="cause", since=since, cause="numerical_nan")
    assert told["rows"] == []
    asked = await weeks.shown("lost", OPERATOR, by="cause", since=since, cause=str(preempted))
    assert [row["failures"] for row in asked["rows"]] == [2], "who names it gets it"


async def test_who_closed_them(weeks: Weeks) -> None:
    made = await weeks.report()
    assert made["now"]["automation"] == {"rate": 0.5, "alone": 1, "person": 1, "otherwise": 0, "open": 0}
    assert made["previous"]["automation"] == {"rate": 0.0, "alone": 0, "person": 0, "otherwise": 1, "open": 0}


async def test_node_is_out_from_its_drain_until_work_is_on_it_again(weeks: Weeks) -> None:
    weeks.attempt(305, 0, 1.5, 1.0, 1, 2)  # the first work on n3 after the drain of two days ago
    down = (await weeks.report())["now"]["downtime"]
    assert down["nodes"] == 1 and down["node_h"] == pytest.approx(12 - 600 / 3600) and down["not_known"] == 0


async def test_drain_of_whose_end_nothing_is_known_is_no_downtime(weeks: Weeks) -> None:
    down = (await weeks.report())["now"]["downtime"]
    assert down == {"node_h": 0.0, "nodes": 0, "not_known": 1}


async def test_node_that_is_still_out_counts_until_now(weeks: Weeks) -> None:
    weeks.shown.world.slurm.person_drains("n3", "sentinel:week1 gpu_memory_ecc")
    assert (await weeks.report())["now"]["downtime"]["node_h"] == pytest.approx(48 - 600 / 3600)


DRAIN, DOWN = StepKind.DRAIN, StepKind.DOWN


@pytest.mark.parametrize(
    ("rows", "worked_h", "node_h", "not_known"),
    [
        ([("week1", DRAIN, 0, 20.0, ""), ("week1", DOWN, 0, 19.9, "")], None, 4.0, 0),  # drained, then gone as well
        ([("week1", DRAIN, 0, 20.0, ""), ("week1", DRAIN, 1, 17.0, "")], None, 4.0, 0),  # slurmctld had lost it
        ([("week1", DRAIN, 0, 20.0, ""), ("week2", DOWN, 0, 17.0, WAS_OUT)], None, 4.0, 0),
        (
            [("week1", DRAIN, 0, 20.0, ""), ("week2", DOWN, 0, 19.0, WAS_OUT), ("week1", DRAIN, 1, 17.0, "")],
            None,
            4.0,
            0,
        ),
        ([("week1", DRAIN, 0, 20.0, ""), ("week2", DRAIN, 0, 17.0, "")], None, 1.0, 1),  # it was in service between
        ([("week1", DRAIN, 0, 20.0, ""), ("week1", DRAIN, 1, 17.0, "")], 19.0, 2.0, 0),
        ([("week1", DRAIN, 0, 20.0, ""), ("week1", DRAIN, 1, 17.0, LEFT_IN_SERVICE)], None, 3.0, 0),
    ],
)
async def test_what_is_done_again_or_more_of_one_drain_is_one_time_out_of_service(
    weeks: Weeks,
    rows: list[tuple[str, StepKind, int, float, str]],
    worked_h: float | None,
    node_h: float,
    not_known: int,
) -> None:
    """Times in hours before now; an operator returned the node 16 hours ago."""
    for name, kind, tries, hours, mark in rows:
        one, at = Step(kind, node="n4", tries=tries), AT - timedelta(hours=hours)
        made = plan(one, incident=name)
        weeks.store.intend(made, one, at)
        weeks.store.record(made, Outcome(one, Result.DONE, at, "", {mark: True} if mark else {}))
    if worked_h is not None:
        weeks.attempt(305, 0, worked_h / 24, (worked_h - 1) / 24, 1, 2)
    weeks.store.put("released", {"n3": to_json(AT - timedelta(days=1)), "n4": to_json(AT - timedelta(hours=16))})
    down = (await weeks.report())["now"]["downtime"]
    of_n3 = 24 - 600 / 3600
    assert (down["node_h"] - of_n3, down["not_known"]) == (pytest.approx(node_h), not_known)


async def test_worst_node_with_its_evidence(weeks: Weeks) -> None:
    (worst,) = (await weeks.report())["nodes"]
    assert (worst["node"], worst["failures"], worst["incident"]) == ("n3", 1, "week1")
    assert worst["lost_gpu_h"] == pytest.approx(16 * (50 * 36 + 600) / 3600, rel=1e-3)


async def test_of_a_time_before_sentinel_nothing_is_known(world: Worlds) -> None:
    """No failure was seen then, since nobody looked: that is no week without failures."""
    made = Weeks(world())
    made.attempt(301, 0, 6.0, 2.0, 1, 1000)
    made.fail("week1", 301, 2.0)
    told = await made.report()
    assert {row["what"]: row["before"] for row in told["changes"]} == dict.fromkeys(
        ("interruptions", "of_machines", "lost_gpu_h", "ettr", "mttr", "automation", "downtime")
    )
    assert [(row["count"], row["before"]) for row in told["causes"]] == [(1, None)]


async def test_few_failures_are_no_change_and_many_are(weeks: Weeks) -> None:
    def count(made: Any) -> Any:
        return next(row for row in made["changes"] if row["what"] == "of_machines")

    row = count(await weeks.report())
    assert (row["now"], row["before"], row["beyond_chance"]) == (1, 1, False)
    for number in range(12):
        weeks.attempt(400 + number, 0, 3.0, 2.9, 1, 2)
        weeks.fail(f"many{number:02}", 400 + number, 3.0)
    assert count(await weeks.report())["beyond_chance"] is True


async def test_researcher_gets_a_report_of_own_jobs(weeks: Weeks) -> None:
    assert (await weeks.report(ADA))["now"]["interruptions"] == 2
    other = await weeks.report(59999)
    assert other["now"]["interruptions"] == 0 and other["now"]["mtbf"] is None and other["jobs"] == []


@pytest.mark.parametrize("since", [AT + timedelta(seconds=1), AT, AT - timedelta(days=300)])
async def test_time_that_cannot_be_reported(weeks: Weeks, since: Any) -> None:
    with pytest.raises(UserError, match="a time that has been"):
        await weeks.report(since=since.isoformat())


async def test_every_form_takes_what_the_daemon_says(weeks: Weeks) -> None:
    made = await weeks.report()
    nobody = await weeks.report(59999)
    for shown in (markdown, html_file, as_csv):
        assert "gpu_memory_ecc" in shown(made) and "gpu_memory_ecc" not in shown(nobody)
    assert "n3" not in markdown(anonymised(made, ["n3", "n4"]))


async def test_corrected_verdicts_are_counted_as_what_they_were(weeks: Weeks) -> None:
    told = Correction(AT, "root", Cause.USER_CODE, Scope.APPLICATION, Cause.GPU_MEMORY_ECC, Scope.GPU)
    weeks.store.commit([VerdictCorrected("week1", told)])
    made = await weeks.report()
    assert (made["now"]["interruptions"], made["now"]["of_machines"], made["now"]["corrected"]) == (2, 0, 1)
    assert made["corrections"] == [{"judged": "gpu_memory_ecc", "corrected": "user_code", "count": 1}]
    assert made["nodes"] == []
    assert "1 gpu_memory_ecc corrected to user_code" in markdown(made)
    assert "corrected,gpu_memory_ecc,user_code,1" in as_csv(made)
    assert "1 gpu_memory_ecc corrected to user_code" in html_file(made)


async def test_reports_and_sums_are_made_of_all_incidents_however_many_there_are(
    weeks: Weeks, monkeypatch: pytest.MonkeyPatch
) -> None:
    since = (AT - timedelta(days=30)).isoformat()
    whole, lost = await weeks.report(), await weeks.shown("lost", since=since)
    monkeypatch.setattr(incident_search, "SEARCHED", 1)  # of a listing
    assert await weeks.report() == whole and not whole["cut"]
    assert await weeks.shown("lost", since=since) == lost and lost["failures"] == 3 and not lost["cut"]
    of_a_node = await weeks.shown("lost", since=since, node="n3")  # beside them the others of their jobs are read
    assert of_a_node["failures"] == 2 and not of_a_node["cut"]
    metrics = FleetMetrics(
        weeks.store, weeks.shown.daemon.live, SETTINGS, weeks.shown.daemon.telemetry, weeks.shown.world.slurm.clock
    )
    metrics.read()
    ettr = (await weeks.report(since=since))["now"]["ettr"]
    value = weeks.shown.daemon.telemetry.registry.get_sample_value
    assert value("sentinel_effective_training_time_ratio", {"partition": "train"}) == pytest.approx(ettr)


async def test_of_more_incidents_than_are_gone_through_the_time_that_was_not_read_counts_in_nothing(
    weeks: Weeks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(incident_search, "COUNTED", 2)  # those of the last three days
    made = await weeks.report()
    assert made["cut"] and made["since"] == to_json(AT - timedelta(days=3))
    assert (made["now"]["interruptions"], made["now"]["on_purpose"]) == (1, 1)
    assert made["now"]["worked_gpu_h"] == pytest.approx(2 * 24 * 16)  # of six days at work two
    assert all(row["before"] is None and row["beyond_chance"] is None for row in made["changes"])
    shown = weeks.shown
    FleetMetrics(weeks.store, shown.daemon.live, SETTINGS, shown.daemon.telemetry, shown.world.slurm.clock).read()
    value = shown.daemon.telemetry.registry.get_sample_value
    assert value("sentinel_effective_training_time_ratio", {"partition": "train"}) == pytest.approx(made["now"]["ettr"])


async def test_planning_counts_the_work_that_reports_count(weeks: Weeks) -> None:
    """Of an attempt without an end that Slurm has no more, how long it worked is not known: it would be days by now."""
    weeks.store.save_attempt(job(399, nodes=NODES, started_s=-3.0 * DAY_S), first_step=1, last_step=2, step_time_s=1.0)
    made = await weeks.report(since=to_json(AT - timedelta(days=7)))
    past = await weeks.shown("past", days=7)
    assert past["gpu_s"] == pytest.approx(3600.0 * made["now"]["worked_gpu_h"]) and past["gpu_s"] > 0.0
