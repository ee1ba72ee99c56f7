"""Start smaller now, or wait for all nodes: which loses less, for a job that can run on fewer.

The work of a job is taken to grow with its nodes. Waiting loses all of its nodes' work until one is back; starting smaller
loses the missing nodes' work until the job is next restarted, since Slurm does not add nodes to a running job.
"""

from __future__ import annotations

from dataclasses import dataclass

from sentinel.planning.limits import not_negative, whole


@dataclass(frozen=True, slots=True)
class RestartSize:
    """What to do, and what either way costs."""

    nodes: int  # with how many to start; all of them: it waits
    smaller_s: float  # node-seconds lost by starting smaller
    waiting_s: float  # node-seconds lost by waiting


def remaining_wait_s(wait_s: float, waited_s: float) -> float | None:
    """What is left of the time within which a node is expected; None: it has passed, and nothing is known of another."""
    return wait_s - waited_s if waited_s < wait_s else None


def restart_size(left: int, least: int, most: int, wait_s: float | None, smaller_for_s: float) -> RestartSize:
    """
    Args:
        left: nodes that the job may get now.
        least: with which it can run; ``most``: with which it runs at its best.
        wait_s: until another node is there; None: that is not known any more, and it starts as soon as it can.
        smaller_for_s: how long a smaller start stays so.
    """
    there = min(whole(left, "nodes left", least=0), whole(most, "most nodes"))
    smaller_s = float(most - there) * not_negative(smaller_for_s, "time until the next restart")
    waiting_s = float("inf") if wait_s is None else float(most) * not_negative(wait_s, "wait")
    start_now = there >= whole(least, "least nodes") and smaller_s <= waiting_s
    return RestartSize(there if start_now else most, smaller_s, waiting_s)
