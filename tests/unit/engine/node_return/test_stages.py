"""Drained nodes: tested, reset, rebooted, by what the cause asks for and the site allows, or kept for repair."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from drained_node import ALL, JOB, NOW, OTHER_JOB, REASON, Node, returned, running

from sentinel.config.modes import CauseMode
from sentinel.config.return_settings import ReturnSettings
from sentinel.config.settings import Diagnostics, Mode, Modes
from sentinel.engine.events import EvidenceReceived, Started
from sentinel.engine.node_return.state import NodeReturn, Stage, read, written
from sentinel.engine.transition import (
    DeliverNotice,
    OpenTicket,
    ReturnNode,
    RunDiagnostic,
    RunSiteCommand,
)
from sentinel.model.records import (
    Cause,
    Evidence,
    Kind,
    Source,
    Where,
)
from sentinel.model.stored import Stored


def test_the_whole_way_back() -> None:
    node = Node()
    assert node.acts("reset").arguments == ("/site/reset", "n1")
    node.answer("done")
    node.passes(1, 2, 3)
    (asked,) = node.look()
    assert asked == ReturnNode(asked.id, "n1", REASON)
    node.answer("done")
    assert node.stage is Stage.PROBATION
    assert node.state.returns.on_probation(JOB) == ("n1",)
    assert node.state.returns.on_probation(OTHER_JOB) == ()


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (replace(ALL, automatic=False), "sentinel release"),
        (replace(ALL, reset_command=[]), "a reset"),
        (replace(ALL, test_level=2), "level 3"),
    ],
)
def test_what_the_site_does_not_allow_leaves_it_to_a_person(settings: ReturnSettings, expected: str) -> None:
    node = Node(settings)
    if settings.reset_command:
        node.acts("reset")
        node.answer("done")
    node.passes(*range(1, settings.test_level + 1))
    assert node.look() == node.look() == []
    assert node.stage is Stage.PASSED
    assert expected in node.record.waits


def test_nothing_is_reset_rebooted_or_returned_by_default() -> None:
    defaults = ReturnSettings()
    assert not defaults.reset_command
    assert not defaults.reboot_command
    assert not defaults.automatic


def test_no_test_where_tests_are_off_and_nothing_where_draining_is_not_in_act_mode() -> None:
    assert Node(replace(ALL, test_level=0)).look() == []
    observed = Node()
    observed.settings = replace(observed.settings, modes=Modes())
    observed.start()
    observed.handle_drained()
    assert observed.look() == []
    assert "act mode" in observed.record.waits


def test_an_agent_that_says_bad_keeps_a_tested_node_out() -> None:
    node = Node(cause=Cause.GPU_THERMAL_POWER)
    node.passes(1, 2, 3)
    node.word = "BAD"
    assert node.look() == []
    assert "a GPU is lost" in node.record.waits
    node.word = "OK"
    assert isinstance(node.look()[0], ReturnNode)


def test_an_agent_that_asks_for_a_deeper_test_gets_it() -> None:
    node = Node(replace(ALL, test_level=4), cause=Cause.GPU_THERMAL_POWER)
    node.word, node.level = "BAD", 4
    node.passes(1, 2, 3, 4)
    node.word, node.level = "OK", 0
    assert isinstance(node.look()[0], ReturnNode)


def test_twice_failed_is_repair_told_once_with_a_ticket() -> None:
    node = Node(replace(ALL, ticket_command=["/site/ticket"]))
    node.fails()
    assert node.record.failures
    node.acts("reboot")  # the second action of the cause
    node.answer("done")
    node.boot = "boot-2"
    assert isinstance(node.look()[0], RunDiagnostic)
    node.answer("fail", "GPU 3: memory")
    (told,) = node.look()
    assert isinstance(told, DeliverNotice)
    assert "sentinel bundle n1" in told.notice.body
    (ticket,) = node.look()
    assert isinstance(ticket, OpenTicket)
    assert ticket.data["node"] == "n1"
    node.answer("failed", "no route")
    assert node.record.ticket == "no route"
    assert node.look() == []
    (again,) = node.look(node.settings.returns.retry_s)
    assert isinstance(again, OpenTicket)
    assert again.data["id"] == ticket.data["id"]
    node.answer("done")
    assert node.look(86400.0) == []
    assert node.stage is Stage.REPAIR


def test_a_failure_long_ago_does_not_count() -> None:
    node = Node()
    node.fails()
    node.at += timedelta(seconds=node.settings.returns.within_s)
    node.fails()
    assert node.stage is not Stage.REPAIR
    assert isinstance(node.look()[0], RunSiteCommand)


def test_a_command_that_fails_counts_and_blocks_nothing() -> None:
    node = Node()
    node.acts("reset")
    node.answer("failed", "/site/reset did not end within 300 s and was killed")
    assert "300 s" in node.record.failed
    assert node.look() == []
    node.at += timedelta(seconds=node.settings.returns.retry_s)
    node.acts("reboot")


def test_a_reboot_is_over_when_another_boot_is_heard() -> None:
    node = Node(cause=Cause.GPU_FALLEN_OFF_BUS)
    node.acts("reboot")
    node.answer("done")
    assert node.look() == []  # it is still the old boot that is heard
    assert node.stage is Stage.STARTING
    assert node.look(heard=False) == []
    node.boot = "boot-2"
    assert isinstance(node.look()[0], RunDiagnostic)


def test_a_node_that_does_not_come_back_from_its_reboot_has_failed() -> None:
    node = Node(cause=Cause.GPU_FALLEN_OFF_BUS)
    node.acts("reboot")
    node.answer("done")
    node.look(heard=False)
    assert node.look(node.settings.returns.boot_s, heard=False) == []
    assert "reboot" in node.record.failed


@pytest.mark.parametrize("result", ["unknown", "inconclusive"])
def test_no_answer_is_neither_good_nor_bad(result: str) -> None:
    node = Node(cause=Cause.GPU_THERMAL_POWER)
    node.passes(1)
    node.look()
    node.answer(result, "the node is gone")
    assert node.look() == []
    assert "the node is gone" in node.record.waits
    assert not node.record.failures
    assert node.record.passed == 1
    (asked,) = node.look(node.settings.returns.retry_s)
    assert isinstance(asked, RunDiagnostic)
    assert asked.level == 2


def test_a_job_on_the_node_is_waited_for() -> None:
    node = Node(cause=Cause.GPU_THERMAL_POWER)
    node.jobs = {OTHER_JOB: running(OTHER_JOB, "n1")}
    assert node.look() == []
    assert "8802" in node.record.waits
    node.jobs = {}
    assert isinstance(node.look()[0], RunDiagnostic)


def test_a_node_is_settled_before_anything_is_done_there() -> None:
    """Its agent still collects what the job left, and ends a test for that."""
    node = Node()
    node.settings = replace(node.settings, diagnostics=Diagnostics(settled_s=120.0))
    node.start()
    node.jobs = {OTHER_JOB: running(OTHER_JOB, "n1")}
    assert node.look(600.0) == []
    node.jobs = {}
    assert node.look() == node.look(100.0) == []
    assert "settles" in node.record.waits
    assert isinstance(node.look()[0], RunSiteCommand)


def test_a_silent_agent_is_waited_for() -> None:
    node = Node(cause=Cause.GPU_THERMAL_POWER)
    assert node.look(heard=False) == []
    assert isinstance(node.look()[0], RunDiagnostic)


def test_after_a_failure_every_test_is_done_again() -> None:
    node = Node(cause=Cause.GPU_THERMAL_POWER)
    node.passes(1)
    (asked,) = node.look()
    assert isinstance(asked, RunDiagnostic) and asked.level == 2
    node.answer("fail", "GPU 3: power")
    node.at += timedelta(seconds=node.settings.returns.retry_s)
    node.passes(1, 2, 3)


@pytest.mark.parametrize("state", ["allocated", "mixed", "completing"])
def test_a_node_that_a_job_holds_whose_record_cannot_be_read_is_left_alone(state: str) -> None:
    node = Node()
    node.view = replace(node.view, state=state)
    assert node.look() == node.look() == [] and "a job still holds it" in node.record.waits
    node.view = replace(node.view, state="idle")
    node.acts("reset")


def test_one_passed_test_of_several_proves_nothing_and_a_return_does() -> None:
    node = Node(cause=Cause.GPU_THERMAL_POWER)
    assert node.state.returns.proves("n1", NOW - timedelta(seconds=1)) is False
    assert node.state.returns.proves("n2", NOW) is None
    done = returned()
    assert done.state.returns.proves("n1", NOW) is True
    assert done.state.returns.proves("n1", done.at + timedelta(seconds=1)) is None


def test_what_a_test_of_a_drained_node_finds_opens_no_incident() -> None:
    node = Node(cause=Cause.GPU_THERMAL_POWER)
    node.look()
    found = Evidence(
        "d1",
        node.at,
        node.at,
        Source.DIAGNOSTIC,
        Kind.DIAG_FAILED,
        Where(node="n1"),
        "GPU 3: memory",
        data={"code": 95},
    )
    before = set(node.state.incidents)
    node.handle(EvidenceReceived(node.at, (found,)))
    assert set(node.state.incidents) == before


def test_what_is_kept_reads_back() -> None:
    node = returned()
    assert read(written(node.state.returns.known)) == node.state.returns.known
    assert read({"n1": {"stage": "asleep"}, "n2": 5}) == {}
    assert read(None) == {}


def test_few_nodes_are_reset_at_once() -> None:
    node = Node(replace(ALL, commands_at_once=1))
    busy = NodeReturn("0f3b", Cause.PCIE, NOW, NOW + timedelta(days=1), stage=Stage.STARTING)
    node.state.returns.known["n0"] = busy
    assert node.look() == []
    assert "1 other nodes" in node.record.waits


@pytest.mark.parametrize(
    ("modes", "partitions", "acts"),
    [
        # as for the drain itself: a partition that is not named says nothing beside one that is
        (Modes(partitions={"train": Mode(drain="act")}), ("train", "batch"), True),
        (Modes(partitions={"train": Mode(drain="act"), "batch": Mode(drain="suggest")}), ("train", "batch"), False),
        (Modes(default=Mode(causes={"gpu_memory_ecc": CauseMode(drain="act")})), ("train",), True),
        (Modes(default=Mode(drain="act", causes={"gpu_memory_ecc": CauseMode(drain="suggest")})), ("train",), False),
    ],
)
def test_the_mode_is_that_of_the_drain_by_cause_and_partition(
    modes: Modes, partitions: tuple[str, ...], acts: bool
) -> None:
    node = Node()
    node.settings = replace(node.settings, modes=modes)
    node.start()
    node.view = replace(node.view, partitions=partitions)
    assert bool(node.look()) is acts


def test_a_job_whose_record_cannot_be_read_holds_its_node() -> None:
    node = Node()
    node.view = replace(node.view, state="allocated")
    assert node.look() == []
    assert "job" in node.record.waits
    node.view = replace(node.view, state="idle")
    node.acts("reset")


def test_a_reset_that_was_not_begun_is_no_failure() -> None:
    node = Node()
    node.acts("reset")
    node.answer("unavailable", "/site/reset cannot be started")
    assert not node.record.failures
    assert node.look() == []
    assert "cannot be started" in node.record.waits
    node.at += timedelta(seconds=node.settings.returns.retry_s)
    node.acts("reset")
    node.answer("refused", "n1 is in service again")
    assert "n1" not in node.state.returns.known


def test_a_daemon_that_was_away_gives_a_rebooted_node_its_time() -> None:
    node = Node(cause=Cause.GPU_FALLEN_OFF_BUS)
    node.acts("reboot")
    node.answer("done")
    node.look(heard=False)
    node.start()
    node.at += timedelta(seconds=2 * node.settings.returns.boot_s)
    node.handle(Started(node.at, Stored()))
    assert node.look(heard=False) == []
    assert not node.record.failures
    node.look(node.settings.returns.boot_s, heard=False)
    assert node.record.failures
