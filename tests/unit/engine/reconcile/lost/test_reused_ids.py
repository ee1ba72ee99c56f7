"""The folder of slurmctld's state is lost and job ids begin anew: what was known of a job is not another one's."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from in_memory.daemon import WIDE, Daemon, FakeSink, fail, heard, open_plan, silent, states
from in_memory.world import World
from made_records import AT, OPTED_IN, evidence, later, lost_gpu

from sentinel.detect.numbers.bad_numbers_onset import BAD_NUMBERS_KEPT
from sentinel.engine.events import EffectCompleted, IncidentCorrected
from sentinel.engine.transition import AskNodes
from sentinel.model.changes import AttemptSeen, EvidenceAdded, IncidentChanged, PlanMade
from sentinel.model.corrections import Correction
from sentinel.model.records import Incident, IncidentState, Kind, Source, StepKind, Where
from sentinel.model.vocabulary import END_NOT_SEEN
from sentinel.wire import to_json

Worlds = Callable[..., World]
SAME = {"user": "alice", "uid": 1001}
STRANGER = {"user": "bob", "uid": 1002}


def begin_anew(there: World, **by: Any) -> Any:
    """slurmctld is started clean; the first job that comes has the id of the one that is gone."""
    there.slurm.jobs.clear()
    there.slurm.clock.advance(30.0)
    assert there.slurm.submit(nodes=2, excluded=("n1",), **by) == there.job
    return there.slurm.jobs[there.job]


@pytest.mark.parametrize("by", [STRANGER, SAME])
async def test_a_job_with_the_id_of_one_that_was_restarted_is_left_alone(world: Worlds, by: dict[str, Any]) -> None:
    there, sink = silent(world(nodes=6)), FakeSink()
    daemon = Daemon(there, [sink], settings=WIDE)
    await fail(daemon, lost_gpu("n1"))
    assert there.slurm.jobs[there.job].restarts == 1
    new = begin_anew(there, **by)
    calls = len(there.slurm.calls)
    for _ in range(4):
        await daemon.pass_time(20.0)
    assert (new.restarts, new.state, new.admin_comment, new.excluded) == (0, "RUNNING", "", ("n1",)), daemon.said
    assert len(there.slurm.calls) == calls and there.slurm.nodes["n1"].drained
    assert states(there) == ["closed"] and "another job's" in there.store.incident_rows()[0]["outcome"]
    assert there.store.incident_rows()[0]["job"] == there.job, "people still find it by its job"
    assert heard(sink)[-1] != "restarting" and daemon.bugs() == 0


async def test_a_job_that_gets_the_id_while_its_owners_restart_is_prepared_is_not_touched(world: Worlds) -> None:
    there = silent(world(nodes=6))
    daemon = Daemon(there, settings=WIDE)
    choose = there.checkpoints.choose
    made: list[Any] = []

    async def chosen(*about: Any) -> Any:
        if not made:
            made.append(begin_anew(there, **STRANGER))
        return await choose(*about)

    there.checkpoints.choose = chosen  # type: ignore[method-assign]
    await fail(daemon, lost_gpu("n1"))
    for _ in range(3):
        await daemon.pass_time(20.0)
    (new,) = made
    assert (new.restarts, new.admin_comment, new.excluded) == (0, "", ("n1",)), daemon.said
    assert not there.resume.files and states(there) == ["closed"] and daemon.bugs() == 0


@pytest.mark.parametrize("by", [STRANGER, SAME])
async def test_the_next_daemon_does_not_take_them_for_one_job(world: Worlds, by: dict[str, Any]) -> None:
    there = silent(world(nodes=6))
    await fail(Daemon(there, settings=WIDE), lost_gpu("n1"))
    new = begin_anew(there, comment=OPTED_IN, **by)
    daemon = Daemon(there, settings=WIDE)
    await daemon.start()
    for _ in range(3):
        await daemon.pass_time(20.0)
    await daemon.runner.timer_due("reconcile")
    await daemon.quiet()
    assert new.restarts == 0 and states(there) == ["closed"]
    last = Daemon(there, settings=WIDE)
    await last.start()
    await fail(last, lost_gpu(new.on[0], at_s=(there.slurm.clock.now() - AT).total_seconds()))
    assert new.restarts == 1, last.said
    assert len(last.state.past.restarts(there.job)) == 1, "the other one's restart is no part of this one's budget"
    assert len(last.state.ledger.of_job(there.job, StepKind.REQUEUE_HOLD)) == 1
    about: list[Incident] = last.state.index.about(there.job, ())
    assert len(about) == 1 and last.bugs() == daemon.bugs() == 0


async def test_a_plan_for_a_job_that_is_found_gone_in_the_store_is_ended(world: Worlds) -> None:
    """The daemon before was killed when it had saved the new job's attempt, and not that the plan is over."""
    there = silent(world(nodes=6))
    first = Daemon(there, settings=WIDE)
    await fail(first, lost_gpu("n1"))
    plan = open_plan(there)
    new = begin_anew(there, comment=OPTED_IN, **STRANGER)
    await first.pass_time(20.0)
    there.store.commit([PlanMade(plan), AttemptSeen(first.state.cluster.attempts[there.job, 0].view)])
    incident = first.state.incidents[plan.incident]
    there.store.commit([IncidentChanged(dataclasses.replace(incident, state=IncidentState.WATCHING, closed_at=None))])
    sink = FakeSink()
    daemon = Daemon(there, [sink], settings=WIDE)
    await daemon.start()
    await daemon.pass_time(20.0)
    assert new.restarts == 0 and new.admin_comment == "" and states(there) == ["closed"], daemon.said
    assert "another job's" in there.store.incident_rows()[0]["outcome"] and daemon.said.count("job-gone") == 1
    assert len(sink.all) <= 1 and "incident-finished" not in daemon.said, daemon.said
    assert there.store.open_plans() == [] and daemon.bugs() == 0


