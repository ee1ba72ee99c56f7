"""Detects nodes that fall silent, and probes slurmd's port on them: if it does not answer, they are unreachable.

Silence alone proves nothing: the agent may have died, or the daemon may be cut off.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from sentinel.detect.seen import NodeSeen
from sentinel.engine import backlog, grouping
from sentinel.engine.events import EffectCompleted, EvidenceReceived
from sentinel.engine.state import State
from sentinel.engine.transition import ObserveFleet, ProbeNode, StartTimer, Transition
from sentinel.engine.watch import log_coverage, reconciliation
from sentinel.engine.watch.events import ConnectionLost, HeartbeatReceived, NodeProbed, seconds_of
from sentinel.engine.watch.state import NEVER_S, Probe
from sentinel.model.changes import SettingChanged
from sentinel.model.records import Evidence, Kind, NodeView, Source, Where, stable_id
from sentinel.model.vocabulary import switched_by_slurm

CHECK_S = 0.25  # interval of the periodic check of nodes and jobs
PROBE = "probe"  # timer: the pause before the next attempt to connect
IN_SERVICE = "in-service"  # effect: asks Slurm whether it has switched off a node whose port refuses
AGENTS_KEPT = "agents_heard"  # stored setting: nodes whose agents were heard
_KEEP_S = 10.0  # such names are saved at most this often: all agents of a cluster connect within seconds
_FIRST_CONTACT_S = 30.0  # agents pause for up to 10 s between attempts to connect to a daemon that was away
_TOGETHER = 3  # if at least this many nodes are expected and all are silent, the daemon itself is probably cut off
_PAUSE_SHARE = 0.25  # pause between two attempts to connect, in deadlines of one
_HOLDS_NODES = frozenset({"configuring", "running", "suspended", "completing"})
_ANSWER_LOST_S = 30.0  # a probe without an answer for so long beyond its deadlines is given up: its answer was lost


def message(state: State, out: Transition, node: str, now_s: float) -> NodeSeen:
    """A message of the node's agent came in."""
    seen = state.cluster.node(node)
    if seen.state != "heard":
        out.say("node-heard", node=node, before=seen.state)
        seen.state = "heard"
        state.watch.all_silent_logged = False
        state.watch.agents_before.discard(node)
        state.watch.agents_changed = state.watch.agents_changed or node not in state.watch.agents_kept
    seen.contact_s = now_s
    return seen


def heartbeat(state: State, out: Transition, event: HeartbeatReceived) -> None:
    now_s = seconds_of(event)
    seen = message(state, out, event.node, now_s)
    seen.version, seen.clock_offset_s = event.version, event.clock_offset_s
    if event.clock_offset_s is not None:  # of the least delayed: a late heartbeat makes its node's clock seem behind
        seen.clock_offsets_s.append(event.clock_offset_s)
        seen.clock_offset_s = max(seen.clock_offsets_s)
    seen.verdict, seen.gpus = dict(event.verdict), dict(event.gpus)
    seen.jobs = frozenset(event.jobs)
    seen.note_boot(event.boot, event.sent_s, event.at)
    seen.kernel_readable, seen.lost = event.kernel_readable, event.lost
    backlog.agent_heard(state, event.node, event.spool)
    log_coverage.logs_read(state, event, now_s)
    # Only what Slurm has there: who names the jobs of others could have their ends looked for, and fill the memory.
    here = {key for key in event.jobs if event.node in state.cluster.nodes_of(*key)}
    state.watch.was_on_nodes |= here
    if here != seen.jobs:
        reconciliation.request_soon(state, out, event.at, now_s)


def connection_lost(state: State, out: Transition, event: ConnectionLost) -> None:
    """Probe the node now instead of after the heartbeat timeout."""
    if state.cluster.node(event.node).state == "heard":
        _probe(state, out, event.node, event.at, seconds_of(event), cut_off=False)  # this one was heard


