"""Delivers messages into a job's own log, through the agent of the node where its batch script ran."""

from __future__ import annotations

from sentinel.config.alerts import JOB_LOG
from sentinel.detect.cluster_view import ClusterView
from sentinel.errors import SentinelError
from sentinel.log import Log
from sentinel.model.orders import MOST_LOG_TEXT, WriteToLog
from sentinel.model.records import Notice
from sentinel.ports import Orders


class JobLogs:
    """Best effort: a log that cannot be written is recorded, but operators need not act on it."""

    name = JOB_LOG

    def __init__(self, orders: Orders, live: ClusterView, log: Log, *, deadline_s: float) -> None:
        self._orders = orders
        self._live = live
        self._log = log
        self._deadline_s = deadline_s

    async def send(self, notice: Notice) -> None:
        job, attempt = notice.data.get("job"), notice.data.get("attempt")
        text = str(notice.data.get("log_text") or "")[:MOST_LOG_TEXT]
        if not isinstance(job, int) or not isinstance(attempt, int) or not text:
            return
        seen = self._live.attempts.get((job, attempt))
        if seen is None or not seen.nodes:
            return
        order = WriteToLog(job, attempt, text)
        try:
            await self._orders.ask(seen.nodes[0], order.kind, order.arguments(), deadline_s=self._deadline_s)
        except SentinelError as error:
            self._log.info("job-log-not-written", job=job, attempt=attempt, node=seen.nodes[0], reason=error.message)
