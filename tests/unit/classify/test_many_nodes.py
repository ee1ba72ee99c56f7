"""Verdicts over many nodes and over what happened before: one shared fault, storage, a node's or a job's history."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from math import log as log_of

import pytest
from judged_lines import NOW, judge, log, seen

from sentinel.classify import History, PastFailure
from sentinel.classify.out_together import nodes_of
from sentinel.model.records import (
    Cause,
    Evidence,
    Kind,
    Restart,
    Scope,
    Source,
)


def test_many_nodes_with_one_shared_fault_are_one_cluster_incident() -> None:
    lines = [
        log(f"mlx5_core 0000:9b:00.0: Port: 1 Link DOWN ({i})", node=f"n{i}", source=Source.KERNEL) for i in range(4)
    ]
    verdict = judge(*lines)
    assert (verdict.cause, verdict.scope, verdict.drain) == (Cause.NETWORK_FABRIC, Scope.CLUSTER, ())
    single = judge(lines[0])
    assert single.scope is Scope.LINK


@pytest.mark.parametrize(
    "line",
    [
        "error: Node n{} unexpectedly rebooted boot_time=1777629000 last response=1777628900",
        "update_node: node n{} reason set to: Node unexpectedly rebooted",
        "error: Nodes n{} not responding, setting DOWN",
        "error: Node n{} has low real_memory size (500000 / 1000000)",
    ],
)
def test_many_nodes_that_slurm_puts_out_at_once_for_one_reason_are_not_drained_one_by_one(line: str) -> None:
    lines = [log(line.format(i), at=20.0 * i, source=Source.SLURM) for i in range(1, 5)]
    verdict = judge(*lines)
    assert (verdict.scope, verdict.drain, verdict.suspect, verdict.drain_recommended) == (Scope.CLUSTER, (), (), False)
    assert judge(log(line.format("[1-24]"), source=Source.SLURM)).scope is Scope.CLUSTER
    apart = [log(line.format(i), at=900.0 * i, source=Source.SLURM) for i in range(1, 5)]
    assert judge(*apart).scope is Scope.NODE
    assert judge(*lines[:2]).scope is Scope.NODE


def test_nodes_that_are_out_at_once_are_counted_once_each_and_by_the_system_s_word_alone() -> None:
    rebooted = "error: Node n{} unexpectedly rebooted boot_time=1777629000 last response=1777628900"
    two = [log(rebooted.format(name), source=Source.SLURM) for name in ("1", "2", "[1-2]")]
    assert judge(*two).scope is Scope.NODE
    users = [log(rebooted.format(name)) for name in ("5", "6", "[7-99]")]
    assert judge(two[0], *users).drain == ("n1",)


def test_a_short_form_of_nodes_that_a_user_wrote_takes_no_time_to_count() -> None:
    assert nodes_of("n[1-3,07],m2") == {"n1", "n2", "n3", "n07", "m2"}
    assert nodes_of("n[08-10]-a") == {"n08-a", "n09-a", "n10-a"} and len(nodes_of("r[1-2]c[1-3]")) == 6
    assert len(nodes_of("n[1-999999],m[1-999999]")) == len(nodes_of("[1-999999]" * 3)) == 256
    for written in ("n1,[" + "1" * 200, "n[" + "1" * 200, "n[" + "1" * 200 + "]", "n" + "[1" * 100, "n[3-1]", ""):
        assert len(nodes_of(written)) <= 1  # the first took minutes at 30 digits


def test_a_gpu_that_was_lost_when_many_nodes_went_down_keeps_its_drain() -> None:
    rebooted = "error: Node n{} unexpectedly rebooted boot_time=1777629000 last response=1777628900"
    lines = [log(rebooted.format(i), at=5.0 * i, source=Source.SLURM) for i in range(1, 5)]
    verdict = judge(*lines, seen(Kind.XID, Source.KERNEL, at=30.0, node="n2", xid=79, pci="0000:3b:00"))
    assert verdict.drain == ("n2",)


ILLEGAL = "[rank{}]: RuntimeError: CUDA error: an illegal memory access was encountered"


def test_history_of_the_node_turns_an_application_error_into_its_gpu() -> None:
    past = tuple(PastFailure(NOW - timedelta(days=d), Cause.USER_CODE, node="n3", job=100 + d) for d in (1, 2, 3))
    here = log(ILLEGAL.format(3), node="n3")
    assert judge(here).cause is Cause.USER_CODE
    verdict = judge(here, history=History(past))
    assert verdict.cause is Cause.GPU_GSP_OR_DRIVER
    assert verdict.drain == ()  # words of a job log, and history: a suspect, to be tested
    assert verdict.suspect == ("n3",)


def test_the_same_job_on_other_nodes_is_the_job() -> None:
    past = tuple(PastFailure(NOW - timedelta(hours=h), Cause.UNKNOWN, node=f"n{h}", job=7) for h in (1, 2))
    verdict = judge(log("CUDA error: unspecified launch failure", node="n9"), history=History(past))
    assert (verdict.cause, verdict.scope) == (Cause.USER_CODE, Scope.APPLICATION)


@pytest.mark.parametrize(
    ("cause", "ago", "blamed"),
    [
        (Cause.GPU_FALLEN_OFF_BUS, timedelta(hours=1), True),  # its machines were convicted
        (Cause.NCCL_HANG_UNKNOWN, timedelta(hours=1), False),  # hangs and networks are not its program's words
        (Cause.NETWORK_FABRIC, timedelta(hours=1), False),
        (Cause.UNKNOWN, timedelta(days=9), False),  # a program that fails by its own mistake does so again soon
    ],
)
def test_a_large_job_that_lost_nodes_before_is_not_at_fault(cause: Cause, ago: timedelta, blamed: bool) -> None:
    past = tuple(PastFailure(NOW - n * ago, cause, node=f"n{n}", job=7, blamed=blamed) for n in range(1, 3))
    found = judge(log("CUDA error: unknown error", node="n9"), history=History(past))
    assert found.cause is Cause.GPU_GSP_OR_DRIVER


IO_ERROR = "OSError: [Errno 5] Input/output error: '/nvme/run/step-50/shard-17'"


def storage(node: str | None, *, job: int = 7, attempt: int | None = 3, minutes: float = 5.0) -> PastFailure:
    at = NOW - timedelta(minutes=minutes)
    return PastFailure(at, Cause.FILESYSTEM_STORAGE, node, job=job, attempt=attempt, blamed=False)


def test_storage_that_fails_one_node_in_attempt_after_attempt_makes_it_a_suspect() -> None:
    verdict = judge(log(IO_ERROR, node="n3"), history=History((storage("n3"),)))
    assert (verdict.cause, verdict.scope, verdict.drain) == (Cause.NODE_OS_OR_HOST, Scope.NODE, ())
    assert (verdict.suspect, verdict.restart) == (("n3",), Restart.RESUME_EXCLUDING)


@pytest.mark.parametrize(
    "past",
    [
        (),
        (storage("n4"),),
        (storage(None),),
        (storage("n3"), storage("n4", job=8, minutes=4.0)),
        (storage("n3"), storage("n4", attempt=4, minutes=4.0)),
        (storage("n3", job=8),),
        (storage("n3", attempt=None),),  # that of this very failure
        (storage("n3", minutes=120),),
    ],
)
def test_storage_that_fails_elsewhere_too_or_once_is_what_nodes_share(past: tuple[PastFailure, ...]) -> None:
    verdict = judge(log(IO_ERROR, node="n3"), history=History(past))
    assert (verdict.cause, verdict.suspect) == (Cause.FILESYSTEM_STORAGE, ())
    assert verdict.restart is Restart.RESUME


@pytest.mark.parametrize(
    ("users", "cause"),
    [
        (("eve",), Cause.NODE_OS_OR_HOST),
        (("eve", "eve"), Cause.NODE_OS_OR_HOST),
        (("eve", "bob"), Cause.FILESYSTEM_STORAGE),
    ],
)
def test_storage_errors_that_one_other_user_s_programs_print_elsewhere_are_not_what_nodes_share(
    users: tuple[str, ...], cause: Cause
) -> None:
    elsewhere = (
        replace(storage(f"n{4 + i}", job=8 + i, minutes=4.0), user=user, users_words=True)
        for i, user in enumerate(users)
    )
    history = History((storage("n3"), *elsewhere))
    assert judge(log(IO_ERROR, node="n3"), history=history).cause is cause
    own = replace(history, user="eve")
    assert judge(log(IO_ERROR, node="n3"), history=own).cause is Cause.FILESYSTEM_STORAGE


BROKEN_HCA = "mlx5_core 0000:9b:00.0: device's health compromised - reached miss count"
TO_PEER = (
    "NCCL WARN NET/IB : Got completion from peer 10.0.0.7<4711> with status=12 opcode=0 len=0 vendor err 129 (Recv)"
)


def in_kernel(node: str, line: str = BROKEN_HCA) -> list[Evidence]:
    return log(line, node=node, source=Source.KERNEL)


@pytest.mark.parametrize("peers", [(2,), (2, 3), (2, 3, 4, 5, 6)])
def test_what_programs_print_on_other_nodes_acquits_no_node_that_its_own_kernel_convicts(
    peers: tuple[int, ...],
) -> None:
    printed = [log(TO_PEER, node=f"n{i}", at=1.0) for i in peers]
    verdict = judge(in_kernel("n1"), *printed)
    assert (verdict.cause, verdict.drain, verdict.drain_recommended) == (Cause.NETWORK_FABRIC, ("n1",), True)
    assert verdict.scope is not Scope.CLUSTER
    alone = judge(*printed)  # where nothing else speaks, the scope is what they say
    assert (alone.scope is Scope.CLUSTER, alone.drain) == (len(peers) >= 3, ())


def test_a_line_about_the_fabric_that_a_program_prints_acquits_no_node_either() -> None:
    verdict = judge(in_kernel("n1"), *(log("switch leaf-07 went down at 12:01", node=f"n{i}") for i in (2, 3)))
    assert verdict.drain == ("n1",), verdict


def test_nodes_whose_own_kernels_convict_them_together_are_one_fault_of_what_they_share() -> None:
    verdict = judge(*(in_kernel(f"n{i}") for i in (1, 2, 3)))
    assert (verdict.scope, verdict.drain) == (Scope.CLUSTER, ())


def test_one_line_that_only_suspects_its_node_leaves_the_count_to_what_programs_print() -> None:
    down = in_kernel("n1", "mlx5_core 0000:9b:00.0: Port: 1 Link DOWN")
    verdict = judge(down, *(log(TO_PEER, node=f"n{i}", at=1.0) for i in (2, 3)))
    assert (verdict.scope, verdict.drain) == (Scope.CLUSTER, ())


def at_once(*users: str | None, users_words: bool = True) -> History:
    """Other jobs, each of which failed of the network within the last minutes."""
    at = NOW + timedelta(minutes=58)  # two minutes before the verdict
    failures = (
        PastFailure(at, Cause.NETWORK_FABRIC, job=900 + i, user=user, incident=f"o{i}", users_words=users_words)
        for i, user in enumerate(users)
    )
    return History(tuple(failures))


@pytest.mark.parametrize(
    ("history", "shared"),
    [
        (at_once("eve", "eve", "eve", "eve"), False),  # one user is one voice, however many jobs there are
        (at_once("eve", "bob"), True),
        (at_once("eve", None), True),  # whose it was is not known
        (at_once("eve", "eve", users_words=False), True),  # machines said it
    ],
)
def test_words_of_programs_count_by_user_where_many_jobs_fail_at_once(history: History, shared: bool) -> None:
    verdict = judge(log(TO_PEER, node="n2"), history=history)
    assert (verdict.scope is Scope.CLUSTER) is shared, verdict
    down = judge(
        in_kernel("n1", "infiniband mlx5_0: create_qp:2774:(pid 123): Create QP type 2 failed"), history=history
    )
    assert (down.scope is Scope.CLUSTER) is shared, down


def test_words_of_the_own_user_s_programs_count_by_job() -> None:
    """They change the verdicts of that user's jobs alone; an account that many share is one user."""
    own = replace(at_once("eve", "eve"), user="eve")
    assert judge(log(TO_PEER, node="n2"), history=own).scope is Scope.CLUSTER
    assert judge(in_kernel("n1"), history=own).drain == ("n1",)