def check(state: State, out: Transition, now: datetime, now_s: float) -> None:
    """Find nodes that fell silent, and probe them; silent nodes are probed again from time to time."""
    watch = state.watch
    watch.delays.checked(now_s, CHECK_S)
    patience_s = state.settings.daemon.heartbeat_lost_s + watch.delays.excuse_s
    lost: set[str] = set()
    fell_silent, again = [], []
    carrying = _carrying(state)
    _miss(state, now_s)
    expected = _expected(state, carrying)
    recent = frozenset(name for name, at_s in expected.items() if at_s is not None and now_s - at_s <= patience_s)
    in_contact = len(recent)
    for name, contact_s in expected.items() if len(recent) < len(expected) else ():  # usually all are in contact
        if name in recent:
            continue
        silent_s = now_s - (contact_s if contact_s is not None else watch.began_s)
        if silent_s <= patience_s:
            in_contact += 1
            continue
        if contact_s is not None and name in carrying:
            lost.add(name)
        seen = state.cluster.node(name)
        if seen.state in ("heard", "unknown"):
            seen.state = "silent"
            out.say("node-silent", warning=True, node=name, silent_s=f"{silent_s:.1f}")
            fell_silent.append(name)
        elif seen.state == "silent" and now_s - watch.probed_s.get(name, 0.0) > patience_s:
            again.append(name)  # the agent may have died first and its node later; or the daemon was cut off
    if fell_silent:  # Slurm may have switched them off just now
        reconciliation.request_soon(state, out, now, now_s)
    _probe_all(state, out, fell_silent, now, now_s)  # now that it is known which others fell silent with it
    if in_contact == 0 and len(_switched_on(state, expected)) >= _TOGETHER:
        watch.all_silent_s = now_s  # probably cut off: probing would tell nothing
    elif now_s - watch.all_silent_s > patience_s:
        _probe_all(state, out, again, now, now_s)
    watch.agents = in_contact
    log_coverage.count(state, recent, lost, len(expected), now, now_s)
    _keep(state, out, now_s)


def _carrying(state: State) -> set[str]:
    """Nodes that a job holds now: a node that dies at a job's start or end holds the job up until it is set down."""
    return {name for job in state.cluster.jobs() if job.state in _HOLDS_NODES for name in job.nodes}


def _expected(state: State, carrying: Iterable[str]) -> dict[str, float | None]:
    """Nodes that should be in contact, with their last contact: in contact before, or carrying a job now."""
    nodes: dict[str, float | None] = {n: seen.contact_s for n, seen in state.cluster.nodes.items() if seen.contact_s}
    for name in (*carrying, *state.watch.missing):
        nodes.setdefault(name, None)
    return nodes


def _switched_on(state: State, names: Iterable[str]) -> list[str]:
    """Without those that Slurm has switched off: that these are silent, too, says nothing of our own network."""
    nodes = state.cluster.fleet.nodes if state.cluster.fleet is not None else {}
    return [n for n in names if (view := nodes.get(n)) is None or not switched_by_slurm(view.state, view.flags)]


# --- agents that an earlier daemon heard --------------------------------------------------------------------------------


def heard_before(kept: Any) -> set[str]:
    """The names that ``_keep`` saved."""
    return {name for name in kept if isinstance(name, str)} if isinstance(kept, list) else set()


def _miss(state: State, now_s: float) -> None:
    """Note which nodes in service an earlier daemon heard and this one did not: they may have died meanwhile."""
    watch, fleet = state.watch, state.cluster.fleet
    if not watch.agents_before or fleet is None or now_s - watch.began_s <= _FIRST_CONTACT_S:
        return
    watch.missing = _before_in_service(state)


def _before_in_service(state: State) -> frozenset[str]:
    fleet = state.cluster.fleet
    views = [fleet.nodes.get(name) for name in state.watch.agents_before] if fleet is not None else []
    return frozenset(view.name for view in views if view is not None and not _is_out(state, view))


def _is_out(state: State, node: NodeView) -> bool:
    return node.drained or node.state == "down" or _is_away(state, node)


def _forget(state: State, node: str) -> None:
    """Miss the node's agent no longer, nor let a later daemon do so, until it is heard again."""
    state.watch.agents_before.discard(node)
    state.watch.missing -= {node}
    state.watch.agents_changed, state.watch.agents_kept_s = True, NEVER_S