async def test_the_first_end_of_a_job_with_a_known_id_is_news(world: Worlds) -> None:
    there = silent(world(nodes=6))
    daemon = Daemon(there, settings=WIDE)
    await daemon.fleets.take()
    there.slurm.end(there.job, exit_code=1)
    await daemon.pass_time(10.0)
    await daemon.runner.timer_due("reconcile")
    await daemon.quiet()
    assert len(states(there)) == 1, daemon.said
    begin_anew(there, comment=OPTED_IN, **SAME)
    await daemon.pass_time(20.0)
    there.slurm.end(there.job, exit_code=1)
    await daemon.pass_time(10.0)
    await daemon.runner.timer_due("reconcile")
    await daemon.quiet()
    assert len(states(there)) == 2, daemon.said
    assert daemon.bugs() == 0


@pytest.mark.parametrize("by", [STRANGER, SAME])
@pytest.mark.parametrize("while_off", [False, True])
async def test_what_nodes_say_of_a_job_is_not_taken_for_what_they_said_of_another(
    world: Worlds, while_off: bool, by: dict[str, Any]
) -> None:
    """Agents and detectors make ids of evidence of the job's id, its attempt and a line, a step or a path."""
    there = silent(world(nodes=6))
    daemon = Daemon(there, settings=WIDE)
    await daemon.fleets.take()
    about = {"source": Source.JOB_LOG, "job": there.job, "attempt": 0}
    says = evidence("traceback", at_s=60.0, id="line7", text="IndexError", **about)
    await fail(daemon, says)
    there.slurm.jobs.clear()
    await daemon.pass_time(20.0)
    there.slurm.clock.advance(9 * 86400.0)
    new = begin_anew(there, **by)
    await daemon.pass_time(20.0)
    if while_off:
        daemon = Daemon(there, settings=WIDE)
        await daemon.start()
    now_s = (there.slurm.clock.now() - AT).total_seconds()
    bad = [evidence(Kind.STEP, at_s=at_s, data={"step": 5, "loss": float("nan")}, **about) for at_s in (70.0, now_s)]
    kept_by_its_node = dataclasses.replace(says, id="line9")
    gpu = dataclasses.replace(lost_gpu("n5"), where=Where(node="n5", job=there.job, attempt=0), at=later(65.0))
    await daemon.observe([kept_by_its_node, bad[0], gpu])
    seen = daemon.state.cluster.attempts[there.job, 0]
    assert not seen.pool and seen.last_step is None and not daemon.state.onsets.jobs(), "too old"
    assert all(incident.job is None for incident in daemon.state.incidents.values()), "what a node has stays its own"
    again = dataclasses.replace(says, at=there.slurm.clock.now(), seen_at=there.slurm.clock.now())
    for _ in range(2):
        await daemon.observe([again, bad[1]])
    assert [item.text for item in seen.pool] == ["IndexError"] and list(daemon.state.onsets.jobs()) == [there.job]
    kept = there.store.evidence_since(AT, job=there.job)
    assert sorted(item.at for item in kept) == sorted((says.at, kept_by_its_node.at, again.at)) and new.restarts == 0
    await daemon.quiet()
    assert daemon.bugs() == 0