def test_a_job_counts_once_where_it_is_known_by_two_records() -> None:
    one = PastFailure(NOW + timedelta(minutes=58), Cause.NETWORK_FABRIC, job=9, user="eve", users_words=True)
    past = (one, replace(one, user=None), replace(one, users_words=False))
    for some in (past[:2], past):
        assert judge(log(TO_PEER, node="n2"), history=History(some)).scope is not Scope.CLUSTER


def test_jobs_whose_programs_speak_acquit_no_node_that_its_own_kernel_convicts() -> None:
    assert judge(in_kernel("n1"), history=at_once("eve", "bob", "joe")).drain == ("n1",)
    of_machines = judge(in_kernel("n1"), history=at_once("eve", "bob", users_words=False))
    assert (of_machines.scope, of_machines.drain) == (Scope.CLUSTER, ())


REFUSED_QP = log(
    "infiniband mlx5_0: create_qp:2774:(pid 123): Create QP type 2 failed", node="n1", source=Source.KERNEL
)


def met(*told: tuple[int, Cause, str | None], users_words: bool = True) -> History:
    """So many failed jobs of a cause and a user each, an hour apart."""
    each = [(cause, user) for count, cause, user in told for _ in range(count)]
    failures = (
        PastFailure(NOW - timedelta(hours=i), cause, job=900 + i, user=user, incident=f"r{i}", users_words=users_words)
        for i, (cause, user) in enumerate(each)
    )
    return History(tuple(failures))


