"""Which nodes count as broken under a job: those that broke under it, not those that broke under a neighbour."""

from __future__ import annotations

from in_memory.daemon import SETTINGS
from made_records import incident, verdict
from shipped import shipped_rules

from sentinel.detect.cluster_view import ClusterView
from sentinel.detect.numbers.bad_numbers_onset import OnsetTracker
from sentinel.engine.reconcile.situations import hurt
from sentinel.engine.state import State
from sentinel.model.identity import taken_along_id

GUILTY, NEIGHBOUR = 101, 202


def empty_state() -> State:
    view = ClusterView()
    return State(rules=shipped_rules(), settings=SETTINGS, cluster=view, onsets=OnsetTracker(view, SETTINGS.judgement))


def broke(state: State, attempt: int) -> None:
    """Another node breaks under the guilty job in each attempt; the neighbour that shares it is taken along."""
    node, own = f"n{attempt}", f"inc{attempt}"
    found = verdict(drain=[node])
    for name, job in ((own, GUILTY), (taken_along_id(own, NEIGHBOUR, attempt), NEIGHBOUR)):
        about = incident(id=name, job=job, attempt=attempt, nodes=[node])
        state.put(about)
        state.past.judged(about, found, user="ada", nodes=[node])


def test_a_job_that_was_only_taken_along_from_nodes_that_another_broke_has_broken_none():
    state = empty_state()
    for attempt in range(3):
        broke(state, attempt)
    now = incident(id="now", job=GUILTY, attempt=3)
    assert [one.node for one in hurt(state, now)] == ["n0", "n1", "n2"]
    assert hurt(state, incident(id="now", job=NEIGHBOUR, attempt=3)) == ()


def test_a_job_that_is_taken_along_now_is_not_held_for_what_it_broke_before():
    state = empty_state()
    for attempt in range(2):
        broke(state, attempt)
    state.put(incident(id="other", job=NEIGHBOUR, attempt=2))
    along = incident(id=taken_along_id("other", GUILTY, 2), job=GUILTY, attempt=2)
    assert hurt(state, along) == ()
