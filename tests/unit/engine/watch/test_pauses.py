"""Silence that may be a pause: tasks and GPUs are asked whether they work, wait or stand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from in_memory.daemon import SETTINGS, FakeOrders
from in_memory.standing import look, steps, still, tasks, waiting
from in_memory.watch import Scene
from in_memory.world import World
from made_records import OPTED_IN, evidence

from sentinel.daemon.runner import Perform
from sentinel.detect.activity import Motion
from sentinel.engine import Transition
from sentinel.engine.events import EffectCompleted, TimerDue
from sentinel.engine.transition import AskHungJob, LookAtJob, ObserveFleet
from sentinel.engine.watch import jobs, routing
from sentinel.engine.watch.events import WatchStarted
from sentinel.model.records import Kind, Source

Worlds = Callable[..., World]


async def test_tasks_that_run_are_in_a_pause(world: Worlds) -> None:
    """At step 100 a job may evaluate: its tasks are asked every 2.5 s (a large job's less often in time)."""
    orders = FakeOrders({("n1", "task_states"): tasks("R", "S"), ("n2", "task_states"): tasks("D", "S")})
    scene = Scene(world(), orders=orders)
    await steps(scene, 30, last=100)
    assert await look(scene, 4.9) == [] and orders.asked == []
    for _ in range(100):
        assert await look(scene, 0.25) == []
    assert len(orders.asked) == 2 * 10


async def test_stopped_task_is_no_pause(world: Worlds) -> None:
    orders = FakeOrders({("n1", "task_states"): tasks("S", "S"), ("n2", "task_states"): tasks("S", "T")})
    scene = Scene(world(), orders=orders)
    await steps(scene, 30, last=100)
    assert (await look(scene, 6.5))[0] == Kind.STALL  # before the floor: a stopped task is not slow
    item = scene.reported[0]
    assert "rank 1 on n2: process 41 is in state T" in item.text
    assert (item.data["step"], item.data["motion"]) == (100, "stopped")
    assert item.source is Source.PROGRESS and item.at < item.seen_at
    assert {task.kind for task in scene.reported[1:]} == {Kind.TASK_STATE}


def busy(scene: Scene, orders: FakeOrders, at_s: float) -> None:
    """Rank 0 of n1 takes a core, as one that computes or one that loops does."""
    orders.answers["n1", "task_states"] = still("S", "S", cpu_s=at_s)


async def test_job_of_which_every_process_waits_is_hung_at_once(world: Worlds) -> None:
    orders = FakeOrders({(node, "task_states"): still("S", "S") for node in ("n1", "n2")})
    scene = Scene(world(), orders=orders)
    await steps(scene, 30, last=37)
    for _ in range(23):
        assert await look(scene, 0.5) == []
    assert (await look(scene, 0.7))[0] == Kind.STALL  # 12 s: the floor, not twice the usual silence
    assert scene.reported[0].data["motion"] == "waits" and "its GPUs only wait" in scene.reported[0].text


@pytest.mark.parametrize(
    ("found", "basis", "after_s"),
    [
        (None, "", 120),
        ("missing", "laggard", 120),
        ("stuck", "frozen", 120),  # all launched the same: also while nobody is inside a collective
        ("stuck", "stuck", 15),
        ("missing", "dead", 15),
    ],
)
async def test_a_young_job_that_only_waits_is_asked_and_gets_the_time_of_a_first_pause(
    world: Worlds, found: str | None, basis: str, after_s: float
) -> None:
    settings = replace(SETTINGS, judgement=replace(SETTINGS.judgement, stall_first_pause_s=120.0))
    scene = Scene(world(), orders=waiting(), settings=settings)
    asked: list[AskHungJob] = []

    async def ask(effect: AskHungJob) -> EffectCompleted:
        asked.append(effect)
        where = {"source": Source.FLIGHT_RECORDER, "job": scene.world.job, "attempt": 0}
        said = (evidence("hang", data={"kind": found, "basis": basis}, **where),) if found else ()  # type: ignore[arg-type]
        return EffectCompleted(scene.now, effect.id, evidence=said)

    scene.daemon.runner.perform = {**scene.daemon.runner.perform, AskHungJob: ask}  # type: ignore[dict-item]
    await steps(scene, 30, last=37)
    assert await look(scene, after_s - 4.0, tick_s=1.0) == [] or after_s == 15
    assert Kind.STALL in await look(scene, 8.0, tick_s=1.0) and len(asked) == 1


@pytest.mark.parametrize(
    ("gpus", "hung"),
    [
        ([{"index": 0, "utilisation": 1.0, "power_w": 200.0, "usual_w": 600.0}], True),  # spins in a collective
        ([{"index": 0, "utilisation": 1.0, "power_w": 580.0, "usual_w": 600.0}], False),  # computes
        ([{"index": 0, "utilisation": 0.0, "power_w": 90.0, "usual_w": 600.0}], False),  # the host computes
        (None, False),  # nobody knows
    ],
)
async def test_gpus_tell_a_poll_from_work(world: Worlds, gpus: object, hung: bool) -> None:
    """Every rank takes a whole core: it polls for its GPU, or it works."""
    orders = FakeOrders()
    scene = Scene(world(), orders=orders)
    await steps(scene, 30, last=37)
    for _ in range(12):
        now_s = scene.world.slurm.clock.now().timestamp()
        for node in ("n1", "n2"):
            orders.answers[node, "task_states"] = still("R", "R", cpu_s=now_s, has_gpus=True, gpus=gpus)
        await look(scene, 1.1)
    assert (scene.kinds[:1] == [Kind.STALL]) is hung


def standing(since_s: float, now_s: float, *, works: bool = False) -> dict[str, object]:
    """A node whose GPU has stood since then, or works."""
    gpu = {"index": 0, "utilisation": 1.0, "power_w": 180.0, "usual_w": 600.0, "traffic": 0.6 if works else 0.0,
           "still_s": 0.0 if works else now_s - since_s, "stood": []}  # fmt: skip
    return still("S", "S", has_gpus=True, gpus=[gpu])


async def paused_at_hundreds(scene: Scene, *, steps: int, last: int, gap_s: float) -> None:
    """The job has paused after each hundredth step for five others, and printed its last one just now."""
    await scene.fleets.take()
    at_s = [0.0]
    for step in range(last, last - steps, -1):
        at_s.append(at_s[-1] - gap_s * (6 if (step - 1) % 100 == 0 else 1))
    for back in range(steps, -1, -1):
        data, where = {"step": last - back}, {"job": scene.world.job, "attempt": 0}
        scene.live.note(evidence(Kind.STEP, at_s=at_s[back], source=Source.PROGRESS, data=data, **where))  # type: ignore[arg-type]
    scene.settled()
    scene.read(scene.world.job)
    await scene.check_jobs()


@pytest.mark.parametrize("working", [1, 6])
async def test_a_few_gpus_that_work_hide_no_hang_for_which_all_others_wait(world: Worlds, working: int) -> None:
    orders = FakeOrders()
    scene = Scene(world(), orders=orders)
    await paused_at_hundreds(scene, steps=400, last=1037, gap_s=10.0)
    for now_s in range(1, 50):
        for node in ("n1", "n2"):
            gpus = [
                {"index": n, "utilisation": 1.0, "power_w": 580.0 if (works := node == "n1" and n < working) else 180.0,
                 "usual_w": 600.0, "still_s": 0.0 if works else now_s - 1.0, "stood": []}
                for n in range(8)
            ]  # fmt: skip
            orders.answers[node, "task_states"] = still("S", "S", has_gpus=True, gpus=gpus)
        await look(scene, 1.0)
    stalls = [item for item in scene.reported if item.kind == Kind.STALL]
    assert len(stalls) == (1 if working == 1 else 0)
    if stalls:
        assert "a few GPUs work, and all others have waited for them for" in stalls[0].text


@pytest.mark.parametrize("hangs", [True, False])
async def test_in_a_long_step_one_node_is_asked_and_all_once_its_gpus_stand(world: Worlds, hangs: bool) -> None:
    orders = FakeOrders()
    scene = Scene(world(), orders=orders)
    await steps(scene, 30, last=37, gap_s=60.0)
    for now_s in range(1, 60):
        for node in ("n1", "n2"):
            orders.answers[node, "task_states"] = standing(20.0, now_s, works=not hangs or now_s < 20)
        await look(scene, 1.0)
        if scene.kinds:
            break
    if hangs:
        assert scene.kinds[0] == Kind.STALL and 32 <= now_s <= 40  # it stood for 12 s; the steps alone explain 180 s
        return
    assert scene.kinds == []
    assert {node for node, _, _ in orders.asked} == {"n1"} and len(orders.asked) <= 7


@pytest.mark.parametrize(("moved", "motion"), [(10**10, Motion.QUIET), (10**6, Motion.UNCLEAR), (None, Motion.UNCLEAR)])
async def test_a_network_that_is_quiet_tells_of_gpus_that_are_not_known(
    world: Worlds, moved: int | None, motion: Motion
) -> None:
    """Of a job that moved much before: else its collectives may take a way whose counters are not seen."""
    orders = FakeOrders()
    scene = Scene(world(), orders=orders)
    await steps(scene, 30, last=37, gap_s=10.0)

    def nodes_moved(network_bytes: int | None) -> None:
        for node in ("n1", "n2"):
            answer = still("S", "S", has_gpus=True, gpus=None, network_bytes=network_bytes)
            orders.answers[node, "task_states"] = answer

    nodes_moved(10**9)
    await look(scene, 14.0)  # one node was asked
    data, where = {"step": 38}, {"job": scene.world.job, "attempt": 0}
    scene.live.note(evidence(Kind.STEP, at_s=14.0, source=Source.PROGRESS, data=data, **where))  # type: ignore[arg-type]
    nodes_moved(10**9 + moved if moved is not None else None)
    await look(scene, 22.0)
    assert scene.live.attempts[scene.world.job, 0].silence.watched.motion is motion


async def test_one_rank_that_moves_is_no_proof(world: Worlds) -> None:
    orders = FakeOrders({(node, "task_states"): still("S", "S") for node in ("n1", "n2")})
    scene = Scene(world(), orders=orders)
    await steps(scene, 30, last=37)
    for number in range(13):
        busy(scene, orders, 1000.0 + number)
        assert await look(scene, 1.1) == []


async def test_job_that_was_seen_to_wait_and_went_on_must_wait_longer(world: Worlds) -> None:
    orders = FakeOrders({(node, "task_states"): still("S", "S") for node in ("n1", "n2")})
    scene = Scene(world(), orders=orders)
    await steps(scene, 30, last=100)  # a round step: it may evaluate
    for _ in range(14):
        assert await look(scene, 1.0) == []
    scene.live.note(
        evidence(Kind.STEP, at_s=14.0, source=Source.PROGRESS, job=scene.world.job, attempt=0, data={"step": 101})
    )
    waited_s = 0.0
    while Kind.STALL not in await look(scene, 0.5):
        waited_s += 0.5
        assert waited_s < 24.0
    assert waited_s > 12.0


async def test_a_job_that_was_wrongly_called_hung_gets_as_long_again(world: Worlds) -> None:
    orders = FakeOrders({(node, "task_states"): still("S", "S") for node in ("n1", "n2")})
    scene = Scene(world(), orders=orders)
    await steps(scene, 30, last=37)
    for _ in range(26):
        await look(scene, 0.5)
    assert scene.kinds.count(Kind.STALL) == 1
    await look(scene, 20.0)
    scene.live.note(
        evidence(Kind.STEP, at_s=33.0, source=Source.PROGRESS, job=scene.world.job, attempt=0, data={"step": 38})
    )
    for _ in range(29):  # 14.5 s, where 12 s were too long before
        await look(scene, 0.5)
    assert scene.kinds.count(Kind.STALL) == 1


async def test_job_that_writes_has_longer(world: Worlds) -> None:
    orders = FakeOrders()
    scene = Scene(world(), orders=orders)
    await steps(scene, 30, last=37)
    for number in range(29):
        for node in ("n1", "n2"):
            answer = still("S", "S")
            answer["tasks"] = [task | {"written_bytes": number * 10_000_000} for task in answer["tasks"]]  # type: ignore[union-attr, operator, attr-defined]
            orders.answers[node, "task_states"] = answer
        assert await look(scene, 1.0) == []


async def test_the_job_itself_is_asked_as_its_user_and_a_late_answer_is_added(world: Worlds) -> None:
    scene = Scene(world(), orders=waiting())
    await steps(scene, 30, last=37)
    asked: list[AskHungJob] = []
    scene.daemon.runner.perform = {**scene.daemon.runner.perform, AskHungJob: slow(asked)}
    assert await look(scene, 13.0) == [] and len(asked) == 1, "the verdict waits for the answer"
    assert (asked[0].job, asked[0].attempt, asked[0].nodes, asked[0].step_s) == (scene.world.job, 0, ("n1", "n2"), 1.0)
    assert Kind.STALL in await look(scene, 1.5), "but not for long"
    named = evidence("hang", source=Source.FLIGHT_RECORDER, job=scene.world.job, attempt=0)
    scene.apply(EffectCompleted(scene.now, asked[0].id, evidence=(named,)))
    assert scene.reported[-1] == named
    scene.apply(EffectCompleted(scene.now, asked[0].id, evidence=(replace(named, id="again"),)))
    assert scene.reported[-1] == named, "one answer"


async def test_an_answer_in_time_comes_with_the_stall(world: Worlds) -> None:
    scene = Scene(world(), orders=waiting())
    await steps(scene, 30, last=37)
    asked: list[AskHungJob] = []
    scene.daemon.runner.perform = {**scene.daemon.runner.perform, AskHungJob: slow(asked)}
    await look(scene, 13.0)
    named = evidence("hang", source=Source.FLIGHT_RECORDER, job=scene.world.job, attempt=0)
    await scene.handle(EffectCompleted(scene.now, asked[0].id, evidence=(named,)))
    assert scene.kinds[0] == Kind.STALL and scene.reported[-1] == named


async def test_nobody_is_asked_as_an_unknown_user(world: Worlds) -> None:
    scene = Scene(world(), orders=waiting())
    for record in (scene.world.slurm.jobs[scene.world.job].record,):
        record.pop("user_id")
    asked: list[AskHungJob] = []
    scene.daemon.runner.perform = {**scene.daemon.runner.perform, AskHungJob: slow(asked)}
    await steps(scene, 30, last=37)
    assert scene.live.attempts[scene.world.job, 0].view.uid is None
    assert Kind.STALL in await look(scene, 13.0) and asked == []


def slow(asked: list[AskHungJob]) -> Perform:
    """A job that does not answer by itself."""

    async def ask(effect: AskHungJob) -> None:
        asked.append(effect)

    return ask


async def test_answers_that_are_lost_do_not_end_the_watching(world: Worlds) -> None:
    """Observations, the job's own answer and the snapshot are each asked for again."""
    scene = Scene(world(), orders=waiting())
    await steps(scene, 30, last=37)
    real = scene.daemon.runner.perform
    lost: dict[type[Any], int] = {}

    def loses(kind: type[Any]) -> Perform:
        async def perform(effect: Any) -> Any:
            lost[kind] = lost.get(kind, 0) + 1
            return None if lost[kind] == 1 else await real[kind](effect)

        return perform

    scene.daemon.runner.perform = {**real, **{kind: loses(kind) for kind in (LookAtJob, AskHungJob, ObserveFleet)}}
    assert Kind.STALL in await look(scene, 200.0)
    assert set(lost) == {LookAtJob, AskHungJob, ObserveFleet}


async def test_of_nodes_that_do_not_answer_nothing_is_concluded_and_they_are_asked_again(world: Worlds) -> None:
    scene = Scene(world(), orders=FakeOrders())
    await steps(scene, 30, last=37)
    assert await look(scene, 1200.0) == []
    assert len(scene.daemon.orders.asked) > 100
    scene.daemon.orders.answers = waiting().answers
    assert Kind.STALL in await look(scene, 30.0)


async def test_a_bug_in_the_examination_of_one_job_does_not_keep_out_the_others(
    world: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(world(nodes=4), orders=waiting())
    second = scene.world.slurm.submit(nodes=2, comment=OPTED_IN)
    await steps(scene, 30, last=37)
    for back in range(29, -1, -1):
        scene.live.note(
            evidence(Kind.STEP, at_s=-back, source=Source.PROGRESS, job=second, attempt=0, data={"step": 37 - back})
        )
    real = jobs._examine

    def examine(state: Any, out: Any, key: tuple[int, int], *arguments: Any, **named: Any) -> None:
        if key[0] == scene.world.job:
            raise ZeroDivisionError("deliberate")
        real(state, out, key, *arguments, **named)

    monkeypatch.setattr(jobs, "_examine", examine)
    event, out = TimerDue(scene.now, "check-jobs"), Transition()
    with pytest.raises(ZeroDivisionError):
        scene.engine.handle(event, out)
    scene.engine.abandon(event, out)
    await scene.check_jobs()
    assert scene.live.attempts[second, 0].observed.after is not None, "the other one is examined"


async def test_a_check_that_meets_a_bug_comes_again(world: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(world())
    scene.apply(WatchStarted(scene.now))

    def broken(*_arguments: Any) -> None:
        raise ZeroDivisionError("deliberate")

    monkeypatch.setattr(routing.jobs, "check", broken)
    monkeypatch.setattr(routing.nodes, "check", broken)
    for timer in ("check-jobs", "check-nodes"):
        out = Transition()
        with pytest.raises(ZeroDivisionError):
            scene.engine.handle(TimerDue(scene.now, timer), out)
        assert [effect.id for effect in out.effects] == [timer]
