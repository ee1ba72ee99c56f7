"""What is other by the time at which a plan goes on: modes, a node proven good, an agent's word, Slurm's answer."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from in_memory.daemon import WIDE, Daemon, FakeSink, fail, silent
from in_memory.world import Fate, World
from made_records import AT, ended, evidence, fleet, incident, job, lost_gpu, node, verdict

from sentinel import policy
from sentinel.adapters.slurm.process import Answer, SlurmSaidNo
from sentinel.config.modes import CauseMode
from sentinel.config.settings import Limits, Mode, Modes
from sentinel.engine.drain_reasons import DRAIN_REASONS
from sentinel.engine.watch.events import HeartbeatReceived
from sentinel.errors import Unavailable
from sentinel.model.intent import Intent
from sentinel.model.records import Kind, Source, StepKind
from sentinel.model.vocabulary import PROLOG_ERROR
from sentinel.policy import Situation

Worlds = Callable[..., World]
OBSERVE = dataclasses.replace(WIDE, modes=Modes(default=Mode("observe", "observe")))


def drained(there: World) -> set[str]:
    return {name for name, node in there.slurm.nodes.items() if node.drained}


async def hear(daemon: Daemon, name: str, word: str) -> None:
    at = daemon.world.slurm.clock.now()
    at_s = (at - AT).total_seconds()
    said = {"word": word, "code": "GPU", "sentence": "a GPU is gone"}
    await daemon.runner.handle(HeartbeatReceived(at, name, at_s, verdict=said, boot="b", sent_s=at_s))


class Refusing:
    """Slurm's verbs, of which some requests about nodes are refused."""

    def __init__(self, inner: Any, *states: str) -> None:
        self._inner, self._states = inner, states

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def set_node(self, node: str, state: str, reason: str) -> None:
        if state in self._states:
            raise SlurmSaidNo(Answer.OTHER, "slurm_update error: Unspecified error")
        await self._inner.set_node(node, state, reason)


async def test_a_drain_that_slurm_refuses_is_not_told_as_done(world: Worlds) -> None:
    there, sink = world(nodes=6), FakeSink()
    daemon = Daemon(there, [sink], settings=WIDE)
    there.slurm._verbs = Refusing(there.slurm._verbs, "DRAIN")
    await fail(daemon, lost_gpu("n5"))
    assert drained(there) == set() and sink.all
    assert all(notice.data["drained"] == [] for notice in sink.all)
    assert "Failed: drain n5: " in sink.all[-1].data["operator_text"]


async def test_operators_are_told_of_a_lost_node_that_slurm_does_not_set_down(world: Worlds) -> None:
    there, sink = world(nodes=6), FakeSink()
    daemon = Daemon(there, [sink], settings=WIDE)
    there.slurm._verbs = Refusing(there.slurm._verbs, "DRAIN", "DOWN")
    there.slurm.lose("n5")
    gone = evidence(Kind.NODE_UNREACHABLE, node="n5", source=Source.PROBE, text="slurmd does not answer")
    await fail(daemon, gone)
    assert drained(there) == set() and "Failed: drain n5: " in sink.all[-1].data["operator_text"]


