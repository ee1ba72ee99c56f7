"""How many jobs may be stopped, across the whole cluster: a budget, and a breaker for those that are only silent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from made_records import AT, ended, evidence, fleet, incident, job, verdict

from sentinel import policy
from sentinel.config.settings import Limits, Mode, Modes
from sentinel.model.intent import Intent
from sentinel.model.records import (
    Cause,
    Evidence,
    Fleet,
    Ground,
    JobView,
    Kind,
    Plan,
    Restart,
    Scope,
    Source,
    StepKind,
    Verdict,
)
from sentinel.policy import SILENCE, Situation, Stop
from sentinel.policy.stops import stops_allowed

ACT = Modes(default=Mode(drain="act", restart="act"))
HANG = verdict(Cause.NCCL_HANG_UNKNOWN, scope=Scope.UNKNOWN)


def stall(step: int | None = 37) -> Evidence:
    return evidence(Kind.STALL, source=Source.PROGRESS, job=101, attempt=0, data={"step": step})


def running(jobs: int) -> Fleet:
    return fleet(10, [job(100 + number) for number in range(1, jobs + 1)])


def stops(count: int, *, silent: bool, minutes: float = 10.0) -> tuple[Stop, ...]:
    return tuple(Stop(900 + number, AT - timedelta(minutes=minutes), silent) for number in range(count))


def decide(
    judged: Verdict,
    *items: Evidence,
    limits: Limits | None = None,
    jobs: int = 1,
    more: Sequence[JobView] = (),
    **how: Any,
) -> Plan:
    there = fleet(10, [*running(jobs).jobs.values(), *more])
    situation = Situation(fleet=there, intent=Intent(restart=True), job=there.jobs[101], last_step=37, **how)
    return policy.decide(
        judged,
        incident(*items),
        situation,
        limits=limits or Limits(drain_fraction=1.0),
        modes=ACT,
        act_confidence=0.6,
        now=AT,
    )


def unknown(*jobs: int) -> dict[int, str]:
    """Jobs whose users are not known: each may be another's."""
    return dict.fromkeys(jobs, "")


def restarts(plan: Plan) -> bool:
    return any(step.kind is StepKind.REQUEUE_HOLD for step in plan.steps)


def test_a_stop_for_silence_says_so_and_after_which_step() -> None:
    (stop,) = [step for step in decide(HANG, stall()).steps if step.kind is StepKind.REQUEUE_HOLD]
    assert stop.data == {"ground": SILENCE, "silent_after": 37}
    (stop,) = [step for step in decide(HANG, ended()).steps if step.kind is StepKind.REQUEUE_HOLD]
    assert stop.data == {}


@pytest.mark.parametrize("source", [Source.KERNEL, Source.DCGM, Source.PROBE])
def test_a_machine_that_speaks_against_itself_is_more_than_silence(source: Source) -> None:
    spoke = evidence(Kind.XID, source=source, node="n1", job=101, attempt=0)
    judged = Verdict(Cause.GPU_MEMORY_ECC, Scope.GPU, 0.9, restart=Restart.RESUME, grounds=(Ground(spoke, 2.0),))
    assert not policy.from_silence(judged, incident(stall(), spoke))
    assert not policy.from_silence(verdict(drain=("n1",)), incident(stall()))
    assert not policy.from_silence(HANG, incident(stall(), ended()))
    task = evidence(Kind.TASK_STATE, source=Source.PROCESS, node="n1", job=101, attempt=0)
    assert policy.from_silence(
        Verdict(Cause.NCCL_HANG_UNKNOWN, Scope.UNKNOWN, 0.9, grounds=(Ground(task, 2.0),)), incident(stall(), task)
    )


# --- the breaker -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("others", "jobs", "frozen"),
    [(1, 3, False), (2, 3, True), (2, 100, True), (2, 500, False), (8, 500, False), (9, 500, True), (19, 1000, True)],
)
def test_many_jobs_called_hung_at_once_are_not_stopped(others: int, jobs: int, frozen: bool) -> None:
    """Three of them, or one in fifty of those that run."""
    plan = decide(HANG, stall(), jobs=jobs, hung_jobs=unknown(101, *range(200, 200 + others)))
    assert (plan.refusal == "hang-breaker") is frozen and restarts(plan) is not frozen
    assert not frozen or f"{others + 1} jobs were called hung within 120 s" in plan.explanation


