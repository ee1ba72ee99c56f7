"""What a restart costs and whether waiting pays: the same arithmetic, for one failure that has happened."""

from __future__ import annotations

from dataclasses import dataclass

from sentinel.planning.limits import fraction, not_negative, positive


@dataclass(frozen=True)
class RestartCost:
    """Clock time from the failure until the run is where it was, in its parts."""

    total_s: float
    redo_s: float
    restore_s: float
    wait_s: float


def restart_cost(
    lost_steps: float, step_s: float, restore_s: float, *, validate_s: float = 0.0, wait_s: float = 0.0
) -> RestartCost:
    """Steps to do again, loading and checking the state, and waiting for nodes; parts in sequence."""
    redo = not_negative(lost_steps, "lost steps") * positive(step_s, "step")
    restore = not_negative(restore_s, "restore") + not_negative(validate_s, "validate")
    wait = not_negative(wait_s, "wait")
    return RestartCost(redo + restore + wait, redo, restore, wait)


@dataclass(frozen=True)
class Waiting:
    """Whether to wait: ``gain_s`` is clock time saved by waiting (negative: time lost by it)."""

    pays: bool
    gain_s: float
    longest_wait_s: float
    reason: str


def waiting_for_checkpoint(near: RestartCost, far: RestartCost) -> Waiting:
    """Wait for the hosts of a near checkpoint (its ``wait_s`` counted) or restart from a farther one now?"""
    gain = far.total_s - near.total_s
    longest = max(0.0, far.total_s - (near.total_s - near.wait_s))
    verb = "saves" if gain > 0 else "costs"
    reason = (
        f"waiting {near.wait_s:.0f} s for the nearer checkpoint {verb} {abs(gain):.0f} s; it pays up to {longest:.0f} s"
    )
    return Waiting(gain > 0, gain, longest, reason)


def waiting_for_nodes(
    wait_s: float, size_fraction: float, *, reduced_s: float, restart_s: float, efficiency_fraction: float = 1.0
) -> Waiting:
    """Wait for the full number of nodes, or restart on ``size_fraction`` of them now and grow again later?

    Running small does ``size_fraction`` x ``efficiency_fraction`` of the work for ``reduced_s`` (until the nodes are
    back) and pays one more restart to grow. Waiting stands still for ``wait_s``, then runs at full size. Compared over
    ``reduced_s``, which is at least ``wait_s``: work lost by either, in seconds at full size.
    """
    wait, reduced = not_negative(wait_s, "wait"), not_negative(reduced_s, "time at reduced size")
    speed = fraction(size_fraction, "size") * fraction(efficiency_fraction, "efficiency")
    lost_small = (1 - speed) * max(reduced, wait) + not_negative(restart_s, "restart")
    gain = lost_small - wait
    reason = (
        f"waiting loses {wait:.0f} s of work, running at {100 * speed:.0f} % until the nodes are back and growing again "
        f"{lost_small:.0f} s"
    )
    return Waiting(gain > 0, gain, lost_small, reason)
