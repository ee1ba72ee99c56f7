"""Components of graphs, held to what can be reached by walking."""

from __future__ import annotations

import random

import pytest

from sentinel.graphs import components


def reached(graph: dict[int, list[int]], start: int) -> set[int]:
    seen: set[int] = set()
    pending = [start]
    while pending:
        for after in graph.get(pending.pop(), []):
            if after not in seen:
                seen.add(after)
                pending.append(after)
    return seen


@pytest.mark.parametrize("seed", range(40))
def test_the_members_of_a_component_reach_one_another_and_nobody_else_does(seed: int) -> None:
    chance = random.Random(seed)
    keys = chance.sample(range(9), 7)  # some nodes are only led to
    graph = {node: chance.sample(range(9), chance.randrange(4)) for node in keys}
    nodes = {*graph, *(after for others in graph.values() for after in others)}
    found = components(graph)
    assert sorted(node for part in found for node in part) == sorted(nodes)
    for part in found:
        for node in part:
            both = {other for other in reached(graph, node) if node in reached(graph, other)}
            assert {node, *both} == part
    places = {node: place for place, part in enumerate(found) for node in part}
    assert all(places[after] <= places[node] for node, others in graph.items() for after in others)


def test_a_chain_longer_than_pythons_stack_is_walked() -> None:
    assert len(components({node: [node + 1] for node in range(50_000)})) == 50_001
