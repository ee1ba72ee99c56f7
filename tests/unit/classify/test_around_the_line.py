"""What stands around a line: hints that mean nothing, a data set still being prepared, the end of a training."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from shipped import shipped_rules, shipped_signatures

from sentinel.classify import classify
from sentinel.classify.context import KEPT_OF_A_RULE
from sentinel.cli.offline.unread_lines import with_unread
from sentinel.evidence.logs.limits import LIMIT
from sentinel.evidence.logs.reader import LogReader, Signatures
from sentinel.model.records import Cause, Incident, Source, UnknownKind, Verdict, Where

NOW = datetime(2026, 3, 4, 12, tzinfo=UTC)
RULES = shipped_rules()
SIGNATURES = shipped_signatures()


def judge(text: str, signatures: Signatures = SIGNATURES) -> Verdict:
    reader = LogReader(signatures, source=Source.JOB_LOG, where=Where(path="out.txt"))
    evidence = reader.feed(text.encode(), NOW) + reader.finish(NOW)
    return classify(Incident("i", NOW, NOW, evidence=tuple(evidence)), rules=RULES, now=NOW)


WATCHDOG = (
    "[rank2]:[E ProcessGroupNCCL.cpp:475] [Rank 2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=2, "
    "OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=1800000) ran for 1800572 milliseconds before timing out.\n"
)


def bar(done: int, what: str = "Running tokenizer on dataset") -> str:
    return f"{what}: {done:3}%|{'#' * (done // 10):10}| {done * 20}/2000 [10:55<48:08, 15.57 examples/s]\n"


@pytest.mark.parametrize(
    "waited",
    [
        "RuntimeError: [1] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store by "
        "key '0', but store->get('0') got error: Socket Timeout",
        "[rank1]:[W516 14:34:56 socket.cpp:489] [c10d] waitForInput: socket SocketImpl(fd=79, addr=[localhost]:41170, "
        "remote=[localhost]:29500) timed out after 1800000ms",
        "torch.distributed.DistStoreError: wait timeout after 1800000ms, keys: /default_pg/0//cuda//0",
    ],
)
def test_a_limit_of_the_store_that_ends_while_the_data_set_is_prepared_is_too_short(waited: str) -> None:
    assert judge(bar(47) + waited + "\n").cause is Cause.USER_CONFIG
    assert judge(waited + "\n").cause is Cause.NETWORK_BOOTSTRAP
    assert judge(bar(100) + waited + "\n").cause is Cause.NETWORK_BOOTSTRAP


def test_a_rank_that_never_came_is_no_limit_too_short() -> None:
    waited = "torch.distributed.DistStoreError: Timed out after 61 seconds waiting for clients. 1/2 clients joined.\n"
    assert judge(bar(47) + waited).cause is Cause.NETWORK_BOOTSTRAP


def test_a_limit_that_ends_while_the_data_set_is_prepared_is_too_short() -> None:
    assert judge(bar(8) + bar(9) + WATCHDOG).cause is Cause.USER_CONFIG
    assert judge(bar(12, "Map (num_proc=8)") + WATCHDOG).cause is Cause.USER_CONFIG
    of_unknown_size = "Generating train split: 5180000 examples [28:12, 3061.40 examples/s]\n"
    assert judge(of_unknown_size + WATCHDOG).cause is Cause.USER_CONFIG


def test_a_data_set_that_was_ready_explains_no_hang() -> None:
    assert judge(bar(9) + bar(100) + WATCHDOG).cause is Cause.NCCL_HANG_UNKNOWN
    trained = "step 12 | loss 2.31\n"
    assert judge(bar(9) + trained + WATCHDOG).cause is Cause.NCCL_HANG_UNKNOWN
    of_seconds = "Generating train split: 6400 examples [00:03, 2133.33 examples/s]\n"
    assert judge(of_seconds + WATCHDOG).cause is Cause.NCCL_HANG_UNKNOWN


def test_a_data_set_that_is_prepared_is_no_failure() -> None:
    assert judge(bar(8) + bar(9) + "".join(f"step {step} loss 2.1\n" for step in range(9))).cause is Cause.UNKNOWN


def test_ranks_that_waited_for_minutes_after_the_training_had_ended_were_not_torn_down() -> None:
    signatures = Signatures(with_unread(RULES))
    ended = "`Trainer.fit` stopped: `max_epochs=3` reached.\n"
    assert judge(ended + WATCHDOG, signatures).cause is Cause.NCCL_HANG_UNKNOWN
    torn_down = "[rank2]:[E] recvBytes failed on SocketImpl: Connection reset by peer\n"
    assert judge(ended + torn_down, signatures).cause is Cause.UNKNOWN


HINTS = (
    "OMP_NUM_THREADS environment is not set. Defaulting to 1 thread. (src/comm.cpp:99)\n",
    "INFO:jax._src.xla_bridge:945: Unable to initialize backend 'tpu': INTERNAL: Failed to open libtpu.so\n",
    "n1:7:9 [0] misc/ibvwrap.cc:60 NCCL WARN Failed to open libibverbs.so[.1]\n",
    "WARNING:mlflow.utils.rest_utils:Retrying (JitteredRetry(total=6, connect=7, read=7)) after connection broken\n",
)
ERRORS = {
    Cause.USER_CONFIG: "ERROR: Unknown pair style eam/alloy/kk (src/force.cpp:275)\n",
    Cause.SOFTWARE_ENV: "NCCL WARN CUDA Driver version found is 11030. Minimum requirement is 12020\n",
}


@pytest.mark.parametrize("hint", HINTS, ids=range(len(HINTS)))
@pytest.mark.parametrize("cause", ERRORS)
def test_a_hint_takes_nothing_from_what_other_lines_say(hint: str, cause: Cause) -> None:
    alone, beside = judge(ERRORS[cause]), judge(hint + ERRORS[cause])
    assert alone.cause is cause and beside.cause is cause
    assert beside.confidence == pytest.approx(alone.confidence, abs=0.01)
    assert judge(hint).cause is Cause.UNKNOWN and judge(hint).unknown_kind is not UnknownKind.UNDECIDED


def test_a_bus_error_in_shared_memory_is_a_setting() -> None:
    bus = 'Thread 7 "train" received signal SIGBUS, Bus error.\n'
    frame = "#0  0x00007f6b59544f3b in ncclShmOpen(char*, unsigned long, void**) () from libnccl.so.2\n"
    assert judge(bus).cause is Cause.DATALOADER
    assert judge(bus + frame).cause is Cause.USER_CONFIG
    assert judge(frame).cause is Cause.UNKNOWN


def test_a_preparation_whose_end_was_not_kept_is_not_taken_for_one_that_goes_on() -> None:
    """Of a log that is followed only the first lines of a rule are kept."""
    assert KEPT_OF_A_RULE == LIMIT
    reader = LogReader(SIGNATURES, source=Source.JOB_LOG, where=Where(path="out.txt"))
    found = []
    for done in range(101):
        bar = f"{done:3}%|{'#' * (done // 10):10}| {done * 20}/2000 [10:55<48:08, 15.57 examples/s]"
        line = f"Running tokenizer on dataset: {bar}\n"
        found += reader.feed(line.encode(), NOW)
    found += reader.feed(
        b"[rank2]:[E ProcessGroupNCCL.cpp:475] [Rank 2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=2, "
        b"OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=1800000) ran for 1800572 milliseconds before timing out.\n",
        NOW,
    )
    assert (
        classify(Incident("i", NOW, NOW, evidence=tuple(found)), rules=RULES, now=NOW).cause is Cause.NCCL_HANG_UNKNOWN
    )


def test_steps_of_a_run_that_had_finished_say_nothing_of_the_paths_of_the_next() -> None:
    signatures = Signatures(with_unread(RULES))
    steps = "".join(f"step {step} | loss 2.1\n" for step in range(9))
    missing = (
        "FileNotFoundError: Caught FileNotFoundError in DataLoader worker process 3.\n"
        "FileNotFoundError: [Errno 2] No such file or directory: '/data/images/0412.jpg'\n"
    )
    assert judge(steps + missing, signatures).cause is Cause.DATALOADER
    assert judge(steps + "Training completed successfully\n" + missing, signatures).cause is Cause.USER_CONFIG


def traceback(*frames: tuple[str, str, str], prefix: str = "") -> str:
    lines = ["Traceback (most recent call last):"]
    for file, function, source in frames:
        lines += [f'  File "{file}", line 12, in {function}', f"    {source}", "    ^^^^^^^^^"]
    return "".join(f"{prefix}{line}\n" for line in lines)


SITE = "/opt/venv/lib/python3.11/site-packages"
MAIN = ("/home/u/run/train.py", "main", "trainer.fit(model)")


@pytest.mark.parametrize("prefix", ["", "[rank3]: ", "2026-03-04 11:59:01,120 - train - ERROR - "])
@pytest.mark.parametrize(
    ("frame", "cause"),
    [
        (("/usr/lib/python3.11/tarfile.py", "read", 'raise ReadError("unexpected end of data")'), Cause.DATALOADER),
        ((f"{SITE}/torch/utils/data/dataloader.py", "_try_get_data", "data = self._data_queue.get("), Cause.DATALOADER),
        ((f"{SITE}/torch/distributed/checkpoint/default_planner.py", "plan", "return make("), Cause.CHECKPOINT_CORRUPT),
        ((f"{SITE}/torch/serialization.py", "_save", "zip_file.write_record(name, storage)"), Cause.DISK_FULL),
        ((f"{SITE}/peft/tuners/lora/layer.py", "merge", "delta = self.get_delta(name)"), Cause.SOFTWARE_ENV),
        (("/home/u/run/loss.py", "total", "return sum(parts) / n"), Cause.USER_CODE),
    ],
)
def test_a_traceback_that_breaks_off_is_judged_by_its_frames(
    prefix: str, frame: tuple[str, str, str], cause: Cause
) -> None:
    samples = (f"{SITE}/webdataset/tariterators.py", "__next__", "sample = next(members)")
    frames = [MAIN, samples, frame] if "tarfile" in frame[0] else [MAIN, frame]
    cut = traceback(*frames, prefix=prefix)
    assert judge(cut).cause is cause
    assert judge(cut.rstrip("\n^ ")).cause is cause
    assert judge(f'{cut}{prefix}  File "/opt/venv/li').cause is cause  # cut within the next frame
    assert judge(f"{cut}{prefix}KeyboardInterrupt\n").cause is not cause  # a whole one has its own reasons


def test_a_traceback_that_breaks_off_says_nothing_beside_what_is_said() -> None:
    cut = traceback(MAIN, (f"{SITE}/torch/distributed/launcher/api.py", "launch_agent", "raise failed"))
    killed = "[E api.py] torch.distributed.elastic.multiprocessing.api: failed (exitcode: -9) local_rank: 0 (pid: 26)\n"
    assert judge(killed + cut).cause is judge(killed).cause
    ended = traceback(MAIN) + "ValueError: bad\nWARN slow call at\n" + traceback(MAIN).split("\n", 1)[1]
    assert judge(ended).cause is judge(traceback(MAIN) + "ValueError: bad\n").cause
    stack = traceback(MAIN).replace("Traceback", "Stack")
    assert judge(stack).cause is Cause.UNKNOWN  # a logger's, where it was called from


def test_a_call_in_a_line_that_was_cut_is_not_compared() -> None:
    told = (
        "[E ProcessGroupNCCL.cpp:737] [Rank {}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=469508, "
        "OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1802212 milliseconds before timing out.\n"
    )
    whole = told.format(1) + told.format(3)
    assert judge(whole + told.format(5)[:128]).cause is judge(whole).cause is Cause.NCCL_HANG_UNKNOWN
