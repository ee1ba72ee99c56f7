"""The decision engine alone: events a second of one core, and the longest one.

A simulated cluster of 2,048 nodes with 256 jobs of eight, 200 open incidents on other nodes, each with a verdict and a plan.
Ordinary events: step lines, warnings of single nodes that belong nowhere, saves; one snapshot of Slurm in a thousand. Then
heartbeats of all nodes, each with its job and, of batch hosts, how far the job's log is read, with step lines and periodic
checks of nodes and jobs. Then single Xids that open incidents, with everything that follows until their plans are made.

The baseline of the same run is what must be done in any case: the same records turned into JSON for the store.

Run: PYTHONPATH=$PWD:$PWD/tests/support python tests/bench/engine.py [--nodes 2048] [--events 20000]
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable, Iterable

from in_memory.daemon import RULES, SETTINGS
from made_records import AT, evidence, fleet, incident, job, later, plan, step, verdict
from made_records import node as node_of

from sentinel.detect.cluster_view import ClusterView
from sentinel.detect.numbers.bad_numbers_onset import OnsetTracker
from sentinel.detect.observed_silence import LogRead
from sentinel.engine import Engine, Transition
from sentinel.engine.events import EffectCompleted, Event, EvidenceReceived, FleetObserved, TimerDue
from sentinel.engine.reconcile import waits
from sentinel.engine.state import State
from sentinel.engine.transition import CarryOutStep, ObserveFleet, ProbeNode, StartTimer
from sentinel.engine.watch.events import HeartbeatReceived, NodeProbed, WatchStarted
from sentinel.model.records import Evidence, Fleet, Kind, Outcome, Result, Source, StepKind
from sentinel.wire import to_text

_WIDE = 8  # nodes of a job
_OPEN = 200


def cluster(nodes: int) -> tuple[Fleet, Engine]:
    names = [f"n{number}" for number in range(nodes)]
    jobs = [job(1000 + at, nodes=tuple(names[at * _WIDE : (at + 1) * _WIDE])) for at in range((nodes - _OPEN) // _WIDE)]
    there = fleet([node_of(name) for name in names], jobs)
    view = ClusterView()
    state = State(rules=RULES, settings=SETTINGS, cluster=view, onsets=OnsetTracker(view, SETTINGS.judgement))
    engine = Engine(state)
    engine.handle(FleetObserved(AT, there))
    for at, name in enumerate(names[-_OPEN:]):
        found = incident(evidence(node=name, data={"xid": 79}), id=f"open{at}", job=None, attempt=None, nodes=[name])
        state.put(found)
        state.verdicts[found.id] = verdict(drain=(name,))
        state.plans[found.id] = plan(step(StepKind.DRAIN, node=name), incident=found.id)
    return there, engine


def ordinary(there: Fleet, count: int) -> Iterable[Event]:
    jobs = sorted(there.jobs)
    for number in range(count):
        at_s = number * 0.01
        of = jobs[number % len(jobs)]
        if number % 1000 == 999:
            yield FleetObserved(later(at_s), there)
            continue
        item: Evidence
        data: dict[str, float]
        if number % 10 == 7:
            node = there.jobs[of].nodes[number % _WIDE]
            item = evidence("persistence_off", node=node, at_s=at_s, source=Source.AGENT, text=f"line {number}")
        elif number % 10 == 8:
            item = evidence(
                Kind.CHECKPOINT_SAVED, source=Source.JOB_LOG, job=of, attempt=0, at_s=at_s, data={"step": number}
            )
        else:
            data = {"step": number // len(jobs), "step_time_s": 2.5, "loss": 2.0 + 0.01 * (number % 7)}
            item = evidence(Kind.STEP, source=Source.JOB_LOG, job=of, attempt=0, at_s=at_s, data=data)
        yield EvidenceReceived(later(at_s), (item,))


def beats(there: Fleet, count: int) -> Iterable[Event]:
    """Each node sends one in 2 s; the checks of nodes and jobs come four times a second, as in the daemon."""
    names = sorted(there.nodes)
    of = {name: job for job in there.jobs.values() for name in job.nodes}
    yield WatchStarted(later(2000.0))
    jobs_there = sorted(there.jobs)
    every_s = 2.0 / len(names)
    checked_s = 0.0
    for number in range(count):
        name, after_s = names[number % len(names)], every_s * number
        at = later(2000.0 + after_s)
        job = of.get(name)
        jobs = ((job.id, 0),) if job is not None else ()
        logs = (LogRead(job.id, 0, 0.1),) if job is not None and job.nodes[0] == name else ()
        yield HeartbeatReceived(at, name, jobs=jobs, logs=logs, boot="b", sent_s=after_s)
        if number % 20 == 0:  # a step of each job every 2.5 s or so
            running = jobs_there[number // 20 % len(jobs_there)]
            data = {"step": 100_000 + number // 20 // len(jobs_there), "step_time_s": 2.5}
            item = evidence(Kind.STEP, source=Source.JOB_LOG, job=running, attempt=0, at_s=2000.0 + after_s, data=data)
            yield EvidenceReceived(at, (item,))
        if after_s - checked_s >= 0.25:
            checked_s = after_s
            yield TimerDue(at, "check-nodes")
            yield TimerDue(at, "check-jobs")


def faults(engine: Engine, there: Fleet, count: int) -> Iterable[tuple[Event, Transition]]:
    """Xids on nodes of as many jobs, each followed to its first step; yields every event with what came of it."""
    for number in range(count):
        at_s = 5000.0 + 100.0 * number
        name = there.jobs[1000 + number].nodes[0]
        xid = evidence(Kind.XID, node=name, at_s=at_s, data={"xid": 79, "pci": "0000:3b:00"}, text="NVRM: Xid 79")
        waiting: list[Event] = [EvidenceReceived(later(at_s), (xid,))]
        while waiting:
            event = waiting.pop(0)
            out = engine.handle(event)
            yield event, out
            for effect in out.effects:
                if isinstance(effect, StartTimer) and (effect.id == waits.NEXT or effect.id.startswith("judge:")):
                    waiting.append(TimerDue(effect.due, effect.id))
                elif isinstance(effect, ObserveFleet):
                    fresh = Fleet(later(at_s + 0.4), there.nodes, there.jobs)
                    waiting += [FleetObserved(fresh.at, fresh), EffectCompleted(fresh.at, effect.id)]
                elif isinstance(effect, CarryOutStep) and effect.task.step.kind is StepKind.DRAIN:
                    done = Outcome(effect.task.step, Result.DONE, later(at_s + 1.0))
                    waiting.append(EffectCompleted(done.at, effect.id, outcome=done))


def cut_off(engine: Engine, there: Fleet, after_s: float) -> Iterable[Event]:
    """All nodes fall silent at once, as when our own network is cut; every probe is refused; then all are heard again."""
    seen: Transition = engine.handle(TimerDue(later(after_s), "check-nodes"))
    probes = [effect for effect in seen.effects if isinstance(effect, ProbeNode)]
    for attempt in range(engine.state.settings.daemon.probe_attempts):
        for effect in probes:
            yield NodeProbed(later(after_s + attempt), effect.id, "timed out")
        probes = []
        for name, probe in engine.state.watch.probes.items():
            if not probe.effect:
                out: Transition = engine.handle(TimerDue(later(after_s + attempt + 0.5), f"probe:{name}"))
                probes += [effect for effect in out.effects if isinstance(effect, ProbeNode)]
    for name in sorted(there.nodes):
        yield HeartbeatReceived(later(after_s + 20.0), name, jobs=(), logs=(), boot="b")


def timed(events: Iterable[Event], handle: Callable[[Event], object]) -> tuple[float, float, int]:
    """Seconds in all, the longest, and how many."""
    total = longest = 0.0
    count = 0
    for event in events:
        began = time.process_time()
        handle(event)
        took = time.process_time() - began
        total, longest, count = total + took, max(longest, took), count + 1
    return total, longest, count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=2048)
    parser.add_argument("--events", type=int, default=20_000)
    chosen = parser.parse_args()
    there, engine = cluster(chosen.nodes)
    gc.collect()
    gc.freeze()
    events = list(ordinary(there, chosen.events))
    items = [event.items[0] for event in events if isinstance(event, EvidenceReceived)]
    json_s, _, _ = timed(events[: len(items)], lambda _: None)
    began = time.process_time()
    for item in items:
        to_text(item)
    json_s += time.process_time() - began
    total, longest, count = timed(events, engine.handle)
    print(f"{chosen.nodes} simulated nodes, {len(there.jobs)} jobs, {len(engine.state.incidents)} open incidents")
    print(f"ordinary events: {count / total:,.0f} a second, longest {longest * 1000:.1f} ms")
    ratio = count / total / (len(items) / json_s)
    print(f"  baseline, the same records as JSON: {len(items) / json_s:,.0f} a second; ratio {ratio:.2f}")
    sent = list(beats(there, 10 * chosen.nodes))
    total, longest, count = timed(sent, engine.handle)
    print(
        f"heartbeats with checks of all nodes and jobs: {count / total:,.0f} a second, longest {longest * 1000:.1f} ms"
    )
    checks = [event for event in sent if isinstance(event, TimerDue)]
    for name in ("check-nodes", "check-jobs"):
        total, longest, count = timed((event for event in checks if event.timer == name), engine.handle)
        print(f"  {name}: {1000 * total / count:.2f} ms each, longest {longest * 1000:.1f} ms")
    began = time.process_time()
    total, longest, count = timed(cut_off(engine, there, 4000.0), engine.handle)
    whole_s = time.process_time() - began
    print(
        f"all silent, probed and heard again: {whole_s:.2f} s in all, longest event {1000 * longest:.1f} ms of {count}"
    )
    each: list[float] = []
    began = time.process_time()
    plans, longest, slowest = 0, 0.0, ""
    for event, out in faults(engine, there, min(100, len(there.jobs))):
        now = time.process_time()
        each.append(now - began)
        if each[-1] > longest:
            longest, slowest = each[-1], type(event).__name__
        plans += sum(1 for remark in out.remarks if remark.name == "verdict")
        began = time.process_time()
    print(
        f"faults: {plans} verdicts with plans in {len(each)} events, longest event {1000 * longest:.1f} ms ({slowest}), "
        f"{len(engine.state.judged_again)} incidents wait"
    )


if __name__ == "__main__":
    main()
