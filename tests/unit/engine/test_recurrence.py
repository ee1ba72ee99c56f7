"""The same words, two verdicts: told apart by history alone, on the way that a running daemon goes, and after a restart."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from in_memory.daemon import Daemon
from in_memory.world import World
from made_records import OPTED_IN, ended, evidence
from prometheus_client import generate_latest
from shipped import shipped_signatures

from sentinel.daemon.api.scores import read_scores
from sentinel.evidence.logs.reader import LogReader
from sentinel.model.corrections import Correction
from sentinel.model.records import Cause, Evidence, Scope, Source, Where

Worlds = Callable[..., World]
SIGNATURES = shipped_signatures()
ILLEGAL = "[rank0]: RuntimeError: CUDA error: an illegal memory access was encountered"


class Failing:
    """Jobs that fail one after the other, each judged by a daemon as it runs."""

    def __init__(self, world: World) -> None:
        self.world = world
        world.slurm.cancel(world.job)
        self.daemon = Daemon(world)

    def restart(self) -> None:
        self.daemon = Daemon(self.world)

    async def job(
        self,
        *lines: str,
        on: tuple[str, ...] = ("n1",),
        user: str = "ada",
        job: int | None = None,
        gap_s: float = 3600.0,
    ) -> dict[str, Any]:
        """The incident, as the store has it, of a job that printed ``lines`` and failed."""
        slurm = self.world.slurm
        slurm.clock.advance(gap_s)
        if job is None:
            job = slurm.submit(nodes=len(on), required=on, user=user, comment=OPTED_IN)
        this = slurm.jobs[job]
        this.required = ()  # it was to begin there, and may go on elsewhere
        await self.daemon.fleets.take()
        assert this.state == "RUNNING" and this.on == on, (this.state, this.on)
        attempt = this.restarts
        slurm.clock.advance(60.0)
        said = self.said(lines, job, attempt, on[0])
        slurm.end(job, exit_code=1)
        at_s = slurm.clock.now().timestamp() - evidence().at.timestamp()
        assert await self.daemon.observe([*said, ended(job, attempt, at_s=at_s)])
        await self.daemon.quiet()
        assert self.daemon.bugs() == 0, self.daemon.said
        rows = [row for row in self.world.store.incident_rows(job=job) if row["attempt"] == attempt]
        assert len(rows) == 1, rows
        return rows[0]

    def said(self, lines: tuple[str, ...], job: int, attempt: int, batch_host: str) -> list[Evidence]:
        where = Where(node=batch_host, job=job, attempt=attempt, path=f"/log/{job}.{attempt}")
        reader = LogReader(SIGNATURES, source=Source.JOB_LOG, where=where)
        now = self.world.slurm.clock.now()
        return [*reader.feed("".join(f"{line}\n" for line in lines).encode(), now), *reader.finish(now)]


async def test_program_that_fails_for_the_first_time_is_at_fault_itself(world: Worlds) -> None:
    there = Failing(world(nodes=4))
    row = await there.job(ILLEGAL)
    assert (row["cause"], row["scope"], row["culprit_nodes"]) == ("user_code", "application", [])
    assert row["seen_on"] == ["n1"] and row["state"] == "held"


@pytest.mark.parametrize("killed", [False, True])
async def test_the_reason_of_a_hold_is_written_again_only_where_slurmctld_may_have_lost_it(
    world: Worlds, killed: bool
) -> None:
    """An operator may have cleared it."""
    there = Failing(world())
    job = there.world.slurm.jobs[(await there.job(ILLEGAL))["job"]]
    assert job.held and " held" in job.admin_comment
    job.admin_comment = ""
    if killed:
        there.world.slurm.booted = there.world.slurm.clock.now() + timedelta(seconds=1)
    for _ in range(2):
        await there.daemon.pass_time(20.0)
    assert job.held and (" held" in job.admin_comment) is killed, there.daemon.said


async def test_same_words_on_a_node_that_failed_under_others_are_the_node_s(world: Worlds) -> None:
    there = Failing(world(nodes=4))
    for user in ("bob", "eve"):
        assert (await there.job(ILLEGAL, user=user))["cause"] == "user_code"
    there.restart()  # history is in the store, not in the process
    row = await there.job(ILLEGAL, user="ada")
    assert row["scope"] == "gpu" and row["culprit_nodes"] == ["n1"], row
    assert not there.world.slurm.nodes["n1"].drained  # words and history make a suspect, never a drain
    assert there.world.slurm.jobs[row["job"]].excluded == ("n1",)


async def test_same_words_elsewhere_are_still_the_program_s(world: Worlds) -> None:
    there = Failing(world(nodes=4))
    for user in ("bob", "eve"):
        await there.job(ILLEGAL, user=user)
    assert (await there.job(ILLEGAL, on=("n2",)))["cause"] == "user_code"


async def test_one_user_whose_program_fails_everywhere_accuses_no_node(world: Worlds) -> None:
    there = Failing(world(nodes=4))
    for on in ("n2", "n1", "n1"):
        await there.job(ILLEGAL, on=(on,), user="ada")
    assert (await there.job(ILLEGAL, on=("n1",), user="ada"))["scope"] == "application"


async def test_one_user_who_prints_the_same_in_many_jobs_accuses_no_node(world: Worlds) -> None:
    """Users count, not jobs: an array on one node is one voice."""
    there = Failing(world(nodes=4))
    for _ in range(4):
        row = await there.job(ILLEGAL, user="ada")
    assert (row["scope"], row["culprit_nodes"]) == ("application", [])
    await there.job(ILLEGAL, user="bob")
    assert (await there.job(ILLEGAL, user="eve"))["culprit_nodes"] == ["n1"]


XID = "NVRM: Xid (PCI:0000:5d:00): 79, pid=1, GPU has fallen off the bus."


async def test_what_programs_print_adds_to_no_score(world: Worlds) -> None:
    there = Failing(world(nodes=4))
    for user in ("ada", "ada", "ada", "bob"):
        row = await there.job(XID, user=user)
        assert (
            row["culprit_nodes"] == ["n1"] and row["users_words"] is True and not there.world.slurm.nodes["n1"].drained
        )
    now = there.world.slurm.clock.now()
    assert not read_scores(there.world.store, there.daemon.live, {}, now).by_node["n1"].failures
    there.restart()
    await there.daemon.start()
    failures = there.daemon.state.past.failures(without=None).failures
    assert failures and all(past.users_words for past in failures)


async def test_what_the_kernel_says_adds_to_the_score(world: Worlds) -> None:
    there = Failing(world(nodes=4))
    await port_down(there, 1)
    now = there.world.slurm.clock.now()
    (row,) = there.world.store.incident_rows()
    assert row["users_words"] is False and row["culprit_nodes"] == ["n1"]
    assert read_scores(there.world.store, there.daemon.live, {}, now).by_node["n1"].failures == 1


async def test_failure_long_ago_is_forgotten(world: Worlds) -> None:
    there = Failing(world(nodes=4))
    for user in ("bob", "eve"):
        await there.job(ILLEGAL, user=user)
    assert (await there.job(ILLEGAL, gap_s=31 * 86400.0))["cause"] == "user_code"


async def test_batch_host_of_a_wide_job_does_not_answer_for_what_no_node_is_known_to_have_said(world: Worlds) -> None:
    there = Failing(world(nodes=4))
    for user in ("bob", "eve", "joe"):
        row = await there.job(
            "RuntimeError: CUDA error: an illegal memory access was encountered", on=("n1", "n2"), user=user
        )
        assert row["seen_on"] == [] and row["scope"] == "application"


async def test_rank_of_a_wide_job_accuses_its_own_node(world: Worlds) -> None:
    there = Failing(world(nodes=4))
    follows = "[rank15]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=91, OpType=ALLREDUCE)"
    said = (ILLEGAL.replace("rank0", "rank9"), follows)
    for user in ("bob", "eve"):
        row = await there.job(*said, on=("n1", "n2"), user=user)
    row = await there.job(*said, on=("n1", "n2"))
    assert row["culprit_nodes"] == ["n2"], (row, there.daemon.said)


async def port_down(there: Failing, *numbers: int) -> list[tuple[str, str]]:
    """Cause and scope of jobs whose nodes lose a port in the same moment."""
    slurm = there.world.slurm
    jobs = [slurm.submit(nodes=1, required=(f"n{n}",), user=f"u{n}", comment=OPTED_IN) for n in numbers]
    await there.daemon.fleets.take()
    at_s = slurm.clock.now().timestamp() - evidence().at.timestamp()
    told = []
    for number, job in zip(numbers, jobs, strict=True):
        slurm.end(job, exit_code=1)
        down = evidence("link_down", node=f"n{number}", at_s=at_s, source=Source.HOST, text="mlx5_0: port down")
        told += [down, ended(job, at_s=at_s)]
    await there.daemon.observe(told)
    await there.daemon.quiet()
    found = [there.world.store.incident_rows(job=job) for job in jobs]
    return [(row["cause"], row["scope"]) for (row,) in found]


async def test_port_of_one_job_is_a_link_and_ports_of_many_at_once_the_fabric(world: Worlds) -> None:
    there = Failing(world(nodes=8))
    assert await port_down(there, 1) == [("network_fabric", "link")]
    assert await port_down(there, 2, 3, 4, 5) == [("network_fabric", "cluster")] * 4
    assert not any(there.world.slurm.nodes[f"n{n}"].drained for n in (2, 3, 4, 5))


async def test_ports_of_two_jobs_are_two_links(world: Worlds) -> None:
    assert await port_down(Failing(world(nodes=8)), 2, 3) == [("network_fabric", "link")] * 2


TO_PEER = "n3:4711:4790 [0] NCCL WARN NET/IB : Got completion from peer 10.0.0.7<4711> with status=12 opcode=0 len=0"


@pytest.mark.parametrize(
    ("users", "scopes"),
    [
        (("eve", "eve", "ada"), ("cluster", "cluster", "link")),  # of their own user's jobs they may say so
        (("eve", "bob", "ada"), ("cluster", "cluster", "cluster")),
        (("eve", "eve", "eve"), ("cluster", "cluster", "cluster")),
    ],
)
async def test_failures_that_programs_print_at_once_are_the_fabric_s_where_several_users_meet_them(
    world: Worlds, users: tuple[str, ...], scopes: tuple[str, ...]
) -> None:
    """Also while they are all judged: none of them is history yet."""
    there = Failing(world(nodes=8))
    slurm = there.world.slurm
    jobs = [slurm.submit(nodes=1, required=(f"n{n}",), user=user, comment="") for n, user in enumerate(users, 1)]
    await there.daemon.fleets.take()
    at_s = slurm.clock.now().timestamp() - evidence().at.timestamp()
    for job in jobs:
        slurm.end(job, exit_code=1)
    said = [item for n, job in enumerate(jobs, 1) for item in there.said((TO_PEER,), job, 0, f"n{n}")]
    await there.daemon.observe([*said, *(ended(job, at_s=at_s) for job in jobs)])
    await there.daemon.quiet()
    rows = [row for job in jobs for row in there.world.store.incident_rows(job=job)]
    assert [(row["cause"], row["scope"]) for row in rows] == [("network_fabric", scope) for scope in scopes]


NAN = "[rank0]: step {step} | loss nan | step time 0.4 s"


async def test_bad_numbers_for_the_first_time_accuse_no_node(world: Worlds) -> None:
    row = await Failing(world(nodes=4)).job(NAN.format(step=250))
    assert (row["cause"], row["scope"], row["culprit_nodes"]) == ("numerical_nan", "application", [])


async def test_bad_numbers_that_follow_a_node_make_it_a_suspect(world: Worlds) -> None:
    there = Failing(world(nodes=4))
    for user in ("bob", "joe"):
        first = await there.job(NAN.format(step=250), user=user)
        assert first["scope"] == "application"  # one other user may have printed anything
        there.world.slurm.cancel(first["job"])
    there.restart()
    row = await there.job(NAN.format(step=9400), user="ada")
    assert (row["cause"], row["scope"], row["culprit_nodes"]) == ("numerical_nan", "gpu", ["n1"]), row
    assert there.world.slurm.jobs[row["job"]].excluded == ("n1",) and not there.world.slurm.nodes["n1"].drained
    there.world.slurm.cancel(row["job"])
    assert (await there.job(NAN.format(step=70), on=("n2",), user="eve"))["scope"] == "application"


async def test_same_step_on_another_node_is_the_program(world: Worlds) -> None:
    there = Failing(world(nodes=4))
    past = await there.job(NAN.format(step=9400), on=("n1",), user="bob")  # n1 has a past
    there.world.slurm.cancel(past["job"])
    first = await there.job(NAN.format(step=250), on=("n2",))
    slurm = there.world.slurm
    this = slurm.jobs[first["job"]]
    assert this.state == "RUNNING" and this.restarts == 1  # restarted before the onset
    this.on = ("n1",)
    again = await there.job(NAN.format(step=251), on=("n1",), job=first["job"])
    assert (again["cause"], again["scope"]) == ("numerical_nan", "application"), again


async def test_what_an_operator_corrected_counts_against_no_node(world: Worlds) -> None:
    there = Failing(world(nodes=4))
    row = await there.job(ILLEGAL, user="bob")
    events = there.daemon.runner.state.past
    assert [past.node for past in events.failures(without=None).failures] == ["n1"]
    told = Correction(row["opened_at"], "root", Cause.DATALOADER, Scope.CLUSTER, row["cause"], row["scope"])
    await there.daemon.runner.correct(row, told)
    await there.daemon.quiet()
    (past,) = events.failures(without=None).failures
    assert (past.cause, past.node, past.blamed) == (Cause.DATALOADER, "n1", False)  # seen there alone, not at fault
    there.restart()
    assert list(there.daemon.runner.state.past.failures(without=None).failures) == [past]
    assert b"sentinel_corrections_total" in generate_latest(there.daemon.telemetry.registry)
