"""A node's return to service: who else's drain it is, what Slurm answers, and what is remembered afterwards."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from drained_node import ACT, JOB, NOW, OTHER_JOB, REASON, Node, returned, running

from sentinel.detect.cluster_view import ClusterView
from sentinel.engine import Transition
from sentinel.engine.node_return import turns
from sentinel.engine.node_return.state import IN_SERVICE, Stage, plain_reason
from sentinel.engine.transition import (
    ReturnNode,
    RunDiagnostic,
    RunSiteCommand,
)
from sentinel.model.records import (
    Cause,
    NodeView,
    Outcome,
    Result,
    Step,
    StepKind,
)


@pytest.mark.parametrize(
    "view",
    [
        NodeView("n1", "idle", partitions=("train",)),
        NodeView("n1", "idle", frozenset({"drain"}), "cable swap", ("train",)),
        NodeView("n1", "idle", frozenset({"drain"}), f"{REASON} and bob looks", ("train",)),
        NodeView("n1", "idle", frozenset({"drain"}), "sentinel:olga: keep out", ("train",)),
    ],
)
def test_a_person_takes_the_node_over(view: NodeView) -> None:
    node = Node(cause=Cause.GPU_THERMAL_POWER)
    node.look()
    node.view = view
    node.answer("pass")
    assert node.look() == []
    assert "n1" not in node.state.returns.known


def test_an_operators_drain_is_never_taken_for_ours() -> None:
    node = Node(cause=Cause.GPU_THERMAL_POWER)
    node.view = replace(node.view, reason="sentinel:olga: keep out")
    assert node.look() == []
    assert "n1" not in node.state.returns.known


def test_what_slurm_adds_to_the_reason_at_a_reboot_is_not_a_persons() -> None:
    node = Node(cause=Cause.GPU_FALLEN_OFF_BUS)
    node.acts("reboot")
    node.answer("done")
    node.view = replace(node.view, reason=f"{REASON} : reboot issued : reboot complete", state="down")
    node.boot = "boot-2"
    assert isinstance(node.look()[0], RunDiagnostic)
    assert plain_reason(f"{REASON} : reboot by bob?") != REASON


def test_a_node_that_is_switched_off_and_on_has_not_been_returned() -> None:
    """Slurm ends the drain as it switches a node off on request; Sentinel drains it again before it comes back."""
    node = Node(cause=Cause.GPU_FALLEN_OFF_BUS)
    node.look()
    drained = node.view
    node.view = replace(drained, flags=frozenset({"power_down"}))
    node.look(heard=False)
    node.view = replace(drained, flags=frozenset({"drain", "powered_down"}))
    node.look(heard=False)
    node.view = drained
    node.look()
    assert node.record.stage not in IN_SERVICE and "node-return-left" not in node.said


def test_a_drain_that_somebody_else_had_made_is_not_remembered() -> None:
    node = Node()
    out = Transition()
    outcome = Outcome(Step(StepKind.DRAIN, node="n2"), Result.DONE, NOW, "was drained by somebody else already")
    turns.drained(node.state, out, "0f3a", outcome)
    assert "n2" not in node.state.returns.known


def test_a_killed_daemon_goes_on_with_what_was_lost() -> None:
    node = Node()
    node.acts("reset")
    node.start()  # the answer is lost with the daemon
    assert node.look() == []
    (asked,) = node.look(node.settings.returns.command_s + 60)
    assert isinstance(asked, RunSiteCommand)  # done again: it is not known whether it was done
    assert not node.record.failures


def test_a_return_whose_answer_is_lost_is_seen_in_slurm() -> None:
    node = Node(cause=Cause.GPU_THERMAL_POWER)
    node.passes(1, 2, 3)
    node.look()
    node.start()
    node.view = NodeView("n1", "idle", partitions=("train",))
    node.look()
    assert node.stage is Stage.PROBATION


def test_a_return_that_slurm_did_not_answer_is_tried_again_and_a_refused_one_is_not() -> None:
    node = Node(cause=Cause.GPU_THERMAL_POWER)
    node.passes(1, 2, 3)
    node.look()
    node.answer("unavailable", "slurmctld did not answer")
    assert isinstance(node.look()[0], ReturnNode)
    node.answer("refused", "its drain has another reason now")
    assert node.look() == []
    assert "n1" not in node.state.returns.known


def test_a_return_that_slurm_refuses_is_tried_again_and_says_why_meanwhile() -> None:
    node = Node(cause=Cause.GPU_THERMAL_POWER)
    node.passes(1, 2, 3)
    node.look()
    node.answer("failed", "Slurm does not resume n1: Invalid node state specified")
    assert node.look() == []
    assert "Slurm does not resume n1" in node.record.waits
    assert isinstance(node.look(node.state.settings.returns.retry_s)[0], ReturnNode)
    node.answer("done")
    assert node.stage is Stage.PROBATION


@pytest.mark.parametrize("ahead_s", [0.0, 300.0, -300.0])
def test_probation_ends_when_another_job_ran_there_or_with_time(
    ahead_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm's times are of its own clock."""
    monkeypatch.setattr(ClusterView, "own_clock_ahead_s", lambda _: ahead_s)
    node = returned()
    node.jobs = {JOB: running(JOB, "n1", started=node.at - timedelta(seconds=ahead_s))}
    node.look(node.settings.returns.probation_run_s)
    assert node.state.returns.on_probation(JOB)  # the job that it hurt proves nothing
    node.jobs = {OTHER_JOB: running(OTHER_JOB, "n1", started=node.at - timedelta(seconds=ahead_s))}
    node.look(node.settings.returns.probation_run_s + 1)
    assert node.stage is Stage.RETURNED
    later = returned()
    later.look(later.settings.returns.probation_s)
    assert later.stage is Stage.RETURNED


def test_a_return_that_slurmctld_forgot_is_done_again_and_a_persons_drain_is_not() -> None:
    node = returned()
    node.view = NodeView("n1", "idle", frozenset({"drain"}), REASON, ("train",))
    assert isinstance(node.look()[0], ReturnNode)
    theirs = returned()
    theirs.view = NodeView("n1", "idle", frozenset({"drain"}), "cable swap", ("train",))
    assert theirs.look() == []


def test_a_new_drain_after_the_return_counts_as_a_failure() -> None:
    node = returned()
    node.look()
    node.at += timedelta(hours=1)
    node.view = replace(node.view, flags=frozenset({"drain"}), reason="sentinel:77aa gpu_nvlink n1:3")
    node.handle_drained("77aa", Cause.GPU_NVLINK)
    assert len(node.record.failures) == 1
    node.acts("reboot")  # the first failure has been: the second action


def test_a_returned_node_is_forgotten_when_its_failures_no_longer_count() -> None:
    node = returned()
    node.look(node.settings.returns.probation_s)
    node.look(node.settings.returns.within_s + 60)
    assert "n1" not in node.state.returns.known


def test_nothing_is_done_to_a_node_in_a_maintenance_reservation() -> None:
    node = Node()
    node.view = replace(node.view, flags=frozenset({"drain", "maintenance"}))
    assert node.look() == []
    assert "maintenance" in node.record.waits
    node.settings = replace(node.settings, modes=replace(ACT, respect_maintenance=False))
    node.start()
    node.acts("reset")


def test_a_lost_return_is_not_made_again_in_a_maintenance_reservation() -> None:
    node = returned()
    node.view = NodeView("n1", "idle", frozenset({"drain", "maintenance"}), REASON, ("train",))
    assert node.look() == []
