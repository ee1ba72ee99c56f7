"""Which of several errors ended the job: what Python ignores, what a traceback quotes, what a limit ends that had failed."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from shipped import shipped_rules, shipped_signatures

from sentinel.classify import classify
from sentinel.evidence.logs.reader import LogReader
from sentinel.model.records import Cause, Incident, Recommendation, Verdict, Where

NOW = datetime(2026, 3, 4, 12, tzinfo=UTC)
RULES = shipped_rules()
SIGNATURES = shipped_signatures()
PACKAGES = "/opt/env/lib/python3.11/site-packages"
OWN = "/home/u/run/train.py"
LIMIT = "slurmstepd: error: *** JOB 52 ON c4 CANCELLED AT 2026-03-04T11:30:22 DUE TO TIME LIMIT ***\n"
FAILED = (
    f'Traceback (most recent call last):\n  File "{OWN}", line 7, in main\n    go(rows[9])\n'
    "IndexError: list index out of range\n"
)
STEPS = "".join(f"iteration {i:8d}/ 5000 | lm loss: 2.1 |\n" for i in range(20))


def judge(text: str) -> Verdict:
    reader = LogReader(SIGNATURES, where=Where(job=52, path="out.txt"))
    found = reader.feed(text.encode(), NOW) + reader.finish(NOW)
    return classify(Incident("i1", NOW, NOW, job=52, evidence=tuple(found)), rules=RULES, now=NOW)


def test_a_time_limit_ends_a_job_whose_program_had_failed_before() -> None:
    """One rank raised, the others waited for it until the limit."""
    assert judge(FAILED + LIMIT).cause is Cause.USER_CODE
    assert judge(LIMIT + FAILED).cause is Cause.SCHEDULER_PREEMPT_OR_TIMELIMIT  # torn down by it
    assert judge(FAILED + STEPS + LIMIT).cause is Cause.SCHEDULER_PREEMPT_OR_TIMELIMIT  # it had gone on
    assert judge(STEPS + LIMIT).cause is Cause.SCHEDULER_PREEMPT_OR_TIMELIMIT


@pytest.mark.parametrize("prefix", ["", "[rank3]: "])
@pytest.mark.parametrize(
    "said",
    [
        "Exception ignored in: <function _MultiProcessingDataLoaderIter.__del__ at 0x7f>",
        "Exception ignored while calling deallocator <function f at 0x7f>:",
    ],
)
def test_what_python_ignores_in_a_destructor_ended_nothing(said: str, prefix: str) -> None:
    ignored = (
        said,
        "Traceback (most recent call last):",
        f'  File "{PACKAGES}/torch/utils/data/dataloader.py", line 1479, in __del__',
        "    self._shutdown_workers()",
        f'  File "{PACKAGES}/torch/utils/data/_utils/signal_handling.py", line 66, in handler',
        "    _error_if_any_worker_fails()",
        "RuntimeError: DataLoader worker (pid 4067) is killed by signal: Aborted.",
    )
    text = "".join(f"{prefix}{line}\n" for line in ignored)
    assert judge(text + FAILED).cause is Cause.USER_CODE
    gone = f"{prefix}terminate called after throwing an instance of 'std::bad_alloc'\n"
    assert judge(text + gone).cause is judge(gone).cause is not Cause.UNKNOWN  # it follows, and is not ignored
    assert judge(text).cause is not Cause.DATALOADER
    assert judge(text.replace(said, "something else")).cause is Cause.DATALOADER


@pytest.mark.parametrize("prefix", ["", "[rank3]: "])
@pytest.mark.parametrize(
    "source", ["return next(self.rows)  # may raise StopIteration", 'self.fail("CUDA out of memory")']
)
def test_source_that_a_traceback_quotes_is_no_error(source: str, prefix: str) -> None:
    lines = ("Traceback (most recent call last):", f'  File "{OWN}", line 7, in main', f"    {source}", "KeyError: 7")
    text = "".join(f"{prefix}{line}\n" for line in lines)
    assert judge(text).cause is judge(text.replace(source, "go()")).cause is Cause.USER_CODE
    assert [ground.evidence.line for ground in judge(text).grounds] == [4]


def test_what_another_rank_wrote_behind_the_bracket_of_a_quoted_raise_is_in_its_next_line() -> None:
    said = "Target modules {'wq'} not found in the base model. Please check the target modules and try again."
    text = f"    raise ValueError(ValueError\n: {said}\nValueError: {said}\n"
    assert [ground.evidence.line for ground in judge(text).grounds] == [3]
    assert judge(text).cause is Cause.USER_CONFIG


@pytest.mark.parametrize(
    "level", ["10:02:03 [INFO] ", "10:02:03 - data - INFO - ", "10:02:03 | INFO     | data:go:7 - ", "[DEBUG] "]
)
def test_what_a_logger_tells_as_information_ended_nothing(level: str) -> None:
    told = "image file is truncated: shards are concatenated or chained\n"
    assert judge(level + told + FAILED).cause is Cause.USER_CODE
    assert judge(told + FAILED).cause is Cause.DATALOADER


@pytest.mark.parametrize(
    ("frame", "source", "raised", "expected"),
    [
        (
            f"{PACKAGES}/PIL/_binary.py",
            "return unpack(form, c)[0]",
            "struct.error: unpack requires a buffer of 4 bytes",
            Cause.DATALOADER,
        ),
        (
            "/usr/lib/python3.11/multiprocessing/shared_memory.py",
            "self._fd = _posixshmem.shm_open(",
            "FileExistsError: [Errno 17] File exists: '/7_lock'",
            Cause.DATALOADER,
        ),
        (
            f"{PACKAGES}/frame/optim.py",
            "assert self.lr_warmup_steps < self.lr_decay_steps",
            "AssertionError",
            Cause.USER_CONFIG,
        ),
    ],
)
def test_the_innermost_frame_says_what_was_done(frame: str, source: str, raised: str, expected: Cause) -> None:
    text = f'Traceback (most recent call last):\n  File "{frame}", line 7, in go\n    {source}\n{raised}\n'
    assert judge(text).cause is expected


@pytest.mark.parametrize(
    ("caller", "expected"), [(f"{PACKAGES}/frame/loop.py", Cause.SOFTWARE_ENV), (OWN, Cause.USER_CODE)]
)
def test_a_type_that_the_tensor_library_refuses_is_its_callers_fault(caller: str, expected: Cause) -> None:
    text = (
        f'Traceback (most recent call last):\n  File "{caller}", line 9, in step\n    loss, out = self.loss(batch)\n'
        f'  File "{PACKAGES}/torch/_tensor.py", line 7, in __iter__\n    raise TypeError("iteration over a 0-d tensor")\n'
        "TypeError: iteration over a 0-d tensor\n"
    )
    assert judge(text).cause is expected


@pytest.mark.parametrize(
    "runner", ["hydra/core/utils.py", "hydra/_internal/utils.py", "click/core.py", "jsonargparse/_cli.py"]
)
def test_the_frames_that_start_a_program_say_nothing_of_its_settings(runner: str) -> None:
    started = f'  File "{PACKAGES}/{runner}", line 7, in run\n    return call()\n'
    lines = FAILED.split("\n", 1)
    assert judge(f"{lines[0]}\n{started}{lines[1]}").confidence == judge(FAILED).confidence


@pytest.mark.parametrize(
    "heading",
    [
        "RuntimeError: INTERNAL: From /job:worker/replica:0/task:0:",
        "jaxlib.xla_extension.XlaRuntimeError:",
        "RuntimeError: 2 root error(s) found.",
        "RuntimeError: the step failed with the following status:",
    ],
)
def test_an_exception_that_is_a_heading_leaves_the_word_to_the_lines_below_it(heading: str) -> None:
    below = "  (0) INTERNAL: Nrt::Load failed on NeuronCores 4-5(2): nrt_load status=10\n"
    frame = f'Traceback (most recent call last):\n  File "{OWN}", line 7, in main\n    step()\n'
    assert judge(f"{frame}{heading}\n{below}").cause is Cause.SOFTWARE_ENV
    far = "".join(f"loading part {number}\n" for number in range(40))
    assert judge(f"{frame}RuntimeError: the step failed:\n{far}{below}").cause is Cause.USER_CODE
    assert judge(f"{frame}IndexError: list index out of range\n{below}").cause is Cause.USER_CODE


WATCHDOG = (
    "[E ProcessGroupNCCL.cpp:523] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=907554, "
    "OpType=ALLREDUCE, NumelIn=38, NumelOut=38, Timeout(ms)=600000) ran for 600300 milliseconds before timing out.\n"
)


@pytest.mark.parametrize(
    "end", ["KeyboardInterrupt\n", "Terminated\n", "run.sh: line 7:  4711 Terminated   python t.py\n"]
)
def test_what_peers_and_workers_say_after_a_process_was_ended_from_outside_follows_from_it(end: str) -> None:
    workers = "RuntimeError: DataLoader worker (pid 4067) is killed by signal: Terminated.\n"
    ended = judge(STEPS + end + workers + WATCHDOG)
    assert ended.cause is Cause.SCHEDULER_PREEMPT_OR_TIMELIMIT
    assert judge(STEPS + WATCHDOG + end).cause is Cause.NCCL_HANG_UNKNOWN  # it was ended because it hung
    assert judge(STEPS + FAILED + end + WATCHDOG).cause is Cause.USER_CODE
    assert judge(STEPS + end + FAILED).cause is Cause.USER_CODE  # ranks write in any order
    killed = "RuntimeError: DataLoader worker (pid 4067) is killed by signal: Killed.\n"
    assert judge(STEPS + end + killed).cause is Cause.SCHEDULER_PREEMPT_OR_TIMELIMIT
    assert judge(end + WATCHDOG).cause is Cause.NCCL_HANG_UNKNOWN  # of a run that had not begun nothing is known


def test_a_letter_in_brackets_is_a_level_of_logging() -> None:
    told = "05:12:08.452 [I] Unable to open the plugin: libfoo.so: cannot open shared object file (abc.py:88)\n"
    assert judge(told + "KeyError: 'rows'\n").cause is Cause.USER_CODE
    assert judge(told.replace("[I] ", "") + "KeyError: 'rows'\n").cause is Cause.SOFTWARE_ENV


MISSING = "ModuleNotFoundError: No module named 'dataclasses'\n"


def test_what_the_batch_script_met_before_it_started_the_ranks_did_not_end_them() -> None:
    asked = "5: [rank5]: AssertionError: the schedules do not match\n"
    lost = "5: [rank5]: RuntimeError: [c10d] The client socket has timed out after 60s\n"
    assert judge(MISSING + asked).cause is judge(asked).cause is Cause.USER_CODE
    assert judge(MISSING + lost).cause is Cause.SOFTWARE_ENV  # the rank without the module never came
    assert judge("0: " + MISSING + asked).cause is Cause.SOFTWARE_ENV
    assert (
        judge(MISSING + asked.removeprefix("5: ")).cause is Cause.SOFTWARE_ENV
    )  # a rank's own, before it had a number
    assert judge(MISSING).cause is Cause.SOFTWARE_ENV


@pytest.mark.parametrize(
    "without", ["NotImplementedError: cannot find any torch accelerator? You need a GPU.", "No GPU found"]
)
def test_a_warning_why_cuda_did_not_start_names_the_cause_where_no_gpu_is_found(without: str) -> None:
    why = "torch/cuda/__init__.py:182: UserWarning: CUDA initialization: CUDA unknown error - this may be due to x\n"
    raised = f"ValueError: {without} Please set the device.\n"
    assert judge(why + raised).cause is Cause.GPU_GSP_OR_DRIVER
    assert judge(raised + why).cause is Cause.USER_CONFIG
    assert judge(why + "ValueError: Please set the learning rate.\n").cause is Cause.USER_CONFIG


@pytest.mark.parametrize(
    "asked", ["Received SIGUSR1: dumping stacks", "Received Signals.SIGTERM death signal, shutting down workers"]
)
def test_a_signal_that_asks_for_a_dump_or_that_a_launcher_passes_on_is_no_end_from_outside(asked: str) -> None:
    assert judge(f"{STEPS}{asked}\n{WATCHDOG}").cause is Cause.NCCL_HANG_UNKNOWN


def test_gradients_that_overflow_and_then_do_not_are_no_failure() -> None:
    low = "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 4, reducing to 2\n"
    assert judge(STEPS + low).cause is Cause.NUMERICAL_NAN
    assert judge(low + STEPS + LIMIT).cause is Cause.SCHEDULER_PREEMPT_OR_TIMELIMIT


def test_no_gpu_in_an_allocation_by_hand_was_mostly_not_asked_for() -> None:
    none = "No devices were found\n"
    assert judge("salloc: Granted job allocation 1354\n" + none).cause is Cause.USER_CONFIG
    verdict = judge(none + "RuntimeError: No CUDA GPUs are available\n")
    assert verdict.cause is not Cause.USER_CONFIG and verdict.recommendation is Recommendation.SUSPECT


def test_a_command_that_the_shell_did_not_find_is_no_cause_of_an_exception_after_it() -> None:
    shell = "/var/spool/slurmd/job52/slurm_script: line 9: SBATCH: command not found\n"
    full = "RuntimeError: CUDA out of memory. Tried to allocate 174.00 MiB (GPU 0; 15.00 GiB total capacity)\n"
    assert judge(shell + full).cause is Cause.APP_OOM_GPU
    assert judge(full + shell).cause is Cause.APP_OOM_GPU
    assert judge(shell).cause is Cause.SOFTWARE_ENV


def test_a_program_that_python_did_not_find_is_no_cause_of_what_the_next_one_raised_long_after() -> None:
    missed = "python: can't open file 'train_script.py': [Errno 2] No such file or directory\n"
    full = "RuntimeError: CUDA out of memory. Tried to allocate 174.00 MiB (GPU 0; 15.00 GiB total capacity)\n"
    assert judge(missed + "a line of the next program\n" * 60 + full).cause is Cause.APP_OOM_GPU
    assert judge(missed + full).cause is Cause.USER_CONFIG  # another rank's may be
    assert judge("3: " + missed + "0: a line of another rank\n" * 60 + "0: " + full).cause is Cause.USER_CONFIG


def test_what_pytorch_logs_as_a_warning_of_a_rank_ended_nothing() -> None:
    told = "[rank24]:W0527 00:19:08.340000 50695 torch/_inductor/codecache.py:1052] [1/1] "
    error = "FileNotFoundError: [Errno 2] No such file or directory: '/tmp/torchinductor_u/triton/0/x.ttir'\n"
    assert judge(told + error + LIMIT).cause is Cause.SCHEDULER_PREEMPT_OR_TIMELIMIT
    assert judge(told.replace(":W0527", ":E0527") + error + LIMIT).cause is not Cause.SCHEDULER_PREEMPT_OR_TIMELIMIT


@pytest.mark.parametrize(("lines", "ended"), [(60, True), (9, False)])
def test_a_job_that_printed_on_for_long_after_a_notice_was_ended_by_its_limit(lines: int, ended: bool) -> None:
    notice = "ModuleNotFoundError: No module named 'fused_adam_cuda'\n"
    verdict = judge(notice + "a line of a loop of one's own\n" * lines + LIMIT)
    assert (verdict.cause is Cause.SCHEDULER_PREEMPT_OR_TIMELIMIT) is ended


@pytest.mark.parametrize(
    "notice",
    [
        "CommandNotFoundError: Your shell has not been properly configured to use 'conda activate'.\n",
        "/var/spool/slurmd/job7/slurm_script: line 9: nvidia-smi: command not found\n",
    ],
)
def test_a_batch_script_goes_on_after_what_its_shell_says(notice: str) -> None:
    assert judge(notice + LIMIT).cause is Cause.SCHEDULER_PREEMPT_OR_TIMELIMIT
    assert judge(notice).cause is Cause.SOFTWARE_ENV


@pytest.mark.parametrize("script", ["/var/spool/slurmd/job7/slurm_script", "train.sh", "./run/train.sh"])
def test_a_task_that_ends_later_did_not_end_by_what_its_script_missed(script: str) -> None:
    notice = f"{script}: line 12: module: command not found\n"
    later = "working\n" * 10 + "srun: error: n1: task 0: Exited with exit code 1\n"
    assert judge(notice + later + LIMIT).cause is Cause.SCHEDULER_PREEMPT_OR_TIMELIMIT
    assert judge(notice + "working\n" * 10 + LIMIT).cause is Cause.SCHEDULER_PREEMPT_OR_TIMELIMIT


def test_a_command_that_a_task_did_not_find_ended_it() -> None:
    ended = "srun: error: n1: task 0: Exited with exit code 127\n"
    assert (
        judge("run/task.sh: line 1: torchrun: command not found\n" + ended + "waiting\n" + LIMIT).cause
        is Cause.SOFTWARE_ENV
    )
    assert judge("bash: line 1: torchrun: command not found\n" + "waiting\n" + LIMIT).cause is Cause.SOFTWARE_ENV


@pytest.mark.parametrize(
    "raised",
    [
        "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)",
        "EOFError: Compressed file ended before the end-of-stream marker was reached",
        "_pickle.UnpicklingError: invalid load key, '\\x00'.",
        "zipfile.BadZipFile: File is not a zip file",
        "struct.error: unpack requires a buffer of 8 bytes",
        "ValueError: Unpack failed: incomplete input",
        "ValueError: the file is shorter than its header says: 1024 < 4096 bytes",
    ],
)
@pytest.mark.parametrize(
    ("file", "function", "expected"),
    [
        ("train.py", "resume", Cause.CHECKPOINT_CORRUPT),
        ("engine.py", "load_checkpoint", Cause.CHECKPOINT_CORRUPT),
        ("dataset.py", "__getitem__", Cause.DATALOADER),
        ("io.py", "_read_shard", Cause.DATALOADER),
        ("settings.py", "load_config", Cause.USER_CONFIG),
    ],
)
def test_content_that_cannot_be_read_is_of_what_was_being_read(
    file: str, function: str, expected: Cause, raised: str
) -> None:
    text = (
        f'Traceback (most recent call last):\n  File "{OWN}", line 9, in main\n    start(args)\n'
        f'  File "/home/u/run/{file}", line 7, in {function}\n    blob = read(path)\n{raised}\n'
    )
    assert judge(text).cause is expected
    assert judge(text.replace(raised, "TypeError: 'int' object is not callable")).cause is Cause.USER_CODE


@pytest.mark.parametrize(
    ("function", "line", "raised", "expected"),
    [
        (
            "load_checkpoint",
            "state = read(path)",
            "_pickle.UnpicklingError: Weights only load failed.",
            Cause.SOFTWARE_ENV,
        ),
        ("load_model", "if len(x) == n_items:", "NameError: name 'n_items' is not defined", Cause.USER_CODE),
        ("get_batch", "x = cut(y)", "ValueError: truncated BPTT requires seq_len > 1", Cause.USER_CODE),
        ("load_weights", "x = y", "NotImplementedError: magic method __getstate__ not supported", Cause.USER_CODE),
        ("get_data_parallel_group", "assert len(ranks) == world_size", "AssertionError", Cause.USER_CONFIG),
        ("load_checkpoint", "x = input()", "EOFError: EOF when reading a line", Cause.USER_CODE),
        ("_read_chunk", "assert len(result) == num_bytes", "AssertionError", Cause.DATALOADER),
        (
            "load_checkpoint",
            "if magic != MAGIC: raise ValueError(path)",
            "ValueError: step_200.bin",
            Cause.CHECKPOINT_CORRUPT,
        ),
    ],
)
def test_words_of_damage_in_another_meaning(function: str, line: str, raised: str, expected: Cause) -> None:
    frame = f'  File "/home/u/run/engine.py", line 7, in {function}\n    {line}\n'
    assert judge(f"Traceback (most recent call last):\n{frame}{raised}\n").cause is expected


def test_an_argument_that_is_no_tensor_was_handed_over_by_the_program() -> None:
    library = f'  File "{PACKAGES}/torch/nn/functional.py", line 29, in layer_norm\n'
    frames = f'  File "{OWN}", line 7, in main\n    net(x)\n{library}'
    said = "TypeError: layer_norm(): argument 'input' (position 1) must be Tensor, not NoneType\n"
    end = f"    return torch.layer_norm(input)\n{said}"
    assert judge(f"Traceback (most recent call last):\n{frames}{end}").cause is Cause.USER_CODE


def test_a_sentence_with_which_a_program_says_that_it_exits_is_an_error_whatever_its_level() -> None:
    said = "WARNING:root:You must run parse(conf) before loading data."
    assert judge(f"{said} Exiting.\n").cause is Cause.USER_CONFIG
    assert judge(f"{said}\n{STEPS}").cause is Cause.UNKNOWN
