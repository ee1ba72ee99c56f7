"""The store in memory loads what the real one loads, after the same changes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from in_memory.world import opened

from sentinel.model.changes import Change
from sentinel.model.records import Incident
from sentinel.model.stored import Stored
from sentinel.simulate.stories import history_of
from sentinel.simulate.world import World

# Six stories that between them write every kind of change.
HISTORIES = [("killed", 2), ("people", 4), ("many-nodes", 1), ("paused", 2), ("again", 5), ("two-faults", 0)]


def comparable(stored: Stored) -> dict[str, Any]:
    """Rows without what no start reads, and lists without an order as sets."""
    row = ("id", "opened_at", "job", "attempt", "user", "cause", "scope", "seen_on", "culprit_nodes", "culprit_gpus",
           "culprit_ranks", "onset_step")  # fmt: skip
    attempt = ("job", "attempt", "started_at", "user", "nodes", "ended_at", "state", "first_step", "last_step")
    return {
        "incidents": {incident.id: _in_order(incident) for incident in stored.incidents},
        "verdicts": stored.verdicts,
        "plans": stored.plans,
        "open_plans": stored.open_plans,
        "steps": {step.step.key(step.incident): step for step in stored.steps},
        "judged": {found["id"]: {name: found[name] for name in row} for found in stored.judged},
        "attempts": sorted(tuple(str(found[name]) for name in attempt) for found in stored.attempts),
        "settings": stored.settings,
        "told": stored.told,
        "undelivered": {(notice.id, receiver) for notice, receiver in stored.undelivered},
        "standing": {(notice.id, receiver) for notice, receiver in stored.standing},
        "unclaimed": {item.id: item for item in stored.unclaimed},
        "evidence_ids": set(stored.evidence_ids),
    }


def _in_order(incident: Incident) -> Incident:
    """Evidence of the same moment comes out of a database in any order."""
    evidence = tuple(sorted(incident.evidence, key=lambda item: (item.at, item.id)))
    return dataclasses.replace(incident, evidence=evidence)


@pytest.mark.parametrize(("story", "number"), HISTORIES)
def test_both_stores_load_the_same(story: str, number: int, tmp_path: Path) -> None:
    world = World(history_of(7, number, story))
    real_commit, batches = world.store.commit, []

    def commit(changes: Sequence[Change]) -> None:
        batches.append(tuple(changes))
        real_commit(changes)

    world.store.commit = commit  # type: ignore[method-assign]
    world.run()
    assert len(batches) > 10
    with opened(tmp_path) as real:
        for batch in batches:
            real.commit(batch)
        for ago_s in (0.0, 600.0, world.now_s):
            when = {"month": world.now() - timedelta(days=30), "lately": world.now(-ago_s), "evidence_ids": 1000}
            found, expected = comparable(world.store.load(**when)), comparable(real.load(**when))  # type: ignore[arg-type]
            for name, value in expected.items():
                assert found[name] == value, name
        assert world.store.attempts(since=world.now(-10_000.0)) == [
            {name: row[name] for name in world.store.attempts()[0]} for row in real.attempts(since=world.now(-10_000.0))
        ]