@pytest.mark.parametrize(("others", "frozen"), [(5, False), (6, True)])
def test_a_share_of_the_running_jobs_is_counted_in_whole_jobs(others: int, frozen: bool) -> None:
    """0.07 of 100 are 7, although 0.07 * 100 is 7.000000000000001 in a computer."""
    hung = unknown(101, *range(200, 200 + others))
    plan = decide(HANG, stall(), jobs=100, hung_jobs=hung, limits=Limits(drain_fraction=1.0, hung_fraction=0.07))
    assert (plan.refusal == "hang-breaker") is frozen


@pytest.mark.parametrize(
    ("own", "others", "jobs", "frozen"),
    [
        (0, {"bob": 50}, 60, False),
        (1, {"bob": 50}, 60, False),
        (1, {"bob": 50, "eve": 1}, 60, True),
        (2, {}, 60, True),
        (0, {"bob": 1, "eve": 1}, 60, True),
        (0, {"bob": 400}, 1000, False),
        (3, {"bob": 400}, 1000, False),
        (0, {"bob": 400, "eve": 400}, 1000, False),
        (1, {"bob": 400, "eve": 400}, 1000, True),
        (19, {}, 1000, True),
        (4, {"bob": 5, "eve": 5, "mary": 5}, 1000, True),
    ],
)
def test_the_breaker_of_hangs_needs_three_users_or_the_users_own_jobs(
    own: int, others: dict[str, int], jobs: int, frozen: bool
) -> None:
    """One user's programs may all hang by themselves: that is no reason to leave the jobs of others as they are."""
    users = [user for user, number in {"ada": own, **others}.items() for _ in range(number)]
    plan = decide(HANG, stall(), jobs=jobs, hung_jobs=dict(enumerate(users, 2000)))
    assert (plan.refusal == "hang-breaker") is frozen and restarts(plan) is not frozen
    assert ("jobs of user ada were called hung" in plan.explanation) is (frozen and not others)


@pytest.mark.parametrize(
    ("ada", "bob", "more", "frozen"),
    [
        (3, 2, 0, True),
        (2, 2, 0, True),
        (10, 2, 0, True),
        (4, 2, 6, True),
        (4, 2, 7, False),
        (3, 1, 0, False),
        (1, 1, 0, False),
    ],
)
def test_in_a_cluster_of_two_users_most_of_whose_jobs_hang_none_is_stopped(
    ada: int, bob: int, more: int, frozen: bool
) -> None:
    """``more``: jobs of a third user, which run on."""
    jobs = [job(101 + number, user="bob" if number < bob else "ada") for number in range(ada + bob)]
    others = [job(500 + number, user="eve") for number in range(more)]
    hung = {known.id: known.user for known in jobs if known.id != 101}
    there = fleet(10, [*jobs, *others])
    situation = Situation(fleet=there, intent=Intent(restart=True), job=there.jobs[101], last_step=37, hung_jobs=hung)
    plan = policy.decide(HANG, incident(stall()), situation, limits=Limits(), modes=ACT, act_confidence=0.6, now=AT)
    assert (plan.refusal == "hang-breaker") is frozen


def test_the_breaker_freezes_a_hold_as_well() -> None:
    judged = verdict(Cause.USER_CODE, scope=Scope.APPLICATION, restart=Restart.HOLD)
    assert decide(judged, stall(), hung_jobs=unknown(1, 2, 3)).refusal == "hang-breaker"


def test_the_breaker_of_hangs_leaves_alone_what_ended_or_is_convicted() -> None:
    many = unknown(*range(50))
    assert restarts(decide(HANG, ended(), hung_jobs=many))
    assert restarts(decide(verdict(drain=("n1",)), stall(), hung_jobs=many))


