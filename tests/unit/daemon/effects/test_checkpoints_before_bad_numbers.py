"""Bad numbers on the whole way: step lines, the verdict with its onset, the choice before it; held where there is none."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from in_memory.daemon import Daemon, FakeOrders, FakeSink
from in_memory.world import World
from made_records import ended, evidence
from shipped import shipped_signatures

from sentinel.checkpoints.records import Part
from sentinel.config.settings import Recovery
from sentinel.daemon.effects.checkpoints import FleetCheckpoints
from sentinel.errors import Unavailable
from sentinel.evidence.logs.reader import LogReader
from sentinel.log import Log
from sentinel.model.records import Evidence, JobView, Scalar, Source, StepKind, Where

Worlds = Callable[..., World]
SIGNATURES = shipped_signatures()
ROOT = "/shared/run"
COMMENT = json.dumps({"sentinel": {"restart": True, "global": [ROOT]}})


class Nodes(FakeOrders):
    """Agents that list one shared folder; silent where ``steps`` is None."""

    def __init__(self, steps: tuple[int, ...] | None) -> None:
        super().__init__()
        self.steps = steps

    async def ask(self, node: str, kind: str, arguments: Mapping[str, object], *, deadline_s: float) -> object:
        self.asked.append((node, str(kind), arguments))
        if self.steps is None:
            raise Unavailable(f"the agent of {node} is not connected")
        if str(kind) != "inventory":
            return {"moved": []}
        return {"listings": [[self._part(node, step).to_json() for step in self.steps]]}

    @staticmethod
    def _part(node: str, step: int) -> Part:
        return Part(
            host=node, root=ROOT, path=f"{ROOT}/step-{step}", key=f"step-{step}", step=step, tier="global", format="dcp",
            bytes=1000, valid=True, level="content", reason="", world_size=1,
        )  # fmt: skip


class Later:
    """The daemon's choice of checkpoints, which needs the daemon, which needs it."""

    def __init__(self) -> None:
        self.inner: FleetCheckpoints | None = None

    async def choose(self, task: Any, job: JobView) -> Mapping[str, Scalar]:
        assert self.inner is not None
        return await self.inner.choose(task, job)

    async def quarantine(self, task: Any, job: JobView, chosen: Mapping[str, Scalar]) -> Mapping[str, Scalar]:
        assert self.inner is not None
        return await self.inner.quarantine(task, job, chosen)


class Case:
    def __init__(self, world: World, steps: tuple[int, ...] | None, *, storage_s: float = 600.0) -> None:
        self.world, self.sink = world, FakeSink()
        there = Later()
        world.checkpoints = there  # type: ignore[assignment]
        world.slurm.cancel(world.job)
        self.job = world.slurm.submit(nodes=1, comment=COMMENT, required=("n1",))
        self.daemon = Daemon(world, [self.sink], orders=Nodes(steps))
        there.inner = FleetCheckpoints(
            orders=self.daemon.orders, live=self.daemon.live, fleets=self.daemon.fleets, store=world.store,
            recovery=Recovery(storage_s=storage_s), log=Log(self.daemon.stream),
        )  # fmt: skip

    async def fails(self, *lines: str) -> dict[str, Any]:
        await self.daemon.fleets.take()
        now = self.world.slurm.clock.now()
        where = Where(node="n1", job=self.job, attempt=0, path="/log")
        reader = LogReader(SIGNATURES, source=Source.JOB_LOG, where=where)
        said: list[Evidence] = []
        for line in lines:
            said += reader.feed(f"{line}\n".encode(), now)
        at_s = now.timestamp() - evidence().at.timestamp()
        self.world.slurm.end(self.job, exit_code=1)
        for item in (*said, ended(self.job, at_s=at_s)):
            assert await self.daemon.observe([item])
        await self.daemon.quiet()
        assert self.daemon.bugs() == 0, self.daemon.said
        (row,) = self.world.store.incident_rows(job=self.job)
        return row

    @property
    def chosen(self) -> list[dict[str, Any]]:
        return [row["data"] for row in self.world.store.steps_done([StepKind.CHOOSE_CHECKPOINT], job=self.job)]


