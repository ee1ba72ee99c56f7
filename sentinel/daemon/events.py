"""Events that Slurm pushes through its hooks on the controller: no polling needed to hear that a job ended."""

from __future__ import annotations

import asyncio
from typing import Any

from sentinel.daemon.fleets import Fleets
from sentinel.daemon.judge import Judge, job_ended
from sentinel.daemon.live import Live
from sentinel.daemon.watch import Watch
from sentinel.log import Log
from sentinel.ports import Clock


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
        self._log.info("event", name=event, job=job)
        if event == "job_ended" and job.isdecimal():
            task = asyncio.create_task(self._job_ended(int(job)))
        else:
            task = asyncio.create_task(self._watch.reconcile())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _job_ended(self, job: int) -> None:
        # While the epilogs run the job is "completing" and its final state is Slurm's to say: ask until it says it.
        for _ in range(50):
            fleet = await self._fleets.insist()
            view = fleet.jobs.get(job)
            if view is None or view.state not in ("running", "completing"):
                break
            await asyncio.sleep(0.2)
        else:
            return  # reconciliation sees it when it is through
        if view is None or view.state in ("pending", "configuring"):
            return  # requeued: whoever did it knows
        await self._judge.observe([job_ended(view, self._clock.now(), nodes=self._live.nodes_of(job, view.restarts))])
