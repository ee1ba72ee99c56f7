"""Ends of jobs whose time is nearly over: Slurm tells them by a signal (sbatch --signal)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from sentinel.adapters.slurm.parse import job_view
from sentinel.detect.job_end import job_ended

BEGAN_S = 1772366401
HOUR_S = 3600


def boxed(number: int) -> dict[str, Any]:
    """As newer releases write a number."""
    return {"set": True, "infinite": False, "number": number}


def near_its_limit(after_s: int, limit: Any, *, state: str = "FAILED", **record: Any) -> bool:
    """Whether the end, so long after the start, of a job with this limit (minutes) is told as one by its limit."""
    job = job_view({
        "job_id": 7, "job_state": state, "batch_flag": True, "exit_code": 256, "submit_time": BEGAN_S - 5,
        "start_time": BEGAN_S, "end_time": BEGAN_S + after_s, "time_limit": limit, **record,
    })  # fmt: skip
    evidence = job_ended(job, datetime(2026, 3, 2, tzinfo=UTC), nodes=["n1"])
    assert ("as its time limit neared" in evidence.text) is bool(evidence.data.get("limit_near"))
    return bool(evidence.data.get("limit_near"))


@pytest.mark.parametrize("limit", [120, boxed(120)])
def test_an_end_shortly_before_the_limit_is_one_by_the_limit(limit: Any) -> None:
    """Without a word of --signal: its own default is a minute, and Slurm may send it another minute earlier."""
    assert near_its_limit(2 * HOUR_S - 100, limit) and near_its_limit(2 * HOUR_S + 30, limit)
    assert not near_its_limit(2 * HOUR_S - 200, limit) and not near_its_limit(HOUR_S, limit)
    assert not near_its_limit(2 * HOUR_S - 100, limit, state="COMPLETED"), "it ended well"


def test_of_a_short_job_a_small_part_of_its_time_is_near_the_limit() -> None:
    assert near_its_limit(116, 2) and not near_its_limit(90, 2)


@pytest.mark.parametrize(
    ("line", "lead_s"),
    [
        ("sbatch -t 2:00:00 --signal=B:USR1@600 run.sh", 600),
        ("sbatch --signal TERM@300 run.sh", 300),
        ("sbatch --signal=BR:10@30 run.sh", 30),
        ("sbatch --signal=@900 run.sh", 900),
        ("sbatch --signal=USR1 run.sh", 60),
    ],
)
def test_the_lead_of_its_signal_counts_where_slurm_tells_with_what_it_was_submitted(line: str, lead_s: int) -> None:
    for earlier_s, told in ((0, True), (lead_s, True), (lead_s + 55, True), (lead_s + 70, False)):
        assert near_its_limit(2 * HOUR_S - earlier_s, 120, submit_line=line) is told, earlier_s


@pytest.mark.parametrize("limit", [None, 0xFFFFFFFF, {"set": False, "infinite": True, "number": 0}, "UNLIMITED", 0])
def test_without_a_limit_no_end_is_near_it(limit: Any) -> None:
    assert not near_its_limit(2 * HOUR_S, limit)


def test_of_a_suspended_job_it_is_not_known() -> None:
    """Slurm does not count the time for which a job was suspended."""
    assert not near_its_limit(2 * HOUR_S - 10, 120, suspend_time=BEGAN_S + 60)
    assert near_its_limit(2 * HOUR_S - 10, 120, suspend_time=BEGAN_S - 60), "that was an earlier attempt"


@pytest.mark.parametrize(
    ("needs", "minutes"),
    [({}, 60), ({"time_minimum": 20}, 20), ({"time_minimum": boxed(0)}, 60), ({"time_limit": None}, None)],
)
@pytest.mark.parametrize("boxes", [False, True])
def test_until_when_a_job_with_a_deadline_may_start(needs: dict[str, Any], minutes: int | None, boxes: bool) -> None:
    deadline = BEGAN_S + 2 * HOUR_S
    record = {"job_id": 7, "job_state": "RUNNING", "start_time": BEGAN_S, "time_limit": 60, **needs}
    found = job_view({**record, "deadline": boxed(deadline) if boxes else deadline}).start_by
    assert (found.timestamp() if found else None) == (deadline - minutes * 60 if minutes else None)
    assert job_view({**record, "deadline": 0}).start_by is None
