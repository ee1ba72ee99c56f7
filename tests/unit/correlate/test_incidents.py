"""Which evidence opens an incident, which belongs to one, and what an incident keeps of it."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_records import AT, ended, evidence, incident, later

from sentinel.correlate import incidents
from sentinel.model.records import Evidence, Incident, IncidentState, Kind, Source

WINDOW = timedelta(seconds=120)


def word(at_s: float = 0.0, text: str = "Traceback", *, opens: bool = False, node: str | None = None) -> Evidence:
    data = {"opens": True} if opens else {}
    return evidence("traceback", at_s=at_s, source=Source.JOB_LOG, job=101, attempt=0, text=text, data=data, node=node)


# --- opens -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("item", "opens"),
    [
        (evidence(Kind.XID, node="n1"), True),
        (evidence(Kind.STALL, source=Source.PROGRESS, job=101), True),
        (evidence(Kind.NODE_UNREACHABLE, source=Source.PROBE, node="n1"), True),
        (evidence("a-site-rule", source=Source.SITE_CHECK, node="n1"), True),
        *((evidence(kind, source=Source.AGENT, node="n1"), False) for kind in sorted(incidents.QUIET)),
        (evidence("log_no_space", source=Source.AGENT, node="n1"), False),
        (word(), False),
        (word(opens=True), True),
        *((ended(state=state), True) for state in ("failed", "NODE_FAIL", "out_of_memory", "boot_fail", "preempted")),
        *((ended(state=state), False) for state in ("completed", "cancelled", "timeout", "", "running")),
        (evidence(Kind.JOB_ENDED, source=Source.SLURM, job=101), False),  # how it ended is not known
    ],
)
def test_opens(item: Evidence, opens: bool) -> None:
    assert incidents.opens(item) is opens


# --- belongs -----------------------------------------------------------------------------------------------------------


def belongs(happened: Incident, item: Evidence, nodes: tuple[str, ...] = ()) -> bool:
    return incidents.belongs(happened, item, nodes, WINDOW)


def test_evidence_of_the_same_attempt_belongs() -> None:
    assert belongs(incident(ended()), ended(at_s=2.0))
    assert belongs(incident(ended()), evidence("traceback", source=Source.JOB_LOG, job=101))  # attempt not known


def test_evidence_of_another_attempt_or_job_does_not() -> None:
    assert not belongs(incident(ended()), ended(attempt=1))
    assert not belongs(incident(ended()), ended(job=102))


def test_node_of_the_incident_within_the_window() -> None:
    happened = incident(nodes=("n1",), job=None)
    assert belongs(happened, evidence(node="n1", at_s=120.0))
    assert not belongs(happened, evidence(node="n1", at_s=120.1))
    assert belongs(happened, evidence(node="n1", at_s=-120.0))
    assert not belongs(happened, evidence(node="n2"))
    assert not belongs(happened, evidence(Kind.SXID, source=Source.FABRIC))  # of no node


def test_other_nodes_of_the_job_belong_while_it_is_open_and_not_after_its_restart() -> None:
    item = evidence(node="n2")
    assert belongs(incident(nodes=("n1",)), item, ("n1", "n2"))
    assert not belongs(incident(nodes=("n1",), state=IncidentState.WATCHING), item, ("n1", "n2"))
    assert belongs(incident(nodes=("n1",), state=IncidentState.WATCHING), evidence(node="n1"), ("n1", "n2"))


def test_a_diagnostic_that_a_suspect_fails_while_idle_is_a_failure_of_its_own() -> None:
    """Its message would be missing, and its drain would wait until the job has gained a step."""
    failed = evidence(Kind.DIAG_FAILED, node="n1", source=Source.DIAGNOSTIC)
    idle = evidence(Kind.DIAG_FAILED, node="n1", source=Source.DIAGNOSTIC, data={"idle": True})
    for state in (IncidentState.OPEN, IncidentState.WATCHING, IncidentState.HELD):
        assert belongs(incident(nodes=("n1",), state=state), failed, ("n1", "n2")), "of the epilog: the job's own GPUs"
        assert not belongs(incident(nodes=("n1",), state=state), idle, ("n1", "n2"))
    other_gpu = evidence(Kind.DIAG_FAILED, node="n1", source=Source.DIAGNOSTIC, data={"idle": True}, id="gpu 2")
    assert belongs(incident(idle, nodes=("n1",), job=None), other_gpu, ())


def test_news_of_a_node_long_after_its_job_ended_is_of_the_next_job() -> None:
    there = incident(evidence(Kind.XID, node="n1"), ended(at_s=10.0), job=101, attempt=0)
    assert belongs(there, evidence(Kind.XID, node="n2", at_s=14.0), ("n1", "n2"))
    assert not belongs(there, evidence(Kind.XID, node="n2", at_s=16.0), ("n1", "n2"))
    assert not belongs(there, evidence(Kind.XID, node="n1", at_s=16.0), ("n1", "n2"))


def test_closed_incident_takes_its_jobs_late_words_and_no_nodes() -> None:
    closed = incident(ended(), nodes=("n1",), state=IncidentState.CLOSED)
    assert belongs(closed, word(at_s=3.0))
    assert not belongs(closed, evidence(node="n1"))


def test_node_evidence_that_names_a_job_belongs_by_node_where_the_incident_has_no_job() -> None:
    assert belongs(incident(job=None, nodes=("n1",)), evidence(node="n1", job=101, attempt=0))


# --- find --------------------------------------------------------------------------------------------------------------


def test_open_before_closed_and_newest_first() -> None:
    closed = incident(ended(), id="closed", state=IncidentState.CLOSED, opened_s=50.0)
    old, young = incident(ended(), id="old"), incident(ended(), id="young", opened_s=10.0)
    found = incidents.find([closed, old, young], word(), {}, WINDOW)
    assert found is not None and found.id == "young"
    found = incidents.find([closed], word(), {}, WINDOW)
    assert found is not None and found.id == "closed"
    assert incidents.find([old, young, closed], ended(job=5), {}, WINDOW) is None


def test_nodes_of_jobs_are_looked_up_by_incident() -> None:
    first, second = incident(id="a", job=1), incident(id="b", job=2)
    found = incidents.find([first, second], evidence(node="n7"), {"a": ("n1",), "b": ("n7",)}, WINDOW)
    assert found is second


# --- attach ------------------------------------------------------------------------------------------------------------


def test_evidence_is_kept_once_and_in_order_of_time() -> None:
    late, early = word(at_s=5.0), word(at_s=1.0, text="first")
    made = incidents.attach(incident(late), [early, late, early], later(6.0))
    assert made.evidence[0].at == later(1.0)
    assert len({item.id for item in made.evidence}) == 2
    assert made.updated_at == later(6.0)


def test_nothing_new_changes_nothing() -> None:
    before = incident(ended())
    assert incidents.attach(before, [ended()], later(9.0)) is before


def test_time_of_update_does_not_go_back() -> None:
    assert incidents.attach(incident(updated_s=9.0), [word()], later(1.0)).updated_at == later(9.0)


def test_nodes_are_those_that_trusted_evidence_names() -> None:
    items = [
        evidence(node="n2", at_s=1.0),
        evidence(Kind.UNREADABLE, node="n3", source=Source.AGENT),
        word(opens=True, node="n4"),
        evidence(Kind.GPU_LOST, node="n2", at_s=2.0),
    ]
    assert incidents.attach(incident(nodes=("n1",)), items, AT).nodes == ("n1", "n2")


def test_job_is_taken_from_evidence_where_none_is_known() -> None:
    assert incidents.attach(incident(job=None), [evidence(node="n1"), word()], AT).job == 101
    assert incidents.attach(incident(job=7), [word()], AT).job == 7
    assert incidents.attach(incident(job=None), [evidence(node="n1")], AT).job is None


def test_a_thousand_tracebacks_do_not_push_out_that_the_job_ended() -> None:
    words = [word(at_s=i / 1000, text=f"rank {i}: Traceback", opens=True) for i in range(1024)]
    made = incidents.attach(incident(ended(at_s=2.0)), words, later(3.0))
    assert len(made.evidence) == incidents.MOST_EVIDENCE
    assert made.evidence[-1].kind == Kind.JOB_ENDED
    assert made.evidence[0] == words[0]  # of the words the first
    xid = evidence(node="n1", at_s=4.0)
    assert xid in incidents.attach(made, [xid], later(4.0)).evidence


@given(st.lists(st.integers(0, 60), max_size=30), st.lists(st.integers(0, 60), max_size=30))
def test_attaching_in_parts_or_at_once_is_the_same(first: list[int], second: list[int]) -> None:
    one = [evidence(node=f"n{n % 5}", at_s=float(n)) for n in first]
    two = [evidence(node=f"n{n % 5}", at_s=float(n)) for n in second]
    empty = incident(job=None)
    parts = incidents.attach(incidents.attach(empty, one, AT), two, AT)
    whole = incidents.attach(empty, [*one, *two], AT)
    assert {item.id for item in parts.evidence} == {item.id for item in whole.evidence}
    assert set(parts.nodes) == set(whole.nodes)


# --- new ---------------------------------------------------------------------------------------------------------------


def test_same_evidence_never_opens_two() -> None:
    one = incidents.new(ended(), job=101, attempt=0, now=AT)
    two = incidents.new(ended(), job=101, attempt=0, now=later(5.0))
    assert one.id == two.id and one.evidence == (ended(),)
    assert incidents.new(ended(job=9), job=9, attempt=0, now=AT).id != one.id


def test_what_a_job_left_behind_is_not_part_of_an_idle_nodes_failed_test() -> None:
    """A bundle of the ended attempt may come after the node, idle by then, has failed its test: the job is not involved."""
    tested = evidence(Kind.DIAG_FAILED, node="n2", at_s=2.0, data={"idle": True})
    of_test = incident(tested, id="test", job=None, attempt=None, nodes=("n2",), opened_s=2.0)
    of_job = incident(evidence(Kind.XID, node="n2"), id="job", job=101, attempt=0, nodes=("n2",))
    bundle = evidence(Kind.BUNDLE, node="n2", job=101, attempt=0, at_s=1.5)
    found = incidents.find([of_job, of_test], bundle, {"job": ("n1", "n2")}, WINDOW)
    assert found is not None and found.id == "job"
    assert incidents.find([of_test], bundle, {}, WINDOW) is None


def test_the_disks_of_a_jobs_nodes_that_fill_alike_are_one_finding() -> None:
    def filling(node: str, at_s: float, kind: str = "saves_no_room", attempt: int = 0) -> Evidence:
        data = {"watched": True, "on_node": node}
        return evidence(kind, at_s=at_s, source=Source.CHECKPOINT, job=101, attempt=attempt, data=data)

    first = filling("n1", 0.0)
    happened = incidents.new(first, job=101, attempt=0, now=AT)
    assert belongs(happened, filling("n2", 7.0))
    assert not belongs(happened, filling("n1", 7.0)), "the node's own next finding is news"
    assert not belongs(happened, filling("n2", 7.0, kind="saves_stopped"))
    assert not belongs(happened, filling("n2", 7.0, attempt=1)) and not belongs(happened, filling("n2", 7000.0))
