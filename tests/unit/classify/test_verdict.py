"""Golden behaviours of the verdict: first cause before consequence, who is named against who is guilty, provenance."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from judged_lines import NOW, judge, log, seen

from sentinel.model.records import (
    Cause,
    Evidence,
    Kind,
    Restart,
    Scope,
    Source,
    Trust,
    Where,
)


def test_nothing_is_unknown() -> None:
    verdict = judge()
    assert (verdict.cause, verdict.drain, verdict.drain_recommended) == (Cause.UNKNOWN, (), False)


def test_a_lost_gpu_drains_its_node_and_the_job_resumes_elsewhere() -> None:
    verdict = judge(seen(Kind.XID, Source.KERNEL, node="n3", xid=79, pci="0000:3b:00"))
    assert (verdict.cause, verdict.scope) == (Cause.GPU_FALLEN_OFF_BUS, Scope.GPU)
    assert verdict.drain == ("n3",)
    assert verdict.restart is Restart.RESUME_EXCLUDING
    assert verdict.culprits.gpus == ("n3:0000:3b:00",)
    assert verdict.grounds and verdict.would_change and verdict.advice


def test_the_same_words_in_a_job_log_drain_nothing() -> None:
    verdict = judge(log("NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.", node="n3"))
    assert verdict.cause is Cause.GPU_FALLEN_OFF_BUS
    assert verdict.drain == ()
    assert verdict.suspect == ("n3",)
    assert all(ground.evidence.trust is Trust.USER for ground in verdict.grounds)


def test_an_error_file_of_the_user_cannot_claim_to_be_the_kernel() -> None:
    forged = Evidence(
        "x", NOW, NOW, Source.ERROR_FILE, Kind.XID, Where(node="n3"), data={"xid": 79}, trust=Trust.SYSTEM
    )
    assert judge(forged).drain == ()


@pytest.mark.parametrize("number", [13, 31, 43, 45, 69, 63, 92])
def test_these_xids_never_drain_by_themselves(number: int) -> None:
    assert judge(seen(Kind.XID, Source.KERNEL, node="n3", xid=number)).drain == ()


@pytest.mark.parametrize("number", [48, 64, 79, 95, 140, 143])
def test_these_xids_drain_by_themselves(number: int) -> None:
    assert judge(seen(Kind.XID, Source.DCGM, node="n3", xid=number)).drain == ("n3",)


def test_119_drains_once_something_else_on_that_node_agrees() -> None:
    alone = judge(seen(Kind.XID, Source.KERNEL, node="n3", xid=119))
    assert (alone.cause, alone.drain, alone.suspect) == (Cause.GPU_GSP_OR_DRIVER, (), ("n3",))
    assert alone.drain_recommended
    agreed = judge(
        seen(Kind.XID, Source.KERNEL, node="n3", xid=119),
        seen(Kind.RECOVERY_ACTION, Source.DCGM, at=1, node="n3", action=1),
    )
    assert agreed.drain == ("n3",)


def test_the_recovery_action_of_the_driver_is_preferred() -> None:
    verdict = judge(
        seen(Kind.XID, Source.KERNEL, node="n3", xid=94),
        seen(Kind.RECOVERY_ACTION, Source.DCGM, at=1, node="n3", action=2),
    )
    assert (verdict.cause, verdict.drain) == (Cause.GPU_MEMORY_ECC, ("n3",))
    assert judge(seen(Kind.XID, Source.KERNEL, node="n3", xid=94)).drain == ()


def test_sympathetic_xids_follow_their_cause() -> None:
    verdict = judge(
        seen(Kind.XID, Source.KERNEL, node="n3", xid=45),
        seen(Kind.XID, Source.KERNEL, at=0.1, node="n3", xid=43),
        seen(Kind.XID, Source.KERNEL, at=0.2, node="n3", xid=48),
    )
    assert (verdict.cause, verdict.drain) == (Cause.GPU_MEMORY_ECC, ("n3",))
    assert verdict.confidence > 0.75 and verdict.drain_confidence > 0.8  # odds of 0.96, and what such odds proved worth


def test_teardown_xid_45_on_all_nodes_after_a_traceback_is_the_code() -> None:
    teardown = [seen(Kind.XID, Source.KERNEL, at=5, node=f"n{i}", xid=45) for i in range(77)]
    verdict = judge(log("[rank0]: KeyError: 'labels'"), teardown)
    assert (verdict.cause, verdict.scope, verdict.drain, verdict.suspect) == (
        Cause.USER_CODE,
        Scope.APPLICATION,
        (),
        (),
    )
    assert verdict.restart is Restart.HOLD


def test_the_first_cause_wins_over_what_follows() -> None:
    text = "\n".join(
        [
            "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
            "[rank0]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE)",
            "[rank0]: To avoid data inconsistency, we are taking the entire process down.",
            "[rank1]: RuntimeError: Connection reset by peer",
            "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-03-04T12:00:00 ***",
        ]
    )
    verdict = judge(log(text))
    assert verdict.cause is Cause.APP_OOM_GPU
    assert verdict.grounds[0].evidence.line == 1
    assert 3 in verdict.culprits.ranks


def test_many_echoes_do_not_outweigh_one_cause() -> None:
    text = "\n".join(
        [
            "[rank0]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE)",
            "[rank0]: ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress",
            "[rank1]: RuntimeError: Connection reset by peer",
            "[rank7]: KeyError: 'labels'",
        ]
    )
    assert judge(log(text)).cause is Cause.USER_CODE


def test_a_watchdog_alone_names_a_victim_and_no_cause() -> None:
    verdict = judge(log("[rank5]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE)"))
    assert verdict.cause in {Cause.NCCL_HANG_UNKNOWN, Cause.UNKNOWN}
    assert verdict.drain == ()
    assert verdict.restart is Restart.RESUME


def test_the_refused_peer_is_the_suspect_and_not_the_speaker() -> None:
    verdict = judge(
        log("n1:12:13 [0] misc/socket.cc:400 NCCL WARN Connect to 10.0.0.9<45123> failed : Connection refused")
    )
    assert verdict.suspect == ("10.0.0.9",)
    assert "n1" not in verdict.culprits.nodes


def test_an_unreachable_node_is_drained_by_our_own_probe() -> None:
    verdict = judge(
        seen(Kind.STALL, Source.PROGRESS, step=9), seen(Kind.NODE_UNREACHABLE, Source.PROBE, at=1, node="n4")
    )
    assert (verdict.cause, verdict.scope, verdict.drain) == (Cause.NODE_FAILURE, Scope.NODE, ("n4",))


@pytest.mark.parametrize("letter", ["T", "D"])
def test_the_stuck_task_among_waiting_ones_is_the_suspect(letter: str) -> None:
    waiting = [seen(Kind.TASK_STATE, Source.PROCESS, node=f"n{i}", rank=i, state="R") for i in (0, 1, 3)]
    verdict = judge(
        seen(Kind.STALL, Source.PROGRESS, step=120, silent_s=14.0),
        waiting,
        seen(Kind.TASK_STATE, Source.PROCESS, at=1, node="n2", rank=2, state=letter),
    )
    assert verdict.cause is Cause.NCCL_HANG_UNKNOWN
    assert (verdict.suspect, verdict.drain) == (("n2",), ())
    assert verdict.culprits.ranks == (2,)
    assert verdict.restart is Restart.RESUME_EXCLUDING


def test_tasks_sleeping_on_many_nodes_are_the_storage() -> None:
    sleeping = [seen(Kind.TASK_STATE, Source.PROCESS, node=f"n{i}", rank=i, state="D") for i in range(6)]
    verdict = judge(seen(Kind.STALL, Source.PROGRESS, step=120), sleeping)
    assert (verdict.cause, verdict.scope) == (Cause.FILESYSTEM_STORAGE, Scope.CLUSTER)
    assert (verdict.drain, verdict.suspect) == ((), ())


def test_a_diagnostic_convicts_and_a_setting_of_it_does_not() -> None:
    failed = judge(seen(Kind.DIAG_FAILED, Source.DIAGNOSTIC, node="n5", code=81, severity=2, level=2))
    assert (failed.cause, failed.drain) == (Cause.GPU_MEMORY_ECC, ("n5",))
    setting = judge(seen(Kind.DIAG_FAILED, Source.DIAGNOSTIC, node="n5", code=29, severity=5, category=3))
    assert (setting.cause, setting.drain) == (Cause.UNKNOWN, ())


@pytest.mark.parametrize(
    ("kind", "cause", "drained"),
    [
        ("row_remap_failure", Cause.GPU_MEMORY_ECC, True),
        ("kernel_panic", Cause.NODE_OS_OR_HOST, True),
        ("link_down", Cause.NETWORK_FABRIC, False),
        ("clocks_slowdown", Cause.GPU_THERMAL_POWER, False),
        ("mount_error", Cause.FILESYSTEM_STORAGE, False),
    ],
)
def test_telemetry_of_the_machine(kind: str, cause: Cause, drained: bool) -> None:
    verdict = judge(seen(kind, Source.DCGM, node="n5"))
    assert (verdict.cause, bool(verdict.drain)) == (cause, drained)
    assert judge(seen(kind, Source.JOB_LOG, node="n5")).cause is Cause.UNKNOWN


def test_unreadable_evidence_says_nothing() -> None:
    verdict = judge(seen(Kind.UNREADABLE, Source.DCGM, node="n5"))
    assert (verdict.cause, verdict.drain) == (Cause.UNKNOWN, ())


@pytest.mark.parametrize(
    ("state", "cause", "restart"),
    [
        ("TIMEOUT", Cause.SCHEDULER_PREEMPT_OR_TIMELIMIT, Restart.NONE),
        ("OUT_OF_MEMORY", Cause.APP_OOM_HOST, Restart.HOLD),
        ("NODE_FAIL", Cause.NODE_FAILURE, Restart.RESUME_EXCLUDING),
        ("FAILED", Cause.UNKNOWN, Restart.RESUME),
    ],
)
def test_slurms_own_word_about_the_end(state: str, cause: Cause, restart: Restart) -> None:
    verdict = judge(seen(Kind.JOB_ENDED, Source.SLURM, state=state, exit_code=1))
    assert (verdict.cause, verdict.restart) == (cause, restart)
    assert verdict.drain == ()


def test_the_onset_of_bad_numbers_is_recorded() -> None:
    text = "\n".join(
        f"step {step} | loss {loss} | step time 0.4 s" for step, loss in ((118, 2.1), (119, 2.2), (120, "nan"))
    )
    verdict = judge(log(text))
    assert (verdict.cause, verdict.onset_step, verdict.restart) == (Cause.NUMERICAL_NAN, 120, Restart.RESUME)


def test_an_invalid_checkpoint_is_told() -> None:
    verdict = judge(
        seen(Kind.CHECKPOINT_INVALID, Source.CHECKPOINT, reason="size"), seen(Kind.JOB_ENDED, Source.SLURM, exit_code=1)
    )
    assert verdict.cause is Cause.CHECKPOINT_CORRUPT


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("reason", ["Invalid generic resource (gres) specification", "More processors requested"])
def test_settings_with_which_a_job_ran_before_are_not_to_blame_when_slurm_refuses_its_step(
    reason: str, before: bool
) -> None:
    said = [log(f"srun: error: Unable to create step for job 7: {reason}")]
    said += [[seen(Kind.STARTED_BEFORE, Source.PROGRESS, ran=0)]] if before else []
    verdict = judge(*said, seen(Kind.JOB_ENDED, Source.SLURM, state="FAILED", exit_code=1))
    assert (verdict.restart is Restart.HOLD, verdict.cause is Cause.USER_CONFIG) == (not before, not before)
    assert verdict.drain == ()


HEALTHY = """
W0304 05:00:00.000000 99 torch/distributed/run.py:792] Setting OMP_NUM_THREADS environment variable for each process to be 1
gpu1:10:10 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>
gpu1:10:10 [0] NCCL INFO NET/Plugin : Plugin load (libnccl-net.so) returned 2 : lib.so: cannot open shared object file
gpu1:10:10 [0] NCCL INFO NET/IB : No device found.
gpu1:10:10 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to eth0
/x/site.py:12: FutureWarning: `torch.cuda.amp.autocast(args...)` is deprecated. Please use `torch.amp.autocast` instead.
no checkpoint found, starting from step 0
 iteration      100/    5000 | lm loss: 2.31E+00 | skipped iterations:   0 | number of nan iterations:   0 |
