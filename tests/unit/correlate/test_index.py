"""The few incidents near an evidence are all that it can belong to."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import given, settings
from hypothesis import strategies as st
from made_records import evidence, incident

from sentinel.correlate import incidents as grouping
from sentinel.correlate.index import MOST_OF_A_NODE, IncidentIndex
from sentinel.model.records import Incident, Kind

NODES = st.sampled_from(["n1", "n2", "n3", "n4"])
JOBS = st.one_of(st.none(), st.integers(1, 3))
WINDOW = timedelta(seconds=120)


def nodes_of(job: int | None, _attempt: int | None) -> tuple[str, ...]:
    return {1: ("n1", "n2"), 2: ("n3",)}.get(job or 0, ())


@st.composite
def open_incidents(draw: st.DrawFn) -> dict[str, Incident]:
    made = {}
    for number in range(draw(st.integers(0, 6))):
        name = f"i{number}"
        nodes = tuple(draw(st.lists(NODES, max_size=2, unique=True)))
        made[name] = incident(evidence(node=draw(NODES)), id=name, job=draw(JOBS), attempt=0, nodes=nodes)
    return made


@settings(max_examples=200, deadline=None)
@given(open_incidents(), st.one_of(st.none(), NODES), JOBS)
def test_nothing_that_evidence_belongs_to_is_left_out(
    there: dict[str, Incident], node: str | None, job: int | None
) -> None:
    item = evidence(Kind.XID, node=node, job=job, attempt=0 if job is not None else None)
    of_jobs = {name: nodes_of(found.job, found.attempt) for name, found in there.items() if found.job is not None}
    near = IncidentIndex(there, nodes_of).of(item)
    assert grouping.find(near, item, of_jobs, WINDOW) == grouping.find(list(there.values()), item, of_jobs, WINDOW)


def test_an_incident_that_has_grown_is_found_by_its_new_node() -> None:
    there = {"i1": incident(evidence(node="n1"), id="i1", job=None, nodes=("n1",))}
    near = IncidentIndex(there, nodes_of)
    there["i1"] = grouping.attach(there["i1"], [evidence(Kind.XID, node="n4", at_s=1.0)], there["i1"].opened_at)
    near.add(there["i1"])
    assert [found.id for found in near.of(evidence(node="n4"))] == ["i1"]
    assert near.of(evidence(node="n3")) == []


def test_of_a_node_with_very_many_incidents_the_newest_are_considered_and_of_a_job_all() -> None:
    """An agent that makes up jobs must not make each of its items cost more than the one before."""
    there = {f"i{number}": incident(id=f"i{number}", job=1000 + number, nodes=("n1",)) for number in range(1000)}
    index = IncidentIndex(there, lambda _job, _attempt: ())
    of_node = index.about(None, ["n1"])
    assert [found.id for found in of_node] == [f"i{number}" for number in range(1000 - MOST_OF_A_NODE, 1000)]
    assert [found.id for found in index.about(1000, [])] == ["i0"]
    assert {found.id for found in index.about(1000, ["n1"])} == {"i0", *(found.id for found in of_node)}
