"""The traps of writing to Slurm, on the Slurm in memory; the contract suite holds that one to the real one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from in_memory.slurm import REQUEUE_WAIT_S, FakeSlurm

from sentinel.adapters.slurm.process import Answer, SlurmSaidNo, error_from
from sentinel.adapters.slurm.writer import REVOKED_S, Writer, one_line
from sentinel.errors import Denied, Refused, RefusedForNow, SentinelError, Timeout, Unavailable
from sentinel.model.records import NodeView
from sentinel.simulate.slurm.records import SlurmTimes

OURS = "sentinel: i42 Xid 79"


async def test_requeue_of_an_unrequeueable_job_mends_it_first(fake_slurm: FakeSlurm) -> None:
    job = fake_slurm.submit(requeue=False)
    await fake_slurm.requeue_hold(job)
    assert [call[0] for call in fake_slurm.calls] == ["set_job", "requeue_hold"]
    assert fake_slurm.jobs[job].held


def before_the_next(verb: str, slurm: FakeSlurm, what: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """``what`` happens after the writer's look and before its request."""
    asked = getattr(slurm.verbs, verb)

    async def late(spec: str, **how: bool) -> object:
        monkeypatch.setattr(slurm.verbs, verb, asked)
        what()
        return await asked(spec, **how)

    monkeypatch.setattr(slurm.verbs, verb, late)


