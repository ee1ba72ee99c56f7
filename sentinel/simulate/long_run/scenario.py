"""What is simulated: sizes, times and a policy, checked before anything runs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from sentinel.config.settings import Mode, Modes, Settings
from sentinel.errors import UserError
from sentinel.simulate.long_run import assumptions
from sentinel.simulate.long_run.assumptions import Assumption, Times
from sentinel.simulate.long_run.rates import PRESETS, Rates

LEAST_NODES, MOST_NODES = 8, 16_384
LEAST_DAYS, MOST_DAYS = 1.0 / 24.0, 400.0
MOST_FAILURES = 200_000  # an hour or more of computing
BEHAVIOURS = ("sentinel", "byterobust", "on-call", "nccl-timeout", "stock")


@dataclass(frozen=True, slots=True)
class Scenario:
    """``spares``: nodes that no job holds at the start; None: one in 64, at least two. Times in seconds."""

    nodes: int = 1024
    days: float = 54.0
    gpus_per_node: int = 8
    jobs: int = 1
    spares: int | None = None
    rates: Rates = PRESETS["llama3"]
    interval_s: float = 300.0
    save_s: float = 1.0
    start_s: float = 60.0
    step_s: float = 10.0
    errors: str = "retry"  # what the jobs' comments ask for
    needs_code: float = assumptions.NEEDS_CODE_SHARE
    times: Times = field(default_factory=Times)
    settings: Settings = field(default_factory=lambda: acting(Settings()))
    policy: str = "built-in limits, every step allowed"

    def __post_init__(self) -> None:
        if not LEAST_NODES <= self.nodes <= MOST_NODES:
            raise UserError(
                f"--nodes {self.nodes}: a cluster of {LEAST_NODES} to {MOST_NODES:,} nodes can be simulated",
                fix="sentinel simulate --nodes 2048",
            )
        if not (math.isfinite(self.days) and LEAST_DAYS <= self.days <= MOST_DAYS):
            raise UserError(f"--days {self.days:g}: from 1h to {MOST_DAYS:g} days", fix="--days 54")
        if not 1 <= self.gpus_per_node <= 64:
            raise UserError(f"--gpus-per-node {self.gpus_per_node}: 1 to 64", fix="--gpus-per-node 8")
        if not 1 <= self.jobs <= self.nodes // 2:
            raise UserError(
                f"--jobs {self.jobs}: each of them needs at least two of {self.nodes} nodes", fix="--jobs 1"
            )
        if self.spares is not None and not 0 <= self.spares <= self.nodes:
            raise UserError(f"--spares {self.spares}: 0 to {self.nodes}", fix=f"--spares {max(2, self.nodes // 64)}")
        if not (math.isfinite(self.needs_code) and 0 <= self.needs_code <= 1):
            raise UserError(f"--needs-code {self.needs_code:g}: a share from 0 to 1", fix="--needs-code 5.6%")
        if self.errors not in ("hold", "retry"):
            raise UserError(f"--errors {self.errors!r:.40}: hold or retry", fix="--errors retry")
        self._check_times()
        expected = self.rates.per_s(self.nodes) * self.days * 86400
        if expected > MOST_FAILURES:
            raise UserError(
                f"{expected:,.0f} failures are to be expected: no such cluster trains anything",
                fix="fewer nodes or days, or a failure history whose gpu_s and failures are of the same time",
            )
        self._check_policy()

    def _check_times(self) -> None:
        for name, least in (("interval_s", 1.0), ("save_s", 0.0), ("start_s", 0.1), ("step_s", 0.01)):
            value = getattr(self, name)
            if not (math.isfinite(value) and least <= value <= 86400):
                option = f"--{name.removesuffix('_s')}"
                raise UserError(f"{option} {value:g} s: from {least:g} s to a day", fix=f"{option} 5min")
        if self.save_s >= self.interval_s:
            raise UserError(
                f"--save {self.save_s:g} s takes as long as the {self.interval_s:g} s of work between two saves",
                fix="a longer --interval, or a shorter --save",
            )

    def _check_policy(self) -> None:
        """A policy under which a fault could take the whole cluster is refused: it is a slip, not an experiment."""
        limits = self.settings.limits
        if limits.drain_count >= self.total_nodes and limits.drain_fraction >= 1.0 and not limits.keep_healthy:
            raise UserError(
                "the policy would let every node be drained: drain_count, drain_fraction and keep_healthy all allow it",
                fix="set limits.keep_healthy, drain_count or drain_fraction; sentinel config shows the defaults",
            )

    @property
    def spare_nodes(self) -> int:
        return max(2, self.nodes // 64) if self.spares is None else self.spares

    @property
    def total_nodes(self) -> int:
        return self.nodes + self.spare_nodes

    @property
    def job_nodes(self) -> int:
        return self.nodes // self.jobs

    @property
    def gpus(self) -> int:
        """GPUs at work when everything runs."""
        return self.job_nodes * self.jobs * self.gpus_per_node

    def assumptions(self) -> list[Assumption]:
        """What was given and what was assumed, for the user."""
        given = (
            Assumption("nodes", self.nodes, "nodes", f"{self.jobs} job{'s' * (self.jobs > 1)} of {self.job_nodes} nodes"),
            Assumption("spare_nodes", self.spare_nodes, "nodes", "given" if self.spares is not None else "one in 64"),
            Assumption("interval_s", self.interval_s, "s of work", "between two checkpoints that outlive a node (copies)"),
            Assumption("save_s", self.save_s, "s", "that a save stops the training"),
            Assumption(
                "start_s", self.start_s, "s",
                "from RUNNING to the first step: processes, NCCL (MegaScale: under 30 s at 10,000 GPUs), loading",
            ),
            Assumption("step_s", self.step_s, "s", "one step of training"),
            Assumption(
                "errors", self.errors, "", "what the jobs' comments ask for when their program fails: hold, or retry"
            ),
            Assumption("needs_code_share", self.needs_code, "of software bugs", assumptions.NEEDS_CODE_SOURCE),
            Assumption("nccl_timeout_s", NCCL_TIMEOUT_S, "s", "PyTorch's default; a hang that nobody stops ends then"),
            Assumption("policy", self.policy, "", "settings of the daemon"),
            self.rates.assumption(),
        )  # fmt: skip
        return [
            *given,
            *assumptions.FAILURES,
            *assumptions.PEOPLE,
            *assumptions.SILENCE,
            *assumptions.listed(self.times),
        ]


NCCL_TIMEOUT_S = 600.0


def acting(settings: Settings) -> Settings:
    """The settings with every step allowed."""
    return untested(dataclasses.replace(settings, modes=Modes(default=Mode(drain="act", restart="act"))))


def untested(settings: Settings) -> Settings:
    """The settings without tests of drained nodes: what proves a node good is one draw here (``assumptions``)."""
    return dataclasses.replace(settings, returns=dataclasses.replace(settings.returns, test_level=0))


def given(scenario: Scenario) -> Mapping[str, object]:
    """The scenario in numbers, for the JSON."""
    return {
        "nodes": scenario.nodes,
        "gpus_per_node": scenario.gpus_per_node,
        "jobs": scenario.jobs,
        "spare_nodes": scenario.spare_nodes,
        "days": scenario.days,
        "failures": scenario.rates.name,
        "warnings": [scenario.rates.warning] if scenario.rates.warning else [],
        "policy": scenario.policy,
    }
