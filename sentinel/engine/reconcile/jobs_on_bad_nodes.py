"""Finds jobs that began on a node which was convicted meanwhile, and has them recovered.

A command of Slurm's that is on its way cannot be stopped: a job may be released, or begin by itself, at the moment at which
its node is convicted. The next snapshot shows it there. The same holds for a job that another incident was to stop then, and
left alone.
"""

from __future__ import annotations

from datetime import datetime

from sentinel.correlate.merging import JUST_BEGUN
from sentinel.detect.own_host import of_own_clock
from sentinel.engine import judging
from sentinel.engine.mass_failures import PreliminaryVerdicts
from sentinel.engine.reconcile import node_proof
from sentinel.engine.reconcile.situations import left_alone
from sentinel.engine.state import State
from sentinel.engine.transition import Transition
from sentinel.model.records import NODE_STEPS, Fleet, Result


def snapshot_taken(state: State, out: Transition, fleet: Fleet, now: datetime, looks: PreliminaryVerdicts) -> None:
    """Each attempt is looked at once for each incident, and while no other incident has it."""
    for seen in (state.on_bad_nodes, state.taken_along):
        seen &= {(name, job, view.restarts) for name, job, _ in seen if (view := fleet.jobs.get(job))}
    convicting: dict[str, list[str]] = {}
    for name in sorted(state.verdicts.keys() & state.plans.keys() & state.incidents.keys()):
        for node in state.verdicts[name].drain:
            convicting.setdefault(node, []).append(name)
    if not convicting or state.paused:
        return
    ahead_s = state.cluster.own_clock_ahead_s()
    if ahead_s is None and state.absence is not None and now < state.absence.waits_until:
        return  # this daemon has just begun: nodes tell it in a moment
    for job in sorted(fleet.jobs.values(), key=lambda one: one.id):
        if job.state != "running" or job.started_at is None:
            continue
        if convicting.keys().isdisjoint(job.nodes):
            continue
        own = [one for one in state.incidents.values() if (one.job, one.attempt) == (job.id, job.restarts)]
        left = [one for one in own if left_alone(state, one)]  # which had the attempt while its node was convicted
        if own != left:
            continue
        for node in job.nodes:
            for name in convicting.get(node, ()):
                key = (name, job.id, job.restarts)
                began_later = of_own_clock(job.started_at, ahead_s) > state.plans[name].at - JUST_BEGUN
                if not (began_later or left) or key in state.on_bad_nodes or _is_asked_about(state, name, node, fleet):
                    continue
                if node not in node_proof.cleared(state, name, (node,)):
                    state.on_bad_nodes.add(key)
                    judging.recover_other_jobs(state, out, state.incidents[name], fleet, now, looks)


def _is_asked_about(state: State, incident: str, node: str, fleet: Fleet) -> bool:
    """Whether the node's drain is under way, or was done and does not show: a person may have returned the node, or
    slurmctld have forgotten the drain. The next attempt of that step tells.
    """
    view = fleet.nodes.get(node)
    for step in state.plans[incident].to_do:
        if step.kind in NODE_STEPS and step.node == node:
            outcome = state.ledger.outcome(incident, step)
            if outcome is None or (outcome.result is Result.DONE and view is not None and view.usable):
                return True
    return False
