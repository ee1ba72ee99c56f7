"""The Slurm in memory of ``sentinel.simulate`` under the names that tests use: with its default times, what can happen at
once does. It is held to the same contract suite as the real one."""

from __future__ import annotations

from sentinel.simulate.slurm.cluster import SimulatedSlurm
from sentinel.simulate.slurm.records import REQUEUE_WAIT_S, SimulatedJob, SimulatedNode, StandingClock

FakeClock, FakeSlurm, FakeJob, FakeNode = StandingClock, SimulatedSlurm, SimulatedJob, SimulatedNode
__all__ = ["REQUEUE_WAIT_S", "FakeClock", "FakeJob", "FakeNode", "FakeSlurm"]
