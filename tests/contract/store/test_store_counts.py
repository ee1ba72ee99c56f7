"""What limits count and what ended an attempt, over SQLite and over PostgreSQL."""

from __future__ import annotations

import dataclasses

from in_memory.direct_store import DirectStore
from made_records import ended, incident, later, plan, step

from sentinel.model.changes import PlanFinished
from sentinel.model.records import INTERRUPTIONS, NODE_STEPS, Outcome, Result, StepKind

COUNTED = tuple(NODE_STEPS | INTERRUPTIONS)


def test_plans_in_force_are_those_of_late_and_those_that_are_not_finished(store: DirectStore) -> None:
    stories = (("old", -9000.0, 1.0, True), ("slow", -8000.0, 7000.0, True), ("waits", -7500.0, 1.0, False))
    for name, at_s, took_s, finished in (*stories, ("new", 0.0, 1.0, True)):
        drain = step(StepKind.DRAIN, node=name)
        made = dataclasses.replace(plan(drain, step(StepKind.CONFIRM, job=7, attempt=0), incident=name), at=later(at_s))
        store.save_plan(made)
        store.intend(made, drain, later(at_s))
        store.record(made, Outcome(drain, Result.DONE, later(at_s + took_s)))
        if finished:
            store.commit([PlanFinished(made.id)])
    plans, unfinished, steps = store.plans_in_force(COUNTED, later(-3600.0))
    assert set(plans) == {"waits", "new"} and unfinished == {"waits"}
    assert [(row.incident, row.step.node, row.outcome is not None) for row in steps] == [
        ("slow", "slow", True), ("waits", "waits", True), ("new", "new", True),
    ]  # fmt: skip


def test_the_end_of_an_attempt_belongs_to_the_first_incident_that_has_it(store: DirectStore) -> None:
    first, second = ended(7), dataclasses.replace(ended(7, 1), id="of-the-next")
    store.append([first, second])
    store.save_incident(incident(id="told", job=7, attempt=0, opened_s=-30.0))
    store.save_incident(incident(first, id="ended", job=7, attempt=0, opened_s=1.0))
    store.save_incident(incident(first, id="also", job=7, attempt=0, opened_s=2.0))
    store.save_incident(incident(first, second, id="next", job=7, attempt=1, opened_s=9.0))
    first = {(row["job"], row["attempt"]): row["incident"] for row in store.incidents_of_ends([7, 8])}
    assert first == {(7, 0): "ended", (7, 1): "next"}
    assert store.incidents_of_ends([]) == [] and store.incidents_of_ends(range(10_000, 12_000)) == []
