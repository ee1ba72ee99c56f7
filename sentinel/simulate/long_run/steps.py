"""Carries out the steps of plans on the simulated cluster, and notes what must not happen."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from sentinel.engine.events import EffectCompleted
from sentinel.engine.transition import CarryOutStep
from sentinel.model.records import OURS, Outcome, Result, Scalar, StepKind, Trust
from sentinel.simulate.long_run.cluster import REQUEUE_S, Job, moment
from sentinel.simulate.long_run.run import Run
from sentinel.text import names

if TYPE_CHECKING:
    from sentinel.simulate.long_run.engine_runner import EngineRunner

START = "start"  # beside the kinds of steps: from the release to RUNNING
_FAR_S = 30 * 86400.0  # a job that waits for its restart is deferred so long


class Steps:
    """See the module's docstring. What a step needs of Slurm is as ``sentinel.actions`` reads and writes it."""

    def __init__(self, run: Run, runner: EngineRunner) -> None:
        self._run = run
        self._runner = runner
        self._chosen: dict[int, float] = {}  # by job: work in the chosen checkpoint

    def begin(self, effect: CarryOutStep) -> None:
        times, kind = self._run.scenario.times, effect.task.step.kind
        spans = {
            StepKind.CHOOSE_CHECKPOINT: times.choose,
            StepKind.REQUEUE_HOLD: times.requeue,
            StepKind.HOLD: times.requeue,
            StepKind.WRITE_RESUME: times.write_resume,
        }
        took_s = spans.get(kind, times.slurm_write).draw(self._run.rng)
        self._run.counts.steps_s[str(kind)].append(took_s)
        self._run.later(took_s, partial(self._done, effect))

    def _done(self, effect: CarryOutStep) -> None:
        step, now = effect.task.step, moment(self._run.now_s)
        job = self._run.cluster.by_id(step.job)
        if step.node is not None:
            result, reason, data = self._node(effect)
        elif job is not None:
            result, reason, data = self._job(effect, job)
        else:
            result, reason, data = Result.FAILED, f"Slurm no longer knows job {step.job}", {}
        self._runner.feed(EffectCompleted(now, effect.id, outcome=Outcome(step, result, now, reason, data)))

    # -- nodes -----------------------------------------------------------------------------------------------------

    def _node(self, effect: CarryOutStep) -> tuple[Result, str, dict[str, Scalar]]:
        task, run = effect.task, self._run
        name = task.step.node or ""
        node = run.cluster.nodes.get(name)
        if node is None:
            return Result.FAILED, f"Slurm does not know node {name}", {}
        down = task.step.kind is StepKind.DOWN
        if node.drained and not (down and not node.down):
            return Result.DONE, "" if node.drained.startswith(OURS) else "was drained by somebody else already", {}
        self._check_drain(effect, name)
        run.counts.drains += 1
        if down:
            node.drained = node.drained or f"{OURS}{task.incident.id}"
            run.set_down(name)
            for job in run.cluster.jobs:
                if job.runs and name in job.on:
                    run.to_queue(job, wait_s=REQUEUE_S)
        else:
            run.drain(name, f"{OURS}{task.incident.id}")
        return Result.DONE, "", {}

    def _check_drain(self, effect: CarryOutStep, name: str) -> None:
        run, verdict = self._run, effect.task.verdict
        limits = run.scenario.settings.limits
        if name not in run.broken and run.settled(name):
            run.counts.wrong_drains += 1
        grounds = [ground.evidence for ground in verdict.grounds if ground.weight > 0]
        if all(item.trust is Trust.USER for item in grounds):
            run.counts.unsafe.append(f"{name} drained on a program's output ({verdict.cause})")
        ours = sum(1 for node in run.cluster.nodes.values() if node.drained.startswith(OURS))
        if ours + 1 > limits.drain_count:
            run.counts.unsafe.append(f"{name} drained beside {ours} others, {limits.drain_count} are allowed")
        usable = sum(1 for node in run.cluster.nodes.values() if not node.out)
        if usable - 1 < limits.keep_healthy:
            run.counts.unsafe.append(f"{name} drained, and {usable - 1} usable nodes are left")

    # -- jobs ------------------------------------------------------------------------------------------------------

    def _job(self, effect: CarryOutStep, job: Job) -> tuple[Result, str, dict[str, Scalar]]:
        run, step = self._run, effect.task.step
        attempt = step.attempt or 0
        if step.kind in (StepKind.REQUEUE_HOLD, StepKind.HOLD):
            return self._stop(effect, job, attempt)
        if step.kind is StepKind.CHOOSE_CHECKPOINT:
            saved_s = run.newest_s(job)
            self._chosen[job.index] = saved_s
            number = int(saved_s / run.scenario.step_s)
            data: dict[str, Scalar] = {"path": f"/shared/run1/step-{number}", "step": number, "tier": "global"}
            return Result.DONE, "", data if number else {}
        if job.state != "pending" or job.restarts != attempt + 1:
            return Result.FAILED, f"job {job.id} is not pending any more", {}
        if step.kind is StepKind.WRITE_RESUME:
            run.resume_s[job.index] = self._chosen.get(job.index, run.newest_s(job))
        elif step.kind is StepKind.EXCLUDE:
            return self._exclude(effect, job)
        elif step.kind is StepKind.RELEASE:
            if job.held:
                return Result.FAILED, f"job {job.id} was held meanwhile, not by Sentinel", {}
            job.eligible_s = run.now_s
            start_s = run.scenario.times.start.draw(run.rng)
            run.later(start_s, partial(run.start, job))
            run.counts.steps_s[START].append(start_s)
            run.counts.restart_s.append(run.now_s + start_s - (effect.task.plan.at - moment(0.0)).total_seconds())
        return Result.DONE, "", {}

    def _stop(self, effect: CarryOutStep, job: Job, attempt: int) -> tuple[Result, str, dict[str, Scalar]]:
        run, kind = self._run, effect.task.step.kind
        if job.restarts > attempt and job.state not in ("pending", "completing"):
            return Result.FAILED, f"job {job.id} was restarted by somebody else meanwhile", {}
        if job.runs and run.times[job.index].trains:
            run.counts.wrong_restarts += 1
            run.counts.unsafe.append(f"job {job.id} was stopped while it made steps ({effect.task.verdict.cause})")
            run.interrupted(job, "wrong restart")
        if job.state != "pending":
            run.to_queue(job, wait_s=_FAR_S)
        job.eligible_s = run.now_s + _FAR_S
        if kind is StepKind.HOLD:
            job.held, job.eligible_s = True, run.now_s
            self._runner.held(job)
            return Result.DONE, "", {}
        return Result.DONE, "", {"deferred": True}

    def _exclude(self, effect: CarryOutStep, job: Job) -> tuple[Result, str, dict[str, Scalar]]:
        data = effect.task.step.data
        wanted = set(names(data.get("nodes")))
        ours = set(names(data.get("ours")))
        theirs = set(job.excluded) - ours
        job.excluded = tuple(sorted(theirs | wanted))
        job.admin_comment = f"{OURS}{effect.task.incident.id} attempt={job.restarts}"
        added = ",".join(sorted(wanted - theirs))
        return Result.DONE, "", {"excluded": ",".join(job.excluded), "added": added, "required": ""}