@pytest.mark.parametrize("by", [STRANGER, SAME])
async def test_what_nodes_answer_about_a_job_is_not_taken_for_what_they_answered_about_another(
    world: Worlds, by: dict[str, Any]
) -> None:
    """What ranks' dumps say has an id of the job's, its attempt, the ranks and the collective's number."""
    there = silent(world(nodes=6))
    daemon = Daemon(there, settings=WIDE)

    async def answer(effect: AskNodes) -> EffectCompleted:
        now = there.slurm.clock.now()
        where = Where(job=there.job, attempt=0)
        hang = evidence("hang", id="ranks", source=Source.FLIGHT_RECORDER, text="rank 3 did not come")
        found = dataclasses.replace(hang, where=where, at=now, seen_at=now)
        return EffectCompleted(now, effect.id, evidence=(found,))

    daemon.runner.perform = {**daemon.runner.perform, AskNodes: answer}
    for again in (False, True):
        if again:
            begin_anew(there, **by)
            await daemon.pass_time(20.0)
        now = there.slurm.clock.now()
        stall = evidence(Kind.STALL, id=f"stall{again}", source=Source.PROGRESS, job=there.job, attempt=0)
        await fail(daemon, dataclasses.replace(stall, at=now, seen_at=now))
        incident = max(daemon.state.incidents.values(), key=lambda one: one.opened_at)
        assert "rank 3 did not come" in [item.text for item in incident.evidence], again
    assert len(states(there)) == 2 and daemon.bugs() == 0


@pytest.mark.parametrize("by", [STRANGER, SAME])
async def test_what_a_machine_has_stays_its_own_at_a_start_although_the_id_of_its_job_has_come_again(
    world: Worlds, by: dict[str, Any]
) -> None:
    """The daemon before saved it and was killed before it grouped it."""
    there = silent(world(nodes=6))
    daemon = Daemon(there, settings=WIDE)
    await daemon.fleets.take()
    at = there.slurm.clock.now()
    gpu = dataclasses.replace(lost_gpu("n5"), where=Where(node="n5", job=there.job, attempt=0), at=at, seen_at=at)
    there.slurm.jobs.clear()
    there.slurm.clock.advance(600.0)
    begin_anew(there, **by)
    await daemon.pass_time(20.0)
    there.store.commit([EvidenceAdded((dataclasses.replace(gpu, seen_at=there.slurm.clock.now()),))])
    later_one = Daemon(there, settings=WIDE)
    await later_one.start()
    await later_one.quiet()
    (incident,) = later_one.state.incidents.values()
    assert incident.job is None and incident.nodes == ("n5",) and later_one.bugs() == 0


@pytest.mark.parametrize("by", [STRANGER, SAME])
async def test_how_long_a_job_worked_whose_id_came_again_while_nobody_looked_is_not_known(
    world: Worlds, by: dict[str, Any]
) -> None:
    there = silent(world(nodes=6))
    first = Daemon(there, settings=WIDE)
    await first.start()
    await first.runner.timer_due("reconcile")
    await first.quiet()
    there.slurm.clock.advance(20 * 86400.0)
    begin_anew(there, **by)
    daemon = Daemon(there, settings=WIDE)
    await daemon.start()
    await daemon.pass_time(20.0)
    former = there.store.attempts(job=there.job)[0]
    assert former["state"] == END_NOT_SEEN and former["ended_at"] is not None, daemon.said