async def test_slurms_own_requeue_between_look_and_request_is_no_second_one(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = FakeSlurm()
    job = slurm.submit()
    node_fail = partial(slurm.back_to_queue, slurm.jobs[job], held=False)
    before_the_next("requeue_hold", slurm, node_fail, monkeypatch)
    for _ in range(2):  # a caller looks again, see the port
        await slurm.requeue_hold(job)
    assert (slurm.jobs[job].held, slurm.jobs[job].restarts) == (True, 1)


@pytest.mark.parametrize("look", [pytest.param("job_record", id="before-the-look"), "requeue_hold"])
async def test_a_hold_with_somebody_elses_requeue_of_a_failed_job_is_not_ours(
    look: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = FakeSlurm()
    job = slurm.submit()
    slurm.end(job, exit_code=1)
    requeued = partial(slurm.back_to_queue, slurm.jobs[job], held=True)
    before_the_next(look, slurm, requeued, monkeypatch)
    assert not await slurm.requeue_hold(job)
    assert [call[0] for call in slurm.calls if call[0] == "hold"] == []


async def test_a_hold_that_was_on_the_running_job_is_not_ours(fake_slurm: FakeSlurm) -> None:
    job = fake_slurm.submit()
    fake_slurm.person_holds(job)
    assert not await fake_slurm.requeue_hold(job)
    assert (fake_slurm.jobs[job].state, fake_slurm.jobs[job].held) == ("PENDING", True)


async def test_a_hold_is_ours_if_nobody_else_put_one(fake_slurm: FakeSlurm) -> None:
    running, failed, waits = fake_slurm.submit(nodes=1), fake_slurm.submit(nodes=1), fake_slurm.submit(nodes=4)
    fake_slurm.end(failed, exit_code=1)
    for job in (running, failed, waits):
        assert await fake_slurm.requeue_hold(job)
        assert not await fake_slurm.requeue_hold(job)


async def test_a_job_cancelled_between_look_and_request_stays_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = FakeSlurm()
    job = slurm.submit()
    before_the_next("requeue_hold", slurm, partial(slurm.cancel, job), monkeypatch)
    for _ in range(2):
        await slurm.requeue_hold(job)
    assert (slurm.jobs[job].state, slurm.jobs[job].held, slurm.jobs[job].restarts) == ("CANCELLED", False, 0)


async def test_a_waiting_job_cancelled_between_look_and_hold_stays_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = FakeSlurm(1)
    slurm.submit()
    job = slurm.submit()
    before_the_next("hold", slurm, partial(slurm.cancel, job), monkeypatch)
    await slurm.requeue_hold(job)
    assert (slurm.jobs[job].state, slurm.jobs[job].held) == ("CANCELLED", False)


async def test_a_job_that_starts_between_look_and_hold_is_requeued(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = FakeSlurm()
    job = slurm.submit(held=True)
    slurm.jobs[job].held = False
    slurm.jobs[job].eligible = slurm.clock.advance(5).timestamp() + 5

    def starts() -> None:
        slurm.clock.advance(10)
        slurm.schedule()

    before_the_next("hold", slurm, starts, monkeypatch)
    await slurm.requeue_hold(job)
    assert (slurm.jobs[job].state, slurm.jobs[job].held, slurm.jobs[job].restarts) == ("PENDING", True, 1)


@pytest.mark.parametrize("look", [pytest.param("job_record", id="before-the-look"), "hold"])
async def test_an_attempt_that_began_after_the_callers_look_is_left_running(
    look: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen where slurmctld took 6 s for each answer: the lost node's job, back in the queue, began as it was to be held."""
    slurm = FakeSlurm()
    job = slurm.submit()
    slurm.back_to_queue(slurm.jobs[job], held=False)

    def starts() -> None:
        slurm.clock.advance(REQUEUE_WAIT_S)
        slurm.schedule()

    before_the_next(look, slurm, starts, monkeypatch)
    with pytest.raises(Unavailable, match="begun its attempt 1"):
        await slurm.requeue_hold(job, 0)
    assert (slurm.jobs[job].state, slurm.jobs[job].held, slurm.jobs[job].restarts) == ("RUNNING", False, 1)


async def test_a_job_that_never_settles_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = FakeSlurm()
    job = slurm.submit()

    async def always(_spec: str, *, incomplete: bool) -> None:
        raise SlurmSaidNo(Answer.DISABLED, "Requested operation is presently disabled")

    monkeypatch.setattr(slurm._verbs, "requeue_hold", always)
    with pytest.raises(Unavailable, match="not known"):
        await slurm.requeue_hold(job)


async def test_without_start_now_a_requeued_job_waits(fake_slurm: FakeSlurm) -> None:
    job = fake_slurm.submit()
    await fake_slurm.requeue_hold(job)
    await fake_slurm.release(job)
    assert fake_slurm.jobs[job].state == "PENDING"
    fake_slurm.clock.advance(REQUEUE_WAIT_S)
    assert (await fake_slurm.fleet()).jobs[job].state == "running"


async def test_what_was_seen_before_the_process_stood_still_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = FakeSlurm()
    asked, looks = slurm.verbs.node, 0

    async def node(name: str) -> NodeView | None:
        nonlocal looks
        seen, looks = await asked(name), looks + 1
        if looks == 1:  # stopped with the answer unread
            slurm.person_drains(name, "cable swap")
            slurm.clock.advance(100)
        return seen

    monkeypatch.setattr(slurm.verbs, "node", node)
    with pytest.raises(Refused, match="cable swap"):
        await slurm.drain("n1", OURS)
    assert slurm.nodes["n1"].reason == "cable swap" and looks == 2


class Waits:
    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


@pytest.mark.parametrize(
    ("later_s", "waits_s"), [(0.0, REVOKED_S), (1.0, REVOKED_S - 1.0), (3.0, 0.0), (-3600.0, REVOKED_S)]
)
async def test_a_job_requeued_this_second_is_released_in_the_next(later_s: float, waits_s: float) -> None:
    slurm = FakeSlurm()
    job = slurm.submit()
    await slurm.requeue_hold(job)
    waits = Waits()
    writer = Writer(slurm._verbs, now=lambda: slurm.jobs[job].submitted + later_s, sleep=waits)
    await writer.release(job)
    assert waits.seconds == [pytest.approx(waits_s)]
    assert not slurm.jobs[job].held


@pytest.mark.parametrize(("later_s", "waits_s"), [(0.0, REVOKED_S), (3.0, 0.0)])
async def test_a_deferred_job_starts_in_the_next_second(later_s: float, waits_s: float) -> None:
    slurm = FakeSlurm()
    job = slurm.submit()
    await slurm.requeue_hold(job)
    await slurm.defer(job)
    assert (slurm.jobs[job].held, slurm.jobs[job].state) == (False, "PENDING")
    waits = Waits()
    writer = Writer(slurm._verbs, now=lambda: slurm.jobs[job].submitted + later_s, sleep=waits)
    await writer.update_job(job, start_now=True)
    assert waits.seconds == [pytest.approx(waits_s)]
    assert slurm.jobs[job].state == "RUNNING"


async def test_a_job_that_keeps_its_time_over_the_requeue_starts_no_sooner_on_the_nodes_that_it_left() -> None:
    """It waited for a lost node, which was set down at once: the time that Slurm shows is that of its submission."""
    slurm = FakeSlurm(nodes=3)
    slurm.times = SlurmTimes(epilog_s=0.1)
    job = slurm.submit(nodes=2)
    submitted_s = slurm.jobs[job].submitted
    slurm.clock.advance(60.0)
    slurm.lose("n1")
    waits = Waits()
    writer = Writer(slurm._verbs, now=slurm.time_s, sleep=waits)
    await writer.requeue_hold(job)
    slurm.clock.advance(0.5)
    await slurm.job(job)
    await writer.down("n1", OURS)
    await writer.defer(job)
    assert (slurm.jobs[job].state, slurm.jobs[job].submitted) == ("PENDING", submitted_s)
    await writer.update_job(job, start_now=True)
    assert waits.seconds == [pytest.approx(REVOKED_S - 0.5)]


async def test_a_component_that_lost_its_node_starts_no_sooner_either() -> None:
    """The request was for the leader of the heterogeneous job."""
    slurm = FakeSlurm(nodes=4)
    slurm.times = SlurmTimes(epilog_s=0.1)
    component, leader = slurm.submit(nodes=2), slurm.submit(nodes=1)
    for job in (component, leader):
        slurm.jobs[job].record["het_job_id"] = leader
    slurm.clock.advance(60.0)
    slurm.lose("n1")
    waits = Waits()
    writer = Writer(slurm._verbs, now=slurm.time_s, sleep=waits)
    await writer.requeue_hold(component)
    slurm.clock.advance(0.5)
    await slurm.job(leader)
    await writer.down("n1", OURS)
    await writer.defer(component)
    assert slurm.jobs[component].submitted < slurm.time_s() - 60.0
    await writer.update_job(component, start_now=True)
    assert waits.seconds == [pytest.approx(REVOKED_S - 0.5)]


@pytest.mark.parametrize("ahead_s", [-300.0, -1.0, 0.0, 0.6, 1.5, 2.0, 3.0, 300.0])
@pytest.mark.parametrize("later_s", [0.0, 0.7, 5.0])
async def test_clocks_that_are_apart_start_no_job_before_slurmd_has_forgotten_its_last_attempt(
    ahead_s: float, later_s: float
) -> None:
    """What the pause misses where our clock is ahead, scontrol's start time, by the same clock, makes up for."""
    slurm = FakeSlurm()
    job = slurm.submit()
    await slurm.requeue_hold(job)
    await slurm.defer(job)
    requeued_s = slurm.jobs[job].submitted
    slurm.clock.advance(later_s)
    slurm._verbs.ahead_s = ahead_s

    async def waits(span_s: float) -> None:
        slurm.clock.advance(span_s)

    writer = Writer(slurm._verbs, now=lambda: slurm.time_s() + ahead_s, sleep=waits)
    await writer.update_job(job, start_now=True)
    this, sent_s = slurm.jobs[job], slurm.time_s()
    assert this.eligible - requeued_s >= 2.0 and this.eligible - sent_s <= max(ahead_s, 0.0)


async def test_a_job_that_never_ran_is_released_at_once() -> None:
    slurm = FakeSlurm()
    job = slurm.submit(held=True)
    waits = Waits()
    await Writer(slurm._verbs, now=lambda: slurm.jobs[job].submitted, sleep=waits).release(job)
    assert waits.seconds == [0.0]


async def test_down_drains_before_it_ends_anything(fake_slurm: FakeSlurm) -> None:
    await fake_slurm.down("n1", OURS)
    await fake_slurm.down("n1", OURS)
    assert [call[:3] for call in fake_slurm.calls] == [("set_node", "n1", "DRAIN"), ("set_node", "n1", "DOWN")]


@pytest.mark.parametrize("flag", ["POWERING_UP", "POWERED_DOWN", "POWERING_DOWN", "REBOOT_REQUESTED", "REBOOT_ISSUED"])
async def test_a_node_that_slurm_switches_or_reboots_by_now_is_not_set_down(fake_slurm: FakeSlurm, flag: str) -> None:
    fake_slurm.nodes["n1"].power = flag
    with pytest.raises(Refused, match="n1 is being switched off or on, or rebooted"):
        await fake_slurm.down("n1", OURS)
    assert fake_slurm.calls == []


@pytest.mark.parametrize("flag", ["POWER_DOWN", "REBOOT_REQUESTED"])
async def test_a_lost_node_that_is_to_be_switched_off_after_its_job_is_set_down(
    fake_slurm: FakeSlurm, flag: str
) -> None:
    fake_slurm.submit(nodes=1)
    fake_slurm.nodes["n1"].power = flag
    await fake_slurm.down("n1", OURS)
    assert fake_slurm.nodes["n1"].down


async def test_down_cut_between_its_requests_is_finished_by_the_next_call(fake_slurm: FakeSlurm) -> None:
    await fake_slurm.drain("n1", OURS)
    await fake_slurm.down("n1", OURS)
    assert fake_slurm.nodes["n1"].down
    assert fake_slurm.nodes["n1"].drained


async def test_a_node_that_slurm_found_down_is_drained_with_our_reason(fake_slurm: FakeSlurm) -> None:
    fake_slurm.lose("n1")
    fake_slurm.notice("n1")
    await fake_slurm.down("n1", OURS)
    assert (fake_slurm.nodes["n1"].drained, fake_slurm.nodes["n1"].reason) == (True, OURS)


async def test_a_frozen_or_refusing_slurm_changes_nothing(fake_slurm: FakeSlurm) -> None:
    job = fake_slurm.submit()
    fake_slurm.answers = False
    with pytest.raises(Timeout):
        await fake_slurm.requeue_hold(job)
    fake_slurm.answers, fake_slurm.denies = True, True
    with pytest.raises(Denied):
        await fake_slurm.drain("n1", OURS)
    assert fake_slurm.calls == []


async def test_component_of_a_heterogeneous_job_requeues_its_leader(fake_slurm: FakeSlurm) -> None:
    leader, component = fake_slurm.submit(), fake_slurm.submit()
    for job in (leader, component):
        fake_slurm.jobs[job].record["het_job_id"] = leader
    await fake_slurm.requeue_hold(component)
    assert fake_slurm.calls == [("requeue_hold", f"{leader}")]


async def test_reasons_stay_one_line(fake_slurm: FakeSlurm) -> None:
    await fake_slurm.drain("n1", "sentinel: i42\nState=RESUME\x1b[2J\ttab")
    assert fake_slurm.calls[0][3] == "sentinel: i42 State=RESUME [2J tab"
    assert one_line("  ünïcode ☃ ") == "ünïcode ☃"


async def test_a_person_may_replace_the_reason_of_a_drain_of_ours(fake_slurm: FakeSlurm) -> None:
    await fake_slurm.drain("n1", "sentinel:root: first")
    await fake_slurm.drain("n1", "sentinel:root: second")  # a plan's, or a repeated one: it keeps what is there
    assert fake_slurm.nodes["n1"].reason == "sentinel:root: first"
    for _ in range(2):
        await fake_slurm.drain("n1", "sentinel:root: third", replace=True)
    assert fake_slurm.nodes["n1"].drained and fake_slurm.nodes["n1"].reason == "sentinel:root: third"
    assert len(fake_slurm.calls) == 2  # it was there already
    fake_slurm.person_drains("n2", "a person")
    with pytest.raises(Refused, match="a person"):
        await fake_slurm.drain("n2", "sentinel:root: mine", replace=True)


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ("Invalid job id specified for job 7", Answer.NO_JOB),
        ("slurm_update error: Invalid node name specified", Answer.NO_NODE),
        ("Job is pending execution for job 3", Answer.PENDING),
        ("Job is no longer pending execution for job 8", Answer.NOT_PENDING),
        ("Job has already finished for job 3", Answer.FINISHED),
        ("job notify failure: Job/step already completing or completed", Answer.FINISHED),
        ("Requested operation is presently disabled for job 9", Answer.DISABLED),
        ("Only batch jobs are accepted or processed for job 9", Answer.NOT_BATCH),
        ("slurm_update error: Invalid node state specified", Answer.NODE_STATE),
        ("something new", Answer.OTHER),
    ],
)
def test_what_slurmctld_says_no_to(said: str, answer: Answer) -> None:
    error = error_from(said)
    assert isinstance(error, SlurmSaidNo)
    assert error.answer is answer


async def test_no_no_of_slurm_leaves_the_writer_as_such(fake_slurm: FakeSlurm) -> None:
    job = fake_slurm.submit()

    async def no(*_: object, **_how: object) -> None:
        raise SlurmSaidNo(Answer.OTHER, "something new")

    for name in ("set_node", "requeue_hold", "hold", "release", "set_job", "notify"):
        setattr(fake_slurm._verbs, name, no)
    held = fake_slurm.submit(held=True)
    calls = (
        fake_slurm.drain("n1", OURS),
        fake_slurm.down("n1", OURS),
        fake_slurm.requeue_hold(job),
        fake_slurm.release(held),
        fake_slurm.update_job(held, start_now=True),
    )
    for call in calls:
        with pytest.raises(SentinelError) as caught:
            await call
        assert type(caught.value) is RefusedForNow


async def test_an_elastic_jobs_size_is_written_with_its_tasks(fake_slurm: FakeSlurm) -> None:
    job = fake_slurm.submit(nodes=4)
    await fake_slurm.requeue_hold(job)
    await fake_slurm.update_job(job, size=(3, 4, 6))
    assert fake_slurm.calls[-1][2:] == ("NumNodes=3-4", "NumTasks=6", "NumCPUs=6")
