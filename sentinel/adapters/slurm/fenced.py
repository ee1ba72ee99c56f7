"""Lets only the active daemon write to Slurm, which has no notion of a lease.

Before each request that changes something the database is asked whether the lease is ours; the request is ended when the
lease runs out under it. What cannot be excluded: a process that is frozen between that answer and the request, or a request
that slurmctld already has, takes effect later. It is one request for each step under way, sets what it sets once, and the
daemon that is active then compares Slurm with what it wants at every snapshot.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any

from sentinel.adapters.slurm.writer import Verbs
from sentinel.errors import Unavailable
from sentinel.ports import Fence


class FencedVerbs:
    """``Verbs`` whose writes need the lease."""

    def __init__(self, verbs: Verbs, fence: Fence) -> None:
        self._verbs = verbs
        self._fence = fence
        self.node = verbs.node
        self.job_record = verbs.job_record

    async def set_node(self, node: str, state: str, reason: str | None) -> None:
        await self._write(self._verbs.set_node(node, state, reason))

    async def requeue_hold(self, job: str, *, incomplete: bool) -> None:
        await self._write(self._verbs.requeue_hold(job, incomplete=incomplete))

    async def hold(self, job: str) -> None:
        await self._write(self._verbs.hold(job))

    async def release(self, job: str) -> None:
        await self._write(self._verbs.release(job))

    async def set_job(self, job: str, fields: Mapping[str, str]) -> None:
        await self._write(self._verbs.set_job(job, fields))

    async def set_reservation(self, name: str, fields: Mapping[str, str]) -> None:
        await self._write(self._verbs.set_reservation(name, fields))

    async def end_step(self, job: str, step: int) -> None:
        await self._write(self._verbs.end_step(job, step))

    async def notify(self, job: str, text: str) -> None:
        await self._write(self._verbs.notify(job, text))

    async def _write(self, request: Coroutine[Any, Any, None]) -> None:
        """
        Raises:
            Unavailable: the lease is not ours: nothing was done. Or it ran out: whether it was done is not known.
        """
        try:
            await self._fence.confirm()
        except BaseException:
            request.close()
            raise
        task = asyncio.ensure_future(request)
        try:
            while not task.done():
                left_s = self._fence.left_s()
                if left_s <= 0:
                    raise Unavailable(
                        "the lease ran out during a request to Slurm; not known whether it was carried out"
                    )
                await asyncio.wait({task}, timeout=left_s)
            task.result()
        except GeneratorExit:  # the event loop is gone: there is nothing to wait for
            raise
        except BaseException:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            raise
