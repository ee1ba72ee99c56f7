"""Dumps are users' files, and the daemon reads them: whatever they say, it costs little, and there is an answer."""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
from itertools import permutations
from pathlib import Path

import pytest
from counted_calls import within_calls

from sentinel.classify.hang.analyse import analyse
from sentinel.model.collectives import Call, Channel, GroupTrace, RankTrace

RANKS = 48


def dump(rank: int, sent: int) -> RankTrace:
    others = [peer for peer in range(RANKS) if peer != rank]
    group = GroupTrace(
        "g",
        "",
        ranks=frozenset(range(RANKS)),
        local_rank=rank,
        sends={peer: Channel(sent, 1, "send", Call(1, "send")) for peer in others},
        receives={peer: Channel(1, 1, "recv", Call(1, "recv")) for peer in others},
    )
    return RankTrace(f"dump{rank}", rank, "2", (group,))


@pytest.mark.parametrize(("sent", "basis"), [(1, "stuck"), (2, "cycle")], ids=["met", "owed"])
def test_open_sends_and_receives_between_all_ranks(sent: int, basis: str) -> None:
    dumps = [dump(rank, sent) for rank in range(RANKS)]
    found = []
    assert within_calls(200_000, lambda: found.append(analyse(dumps)))
    assert found[0].basis == basis


def test_a_rank_that_waits_for_itself_alone() -> None:
    """No dump of NCCL says so; a user's may."""
    own = {0: Channel(1, 1, "send", Call(1, "send"))}
    group = GroupTrace("g", "", ranks=frozenset({0, 1}), local_rank=0, sends=own)
    other = GroupTrace("g", "", ranks=frozenset({0, 1}), local_rank=1)
    found = analyse([RankTrace("dump0", 0, "2", (group,)), RankTrace("dump1", 1, "2", (other,))])
    assert found.basis != "cycle"


@pytest.mark.parametrize(("own", "peer"), [(-9, 0), (0, -9), (2**63, 2**63)])
def test_numbers_that_no_rank_of_the_group_has(own: int, peer: int) -> None:
    group = GroupTrace(
        "g", "", ranks=frozenset({0, 1}), local_rank=own, sends={peer: Channel(1, 1, "send", Call(1, "send"))}
    )
    found = analyse([RankTrace("dump0", 0, "2", (group,))])
    assert not found.culprit_ranks


def test_a_newest_call_before_the_first_one() -> None:
    group = GroupTrace("g", "", ranks=frozenset({0, 1}), enqueued=-2, completed=-9)
    assert analyse([RankTrace("dump0", 0, "2", (group,))]).culprit_ranks == (1,)


@pytest.mark.parametrize("description", ["", "default_pg"])
@pytest.mark.parametrize("told", [True, False])
def test_groups_of_very_many_ranks_take_little_memory(description: str, told: bool) -> None:
    """Two dumps of a few KB state how many ranks there are, in each of many groups."""
    groups = tuple(
        GroupTrace(f"g{number}", description, enqueued=5 if told or number % 3 else None, completed=0)
        for number in range(100)
    )
    dumps = [RankTrace("first", 0, "2", groups), RankTrace("last", 131_071, "2", groups[1:])]
    tracemalloc.start()
    found = analyse(dumps)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found.culprit_ranks
    assert most < 200 << 20


def of_a_name(rank: int, name: str, ranks: tuple[int, ...] | None, calls: int) -> RankTrace:
    done = calls - 1 if rank == 3 else calls - 2
    made = tuple(
        Call(n, "all_reduce", created_ns=9, state="completed" if n <= done else "started") for n in range(calls)
    )
    members = None if ranks is None else frozenset(ranks)
    group = GroupTrace(name, "", ranks=members, enqueued=calls - 1, completed=done, calls=made)
    return RankTrace(f"dump{rank}", rank, "2", (group,))


def two_of_a_name(name: str) -> list[RankTrace]:
    """As dumps of two jobs in one folder, or a damaged one, have them: rank 3 does not say which group is its own."""
    return [
        of_a_name(0, name, (0, 1, 3), 2),
        of_a_name(1, name, (0, 1, 3), 2),
        of_a_name(2, name, (2, 3), 1),
        of_a_name(3, name, None, 1),
    ]


def test_no_string_hash_decides_which_rank_is_named() -> None:
    program = (
        "from sentinel.classify.hang.analyse import analyse\n"
        "from test_hostile_dumps import two_of_a_name\n"
        "for number in range(20): print(analyse(two_of_a_name(f'group{number}')))"
    )
    path = os.pathsep.join((str(Path(__file__).parent), *sys.path))
    told = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path},
            capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(told) == 1


def test_the_group_that_most_dumps_state_is_that_of_a_rank_which_states_none() -> None:
    found = analyse(two_of_a_name("g"))
    assert found.culprit_ranks == (3,) and found.group_ranks == (0, 1, 3)


def test_the_order_in_which_dumps_arrive_decides_nothing() -> None:
    """Both groups stand still since the same time."""
    dumps = [of_a_name(rank, f"g{rank % 2}", (rank % 2, rank % 2 + 4), 2) for rank in (0, 1, 4, 5)]
    found = [analyse(order) for order in permutations(dumps)]
    assert all(each == found[0] for each in found) and found[0].group == "g0"
