"""Of several incidents of one attempt the one that ended it is its cause, and has its cost: not one that was only told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from in_memory.numbers import CALM, Training, gone, steps
from in_memory.world import World
from made_records import ended, evidence, incident, plan, step, verdict

from sentinel.daemon.api.histories import failure_filter
from sentinel.daemon.api.jobs import JobAttempts
from sentinel.model.records import Cause, Kind, Outcome, Result, StepKind

Worlds = Callable[..., World]


def causes(there: Training, **asked: Any) -> list[tuple[int, str, str]]:
    """Attempt, cause and incident of each loss, as the views of jobs and losses compute them."""
    world, store = there.world, there.world.store
    attempts = JobAttempts(store, there.daemon.live, world.slurm.clock)
    rows = store.incident_rows(job=there.job)
    found = attempts.lost(rows, attempts.read(job=there.job), failure_filter(asked))
    return [(loss.incident["attempt"], loss.incident["cause"], loss.incident["id"]) for loss in found]


async def told_of_bad_numbers(there: Training) -> None:
    await there.prints(*steps(*CALM, first=190), *gone(8, 250))
    assert [(cause, attempt) for attempt, cause, _ in causes(there)] == [("numerical_nan", 0)]
    assert there.this.state == "RUNNING"
    there.world.slurm.clock.advance(30.0)


async def test_restart_for_a_fault_after_bad_numbers_were_told(world: Worlds) -> None:
    there = Training(world())
    await told_of_bad_numbers(there)
    await there.says(evidence(Kind.XID, node="n2", at_s=there.now_s, data={"xid": 48, "pci": "0000:3b:00"},
                              text="NVRM: Xid (PCI:0000:3b:00): 48, DBE"))  # fmt: skip
    first, second = there.rows()
    assert there.this.restarts == 1 and second["cause"] != "numerical_nan"
    assert causes(there) == [(0, second["cause"], second["id"])]
    assert causes(there, cause="numerical_nan") == []  # it went on, and cost nothing
    assert first["cause"] == "numerical_nan"


async def test_crash_of_a_job_that_nobody_restarts(world: Worlds) -> None:
    there = Training(world(), restart=False)
    await told_of_bad_numbers(there)
    there.world.slurm.end(there.job, exit_code=1)
    await there.says(ended(there.job, at_s=there.now_s))
    first, second = there.rows()
    assert there.this.restarts == 0 and [row[2] for row in causes(there)] == [second["id"]] != [first["id"]]
    alone = causes(there, cause=first["cause"])
    assert first["id"] not in [row[2] for row in alone], "whoever asks for one cause alone gets the same"


async def test_restart_inside_the_allocation_goes_before_what_was_only_told(world: Worlds) -> None:
    there = Training(world())
    await told_of_bad_numbers(there)
    store, stop = there.world.store, step(StepKind.STOP_RUN, job=there.job, attempt=0)
    made = plan(stop, incident="zzz1")
    store.save_incident(incident(id="zzz1", job=there.job, attempt=0, opened_s=there.now_s))
    store.save_verdict("zzz1", verdict(Cause.PCIE, drain=("n1",)), there.world.slurm.clock.now())
    store.save_plan(made)
    store.intend(made, stop, there.world.slurm.clock.now())
    assert [row[1] for row in causes(there)] == ["numerical_nan"]  # nothing was stopped yet
    store.record(made, Outcome(stop, Result.DONE, there.world.slurm.clock.now()))
    assert [row[1:] for row in causes(there)] == [("pcie", "zzz1")]