def steps(*losses: float, first: int = 1) -> list[str]:
    return [f"step {step} | loss {loss:.4f} | step time 0.4 s" for step, loss in enumerate(losses, first)]


async def test_restart_begins_before_the_step_that_the_line_names(world: Worlds) -> None:
    case = Case(world(), (100, 200, 300))
    row = await case.fails(*steps(2.1, 2.0, first=248), "step 250 | loss nan | step time 0.4 s")
    assert (row["cause"], row["onset_step"]) == ("numerical_nan", 250)
    assert [data["step"] for data in case.chosen] == [200]
    assert case.world.resume.files[case.job]["SENTINEL_RESUME_STEP"] == "200"


async def test_line_without_a_step_takes_it_from_the_progress(world: Worlds) -> None:
    case = Case(world(), (100, 248, 249, 260))
    row = await case.fails(
        *steps(2.1, 2.0, first=248), "AssertionError: Rank 0: found NaN in local grad norm for bucket #0"
    )
    assert row["onset_step"] == 250 and [data["step"] for data in case.chosen] == [249]


async def test_spike_that_ends_in_bad_numbers_is_the_onset(world: Worlds) -> None:
    calm = [2.0 + 0.01 * (n % 5) for n in range(60)]
    case = Case(world(), (50, 62, 64))
    row = await case.fails(*steps(*calm, 6.0, 8.0, 9.0, 9.5, math.nan))
    assert row["onset_step"] == 61 and [data["step"] for data in case.chosen] == [50]
    assert "loss_spike" in {item.kind for item in case.world.store.evidence_since(evidence().at)}


async def test_spike_alone_disturbs_nobody(world: Worlds) -> None:
    case = Case(world(), (50,))
    calm = [2.0 + 0.01 * (n % 5) for n in range(60)]
    await case.daemon.fleets.take()
    where = Where(node="n1", job=case.job, attempt=0, path="/log")
    reader = LogReader(SIGNATURES, source=Source.JOB_LOG, where=where)
    now = case.world.slurm.clock.now()
    said = [item for line in steps(*calm, 6.0, 8.0, 9.0, 9.5) for item in reader.feed(f"{line}\n".encode(), now)]
    await case.daemon.observe(said)
    await case.daemon.quiet()
    assert case.world.store.incident_rows() == [] and case.sink.got == []


async def test_only_checkpoints_after_the_onset_hold_the_job_with_the_reason(world: Worlds) -> None:
    case = Case(world(), (260, 300))
    row = await case.fails(*steps(2.1, 2.0, first=248), "step 250 | loss nan | step time 0.4 s")
    this = case.world.slurm.jobs[case.job]
    assert row["state"] == "held" and this.held and this.state == "PENDING"
    assert "numbers went bad at step 250 and no checkpoint before it can be used" in row["outcome"]
    assert case.job not in case.world.resume.files
    assert len(case.sink.got) == 1


async def test_bad_numbers_before_the_first_save_begin_anew(world: Worlds) -> None:
    case = Case(world(), ())
    row = await case.fails(*steps(2.1, 2.0), "step 3 | loss nan | step time 0.4 s")
    assert row["onset_step"] == 3 and row["state"] != "held" and not case.world.slurm.jobs[case.job].held


async def test_nodes_that_cannot_tell_hold_a_job_whose_numbers_went_bad(world: Worlds) -> None:
    case = Case(world(), None, storage_s=0.0)
    row = await case.fails(*steps(2.1, 2.0, first=248), "step 250 | loss nan | step time 0.4 s")
    assert row["state"] == "held" and "is not known" in row["outcome"] and case.world.slurm.jobs[case.job].held