def _keep(state: State, out: Transition, now_s: float) -> None:
    """Save whose agents were heard, for a daemon after this one."""
    watch, fleet = state.watch, state.cluster.fleet
    if not watch.agents_changed or fleet is None or now_s - watch.agents_kept_s < _KEEP_S:
        return
    heard = {name for name, seen in state.cluster.nodes.items() if seen.contact_s and seen.state != "unreachable"}
    watch.agents_kept = frozenset((heard | watch.agents_before) & fleet.nodes.keys())
    watch.agents_kept_s, watch.agents_changed = now_s, False
    out.save(SettingChanged(AGENTS_KEPT, sorted(watch.agents_kept)))


# --- probing ----------------------------------------------------------------------------------------------------------


def _probe_all(state: State, out: Transition, names: Sequence[str], now: datetime, now_s: float) -> None:
    cut_off = bool(names) and _cut_off(state)  # once for all of them: it looks at every node
    for name in names:
        _probe(state, out, name, now, now_s, cut_off)


def _probe(state: State, out: Transition, node: str, now: datetime, now_s: float, cut_off: bool) -> None:
    """``cut_off``: whether all nodes are silent now, see ``_cut_off``."""
    watch, settings, fleet = state.watch, state.settings.daemon, state.cluster.fleet
    under_way = watch.probes.get(node)
    longest_s = (1 + _PAUSE_SHARE) * settings.probe_s * settings.probe_attempts + _ANSWER_LOST_S
    if under_way is not None and now_s - under_way.began_s <= longest_s:
        return
    watch.probed_s[node] = now_s
    log_coverage.check(state, now, now_s)  # from here on it is known whether the daemon stood still during the probe
    view = fleet.nodes.get(node) if fleet is not None else None
    if view is None or view.port is None or _is_away(state, view):
        return
    watch.probes[node] = Probe(now_s, state.cluster.node(node).contact_s, cut_off)
    _connect(state, out, view, now)


def _connect(state: State, out: Transition, view: NodeView, now: datetime) -> None:
    probe = state.watch.probes[view.name]
    probe.effect = f"probe:{view.name}:{now.isoformat()}"
    out.do(ProbeNode(probe.effect, view, state.settings.daemon.probe_s))


def pause_over(state: State, out: Transition, node: str, now: datetime) -> None:
    """The next attempt to connect is due, unless a message of the node came meanwhile."""
    probe, fleet = state.watch.probes.get(node), state.cluster.fleet
    view = fleet.nodes.get(node) if fleet is not None else None
    if probe is None or probe.effect:
        return
    if view is None or state.cluster.node(node).contact_s != probe.contact_s:
        del state.watch.probes[node]
        return
    _connect(state, out, view, now)


def probed(state: State, out: Transition, event: NodeProbed) -> None:
    """One attempt to connect ended: try again, or conclude that the node is unreachable."""
    now_s, settings = seconds_of(event), state.settings.daemon
    node = event.effect.partition(":")[2].partition(":")[0]  # see ``_connect``
    probe = state.watch.probes.get(node)
    if event.exhausted:
        log_coverage.own_fault(state, event.exhausted, event.at, now_s)
    if probe is None or probe.effect != event.effect:
        return
    if event.exhausted or event.refusal is None or state.cluster.node(node).contact_s != probe.contact_s:
        if not event.exhausted and node in state.watch.agents_before:  # slurmd answers: it may have no agent any more
            _forget(state, node)
        del state.watch.probes[node]  # not known (probed again), or it answers, or its agent sent a message meanwhile
        return
    probe.effect = ""
    probe.refusals.append(event.refusal)
    if len(probe.refusals) == 1:  # Slurm may have switched it off since the last snapshot: the next one shows that
        probe.look = f"{IN_SERVICE}:{node}:{event.at.isoformat()}"
        out.do(ObserveFleet(probe.look, now_s - probe.began_s, once=True))
    if len(probe.refusals) < settings.probe_attempts:
        out.do(StartTimer(f"{PROBE}:{node}", event.at + timedelta(seconds=_PAUSE_SHARE * settings.probe_s)))
        return
    if not probe.look:
        _all_refused(state, out, node, probe, event.at, now_s)


