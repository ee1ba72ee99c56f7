"""Answers of a running job, and who is named from them."""

from __future__ import annotations

import dataclasses

import pytest

from sentinel.classify.hang.running_job import analyse_live, compare_polls
from sentinel.evidence.nccl.debug_endpoints import group_stacks, read_stack
from sentinel.evidence.nccl.flight_recorder import read_dump
from sentinel.evidence.nccl.ras import read_ras
from sentinel.model.collectives import RankTrace, Unreadable
from sentinel.model.live_collectives import RasPoll


@pytest.fixture
def poll(make):
    def ras(counts, *, key="0xab", missing=(), front=b""):
        """``counts``: the AllReduce count of each rank of one communicator."""
        ranks = [
            {
                "rank": rank,
                "host": f"node{rank // 2}",
                "pid": 100 + rank,
                "status": {"init_state": 0, "async_error": 0, "abort_flag": False},
                "collective_counts": {"Broadcast": 3, "AllReduce": count},
            }
            for rank, count in enumerate(counts)
            if rank not in missing
        ]
        gone = [
            {"rank": rank, "host": f"node{rank // 2}", "pid": 100 + rank, "status": {"considered_dead": True}}
            for rank in missing
        ]
        value = {
            "communicators": [{"hash": key, "size": len(counts), "ranks": ranks, "missing_ranks": gone}],
            "ras": {"collection_time_sec": 0.1, "timeouts_count": len(gone)},
        }
        return read_ras(front + make.json(value), "node0:28028")

    return ras


PLACES = {(f"node{rank // 2}", 100 + rank): 8 + rank for rank in range(4)}


def test_frozen_counts_name_the_rank_with_the_lowest(poll):
    answers = poll([50, 50, 49, 50]), poll([50, 50, 49, 50], front=b"SERVER PROTOCOL 2\nOK\n")
    found = analyse_live(answers, gap_s=12, ranks=PLACES)
    assert (found.kind, found.culprit_ranks, found.sequence, found.collective) == ("missing", (10,), 50, "AllReduce")
    assert found.waiting == {8: (10,), 9: (10,), 11: (10,)}
    assert "node1 process 102" in found.explanation


def test_counts_that_move_are_no_hang(poll):
    found = analyse_live((poll([50, 50, 49, 50]), poll([51, 51, 50, 51])), gap_s=12)
    assert (found.kind, found.culprit_ranks) == ("none", ())


def test_polls_too_close_together_say_nothing(poll):
    found = analyse_live((poll([50, 49]), poll([50, 49])), gap_s=1)
    assert (found.kind, found.confidence) == ("none", 0.0)


def test_equal_and_frozen_is_stuck(poll):
    found = analyse_live((poll([50, 50]), poll([50, 50])), gap_s=12)
    assert (found.kind, found.culprit_ranks, found.basis) == ("stuck", (), "frozen")


def test_a_dead_rank_comes_before_a_laggard(poll):
    found = analyse_live((poll([50, 49, 50, 50]), poll([50, 49, 50, 50], missing={3})), gap_s=12, ranks=PLACES)
    assert (found.culprit_ranks, found.basis) == ((11,), "dead")


def test_a_communicator_that_was_not_there_before_is_not_known(poll):
    (state,) = compare_polls(poll([5, 4], key="0xaa"), poll([5, 4], key="0xbb"))
    assert (state.moved, state.laggards) == (None, ())


def test_the_smaller_set_of_laggards_is_nearer_to_the_cause(poll):
    def both(world, pair):
        return RasPoll((*poll(world, key="w").communicators, *poll(pair, key="p").communicators))

    places = {("node0", 100): 0, ("node0", 101): 1, ("node1", 102): 2, ("node1", 103): 3}
    answers = both([7, 6, 6, 7], [9, 8]), both([7, 6, 6, 7], [9, 8])
    assert analyse_live(answers, gap_s=12, ranks=places).culprit_ranks == (1,)


@pytest.mark.parametrize("data", [b"", b"HTTP/1.1 404\r\n", b'{"communicators": [', b'{"other": 1}', b"{" * 100_000])
def test_other_answers_are_unreadable(data):
    assert isinstance(read_ras(data, "node0"), Unreadable)


def traceback(*frames):
    lines = [f'  File "/srv/train/{file}", line {line} in {name}' for name, file, line in frames]
    return "\n".join(
        [
            "Current thread 0x00007f00aa (most recent call first):",
            "  <no Python frame>",
            "",
            "Thread 0x00007f00bb (most recent call first):",
            *lines,
            '  File "/srv/train/run.py", line 9 in <module>',
            "",
            "Thread 0x00007f00cc (most recent call first):",
            '  File "/usr/lib/threading.py", line 5 in wait',
            "",
        ]
    ).encode()


def test_the_main_thread_is_told_from_the_others():
    stack = read_stack(traceback(("next_batch", "data.py", 40), ("main", "run.py", 7)))
    assert stack.frames[0] == "next_batch (/srv/train/data.py:40)"
    assert stack.frames[-1].startswith("<module>")
    assert read_stack(b"pong") is None


def test_the_rank_that_is_elsewhere_is_named_from_stacks():
    stacks = {rank: read_stack(traceback(("all_reduce", "dist.py", 3))) for rank in (0, 1, 3)}
    stacks[2] = read_stack(traceback(("next_batch", "data.py", 40)))
    groups = group_stacks(stacks)
    found = analyse_live(stacks=groups)
    assert (groups.ranks, found.culprit_ranks, found.basis) == ((0, 1, 3), (2,), "stacks")
    assert "next_batch" in found.explanation


def test_stacks_without_a_majority_name_nobody():
    stacks = {rank: read_stack(traceback(("f", "a.py", rank + 1))) for rank in range(4)}
    assert analyse_live(stacks=group_stacks(stacks)).culprit_ranks == ()


def test_recorder_answers_decide_and_the_others_support(make, poll):
    traces = []
    for rank, value in enumerate(make.nested().values()):
        trace = read_dump(make.json(value), f"http://node{rank}:7000/handler/fr_trace_json")
        assert isinstance(trace, RankTrace)
        traces.append(dataclasses.replace(trace, rank=rank))
    groups = group_stacks(
        {rank: read_stack(traceback(("next_batch" if rank == 3 else "wait", "a.py", 1))) for rank in range(4)}
    )
    places = {(f"node{rank // 2}", 100 + rank): rank for rank in range(4)}
    answers = poll([5, 5, 5, 4]), poll([5, 5, 5, 4])
    found = analyse_live(answers, gap_s=12, traces=traces, stacks=groups, ranks=places)
    assert (found.culprit_ranks, found.basis) == ((3,), "idle")
    assert "counts agree" in found.explanation
    assert "Rank 3 is in next_batch" in found.explanation
