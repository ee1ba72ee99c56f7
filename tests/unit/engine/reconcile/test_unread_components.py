"""A heterogeneous job of which one component's record cannot be read, as it is about to be restarted."""

from __future__ import annotations

import dataclasses

import pytest
from in_memory.daemon import RULES, SETTINGS
from made_records import AT, ended, evidence, fleet, incident, job, later, verdict

from sentinel import policy
from sentinel.config.settings import Limits, Mode, Modes
from sentinel.detect.cluster_view import ClusterView
from sentinel.detect.numbers.bad_numbers_onset import OnsetTracker
from sentinel.engine.reconcile.situations import ClusterNow, situation_of
from sentinel.engine.state import State
from sentinel.model.records import Incident, Plan, StepKind, Unread, Verdict

LEADER = dataclasses.replace(job(201, nodes=("n1",)), het=201)
SECOND = dataclasses.replace(job(202, nodes=("n2",), partition="cpu"), het=201)
JUDGED = verdict(drain=("n1",))
ACT = Mode("act", "act")


def never(_incident: Incident) -> Verdict:
    raise AssertionError("nothing else is judged")


def decided(unread: int, modes: Modes) -> Plan:
    view = ClusterView()
    view.see_fleet(fleet(6, [LEADER, SECOND]))
    shown = {part.id: part for part in (LEADER, SECOND) if part.id != unread}
    view.see_fleet(
        dataclasses.replace(
            fleet(6), at=later(1.0), jobs=shown, unread=(Unread("job", f"{unread}", "bad json"),) if unread else ()
        )
    )
    state = State(rules=RULES, settings=SETTINGS, cluster=view, onsets=OnsetTracker(view, SETTINGS.judgement))
    about = incident(evidence(node="n1"), ended(201), job=201, nodes=("n1",))
    state.put(about)
    assert view.fleet is not None
    return policy.decide(
        JUDGED,
        about,
        situation_of(about, ClusterNow(state, view.fleet, later(1.0), never)),
        limits=Limits(drain_fraction=1.0),
        modes=modes,
        act_confidence=0.5,
        now=AT,
    )


@pytest.mark.parametrize("unread", [0, 201, 202], ids=["none", "leader", "second"])
def test_each_component_gets_its_resume_point_as_it_was_last_seen(unread: int) -> None:
    plan = decided(unread, Modes(default=ACT))
    assert [step.job for step in plan.to_do if step.kind is StepKind.WRITE_RESUME] == [201, 202]


@pytest.mark.parametrize("unread", [0, 202], ids=["none", "second"])
def test_a_component_that_is_only_observed_keeps_its_job_from_being_requeued(unread: int) -> None:
    plan = decided(unread, Modes(default=ACT, partitions={"cpu": Mode("observe", "observe")}))
    assert StepKind.REQUEUE_HOLD not in {step.kind for step in plan.to_do}