def slurm_asked(state: State, out: Transition, event: EffectCompleted) -> None:
    """Slurm said whether the node is in service, or did not answer: then what it said last counts."""
    node = event.effect.split(":")[1]
    probe = state.watch.probes.get(node)
    if probe is None or probe.look != event.effect:
        return
    probe.look = ""
    if state.cluster.node(node).contact_s != probe.contact_s:
        del state.watch.probes[node]
    elif len(probe.refusals) >= state.settings.daemon.probe_attempts:
        _all_refused(state, out, node, probe, event.at, seconds_of(event))


def _all_refused(state: State, out: Transition, node: str, probe: Probe, now: datetime, now_s: float) -> None:
    del state.watch.probes[node]
    log_coverage.check(state, now, now_s)
    seen = state.watch.visibility
    if seen is not None and seen.own_fault_s < probe.began_s:  # a timeout while the daemon stood still says nothing
        _conclude(state, out, node, probe, now)


def _silent(state: State) -> tuple[int, int]:
    """How many of the nodes that should be in contact are silent, and how many should be in contact."""
    expected = _switched_on(state, _expected(state, _carrying(state)))
    return sum(1 for name in expected if state.cluster.node(name).state in ("silent", "unreachable")), len(expected)


def _cut_off(state: State) -> bool:
    if any(seen.state == "heard" for seen in state.cluster.nodes.values()):
        return False  # cheap check first: this runs for each of many silent nodes
    silent, expected = _silent(state)
    return silent == expected and max(expected, len(_before_in_service(state))) >= _TOGETHER


def _is_away(state: State, node: NodeView) -> bool:
    """Whether the node's silence says nothing: people work on it, or Slurm switches it off or on."""
    return reconciliation.left_to_people(state, node.name) or switched_by_slurm(node.state, node.flags)


def _conclude(state: State, out: Transition, node: str, probe: Probe, now: datetime) -> None:
    """All attempts to connect failed: report the node, unless the daemon is cut off or nobody needs the node."""
    fleet, seen = state.cluster.fleet, state.cluster.node(node)
    view = fleet.nodes.get(node) if fleet is not None else None
    if view is None:
        return
    out_of_work = view.drained and state.cluster.job_on(node) is None
    if seen.state == "unreachable" or view.state == "down" or out_of_work:
        seen.state = "unreachable"
        return
    if _is_away(state, view):
        seen.state = "silent"  # asked again: who stays silent when this is over is judged then
        out.say("node-away", node=node, reading="in maintenance, rebooting or switched off: its silence says nothing")
        return
    seen.state = "unreachable"
    if probe.cut_off or _cut_off(state):
        if not state.watch.all_silent_logged:
            state.watch.all_silent_logged = True
            reading = "our own network may be cut: not known"
            out.say("all-nodes-silent", warning=True, nodes=_silent(state)[0], reading=reading)
        seen.state = "silent"
        return
    _forget(state, node)  # it is told once: a person may return it as it is
    silent, _ = _silent(state)
    job = state.cluster.job_on(node)
    item = Evidence(
        id=stable_id("unreachable", node, seen.contact_s, now.isoformat()),
        at=now,
        seen_at=now,
        source=Source.PROBE,
        kind=Kind.NODE_UNREACHABLE,
        where=Where(node=node),
        text=f"{node}: no heartbeat, and slurmd at {view.address}:{view.port}: {_each_once(probe.refusals)}",
        data={"attempts": len(probe.refusals), "silent_nodes": silent, "job_on_it": job.id if job else None},
    )
    out.say("node-unreachable", warning=True, node=node, answers=",".join(probe.refusals))
    grouping.receive(state, out, EvidenceReceived(now, (item,)))


def _each_once(answers: Sequence[str]) -> str:
    """``Connection refused (3 times), timed out``."""
    counts = Counter(answers)
    return ", ".join(f"{answer} ({count} times)" if count > 1 else answer for answer, count in counts.items())
