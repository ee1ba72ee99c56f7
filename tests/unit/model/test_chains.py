"""Which jobs wait for which, and whether the next one of a chain has begun."""

from __future__ import annotations

from typing import Any

import pytest

from sentinel.model.jobs.chains import MOST_LINKS, begun_instead, waiting
from sentinel.model.records import JobView


def job(number: int, state: str = "running", **changes: Any) -> JobView:
    nodes = ("n1",) if state != "pending" else ()
    return JobView(
        **{"id": number, "state": state, "uid": 1001, "user": "ada", "name": "chain", "nodes": nodes, **changes}
    )


def test_a_singleton_waits_for_the_jobs_of_its_name_and_user_that_have_begun() -> None:
    jobs = [
        job(1), job(2, "pending", singleton=True), job(3, "pending", singleton=True), job(4, name="other"), job(5, uid=1002),
        job(6, "suspended"), job(7, "failed"), job(8, "pending", depends=(("afterok", 1),)),
    ]  # fmt: skip
    found = {(2, "singleton", 1), (2, "singleton", 6), (3, "singleton", 1), (3, "singleton", 6), (8, "afterok", 1)}
    assert {*waiting(jobs)} == found


def test_of_many_that_wait_for_many_the_next_ones_are_told() -> None:
    """Slurm lets one go after the other, in the order of their ids: not each pair of them is looked at."""
    begun, singles = [job(number) for number in range(1, 301)], range(301, 601)
    found = [*waiting([*begun, *(job(number, "pending", singleton=True) for number in reversed(singles))])]
    assert {waits for waits, _, _ in found} == {*singles[:MOST_LINKS]}
    assert len(found) == len(begun) * MOST_LINKS


@pytest.mark.parametrize(
    ("this", "other", "held"),
    [
        ("failed", job(2), True),
        ("pending", job(2, "suspended"), True),
        ("failed", job(2, "completed"), True),
        ("failed", job(2, "pending"), False),
        ("failed", job(2, "cancelled", nodes=()), False),  # before it began
        ("running", job(2), False),  # beside it already, as somebody wants it
    ],
)
def test_a_job_whose_successor_has_begun_is_held(this: str, other: JobView, held: bool) -> None:
    assert bool(begun_instead(job(1, this), [other])) is held
