"""Copies of shards: every closed form against all sets of lost nodes, or against drawn ones."""

from __future__ import annotations

import itertools
import random
from math import comb

import pytest

from sentinel.planning import replicas
from sentinel.planning.limits import PlanningError


def holders(nodes: int, copies: int, placement: str) -> list[set[int]]:
    """Who holds the shard of each node, as the placements are defined."""
    if placement == "ring":
        return [{(i + j) % nodes for j in range(copies)} for i in range(nodes)]
    tail = 0 if nodes % copies == 0 else nodes - copies - nodes % copies
    found = []
    for i in range(nodes):
        if nodes % copies == 0 or i < tail:
            first = i - i % copies
        else:
            first = min(i, nodes - copies)
        found.append({first + j for j in range(copies)})
    return found


@pytest.mark.parametrize("placement", ["group", "ring"])
@pytest.mark.parametrize(
    ("nodes", "copies"), [(8, 2), (9, 3), (12, 4), (7, 2), (11, 3), (10, 4), (5, 5), (3, 2), (6, 1)]
)
def test_all_sets_of_lost_nodes(nodes: int, copies: int, placement: str) -> None:
    where = holders(nodes, copies, placement)
    for losses in range(nodes + 1):
        survived = sum(
            all(not held <= set(lost) for held in where) for lost in itertools.combinations(range(nodes), losses)
        )
        exact = replicas.survival(nodes, copies, losses, placement)
        assert exact == pytest.approx(survived / comb(nodes, losses), abs=1e-12), losses


@pytest.mark.parametrize(
    ("nodes", "copies", "losses", "placement", "expected"),
    [
        (16, 2, 2, "group", 0.9333),
        (16, 2, 3, "group", 0.8),
        (16, 2, 2, "ring", 0.8667),
        (16, 2, 3, "ring", 0.6286),
        (128, 2, 1, "group", 1.0),
        (128, 2, 2, "group", 0.9921),
        (128, 2, 3, "group", 0.9764),
        (128, 2, 4, "group", 0.9529),
        (128, 2, 8, "group", 0.7925),
        (128, 3, 3, "group", 0.999871),
        (2048, 2, 2, "group", 0.99951),
        (2048, 2, 4, "group", 0.99707),
        (2048, 2, 8, "group", 0.98637),
        (2048, 2, 16, "group", 0.94267),
    ],
)
def test_the_vectors(nodes: int, copies: int, losses: int, placement: str, expected: float) -> None:
    digits = len(str(expected).partition(".")[2])
    assert replicas.survival(nodes, copies, losses, placement) == pytest.approx(expected, abs=0.51 * 10**-digits)


@pytest.mark.parametrize(("nodes", "copies", "losses"), [(16, 2, 4), (24, 3, 8), (40, 4, 20)])
def test_random_placement_agrees_with_simulation(nodes: int, copies: int, losses: int) -> None:
    dice = random.Random(23)
    survived, draws = 0, 30_000
    for _ in range(draws):
        lost = set(dice.sample(range(nodes), losses))
        survived += not any(
            lost.issuperset(p if p < owner else p + 1 for p in dice.sample(range(nodes - 1), copies - 1))
            for owner in lost
        )
    assert replicas.survival(nodes, copies, losses, "random") == pytest.approx(survived / draws, rel=0.02)


def test_large_fleets_agree_with_simulation() -> None:
    dice = random.Random(29)
    survived = 0
    for _ in range(20_000):
        groups = [node // 2 for node in dice.sample(range(2048), 16)]
        survived += len(set(groups)) == 16
    assert replicas.survival(2048, 2, 16) == pytest.approx(survived / 20_000, rel=0.02)


def test_copies_on_disk_agree_with_simulation() -> None:
    dice = random.Random(31)
    survived = 0
    for _ in range(40_000):
        gone = [node for node in dice.sample(range(32), 6) if dice.random() >= 0.6]
        groups = [node // 2 for node in gone]
        survived += len(set(groups)) == len(groups)
    assert replicas.on_disk_survival(32, 2, 6, "group", 0.6) == pytest.approx(survived / 40_000, rel=0.02)
    assert replicas.on_disk_survival(32, 2, 6, "group", 0.0) == pytest.approx(replicas.survival(32, 2, 6))
    assert replicas.on_disk_survival(32, 2, 6, "group", 1.0) == 1


def test_hundreds_of_losses_are_computed() -> None:
    assert 0 < replicas.survival(20_000, 4, 500) < replicas.on_disk_survival(20_000, 4, 500, "group", 0.5) < 1
    assert replicas.survival(200_000, 2, 500) == pytest.approx(1 - 500 * 499 / 2 / 200_000, abs=0.2)
    # 500 of 1,000 in pairs: the count of ways to take 500 different pairs of 500 and one of each
    assert replicas.survival(1000, 2, 500) == pytest.approx(2**500 / comb(1000, 500))


def test_copies_in_one_domain_go_with_it() -> None:
    assert replicas.domain_survival(16, 2, 2, across=True) == replicas.survival(16, 2, 2)
    assert replicas.domain_survival(16, 2, 1, across=True) == 1
    assert replicas.domain_survival(16, 2, 1, across=False) == 0
    assert replicas.domain_survival(16, 2, 0, across=False) == 1


def test_group_is_the_best_placement_and_more_copies_are_better() -> None:
    for losses in range(2, 12):
        group, ring = (replicas.survival(24, 3, losses, p) for p in ("group", "ring"))
        assert group >= ring
        assert replicas.survival(24, 4, losses) >= group >= replicas.survival(24, 2, losses)


def test_room_and_traffic() -> None:
    cost = replicas.copy_cost(5.67e12, 128, 2)
    assert cost.held_bytes_per_node == pytest.approx(5.67e12 / 128 * 2 * 2)
    assert cost.sent_bytes_per_save == pytest.approx(5.67e12 / 128)
    assert replicas.copy_cost(5.67e12, 128, 1).sent_bytes_per_save == 0


@pytest.mark.parametrize(
    ("nodes", "copies", "losses", "placement"),
    [
        (0, 1, 0, "group"),
        (8, 9, 1, "group"),
        (8, 2, 9, "group"),
        (8, 2, -1, "group"),
        (8, 0, 1, "group"),
        (8, 2, 3, "star"),
    ],
)
def test_senseless_questions_are_refused(nodes: int, copies: int, losses: int, placement: str) -> None:
    with pytest.raises(PlanningError):
        replicas.survival(nodes, copies, losses, placement)
