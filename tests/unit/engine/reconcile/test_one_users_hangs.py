"""One user's silent jobs are no reason to leave the hung jobs of others as they are, and cost them no budget."""

from __future__ import annotations

from collections.abc import Callable

from in_memory.daemon import Daemon, FakeSink
from in_memory.world import World
from made_records import OPTED_IN, evidence

from sentinel.model.records import Evidence, Kind, Source

Worlds = Callable[..., World]


def hung(job: int, at_s: float = 0.0) -> Evidence:
    data = {"step": 250, "silent_s": 40.0, "motion": "waits"}
    return evidence(Kind.STALL, source=Source.PROGRESS, job=job, attempt=0, at_s=at_s, data=data)


async def called_hung(daemon: Daemon, at_s: float, *jobs: int) -> None:
    await daemon.observe([hung(job, at_s) for job in jobs])
    await daemon.quiet()


def told(sink: FakeSink, words: str) -> bool:
    return any(words in notice.body for notice in sink.got)


async def test_three_silent_jobs_of_one_user_do_not_keep_another_users_job_hung(world: Worlds) -> None:
    there, sink = world(nodes=8, wide=1), FakeSink()
    asleep = [there.slurm.submit(user="mallory", uid=1002, comment=OPTED_IN) for _ in range(3)]
    daemon = Daemon(there, [sink])
    await daemon.fleets.take()
    await called_hung(daemon, 0.0, there.job, *asleep)
    assert there.slurm.jobs[there.job].restarts == 1
    assert [there.slurm.jobs[job].restarts for job in asleep] == [0, 0, 0], "of their own user they are many at once"
    assert told(sink, "3 jobs of user mallory were called hung within 120 s of this one")


async def test_what_hung_hours_ago_and_is_silent_still_is_not_called_hung_just_now(world: Worlds) -> None:
    there, sink = world(nodes=8, wide=1), FakeSink()
    frozen = [there.slurm.submit(user=user, uid=uid, comment=OPTED_IN) for uid, user in enumerate("bcd", 1002)]
    daemon = Daemon(there, [sink])
    await daemon.fleets.take()
    await called_hung(daemon, 0.0, *frozen)
    for _ in range(12):
        await daemon.pass_time(1800.0)
    assert [there.slurm.jobs[job].restarts for job in frozen] == [0, 0, 0], "they hang together, as they did"
    await called_hung(daemon, 12 * 1800.0, there.job)
    assert there.slurm.jobs[there.job].restarts == 1 and daemon.bugs() == 0
    assert all(
        "3 jobs were called hung within 120 s" in notice.body for notice in sink.got if notice.data["job"] in frozen
    )


async def test_silent_jobs_of_one_user_do_not_use_up_everybodys_hour(world: Worlds) -> None:
    """Also those that the user cancels afterwards, and that Slurm forgets."""
    there, sink, at_s = world(nodes=12, wide=1), FakeSink(), 0.0
    asleep = [there.slurm.submit(user="mallory", uid=1002, comment=OPTED_IN) for _ in range(6)]
    daemon = Daemon(there, [sink])
    await daemon.fleets.take()
    for job in asleep:
        await called_hung(daemon, at_s, job)
        await daemon.pass_time(130.0)
        at_s += 130.0
        if there.slurm.jobs[job].restarts:
            del there.slurm.jobs[job]
    assert len(there.slurm.jobs.keys() & set(asleep)) == 3
    assert told(sink, "3 stops of silent jobs of user mallory in the last hour; 3 are allowed")
    await called_hung(daemon, at_s, there.job)
    assert there.slurm.jobs[there.job].restarts == 1 and daemon.bugs() == 0
    await daemon.pass_time(3600.0)
    await daemon.pass_time(60.0)
    assert [there.slurm.jobs[job].restarts for job in asleep[3:]] == [1, 1, 1], "their turn comes"
