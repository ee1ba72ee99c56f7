"""Which nodes' prologs refused a job, as far as their agents tell it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from in_memory.direct_store import DirectStore
from made_records import fleet, job

from sentinel.daemon.ingest.refusals import STORED, Refusals
from sentinel.detect.cluster_view import ClusterView
from sentinel.detect.seen import AttemptSeen
from sentinel.errors import Unavailable
from sentinel.model.records import JobView

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
LIVE = ClusterView()  # in which nothing is known of any job
TOLD = {"job": 7, "attempt": 1, "reason": "gpu_lost: a GPU is lost", "ago_s": 60.0}


def test_a_refusal_is_kept_once_with_its_time() -> None:
    kept = Refusals()
    for later_s in (0, 2, 4):  # each heartbeat tells it again
        kept.heard("n1", [TOLD], NOW + timedelta(seconds=later_s), LIVE)
    kept.heard("n2", [{**TOLD, "ago_s": 5.0}], NOW, LIVE)
    first, second = kept.of(7, LIVE)
    assert (first.node, first.attempt, first.reason, first.at) == ("n1", 1, TOLD["reason"], NOW - timedelta(seconds=60))
    assert second.node == "n2" and kept.of(8, LIVE) == [] and kept.of(None, LIVE) == []


@pytest.mark.parametrize(
    "told",
    [None, "x", [None], [{}], [{"job": True, "attempt": 0}], [{"job": "7", "attempt": 1}], [{**TOLD, "ago_s": 1e300}]],
)
def test_what_is_malformed_is_left_out(told: object) -> None:
    kept = Refusals()
    kept.heard("n1", told, NOW, LIVE)
    assert kept.of(7, LIVE) == []
    kept.heard("n1", [{"job": 7, "attempt": 1, "reason": "x" * 5000, "ago_s": "soon"}], NOW, LIVE)
    assert [(one.at, len(one.reason)) for one in kept.of(7, LIVE)] == [(NOW, 300)]


def test_of_very_many_of_one_node_the_first_told_are_dropped_and_no_other_nodes() -> None:
    kept = Refusals()
    kept.heard("n2", [TOLD], NOW, LIVE)
    for number in range(1000, 3000):
        kept.heard("n1", [{**TOLD, "job": number}], NOW, LIVE)
    assert kept.of(1000, LIVE) == [] and kept.of(2999, LIVE)
    assert [one.node for one in kept.of(7, LIVE)] == ["n2"]


def test_a_node_tells_of_no_attempt_that_slurm_had_elsewhere_or_has_not_come_to() -> None:
    live, kept = ClusterView(), Refusals()
    there = job(7, nodes=("n1", "n2"), restarts=1)
    live.fleet = fleet(5, [there])
    live.attempts[7, 1] = AttemptSeen(there, nodes=("n1", "n2"), nodes_whole=True)
    for node in ("n2", "n3"):
        kept.heard(node, [{**TOLD, "attempt": number} for number in (0, 1, 2)], NOW, live)
    told = {(one.node, one.attempt) for one in kept.of(7, live)}
    assert told == {("n2", 0), ("n2", 1), ("n3", 0)}, "Slurm does not tell which nodes the first attempt had"


def test_what_was_heard_before_slurm_showed_the_attempt_elsewhere_is_not_told() -> None:
    live, kept = ClusterView(), Refusals()
    kept.heard("n3", [TOLD], NOW, live)
    there = job(7, nodes=("n1", "n2"), restarts=1)
    live.fleet = fleet(5, [there])
    assert [one.node for one in kept.of(7, live)] == ["n3"]
    live.attempts[7, 1] = AttemptSeen(there, nodes=("n1", "n2"), nodes_whole=True)
    assert kept.of(7, live) == []


def test_of_an_attempt_that_still_waits_nothing_is_told() -> None:
    """Found as an attack: root of any node told the owner of any waiting job that it was refused there, in any words."""
    live, kept = ClusterView(), Refusals()
    for restarts, told in ((1, []), (2, ["n1"])):  # Slurm counts the requeue of a job that a prolog refused
        live.fleet = fleet(5, [submitted("ada", 100.0, restarts)])
        kept.heard("n1", [TOLD], NOW, live)
        assert [one.node for one in kept.of(7, live)] == told


def submitted(by: str, ago_s: float, restarts: int) -> JobView:
    """Requeued, and waiting; or about to begin for the first time."""
    nodes, state = ((), "pending") if restarts else (("n1",), "running")
    return replace(
        job(7, user=by, restarts=restarts, nodes=nodes, state=state), submitted_at=NOW - timedelta(seconds=ago_s)
    )


@pytest.mark.parametrize(("by", "restarts"), [("bob", 1), ("bob", 0), ("ada", 0)], ids=["refused", "new", "same user"])
async def test_a_refusal_is_of_the_job_that_had_the_id_then(tmp_path: Path, by: str, restarts: int) -> None:
    """Slurm has begun its ids anew; agents tell of a refusal for a day."""
    live, kept = ClusterView(), Refusals()
    live.fleet = fleet(5, [submitted("ada", 9000.0, 1)])
    old = {"job": 7, "attempt": 0, "reason": "of the former", "ago_s": 8000.0}
    kept.heard("n1", [old], NOW, live)
    assert [one.reason for one in kept.of(7, live)] == ["of the former"]
    live.fleet = fleet(5, [submitted(by, 100.0, restarts)])
    store = DirectStore(f"sqlite:///{tmp_path}/store.db")
    await kept.save(store)
    after = Refusals()
    after.restore(store.get(STORED), NOW, live)
    store.close()
    for known in (kept, after):
        assert known.of(7, live) == []
        for told in ([old], [old, {**old, "reason": "of this one", "ago_s": 50.0}], [old]):
            known.heard("n1", told, NOW, live)
        assert [one.reason for one in known.of(7, live)] == ["of this one"]


async def test_what_was_told_outlives_the_daemon_and_the_node(tmp_path: Path) -> None:
    """A node that refused is rebooted, and tells it no more; a prolog without an agent told it once."""
    store, kept = DirectStore(f"sqlite:///{tmp_path}/store.db"), Refusals()
    for number in range(30):
        kept.heard("n1", [{**TOLD, "job": number}], NOW, LIVE)
    kept.heard("n2", [TOLD], NOW, LIVE)
    await kept.save(store)
    after = Refusals()
    after.restore(store.get(STORED), NOW + timedelta(days=6), LIVE)
    assert after.of(7, LIVE) == [one for one in kept.of(7, LIVE) if one.node == "n2"], "of one node the newest"
    assert after.of(29, LIVE) == kept.of(29, LIVE) != []
    late = Refusals()
    late.restore(store.get(STORED), NOW + timedelta(days=8), LIVE)
    assert late.of(29, LIVE) == [], "job ids come again"
    store.close()


async def test_it_is_stored_when_there_is_news_and_until_that_worked() -> None:
    kept, stored = Refusals(), []

    class Busy:
        fails = True

        def put(self, name: str, value: object) -> None:
            if self.fails:
                raise Unavailable("the database is busy")
            stored.append((name, value))

    store: Any = Busy()
    await kept.save(store)
    kept.heard("n1", [TOLD], NOW, LIVE)
    with pytest.raises(Unavailable):
        await kept.save(store)
    store.fails = False
    for _ in range(2):
        await kept.save(store)
        kept.heard("n1", [TOLD], NOW, LIVE)  # as each heartbeat does
    assert [name for name, _ in stored] == [STORED]
    after = Refusals()
    after.restore(stored[0][1], NOW, LIVE)
    await after.save(store)
    assert len(stored) == 1, "it is in the store already"


@pytest.mark.parametrize(
    "stored", [None, [], {"n1": 3}, {"n1": [None, {"job": 7}, {"job": 7, "attempt": 1, "at": "x"}]}]
)
def test_a_record_that_makes_no_sense_is_none(stored: object) -> None:
    kept = Refusals()
    kept.restore(stored, NOW, LIVE)
    assert kept.of(7, LIVE) == []