async def test_an_attempt_that_an_earlier_release_left_open_is_over(world: Worlds) -> None:
    """It took the next job with that id for the same one, and never ended what it had of this."""
    there = silent(world(nodes=6))
    daemon = Daemon(there, settings=WIDE)
    await daemon.start()
    await daemon.runner.timer_due("reconcile")
    await daemon.quiet()
    view = daemon.state.cluster.attempts[there.job, 0].view
    assert view.started_at is not None
    began = view.started_at - timedelta(days=20)
    there.store.commit([AttemptSeen(dataclasses.replace(view, user="carol", uid=1003, started_at=began))])
    await Daemon(there, settings=WIDE).start()
    former, now = there.store.attempts(job=there.job)
    assert (former["state"], now["ended_at"]) == (END_NOT_SEEN, None)
    assert began <= former["ended_at"] <= view.started_at


async def test_what_was_planned_for_a_job_stays_to_be_read_once_it_is_over(world: Worlds) -> None:
    there = silent(world(nodes=6))
    daemon = Daemon(there, settings=WIDE)
    await fail(daemon, lost_gpu("n1"))
    plan = open_plan(there)
    begin_anew(there, **STRANGER)
    await daemon.pass_time(20.0)
    for _ in range(2):
        assert states(there) == ["closed"] and there.store.open_plans() == [], daemon.said
        assert there.store.plan_of(plan.incident) == plan
        daemon = Daemon(there, settings=WIDE)
        await daemon.start()
        await daemon.pass_time(20.0)


RAN_BAD = {
    "onset": 500, "told": True, "last": 540, "prints": 5, "what": "loss is not a number", "since": to_json(AT),
    "newest": to_json(AT), "numbered": True,
}  # fmt: skip


@pytest.mark.parametrize("by", [STRANGER, SAME])
@pytest.mark.parametrize("while_off", [False, True])
async def test_numbers_that_went_bad_in_a_job_are_not_another_ones(
    world: Worlds, while_off: bool, by: dict[str, Any]
) -> None:
    """Of its checkpoints those from that step on would be moved away."""
    there = silent(world(nodes=6))
    there.store.put(BAD_NUMBERS_KEPT, {f"{there.job}.0": RAN_BAD})
    daemon = Daemon(there, settings=WIDE)
    await daemon.start()
    assert daemon.state.onsets.onset_step(there.job, 0) == 500
    there.slurm.jobs.clear()
    if not while_off:
        await daemon.pass_time(20.0)
    there.slurm.clock.advance(9 * 86400.0)
    begin_anew(there, **by)
    if while_off:
        daemon = Daemon(there, settings=WIDE)
        await daemon.start()
    await daemon.pass_time(20.0)
    assert daemon.state.onsets.onset_step(there.job, 0) is None, daemon.said
    await daemon.runner.timer_due("reconcile")
    await daemon.quiet()
    again = Daemon(there, settings=WIDE)
    await again.start()
    assert again.state.onsets.onset_step(there.job, 0) is None, "nor after a start"


@pytest.mark.parametrize("by", [STRANGER, SAME])
async def test_what_is_kept_longest_of_a_job_is_not_another_ones(world: Worlds, by: dict[str, Any]) -> None:
    """Its attempts, steps and incidents have left the memory; its failures and restarts stay there for a month."""
    there = world(nodes=6)
    daemon = Daemon(there, settings=WIDE)
    await fail(daemon, lost_gpu("n1"))
    await daemon.pass_time(20.0)
    assert states(there) == ["closed"]
    there.slurm.jobs.clear()
    for _ in range(3):
        await daemon.pass_time(2 * 86400.0)
        await daemon.runner.timer_due("reconcile")
        await daemon.quiet()
        await daemon.housekeeping()
    state = daemon.state
    assert (there.job, 0) not in state.cluster.attempts and not state.ledger.jobs() and not state.incidents
    assert len(state.past.restarts(there.job)) == 1 and state.past.of_job(there.job, without="")
    begin_anew(there, **by)
    await daemon.pass_time(20.0)
    assert not state.past.restarts(there.job) and not state.past.of_job(there.job, without=""), daemon.said
    (row,) = there.store.incident_rows()
    cause = {"cause": "fabric_link", "scope": "network", "was": "gpu_fallen_off_bus", "was_scope": "node"}
    made = Correction(at=there.slurm.clock.now(), by="root", note="", **cause)
    await daemon.runner.handle(IncidentCorrected(there.slurm.clock.now(), row, made, ""))
    assert not state.past.of_job(there.job, without=""), "what a person says of it later, neither"
    assert daemon.bugs() == 0
