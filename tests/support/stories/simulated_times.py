"""What the simulator takes for the failures that the lab is given: seconds of each phase, some hundred of each."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from sentinel.simulate.long_run.assumptions import Times, hang_seen_s
from sentinel.simulate.long_run.rates import Rates
from sentinel.simulate.long_run.scenario import Scenario
from sentinel.simulate.long_run.seeds import run_one

CAUSES = {"xid": "faulty GPU", "hang": "NCCL watchdog timeout"}
STEP_S = 1.0


def simulated(name: str, times: Times | None = None) -> Mapping[str, Sequence[float]]:
    """By phase: ``decision`` (from the failure), ``restart`` (from there to RUNNING), each kind of step."""
    rates = Rates("calibration", 20.0, {CAUSES[name]: 1.0}, "calibration")
    scenario = Scenario(
        nodes=64, days=30, spares=8, rates=rates, start_s=5.0, step_s=STEP_S, **({"times": times} if times else {})
    )
    ran = run_one(scenario, 1, "sentinel")
    decision = ran.decision_s
    if name == "hang":
        rng = random.Random(1)
        decision = tuple(hang_seen_s(rng, STEP_S) + took for took in ran.decision_s)
    return {**ran.steps_s, "decision": decision, "restart": ran.restart_s}
