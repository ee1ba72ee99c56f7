"""Bad numbers in a job that goes on: told once while it runs, ended only where somebody asked for it, begun before them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from in_memory.daemon import SETTINGS, Daemon, incidents_of
from in_memory.numbers import CALM, Training, gone, steps
from in_memory.world import Fate, World
from made_records import ended, evidence

from sentinel.config.settings import Mode, Modes, Recovery
from sentinel.model.records import Kind, Source, StepKind

Worlds = Callable[..., World]
RESTART = dataclasses.replace(SETTINGS, recovery=Recovery(bad_numbers="restart"))


def kinds(there: Training) -> set[str]:
    rows = (row for incident in there.world.store.incident_ids() for row in there.world.store.steps_of(incident))
    return {str(row["kind"]) for row in rows}


async def test_its_people_are_told_while_it_runs_and_nothing_is_done(world: Worlds) -> None:
    there = Training(world())
    await there.prints(*steps(*CALM), *gone(4, 61))
    assert there.rows() == [] and there.sink.got == []
    await there.prints(*gone(40, 65))
    (row,), (told,) = there.rows(), there.sink.got
    assert (row["cause"], row["scope"], row["onset_step"]) == ("numerical_nan", "application", 61)
    assert there.this.state == "RUNNING" and there.this.restarts == 0 and kinds(there) == set()
    assert "Numbers went bad at step 61." in told.body and "goes on and is not stopped" in told.body
    assert "loss nan since step 61, in 5 printed steps" in told.body


@pytest.mark.parametrize("bad", [1, 4])
async def test_steps_that_are_skipped_disturb_nobody(world: Worlds, bad: int) -> None:
    there = Training(world())
    lines = steps(*CALM)
    for again in range(6):
        lines += [*gone(bad, 100 + 10 * again), *steps(2.0, 2.01, first=100 + 10 * again + bad)]
    await there.prints(*lines)
    assert there.rows() == [] and there.sink.got == []


async def test_loss_scaler_that_looks_for_its_scale_disturbs_nobody(world: Worlds) -> None:
    there = Training(world())
    lines = []
    for n in range(33):
        scale = 2 ** (33 - n)
        lines.append(
            f"[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: {scale}, reducing to {scale // 2}"
        )
        lines += gone(1, 1 + n)
    await there.prints(*lines, *steps(*CALM, first=34))
    assert there.rows() == [] and there.sink.got == []


async def test_gradients_that_are_none_are_told_where_the_loss_is_hidden(world: Worlds) -> None:
    there = Training(world())
    form = "step: {n:2}  loss:  {loss}  grad_norm:  {norm}  memory: 30.1GiB"
    await there.prints(*(form.format(n=n, loss=2.5, norm=1.2) for n in range(1, 40)))
    await there.prints(*(form.format(n=n, loss=0.0, norm="nan") for n in range(40, 46)))
    (row,) = there.rows()
    assert row["onset_step"] == 40 and "grad norm nan since step 40" in there.sink.got[0].body


async def test_restart_from_before_the_onset_where_it_is_asked_for(world: Worlds) -> None:
    there = Training(world(), settings=RESTART)
    await there.prints(*steps(*CALM, first=190), *gone(8, 250))
    (row,), (told, running) = there.rows(), there.sink.all
    assert row["onset_step"] == 250 and there.this.restarts == 1 and there.this.state == "RUNNING"
    chosen = there.world.store.steps_done([StepKind.CHOOSE_CHECKPOINT], job=there.job)
    assert [found["attempt"] for found in chosen] == [0] and there.this.excluded == ()
    assert "Numbers went bad at step 250." in told.body and "Restarts from step 200" in told.body
    assert "Runs again from step 200" in running.body


async def test_comment_of_the_job_decides_before_the_site(world: Worlds) -> None:
    there = Training(world(), settings=RESTART, bad_numbers="hold")
    await there.prints(*steps(*CALM), *gone(8, 61))
    assert there.this.held and there.this.state == "PENDING" and len(there.sink.got) == 1
    assert there.rows()[0]["state"] == "held"


@pytest.mark.parametrize("asked", [{"restart": False}, {}])
async def test_who_may_not_be_restarted_is_told(world: Worlds, asked: dict[str, Any]) -> None:
    observe = dataclasses.replace(RESTART, modes=Modes(default=Mode()))
    there = Training(world(), settings=RESTART if asked else observe, **asked)
    await there.prints(*steps(*CALM), *gone(8, 61))
    assert there.this.state == "RUNNING" and there.this.restarts == 0 and kinds(there) == set()
    assert len(there.sink.got) == 1


async def test_crash_after_it_was_told_is_another_failure_that_begins_before_the_onset(world: Worlds) -> None:
    there = Training(world())
    await there.prints(*steps(*CALM, first=190), *gone(8, 250))
    there.world.slurm.clock.advance(3600.0)
    there.restart_daemon()  # the onset is in the store
    await there.daemon.start()
    await there.prints("ValueError: loss is not finite")
    there.world.slurm.end(there.job, exit_code=1)
    await there.says(ended(there.job, at_s=there.now_s))
    first, second = there.rows()
    assert (first["state"], second["cause"], second["onset_step"]) == ("closed", "numerical_nan", 250)
    assert there.sink.stages[1:] == ["restarting", "running again"] and there.this.restarts == 1


async def test_crash_a_moment_after_it_was_told_is_judged_as_well(world: Worlds) -> None:
    there = Training(world())
    await there.prints(*steps(*CALM, first=190), *gone(8, 250))
    there.world.slurm.end(there.job, exit_code=1)
    await there.says(ended(there.job, at_s=there.now_s))
    _, second = there.rows()
    assert (second["cause"], second["onset_step"]) == ("numerical_nan", 250) and there.this.restarts == 1


async def test_node_lost_later_is_its_own_cause_and_the_restart_still_begins_before_the_onset(world: Worlds) -> None:
    there = Training(world())
    await there.prints(*steps(*CALM, first=190), *gone(8, 250))
    there.world.slurm.clock.advance(600.0)
    lost = evidence(Kind.NODE_UNREACHABLE, source=Source.PROBE, node="n2", at_s=there.now_s)
    await there.says(lost)
    _, second = there.rows()
    assert (second["cause"], second["onset_step"]) == ("node_failure", 250) and there.this.restarts == 1


async def test_hardware_that_speaks_is_the_cause_and_the_job_is_not_left_on_it(world: Worlds) -> None:
    there = Training(world())
    await there.prints(*steps(*CALM, first=190), *gone(3, 250))
    xid = evidence(Kind.XID, node="n2", at_s=there.now_s, data={"xid": 48, "pci": "0000:3b:00"}, text="Xid 48: DBE")
    assert await there.daemon.observe([xid, *there.read(gone(4, 253))])
    await there.quiet()
    causes = {row["cause"] for row in there.rows()}
    assert causes == {"gpu_memory_ecc"} and there.world.slurm.nodes["n2"].drained
    assert there.this.restarts == 1 and "n2" not in there.this.on and there.rows()[0]["onset_step"] == 250


async def test_same_step_again_elsewhere_is_the_program_and_held(world: Worlds) -> None:
    there = Training(world(nodes=6), settings=RESTART)
    await there.prints(*steps(*CALM, first=190), *gone(8, 250))
    assert there.this.restarts == 1
    there.this.on = ("n3", "n4")  # other machines
    there.restart_daemon()  # what came before is in the store
    await there.daemon.start()
    await there.prints(*steps(*CALM[:40], first=210), *gone(8, 250))
    first, second = there.rows()
    assert (first["onset_step"], second["onset_step"], second["state"]) == (250, 250, "held")
    assert there.this.held and there.this.restarts == 2 and second["culprit_nodes"] == []
    verdict = there.world.store.last_verdict(second["id"])
    assert verdict is not None and any("at step 250 on 2 other nodes before" in g.note for g in verdict.grounds)


async def test_same_step_again_and_again_on_the_same_machines_ends_held(world: Worlds) -> None:
    there = Training(world(), settings=RESTART)
    for attempt in range(3):
        assert there.this.restarts == attempt and there.this.state == "RUNNING"
        await there.prints(*steps(*CALM[:40], first=210), *gone(8 + attempt, 250))  # it goes on for longer each time
    assert there.this.held and "without a step gained" in there.sink.got[-1].body


async def test_numbers_that_follow_one_machine_make_it_a_suspect(world: Worlds) -> None:
    there = Training(world(nodes=6), settings=RESTART)
    for attempt, (on, first) in enumerate([(("n1", "n2"), 250), (("n2", "n3"), 400), (("n2", "n4"), 700)]):
        this = there.this
        assert (this.restarts, this.state) == (attempt, "RUNNING")
        this.on = on
        await there.prints(*steps(*CALM[:40], first=first - 40), *gone(8, first))
    last = there.rows()[-1]
    assert last["culprit_nodes"] == ["n2"] and there.this.excluded == ("n2",) and there.this.restarts == 3
    assert not there.world.slurm.nodes["n2"].drained
    verdict = there.world.store.last_verdict(last["id"])
    assert verdict is not None and verdict.suspect == ("n2",) and verdict.drain == ()


async def scene(there: Training) -> None:
    """The same lines in three batches; what is not acknowledged comes again, from its beginning, as an agent sends it."""
    lines = [*steps(*CALM[:5], first=245), *gone(9, 250)]
    sent = there.read(lines)
    for part in (sent[:7], sent[7:13], sent[13:]):
        try:
            await there.daemon.fleets.take()
            done = await there.daemon.observe(part)
        except BaseException:  # noqa: BLE001 - killed
            done = False
        if not done:
            await there.daemon.quiet()
            there.restart_daemon()
            await there.daemon.start()
            await there.daemon.fleets.take()
            assert await there.daemon.observe(part)
    await there.daemon.quiet()


def end(there: Training) -> dict[str, Any]:
    return {
        "job": (there.this.state, there.this.held, there.this.restarts),
        "incidents": {name: found[::2] for name, found in incidents_of(there.world.store).items()},
        "onsets": [row["onset_step"] for row in there.rows()],
        "told": sorted({notice.id for notice in there.sink.got}),
        "resume": there.world.resume.files.get(there.job),
    }


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_killed_at_every_call_while_numbers_go_bad(world: Worlds, after: bool) -> None:
    whole = Training(world(), fate=(uncut := Fate()))
    await scene(whole)
    wanted = end(whole)
    assert wanted["job"] == ("RUNNING", False, 0) and wanted["onsets"] == [250] and len(wanted["told"]) == 1
    calls, wrong = uncut.count, []
    for cut in range(calls):
        fate = Fate(kill_at=cut, after=after)
        there = Training(world(), fate=fate)
        killed = there.daemon
        await scene(there)
        if there.daemon is killed:  # it died in its own tasks, after all was acknowledged
            there.restart_daemon()
            await there.daemon.start()
        await there.quiet()
        if (found := end(there)) != wanted:
            wrong.append((cut, fate.names[-1], {k: (found[k], wanted[k]) for k in wanted if found[k] != wanted[k]}))
    assert not wrong, wrong[:3]


async def test_daemon_started_between_two_bad_steps_knows_where_they_began(world: Worlds) -> None:
    there = Training(world())
    await there.prints(*steps(*CALM), *gone(3, 61))
    there.restart_daemon()
    await there.daemon.start()
    await there.prints(*gone(8, 64))
    (row,) = there.rows()
    assert row["onset_step"] == 61 and len(there.sink.got) == 1
    again = Daemon(there.world, [there.sink])
    await again.start()
    await again.quiet()
    assert len(there.sink.got) == 1
