"""Decides what may be done about a verdict, and what must wait.

Input: verdict, incident, the situation (fleet snapshot, recent actions, what the job's user asked for), limits, modes, time.
Output: a ``Plan``: the steps that may be carried out now, in order, and a ``Wait`` for each reason why something that is
wanted is not among them. The engine asks again with a fresh situation when what a wait depends on may have changed; a
plan without steps and waits means that nothing (more) is wanted. Pure; performs nothing.

The steps are in a safe order: bad nodes are drained first, the job is stopped and kept from starting, a checkpoint is chosen
and the resume point written, and only then is the job released. After an interruption the remaining steps can be done later.
"""

from sentinel.model.records import NODE_STEPS
from sentinel.policy.drains import refused_wait
from sentinel.policy.exclusions import Exclusions, excluded, nodes_wanted
from sentinel.policy.in_allocation import NextRun, next_run
from sentinel.policy.plan import decide
from sentinel.policy.required_nodes import waits_for_required, without_required
from sentinel.policy.situation import (
    NO_NODE,
    SILENCE,
    NodeHurt,
    PastRestart,
    RefusedDrain,
    Situation,
    Stop,
    components_with,
    from_silence,
    in_maintenance,
    is_startable,
)

__all__ = [
    "NODE_STEPS",
    "NO_NODE",
    "SILENCE",
    "Exclusions",
    "NextRun",
    "NodeHurt",
    "PastRestart",
    "RefusedDrain",
    "Situation",
    "Stop",
    "components_with",
    "decide",
    "excluded",
    "from_silence",
    "in_maintenance",
    "is_startable",
    "next_run",
    "nodes_wanted",
    "refused_wait",
    "waits_for_required",
    "without_required",
]
