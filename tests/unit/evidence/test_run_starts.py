"""A requeued job's output is appended to its log: the run that ended last is judged."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from shipped import shipped_rules, shipped_signatures

from sentinel.classify import classify
from sentinel.evidence.logs.reader import LogReader
from sentinel.model.records import Cause, Incident

NOW = datetime(2026, 3, 5, tzinfo=UTC)
HEAD = ["Starting train on 4 nodes, attempt 1", "Python 3.11.9, torch 2.13.0", "cuda devices: 8, world size 32"]
AGAIN = ["Starting train on 4 nodes, attempt 2", *HEAD[1:]]
STEPS = [f"step {step} loss: 2.1" for step in range(5)]
PREEMPTED = "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-03-04T10:00:00 DUE TO PREEMPTION ***"
MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
FULL = "OSError: [Errno 28] No space left on device: '/home/u/ckpt/step_20.pt'"


def cause(*lines: str, begins: bool = True) -> Cause:
    reader = LogReader(shipped_signatures(), own_times=True, begins=begins)
    data = "".join(f"{line}\n" for line in lines).encode()
    found = (*reader.feed(data, NOW), *reader.finish(NOW))
    return classify(Incident("i1", NOW, NOW, evidence=found), rules=shipped_rules(), now=NOW).cause


@pytest.mark.parametrize(
    ("ended", "said"), [(PREEMPTED, Cause.SCHEDULER_PREEMPT_OR_TIMELIMIT), (MEMORY, Cause.APP_OOM_GPU)]
)
def test_the_last_run_s_end_counts(ended: str, said: Cause) -> None:
    assert cause(*HEAD, *STEPS, ended, *AGAIN, FULL) is Cause.DISK_FULL
    assert cause(*HEAD, *STEPS, ended, "another line", FULL) is said  # one run: what came first
    assert cause(*HEAD, *STEPS, ended, *AGAIN, FULL, begins=False) is said  # a part of a log has no known beginning


def test_a_run_that_only_began_or_goes_on() -> None:
    assert cause(*HEAD, *STEPS, FULL, *AGAIN) is Cause.DISK_FULL
    assert cause(*HEAD, *STEPS, FULL, *AGAIN, *STEPS) is Cause.UNKNOWN


@pytest.mark.parametrize(
    "head",
    [
        ["step 1 loss: 2.1", "step 2 loss: 2.0", "step 3 loss: 1.9"],  # alike but for their digits
        ["====", "", "-----"],
        ["[  120.118822] Call Trace:", "[  120.118823]  ? down+0x12/0x20", "[  120.118824]  ? up+0x12/0x20"],
    ],
)
def test_what_a_log_repeats_anyway_is_no_beginning(head: list[str]) -> None:
    assert cause(*head, MEMORY, *head, FULL) is Cause.APP_OOM_GPU
