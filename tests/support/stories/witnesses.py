"""What slurmctld's log says about nodes, and waiting for what must come: the plain witnesses of a story."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

PATIENCE_S = 240.0  # far above what a recovery takes: the machine may be busy, and Slurm asks for a node every 100 s
OURS = "sentinel:"
_NODE_CHANGE = re.compile(r"update_node: node (\S+) (?:reason set to: (.*)|state set to (\S+))$", re.MULTILINE)


def until(check: Callable[[], object], what: str | Callable[[], str], within_s: float = PATIENCE_S) -> Any:
    """The first true answer of ``check``; the test fails when there is none in time."""
    deadline = time.monotonic() + within_s
    while not (answer := check()):
        if time.monotonic() > deadline:
            pytest.fail(f"not within {within_s:.0f} s: {what() if callable(what) else what}")
        time.sleep(0.25)
    return answer


def wait_jobs_saved(story: Any) -> None:
    """Until slurmctld has saved its jobs as they are now: what it has not saved a kill makes it forget."""
    saved, now, again = story.paths.state / "job_state", time.time(), 0.0

    def is_saved() -> bool:
        # It saves nothing while nothing changes, and a change within the second of its last save may wait for the next one.
        nonlocal again
        if saved.exists() and saved.stat().st_mtime > now:
            return True
        if time.monotonic() > again:
            again = time.monotonic() + 10.0
            passing = story.lab.slurm("sbatch", "--parsable", "--hold", "--output=/dev/null", "--wrap=true").strip()
            story.lab.slurm("scancel", passing)
        return False

    until(is_saved, "slurmctld to save its jobs")


@dataclass(frozen=True)
class NodeChange:
    """One ``scontrol update nodename`` that slurmctld carried out."""

    node: str
    state: str
    reason: str


def node_changes(log: str) -> list[NodeChange]:
    """Changes of nodes' states as slurmctld's log tells them, each with the reason that was set before it."""
    reasons: dict[str, str] = {}
    found = []
    for node, reason, state in _NODE_CHANGE.findall(log):
        if state:
            found.append(NodeChange(node, state, reasons.get(node, "")))
        else:
            reasons[node] = reason
    return found


def our_drains(changes: Sequence[NodeChange]) -> list[str]:
    """Nodes in order of being drained. Setting a node down is drained and down, at once and with one reason: one drain."""
    found = []
    before: dict[str, NodeChange] = {}
    for change in changes:
        last = before.get(change.node)
        before[change.node] = change
        if not change.reason.startswith(OURS) or not change.state.startswith(("DRAIN", "DOWN")):
            continue
        if change.state == "DOWN" and last is not None and last.state != "DOWN" and last.reason == change.reason:
            continue
        found.append(change.node)
    return found
