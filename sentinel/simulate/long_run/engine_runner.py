"""Lets the live engine react to failures: gives it events, carries out its effects on the simulated cluster."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from sentinel.detect.cluster_view import ClusterView
from sentinel.detect.numbers.bad_numbers_onset import OnsetTracker
from sentinel.engine import Engine
from sentinel.engine.diagnostics.turns import DIAGNOSTICS
from sentinel.engine.engine import HOUSEKEEPING
from sentinel.engine.events import (
    ApprovalGiven,
    DiagnosticEnded,
    EffectCompleted,
    Event,
    EvidenceReceived,
    FleetObserved,
    ScoresRead,
    SlurmReported,
    TimerDue,
)
from sentinel.engine.state import State
from sentinel.engine.transition import (
    AskNodes,
    CarryOutStep,
    ObserveFleet,
    QueryMetrics,
    ReadScores,
    RunDiagnostic,
    StartTimer,
    Transition,
)
from sentinel.engine.watch.events import NodeHeard
from sentinel.engine.watch.reconciliation import RECONCILE
from sentinel.model.approvals import LAPSED, REFUSED, asked, open_names, request_of
from sentinel.model.changes import PlanMade
from sentinel.model.records import Evidence
from sentinel.simulate.agents import signatures
from sentinel.simulate.long_run import assumptions
from sentinel.simulate.long_run.causes import CRASH, HANG, LOST
from sentinel.simulate.long_run.cluster import Job, moment
from sentinel.simulate.long_run.failures import Failure
from sentinel.simulate.long_run.run import Run
from sentinel.simulate.long_run.signs import Signs
from sentinel.simulate.long_run.steps import Steps

_ENDLESS = frozenset({"breaker", "hang-breaker", "observe", LAPSED, REFUSED})  # waits that only a person ends
HANG_NAMED = 0.981  # docs/hang.md: culprits of 420 generated hangs
_TEARDOWN = "NVRM: Xid (PCI:0000:5d:00): 45, pid=4711, name=python, Ch 00000008"
_HOUSEKEEPING_S = 150.0  # after the last event: what is over is forgotten; see ``EngineRunner.feed``
_DIAGNOSTICS_S = 300.0  # after a node changed: by then a node that a restart left out is idle


class EngineRunner:
    """``Behaviour`` with the engine, rules and policy that run live."""

    person_comes: assumptions.Span | None = None

    def __init__(self, run: Run) -> None:
        self._run = run
        self.view = ClusterView()
        rules, settings = signatures().rules, run.scenario.settings
        self.engine = Engine(
            State(rules=rules, settings=settings, cluster=self.view, onsets=OnsetTracker(self.view, settings.judgement))
        )
        self.signs = Signs()
        self._steps = Steps(run, self)
        self._timers: dict[str, float] = {}
        self._soon: set[str] = set()
        self._called: set[str] = set()  # incidents for whose approval a person is on the way

    @property
    def state(self) -> State:
        return self.engine.state

    # -- events and effects ----------------------------------------------------------------------------------------

    def feed(self, event: Event) -> None:
        self.state.housekept_at = event.at  # every 10 s in the live daemon, which never stood still
        self._apply(self.engine.handle(event))

    def _apply(self, out: Transition) -> None:
        run, counts = self._run, self._run.counts
        for change in out.changes:
            if isinstance(change, PlanMade):
                for wait in change.plan.waits:
                    counts.waits[wait.kind] += 1
                if asked(change.plan):
                    self._call_for_approval(change.plan.incident)
        for remark in out.remarks:
            if remark.name == "verdict" and remark.fields.get("decision_s") is not None:
                counts.decision_s.append(float(remark.fields["decision_s"]))
        for effect in out.effects:
            match effect:
                case StartTimer():
                    due_s = max((effect.due - moment(0.0)).total_seconds(), run.now_s)
                    self._timers[effect.id] = due_s
                    run.later(due_s - run.now_s, partial(self._timer, effect.id, due_s))
                case ObserveFleet():
                    run.later(run.scenario.times.slurm_read.draw(run.rng), partial(self._observed, effect.id))
                case AskNodes():
                    self._later_done(effect.id, self._asked(effect.incident.job, effect.incident.attempt))
                case QueryMetrics():
                    self._later_done(effect.id, ())
                case CarryOutStep():
                    self._steps.begin(effect)
                case ReadScores():
                    self.soon("scores", 1.0, lambda: ScoresRead(moment(run.now_s), {}, {}))
                case RunDiagnostic():
                    run.later(0.6 * effect.deadline_s, partial(self._diagnosed, effect))
        self.soon(
            HOUSEKEEPING, _HOUSEKEEPING_S, lambda: TimerDue(moment(run.now_s), HOUSEKEEPING), keep=bool(out.effects)
        )

    def _call_for_approval(self, incident: str) -> None:
        """Mode suggest: a person comes as to any call, and approves what is asked by then."""
        if incident not in self._called:
            self._called.add(incident)
            comes_s = (self.person_comes or assumptions.PERSON_COMES).draw(self._run.rng)
            self._run.later(comes_s, partial(self._approve, incident))

    def _approve(self, incident: str) -> None:
        self._called.discard(incident)
        state, now = self.state, moment(self._run.now_s)
        plan, verdict = state.plans.get(incident), state.verdicts.get(incident)
        waiting = asked(plan) if plan is not None and incident in state.open_plans else ()
        if plan is None or verdict is None or not waiting:
            return
        self._run.seen_to(state.incidents[incident].job)
        request = request_of(plan, verdict.cause)
        self.feed(ApprovalGiven(now, incident, request, open_names(waiting), True, "on-call"))

    def soon(self, name: str, after_s: float, make: object, *, keep: bool = True) -> None:
        """Give the engine this event once after ``after_s``; asked for again meanwhile, it comes once."""
        if name in self._soon or not keep:
            return
        self._soon.add(name)

        def due() -> None:
            self._soon.discard(name)
            assert callable(make)
            self.feed(make())

        self._run.later(after_s, due)

    def _timer(self, name: str, due_s: float) -> None:
        if self._timers.get(name) == due_s:
            del self._timers[name]
            self.feed(TimerDue(moment(self._run.now_s), name))

    def _observed(self, effect: str) -> None:
        now = moment(self._run.now_s)
        self.feed(FleetObserved(now, self._run.cluster.fleet(self._run.now_s)))
        self.feed(EffectCompleted(now, effect))

    def _later_done(self, effect: str, found: Iterable[Evidence]) -> None:
        run = self._run
        answers = tuple(found)
        run.later(
            run.scenario.times.ask.draw(run.rng),
            lambda: self.feed(EffectCompleted(moment(run.now_s), effect, evidence=answers)),
        )

    def hear(self, items: Iterable[Evidence], after_s: float = 0.0) -> None:
        """Evidence reaches the daemon."""
        found = tuple(items)
        if found:
            delay_s = after_s + self._run.scenario.times.tell.draw(self._run.rng)
            self._run.later(delay_s, lambda: self.feed(EvidenceReceived(moment(self._run.now_s), found)))

    # -- what can be seen ------------------------------------------------------------------------------------------

    def begin(self) -> None:
        at = moment(0.0)
        for name in self._run.cluster.nodes:
            self.feed(NodeHeard(at, name))
        self.feed(FleetObserved(at, self._run.cluster.fleet(0.0)))

    def struck(self, failure: Failure, job: Job, nodes: tuple[str, ...], told: Iterable[str]) -> None:
        run, sign = self._run, failure.sign
        now = moment(run.now_s)
        if not failure.unseen:
            for node in nodes:
                if sign.kernel or sign.fact is not None:  # the agent's own verdict, as its heartbeats tell it
                    self.view.node(node).verdict = {"word": "BAD"}
                for line in sign.kernel:
                    self.hear(self.signs.kernel(node, line, now, now), failure.late_s)
                if sign.fact is not None:
                    self.hear(self.signs.fact(node, sign.fact, now, now), failure.late_s + run.rng.uniform(0.0, 2.0))
        for name in told:
            run.later(sign.after_s + run.rng.uniform(0.0, 2.0), partial(self._teardown, name))
        if sign.ends == LOST:
            for node in nodes:
                run.later(sign.after_s + assumptions.NODE_LOST_S, partial(self._unreachable, node, failure))
        attempt = (job.id, job.restarts)
        if sign.ends == CRASH and sign.log:
            rank = job.on.index(nodes[0]) * run.scenario.gpus_per_node + 3
            run.later(max(sign.after_s - 0.5, 0.0), partial(self._prints, attempt, rank, job, sign.log))
        if sign.ends in (HANG, LOST):
            seen_s = assumptions.hang_seen_s(run.rng, run.scenario.step_s)
            run.later(seen_s, partial(self._silent, job, attempt, seen_s, failure, nodes))

    def _teardown(self, node: str) -> None:
        now = moment(self._run.now_s)
        self.hear(self.signs.kernel(node, _TEARDOWN, now, now))

    def _unreachable(self, node: str, failure: Failure) -> None:
        if self._run.broken.get(node) is failure and not self._run.cluster.nodes[node].out:
            self.view.node(node).state = "unreachable"  # as the watch on nodes notes
            self.hear(self.signs.unreachable(node, moment(self._run.now_s)))

    def _prints(self, attempt: tuple[int, int], rank: int, job: Job, lines: tuple[str, ...]) -> None:
        """The rank that meets the failure prints, then the last one says that it was torn down."""
        if not job.runs or (job.id, job.restarts) != attempt:
            return
        last = len(job.on) * self._run.scenario.gpus_per_node - 1
        aborted = f"torch.distributed.DistBackendError: NCCL communicator was aborted on rank {last}."
        said = (*((rank, line) for line in lines), (last, aborted))
        self.hear(self.signs.log(*attempt, said, moment(self._run.now_s)))

    def _silent(
        self, job: Job, attempt: tuple[int, int], seen_s: float, failure: Failure, nodes: tuple[str, ...]
    ) -> None:
        if not job.runs or (job.id, job.restarts) != attempt or self._run.times[job.index].trains:
            return
        run, now = self._run, moment(self._run.now_s)
        step = self.step_of(job)
        run.counts.detection_s.append(seen_s)
        found = self.signs.stall(*attempt, step, seen_s, now)
        if failure.sign.ends == HANG:
            node = nodes[0] if run.rng.random() < HANG_NAMED else run.rng.choice(job.on)
            rank = job.on.index(node) * run.scenario.gpus_per_node + 3
            found = [*found, *self.signs.blocks(*attempt, node, rank, now)]
        self.hear(found)

    def step_of(self, job: Job) -> int:
        """The newest step of the job."""
        return int(self._run.times[job.index].reached_s(self._run.now_s) / self._run.scenario.step_s)

    def _asked(self, job: int | None, attempt: int | None) -> tuple[Evidence, ...]:
        """Nodes cannot tell more of a hang than the job did."""
        return ()

    def ended(self, job: Job) -> None:
        if job.state == "failed":
            self.feed(SlurmReported(moment(self._run.now_s), "job_ended", frozenset({job.id})))
        self.node_changed("")

    def stepping(self, job: Job) -> None:
        """Its first step, and one that was printed long after: what lies between would change nothing."""
        run = self._run
        now, step = moment(run.now_s), int(run.times[job.index].work_s / run.scenario.step_s)
        self.hear(self.signs.step(job.id, job.restarts, step + 1, run.scenario.step_s, now))

    def reached(self, job: Job) -> None:
        """The last step line before a failure."""
        now = moment(self._run.now_s)
        items = self.signs.step(job.id, job.restarts, self.step_of(job), self._run.scenario.step_s, now)
        self.feed(EvidenceReceived(now, tuple(items)))

    def node_changed(self, node: str) -> None:
        run = self._run
        if node and not run.cluster.nodes[node].out:
            self.mended(node)
            self.view.node(node).released_at = moment(run.now_s)
        make = lambda: TimerDue(moment(run.now_s), RECONCILE)  # noqa: E731 - made when it is due
        self.soon(RECONCILE, run.rng.uniform(0.0, run.scenario.settings.slurm.reconcile_s), make)
        self.soon(
            "again", run.scenario.settings.slurm.reconcile_s + 12.0, make
        )  # what was judged lately is judged then
        self._test_soon()

    def _test_soon(self) -> None:
        """Idle nodes are looked at again while one is suspected: the live engine looks every 15 s."""
        self.soon(DIAGNOSTICS, _DIAGNOSTICS_S, self._test)

    def _test(self) -> TimerDue:
        if any(known.suspect is not None for known in self.state.diagnostics.known.values()):
            self._test_soon()
        return TimerDue(moment(self._run.now_s), DIAGNOSTICS)

    def mended(self, node: str) -> None:
        """The node's agent is heard and reports the node as healthy."""
        self.view.node(node).verdict = {"word": "OK"}
        self.feed(NodeHeard(moment(self._run.now_s), node))

    def _diagnosed(self, effect: RunDiagnostic) -> None:
        """An idle node was tested."""
        run = self._run
        now, node = moment(run.now_s), effect.node
        busy = any(job.runs and node in job.on for job in run.cluster.jobs)
        seen = self.view.node(node).verdict.get("word") == "BAD"
        missed = not seen and run.rng.random() < assumptions.FIRST_DIAGNOSTIC_PASSES
        passed = node not in run.broken or missed
        result = "unknown" if busy else "pass" if passed else "fail"
        found = () if busy else tuple(self.signs.diagnostic(node, effect.level, passed, now))
        self.feed(DiagnosticEnded(now, effect.id, node, result, evidence=found))

    def at_work(self, job: Job) -> bool:
        state = self.state
        own = [name for name, incident in state.incidents.items() if incident.job == job.id]
        if any(name in state.recoveries or name in state.judging for name in own):
            return True
        if any(
            wait.kind not in _ENDLESS for name in own if name in state.open_plans for wait in state.plans[name].waits
        ):
            return True
        return self._run.goes_on(job)

    def held(self, job: Job) -> None:
        """Sentinel holds the job for a person, and has told so."""
        self._run.page(job)
