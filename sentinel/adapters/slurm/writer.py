"""What writing to Slurm means, over whatever carries it there: Slurm's traps are handled here, once.

A verb is one request and says no with ``SlurmSaidNo``. The writer decides whether that no is "already so" (success), a
thing to mend first (Requeue=0), or a refusal.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

from sentinel.adapters.slurm.parse import ENDED, Record, array_spec, het_leader, job_of, whole
from sentinel.adapters.slurm.process import Answer, SlurmSaidNo
from sentinel.errors import Refused, RefusedForNow, Unavailable
from sentinel.model.records import OURS, JobView, NodeView
from sentinel.model.vocabulary import ENDED_ON_PURPOSE, POWERED_OFF, PROLOG_ERROR, only_for_reboot, switched_by_slurm
from sentinel.text import printable

TRIES = 4  # a job changes its state between our look and our request at most a few times
# Slurm has no "only if it is still so": what was seen longer ago than a quick answer takes is looked at once more.
OLD_S = 2.0
MOST_COMPONENTS = 128  # of a heterogeneous job (MAX_HET_JOB_COMPS of Slurm)
MAX_ARGUMENT = 1024  # Slurm cuts comments there
# slurmd notes, in whole seconds, when it ended a job; what slurmctld signs for that job in the same second it takes for
# old ("Job credential revoked") and the restarted job fails at once (seen with 24.11). And it forgets the ended job only
# when it last looked two seconds ago: a start before that is taken for the same job and its Prolog is not run (22.05).
REVOKED_S = 2.05
# By the clock of this host: scontrol makes any earlier time its own now (22.05).
# A job waits for as long as this clock is ahead of slurmctld's.
AT_ONCE = "now"
DEFERRED = "now+30days"  # a start this far off is none; a person who finds such a job sets StartTime=now
NO_MORE_WORK = frozenset({"drain", "fail"})
OF_ONE_COMPONENT = frozenset({"ReqNodeList", "NumTasks", "NumCPUs", "NumNodes"})  # of a heterogeneous job


class Verbs(Protocol):
    """The single requests; each raises SlurmSaidNo, or Unavailable and its children."""

    async def node(self, name: str) -> NodeView | None: ...

    async def job_record(self, job: int) -> Record | None: ...

    async def set_node(self, node: str, state: str, reason: str | None) -> None: ...

    async def requeue_hold(self, job: str, *, incomplete: bool) -> None:
        """
        Args:
            incomplete: to slurmctld, which looks at the job when it gets this: one that runs or is suspended is requeued,
                and with any other nothing is done, without a no.
        """
        ...

    async def hold(self, job: str) -> None: ...

    async def release(self, job: str) -> None: ...

    async def set_job(self, job: str, fields: Mapping[str, str]) -> None: ...

    async def set_reservation(self, name: str, fields: Mapping[str, str]) -> None: ...

    async def end_step(self, job: str, step: int) -> None: ...

    async def notify(self, job: str, text: str) -> None: ...


class Writer:
    """``SlurmWriter`` over verbs. Every method may be repeated."""

    def __init__(
        self,
        verbs: Verbs,
        *,
        now: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._verbs = verbs
        self._now = now  # Unix time
        self._sleep = sleep
        self._requeued_at: dict[int, float] = {}  # by job (its leader), of the last ``REVOKED_S`` seconds

    @property
    def verbs(self) -> Verbs:
        return self._verbs

    # -- nodes --------------------------------------------------------------------------------------------------------

    async def drain(self, node: str, reason: str, *, replace: bool = False) -> None:
        """Take no new work.

        Args:
            replace: also the reason of an earlier drain of ours; else that stays as it is.

        Raises:
            Refused: somebody else's drain is on the node, or there is no such node. Nothing was changed.
        """
        seen = await self._node(node)
        if _out_of_service(seen) and not only_for_reboot(seen.reason, seen.flags):
            if seen.reason.startswith(OURS) and (not replace or seen.reason == one_line(reason)):
                return
            if not seen.reason.startswith(OURS):
                raise Refused(f"{node} is already drained by somebody else: {seen.reason or 'no reason given'}")
        await self._set_node(node, "DRAIN", one_line(reason))

    async def down(self, node: str, reason: str) -> None:
        """A node that is gone. DRAIN comes first: whatever happens between the two requests, it gets no work.

        DOWN ends its jobs (NODE_FAIL) and lets COMPLETING ones go at once; DRAIN stays when the node answers again, also
        with ReturnToService=2. A drain reason of somebody else is kept, so that the node stays theirs.

        Raises:
            Refused: Slurm switches the node off or on, or reboots it: it is not gone. Or there is no such node.
        """
        seen = await self._node(node)
        if seen.state != "down" and switched_by_slurm(seen.state, seen.flags):
            raise Refused(f"{node} is being switched off or on, or rebooted, by Slurm: it is not gone")
        drained = _out_of_service(seen)
        words = seen.reason if drained and seen.reason else one_line(reason)
        if not drained:
            await self._set_node(node, "DRAIN", words)
        if seen.state != "down":
            await self._set_node(node, "DOWN", words)

    async def explain(self, node: str, reason: str) -> None:
        """Our reason in the place of Slurm's own, on a node that is drained since its prolog failed; or the drain with this
        reason anew, where Slurm ended that as it switched the node off.

        Raises:
            Refused: the node is in service, or carries somebody else's reason. Nothing was changed.
        """
        seen = await self._node(node)
        if _out_of_service(seen) and seen.reason.startswith(OURS):
            return
        off = seen.reason == one_line(reason) and bool(seen.flags & POWERED_OFF)
        if not off and (not _out_of_service(seen) or seen.reason != PROLOG_ERROR):
            raise Refused(f"{node} is not drained by a failed prolog: {seen.reason or 'no reason given'}")
        await self._set_node(node, "DRAIN", one_line(reason))

    async def undrain(self, node: str) -> None:
        """Give a node that we drained (or set down) back to Slurm.

        Raises:
            Refused: the drain is not ours (promise 5), or there is no such node.
        """
        seen = await self._node(node)
        if not _out_of_service(seen):
            return
        if not seen.reason.startswith(OURS):
            raise Refused(f"{node} was drained by somebody else: {seen.reason or 'no reason given'}")
        try:
            await self._set_node(node, "RESUME", None)
        except SlurmSaidNo as no:
            if no.answer is not Answer.NODE_STATE or _out_of_service(await self._node(node)):
                raise Refused(f"Slurm does not resume {node}: {no.message}") from no

    async def _node(self, node: str) -> NodeView:
        """The node as it is now: an answer that took long is old, if this process stood still in between."""
        asked = self._now()
        seen = await self._verbs.node(node)
        if self._now() - asked > OLD_S:
            seen = await self._verbs.node(node)
        if seen is None:
            raise Refused(f"Slurm has no node {node!r:.80}")
        return seen

    async def _set_node(self, node: str, state: str, reason: str | None) -> None:
        try:
            await self._verbs.set_node(node, state, reason)
        except SlurmSaidNo as no:
            if state == "RESUME" and no.answer is Answer.NODE_STATE:
                raise
            kind = Refused if no.answer is Answer.NO_NODE else RefusedForNow
            raise kind(f"Slurm does not set {node} to {state}: {no.message}") from no

    # -- jobs ---------------------------------------------------------------------------------------------------------

    async def requeue_hold(self, job: int, attempt: int | None = None) -> bool:
        """Requeue and hold a job that runs, has failed or waits. False: it was held already, is cancelled, or Slurm ended it
        on purpose (a time limit, a reservation's end, a deadline, preemption).

        A cancelled job stays so, also one that is cancelled between our look and our request. One that ends by itself in
        that moment is left as it is, and so is one whose epilogs run: how it ended is not known yet. A requeue and hold by
        somebody else in that moment is taken for ours: Slurm answers both alike.

        Raises:
            Refused: purged, no batch job, or ended with Requeue=0 (nothing can be changed in a finished job).
            Unavailable: an attempt later than ``attempt`` runs or has ended; slurmctld may be so slow that a job which
                waited at the caller's look has begun before our request.
        """
        for _ in range(TRIES):
            record = await self._record(job)
            leader = het_leader(record)
            if leader is not None:
                job, record = leader, await self._record(leader)
            view, spec = _view(record), array_spec(record)
            if view.state in ENDED_ON_PURPOSE or (view.held and view.state != "completing"):
                return False
            waits = view.state in {"pending", "completing"}
            if attempt is not None and view.restarts > attempt and not waits:
                raise Unavailable(f"job {job} has begun its attempt {view.restarts} meanwhile")
            if waits:  # completing: on its way back to the queue, or it has ended
                for part in await self._other_components(record):  # a hold acts on one of them
                    if not _view(part).held:
                        await self._said_yes(self._verbs.hold, array_spec(part))
                if await self._said_yes(self._verbs.hold, spec) or view.state == "completing":
                    return not (view.held or view.hold_kept)
                continue
            if view.requeue is False and view.state not in ENDED:
                await self._said_yes(self._set_requeue, spec)
            if await self._requeued(spec, view):
                return not view.hold_kept  # a hold on a running job stays on it
        raise Unavailable(f"job {job} kept changing its state; not known whether it is held")

    async def _requeued(self, spec: str, view: JobView) -> bool:
        """False: the job became something else meanwhile; look again."""
        asked = self._now()
        kept = {job: at for job, at in self._requeued_at.items() if 0.0 <= asked - at < REVOKED_S}
        self._requeued_at = {**kept, view.het or view.id: asked}
        try:
            await self._verbs.requeue_hold(spec, incomplete=view.state not in ENDED)
        except SlurmSaidNo as no:
            self._requeued_at.pop(view.het or view.id, None)
            if no.answer is Answer.PENDING:  # somebody has requeued it, and may hold it
                return False
            if no.answer is Answer.DISABLED and view.state not in ENDED:
                return False
            if no.answer is Answer.DISABLED:
                fix = "submit it again; a job that Sentinel may restart must not be submitted with --no-requeue"
                raise Refused(f"job {spec} has ended with Requeue=0", fix=fix) from no
            if no.answer is Answer.NOT_BATCH:
                raise Refused(f"job {spec} is interactive (salloc or srun); Slurm requeues batch jobs only") from no
            raise _refusal(spec, no) from no
        return True

    async def _set_fields(self, fields: Mapping[str, str], spec: str) -> None:
        await self._verbs.set_job(spec, fields)

    async def _set_requeue(self, spec: str) -> None:
        await self._verbs.set_job(spec, {"Requeue": "1"})

    async def update_job(
        self,
        job: int,
        *,
        excluded: Sequence[str] | None = None,
        required: Sequence[str] | None = None,
        admin_comment: str | None = None,
        start_now: bool = False,
        size: tuple[int, int, int] | None = None,
        reservation: str | None = None,
        gone: Sequence[str] = (),
    ) -> None:
        """Change a pending job in one request; an empty list clears.

        Args:
            gone: names that Slurm has no node of: with one of them it would take no list of another component either.
            size: least and most nodes, and tasks. Slurm (22.05) keeps tasks and CPUs of a started job, and so its nodes.

        Raises:
            Refused: the job does not wait any more and is not already as asked, is purged, or a node is not known.
        """
        fields: dict[str, str] = {}
        if excluded is not None:
            fields["ExcNodeList"] = ",".join(excluded)
        if required is not None:
            fields["ReqNodeList"] = ",".join(required)
        if admin_comment is not None:
            fields["AdminComment"] = one_line(admin_comment)[:MAX_ARGUMENT]
        fields |= {"StartTime": AT_ONCE} if start_now else {}
        if size is not None:
            fields["NumNodes"] = f"{size[0]}-{size[1]}"
            fields |= {"NumTasks": str(size[2])} if size[2] else {}  # else Slurm counts them by the nodes
        if reservation is not None:
            fields["ReservationName"] = reservation
        if not fields:
            return
        record = await self._record(job)
        if size is not None and size[2]:
            fields["NumCPUs"] = str(size[2] * (whole(record.get("cpus_per_task")) or 1))
        for other in await self._other_components(record):
            before = _view(other)
            part = {key: value for key, value in fields.items() if key not in OF_ONE_COMPONENT}
            if "excluded" in before.unread_lists:
                part.pop("ExcNodeList", None)
            elif excluded is not None:  # each component has a list of its own: what this one gains, they gain
                gained, lost = {*excluded} - {*_view(record).excluded}, {*_view(record).excluded} - {*excluded}
                part["ExcNodeList"] = ",".join(sorted(({*before.excluded} | gained) - lost - {*gone}))
            await self._said_yes(partial(self._set_fields, part), array_spec(other))
        spec, seen = array_spec(record), _view(record)
        if start_now and seen.state == "pending" and not seen.held:
            await self._sleep(self._too_soon_s(seen))
        try:
            await self._verbs.set_job(spec, fields)
        except SlurmSaidNo as no:
            if no.answer in {Answer.NOT_PENDING, Answer.FINISHED}:
                view = _view(await self._record(job))
                if _is_as_asked(view, excluded, required, fields.get("AdminComment"), reservation):
                    return
                raise Refused(f"job {job} is {view.state}: {no.message}") from no
            raise _refusal(spec, no) from no

    async def give_access(self, reservation: str, user: str) -> None:
        await self._set_users(reservation, "Users+", user)

    async def end_loan(self, job: int, reservation: str) -> None:
        record = await self._verbs.job_record(job)
        view = job_of(record) if record is not None else None
        if record is not None and view is not None and view.reservation == reservation and view.state not in ENDED:
            for part in (*await self._other_components(record), record):
                await self._said_yes(partial(self._set_fields, {"ReservationName": ""}), array_spec(part))

    async def end_access(self, reservation: str, user: str) -> None:
        await self._set_users(reservation, "Users-", user)

    async def _set_users(self, reservation: str, change: str, user: str) -> None:
        try:
            await self._verbs.set_reservation(reservation, {change: user})
        except SlurmSaidNo as no:
            raise Refused(f"Slurm does not change the users of reservation {reservation}: {no.message}") from no

    async def defer(self, job: int) -> None:
        """A held job waits for a time far off and is held no more, so that somebody's hold on it shows.

        Raises:
            Refused: the job does not wait, or slurmctld does not know it.
        """
        record = await self._record(job)
        for part in (*await self._other_components(record), record):
            if _view(part).state in ENDED:
                raise Refused(f"job {array_spec(part)} has ended")
            if not _view(part).held:
                continue
            spec = array_spec(part)
            if not await self._said_yes(lambda one: self._verbs.set_job(one, {"StartTime": DEFERRED}), spec):
                raise Refused(f"job {spec} does not wait any more")
            if not await self._said_yes(self._verbs.release, spec):
                raise Unavailable(f"job {spec} changed its state; not known whether it waits")

    async def release(self, job: int) -> None:
        """Let a held job go. A job that is not held (any more), also one that ran and ended, is as asked.

        A job that was requeued in this very second waits for the next one, see REVOKED_S.

        Raises:
            Refused: slurmctld does not know the job.
        """
        record = await self._record(job)
        view = _view(record)
        if not view.held:
            return
        await self._sleep(self._too_soon_s(view))
        for part in await self._other_components(record):
            await self._said_yes(self._verbs.release, array_spec(part))
        if not await self._said_yes(self._verbs.release, array_spec(record)):
            if not _view(await self._record(job)).held:
                return
            raise Refused(f"Slurm does not release job {job}")

    async def end_step(self, job: int, step: int) -> None:
        await self._record(job)
        try:
            await self._verbs.end_step(f"{job}", step)
        except SlurmSaidNo as no:
            if no.answer not in {Answer.NO_JOB, Answer.FINISHED}:  # so it answers where the job or the step is over
                raise _refusal(f"{job}", no) from no

    async def keep_nodes(self, job: int, nodes: Sequence[str]) -> None:
        """Slurm refuses to take a job's first node, and nodes on which a step runs.

        Raises:
            Refused: also a job that does not run, and no nodes at all: Slurm may take that for "give all back".
        """
        if not nodes:
            raise Refused(f"no other node of job {job} is left")
        spec = array_spec(await self._record(job))
        if not await self._said_yes(partial(self._set_fields, {"NodeList": ",".join(nodes)}), spec):
            raise Refused(f"job {spec} does not run any more")

    async def notify(self, job: int, text: str) -> None:
        """One line into the output of a running job; otherwise nothing."""
        try:
            await self._verbs.notify(f"{job}", one_line(text)[:MAX_ARGUMENT])
        except SlurmSaidNo:
            return  # not running, purged, or without an output: nobody to tell is no error

    def _too_soon_s(self, view: JobView) -> float:
        """Seconds until slurmd takes the job's next start for a new one; Slurm sets the submit time at requeue."""
        if view.restarts == 0:
            return 0.0
        if view.state == "completing" or view.submitted_at is None:
            return REVOKED_S
        since = view.submitted_at.timestamp()
        asked = self._requeued_at.get(view.het or view.id, since)
        if asked - since > REVOKED_S:  # it waited for a lost node: set down, the job keeps its old time (22.05)
            since = asked
        return min(max(since + REVOKED_S - self._now(), 0.0), REVOKED_S)

    async def _record(self, job: int) -> Record:
        """See ``_node``."""
        asked = self._now()
        record = await self._verbs.job_record(job)
        if self._now() - asked > OLD_S:
            record = await self._verbs.job_record(job)
        if record is None:
            raise Refused(
                f"slurmctld does not know job {job} (any more)",
                fix="raise MinJobAge if jobs are purged too early",
            )
        return record

    async def _other_components(self, record: Record) -> list[Record]:
        """The other components of a heterogeneous job: a requeue stops all of them, and nothing else acts on more than one.

        Their ids follow the leader's.
        """
        leader = whole(record.get("het_job_id"))
        if not leader:
            return []
        found: list[Record] = []
        for job in range(leader, leader + MOST_COMPONENTS):
            part = record if job == whole(record.get("job_id")) else await self._verbs.job_record(job)
            if part is None or whole(part.get("het_job_id")) != leader:
                break
            if part is not record:
                found.append(part)
        return found

    async def _said_yes(self, verb: Callable[[str], Awaitable[None]], spec: str) -> bool:
        """False when the job has moved on and must be looked at again."""
        try:
            await verb(spec)
        except SlurmSaidNo as no:
            if no.answer in {Answer.NOT_PENDING, Answer.PENDING, Answer.FINISHED}:
                return False
            raise _refusal(spec, no) from no
        return True


def one_line(text: str) -> str:
    """Text for a reason, comment or message: without control characters, so that it stays one line everywhere."""
    return printable(text).strip()


def _view(record: Record) -> JobView:
    view = job_of(record)
    assert view is not None
    return view


def _out_of_service(node: NodeView) -> bool:
    return bool(node.flags & NO_MORE_WORK)


def _refusal(spec: str, no: SlurmSaidNo) -> Refused:
    kind = RefusedForNow if no.answer is Answer.OTHER else Refused
    return kind(f"Slurm refuses job {spec}: {no.message}")


def _is_as_asked(
    view: JobView,
    excluded: Sequence[str] | None,
    required: Sequence[str] | None,
    comment: str | None,
    reservation: str | None,
) -> bool:
    return (
        view.state == "running"
        and (excluded is None or set(excluded) == set(view.excluded))
        and (required is None or set(required) == set(view.required))
        and (comment is None or comment == view.admin_comment)
        and (reservation is None or reservation == view.reservation)
    )
