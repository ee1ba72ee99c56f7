"""Ranks that wait in different calls, as their tracebacks say, and ranks that were given different numbers of steps."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from shipped import shipped_rules, shipped_signatures

from sentinel.classify import classify
from sentinel.evidence.logs.reader import LogReader
from sentinel.model.records import Cause, Incident, Verdict, Where

NOW = datetime(2026, 3, 4, 12, tzinfo=UTC)
RAN_OUT = (
    "RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 15000ms for recv operation to complete"
)
CLOSED = "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [192.0.2.7]:49029"
BACKWARD = 'File "/v/site-packages/torch/autograd/graph.py", line 979, in _engine_run_backward'


def judge(text: str) -> Verdict:
    reader = LogReader(shipped_signatures(), where=Where(job=52, path="out.txt"))
    found = reader.feed(text.encode(), NOW) + reader.finish(NOW)
    return classify(Incident("i1", NOW, NOW, job=52, evidence=tuple(found)), rules=shipped_rules(), now=NOW)


def in_call(op: str) -> str:
    return f'File "/v/site-packages/torch/distributed/distributed_c10d.py", line 3204, in {op}'


def waited(rank: int, frame: str, ended: str, between: int = 1) -> str:
    lines = ["Traceback (most recent call last):", '  File "/w/train.py", line 31, in run', f"  {frame}"]
    lines += ["    return self._run()"] * between + [ended]
    return "".join(f"[rank{rank}]: {line}\n" for line in lines)


@pytest.mark.parametrize("other", [in_call("all_gather"), in_call("broadcast"), in_call("barrier")])
def test_ranks_that_wait_in_different_calls_did_not_make_the_same_calls(other: str) -> None:
    for text in (
        waited(0, other, CLOSED) + waited(1, BACKWARD, RAN_OUT),
        waited(1, BACKWARD, RAN_OUT) + waited(0, other, CLOSED),
    ):
        verdict = judge(text)
        assert verdict.cause is Cause.COLLECTIVE_MISMATCH
        assert "ranks waited in different calls: " in verdict.grounds[0].note


def test_ranks_that_wait_in_one_call_wait_for_another() -> None:
    verdict = judge(waited(0, BACKWARD, CLOSED) + waited(1, BACKWARD, RAN_OUT))
    assert verdict.cause is Cause.NCCL_HANG_UNKNOWN


def test_where_no_wait_ran_out_a_rank_died_and_the_others_may_be_a_call_apart() -> None:
    verdict = judge(waited(0, in_call("all_gather"), CLOSED) + waited(1, BACKWARD, CLOSED))
    assert verdict.cause is not Cause.COLLECTIVE_MISMATCH


def test_a_frame_far_above_is_of_another_traceback() -> None:
    verdict = judge(waited(0, in_call("all_gather"), CLOSED, between=40) + waited(1, BACKWARD, RAN_OUT))
    assert verdict.cause is not Cause.COLLECTIVE_MISMATCH


def steps(totals: dict[int, int], loss: str = " loss 0.31") -> str:
    return "".join(f"[rank {rank}] epoch 0 batch 30/{total}{loss}\n" for rank, total in totals.items())


def test_ranks_with_different_numbers_of_steps_that_lose_each_other_have_uneven_data() -> None:
    verdict = judge(steps({0: 37, 1: 41, 2: 39}) + waited(1, BACKWARD, CLOSED))
    assert verdict.cause is Cause.COLLECTIVE_MISMATCH
    assert "rank 0 37, rank 1 41, rank 2 39" in verdict.grounds[0].note


def test_even_steps_and_lines_of_no_training_say_nothing_of_the_ranks() -> None:
    for text in (steps({0: 41, 1: 41}), steps({0: 37, 1: 41}, loss=""), steps({0: 37, 1: 41}) + steps({0: 41, 1: 37})):
        assert judge(text + waited(1, BACKWARD, CLOSED)).cause is not Cause.COLLECTIVE_MISMATCH
