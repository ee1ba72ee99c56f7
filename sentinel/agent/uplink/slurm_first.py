"""Asks slurmctld about the job of an order before the order is begun.

The child that asks is root's: what is executed as the job's user that user may take over.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from sentinel.agent.process.children import Ending, Program
from sentinel.agent.process.probe_programs import ASK_SLURM
from sentinel.agent.settings import Slurm
from sentinel.model.orders import LEAST_DEADLINE_S, Order

Then = Callable[[Order, Mapping[str, Any], str], None]


def slurm_first(
    order: Order, job: int, asked: Mapping[str, object], then: Then, slurm: Slurm, program: Callable[..., Program]
) -> Program:
    """The program that asks, half of the order's time at most.

    Args:
        then: called at its end with the order and the time left to it, what was answered and, where nothing was, why.
    """
    began_s = time.monotonic()
    answers: list[dict[str, Any]] = []
    deadline_s = min(slurm.deadline_s, order.deadline_s / 2)

    def ended(ending: Ending) -> None:
        told = answers[-1] if answers else {}
        left_s = order.deadline_s - (time.monotonic() - began_s)
        reason = f"no answer within {deadline_s:g} s" if ending.silent else str(told.get("error", ending.stderr))
        then(replace(order, deadline_s=max(left_s, LEAST_DEADLINE_S)), told, reason)

    return program(
        f"slurm:{order.id}",
        ASK_SLURM,
        {"job": job, **asked, "squeue": slurm.squeue, "conf": slurm.conf, "deadline_s": deadline_s},
        silent_s=deadline_s + 1.0,
        total_s=deadline_s + 1.0,
        on_message=answers.append,
        on_end=ended,
    )
