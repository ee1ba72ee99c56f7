"""What the launcher in a job's batch script (``sentinel run``) and the daemon agree on.

The launcher names each of its Slurm steps by its number, and starts the next one when the job's resume point orders it.
"""

from __future__ import annotations

STEP_NAME = "sentinel-run-"  # then the number of the run, from 0
RUN = "SENTINEL_RUN"  # in the resume point: the number of the run to start
UID = "SENTINEL_UID"  # the same, where it is known: its user's; TaskProlog and the launcher take no other user's
NODES = "SENTINEL_NODES"  # the same: its nodes, separated by commas


def run_of(step_name: str) -> int | None:
    """The number of the run that a step of this name is; None: it is none of the launcher's."""
    number = step_name.removeprefix(STEP_NAME)
    return int(number) if number != step_name and number.isdecimal() and len(number) < 6 else None
