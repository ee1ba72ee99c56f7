"""Counters of ranks, in the forms in which watchdogs and people print them, compared with each other."""

from __future__ import annotations

import pytest
from in_memory.daemon import RULES
from made_records import AT
from shipped import shipped_signatures

from sentinel.classify import classify
from sentinel.evidence.logs.rank_states import rank_states
from sentinel.evidence.logs.reader import LogReader
from sentinel.model.rank_states import RankState, states_of
from sentinel.model.records import Cause, Incident, Verdict


def judge(text: str) -> Verdict:
    reader = LogReader(shipped_signatures())
    found = reader.feed(text.encode(), AT) + reader.finish(AT)
    return classify(Incident("i1", AT, AT, evidence=tuple(found)), rules=RULES, now=AT)


@pytest.mark.parametrize(
    ("line", "states"),
    [
        (
            "[rank5]:[E602 x.cpp:1743] [PG ID 0 PG GUID 0(default_pg) Rank 5] Received a dump signal. "
            "Last enqueued NCCL work: 136, last completed NCCL work: 135.",
            [RankState(5, group="0", enqueued=136, completed=135)],
        ),
        (
            "rank 2: last enqueued 5119, last completed 5118 (pg 2, REDUCE_SCATTER numel 8192)",
            [RankState(2, group="2", enqueued=5119, completed=5118, op="REDUCE_SCATTER", size="8192")],
        ),
        (
            "[rank4]:[E810 x.cpp:1858] [PG ID 0 PG GUID 0(default_pg) Rank 4] Received a dump signal due to a collective "
            "timeout from  rank 1 and we will try to dump. Last enqueued NCCL work: 77, last completed NCCL work: 77.",
            [RankState(4, group="0", enqueued=77, completed=77)],
        ),
        ("rank=7 enqueued=9 started=8 completed=7", [RankState(7, enqueued=9, started=8, completed=7)]),
        (
            "[rank3] stuck at seq 4410 op=BROADCAST shape=[1]; [rank0] stuck at seq 4410 op=ALLREDUCE shape=[64, 8]",
            [
                RankState(3, sequence=4410, op="BROADCAST", size="1"),
                RankState(0, sequence=4410, op="ALLREDUCE", size="64,8"),
            ],
        ),
        ("rank 3: collective_seq_id=18, op nccl:all_reduce", [RankState(3, sequence=18, op="ALLREDUCE")]),
        ("rank 3 finished step 12 of 40, sequence length 4096", []),
        ("last enqueued work: 5", []),  # of whom is not said
    ],
)
def test_states_of_ranks_are_read_in_every_form(line: str, states: list[RankState]) -> None:
    assert rank_states(line) == states
    packed = "".join(f"{state.packed()};" for state in states)
    assert states_of(packed) == states


def told(rank: int, enqueued: int, completed: int, op: str = "ALLGATHER", size: int = 4096) -> str:
    return f"rank {rank}: last enqueued {enqueued}, last completed {completed} (pg 2, {op} numel {size})\n"


def test_other_calls_at_one_place_are_a_mismatch() -> None:
    verdict = judge(told(0, 8, 7) + told(1, 8, 7, "REDUCE_SCATTER"))
    assert (verdict.cause, verdict.drain_recommended) == (Cause.COLLECTIVE_MISMATCH, False)


def test_other_sizes_at_one_place_are_a_mismatch_where_sizes_must_agree() -> None:
    assert judge(told(0, 8, 7, "ALLREDUCE") + told(1, 8, 7, "ALLREDUCE", 64)).cause is Cause.COLLECTIVE_MISMATCH
    assert judge(told(0, 8, 7, "ALLTOALL") + told(1, 8, 7, "ALLTOALL", 64)).cause is Cause.NCCL_HANG_UNKNOWN


def test_a_rank_that_never_made_the_call_is_named() -> None:
    verdict = judge(told(0, 8, 7) + told(1, 7, 7) + told(2, 8, 7))
    assert verdict.cause is Cause.NCCL_HANG_UNKNOWN
    assert verdict.culprits.ranks[0] == 1
    assert any("rank 1" in ground.note for ground in verdict.grounds)


def test_a_rank_that_waits_in_another_call_is_a_mismatch() -> None:
    others = told(0, 8, 7) + told(2, 8, 7)
    waits = "[rank1]: RuntimeError: [/p/gloo/transport/tcp/pair.cc:547] Connection closed by peer [192.0.2.7]:57000\n"
    assert judge(others + told(1, 7, 7) + waits).cause is Cause.COLLECTIVE_MISMATCH
    assert judge(others + told(1, 7, 7) + waits.replace("rank1", "rank2")).cause is Cause.NCCL_HANG_UNKNOWN
    refused = waits.replace("Connection closed by peer [192.0.2.7]", "connect [192.0.2.7]: Connection refused")
    assert judge(others + told(1, 7, 7) + refused).cause is not Cause.COLLECTIVE_MISMATCH


def test_all_ranks_in_one_call_is_a_hang_without_a_culprit() -> None:
    assert judge(told(0, 8, 7) + told(1, 8, 7)).cause is Cause.NCCL_HANG_UNKNOWN


def test_groups_are_not_compared_with_each_other() -> None:
    one = told(0, 8, 7)
    assert judge(one + one.replace("rank 0", "rank 1").replace("pg 2, ALLGATHER", "pg 3, BROADCAST")).cause is (
        Cause.NCCL_HANG_UNKNOWN
    )


def test_counters_of_a_run_that_went_well_are_no_failure() -> None:
    steps = "".join(
        f"iteration {n}/ 100 | lm loss: 2.1 | elapsed time per iteration (ms): 400.0 |\n" for n in range(20)
    )
    assert judge(told(0, 8, 8) + told(1, 8, 8) + steps).cause is Cause.UNKNOWN
