"""A node that is returned to service while its agent still shows that a GPU is lost, and the job that fails on it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from in_memory.daemon import SETTINGS, Daemon, FakeSink
from in_memory.world import World
from made_records import ended, evidence

from sentinel.config.modes import Mode, Modes
from sentinel.model.records import Cause, Evidence, Source

Worlds = Callable[..., World]
OBSERVED = dataclasses.replace(SETTINGS, modes=Modes(default=Mode(drain="observe", restart="act")))
LOST: dict[str, Any] = {"word": "BAD", "code": "gpu_lost", "sentence": "a GPU is lost: gpu0"}


def no_device(there: World) -> Evidence:
    text = "RuntimeError: CUDA error: no CUDA-capable device is detected"
    said = evidence(source=Source.JOB_LOG, kind="cuda-no-device", node="n1", job=there.job, attempt=0, text=text)
    return dataclasses.replace(said, rule="cuda-no-device")


async def failed(
    there: World, word: dict[str, Any], *, held: frozenset[int] | None = None, ran_s: float | None = 1.0
) -> Daemon:
    """The job begins on a node that was returned just before, and fails there after ``ran_s`` for want of a device. None: it
    is not known when it began."""
    daemon = Daemon(there, [FakeSink()], settings=OBSERVED)
    now = there.slurm.clock.now()
    seen = daemon.live.node("n1")
    seen.state, seen.released_at, seen.clock_offset_s = "heard", now - timedelta(seconds=5), 0.0
    seen.verdict = {**word, "at_s": int(now.timestamp())}
    if held is not None:
        seen.gpus = {(there.job, 0): held}
    there.slurm.jobs[there.job].started = now.timestamp() - ran_s if ran_s is not None else 0
    await daemon.fleets.take()
    there.slurm.end(there.job, exit_code=1)
    await daemon.observe([no_device(there), ended(there.job)])
    await daemon.quiet()
    return daemon


def cause(daemon: Daemon) -> Cause:
    (verdict,) = daemon.state.verdicts.values()
    return verdict.cause


async def test_a_job_that_fails_for_want_of_a_gpu_there_is_not_its_users_fault(world: Worlds) -> None:
    there = world()
    daemon = await failed(there, LOST)
    (verdict,) = daemon.state.verdicts.values()
    assert (verdict.cause, verdict.drain) == (Cause.GPU_FALLEN_OFF_BUS, ("n1",))
    assert there.slurm.jobs[there.job].restarts == 1
    assert not there.slurm.nodes["n1"].drained, "drains are observed"
    await daemon.pass_time(60.0)
    (row,) = there.store.incident_rows()
    assert (row["state"], row["outcome"]) == ("waiting", "Observed only: drain n1.")


@pytest.mark.parametrize(
    ("word", "how"),
    [
        ({"word": "OK", "code": "ok", "sentence": "nothing speaks against this node"}, {}),
        ({"word": "UNKNOWN", "code": "telemetry", "sentence": "no telemetry"}, {}),
        # What is kept of the past, a return to service settles; the agent hears of it with its next heartbeat.
        ({"word": "BAD", "code": "xid_79", "sentence": "Xid 79 on 0000:1b:00"}, {}),
        (LOST, {"held": frozenset({4, 5})}),  # of others' GPUs
        (LOST, {"ran_s": 3600.0}),  # it worked beside that one
        (LOST, {"ran_s": None}),  # perhaps it did
    ],
    ids=["good", "unknown", "past", "others", "worked", "start-unknown"],
)
async def test_what_does_not_show_a_lost_gpu_of_the_job_excuses_nothing(
    world: Worlds, word: dict[str, Any], how: dict[str, Any]
) -> None:
    assert cause(await failed(world(), word, **how)) is Cause.USER_CONFIG


async def test_what_is_not_heard_any_more_says_nothing(world: Worlds) -> None:
    there = world()
    daemon = Daemon(there, [FakeSink()], settings=OBSERVED)
    seen = daemon.live.node("n1")
    seen.state, seen.verdict = "silent", dict(LOST)
    await daemon.fleets.take()
    there.slurm.end(there.job, exit_code=1)
    await daemon.observe([no_device(there), ended(there.job)])
    await daemon.quiet()
    assert cause(daemon) is Cause.USER_CONFIG