step 120 | loss 2.3145 | step time 0.412 s | 1234 tokens/s
saving checkpoint at iteration 120 to /ckpt
validation loss at iteration 120 | lm loss value: 2.2E+00 | error rate 0.1
wandb: Synced 5 files
training done
"""


def test_an_error_that_the_job_survived_is_not_what_ended_it() -> None:
    steps = [f"step {n} | loss 2.1 | step time 0.4 s" for n in range(20)]
    early = "[rank0]: OSError: [Errno 116] Stale file handle, trying again"
    late = "[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    verdict = judge(log("\n".join([early, *steps, late])))
    assert verdict.cause is Cause.APP_OOM_GPU
    assert judge(log("\n".join([*steps, early, late]))).cause is Cause.FILESYSTEM_STORAGE


def test_a_program_that_fails_since_slurm_preempted_it_is_not_at_fault() -> None:
    """torchrun says that it got a signal, a script of its own perhaps nothing."""
    end = {"state": "failed", "exit_code": 1, "signal": 0}
    raised = log("RuntimeError: SignalException: Process 4711 got signal: 15")
    exits = (
        "slurmstepd-n1: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-03-04T12:00:00 ***",
        "srun: error: n1: task 0: Exited with exit code 1",
    )
    for said in ([], raised, [*raised, *log("\n".join(exits))]):
        verdict = judge(said, seen(Kind.JOB_ENDED, Source.SLURM, at=1.0, **end, preempted=True))
        assert (verdict.cause, verdict.restart) == (Cause.SCHEDULER_PREEMPT_OR_TIMELIMIT, Restart.NONE)
        assert verdict.confidence > 0.6


LOST_GPU = "[rank3]: torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered"


@pytest.mark.parametrize(
    "end",
    [
        {"exit_code": 0, "signal": 10},  # of a script that does not handle it
        {"exit_code": 0, "signal": 12},
        {"exit_code": 138, "signal": 0},  # of srun, whose tasks do not
        {"exit_code": 1, "signal": 0, "limit_near": True},
        {"exit_code": 0, "signal": 15, "limit_near": True},
    ],
)
def test_a_program_that_ends_at_the_signal_of_its_time_limit_is_not_at_fault(end: dict[str, Any]) -> None:
    """sbatch --signal; it calls that failed, and its job would be given the whole time once more, again and again."""
    ended = seen(Kind.JOB_ENDED, Source.SLURM, at=1.0, state="failed", **end)
    verdict = judge(ended)
    assert (verdict.cause, verdict.restart) == (Cause.SCHEDULER_PREEMPT_OR_TIMELIMIT, Restart.NONE)
    assert judge(log(LOST_GPU), ended).cause is Cause.GPU_MEMORY_ECC, "what broke before it is why"


def test_a_crash_near_the_limit_is_a_crash() -> None:
    ended = seen(Kind.JOB_ENDED, Source.SLURM, at=1.0, state="failed", exit_code=0, signal=11, limit_near=True)
    assert judge(ended).restart is Restart.RESUME


@pytest.mark.parametrize(
    ("line", "asked"),
    [
        ("caught USR1, saving", True),
        ("Received SIGUSR2: checkpointing before the limit", True),
        ("got signal USR1, exiting", True),
        ("caught SIGUSR1, dumping stacks", False),  # as debuggers and launchers ask for them
    ],
)
def test_a_handler_that_says_that_it_saves_and_ends_was_asked_to(line: str, asked: bool) -> None:
    ended = seen(Kind.JOB_ENDED, Source.SLURM, at=1.0, state="failed", exit_code=1, signal=0)
    verdict = judge(log(f"step 20 | loss 2.1 | step time 1.000 s\n{line}\nsaved"), ended)
    assert (verdict.restart is Restart.NONE) is asked
    assert (verdict.cause is Cause.SCHEDULER_PREEMPT_OR_TIMELIMIT) is asked


@pytest.mark.parametrize(
    "said",
    [
        "",
        "[rank3]: torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error",
        "RuntimeError: Connection closed by peer [10.0.0.7]:41122",
        "srun: error: n2: tasks 0-7: Killed",
    ],
)
def test_what_a_job_that_slurm_calls_preempted_says_at_its_end_blames_nobody(said: str) -> None:
    end = {"state": "preempted", "exit_code": 0, "signal": 15, "preempted": True, "preempted_at_s": NOW.timestamp()}
    verdict = judge(log(said, at=2.0) if said else [], seen(Kind.JOB_ENDED, Source.SLURM, at=1.0, **end))
    assert (verdict.cause, verdict.restart) == (Cause.SCHEDULER_PREEMPT_OR_TIMELIMIT, Restart.NONE)
    assert (verdict.drain, verdict.suspect, verdict.drain_recommended) == ((), (), False)


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", Cause.GPU_MEMORY_ECC),
        ("[rank3]: torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", Cause.APP_OOM_GPU),
    ],
)
def test_a_failure_minutes_before_slurm_preempted_the_job_is_not_excused(line: str, cause: Cause) -> None:
    """Its other ranks wait for the one that failed, until the job is preempted."""
    cancelled = log(
        "slurmstepd-n1: error: *** JOB 7 ON n1 CANCELLED AT 2026-03-04T12:05:00 DUE TO PREEMPTION ***", at=300.0
    )
    for before_s, expected in ((300.0, cause), (1.0, Cause.SCHEDULER_PREEMPT_OR_TIMELIMIT)):
        when = {"preempted": True, "preempted_at_s": (NOW + timedelta(seconds=before_s)).timestamp()}
        end = seen(Kind.JOB_ENDED, Source.SLURM, at=310.0, state="failed", exit_code=1, signal=0, **when)
        assert judge(log(line), cancelled, end).cause is expected


def test_a_healthy_log_has_no_cause() -> None:
    verdict = judge(log(HEALTHY))
    assert (verdict.cause, verdict.drain_recommended, verdict.suspect) == (Cause.UNKNOWN, False, ())


def test_the_verdict_does_not_depend_on_the_order_of_delivery() -> None:
    items = [
        seen(Kind.XID, Source.KERNEL, at=0.2, node="n3", xid=48),
        seen(Kind.XID, Source.KERNEL, at=0.3, node="n3", xid=45),
        *log("[rank0]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)", at=600),
    ]
    assert judge(items) == judge(items[::-1])


def test_a_million_claims_change_nothing() -> None:
    flood = [item for i in range(300) for item in log(f"[rank{i}]: NVRM: Xid (PCI:0000:3b:00): 79", node=f"n{i}")]
    verdict = judge(flood)
    assert verdict.drain == ()
    assert len(verdict.suspect) <= 8
