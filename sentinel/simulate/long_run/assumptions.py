"""Every number of a simulated run that its user did not give, with unit and source. What is guessed says so."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Assumption:
    name: str
    value: object
    unit: str
    source: str

    def to_json(self) -> dict[str, object]:
        return {"name": self.name, "value": self.value, "unit": self.unit, "source": self.source}


@dataclass(frozen=True, slots=True)
class Span:
    """A time that varies: lognormal around ``median_s``, with 99 % of the values below ``p99_s``."""

    median_s: float
    p99_s: float

    def draw(self, rng: random.Random) -> float:
        sigma = math.log(self.p99_s / self.median_s) / 2.326 if self.p99_s > self.median_s else 0.0
        return self.median_s * math.exp(sigma * max(-2.6, min(2.6, rng.gauss(0.0, 1.0))))


@dataclass(frozen=True, slots=True)
class Times:
    """How long Slurm, agents and nodes take. The defaults are those of ``docs/benchmarks.md``, 64 slurmd on two cores."""

    tell: Span = Span(0.2, 0.5)  # from a line to the daemon
    slurm_read: Span = Span(0.1, 0.3)  # a snapshot
    slurm_write: Span = Span(0.15, 0.4)  # a request that changes something; a node that moves saves aside takes as long
    job_end: Span = Span(0.5, 1.5)  # from the end of a program to Slurm's final state, with the epilogs
    requeue: Span = Span(1.2, 2.5)  # until a stopped job is pending and holds no node
    choose: Span = Span(0.5, 3.0)  # nodes list and check the checkpoints
    write_resume: Span = Span(0.04, 0.3)  # a file; Slurm is not asked
    ask: Span = Span(0.5, 2.0)  # nodes answer what their processes do
    start: Span = Span(1.5, 3.0)  # from the release to RUNNING; slurmd takes no start within 2 s of the requeue


def listed(times: Times) -> tuple[Assumption, ...]:
    """The times of Slurm and Sentinel, as they are shown to the user."""
    lab = (
        "docs/benchmarks.md: fault to decision p50 0.5 s, decision to RUNNING p50 4.1 s, max 6.5 s (lab, 64 slurmd); "
        "each step: docs/simulate.md, calibration"
    )
    return tuple(
        Assumption(f"{name}_s", [span.median_s, span.p99_s], "s (median, p99)", lab)
        for name, span in ((name, getattr(times, name)) for name in times.__dataclass_fields__)
    )


# -- failures --------------------------------------------------------------------------------------------------------

UNSEEN_SHARE = 0.12
LATE_SHARE = 0.02
LATE_S = (5.0, 90.0)
MISLEADING_SHARE = 0.05
MISLEADING_NODES = (1, 8)
LEMON_SHARE = 0.012
LEMON_FACTOR = 12.0
NEEDS_CODE_SHARE = 3 / 419
NEEDS_CODE_SOURCE = (
    "arXiv:2407.21783: of 419, three required significant manual intervention; which is not said, so they are taken as "
    "equally likely of any cause. All three as software bugs would be 5.6 %"
)
TORN_SHARE = 0.01
FIRST_DIAGNOSTIC_PASSES = 0.3

# -- people and repair -------------------------------------------------------------------------------------------------

REPAIR = Span(4 * 3600.0, 72 * 3600.0)
RESET = Span(1800.0, 4 * 3600.0)
SWITCH_REPAIR = Span(900.0, 3600.0)
MAINTENANCE = Span(2 * 3600.0, 12 * 3600.0)
PERSON_COMES = Span(900.0, 2 * 3600.0)
PERSON_WORKS = Span(900.0, 4 * 3600.0)

# -- a silent hang -----------------------------------------------------------------------------------------------------

HANG_IN_TIME = 0.949
SLOW_HANG_IN_TIME = 0.917
SLOW_STEP_S = 20.0
HANG_STEPS = 3.0
HANG_LEAST_S = 15.0
HANG_LATE_S = 180.0
NODE_LOST_S = 6.0 + 3 * 1.25  # heartbeat_lost_s, then three attempts to connect

FAILURES: tuple[Assumption, ...] = (
    Assumption(
        "evidence_missing_share", UNSEEN_SHARE, "of hardware failures",
        "docs/judgement.md: 44 of 50 needed drains (16 of 17, 7 of 9, 21 of 24) seen in unread logs; here the "
        "machine's own line never comes",
    ),
    Assumption("evidence_late_share", LATE_SHARE, "of hardware failures", f"guess: {LATE_S[0]:g} to {LATE_S[1]:g} s late"),
    Assumption(
        "evidence_misleading_share", MISLEADING_SHARE, "of failures",
        "guess, after NVSentinel #1629: healthy nodes of the job print Xid 45 as it is torn down "
        f"({MISLEADING_NODES[0]} to {MISLEADING_NODES[1]} nodes here)",
    ),
    Assumption(
        "lemon_nodes_share", LEMON_SHARE, "of nodes",
        "Kokolis et al., arXiv:2410.21680: 1.2 % of RSC-1's nodes were lemons and failed 13 % of the daily jobs",
    ),
    Assumption("lemon_factor", LEMON_FACTOR, "times as often", "the same: 13 % of the failures on 1.2 % of the nodes"),
    Assumption("newest_checkpoint_torn_share", TORN_SHARE, "of failures", "guess; the one before is then taken"),
    Assumption(
        "diagnostic_misses_share", FIRST_DIAGNOSTIC_PASSES, "of broken nodes",
        "ByteRobust (SOSP 2025): NVIDIA's EUD finds 70 % of the faulty machines",
    ),
)  # fmt: skip
PEOPLE: tuple[Assumption, ...] = (
    Assumption("repair_s", [REPAIR.median_s, REPAIR.p99_s], "s (median, p99)", "guess: parts are swapped within a shift"),
    Assumption("reset_s", [RESET.median_s, RESET.p99_s], "s (median, p99)", "guess: reboot, diagnostic, release"),
    Assumption(
        "switch_repair_s", [SWITCH_REPAIR.median_s, SWITCH_REPAIR.p99_s], "s (median, p99)", "guess: cable or reboot"
    ),
    Assumption("maintenance_s", [MAINTENANCE.median_s, MAINTENANCE.p99_s], "s (median, p99)", "guess"),
    Assumption(
        "person_comes_s", [PERSON_COMES.median_s, PERSON_COMES.p99_s], "s (median, p99)",
        "guess: a pager with a 15-minute promise, nights included",
    ),
    Assumption(
        "person_works_s", [PERSON_WORKS.median_s, PERSON_WORKS.p99_s], "s (median, p99)",
        "guess: find the node or the bug, restart",
    ),
)  # fmt: skip
SILENCE: tuple[Assumption, ...] = (
    Assumption(
        "hang_seen", [HANG_IN_TIME, HANG_LEAST_S, HANG_STEPS], "share, s, steps",
        "docs/hang.md: 94.9 % of 967 generated hangs in jobs with steps of 0.2 to 20 s, 3.6 to 12 hours after their "
        "start (tests/bench/judgement_hang.py); guess: spread evenly from 0.4 of this time on, the others up to "
        f"{HANG_LATE_S:g} s or twice this time",
    ),
    Assumption(
        "hang_seen_slow_steps", [SLOW_HANG_IN_TIME, SLOW_STEP_S], "share, s of a step",
        f"docs/hang.md: 91.7 % of 420 in jobs with steps of {SLOW_STEP_S:g} to 120 s; guess: of longer steps, too",
    ),
    Assumption("node_lost_seen_s", NODE_LOST_S, "s", "settings: daemon.heartbeat_lost_s, probe_s, probe_attempts"),
)  # fmt: skip


def hang_seen_s(rng: random.Random, step_s: float) -> float:
    """How long after a silent hang it is called one."""
    in_time_s = max(HANG_LEAST_S, HANG_STEPS * step_s)
    if rng.random() < (SLOW_HANG_IN_TIME if step_s > SLOW_STEP_S else HANG_IN_TIME):
        return rng.uniform(0.4, 1.0) * in_time_s
    return rng.uniform(in_time_s, max(HANG_LATE_S, 2 * in_time_s))
