"""A requeued job's output is appended to its log: the run that ended last is judged."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from shipped import shipped_rules, shipped_signatures

from sentinel.classify import classify
from sentinel.evidence.logs.reader import LogReader
from sentinel.evidence.logs.run_starts import RunStart, RunStarts
from sentinel.model.records import Cause, Evidence, Incident, UnknownKind, Verdict, Where

NOW = datetime(2026, 3, 5, tzinfo=UTC)
HEAD = ["Starting train on 4 nodes, attempt 1", "Python 3.11.9, torch 2.13.0", "cuda devices: 8, world size 32"]
AGAIN = ["Starting train on 4 nodes, attempt 12", *HEAD[1:]]
STEPS = [f"step {step} loss: 2.1" for step in range(5)]
PREEMPTED = "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-03-04T10:00:00 DUE TO PREEMPTION ***"
MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
FULL = "OSError: [Errno 28] No space left on device: '/home/u/ckpt/step_20.pt'"
REFUSED = "torch.distributed.DistNetworkError: The client socket has failed to connect to any network address."
GONE = "NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, GPU has fallen off the bus."


def verdict(*lines: str, beginning: bytes | None = b"") -> Verdict:
    reader = LogReader(shipped_signatures(), own_times=True, beginning=beginning)
    data = "".join(f"{line}\n" for line in lines).encode()
    found = (*reader.feed(data, NOW), *reader.finish(NOW))
    return classify(Incident("i1", NOW, NOW, evidence=found), rules=shipped_rules(), now=NOW)


def cause(*lines: str, beginning: bytes | None = b"") -> Cause:
    return verdict(*lines, beginning=beginning).cause


@pytest.mark.parametrize(
    ("ended", "said"), [(PREEMPTED, Cause.SCHEDULER_PREEMPT_OR_TIMELIMIT), (MEMORY, Cause.APP_OOM_GPU)]
)
def test_the_last_run_s_end_counts(ended: str, said: Cause) -> None:
    assert cause(*HEAD, "read the index", *STEPS, ended, *AGAIN, "read the index", FULL) is Cause.DISK_FULL
    assert cause(*HEAD, ended, *AGAIN, FULL) is Cause.DISK_FULL
    assert cause(*HEAD, *STEPS, ended, "another line", FULL) is said  # one run: what came first
    assert cause(*HEAD, ended, *AGAIN, FULL, beginning=None) is said  # a part of a log has no known beginning
    head = "".join(f"{line}\n" for line in (*HEAD, *STEPS)).encode()
    assert cause(ended, *AGAIN, *STEPS, FULL, beginning=head) is Cause.DISK_FULL


def test_another_step_of_one_script_prints_the_same_lines_first() -> None:
    """Of a container, say; what it then does is another thing. Slurm's own word is another run's beginning, though."""
    assert cause(*HEAD, *STEPS, MEMORY, *AGAIN, FULL) is Cause.APP_OOM_GPU
    assert cause(*HEAD, *STEPS, PREEMPTED, *AGAIN, FULL) is Cause.DISK_FULL


def test_a_rank_that_is_late_finds_nobody() -> None:
    assert cause(*HEAD, MEMORY, *AGAIN, REFUSED) is Cause.APP_OOM_GPU
    assert cause(*HEAD, PREEMPTED, *AGAIN, REFUSED) is Cause.NETWORK_BOOTSTRAP


def test_what_slurm_ended_by_another_log_ended_no_run_of_this_one() -> None:
    found: list[Evidence] = []
    for path, lines in (
        ("out.txt", [*HEAD, MEMORY, *AGAIN, REFUSED]),
        ("other.txt", ["begin", "next", "step", PREEMPTED]),
    ):
        reader = LogReader(shipped_signatures(), where=Where(path=path), own_times=True)
        found += [*reader.feed("".join(f"{line}\n" for line in lines).encode(), NOW), *reader.finish(NOW)]
    verdict = classify(Incident("i1", NOW, NOW, evidence=tuple(found)), rules=shipped_rules(), now=NOW)
    memory = [ground for ground in verdict.grounds + verdict.against if ground.evidence.text == MEMORY]
    assert memory and "went on" not in memory[0].note


def test_what_convicts_a_machine_holds_for_the_run_after_it() -> None:
    assert cause(*HEAD, GONE, *AGAIN, MEMORY) is Cause.GPU_FALLEN_OFF_BUS


def test_a_run_that_only_began_or_goes_on() -> None:
    assert cause(*HEAD, *STEPS, FULL, *AGAIN) is Cause.DISK_FULL
    goes_on = verdict(*HEAD, *STEPS, FULL, *AGAIN, *STEPS)
    assert (goes_on.cause, goes_on.unknown_kind) == (Cause.UNKNOWN, UnknownKind.NO_FAILURE)
    assert verdict(*HEAD, *HEAD, *STEPS, *STEPS).unknown_kind is UnknownKind.NO_FAILURE  # of two ranks


@pytest.mark.parametrize(
    "head",
    [
        ["step 1 loss: 2.1", "step 2 loss: 2.0", "step 3 loss: 1.9"],  # a loop's
        ["global_step=1 train", "epochs: 1 of 3 done", "loss=2.1 lr=0.1"],
        ["====", "", "-----"],
        ["[  120.118822] Call Trace:", "[  120.118823]  ? down+0x12/0x20", "[  120.118824]  ? up+0x12/0x20"],
        [f"2026-03-04T10:00:0{n}.123456+00:00 n1 kernel: pcieport 0000:00:01.0: AER: {w}" for n, w in enumerate("abc")],
    ],
)
def test_what_a_log_repeats_anyway_is_no_beginning(head: list[str]) -> None:
    assert cause(*head, MEMORY, *head, FULL) is Cause.APP_OOM_GPU


def last(starts: RunStarts, block: bytes) -> list[RunStart]:
    return starts.last(block, block.count(b"\n"))


@pytest.mark.parametrize("size", [1, 7, 64, 1 << 20])
def test_found_however_the_bytes_come(size: int) -> None:
    first = ["Fri Nov 20 10:00:00 UTC 2026", "", "=====", "Running on gpu9", "modules: cuda/12.4", *STEPS]
    again = ["Sat Dec  1 09:00:00 UTC 2026", "", "=====", "Running on gpu10", "modules: cuda/12.4", *STEPS]
    data = "".join(f"{line}\n" for line in (*first, *["noise"] * 3000, *again)).encode()
    starts, found, line = RunStarts(), [], 0
    blocks = [data[at : at + size] for at in range(0, len(data), size)] if size > 1 else data.splitlines(keepends=True)
    pending = b""
    for piece in blocks:
        pending += piece
        block, pending = pending[: pending.rfind(b"\n") + 1], pending[pending.rfind(b"\n") + 1 :]
        if block:
            found += [(line + start.line, start.followed) for start in last(starts, block)]
            line += block.count(b"\n")
    assert found[-1:] == [(len(first) + 3000, True)] or found[-1:] == [(len(first) + 3000, False)]


def test_the_last_beginning_and_the_last_that_is_followed() -> None:
    head, rest = b"first line here\nsecond line here\nthird line here\n", b"fourth line here\n1\n2\n3\n"
    found = last(RunStarts(), head + rest + b"x\n" + head + rest + b"y\n" + head + b"other words\n")
    assert found == [RunStart(8, followed=True), RunStart(16, followed=False)]


def test_another_rank_s_first_lines_are_no_restart() -> None:
    labelled = [[f"{rank}: {line}" for line in (*HEAD, "reading the index")] for rank in (0, 3)]
    assert cause(*labelled[0], f"0: {MEMORY}", *labelled[1], f"3: {FULL}") is Cause.APP_OOM_GPU
    assert cause(*labelled[0], f"0: {MEMORY}", *labelled[0], f"0: {FULL}") is Cause.DISK_FULL


def test_the_lines_behind_a_head_may_be_in_the_next_block() -> None:
    starts, text = RunStarts(), "".join(f"{line}\n" for line in (*HEAD, "reading the index", *STEPS)).encode()
    head = len("".join(f"{line}\n" for line in HEAD))
    assert [start.followed for start in last(starts, text + text[:head])] == [False]
    assert last(starts, text[head:]) == [RunStart(-3, followed=True)]


def test_long_runs_of_blanks_cost_no_more_than_other_bytes() -> None:
    starts, head = RunStarts(), "".join(f"{line}\n" for line in (*HEAD, *STEPS)).encode()
    last(starts, head + b" " * 4_000_000 + b"\n" + b"1 " * 500_000 + b"\n")
    assert len(last(starts, head)) == 1
