"""Delivers messages about a user's jobs to the addresses in that user's own file (receivers of ``kind = "users"``).

The agent of a node reads the file, as that user; its content is checked against what the site allows
(``sentinel.config.user_messages``). The file affects only that user's messages, and cannot delay those of others.
"""

from __future__ import annotations

from sentinel.adapters.notify.channels import channel
from sentinel.adapters.notify.delivery_threads import DeliveryThreads
from sentinel.config.alerts import Alerts
from sentinel.config.user_messages import channels_of
from sentinel.detect.cluster_view import ClusterView
from sentinel.engine.delivery import MOST_UNSURE, is_for
from sentinel.errors import Refused, SentinelError, Unavailable, UserError
from sentinel.log import Log
from sentinel.model.orders import MOST_MESSAGES_FILE, ReadMessagesFile
from sentinel.model.records import Notice, stable_id
from sentinel.ports import Orders
from sentinel.text import visible

_NODES = 3  # nodes asked for the file: the job's own, else any connected one, which may mount the user's home
_SILENT = "?"  # in what is kept of an address: so often it may have got the message, and did not say so


class UserFiles:
    """Implements ``sentinel.ports.Sink``."""

    def __init__(
        self, name: str, alerts: Alerts, orders: Orders, live: ClusterView, threads: DeliveryThreads, log: Log
    ) -> None:
        self.name = name
        self._alerts = alerts
        self._orders = orders
        self._live = live
        self._threads = threads
        self._log = log

    async def send(self, notice: Notice) -> None:
        """
        Raises:
            Unavailable, Refused: not all of the user's addresses have it. ``took`` says which do and which may, by
                digests, since an address is a secret.
        """
        user, job = str(notice.data.get("user") or ""), self._job_of(notice)
        text = await self._file(user, job)
        if text is None:
            return
        site = self._alerts.channels[self.name]
        try:
            asked = channels_of(text, site, "messages.toml")
        except UserError as error:
            self._log.info("messages-file-not-taken", user=user, reason=error.message)
            raise Refused(f"the file of {user}: {error.message}", fix=error.fix) from error
        took = list(notice.delivery.took)
        later: Unavailable | None = None
        unsure: Unavailable | None = None
        never: SentinelError | None = None
        for one in asked:
            address = stable_id(one.url or one.to[0])[:16]
            if address in took or not (is_for(one, notice) or notice.data.get("event") == "test"):
                continue
            silences = sum(mark.startswith(f"{address}{_SILENT}") for mark in took)
            if silences >= MOST_UNSURE:
                unsure = unsure or _may_have_arrived(user)
                continue
            try:
                await channel(self.name, one, self._alerts, self._threads, user).send(notice)
            except Unavailable as error:
                if error.unsure:
                    unsure = error
                    took.append(f"{address}{_SILENT}{silences + 1}")
                else:
                    later = error
            except SentinelError as error:
                never = error
            else:
                took.append(address)
        failed = later or unsure or never  # that one may have it ends the attempts only where no other waits for it
        if failed is not None:
            failed.took = tuple(took)
            raise failed

    def _job_of(self, notice: Notice) -> int:
        """A job of the user whose file is to be read; any of the user's jobs for a test message.

        Raises:
            Refused: no job of that user is known.
        """
        job, user, fleet = notice.data.get("job"), notice.data.get("user"), self._live.fleet
        if isinstance(job, int):
            return job
        jobs = [view.id for view in fleet.jobs.values() if view.user == user] if fleet is not None and user else []
        if not jobs:
            raise Refused(
                f"no job of {user or 'nobody'} is there, whose node could read the file",
                fix="try it while a job is there",
            )
        return max(jobs)

    async def _file(self, user: str, job: int) -> str | None:
        """The text of the user's file; None: there is no file.

        Raises:
            Unavailable: no node could be asked.
            Refused: the file exists but is not acceptable.
        """
        order, why = ReadMessagesFile(job), "no node is heard that could read the user's file"
        for node in self._nodes(job):
            try:
                found = await self._orders.ask(node, order.kind, order.arguments(), deadline_s=self._alerts.deadline_s)
            except Unavailable as error:
                why = error.message
                continue
            if not isinstance(found, dict) or not isinstance(found.get("text"), (str, type(None))):
                why = f"the agent of {node} answered what is no file"
                continue
            if problem := found.get("problem"):
                raise Refused(f"the file of {user}: {visible(str(problem), 200)}", fix="mend the file")
            text: str | None = found.get("text")
            if text is not None and found.get("user") != user:  # the node remembers an earlier job with this id
                why = f"the agent of {node} takes job {job} for another user's"
                continue
            return text if text is None or len(text) <= MOST_MESSAGES_FILE else text[:MOST_MESSAGES_FILE]
        raise Unavailable(why)

    def _nodes(self, job: int) -> list[str]:
        """Connected nodes: those of the job's newest attempt first, then others."""
        attempts = sorted((key for key in self._live.attempts if key[0] == job), reverse=True)
        own = [node for key in attempts for node in self._live.attempts[key].nodes]
        every = [name for name, seen in self._live.nodes.items() if seen.state == "heard"]
        heard = set(every)
        return list(dict.fromkeys([*(node for node in own if node in heard), *every]))[:_NODES]


def _may_have_arrived(user: str) -> Unavailable:
    error = Unavailable(f"an address in the file of {user} did not say whether it took the message")
    error.unsure = True
    return error
