"""Calls that NCCL logs, compared across processes by their opCount."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from shipped import shipped_rules, shipped_signatures

from sentinel.classify import classify
from sentinel.evidence.logs.reader import LogReader
from sentinel.model.records import Cause, Incident, Source, Verdict, Where

NOW = datetime(2026, 3, 4, 12, tzinfo=UTC)


def call(rank: int, count: int, op: str = "AllReduce", ranks: int = 4, comm: int = 0, size: int = 128) -> str:
    return (
        f"n{rank // 2}:{500 + rank}:{500 + rank} [0] NCCL INFO {op}: opCount {count:x} sendbuff 0x7f00 recvbuff 0x7f00 "
        f"count {size} datatype 7 op 0 root 0 comm 0x55d{comm}{rank} [nranks={ranks}] stream 0x5592"
    )


def judge(lines: list[str]) -> Verdict:
    reader = LogReader(shipped_signatures(), source=Source.JOB_LOG, where=Where(job=7, path="out"))
    found = reader.feed("".join(f"{line}\n" for line in lines).encode(), NOW)
    found += reader.finish(NOW)
    incident = Incident("i1", NOW, NOW, job=7, nodes=(), evidence=tuple(found))
    return classify(incident, rules=shipped_rules(), now=NOW + timedelta(hours=1))


def test_ranks_in_different_calls_at_one_count_did_not_make_the_same_calls() -> None:
    same = [call(rank, count) for count in range(640) for rank in range(4)]
    verdict = judge([*same, *(call(rank, 640, "AllGather" if rank == 2 else "AllReduce") for rank in range(4))])
    assert verdict.cause is Cause.COLLECTIVE_MISMATCH
    assert "at opCount 280 some ranks are in AllReduce and some in AllGather" in verdict.grounds[0].note


def test_a_long_log_of_calls_is_read_to_its_end() -> None:
    same = [call(rank, count) for count in range(3000) for rank in range(4)]
    verdict = judge([*same, *(call(rank, 3000, "Broadcast" if rank else "AllReduce") for rank in range(4))])
    assert verdict.cause is Cause.COLLECTIVE_MISMATCH


def test_calls_alike_say_nothing_whatever_rank_is_ahead() -> None:
    lines = [call(rank, count) for rank in range(4) for count in range(50 + rank)]
    assert judge(lines).cause is Cause.UNKNOWN


def test_groups_that_cannot_be_told_apart_are_not_compared() -> None:
    """Two groups of two ranks, in different calls; calls between two ranks; and calls that were grouped."""
    pairs = [call(rank, 5, "AllReduce" if rank < 2 else "AllGather", ranks=2) for rank in range(4)]
    assert judge(pairs).cause is Cause.UNKNOWN
    assert judge([call(rank, 5, "Send" if rank % 2 else "Recv") for rank in range(4)]).cause is Cause.UNKNOWN
    grouped = [call(rank, 5, op) for rank in range(4) for op in ("AllReduce", "Broadcast")[:: 1 if rank else -1]]
    assert judge(grouped).cause is Cause.UNKNOWN


def test_ranks_of_two_groups_are_not_compared_where_others_are_not_logged() -> None:
    """Two of 16 ranks, each of a group of two of its own, as where every node shows its first rank only."""
    of_all = [call(rank, 3, ranks=16, comm=1) for rank in (0, 1)]
    pairs = [call(rank, 5, "AllReduce" if rank else "ReduceScatter", ranks=2) for rank in (0, 1)]
    assert judge([*of_all, *pairs]).cause is Cause.UNKNOWN


def test_a_rank_that_is_within_a_group_of_calls_is_in_no_other_call() -> None:
    """Of a long log only the last call is kept: a rank has made the first of two, the others both."""
    pair = ("AllReduce", "ReduceScatter")
    lines = [call(rank, count, op) for count in range(20) for rank in range(4) for op in pair]
    assert judge(lines[:-1]).cause is Cause.UNKNOWN


def test_the_nth_group_of_a_size_is_compared_with_the_nth_of_others() -> None:
    lines = [call(rank, 9, ("AllReduce", "AllGather")[comm], comm=comm) for rank in range(4) for comm in range(2)]
    assert judge(lines).cause is Cause.UNKNOWN
    assert judge([*lines[:-1], call(3, 9, "Reduce", comm=1)]).cause is Cause.COLLECTIVE_MISMATCH
