"""Dumps are users' files, and the daemon reads them: whatever they say, it costs little, and there is an answer."""

from __future__ import annotations

import tracemalloc

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
