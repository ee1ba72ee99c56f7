"""Evidence that came to an incident while its plan was carried out: what of it is another failure is grouped anew."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from sentinel.correlate import incidents
from sentinel.engine.reconcile import node_proof
from sentinel.engine.state import State
from sentinel.model.records import NODE_STEPS, Evidence, Incident, Verdict, stable_id


def on_nodes_taken_out(state: State, incident: Incident) -> bool:
    """Whether something happened on a node after this closed incident's plan had taken it out: a snapshot tells whether the
    node was back by then."""
    plan = state.plans.get(incident.id)
    if plan is None:
        return False
    rows = [node_proof.taken_out(state, plan, step) for step in plan.to_do if step.kind in NODE_STEPS]
    out_since = {row.step.node: row.at for row in rows if row is not None}
    return any(
        incidents.opens(item)
        and item.where.node in out_since
        and node_proof.happened_at(state, item) > out_since[item.where.node]
        for item in incident.evidence
    )


def without_new_failures(state: State, incident_id: str) -> Incident | None:
    """The incident without what happened on a node after its return to service: that is grouped anew.

    What a daemon before this grouped stays where it is: when the node was last seen drained may not be known any more.
    """
    incident, plan = state.incidents.get(incident_id), state.plans.get(incident_id)
    if incident is None or plan is None:
        return incident
    new = [
        item
        for item in incident.evidence
        if item.id not in state.grouped_before and node_proof.is_of_returned_node(state, plan, item)
    ]
    return _without(state, incident, new)


def without_new_convictions(
    state: State, incident: Incident, news: set[str], look: Callable[[Incident], Verdict]
) -> Incident:
    """The closed incident without what came while its plan was carried out and is more than the plan knew: it concerns nodes
    that the verdict does not name, or convicts one that was only suspected. That is grouped anew, since nobody judges it
    here any more."""
    verdict, plan = state.verdicts.get(incident.id), state.plans.get(incident.id)
    known: set[str | None] = {*verdict.drain} if verdict is not None else set()
    known |= {step.node for step in plan.to_do if step.kind in NODE_STEPS} if plan is not None else set()
    new = [
        item
        for item in incident.evidence
        if item.id in news and item.where.job is None and item.where.node not in known and incidents.opens(item)
    ]
    for name in verdict.suspect if verdict is not None else ():
        own = tuple(item for item in new if item.where.node == name)
        # An id of this evidence alone: verdicts are kept by id and number of items.
        own_id = stable_id(incident.id, *(item.id for item in own))
        alone = dataclasses.replace(incident, id=own_id, job=None, nodes=(name,), evidence=own)
        if own and name not in look(alone).drain:
            new = [item for item in new if item not in own]
    return _without(state, incident, new)


def _without(state: State, incident: Incident, new: Sequence[Evidence]) -> Incident:
    """The incident without these reports, which are grouped anew."""
    if not new:
        return incident
    incident = dataclasses.replace(incident, evidence=tuple(item for item in incident.evidence if item not in new))
    state.put(incident)
    state.regrouped.extend(new)
    return incident