# --- the budget --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "jobs", "allowed"), [(5, 1, True), (6, 1, False), (6, 119, False), (14, 300, True), (15, 300, False)]
)
def test_budget_of_stops_for_silence(before: int, jobs: int, allowed: bool) -> None:
    """Six in an hour, or one in twenty of the jobs that run."""
    plan = decide(HANG, stall(), jobs=jobs, stops=stops(before, silent=True))
    assert plan.refusal == ("" if allowed else "restart-budget") and restarts(plan) is allowed
    assert allowed or f"{before} stops of silent jobs in the last hour" in plan.explanation


def of(user: str, count: int, *, silent: bool) -> tuple[Stop, ...]:
    return tuple(replace(known, user=user) for known in stops(count, silent=silent))


@pytest.mark.parametrize(
    ("before", "silent", "allowed"), [(2, True, True), (3, True, False), (49, False, True), (50, False, False)]
)
def test_one_user_has_half_of_the_budget_where_others_have_jobs(before: int, silent: bool, allowed: bool) -> None:
    bobs = job(500, user="bob")
    plan = decide(HANG, stall() if silent else ended(), more=[bobs], stops=of("ada", before, silent=silent))
    assert plan.refusal == ("" if allowed else "restart-budget") and restarts(plan) is allowed
    assert allowed or (f"{before} " in plan.explanation and "of user ada in the last hour" in plan.explanation)
    assert restarts(decide(HANG, stall() if silent else ended(), more=[bobs], stops=of("eve", before, silent=silent)))


def test_whose_share_of_all_jobs_is_larger_has_more_of_the_budget_but_not_all() -> None:
    there = fleet(
        2, [*(job(number) for number in range(1, 131)), *(job(number, user="bob") for number in range(200, 205))]
    )
    limits = Limits()
    assert stops_allowed(there, limits) == (6, 135)
    assert stops_allowed(there, limits, "ada") == (5, 130) and stops_allowed(there, limits, "bob") == (3, 50)
    alone = fleet(2, [job(number) for number in range(1, 11)])
    assert stops_allowed(alone, limits, "ada") == stops_allowed(alone, limits) == (6, 100)
    few = Limits(silent_restarts_per_hour=1, restarts_per_hour=0, restarts_fraction=0.0)
    assert stops_allowed(fleet(2, [job(1), job(2, user="bob")]), few, "ada") == (1, 0)


def test_budget_counts_an_hour() -> None:
    assert restarts(decide(HANG, stall(), stops=stops(6, silent=True, minutes=60.5)))


def test_stops_for_silence_do_not_use_up_what_failures_need_nor_the_other_way_round() -> None:
    assert restarts(decide(HANG, ended(), stops=stops(50, silent=True)))
    assert restarts(decide(HANG, stall(), stops=stops(50, silent=False)))


@pytest.mark.parametrize(
    ("before", "jobs", "allowed"), [(99, 1, True), (100, 1, False), (100, 400, True), (400, 400, False)]
)
def test_budget_of_all_restarts_is_generous(before: int, jobs: int, allowed: bool) -> None:
    """A hundred in an hour, or as many as there are jobs."""
    plan = decide(HANG, ended(), jobs=jobs, stops=stops(before, silent=False))
    assert plan.refusal == ("" if allowed else "restart-budget")


def test_jobs_that_just_ended_count_as_jobs() -> None:
    """A file system that ends all jobs leaves none running, and all of them are to be restarted."""
    jobs = [job(101, state="failed"), *(job(number, state="failed") for number in range(200, 500))]
    there = fleet(10, jobs)
    situation = Situation(
        fleet=there, intent=Intent(restart=True), job=there.jobs[101], last_step=1, stops=stops(250, silent=False)
    )
    plan = policy.decide(HANG, incident(ended()), situation, limits=Limits(), modes=ACT, act_confidence=0.6, now=AT)
    assert restarts(plan)


def test_the_jobs_own_stop_is_not_counted_against_it() -> None:
    own = tuple(Stop(101, AT, True) for _ in range(10))
    assert restarts(decide(HANG, stall(), stops=own))


def test_a_hold_of_a_job_that_ended_needs_no_budget() -> None:
    judged = verdict(Cause.USER_CODE, scope=Scope.APPLICATION, restart=Restart.HOLD)
    assert [step.kind for step in decide(judged, ended(), stops=stops(500, silent=False)).steps] == [StepKind.HOLD]
