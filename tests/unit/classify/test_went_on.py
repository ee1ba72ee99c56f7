"""Errors that a job went on after: caught, tried again, answered, told all along; and what it ended in then."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from shipped import shipped_rules

from sentinel.classify import classify
from sentinel.cli.offline.classify_input import in_order
from sentinel.cli.offline.unread_lines import with_unread
from sentinel.evidence.logs.reader import LogReader, Signatures
from sentinel.model.records import Cause, Evidence, Incident, Recommendation, Source, Trust, UnknownKind, Verdict, Where

NOW = datetime(2026, 3, 4, 12, tzinfo=UTC)
RULES = shipped_rules()
AS_CLASSIFY = Signatures(with_unread(RULES))
TRACEBACK = 'Traceback (most recent call last):\n  File "/home/u/run/train.py", line 120, in {}\n    {}\n'
NOT_THERE = TRACEBACK.format("step", 'z = out["logit"]') + "KeyError: 'logit'\n"
SAID = "HTTPConnectionPool(host='data01', port=80): Max retries exceeded with url: /s/17\n"
CLOSED = TRACEBACK.format("get", "r = s.get(url)") + f"requests.exceptions.ConnectionError: {SAID}"
FULL = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB.\n"
TIME_LIMIT = "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-03-04T11:00:00 DUE TO TIME LIMIT ***\n"
BROKEN_SAVE = "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory\n"


def read(text: str, source: Source = Source.JOB_LOG, at: datetime = NOW, path: str = "out.txt") -> list[Evidence]:
    trust = Trust.USER if source is Source.JOB_LOG else Trust.SYSTEM
    reader = LogReader(AS_CLASSIFY, source=source, where=Where(path=path), own_times=True)
    found = reader.feed(text.encode(), at) + reader.finish(at)
    return in_order([replace(item, trust=trust) for item in found], at)


def judge(*evidence: Evidence) -> Verdict:
    return classify(Incident("i1", NOW, NOW, evidence=evidence), rules=RULES, now=NOW)


def cause(text: str) -> Cause:
    return judge(*read(text)).cause


def steps(first: int, last: int) -> str:
    return "".join(f"step {step} | loss 2.{step} | lr 3.0e-04\n" for step in range(first, last + 1))


@pytest.mark.parametrize(
    "says",
    [
        "(continuing without it)",
        "using torch scaled_dot_product_attention instead",
        "hub not reachable; using the local cache",
        "fetch: attempt 2/5 succeeded",
        "falling back to gloo",
        "batch of 64 does not fit, trying 32",
    ],
)
def test_an_error_whose_next_line_says_that_the_program_goes_on_is_a_warning(says: str) -> None:
    for error, said in ((FULL, Cause.APP_OOM_GPU), (CLOSED, Cause.DATALOADER)):
        assert cause(error + NOT_THERE) is said
        assert cause(f"{error}{says}\n{NOT_THERE}") is Cause.USER_CODE
        assert cause(f"{error}giving up, {says}\n{NOT_THERE}") is said


def test_an_error_told_twice_is_caught_once() -> None:
    assert cause(f"{SAID}{CLOSED}using the local cache\n{NOT_THERE}") is Cause.USER_CODE


def test_slurm_s_own_way_out_is_no_failure_of_the_node() -> None:
    moved = "slurmstepd: error: TMPDIR [/scratch/u/5] is not writeable\nslurmstepd: error: Setting TMPDIR to /tmp\n"
    assert cause(moved + steps(1, 2) + NOT_THERE) is Cause.USER_CODE


@pytest.mark.parametrize(
    ("end", "ended"), [(NOT_THERE, Cause.USER_CODE), (TIME_LIMIT, Cause.SCHEDULER_PREEMPT_OR_TIMELIMIT)]
)
def test_few_steps_are_enough_where_the_end_is_told_otherwise(end: str, ended: Cause) -> None:
    assert cause(steps(1, 3) + BROKEN_SAVE + end) is Cause.CHECKPOINT_CORRUPT
    assert cause(steps(1, 3) + BROKEN_SAVE + steps(4, 6) + end) is ended


def test_a_machine_s_fault_is_not_outlived_by_few_steps_where_what_runs_on_it_fails() -> None:
    fault = "n1: NVRM: Xid (PCI:0000:3b:00): 95, pid=7, name=python, Uncontained ECC error\n"
    failed = "RuntimeError: CUDA error: an illegal memory access was encountered\n"
    assert cause(fault + steps(1, 3) + failed) is Cause.GPU_MEMORY_ECC
    port = "n01:221:300 [0] NCCL WARN NET/IB : mlx5_2:1 Got async event : port error\n"
    assert cause(port + steps(1, 3) + NOT_THERE) is Cause.USER_CODE


def test_where_no_failure_is_shown_what_the_job_went_on_after_is_named() -> None:
    verdict = judge(*read(steps(1, 2) + BROKEN_SAVE + steps(3, 12)))
    assert (verdict.unknown_kind, verdict.confidence) == (UnknownKind.NO_FAILURE, 0.0)
    assert [other.cause for other in verdict.alternatives] == [Cause.CHECKPOINT_CORRUPT]
    assert [ground.evidence.line for ground in verdict.against] == [3]
    quiet = judge(*read(steps(1, 12)))
    assert (quiet.unknown_kind, quiet.alternatives, quiet.against) == (UnknownKind.NO_FAILURE, (), ())


def test_three_losses_and_nothing_more_are_enough() -> None:
    verdict = judge(*read(steps(1, 2) + BROKEN_SAVE + steps(3, 5)))
    assert (verdict.cause, verdict.unknown_kind) == (Cause.UNKNOWN, UnknownKind.NO_FAILURE)
    assert cause(steps(1, 2) + BROKEN_SAVE + steps(3, 4)) is Cause.CHECKPOINT_CORRUPT
    assert (
        cause(steps(1, 2) + BROKEN_SAVE + steps(2, 2) * 7) is Cause.CHECKPOINT_CORRUPT
    )  # other ranks print the same step
    assert cause(BROKEN_SAVE + steps(1, 5)) is Cause.CHECKPOINT_CORRUPT  # what was buffered is written below it
    bars = "".join(f"Loading modules: {n}/4 [00:15<00:00,  3.85s/it]\n" for n in range(4))
    assert cause(FULL + bars) is Cause.APP_OOM_GPU
    assert cause(TIME_LIMIT + steps(1, 4)) is Cause.SCHEDULER_PREEMPT_OR_TIMELIMIT  # a program that ignores SIGTERM


@pytest.mark.parametrize(
    "end",
    [
        "[14:03:58] max_iters reached, bye",
        "INFO  2025-04-02 09:05:31 reached target step 25000; exit 0",
        "2025-01-22 10:05:45,331 INFO train.py:241 exit status 0",
        "sweep done: 6 trials (3 complete, 1 pruned, 2 failed); best 0.8107 (trial 5)",
        "Job 'raysubmit_7Yd1Xv' succeeded",
        "speech.train:main:210 - all 4 epochs done, 1 file blocklisted",
    ],
)
def test_a_program_that_says_that_it_finished_did_not_fail(end: str) -> None:
    assert cause(f"{BROKEN_SAVE}{end}\n") is Cause.UNKNOWN
    assert cause(f"{end}\n{BROKEN_SAVE}") is Cause.CHECKPOINT_CORRUPT


def test_a_server_that_answers_again_is_not_what_a_program_failed_of() -> None:
    lost, found = "[1000.1] nfs: server fs01 not responding, still trying\n", "[1010.1] nfs: server fs01 OK\n"
    assert cause(lost + found + NOT_THERE) is Cause.USER_CODE
    assert cause(lost + found) is cause(lost + NOT_THERE) is Cause.FILESYSTEM_STORAGE
    assert cause(lost + found.replace("fs01", "fs02") + NOT_THERE) is Cause.FILESYSTEM_STORAGE
    assert cause(lost + found + lost + NOT_THERE) is Cause.FILESYSTEM_STORAGE


def test_a_throttled_gpu_that_is_told_all_along_ended_nothing() -> None:
    hot = "[W301] GPU 3 clocks throttled: SW power cap\n"
    told = "".join(hot + steps(step, step) for step in range(1, 20))
    assert cause(told + TIME_LIMIT) is Cause.SCHEDULER_PREEMPT_OR_TIMELIMIT
    assert cause(steps(1, 19) + hot + TIME_LIMIT) is Cause.GPU_THERMAL_POWER


def kernel(*lines: str) -> str:
    return "".join(f"{line}\n" for line in lines)


LOST = "n01 kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=221, name=python, GPU has fallen off the bus."
WORN = "n01 kernel: NVRM: Xid (PCI:0000:3b:00): 64, pid=221, name=python, Row remapping failure"
BOOT = "2026-02-20T10:36:00+00:00 n01 kernel: Linux version 5.15.0-91-generic (buildd@lcy02) (gcc 11.4.0)"


KILLED = (
    "2026-03-01T11:00:00+00:00 n01 kernel: Memory cgroup out of memory: Killed process 2211 (python) total-vm:99999kB, "
    "anon-rss:88888kB, file-rss:1kB, shmem-rss:0kB, UID:2001"
)


def test_a_fault_that_a_reboot_ended_is_no_later_job_s() -> None:
    before, after = f"2026-02-20T10:00:01+00:00 {LOST}", f"2026-02-20T11:00:01+00:00 {LOST}"

    def told(*lines: str, printed: str = "") -> Verdict:
        of_kernel = read(kernel(*lines), Source.KERNEL, path="dmesg.txt")
        return judge(*of_kernel, *(read(printed) if printed else []))

    assert told(before, KILLED).drain == told(before, BOOT).drain == told(before, BOOT, after, KILLED).drain == ("n01",)
    booted = told(before, BOOT, KILLED)
    assert (booted.cause, booted.drain) == (Cause.APP_OOM_HOST, ())
    worn = f"2026-02-20T10:00:01+00:00 {WORN}"
    assert told(worn, BOOT, KILLED).recommendation is told(worn, KILLED).recommendation  # memory stays worn
    assert told(before, BOOT, printed=f"2026-03-01 11:00:10 {NOT_THERE}").drain == ("n01",)  # a program says any time
    missing = "_slurm_rpc_node_registration node=n01: gres/gpu count reported lower than configured (7 < 8)"
    still = read(f"[2026-02-20T11:20:00.000] error: {missing}\n", Source.SLURM, path="slurmctld.log")
    assert judge(*read(kernel(before, BOOT), Source.KERNEL, path="dmesg.txt"), *still).drain == ("n01",)


def test_what_a_program_prints_takes_nothing_from_what_the_system_says() -> None:
    silent = read(
        "2026-03-01T10:00:00+00:00 n01 kernel: nfs: server fs01 not responding, still trying\n",
        Source.KERNEL,
        path="dmesg.txt",
    )
    forged = read(f"nfs: server fs01 OK\n{NOT_THERE}")
    assert judge(*silent, *forged).cause is judge(*silent).cause is Cause.FILESYSTEM_STORAGE
    stuck = "[2026-03-01T10:05:00.000] update_node: node n3 reason set to: Kill task failed\n"
    held = judge(*read(stuck, Source.SLURM, path="slurmctld.log"), *read(NOT_THERE))
    assert (held.cause, held.recommendation) == (Cause.NODE_OS_OR_HOST, Recommendation.SUSPECT)
    gone = read(
        "[2026-03-01T10:05:00.000] error: Nodes n07 not responding, setting DOWN\n", Source.SLURM, path="slurmctld.log"
    )
    claim = f"2026-03-01 10:00:00 {LOST}\nslurmstepd: error: *** JOB 9 ON n01 CANCELLED AT x DUE TO NODE FAILURE ***\n"
    assert judge(*gone, *read(claim)).drain == ("n07",)


@pytest.mark.parametrize(
    "line",
    ["ValueError: Unrecognized attention implementation: None", "TypeError: unsupported operand type(s) for +: None"],
)
def test_an_exception_that_ends_in_no_is_one(line: str) -> None:
    assert cause(f"{line}\n") is not Cause.UNKNOWN


def test_one_counter_at_zero_hides_no_other() -> None:
    both = "GPU 4: 2 corrected ECC errors, 3 uncorrectable ECC errors\n"
    assert cause(both) is Cause.GPU_MEMORY_ECC
    assert cause("mlx5_0: state ACTIVE, link_downed=3, mlx5_1: link_downed=0\n") is Cause.NETWORK_FABRIC
    assert cause("mlx5_0: state ACTIVE, link_downed=0, mlx5_1: link_downed=3\n") is Cause.NETWORK_FABRIC


GONE = {
    "slurmctld.log": (
        Source.SLURM,
        "[2026-03-01T10:05:00.000] error: Nodes n01 not responding, setting DOWN\n"
        "[2026-03-01T10:05:00.010] requeue job JobId=9 due to failure of node n01\n",
    ),
    "slurm-9.out": (
        Source.JOB_LOG,
        "2026-03-01T10:00:00 step 10 loss 3\nsrun: error: Node failure on n01\n"
        "slurmstepd: error: *** JOB 9 ON n01 CANCELLED AT 2026-03-01T10:05:01 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR "
        "DETAILS ***\n",
    ),
}


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (LOST, Cause.GPU_FALLEN_OFF_BUS),
        ("n01 kernel: Kernel panic - not syncing: Fatal machine check", Cause.NODE_OS_OR_HOST),
        ("n01 kernel: mlx5_core 0000:c1:00.0: device's health compromised - reached miss count", Cause.NETWORK_FABRIC),
    ],
)
def test_what_a_machine_said_last_is_why_its_node_is_gone(said: str, why: Cause) -> None:
    gone = [item for path, (source, text) in GONE.items() for item in read(text, source, path=path)]
    assert judge(*gone).cause is Cause.NODE_FAILURE

    def after(words: str) -> Verdict:
        return judge(*read(kernel(words), Source.KERNEL, path="dmesg.txt"), *gone)

    verdict = after(f"2026-03-01T10:00:10+00:00 {said}")
    assert (verdict.cause, verdict.drain) == (why, ("n01",))
    assert after(f"2026-03-01T08:00:10+00:00 {said}").cause is Cause.NODE_FAILURE  # two hours are too long
    assert after(f"2026-03-01T10:00:10+00:00 {said.replace('n01', 'n02')}").cause is Cause.NODE_FAILURE


def test_noise_of_a_cancelled_step_suspects_nobody() -> None:
    cancelled = "slurmstepd: error: *** STEP 71.0 ON n01 CANCELLED AT 2026-03-01T10:00:00 ***\n"
    noise = (
        "n02:2211:2301 [3] NCCL WARN NET/IB : Got completion from peer 10.2.0.8<43111> with status=12 opcode=0 len=0 "
        "vendor err 129 (Recv) hca mlx5_3\n"
    )
    ended = "srun: error: n02: tasks 8-15: Terminated\n"
    verdict = judge(*read(steps(1, 3) + cancelled + noise + ended))
    assert (verdict.cause, verdict.suspect) == (Cause.SCHEDULER_PREEMPT_OR_TIMELIMIT, ())
    assert cause(steps(1, 3) + noise + cancelled + ended) is Cause.NETWORK_FABRIC
    failed = "srun: error: n02: task 8: Exited with exit code 1\n"
    assert cause(steps(1, 3) + cancelled + noise + failed) is not Cause.SCHEDULER_PREEMPT_OR_TIMELIMIT


def test_a_task_that_does_not_end_follows_from_what_ended_the_step() -> None:
    stuck = "slurmstepd: error: *** STEP 71.0 STEPD TERMINATED ON n2 AT 2026-03-01T10:02:00 DUE TO JOB NOT ENDING\n"
    assert cause(stuck) is Cause.NODE_OS_OR_HOST
    assert cause(NOT_THERE + "srun: error: n01: task 0: Exited with exit code 1\n" + stuck) is Cause.USER_CODE


def test_ranks_that_waited_for_one_say_so_before_it_says_why_it_failed() -> None:
    waited = (
        "0: torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 3/4 clients joined.\n"
    )
    late = "".join(f"3: {line}\n" for line in NOT_THERE.splitlines())
    assert cause(waited) is Cause.NETWORK_BOOTSTRAP
    assert cause(waited + late) is Cause.USER_CODE
    assert cause(waited + late.replace("3: ", "0: ")) is Cause.NETWORK_BOOTSTRAP  # its own, behind its limit


@pytest.mark.parametrize(
    "level",
    [
        "WARN  2025-04-02 08:15:07 resume: {}",
        "[W 2024-12-05 17:45:30,110] {}",
        "resume: step_50 unreadable ({}), using step_40",
    ],
)
def test_what_is_told_as_a_warning_yields_to_the_end(level: str) -> None:
    told = level.format(BROKEN_SAVE.rstrip()) + "\n"
    assert cause(told + NOT_THERE) is Cause.USER_CODE


@pytest.mark.parametrize(
    ("line", "at_fault"),
    [
        ("mlx5_0: state ACTIVE, LinkUp, link_downed={}", True),
        ("mlx5_0: link_downed delta {}, symbol_error delta 0", True),
        ("post: ibstat all ports Active 400, LinkDowned {}; nvidia-smi 8/8 on each", True),
        ("NHC: check_ps_kswapd: {}", False),
    ],
)
def test_a_counter_at_zero_and_a_check_that_passed_are_no_fault(line: str, at_fault: bool) -> None:
    assert cause(line.format("3" if at_fault else "swapping")) is not Cause.UNKNOWN
    assert cause(line.format("0" if at_fault else "OK")) is Cause.UNKNOWN


def test_what_a_number_names_is_not_zero_of_it() -> None:
    assert (
        judge(*read("nvidia-smi: Unable to determine the device handle for GPU: 0: GPU is lost\n")).cause
        is not Cause.UNKNOWN
    )
    later = NOW - timedelta(hours=1)
    assert read("step 1 loss 2.0\n", at=later)[0].at <= later


@pytest.mark.parametrize(
    "begins",
    [
        "sentinel: job 99 attempt {} begins",
        "SLURM_JOB_ID=99 SLURM_RESTART_COUNT={} nodes=n[1-2]",
        "[2026-03-04 01:50:00] try {} / nodes n[3-4]",
        "##### attempt {}  job 99 nodes n[3-4]",
        "[job 99] start (restart count {}), n7",
    ],
)
def test_of_attempts_that_are_numbered_the_last_one_counts(begins: str) -> None:
    first, second = (begins.format(number) + "\n" for number in (0, 1))
    log = first + steps(1, 9) + FULL + second + steps(5, 6) + NOT_THERE
    assert cause(log) is Cause.USER_CODE
    assert cause(log.replace(NOT_THERE, TIME_LIMIT)) is Cause.SCHEDULER_PREEMPT_OR_TIMELIMIT
    assert cause(log.replace(NOT_THERE, TIME_LIMIT).replace(second, "")) is Cause.APP_OOM_GPU
    assert cause(first + steps(1, 9) + FULL + second) is Cause.APP_OOM_GPU  # nothing came of the second


def test_the_mark_of_an_attempt_that_each_task_prints_begins_it_once() -> None:
    begins = "sentinel: job 99 attempt {} begins\n".format
    log = begins(0) + steps(1, 9) + begins(1) + steps(5, 6) + FULL + begins(1) + NOT_THERE
    assert cause(log) is Cause.APP_OOM_GPU


def test_numbers_that_are_finite_again_ended_nothing() -> None:
    bad = "step 1 | loss 9.1 | grad_norm nan\n"
    fine = "".join(f"step {step} | loss 8.{step} | grad_norm 1.{step}\n" for step in (2, 3, 4))
    assert cause(bad + fine + NOT_THERE) is Cause.USER_CODE
    assert cause(bad + fine.replace("1.4", "nan") + NOT_THERE) is Cause.NUMERICAL_NAN
    assert cause(fine + bad + NOT_THERE) is Cause.NUMERICAL_NAN


def test_lines_that_stand_for_ten_steps_each_show_that_numbers_are_finite_again() -> None:
    bad = "step 10 | loss 9.1 | grad_norm nan\n"
    every_tenth = "step 20 | loss 8.2 | grad_norm 1.2\nstep 30 | loss 8.1 | grad_norm 1.1\n"
    assert cause(bad + every_tenth + NOT_THERE) is Cause.USER_CODE
    assert cause(bad + every_tenth.replace("step 30", "step 21") + NOT_THERE) is Cause.NUMERICAL_NAN


@pytest.mark.parametrize(
    ("clean", "other"),
    [
        ("d01 2023-08-15_00:00:00 wrf: SUCCESS COMPLETE WRF", "d01 2023-08-15_00:00:00 wrf: SUCCESS"),
        ("JOB 30077 finished: exit 0:0 elapsed 05:12:44", "JOB 30077 finished: exit 1:0 elapsed 05:12:44"),
        ("[prep] export finished without a problem", "[prep] export finished with a problem"),
        ("0: finished all 90000 steps", "0: finished 90000 steps"),
        ("main.py: exiting 0", "main.py: exiting 3"),
        ("Benchmark complete: 3 cases, 0 failures", "Benchmark complete: 3 cases, 1 failures"),
        ("reached required accuracy - stopping structural energy minimisation", "State=COMPLETED ExitCode=0:0"),
        ("Job 220418 finished: exit code 0, elapsed 05:51:09", "+ exit 0"),
        ("Finished mdrun on rank 0 Mon Mar  4 05:06:07 2026", "rank 0 of mdrun finished"),
    ],
)
def test_a_clean_end_outlives_what_was_told_before_it(clean: str, other: str) -> None:
    assert judge(*read(f"{FULL}{clean}\n")).unknown_kind is UnknownKind.NO_FAILURE
    assert cause(f"{clean}\n{FULL}") is Cause.APP_OOM_GPU
    assert cause(f"{FULL}{other}\n") is Cause.APP_OOM_GPU


def test_a_shell_that_conda_does_not_know_ended_no_program_that_failed_otherwise() -> None:
    conda = "CommandNotFoundError: Your shell has not been properly configured to use 'conda activate'.\n"
    missing = "ModuleNotFoundError: No module named 'torch'\n"
    assert cause(conda + CLOSED) is Cause.DATALOADER
    assert cause(conda + missing) is Cause.SOFTWARE_ENV
    assert cause(conda) is Cause.SOFTWARE_ENV


def test_the_rows_of_a_loggers_table_are_steps() -> None:
    hint = "A requested component was not found, or was unable to be opened.  This\n"
    rows = "".join(f"| loss       | 11{n}      |\n| step       | 2.2{n}e+04 |\n" for n in range(9))
    assert cause(hint) is Cause.SOFTWARE_ENV
    assert judge(*read(hint + rows)).unknown_kind is UnknownKind.NO_FAILURE


def test_a_try_of_something_is_no_attempt_of_the_job() -> None:
    log = steps(1, 4) + FULL + "attempt 2 of 3 to read s3://b/x\n" + steps(5, 5)
    assert cause(log) is Cause.APP_OOM_GPU


def test_what_a_jobs_own_process_says_of_an_attempt_may_be_anything() -> None:
    evidence = read("sentinel: job 99 attempt 1 begins\n" + FULL)
    for text in ("x", "9" * 30, None, True, "\u0663"):
        told = [replace(e, data={"text": text}) if e.rule == "attempt-begins" else e for e in evidence]
        assert judge(*told).cause is Cause.APP_OOM_GPU


def test_the_last_retry_is_an_error() -> None:
    failed = "save failed, retry {}/3: OSError: [Errno 28] No space left on device\n"
    assert cause(failed.format(1) + NOT_THERE) is Cause.USER_CODE
    assert cause(failed.format(3) + NOT_THERE) is Cause.DISK_FULL
