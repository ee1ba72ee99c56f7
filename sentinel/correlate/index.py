"""Indexes open incidents by job and node, to find the few that new evidence may belong to."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from sentinel.model.records import Evidence, Incident

# Newest incidents of a node that are considered: many more than a node has in the time within which evidence of one failure
# comes. One agent that makes up jobs then costs each of its items the same, however many it made up before.
MOST_OF_A_NODE = 256
K = TypeVar("K", int, str)
NodesOf = Callable[[int | None, int | None], Sequence[str]]


class IncidentIndex:
    """Finds incidents by job and by node. Call ``add`` and ``remove`` whenever an incident is added, changed or removed.

    Args:
        incidents: by id; the index holds ids only and reads them here.
        nodes_of: nodes of an attempt of a job. They may become known after the incident: ``refresh`` reads them again.
    """

    def __init__(self, incidents: Mapping[str, Incident], nodes_of: NodesOf) -> None:
        self._incidents = incidents
        self._nodes_of = nodes_of
        self._by_node: dict[str, dict[str, None]] = {}
        self._by_job: dict[int, dict[str, None]] = {}
        self._nodes: dict[str, set[str]] = {}  # by incident: under which nodes it is filed
        self._of_job: dict[str, Sequence[str]] = {}  # by incident: nodes of its attempt when it was filed
        self._order: dict[str, int] = {}
        self._next = 0
        for incident in incidents.values():
            self.add(incident)

    def add(self, incident: Incident) -> None:
        """Index a new incident, or one that was extended."""
        if incident.id not in self._order:
            self._order[incident.id] = self._next
            self._next += 1
        filed = self._nodes.setdefault(incident.id, set())
        of_job = self._nodes_of(incident.job, incident.attempt)
        self._of_job[incident.id] = of_job
        for node in (*incident.nodes, *of_job):
            if node not in filed:
                filed.add(node)
                self._by_node.setdefault(node, {})[incident.id] = None
        if incident.job is not None:
            self._by_job.setdefault(incident.job, {})[incident.id] = None

    def remove(self, incident: Incident) -> None:
        for node in self._nodes.pop(incident.id, ()):
            self._discard(self._by_node, node, incident.id)
        if incident.job is not None:
            self._discard(self._by_job, incident.job, incident.id)
        self._order.pop(incident.id, None)
        self._of_job.pop(incident.id, None)

    @staticmethod
    def _discard(table: dict[K, dict[str, None]], key: K, incident: str) -> None:
        found = table.get(key)
        if found is not None:
            found.pop(incident, None)
            if not found:
                del table[key]

    def refresh(self) -> None:
        """After a Slurm snapshot: index incidents under nodes of their attempts that have become known."""
        for names in list(self._by_job.values()):
            for name in list(names):
                incident = self._incidents.get(name)
                if incident is not None and self._nodes_of(incident.job, incident.attempt) != self._of_job.get(name):
                    self.add(incident)

    def of(self, evidence: Evidence) -> list[Incident]:
        """The incidents of the job, and the newest of the node, of ``evidence``: a superset of those it may belong to."""
        return self.about(evidence.where.job, [evidence.where.node] if evidence.where.node else [])

    def about(self, job: int | None, nodes: Iterable[str]) -> list[Incident]:
        """Incidents of this job and the newest of these nodes, in the order in which they were added."""
        found = dict(self._by_job.get(job, {})) if job is not None else {}
        for node in nodes:
            of_node = self._by_node.get(node, {})
            found.update(of_node if len(of_node) <= MOST_OF_A_NODE else dict.fromkeys(_newest(of_node)))
        return [self._incidents[name] for name in sorted(found, key=self._order.__getitem__) if name in self._incidents]


def _newest(of_node: dict[str, None]) -> Iterable[str]:
    return itertools.islice(reversed(of_node), MOST_OF_A_NODE)
