"""Random stories as data: the same for the same seed, and nothing drawn that cannot be performed."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any, cast

import pytest
from chaos.acts import ACTS
from chaos.drawn import JOB_FAULTS, LARGE, NODE_FAULTS, OURS, PEOPLE, SHARED_FAULTS, SMALL, Act, JobAsked, Size, draw
from chaos.jobs import Witnessed, nodes_of, wait_running
from chaos.performance import Facts, Performance
from chaos.promises import Seen, blamed, expanded, promise_of_job, returned_before_saved


def test_the_same_seed_gives_the_same_story():
    assert draw(7, 31) == draw(7, 31) != draw(7, 32)


def test_every_act_can_be_performed():
    drawable = {*NODE_FAULTS, *JOB_FAULTS, *SHARED_FAULTS, *PEOPLE, *OURS}
    assert drawable == set(ACTS)
    assert {act.what for number in range(300) for act in draw(1, number).acts} == drawable


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_every_story_has_a_bad_node_and_leaves_room_for_its_jobs(size: Size):
    for number in range(300):
        story = draw(2, number, size)
        bad = [act for act in story.acts if act.what in NODE_FAULTS]
        assert 1 <= len(bad) <= size.bad_nodes
        assert sum(job.nodes for job in story.jobs) + size.bad_nodes < size.nodes
        assert size.acts[0] <= len(story.acts) <= size.acts[1]


def test_faults_that_wait_for_nothing_happen_while_the_daemon_is_away(monkeypatch: pytest.MonkeyPatch):
    done: list[str] = []
    for what in ("hang", "crash", "drain"):
        monkeypatch.setitem(ACTS, what, lambda _, act: done.append(act.what))
    daemon = SimpleNamespace(send=lambda _: done.append("stopped or continued"))
    monkeypatch.setattr("chaos.acts.processes.known", lambda *_: daemon)
    play = Performance(SimpleNamespace(lab=Slurm(), paths=None), draw(1, 1))
    play.left = [Act("hang", 0), Act("drain"), Act("crash", 0)]
    ACTS["freeze"](play, Act("freeze", lasts_s=0.01))
    assert done == ["stopped or continued", "hang", "stopped or continued"]
    assert [act.what for act in play.left] == ["drain", "crash"]


def test_node_lists_are_read_as_slurm_writes_them():
    assert expanded("n7") == {"n7"}
    assert expanded("n[1-3,5]") == {"n1", "n2", "n3", "n5"}


def shown(state: str, reason: str, restarts: int) -> str:
    return f"   JobState={state} Reason={reason} Dependency=(null)\n   Requeue=1 Restarts={restarts} BatchFlag=1\n"


class Slurm:
    """Knows one job, which changes after so many looks at it; remembers after how many it was held."""

    def __init__(self, *states: str, change_after: int = 1) -> None:
        self.states, self.change_after, self.looks = states, change_after, 0
        self.held_after: int | None = None

    def slurm(self, *command: str) -> str:
        if command[:2] == ("scontrol", "hold"):
            self.held_after = self.looks
        if command[:3] != ("scontrol", "show", "job"):
            return ""
        self.looks += 1
        return self.states[0 if self.looks <= self.change_after else -1]


def test_a_job_that_ended_and_that_slurm_forgot_is_as_it_was_last_seen(monkeypatch: pytest.MonkeyPatch):
    slurm = Slurm(shown("RUNNING", "None", 2))
    job = Witnessed(slurm, 7, "job0", cancelled=True, asked=JobAsked("het", 2))
    monkeypatch.setattr("chaos.jobs.until", lambda *_: None)
    wait_running(cast(Any, None), job)

    def forgotten(*command: str) -> str:
        raise AssertionError("scontrol show job 7: slurm_load_jobs error: Invalid job id specified")

    slurm.slurm = forgotten
    assert (job.state(), job.restarts(), nodes_of(job)) == ("CANCELLED", 2, [])


class Unheard:
    """Of a story, that nobody was told anything."""

    def received(self) -> list[object]:
        return []


HELD_LATE = {"held_at": 0, "held_perhaps": True}


@pytest.mark.parametrize(
    ("state", "known", "steps", "right"),
    [
        (("RUNNING", "None", 0), {"held_at": 0}, (5, 5), True),  # it was suspended, say: its user's affair
        (("RUNNING", "None", 1), {"held_at": 0}, (5, 9), False),
        (("PENDING", "JobHeldUser", 1), {"held_at": 0}, (5, 5), True),
        (("PENDING", "JobHeldUser", 1), HELD_LATE, (5, 5), True),
        (("RUNNING", "None", 1), HELD_LATE, (5, 9), True),
        (("RUNNING", "None", 1), HELD_LATE, (5, 5), False),
        (("PENDING", "BeginTime", 1), HELD_LATE, (5, 5), False),
        (("PENDING", "JobHeldUser", 1), {}, (5, 5), False),
    ],
)
def test_a_job_that_its_user_held_waits_held_and_one_whose_hold_was_lost_trains(
    state: tuple[str, str, int], known: dict[str, Any], steps: tuple[int, int], right: bool
):
    job = dataclasses.replace(Witnessed(Slurm(shown(*state)), 7, "job0", faults=1), **known)
    before, now = (Seen({}, {7: (1, step)}) for step in steps)
    assert (list(promise_of_job(Unheard(), Facts([job]), job, before, now)) == []) is right


@pytest.mark.parametrize("change_after", range(6))
@pytest.mark.parametrize("then", [("COMPLETING", "None", 1), ("PENDING", "job_requeued_in_held_state", 1)])
def test_a_hold_that_falls_into_a_requeue_may_be_lost(then: tuple[str, str, int], change_after: int):
    slurm = Slurm(shown("RUNNING", "None", 0), shown(*then), change_after=change_after)
    job = Witnessed(slurm, 7, "job0")
    play = Performance(SimpleNamespace(lab=slurm), draw(1, 1))
    play.facts.jobs.append(job)
    ACTS["hold"](play, Act("hold", 0))
    if slurm.held_after is not None:
        assert (job.held_at, job.held_perhaps) == (0, slurm.looks > change_after)


@pytest.mark.parametrize("change_after", range(6))
def test_a_hold_of_a_job_that_waits_keeps_it_waiting_unless_it_had_just_begun(change_after: int):
    slurm = Slurm(shown("PENDING", "BeginTime", 1), shown("RUNNING", "None", 1), change_after=change_after)
    job = Witnessed(slurm, 7, "job0")
    play = Performance(SimpleNamespace(lab=slurm), draw(1, 1))
    play.facts.jobs.append(job)
    ACTS["hold"](play, Act("hold", 0))
    began = slurm.looks > change_after
    assert (job.held_at, job.held_perhaps) == (1 if began else -1, False)


@pytest.mark.parametrize(
    ("cause", "known", "right"),
    [
        ("node_failure", {}, True),
        ("user_config", {}, False),
        ("user_code", {"program_fails": True}, True),
        ("checkpoint_corrupt", {}, False),
        ("checkpoint_corrupt", {"damaged": ["local:5"]}, True),
    ],
)
def test_a_program_to_which_nothing_was_done_must_not_be_blamed(cause: str, known: dict[str, Any], right: bool):
    job = Witnessed(Slurm(), 7, "job0", **known)
    story = SimpleNamespace(received=lambda: [{"job": 7, "cause": cause}, "no JSON"])
    assert (list(blamed(story, Facts([job]))) == []) is right


@pytest.mark.parametrize("back", ["IDLE", "ALLOCATED"])
@pytest.mark.parametrize(
    ("returned_after_s", "restarted", "limit"), [(28, True, True), (28, False, False), (31, True, False)]
)
def test_a_return_that_slurmctld_may_not_have_seen_is_a_known_limit(
    returned_after_s: int, restarted: bool, limit: bool, back: str
):
    start = "[2026-11-27T13:58:47.712] slurmctld version 22.05.8 started on cluster lab\n" if restarted else ""
    log = (
        "[2026-11-27T13:57:27.090] slurmctld version 22.05.8 started on cluster lab\n"
        "[2026-11-27T13:58:11.852] update_node: node n6 state set to DRAINING\n"
        f"[2026-11-27T13:58:{11 + returned_after_s}.852] update_node: node n6 state set to {back}\n"
        f"{start}[2026-11-27T13:58:48.247] update_node: node n6 state set to DRAINED\n"
    )
    assert returned_before_saved(log, "n6") is limit and not returned_before_saved(log, "n7")


def test_a_return_that_slurmctld_calls_invalid_right_after_its_start_is_one():
    log = (
        "[2026-11-27T16:32:10.883] update_node: node n12 state set to DRAINED\n"
        "[2026-11-27T16:32:19.442] slurmctld version 22.05.8 started on cluster lab\n"
        "[2026-11-27T16:32:19.513] _slurm_rpc_update_node for n12: Invalid node state specified\n"
        "[2026-11-27T16:32:26.177] update_node: node n12 state set to DRAINED\n"
    )
    assert returned_before_saved(log, "n12")
    assert not returned_before_saved(log.replace("T16:32:10", "T16:31:10"), "n12")
    assert not returned_before_saved(log.replace("Invalid node state specified", "Access/permission denied"), "n12")
