"""Jobs that Slurm shows and of which no attempt was seen: refused by a prolog and requeued, or not begun yet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from in_memory.views import ADA, BOB, OPERATOR, Shown, name_people
from in_memory.world import World
from made_records import evidence, incident, verdict

from sentinel.daemon.api.status import dependents
from sentinel.errors import UserError
from sentinel.model import changes
from sentinel.model.records import Culprits, Kind, Source, Verdict

Worlds = Callable[..., World]


@pytest.fixture(autouse=True)
def people(monkeypatch: pytest.MonkeyPatch) -> None:
    name_people(monkeypatch)


async def refused(world: Worlds) -> tuple[Shown, int]:
    """A job that insists on n2, which its prolog drained."""
    shown = Shown(world(nodes=4))
    slurm = shown.world.slurm
    slurm.cancel(shown.world.job)
    slurm.person_drains("n2", "sentinel:prolog gpu_lost")
    number = slurm.submit(nodes=2, required=("n2", "n3"), user="ada")
    slurm.jobs[number].restarts = 1
    await shown.daemon.fleets.take()
    return shown, number


@pytest.mark.parametrize("uid", [ADA, OPERATOR])
async def test_a_job_of_which_no_attempt_was_seen_is_shown_as_slurm_has_it(world: Worlds, uid: int) -> None:
    shown, number = await refused(world)
    seen = await shown("why", uid, what=str(number))
    assert seen["asked"] == {"kind": "job", "name": str(number)} and seen["incident"] is None and seen["attempts"] == []
    row = seen["slurm"]
    assert (row["job"], row["attempt"], row["state"], row["user"]) == (number, 1, "pending", "ada")
    assert "own --nodelist names n2, which is drained" in row["waits_for"]
    assert row["out_of_service"] == [{"node": "n2", "state": "drained", "reason": "sentinel:prolog gpu_lost"}]
    listed = await shown("jobs", uid, job=number)
    assert listed["attempts"] == [] and listed["slurm"] == row


async def test_another_users_job_is_not_known(world: Worlds) -> None:
    shown, number = await refused(world)
    with pytest.raises(UserError, match="not known"):
        await shown("why", BOB, what=str(number))
    assert (await shown("jobs", BOB, job=number))["slurm"] is None
    assert (await shown("jobs", OPERATOR, job=4711))["slurm"] is None


async def test_a_job_whose_attempts_were_seen_is_shown_by_these(world: Worlds) -> None:
    shown = Shown(world())
    await shown.daemon.fleets.take()
    assert (await shown("why", what="201"))["slurm"] is None and (await shown("jobs", job=201))["slurm"] is None


async def test_a_refusal_that_a_node_told_of_is_shown_to_the_jobs_user_alone(world: Worlds) -> None:
    shown, number = await refused(world)
    told = [{"job": number, "attempt": 0, "reason": "gpu_lost: a GPU is lost", "ago_s": 5.0}]
    shown.prologs.refusals.heard("n2", told, shown.world.slurm.clock.now(), shown.daemon.live)
    for answer in (await shown("why", ADA, what=str(number)), await shown("jobs", ADA, job=number)):
        (one,) = answer["refused"]
        assert (one["node"], one["attempt"], one["reason"]) == ("n2", 0, "gpu_lost: a GPU is lost")
    assert (await shown("jobs", BOB, job=number))["refused"] == []


@pytest.mark.parametrize(
    ("becomes", "words"),
    [
        (
            "requeued",
            "the job was requeued: it resumes from its newest checkpoint by itself; the newest save that was seen",
        ),
        ("over", "did not requeue the job: sentinel why"),
        ("gone", "by the site's rules. No node"),
    ],
)
async def test_a_preempted_attempt_says_whether_its_job_comes_back(world: Worlds, becomes: str, words: str) -> None:
    shown = Shown(world())
    there, live = shown.world, shown.daemon.live
    await shown.daemon.fleets.take()
    seen = live.attempts[there.job, 0]
    live.note(evidence(Kind.CHECKPOINT_SAVED, source=Source.JOB_LOG, job=there.job, attempt=0, data={"step": 250}))
    if becomes == "over":
        there.slurm.end(there.job, state="PREEMPTED")
    elif becomes == "requeued":
        there.slurm.back_to_queue(there.slurm.jobs[there.job], held=False)
    else:
        there.slurm.purge(there.job)
    await shown.daemon.pass_time(5.0)
    seen.view = replace(seen.view, state="preempted")
    there.store.save_attempt(seen.view, first_step=None, last_step=None, step_time_s=None)
    (row,) = (await shown("jobs", job=there.job))["attempts"]
    assert row["state"] == "preempted" and words in row["preemption"] and "No node is to blame" in row["preemption"]
    assert ("step 250" in row["preemption"]) is (becomes == "requeued")


N1 = Culprits(("n1",))


@pytest.mark.parametrize(
    ("attempt", "judged"),
    [
        (0, verdict(drain=("n1",))),
        (0, replace(verdict(suspect=("n1",)), culprits=N1)),
        (0, None),
        (1, verdict(drain=("n1",))),
    ],
)
async def test_a_preempted_job_beside_whose_end_a_node_is_blamed_is_not_told_that_none_is(
    world: Worlds, attempt: int, judged: Verdict | None
) -> None:
    shown = Shown(world())
    there = shown.world
    await shown.daemon.fleets.take()
    seen, now = shown.daemon.live.attempts[there.job, 0], there.slurm.clock.now()
    seen.view = replace(seen.view, state="preempted", ended_at=now)
    there.store.save_attempt(seen.view, first_step=None, last_step=None, step_time_s=None)
    found = replace(incident(job=there.job, attempt=attempt), opened_at=now, updated_at=now)
    told = [changes.VerdictReached("inc1", judged, now)] if judged is not None else []
    there.store.commit([changes.IncidentChanged(found), *told])
    (row,) = (await shown("jobs", job=there.job))["attempts"]
    assert ("No node is to blame" in row["preemption"]) is (attempt == 1)
    assert row["preemption"].endswith("one of the job's restarts was used.")


@pytest.mark.parametrize("user", ["bob", "ada"])
async def test_a_preempted_job_is_not_said_to_come_back_as_a_later_one_with_its_id(world: Worlds, user: str) -> None:
    shown = Shown(world())
    there, live = shown.world, shown.daemon.live
    await shown.daemon.fleets.take()
    there.slurm.clock.advance(60.0)
    former = replace(live.attempts[there.job, 0].view, state="preempted", ended_at=there.slurm.clock.now(), user="ada")
    live.attempts[there.job, 0].view = former
    there.store.save_attempt(former, first_step=None, last_step=None, step_time_s=None)
    there.slurm.jobs.clear()
    there.slurm.clock.advance(600.0)
    assert there.slurm.submit(nodes=2, user=user) == there.job
    await shown.daemon.pass_time(5.0)
    view = live.fleet.jobs[there.job]  # type: ignore[union-attr]
    if user == "ada":  # of one user's jobs only attempts tell them apart
        there.store.save_attempt(view, first_step=None, last_step=None, step_time_s=None)
    there.slurm.back_to_queue(there.slurm.jobs[there.job], held=False)
    await shown.daemon.pass_time(5.0)
    (row,) = [one for one in (await shown("jobs", job=there.job))["attempts"] if one["state"] == "preempted"]
    assert "by the site's rules. No node" in row["preemption"]


async def test_a_comment_that_is_not_understood_is_shown_before_the_job_fails(world: Worlds) -> None:
    shown, waiting = await refused(world)
    slurm = shown.world.slurm
    running = slurm.submit(nodes=1, user="ada")
    for number in (waiting, running):
        slurm.jobs[number].record["comment"] = "{'sentinel': {'restart': true}}"
    slurm.submit(nodes=1, user="bob")
    await shown.daemon.fleets.take()
    told = [(await shown("jobs", ADA, job=waiting))["slurm"], (await shown("why", ADA, what=f"{waiting}"))["slurm"]]
    view = shown.daemon.live.fleet.jobs[running]  # type: ignore[union-attr]
    shown.daemon.live.see_attempt(view)
    shown.world.store.save_attempt(view, first_step=None, last_step=None, step_time_s=None)
    for seen in (await shown("jobs", ADA, job=running), await shown("why", ADA, what=f"{running}")):
        told += seen["attempts"]
    assert len(told) == 4 and all("is not JSON" in row["comment_problem"] for row in told)
    for uid, ids in ((ADA, [waiting, running]), (OPERATOR, [waiting, running]), (BOB, [])):
        assert (await shown("status", uid))["comment_problems"] == sorted(ids)
    slurm.cancel(running)
    await shown.daemon.fleets.take()
    assert shown.daemon.live.fleet.jobs[running].state == "cancelled"  # type: ignore[union-attr]
    assert (await shown("status"))["comment_problems"] == [waiting], "what has ended asks for nothing any more"


async def test_a_task_of_an_array_is_found_by_the_id_that_squeue_shows(world: Worlds) -> None:
    """Slurm gives each task an id of its own, which only scontrol shows."""
    shown = Shown(world())
    slurm = shown.world.slurm
    task = slurm.jobs[slurm.submit(nodes=1, user="ada", array=(440, 2))]
    await shown.daemon.fleets.take()
    assert f"{task.id}" != "440_2"
    why = await shown("why", ADA, what="440_2")
    assert why["asked"] == {"kind": "job", "name": f"{task.id}"} and why == await shown("why", ADA, what=f"{task.id}")
    assert await shown("jobs", ADA, job="440_2") == await shown("jobs", ADA, job=task.id)
    for other in ("440_3", "441_2", "440_", "_2", "440_2_1"):
        with pytest.raises(UserError, match="not known"):
            await shown("why", ADA, what=other)
        with pytest.raises(UserError, match="is no id of a job"):
            await shown("jobs", ADA, job=other)
    with pytest.raises(UserError, match="not known"):
        await shown("why", BOB, what="440_2")


async def test_doctor_hears_of_chains_that_a_failure_would_let_go(world: Worlds) -> None:
    """Also those by singleton, which names no job."""
    shown = Shown(world(nodes=4))
    slurm = shown.world.slurm
    first = slurm.jobs[shown.world.job]
    chained, other = (slurm.submit(nodes=1, held=True, user="ada") for _ in range(2))
    for number, name in ((chained, first.record["name"]), (other, "other")):
        same = {key: first.record[key] for key in ("user_name", "user_id") if key in first.record}
        slurm.jobs[number].record |= {**same, "name": name, "dependency": "singleton(unfulfilled)"}
    await shown.daemon.fleets.take()
    assert dependents(shown.daemon.live.fleet) == [{"job": chained, "on": first.id, "kind": "singleton"}]
