"""Tells for which waiting plans something has changed that policy would read, so that the others are not judged anew.

Two kinds of things are compared: at each snapshot what is known of an incident's own nodes and job, and, by kind of wait,
what it waits for in the whole cluster (what a budget leaves, usable nodes, fewer that fail together). So policy is
asked when something happens, however many plans wait and for however long.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import cached_property

from sentinel.engine.reconcile.situations import HOUR, ClusterNow, goes_on, wait_s
from sentinel.engine.state import State
from sentinel.model.approvals import ASKING
from sentinel.model.records import Wait
from sentinel.model.topology import leaf_of
from sentinel.model.vocabulary import DRAIN_REFUSED, MISSING_NODE, REBOOT_PENDING, UNREAD_NODE
from sentinel.policy import NO_NODE, components_with, is_startable
from sentinel.policy.drains import SWITCH
from sentinel.policy.stops import running_jobs, stops_allowed

# A setting, a person's answer (who gives it has policy asked), or the incident's own nodes.
_NOTHING_SHARED = frozenset({"observe", "maintenance", REBOOT_PENDING, *ASKING})


def compare(state: State, waiting: Iterable[str], cluster: ClusterNow) -> None:
    """After a snapshot: forget what policy was asked by about each incident whose own nodes or job have changed."""
    compared = state.compared
    concerned = {name: _nodes(state, name) for name in waiting}
    nodes = {name: _of_node(state, name) for name in frozenset[str]().union(*concerned.values())}
    jobs = {name: _of_job(state, name, cluster) for name in concerned}
    changed = {name for name, seen in nodes.items() if name not in compared.nodes or compared.nodes[name] != seen}
    compared.asked = {
        name: asked
        for name, asked in compared.asked.items()
        if name in concerned
        and name in compared.jobs
        and compared.jobs[name] == jobs[name]
        and changed.isdisjoint(concerned[name])
    }
    compared.nodes, compared.jobs = nodes, jobs


def may_have_changed(state: State, incident: str, awaited: Awaited) -> bool:
    """Whether policy may say something else about this waiting plan than when it was last asked."""
    return state.compared.asked.get(incident) != _of_plan(state, incident, awaited)


def asked(state: State, incident: str, awaited: Awaited) -> None:
    """Policy was asked about this incident with this before it."""
    if incident in state.plans:
        state.compared.asked[incident] = _of_plan(state, incident, awaited)


def _of_plan(state: State, incident: str, awaited: Awaited) -> tuple[object, ...]:
    return tuple((wait.kind, awaited.by(wait)) for wait in state.plans[incident].waits)


def _nodes(state: State, incident: str) -> frozenset[str]:
    """The nodes of which a change concerns this incident."""
    known, verdict = state.incidents[incident], state.verdicts[incident]
    of_job = state.cluster.nodes_of(known.job, known.attempt)
    return frozenset((*known.nodes, *of_job, *verdict.drain, *verdict.suspect))


def _of_node(state: State, name: str) -> object:
    """What proofs and policy read of one node."""
    fleet, seen = state.cluster.fleet, state.cluster.nodes.get(name)
    told = None
    if seen is not None:
        told = seen.state, seen.verdict.get("word"), seen.released_at, seen.pool[-1] if seen.pool else None
    tested, back = state.diagnostics.known.get(name), state.returns.known.get(name)
    return (
        fleet.nodes.get(name) if fleet is not None else None,
        told,
        state.called_good.get(name),
        (tested.passed, tested.suspect) if tested is not None else None,
        (back.stage, back.returned_at) if back is not None else None,
    )


def _of_job(state: State, incident: str, cluster: ClusterNow) -> object:
    """What policy reads of the incident's job, and which incidents recover it; None once Slurm has forgotten it."""
    known = state.incidents[incident]
    job = cluster.snapshot.jobs.get(known.job) if known.job is not None else None
    if job is None or known.job is None:
        return None
    parts = (job, *components_with(cluster.snapshot, job.id))
    about = [other.id for part in parts for other in state.index.about(part.id, ())]
    goes = goes_on(state, known)
    step = state.cluster.last_step(known.job, known.attempt) if known.attempt is not None and not goes else None
    overdue = wait_s(state, known, cluster.now) is None
    return parts, [name for name in about if name in state.recoveries], goes, step, overdue


class Awaited:
    """What waits wait for in the whole cluster; each part is computed once, when it is first asked for."""

    def __init__(self, cluster: ClusterNow) -> None:
        self.cluster = cluster

    def by(self, wait: Wait) -> object:
        """What this wait depends on, to be compared with what it was."""
        cluster = self.cluster
        if wait.kind in _NOTHING_SHARED:
            return None
        match wait.kind:
            case "paused":
                return cluster.state.paused
            case "breaker":
                return cluster.failing_nodes
            case _ if wait.kind == SWITCH:
                return cluster.failing_nodes, cluster.under_suspect_switch, self._switches
            case "hang-breaker":
                return cluster.hung_jobs, running_jobs(cluster.fleet)
            case "restart-budget":
                return self._stops
            case "drain-budget" if wait.until is not None and wait.until > cluster.now:
                return self._hour  # the limit of an hour refused it, before the others
            case "drain-budget" if wait.until is not None:
                return self._hour, self._in_places
            case "drain-budget" | "last-healthy":
                return self._in_places
            case _ if wait.kind == DRAIN_REFUSED:
                return wait.until is None or wait.until <= cluster.now
            case _ if wait.kind in (UNREAD_NODE, MISSING_NODE):  # a record that is there again is seen at the nodes
                return wait.until is not None and wait.until <= cluster.now, self._unread
            case _ if wait.kind == NO_NODE:
                return self._usable
        return cluster.snapshot.at  # nothing is known of this kind: each snapshot may be what it waits for

    @cached_property
    def _stops(self) -> object:
        limits = self.cluster.state.settings.limits
        hour = [stop for stop in self.cluster.stops if self.cluster.now - stop.at <= HOUR]
        return Counter((stop.user, stop.silent) for stop in hour), stops_allowed(self.cluster.fleet, limits)

    @cached_property
    def _hour(self) -> int:
        return sum(1 for at in self.cluster.drains if self.cluster.now - at <= HOUR)

    @cached_property
    def _in_places(self) -> object:
        """How many nodes, not which: the place of one that came back may have been taken already."""
        fleet = self.cluster.fleet
        return self.cluster.state.compared.places.counted(fleet), len(fleet.unread)

    @cached_property
    def _switches(self) -> object:
        """Where the nodes hang that fail together, and whether there is any other switch."""
        together = self.cluster.failing_nodes | self.cluster.under_suspect_switch
        nodes = self.cluster.fleet.nodes
        hang = {name: leaf_of(nodes[name].topology) for name in together if name in nodes}
        return hang, self._unread, len({leaf_of(node.topology) for node in nodes.values()}) > 1

    @cached_property
    def _unread(self) -> frozenset[str]:
        return frozenset(item.name for item in self.cluster.fleet.unread if item.what == "node")

    @cached_property
    def _usable(self) -> object:
        fleet = self.cluster.fleet
        usable = frozenset((node.name, node.partitions) for node in fleet.nodes.values() if is_startable(node))
        # A node that another incident convicts, or its agent calls bad, is none for the job before it is proven good.
        return usable, self.cluster.convicted_nodes, self.cluster.bad_nodes, fleet.spares
