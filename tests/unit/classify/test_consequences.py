"""What is said after the fact: last words of launchers, late witnesses, watchdogs of several ranks, mere warnings."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import permutations

import pytest
from shipped import shipped_rules, shipped_signatures

from sentinel.classify import classify
from sentinel.classify.weights import with_rivals
from sentinel.evidence.logs.reader import LogReader
from sentinel.model.records import (
    Cause,
    Evidence,
    Incident,
    Kind,
    Recommendation,
    Scope,
    Source,
    Verdict,
    Where,
    stable_id,
)

NOW = datetime(2026, 3, 4, 12, tzinfo=UTC)
RULES = shipped_rules()
SIGNATURES = shipped_signatures()
LOST = "NVRM: Xid (PCI:0000:17:00): 79, pid=7, name=python, GPU has fallen off the bus.\n"
LAST_WORDS = (
    "srun: error: c4: task 0: Exited with exit code 1\n"
    "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.\n"
    "slurmstepd: error: *** STEP 52.0 ON c4 CANCELLED AT 2026-03-04T12:00:09 ***\n"
    "srun: Force Terminated StepId=52.0\n"
)


def log(text: str, at: float = 0.0) -> list[Evidence]:
    when = NOW + timedelta(seconds=at)
    reader = LogReader(SIGNATURES, where=Where(job=52, path="out.txt"))
    return reader.feed(text.encode(), when) + reader.finish(when)


def fact(kind: str, source: Source, at: float = 0.0, **data) -> Evidence:
    when = NOW + timedelta(seconds=at)
    return Evidence(
        stable_id(kind, source, at, sorted(data.items())),
        when,
        when,
        source,
        kind,
        Where(node="c4", job=52, attempt=0),
        data=data,
    )


def judge(*parts: Evidence | list[Evidence]) -> Verdict:
    evidence = tuple(item for part in parts for item in (part if isinstance(part, list) else [part]))
    return classify(Incident("i", NOW, NOW, job=52, evidence=evidence), rules=RULES, now=NOW + timedelta(hours=1))


@pytest.mark.parametrize("number", [13, 31, 43, 69])
def test_a_fault_that_programs_cause_is_an_answer_of_its_own(number: int) -> None:
    verdict = judge(fact(Kind.XID, Source.KERNEL, xid=number))
    assert (verdict.cause, verdict.scope, verdict.drain_recommended) == (Cause.USER_CODE, Scope.APPLICATION, False)


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_the_launchers_last_words_hide_no_failure_whenever_they_come(order: tuple[int, ...]) -> None:
    parts = [
        lambda at: [fact(Kind.XID, Source.KERNEL, at, xid=43)],
        lambda at: log(LAST_WORDS, at),
        lambda at: [fact(Kind.JOB_ENDED, Source.SLURM, at, state="CANCELLED", exit_code=0, signal=15)],
    ]
    verdict = judge(*(parts[part](float(place)) for place, part in enumerate(order)))
    assert verdict.cause is Cause.USER_CODE


def test_an_exception_before_a_cancellation_is_why_it_was_cancelled() -> None:
    text = (
        "Traceback (most recent call last):\n"
        '  File "train.py", line 40, in step\n'
        "KeyError: 'position_ids'\n"
        "slurmstepd: error: *** JOB 52 ON c4 CANCELLED AT 2026-03-04T12:30:00 ***\n"
    )
    assert judge(log(text)).cause is Cause.USER_CODE


def test_that_a_peer_is_gone_does_not_explain_what_killed_it() -> None:
    gone = "[rank1]: RuntimeError: [/p/gloo/transport/tcp/pair.cc:553] Connection closed by peer [192.0.2.1]:47512\n"
    told = "Root Cause (first observed failure):\n[0]:\n  rank : 0 (local_rank: 0)\n  exitcode : -9 (pid: 7190)  (SIGKILL)\n"
    killed = told + "  traceback : Signal 9 (SIGKILL) received by PID 7190\n"
    assert judge(log(gone + killed)).cause is Cause.APP_OOM_HOST
    aborted = killed.replace("-9", "-6").replace("SIGKILL", "SIGABRT").replace("Signal 9", "Signal 6")
    assert judge(log(gone + aborted)).cause is Cause.UNKNOWN


def test_a_cancellation_with_nothing_before_it_is_the_cause() -> None:
    verdict = judge(log("step 4 loss 2.1\nslurmstepd: error: *** JOB 52 ON c4 CANCELLED AT 2026-03-04T12:30:00 ***\n"))
    assert verdict.cause is Cause.SCHEDULER_PREEMPT_OR_TIMELIMIT


CANCELLED = "slurmstepd: error: *** STEP 52.0 ON c4 CANCELLED AT 2026-03-04T12:30:00 ***\n"
REFUSED = "connect: Connection refused\n"


def test_a_weak_word_before_a_cancellation_outweighs_it_and_after_it_does_not() -> None:
    assert judge(log(REFUSED + CANCELLED)).cause is Cause.NETWORK_BOOTSTRAP
    assert judge(log(CANCELLED + REFUSED)).cause is Cause.SCHEDULER_PREEMPT_OR_TIMELIMIT


@pytest.mark.parametrize(("code", "ended_it"), [(1, True), (143, False)])
def test_a_task_that_failed_by_itself_is_why_the_step_was_cancelled(code: int, ended_it: bool) -> None:
    verdict = judge(log(f"srun: error: c4: task 0: Exited with exit code {code}\n{CANCELLED}"))
    assert (verdict.cause is not Cause.SCHEDULER_PREEMPT_OR_TIMELIMIT) is ended_it


def test_what_was_killed_before_the_step_was_cancelled_is_why_it_was() -> None:
    killed = "srun: error: c4: task 0: Killed\nsrun: Terminating StepId=52.0\n"
    assert judge(log(killed + CANCELLED)).cause is Cause.APP_OOM_HOST
    assert judge(log(CANCELLED + killed)).cause is Cause.SCHEDULER_PREEMPT_OR_TIMELIMIT


def test_a_step_that_srun_ended_since_a_task_was_gone_was_not_ended_by_the_scheduler() -> None:
    waited = "srun: First task exited 600s ago\nsrun: StepId=52.0 task 7: exited abnormally\n"
    assert judge(log(waited + CANCELLED)).cause is Cause.UNKNOWN


def test_what_another_log_says_was_killed_may_have_been_killed_by_the_cancellation() -> None:
    killed = [
        replace(item, where=Where(job=52, path="other.txt")) for item in log("script: line 9: 123 Killed  python\n")
    ]
    assert judge(killed).cause is Cause.APP_OOM_HOST
    assert judge(log(CANCELLED), killed).cause is Cause.SCHEDULER_PREEMPT_OR_TIMELIMIT


def test_a_task_that_exits_after_its_job_was_cancelled_did_not_fail_by_itself() -> None:
    job = "slurmstepd: error: *** JOB 52 ON c4 CANCELLED AT 2026-03-04T12:30:00 ***\n"
    text = f"{job}srun: error: c4: task 0: Exited with exit code 1\n{CANCELLED}"
    assert judge(log(text)).cause is Cause.SCHEDULER_PREEMPT_OR_TIMELIMIT


def test_slurm_reports_an_oom_kill_after_what_it_did() -> None:
    text = (
        "RuntimeError: DataLoader worker (pid(s) 71) exited unexpectedly\n"
        "slurmstepd: error: Detected 1 oom_kill event in StepId=52.0. Some of the step tasks have been OOM Killed.\n"
    )
    assert judge(log(text)).cause is Cause.APP_OOM_HOST
    assert judge(log(text.splitlines(keepends=True)[0])).cause is Cause.DATALOADER


def watchdog(rank: int, sequence: int, op: str, numel: int, taken: int | None = None) -> str:
    return (
        f"[rank{rank}]:[E304 12:00:00.1 ProcessGroupNCCL.cpp:600] [Rank {rank}] Watchdog caught collective operation "
        f"timeout: WorkNCCL(SeqNum={sequence}, OpType={op}, NumelIn={numel}, NumelOut={taken or numel}, Timeout(ms)=600000) "
        "ran for 600010 milliseconds before timing out.\n"
    )


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        ([(0, 9, "ALLREDUCE", 64), (1, 9, "ALLREDUCE", 64)], Cause.NCCL_HANG_UNKNOWN),
        ([(0, 9, "ALLREDUCE", 64), (1, 9, "BROADCAST", 64)], Cause.COLLECTIVE_MISMATCH),
        ([(0, 9, "ALLREDUCE", 64), (1, 9, "ALLREDUCE", 512)], Cause.COLLECTIVE_MISMATCH),
        ([(0, 9, "ALLTOALL", 64), (1, 9, "ALLTOALL", 512)], Cause.NCCL_HANG_UNKNOWN),
        ([(0, 7, "ALLREDUCE", 64), (1, 9, "ALLREDUCE", 64)], Cause.NCCL_HANG_UNKNOWN),
        ([(0, 7, "ALLREDUCE", 64), (1, 9, "_REDUCE_SCATTER_BASE", 64)], Cause.COLLECTIVE_MISMATCH),
    ],
)
def test_watchdogs_of_several_ranks_are_compared(lines: list[tuple[int, int, str, int]], cause: Cause) -> None:
    verdict = judge(log("".join(watchdog(*line) for line in lines)))
    assert (verdict.cause, verdict.drain_recommended) == (cause, False)


@pytest.mark.parametrize(
    ("sizes", "cause"),
    [
        (((56320, 450560), (107520, 860160)), Cause.COLLECTIVE_MISMATCH),
        (((450560, 56320), (860160, 107520)), Cause.COLLECTIVE_MISMATCH),
        (((56320, 450560), (56320, 450560)), Cause.NCCL_HANG_UNKNOWN),
        (((64, 64), (512, 512)), Cause.NCCL_HANG_UNKNOWN),  # may be sends, as may be the next
        (((64, 128), (128, 64)), Cause.NCCL_HANG_UNKNOWN),
    ],
)
def test_batches_that_gather_or_reduce_tensors_have_one_size(sizes: tuple[tuple[int, int], ...], cause: Cause) -> None:
    lines = [watchdog(rank, 610, "COALESCED", given, taken) for rank, (given, taken) in enumerate(sizes)]
    assert judge(log("".join(lines))).cause is cause


def test_what_is_told_as_a_warning_yields_to_what_is_told_as_an_error() -> None:
    text = (
        "[W socket.cpp:500] [c10d] The client socket has failed to connect to [c4]:29500 (errno: 111 - refused).\n"
        "ModuleNotFoundError: No module named 'flash_kernels'\n"
    )
    verdict = judge(log(text))
    assert verdict.cause is Cause.SOFTWARE_ENV
    assert any("told as a warning" in ground.note for ground in verdict.against)


@pytest.mark.parametrize(
    "record",
    [
        "2024-03-01 10:00:00.123456: W tensorflow/stream_executor/platform/default/dso_loader.cc:64] {}",
        "2024-03-01 10:00:00.123 | WARNING  | __main__:load:33 - {}",  # loguru
        "2024-03-01 10:00:00 [warning  ] {}",  # structlog
        "[2024-03-01 10:00:00.123] [loader] [warning] {}",  # spdlog
        "W0304 10:11:12.000000       1 loader.go:12] {}",
        "24/03/01 10:00:00 WARN NativeLoader: {}",  # log4j
        "10:00:00.123 [main] WARN  o.a.Loader - {}",
        "2024-03-01T10:00:00.123456Z  WARN loader: {}",  # tracing
        'time="2024-03-01T10:00:00Z" level=warning msg="{}"',
        '{{"time": "2024-03-01T10:00:00Z", "level": "WARNING", "message": "{}"}}',
        "[NeMo W 2024-03-01 10:00:00 loader:33] {}",
        "2024-03-01 10:00:00 INFO     {}",
        'time="2024-03-01T10:00:00Z" level=info msg="{}"',
        "INFO:2024-03-01 10:00:00,123:jax._src.xla_bridge:925: {}",
        "2024-03-01 10:00:00,123 I jax._src.xla_bridge] {}",
    ],
)
def test_the_level_of_a_record_is_read_in_the_forms_of_many_loggers(record: str) -> None:
    missed = record.format(
        "Could not load dynamic library 'libcudart.so.11.0'; dlerror: cannot open shared object file"
    )
    raised = 'Traceback (most recent call last):\n  File "/home/lin/fit.py", line 9, in <module>\n    os.mkdir(name)\n'
    verdict = judge(log(f"{missed}\n{raised}FileExistsError: [Errno 17] File exists: 'round_0'\n"))
    assert verdict.cause is Cause.USER_CODE, verdict.grounds


def test_a_word_of_nccl_s_is_no_level() -> None:
    text = (
        "gpu9:77:91 [0] misc/ibvwrap.cc:94 NCCL WARN Call to ibv_create_qp failed with error Cannot allocate memory\n"
    )
    assert not any("told as a warning" in ground.note for ground in judge(log(text)).grounds)


def test_rivals_rank_first_among_what_nothing_speaks_for_and_take_nothing_from_the_leader() -> None:
    ranked = [(Cause.GPU_NVLINK, 0.8), (Cause.APP_OOM_GPU, 0.1), (Cause.GPU_GSP_OR_DRIVER, 0.1)]
    raised = with_rivals(ranked, RULES)
    assert raised[0] == (Cause.GPU_NVLINK, 0.8)
    assert raised[1][0] is Cause.GPU_GSP_OR_DRIVER
    assert sum(share for _, share in raised) == pytest.approx(1.0)
    assert with_rivals([], RULES) == []


@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize("prefix", ["[rank{}]: ", ""])
def test_of_runs_appended_to_one_log_the_last_one_counts(prefix: str, ranks: int) -> None:
    steps = "".join(f" iteration {n:8d}/ 250000 | lm loss: 2.31E+00 | grad norm: 0.3 |\n" for n in range(40))
    end = "".join(
        f"{prefix.format(r)}RuntimeError: CUDA error: uncorrectable ECC error encountered\n" for r in range(ranks)
    )
    assert judge(log((steps + end) * 5)).cause is Cause.GPU_MEMORY_ECC
    assert judge(log((steps + end) * 9)).cause is Cause.GPU_MEMORY_ECC
    assert judge(log((steps + end) * 5 + steps)).cause is Cause.UNKNOWN


def test_a_watchdog_explains_the_abort_that_follows_it() -> None:
    text = (
        "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4, OpType=ALLGATHER, Timeout(ms)=600000)\n"
        "terminate called after throwing an instance of 'std::runtime_error'\n"
        "failed (exitcode: -6) local_rank: 0 (pid: 95313) of binary: /opt/bin/python\n"
    )
    assert judge(log(text)).cause is Cause.NCCL_HANG_UNKNOWN
    assert judge(log(text[text.index("terminate") :])).cause is Cause.SOFTWARE_ENV


def on_node(text: str) -> list[Evidence]:
    reader = LogReader(SIGNATURES, source=Source.KERNEL, where=Where(node="c4", path="kern.log"))
    return reader.feed(text.encode(), NOW) + reader.finish(NOW)


@pytest.mark.parametrize(
    "before",
    [
        "pcieport 0000:16:01.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer\n",
        "amdgpu 0000:17:00.0: amdgpu: MES failed to respond to msg=2\n",
    ],
)
@pytest.mark.parametrize("gone", [LOST, "amdgpu 0000:17:00.0: amdgpu: device lost from bus!\n"])
def test_a_gpu_that_is_gone_explains_what_its_port_and_its_firmware_said_shortly_before(before: str, gone: str) -> None:
    verdict = judge(on_node(before + gone))
    assert (verdict.cause, verdict.drain) == (Cause.GPU_FALLEN_OFF_BUS, ("c4",))
    assert judge(on_node(before)).cause is not Cause.GPU_FALLEN_OFF_BUS


def test_the_firmware_of_another_gpu_is_a_fault_of_its_own() -> None:
    gone = "amdgpu 0000:17:00.0: amdgpu: device lost from bus!\n"
    same, other = (f"amdgpu 0000:{bus}:00.0: amdgpu: MES failed to respond to msg=2\n" for bus in ("17", "65"))
    assert judge(on_node(other + gone)).confidence < judge(on_node(same + gone)).confidence
    assert judge(on_node(other + gone)).drain == ("c4",)


def test_an_error_code_in_a_line_that_means_nothing_means_nothing() -> None:
    ended = "salloc: Job 52 has exceeded its time limit and its allocation has been revoked.\n"
    verdict = judge(log(ended + "srun: forcing job termination\ntcsetattr: Input/output error\n"))
    assert verdict.cause is Cause.SCHEDULER_PREEMPT_OR_TIMELIMIT
    assert judge(log("tcsetattr: Input/output error\n")).cause is Cause.UNKNOWN


@pytest.mark.parametrize(
    ("passed", "failed", "cause"),
    [
        (
            '[nhc] Running check:  "check_hw_ib 400 mlx5_0:1"\n',
            "ERROR:  nhc:  Health check failed:  check_hw_ib:  No IB port mlx5_0:1 is ACTIVE (LinkUp 400 Gb/sec).\n",
            Cause.NETWORK_FABRIC,
        ),
        (
            "check-nvlink OK - All nvlink error checks passed.\n",
            "nhc: Health check failed: check_nvlink_status: GPU 0 has nvlinks inactive: Link 4: Inactive\n",
            Cause.GPU_NVLINK,
        ),
    ],
)
def test_a_check_that_passed_drains_nothing_and_hides_nothing(passed: str, failed: str, cause: Cause) -> None:
    healthy = judge(log(passed))
    assert (healthy.cause, healthy.drain_recommended) == (Cause.UNKNOWN, False)
    assert judge(log(passed + failed)).cause is judge(log(failed)).cause is cause
    assert judge(log(passed + failed)).drain_recommended


def test_what_a_driver_line_names_as_its_cause_is_heard_though_the_line_itself_means_nothing() -> None:
    """Xid 45, by which channels are cleared, says which Xid was first."""
    verdict = judge(
        log("kernel: NVRM: Xid (PCI:0000:dc:00): 45, pid=7, name=python3, Ch 1 caused by previous Xid 149\n")
    )
    assert (verdict.cause, verdict.drain_recommended) == (Cause.GPU_NVLINK, True)


@pytest.mark.parametrize(
    "reason",
    [
        "update_node: node q1-dy-p5-3 reason set to: (Code:InsufficientInstanceCapacity)Failure when resuming nodes",
        "node q1-dy-p5-3 not resumed by ResumeTimeout(1800), setting DOWN and POWERED_DOWN",
    ],
)
def test_a_cloud_node_that_was_never_started_is_no_broken_machine(reason: str) -> None:
    lost = "[2026-03-04T12:00:01.123] requeue job JobId=7 due to failure of node q1-dy-p5-3\n"
    verdict = judge(log(f"[2026-03-04T12:00:00.123] {reason}\n{lost}"))
    assert not verdict.drain_recommended
    assert judge(log(lost)).drain_recommended


def test_what_slurm_calls_an_invalid_registration_drains_nothing_alone() -> None:
    verdict = judge(log("   State=IDLE+DRAIN+DYNAMIC_NORM+INVALID_REG ThreadsPerCore=1\n"))
    assert verdict.recommendation is Recommendation.SUSPECT


NOBODY_THERE = "n1:12:13 [0] misc/socket.cc:400 NCCL WARN Connect to 10.0.0.9<45123> failed : Connection refused\n"
WAITED = "[rank3]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=91, OpType=ALLREDUCE)\n"


def test_a_watchdog_that_comes_later_explains_no_refused_connection() -> None:
    other = [replace(item, where=Where(job=52, path="other.txt")) for item in log(NOBODY_THERE)]
    assert judge(other, log(WAITED, at=20.0)).cause is Cause.NETWORK_BOOTSTRAP
    assert judge(log(WAITED), log(NOBODY_THERE, at=20.0)).cause is Cause.NCCL_HANG_UNKNOWN


def test_a_warning_that_came_true_is_heard() -> None:
    failed = "[c10d] The client socket has failed to connect to [n1]:29500 (errno: 110 - Connection timed out).\n"
    assert judge(log(f"[W socket.cpp:663] {failed}RuntimeError: {failed}")).cause is Cause.NETWORK_BOOTSTRAP


@pytest.mark.parametrize(
    "passing",
    [
        "xformers 0.0.20 requires torch==2.0.1, but you have torch 2.1.0 which is incompatible.\n",
        "A module that was compiled using NumPy 1.x cannot be run in NumPy 2.1.0 as it may crash.\n",
    ],
)
def test_what_is_said_in_passing_yields_to_what_the_program_fails_with(passing: str) -> None:
    assert judge(log(passing)).cause is Cause.SOFTWARE_ENV
    assert judge(log(f"{passing}KeyError: 'mask'\n")).cause is Cause.USER_CODE


PACKAGES = "/opt/env/lib/python3.11/site-packages"
QUOTING = {
    "torch of today": "OSError: Caught OSError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):"
    "\n",
    "torch 0.4": "OSError: Traceback (most recent call last):\n",
    "a process pool": 'concurrent.futures.process._RemoteTraceback: \n"""\nTraceback (most recent call last):\n',
    "Ray": "ray.exceptions.RayTaskError(OSError): ray::train() (pid=7, ip=10.0.0.7)\n",
}


