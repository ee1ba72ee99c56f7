"""Events that Slurm pushes through its hooks on the controller: no polling needed to hear that a job ended."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

from sentinel.daemon.fleets import Fleets
from sentinel.daemon.judge import Judge, job_ended
from sentinel.daemon.live import Live
from sentinel.daemon.watch import Watch
from sentinel.log import Log
from sentinel.ports import Clock

_SHOWN = 100  # jobs of one burst that the log names


class Events:
    def __init__(self, *, live: Live, fleets: Fleets, judge: Judge, watch: Watch, clock: Clock, log: Log) -> None:
        self._live = live
        self._fleets = fleets
        self._judge = judge
        self._watch = watch
        self._clock = clock
        self._log = log
        self._tasks: set[asyncio.Task[None]] = set()

    async def arrived(self, event: str, environment: dict[str, Any]) -> None:
        """Take an event; the hook must not wait for Slurm, so the rest happens after the answer."""
        job = str(environment.get("SLURM_JOB_ID", ""))
        await self.arrived_together(event, {int(job)} if job.isdecimal() else set())

    async def arrived_together(self, event: str, jobs: Collection[int]) -> None:
        """The same event of several jobs: Slurm is asked once for all of them."""
        for job in [str(job) for job in sorted(jobs)[:_SHOWN]] or [""]:
            self._log.info("event", name=event, job=job)
        if event == "job_ended" and jobs:
            task = asyncio.create_task(self._jobs_ended(set(jobs)))
        else:
            task = asyncio.create_task(self._watch.reconcile())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _jobs_ended(self, jobs: set[int]) -> None:
        # While the epilogs run a job is "completing" and its final state is Slurm's to say: ask until it says it.
        for _ in range(50):
            fleet = await self._fleets.insist()
            views = [view for view in (fleet.jobs.get(job) for job in sorted(jobs)) if view is not None]
            jobs = {view.id for view in views if view.state in ("running", "completing")}
            now = self._clock.now()
            over = [
                job_ended(view, now, nodes=self._live.nodes_of(view.id, view.restarts))
                for view in views
                if view.id not in jobs
                and view.state not in ("pending", "configuring")  # requeued: whoever did it knows
            ]
            if over:
                await self._judge.observe(over)
            if not jobs:
                return
            await asyncio.sleep(0.2)  # what is left then, reconciliation sees when it is through
