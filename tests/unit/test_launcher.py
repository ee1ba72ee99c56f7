"""Which order in a resume point the launcher of a job takes."""

from __future__ import annotations

import os

import pytest

from sentinel.launcher import Allocation, order_in

HERE = Allocation("31", "0", ("n1", "n2"), None)
OURS = ("SENTINEL_JOB=31", "SENTINEL_ATTEMPT=0", "SENTINEL_RUN=2", "SENTINEL_NODES=n2")


@pytest.mark.parametrize(("lines", "taken"), [
    ((), True),  # a daemon of an earlier release says not whose it is
    ((f"SENTINEL_UID={os.getuid()}",), True),
    ((f"SENTINEL_UID={os.getuid() + 1}",), False),
])  # fmt: skip
def test_the_order_of_another_users_job_of_this_number_is_not_taken(lines: tuple[str, ...], taken: bool) -> None:
    assert (order_in("\n".join((*OURS, *lines)), HERE) is not None) is taken