class KillBefore(Fate):
    """Killed right before the first request of this name."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def before(self, name: str) -> int:
        if self.kill_at is None and self.name in name:
            self.kill_at = self.count
        return super().before(name)


@pytest.mark.parametrize("now", ["observe", "act"])
async def test_what_was_planned_under_act_is_asked_about_anew_by_a_daemon_that_observes(
    world: Worlds, now: str
) -> None:
    there = silent(world(nodes=6))
    fate = KillBefore("set_node")
    first = Daemon(there, settings=WIDE, fate=fate)
    await first.start()
    await first.fleets.take()
    await first.observe([lost_gpu("n1")])
    while not fate.dead:
        await asyncio.sleep(0.05)
    assert drained(there) == set() and there.slurm.jobs[there.job].restarts == 0
    second = Daemon(there, settings=OBSERVE if now == "observe" else WIDE)
    await second.start()
    await second.quiet()
    await second.pass_time(60.0)
    done = drained(there), there.slurm.jobs[there.job].restarts
    assert done == ((set(), 0) if now == "observe" else ({"n1"}, 1))


@pytest.mark.parametrize("paused", [False, True])
async def test_a_drain_that_slurm_did_not_take_is_not_done_once_its_node_is_proven_good(
    world: Worlds, paused: bool
) -> None:
    there = silent(world(nodes=6))
    daemon = Daemon(there, settings=WIDE)
    inner, away = there.slurm.drain, [True]

    async def drain(name: str, reason: str) -> None:
        if away:
            if paused and not daemon.state.paused:
                await daemon.runner.command("pause", "olga")
            raise Unavailable("slurmctld does not answer")
        await inner(name, reason)

    there.slurm.drain = drain  # type: ignore[method-assign]
    await hear(daemon, "n5", "BAD")
    await daemon.fleets.take()
    await daemon.observe([lost_gpu("n5")])
    await asyncio.sleep(600.0)
    await daemon.fleets.take()
    await hear(daemon, "n5", "OK")
    await asyncio.sleep(60.0)
    await daemon.fleets.take()
    away.clear()
    if paused:
        await daemon.runner.command("resume", "olga")
    await daemon.quiet()
    await daemon.pass_time(30.0)
    assert "n5" in daemon.state.called_good and drained(there) == set()


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        pytest.param("released", True, id="released"),
        pytest.param("OK", True, id="its-agents-word"),
        pytest.param("released", False, id="no-snapshot-since-the-last-try"),
    ],
)
async def test_a_drain_that_is_tried_again_beside_a_step_of_the_job_is_not_done_once_its_node_is_proven_good(
    world: Worlds, word: str, shown: bool
) -> None:
    """The job is being stopped all the while: its own step is under way."""
    there = world(nodes=8, wide=3)
    daemon = Daemon(there, settings=WIDE)
    drain, defer, refuses, stops = there.slurm.drain, there.slurm.defer, asyncio.Event(), asyncio.Event()
    answers = asyncio.Event()

    async def slow_drain(name: str, reason: str) -> None:
        if name == "n2" and not answers.is_set():
            refuses.set()
            raise Unavailable("slurmctld does not answer")
        await drain(name, reason)

    async def slow_defer(number: int) -> None:
        await stops.wait()
        await defer(number)

    there.slurm.drain, there.slurm.defer = slow_drain, slow_defer  # type: ignore[method-assign]
    await hear(daemon, "n2", "BAD")
    await daemon.fleets.take()
    await daemon.observe([lost_gpu("n1")])
    await asyncio.sleep(8.0)
    await daemon.observe([lost_gpu("n2")])
    await refuses.wait()
    if word == "OK":
        await hear(daemon, "n2", "OK")
    else:
        daemon.live.node("n2").released_at = there.slurm.clock.now()
    if shown:
        await asyncio.sleep(1.0)
        await daemon.fleets.take()
    answers.set()
    await asyncio.sleep(10.0)  # longer than the longest pause before another try
    assert drained(there) == {"n1"}
    stops.set()
    await daemon.quiet()
    assert drained(there) == {"n1"}


@pytest.mark.parametrize("killed", [False, True])
async def test_a_node_whose_agent_takes_its_verdict_back_is_not_drained_also_by_the_next_daemon(
    world: Worlds, killed: bool
) -> None:
    there = silent(world(nodes=6))
    narrow = dataclasses.replace(WIDE, limits=Limits(drain_count=1, drain_fraction=1.0))
    there.slurm.nodes["n6"].drained, there.slurm.nodes["n6"].reason = True, "sentinel:old gpu_memory_ecc"
    daemon = Daemon(there, settings=narrow)
    await hear(daemon, "n5", "BAD")
    await fail(daemon, lost_gpu("n5"))
    await daemon.pass_time(20.0)
    assert drained(there) == {"n6"}
    if killed:
        daemon = Daemon(there, settings=narrow)
        await daemon.start()
        await daemon.quiet()
    await hear(daemon, "n5", "OK")
    await daemon.pass_time(20.0)
    there.slurm.nodes["n6"].drained = False
    await daemon.pass_time(40.0)
    assert drained(there) == set()


def test_a_component_in_a_partition_that_is_only_observed_keeps_its_job_from_being_requeued() -> None:
    parts = [
        dataclasses.replace(job(101, nodes=("n3",), partition="cpu"), het=101),
        dataclasses.replace(job(102, nodes=("n1", "n2"), partition="train"), het=101),
    ]
    nodes = [node("n1"), node("n2"), node("n3", partitions=("cpu",)), *(node(f"n{index}") for index in range(4, 9))]
    made = policy.decide(
        verdict(drain=("n1",)),
        incident(ended(102), job=102, nodes=("n1",)),
        Situation(fleet=fleet(nodes, parts), job=parts[1], intent=Intent(restart=True), last_step=250),
        limits=Limits(drain_fraction=1.0),
        modes=Modes(partitions={"cpu": Mode("observe", "observe"), "train": Mode("act", "act")}),
        act_confidence=0.6,
        now=AT,
    )
    assert StepKind.REQUEUE_HOLD not in {step.kind for step in made.to_do}


@pytest.mark.parametrize("how", ["acts", "paused", "by cause"])
async def test_no_reason_is_written_where_nothing_may_be_drained(world: Worlds, how: str) -> None:
    there = silent(world(nodes=6))
    settings = WIDE
    if how == "by cause":
        own = Modes(default=Mode("act", "act", {"gpu_fallen_off_bus": CauseMode(drain="observe")}))
        settings = dataclasses.replace(WIDE, modes=own)
    daemon = Daemon(there, settings=settings)
    if how == "paused":
        await daemon.runner.command("pause", "olga")
    there.slurm.nodes["n5"].drained, there.slurm.nodes["n5"].reason = True, PROLOG_ERROR
    await fail(daemon, lost_gpu("n5"))
    await daemon.runner.timer_due(DRAIN_REASONS)
    await daemon.quiet()
    assert (there.slurm.nodes["n5"].reason == PROLOG_ERROR) is (how != "acts")
