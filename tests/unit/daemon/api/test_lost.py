"""What failures cost: steps made twice and time without steps. Unknown is counted, and adds nothing."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import pytest
from made_records import later

from sentinel.daemon.api.histories import FailureFilter, groups
from sentinel.daemon.api.lost import NO_NODE, grouped, losses, training_share, untold_ends

GPUS = 8


def failed(job: int = 1, attempt: int = 0, *, at_s: float = 0.0, **changes: Any) -> dict[str, Any]:
    """An incident as the store lists it."""
    return {
        "id": f"i{job}.{attempt}", "opened_at": later(at_s), "job": job, "attempt": attempt, "user": "ada",
        "cause": "pcie", "scope": "node", "culprit_nodes": ["n1"], "seen_on": [], **changes,
    }  # fmt: skip


def ran(job: int = 1, attempt: int = 0, *, at_s: float = -600.0, **changes: Any) -> dict[str, Any]:
    """An attempt as the store lists it, on two nodes."""
    return {
        "job": job, "attempt": attempt, "started_at": later(at_s), "ended_at": None, "name": "train", "user": "ada",
        "nodes": ["n1", "n2"], "first_step": 1, "last_step": 100, "step_time_s": 2.0, **changes,
    }  # fmt: skip


def gpus(nodes: Sequence[str]) -> int | None:
    return None if "ghost" in nodes else GPUS * len(nodes)


def cost(incidents: list[dict[str, Any]], attempts: list[dict[str, Any]], **recovered: datetime) -> list[Any]:
    return losses(
        incidents, attempts, gpus=gpus, recovered={name.replace("_", "."): at for name, at in recovered.items()}
    )


AGAIN = ran(attempt=1, at_s=60.0, first_step=81, last_step=500)


def test_steps_made_twice_and_time_without_steps() -> None:
    (loss,) = cost([failed()], [ran(), AGAIN], i1_0=later(90.0))
    assert (loss.gpus, loss.redone_steps, loss.redone_s, loss.down_s, loss.known) == (16, 20, 40.0, 90.0, True)
    assert loss.gpu_h == pytest.approx(16 * 130 / 3600)


def test_without_a_seen_step_the_next_attempt_s_start_ends_the_down_time() -> None:
    (loss,) = cost([failed()], [ran(), AGAIN])
    assert loss.down_s == 60.0


@pytest.mark.parametrize(
    ("attempts", "redone_s", "down_s"),
    [
        ([], None, None),  # nothing is known of the attempt
        ([ran()], None, None),  # the job did not go on
        ([ran(), {**AGAIN, "nodes": [], "state": "cancelled"}], None, None),  # nor here: cancelled while it was held
        ([ran(last_step=None), AGAIN], None, 60.0),
        ([ran(), {**AGAIN, "first_step": None}], None, 60.0),
        ([ran(step_time_s=None), {**AGAIN, "step_time_s": None}], None, 60.0),
        ([ran(step_time_s=None), {**AGAIN, "step_time_s": 1.0}], 20.0, 60.0),
        ([ran(), {**AGAIN, "first_step": 101}], 0.0, 60.0),
        ([ran(step_time_s=None), {**AGAIN, "first_step": 101, "step_time_s": None}], 0.0, 60.0),
    ],
)
def test_what_is_not_known_adds_nothing_and_is_counted(
    attempts: list[dict[str, Any]], redone_s: float | None, down_s: float | None
) -> None:
    (loss,) = cost([failed()], attempts)
    assert (loss.redone_s, loss.down_s) == (redone_s, down_s)
    assert loss.known is (None not in (redone_s, down_s))
    (row,) = grouped([loss], "job")
    assert row["not_known"] == int(not loss.known)
    parts = [seconds for seconds in (redone_s, down_s) if seconds is not None]
    assert row["lost_gpu_h"] == (pytest.approx(16 * sum(parts) / 3600, abs=1e-4) if parts else None)


def test_an_attempt_that_made_no_step_is_lost_whole_and_hides_not_what_the_next_one_repeats() -> None:
    """Two hours of work, half an hour without a step, and an hour that begins 100 steps before the end of the first."""
    first = ran(at_s=-7200.0, ended_at=later(0.0), last_step=1000, step_time_s=7.2)
    stuck = ran(attempt=1, at_s=120.0, ended_at=later(1920.0), first_step=None, last_step=None, step_time_s=None)
    third = ran(attempt=2, at_s=2040.0, ended_at=later(5640.0), first_step=901, last_step=1400, step_time_s=7.2)
    rows = [{**row, "partition": "gpu"} for row in (first, stuck, third)]
    found = cost([failed(), failed(attempt=1, at_s=1920.0)], rows)
    told = [(loss.redone_steps, loss.redone_s, loss.down_s) for loss in found]
    assert told == [(100, 720.0, 120.0), (None, 1800.0, 120.0)]
    shares = training_share([(row, (row["ended_at"] - row["started_at"]).total_seconds()) for row in rows], found, gpus)
    assert shares["gpu"] == pytest.approx((7200 + 3600 - 720) / (7200 + 1800 + 3600 + 240))


def test_time_that_is_made_twice_and_without_steps_counts_once() -> None:
    """An attempt that makes no step for ten minutes is found to hang then, and ended ten minutes later."""
    first = ran(at_s=-3600.0, ended_at=later(0.0))
    stuck = ran(attempt=1, at_s=60.0, ended_at=later(1260.0), first_step=None, last_step=None)
    (loss,) = cost([failed(attempt=1, at_s=660.0)], [first, stuck, ran(attempt=2, at_s=1320.0)], i1_1=later(1380.0))
    assert (loss.redone_s, loss.down_s) == (600.0, 720.0)


def test_the_training_share_counts_time_without_steps_once_where_the_job_ran_meanwhile() -> None:
    """By hand: an hour of steps, 10 minutes of a hang, 1 minute until the next attempt, which takes 4 minutes until its
    first new step and makes steps for 50 minutes: 110 of 125 minutes made steps."""
    first = ran(at_s=-3600.0, ended_at=later(600.0), partition="gpu")
    second = ran(attempt=1, at_s=660.0, ended_at=later(3900.0), first_step=101, partition="gpu")
    found = cost([failed()], [first, second], i1_0=later(900.0))
    assert (found[0].redone_s, found[0].down_s) == (0.0, 900.0)
    assert training_share([(first, 4200.0), (second, 3240.0)], found, gpus)["gpu"] == pytest.approx(110 / 125)


def test_a_restart_within_an_attempt_takes_its_time_without_steps_from_the_attempt_s() -> None:
    """Two hours, of which ten minutes after a failure in their middle made no step."""
    whole = ran(at_s=-3600.0, ended_at=later(3600.0), partition="gpu")
    found = cost([failed()], [whole], i1_0=later(600.0))
    assert training_share([(whole, 7200.0)], found, gpus)["gpu"] == pytest.approx(110 / 120)


@pytest.mark.parametrize(
    ("first", "stuck", "third", "lost"),
    [
        ({}, {}, {"first_step": 101}, True),
        ({}, {}, {"first_step": 102}, False),  # it begins with what the second saved
        ({}, {}, {"first_step": None}, False),
        ({"last_step": None}, {}, {"first_step": 1}, False),  # of the job no step was seen before
        ({}, {"ended_at": None}, {}, False),
        ({}, {"state": "end not seen"}, {}, False),
    ],
)
def test_an_attempt_without_a_step_is_lost_where_the_next_one_shows_that_nothing_of_it_was_left(
    first: dict[str, Any], stuck: dict[str, Any], third: dict[str, Any], lost: bool
) -> None:
    """It may have made steps that nobody saw: the log of a job need not be read."""
    second = ran(attempt=1, at_s=60.0, ended_at=later(660.0), first_step=None, last_step=None) | stuck
    (loss,) = cost([failed(attempt=1, at_s=660.0)], [ran() | first, second, ran(attempt=2, at_s=700.0) | third])
    assert loss.redone_s == (600.0 if lost else None)


def test_gpus_that_are_not_known_make_the_loss_not_known() -> None:
    (loss,) = cost([failed()], [ran(nodes=["ghost"]), AGAIN])
    assert loss.gpus is None and not loss.known and loss.gpu_h == 0.0


def test_several_incidents_of_one_attempt_count_once_for_the_first() -> None:
    later_one = failed(at_s=5.0, id="second", cause="gpu_nvlink")
    (loss,) = cost([later_one, failed()], [ran(), AGAIN])
    assert loss.incident["cause"] == "pcie"


def test_the_incident_that_ended_the_attempt_has_its_cost() -> None:
    told, stopped = failed(at_s=-30.0, id="told", cause="numerical_nan"), failed()
    ended_by = {((1, 0), 0): stopped["id"]}
    (loss,) = losses([told, stopped], [ran(), AGAIN], gpus=gpus, recovered={}, ended_by=ended_by)
    assert loss.incident["cause"] == "pcie" and loss.down_s == 60.0
    assert losses([told], [ran(), AGAIN], gpus=gpus, recovered={}, ended_by=ended_by) == []  # of another filter
    assert losses([told, stopped | {"cause": None}], [ran()], gpus=gpus, recovered={}, ended_by=ended_by) == []


@pytest.mark.parametrize("changes", [{"job": None}, {"attempt": None}, {"cause": None}])
def test_incidents_without_a_job_or_a_verdict_cost_nothing(changes: dict[str, Any]) -> None:
    assert cost([failed() | changes], [ran(), AGAIN]) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"cause": "user_code", "scope": "application", "culprit_nodes": None},
        {"cause": "user_code", "scope": "application", "culprit_nodes": ["n3"]},  # where the failing rank ran
        {"cause": "unknown", "scope": "unknown", "culprit_nodes": []},
        {"cause": "filesystem_storage", "scope": "cluster", "culprit_nodes": ["n3"]},
    ],
)
def test_what_no_machine_did_is_charged_to_none_though_one_showed_it(changes: dict[str, Any]) -> None:
    row = failed(seen_on=["n3"]) | changes
    assert [group["node"] for group in grouped(cost([row], [ran(), AGAIN]), "node")] == [NO_NODE]
    by = groups([row])
    assert by["node"] == [] and by["cause"][0]["nodes"] == 0
    assert FailureFilter(nodes=frozenset({"n3"})).has(row)  # who asks what happened there is still told


def test_all_causes_are_told() -> None:
    causes = ["pcie", "user_code", "gpu_nvlink", "numerical_nan", "pcie"]
    found = cost([failed(number, cause=cause) for number, cause in enumerate(causes)], [])
    (row,) = grouped(found, "user")
    assert row["causes"] == {"pcie": 2, "user_code": 1, "gpu_nvlink": 1, "numerical_nan": 1}
    assert groups([loss.incident for loss in found])["user"][0]["causes"] == row["causes"]


def test_groups_the_greatest_first() -> None:
    found = cost(
        [failed(1), failed(2, cause="user_code", scope="application", culprit_nodes=None, user="bob"),
         failed(3, culprit_nodes=["n1", "n2"])],
        [ran(1), AGAIN, ran(2, last_step=500), {**AGAIN, "job": 2}, ran(3), {**AGAIN, "job": 3}],
    )  # fmt: skip
    one, two = 16 * 100 / 3600, 16 * 900 / 3600
    assert [(row["job"], row["user"], row["name"]) for row in grouped(found, "job")] == [
        (2, "bob", "train"), (1, "ada", "train"), (3, "ada", "train"),
    ]  # fmt: skip
    shares = {row["node"]: row["lost_gpu_h"] for row in grouped(found, "node")}
    assert shares == pytest.approx({"n1": 1.5 * one, "n2": 0.5 * one, NO_NODE: two}, abs=1e-3)
    assert [(row["cause"], row["failures"]) for row in grouped(found, "cause")] == [("user_code", 1), ("pcie", 2)]
    assert {row["user"]: row["redone_steps"] for row in grouped(found, "user")} == {"ada": 40, "bob": 420}


@pytest.mark.parametrize("user", ["bob", "ada"])
def test_jobs_that_had_one_id_pay_for_their_own_failures(user: str) -> None:
    """Slurm gives an id again; each attempt is counted for the job that it was of, also where one user had both."""
    day = 86_400.0
    attempts = [
        ran(ended_at=later(0.0)), {**AGAIN, "ended_at": later(900.0)},
        ran(at_s=day, user=user, ended_at=later(day + 600.0)),
        ran(attempt=1, at_s=day + 650.0, user=user, first_step=91, last_step=500),
    ]  # fmt: skip
    mine, other = cost([failed(), failed(id="later", at_s=day + 600.0, user=user)], attempts)
    assert (mine.redone_steps, mine.down_s, other.redone_steps, other.down_s) == (20, 60.0, 10, 50.0)
    assert [(row["job"], row["user"], row["failures"]) for row in grouped([mine, other], "job")] == [
        (1, "ada", 1),
        (1, user, 1),
    ]


@pytest.mark.parametrize(
    ("told", "count"), [((), 1), ((failed(2, cause=None),), 0), ((failed(1),), 0), ((failed(7),), 1)]
)
def test_a_heterogeneous_job_that_was_ended_on_purpose_counts_once(told: Sequence[dict[str, Any]], count: int) -> None:
    over = {"state": "cancelled", "ended_at": later(0.0)}
    parts = [ran(number, het=1, **over) for number in (1, 2, 3)]
    assert untold_ends(parts, told, later(-60.0), later(60.0)) == count
    others = [ran(4, het=None, **over), ran(5, **over), ran(4, 1, at_s=-30.0, het=None, **over)]
    assert untold_ends([*parts, *others], told, later(-60.0), later(60.0)) == count + 3


def test_a_heterogeneous_job_whose_parts_end_at_the_turn_of_two_periods_counts_in_one() -> None:
    parts = [ran(1, het=1, state="timeout", ended_at=later(-1.0)), ran(2, het=1, state="timeout", ended_at=later(1.0))]
    assert [untold_ends(parts, (), later(at_s), later(at_s + 60.0)) for at_s in (-60.0, 0.0)] == [0, 1]


def test_failures_of_which_the_partition_is_not_known_may_be_of_each() -> None:
    day = 86_400.0
    attempts = [(ran(partition="gpu"), day), (ran(job=2, partition="old"), day)]
    known = failed(job=2)
    found = cost([known, failed(job=3)], [row for row, _ in attempts], i2_0=later(600.0))
    shares = training_share(attempts, found, gpus)
    assert list(shares) == ["old"] and shares["old"] < 1.0  # what is known of one is told, as of all together
    assert training_share(attempts, cost([failed(job=3)], []), gpus, together=True) == {}
    assert training_share(attempts, [], gpus) == {"gpu": 1.0, "old": 1.0}