def odds(history: History) -> float:
    """Natural-log odds of the verdict on ``REFUSED_QP``."""
    confidence = judge(REFUSED_QP, history=history).confidence
    return log_of(confidence / (1.0 - confidence))


OTHERS = tuple(
    (count, cause, user)
    for count, cause in ((2, Cause.NETWORK_FABRIC), (10, Cause.USER_CODE), (4, Cause.APP_OOM_GPU))
    for user in ("ada", "bob")
)


def test_what_several_users_or_machines_met_moves_a_verdict() -> None:
    usual = odds(History())
    assert odds(met(*OTHERS)) > usual
    assert odds(met((20, Cause.NETWORK_FABRIC, "eve"), users_words=False)) > usual  # machines said it
    assert odds(met((20, Cause.NETWORK_FABRIC, None))) > usual  # whose they were is not known


@pytest.mark.parametrize(
    ("cause", "users_words"), [(Cause.NETWORK_FABRIC, True), (Cause.USER_CODE, True), (Cause.USER_CODE, False)]
)
@pytest.mark.parametrize("count", [20, 300])
def test_one_user_s_failed_jobs_move_no_verdict_alone_and_little_beside_others(
    cause: Cause, count: int, users_words: bool
) -> None:
    mass = (count, cause, "eve")
    assert odds(met(mass, users_words=users_words)) == odds(History())
    assert abs(odds(met(*OTHERS, mass, users_words=users_words)) - odds(met(*OTHERS, users_words=users_words))) < 0.4


@pytest.mark.parametrize(
    "line",
    [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "XlaRuntimeError: RESOURCE_EXHAUSTED: Failed to allocate request for 7.88GiB (8463056896B) on device ordinal 0",
    ],
)
def test_memory_that_runs_out_on_several_ranks_is_the_programs(line: str) -> None:
    verdict = judge(log("".join(f"[rank{rank}]: {line}\n" for rank in range(3)), node="n1"))
    assert "the same on 3 ranks" in {ground.note for ground in verdict.grounds}