@pytest.mark.parametrize("quoting", QUOTING.values(), ids=QUOTING)
def test_an_exception_that_quotes_another_one_leaves_it_to_that_one_to_say_what_happened(quoting: str) -> None:
    raised = (
        "Traceback (most recent call last):\n"
        f'  File "{PACKAGES}/torch/utils/data/dataloader.py", line 658, in _process_next_batch\n'
        "    raise batch.exc_type(batch.exc_msg)\n"
    )
    first = (
        '  File "/home/u/data.py", line 56, in __getitem__\n    pair = np.load(self.paths[i])\n'
        f'  File "{PACKAGES}/numpy/lib/npyio.py", line 404, in load\n    magic = fid.read(N)\n'
        "OSError: [Errno 5] Input/output error\n"
    )
    verdict = judge(log(raised + quoting + first))
    assert verdict.cause is Cause.FILESYSTEM_STORAGE and verdict.confidence >= 0.6
    assert judge(log(raised + quoting)).cause is not Cause.FILESYSTEM_STORAGE


def test_the_kernel_says_by_a_cleared_channel_which_xid_was_first() -> None:
    def judged(name: str, rest: str) -> Verdict:
        line = f"[  7.1] NVRM: Xid (PCI:0000:dc:00): 45, pid=7, name={name}, Ch 00000001{rest}\n".encode()
        return judge(LogReader(SIGNATURES, source=Source.KERNEL, where=Where(node="n1")).feed(line, NOW))

    named = judged("python3", " caused by previous Xid 149")
    assert (named.cause, named.drain_recommended) == (Cause.GPU_NVLINK, True)
    for name in ("python3", "Ch 1 caused by", "previous Xid 79"):  # a name has 15 bytes
        assert not judged(name, "").drain_recommended
    assert judged("previous Xid 79", " caused by previous Xid 149").cause is Cause.GPU_NVLINK


def test_a_prolog_that_fails_beside_a_mount_that_is_silent_is_the_storages() -> None:
    hook = (
        "[2026-03-04T12:00:00.638] error: run_command: slurm task_prolog can not be executed (/opt/prolog.sh) No such file\n"
        "[2026-03-04T12:00:00.638] error: TaskProlog failed status=1\n"
    )
    silent = "nfs: server 10.1.2.3 not responding, timed out\n"
    assert judge(log(hook)).cause is Cause.NODE_OS_OR_HOST
    assert judge(log(hook + silent)).cause is Cause.FILESYSTEM_STORAGE
