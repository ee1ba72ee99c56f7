"""One job at two times, or two jobs with one id."""

from __future__ import annotations

from typing import Any

import pytest
from made_records import later

from sentinel.model.identity import JobsOfOneId, is_another
from sentinel.model.records import JobView


def job(restarts: int = 0, submitted_s: float | None = 0.0, started_s: float | None = 10.0, **changes: Any) -> JobView:
    times = {
        name: later(at_s) if at_s is not None else None
        for name, at_s in (("submitted_at", submitted_s), ("started_at", started_s))
    }
    return JobView(
        **{"id": 7, "state": "running", "user": "ada", "uid": 1001, "restarts": restarts, **times, **changes}
    )


@pytest.mark.parametrize(
    ("known", "now"),
    [
        (job(), job()),
        (job(), job(1, 500.0, None)),  # requeued
        (job(), job(1, 0.0, 10.0)),  # its epilogs run: counted already, not submitted anew yet
        (job(1, 500.0, 510.0), job()),  # slurmctld forgot the requeue
        (job(2, 900.0, 910.0), job(1, 950.0, 960.0)),  # forgot two, and it was requeued again
        (job(submitted_s=None), job(started_s=12.0)),  # of the store; its start was reset while its nodes booted
        (job(started_s=-3600.0), job(started_s=-3600.0)),  # slurmctld's clock was set back in between
        (job(submitted_s=None, started_s=-3600.0), job(started_s=-3600.0)),
        (job(submitted_s=None, started_s=None), job(submitted_s=9e5, started_s=None)),  # nothing is known of it
        (job(), job(submitted_s=None)),
        (job(uid=None, user="nobody"), job()),  # the user's name could not be found just then
        (job(uid=None, user=""), job()),
        (job(uid=None, user="1001"), job()),
    ],
)
def test_one_job(known: JobView, now: JobView) -> None:
    assert not is_another(known, now)


@pytest.mark.parametrize(
    ("known", "now"),
    [
        (job(), job(submitted_s=900.0, started_s=None)),
        (job(submitted_s=None), job(submitted_s=900.0, started_s=910.0)),
        (job(3, 500.0, 510.0), job(submitted_s=900.0)),
        (job(), job(1, 900.0, uid=1002)),  # requeued before it was seen
        (job(uid=None), job(1, 900.0, uid=None, user="bob")),
    ],
)
def test_another_job(known: JobView, now: JobView) -> None:
    assert is_another(known, now)


def ran(attempt: int, began_s: float, ended_s: float | None, user: str = "ada") -> dict[str, Any]:
    ended = later(ended_s) if ended_s is not None else None
    return {"job": 7, "attempt": attempt, "started_at": later(began_s), "ended_at": ended, "user": user}


@pytest.mark.parametrize(
    "rows",
    [
        [ran(0, 0.0, 100.0), ran(1, 200.0, 300.0)],
        [ran(0, 0.0, None), ran(0, 60.0, 100.0)],  # its nodes had to boot
        [ran(1, 0.0, 100.0), ran(1, 200.0, 300.0)],  # slurmctld forgot the first of these
        [ran(0, 0.0, 100.0, ""), ran(1, 200.0, 300.0)],
    ],
)
def test_rows_of_one_job(rows: list[dict[str, Any]]) -> None:
    jobs = JobsOfOneId(rows)
    assert len({jobs.of(7, row["started_at"]) for row in rows}) == 1
    assert (
        not jobs.is_former(7, later(-9e5))
        and not jobs.is_former(8, later(0.0))
        and not jobs.is_former(None, later(0.0))
    )


@pytest.mark.parametrize("user", ["ada", "bob"])
def test_rows_of_two_jobs(user: str) -> None:
    jobs = JobsOfOneId(
        [ran(0, 0.0, 100.0), ran(1, 200.0, 300.0), ran(0, 9000.0, 9100.0, user), ran(1, 9200.0, None, user)]
    )
    assert jobs.of(7, later(250.0)) == jobs.of(7, later(0.0)) != jobs.of(7, later(9000.0)) == jobs.of(7, later(9e5))
    assert jobs.is_former(7, later(300.0)) and not jobs.is_former(7, later(8990.0)), "clocks may differ"
