"""The nodes that a restarted job is kept from while it waits in the queue."""

from __future__ import annotations

import dataclasses

import pytest
from in_memory.daemon import RULES, SETTINGS
from made_records import AT, OPTED_IN, fleet, incident, job, later, node, plan, verdict

from sentinel.detect.cluster_view import ClusterView
from sentinel.detect.numbers.bad_numbers_onset import OnsetTracker
from sentinel.engine.reconcile import exclusions
from sentinel.engine.reconcile.situations import exclusions_of_ours
from sentinel.engine.state import State
from sentinel.model.records import Outcome, Result, Step, StepKind


def left_out(at_s: float, **data: str) -> str:
    """What the step that excludes nodes, planned with ``data``, names ``at_s`` after the job's release."""
    waiting = dataclasses.replace(job(), id=101, state="pending", nodes=(), node_count=2, restarts=1, comment=OPTED_IN)
    there = [node("n1"), node("n2"), node("n3"), node("n4", state="down"), node("n5", state="down")]
    view = ClusterView()
    view.see_fleet(dataclasses.replace(fleet(there, [waiting]), at=later(at_s)))
    state = State(rules=RULES, settings=SETTINGS, cluster=view, onsets=OnsetTracker(view, SETTINGS.judgement))
    step = Step(StepKind.EXCLUDE, job=101, attempt=0, data=data)
    release = Step(StepKind.RELEASE, job=101, attempt=0)
    state.put(incident(id="inc1", job=101, attempt=0, nodes=[]))
    state.verdicts["inc1"] = verdict(suspect=("n2",))
    state.plans["inc1"] = plan(step, release, incident="inc1")
    state.ledger.intend("inc1", release, AT)
    state.ledger.record("inc1", Outcome(release, Result.DONE, AT, ""))
    return str(exclusions.bound(state, state.incidents["inc1"], step, later(at_s)).data["nodes"])


def test_nodes_on_which_a_job_fails_in_turn_stay_excluded_while_it_may_wait_for_another() -> None:
    assert left_out(60.0) == "n2" and left_out(60.0, in_turn="n2") == "n2"
    wait_s = SETTINGS.recovery.wait_s
    state_of_two = {"in_turn": "n3,n2", "beside": "n3"}
    assert set(left_out(60.0, **state_of_two).split(",")) == {"n2", "n3"}
    assert len(left_out(wait_s + 1.0, **state_of_two).split(",")) == 1, "it has waited for long enough"


def test_nodes_beside_them_are_excluded_while_there_are_enough_others() -> None:
    assert left_out(60.0, beside="n1") == "n1", "before the suspect: with both too few would be left"


@pytest.mark.parametrize(("down", "size"), [("n2", "3,3,3"), ("n2,n3", "2,3,2"), ("n2,n3,n4", "2,3,2")])
def test_a_job_that_gave_a_node_back_is_given_the_tasks_of_the_nodes_on_which_it_starts(down: str, size: str) -> None:
    """Slurm counts the node off, and keeps its task: on two nodes it would never start three of them."""
    comment = '{"sentinel": {"restart": true, "in_allocation": 2}}'
    there = [node(f"n{number}", state="down" if f"n{number}" in down else "idle") for number in range(1, 5)]
    view = ClusterView()
    view.see_fleet(fleet(there, [dataclasses.replace(job(nodes=("n1", "n3")), comment=comment)]))
    waiting = job(state="pending", nodes=(), restarts=1, comment=comment, started_s=None)
    waiting = dataclasses.replace(waiting, node_count=2, tasks_per_node=1)
    view.see_fleet(fleet(there, [waiting]))
    state = State(rules=RULES, settings=SETTINGS, cluster=view, onsets=OnsetTracker(view, SETTINGS.judgement))
    began = Step(StepKind.START_RUN, job=101, attempt=0, data={"given_up": "n2"})
    exclude = Step(StepKind.EXCLUDE, job=101, attempt=0)
    state.put(incident(id="inc1", job=101, attempt=0, nodes=[]))
    state.verdicts["inc1"], state.plans["inc1"] = verdict(drain=()), plan(exclude, incident="inc1")
    state.ledger.intend("inc0", began, AT)
    state.ledger.record("inc0", Outcome(began, Result.DONE, AT, ""))
    assert exclusions.bound(state, state.incidents["inc1"], exclude, later(1.0)).data["size"] == size


def kept_from(rows: list[tuple[str, str, tuple[str, ...]]]) -> tuple[frozenset[str], tuple[str, ...]]:
    """What ``exclusions_of_ours`` says after attempts with these exclusions, neighbours among them, and suspects."""
    view = ClusterView()
    view.see_fleet(fleet(9, [job(nodes=("n1", "n2"))]))
    state = State(rules=RULES, settings=SETTINGS, cluster=view, onsets=OnsetTracker(view, SETTINGS.judgement))
    for attempt, (nodes, beside, suspect) in enumerate(rows):
        name, at = f"inc{attempt}", later(60.0 * attempt)
        step = Step(
            StepKind.EXCLUDE, job=101, attempt=attempt, data={"nodes": nodes} | ({"beside": beside} if beside else {})
        )
        state.put(incident(id=name, job=101, attempt=attempt, nodes=[]))
        state.verdicts[name] = verdict(suspect=suspect, drain=())
        state.ledger.intend(name, step, at)
        before = rows[attempt - 1][0].split(",") if attempt else []
        added = ",".join(node for node in nodes.split(",") if node not in before)
        state.ledger.record(name, Outcome(step, Result.DONE, at, "", {"added": added}))
    return exclusions_of_ours(state, 101)


def test_of_nodes_that_earlier_attempts_were_kept_from_the_newest_are_kept_first_and_neighbours_last() -> None:
    """Where the job cannot do without all of them: on a neighbour it did not fail, and of the old ones more is known."""
    everyone, kept = kept_from(
        [("n1,n2,n3,n4", "n3,n4", ("n2",)), ("n1,n2,n3,n4,n5", "", ("n5",)), ("n1,n2,n3,n4,n5", "", ("n4",))]
    )
    assert everyone == {"n1", "n2", "n3", "n4", "n5"}
    assert kept == ("n5", "n1", "n2", "n4", "n3")


def test_a_suspect_that_is_a_neighbour_of_later_suspects_too_stays_a_suspect() -> None:
    _, kept = kept_from([("n1", "", ("n1",)), ("n1,n2,n3", "n1,n3", ("n2",))])
    assert kept == ("n2", "n1", "n3")
