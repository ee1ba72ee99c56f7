"""Incidents by what evidence names: of hundreds that are open, the few that it may belong to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from sentinel.model import Evidence, Incident

NodesOf = Callable[[int | None, int | None], Sequence[str]]


class Near:
    """Holds for as long as no incident is added or changed behind its back: it is made anew for each batch of evidence."""

    def __init__(self, incidents: Mapping[str, Incident], nodes_of: NodesOf) -> None:
        self._incidents = incidents
        self._nodes_of = nodes_of
        self._by_node: dict[str, dict[str, None]] = {}
        self._by_job: dict[int, dict[str, None]] = {}
        self._order: dict[str, int] = {}
        self._looked = False

    def add(self, incident: Incident) -> None:
        """A new incident, or one that has grown."""
        if self._looked:
            self._keep(incident)

    def _keep(self, incident: Incident) -> None:
        self._order.setdefault(incident.id, len(self._order))
        for node in (*incident.nodes, *self._nodes_of(incident.job, incident.attempt)):
            self._by_node.setdefault(node, {})[incident.id] = None
        if incident.job is not None:
            self._by_job.setdefault(incident.job, {})[incident.id] = None

    def of(self, evidence: Evidence) -> list[Incident]:
        """All that ``evidence`` may belong to, and others of its job and node."""
        return self.about(evidence.where.job, [evidence.where.node] if evidence.where.node else [])

    def about(self, job: int | None, nodes: Iterable[str]) -> list[Incident]:
        if not self._looked:  # most batches are steps of jobs, for which nobody looks
            self._looked = True
            for incident in self._incidents.values():
                self._keep(incident)
        found = dict(self._by_job.get(job, {})) if job is not None else {}
        for node in nodes:
            found.update(self._by_node.get(node, {}))
        return [self._incidents[name] for name in sorted(found, key=self._order.__getitem__) if name in self._incidents]
