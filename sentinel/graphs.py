"""Strongly connected components: what can all be reached from one another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

N = TypeVar("N")


def components(graph: Mapping[N, Iterable[N]]) -> list[frozenset[N]]:
    """All components, each behind those that it leads to (Tarjan's algorithm, without recursion).

    Args:
        graph: by node: the nodes that come next; also those that are no key of it.
    """
    order: dict[N, int] = {}
    low: dict[N, int] = {}
    path: list[N] = []
    on_path: set[N] = set()
    found: list[frozenset[N]] = []
    for start in graph:
        if start in order:
            continue
        work = [(start, iter(graph[start]))]
        order[start] = low[start] = len(order)
        path.append(start)
        on_path.add(start)
        while work:
            node, rest = work[-1]
            for after in rest:
                if after not in order:
                    order[after] = low[after] = len(order)
                    path.append(after)
                    on_path.add(after)
                    work.append((after, iter(graph.get(after, ()))))
                    break
                if after in on_path:
                    low[node] = min(low[node], order[after])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == order[node]:
                    members: set[N] = set()
                    while node not in members:
                        members.add(path.pop())
                    on_path -= members
                    found.append(frozenset(members))
    return found
