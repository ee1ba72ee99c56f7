"""Which receiver gets a message, when, and what happens when it does not take it.

A receiver is a webhook of ``[alerts] webhooks`` (gets all that is for operators) or a channel with its own choice. A message
that is not taken is tried again after growing pauses; one that is refused, or was tried often enough, is a dead letter: it
stays in the store, is listed, and is tried once more by the next daemon.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

from sentinel.alerts import Stage, digests
from sentinel.config.alerts import JOB_LOG, SEVERITIES, Channel
from sentinel.engine.events import NoticeDelivered, NoticeNotDelivered, StoreOutageTold
from sentinel.engine.state import State
from sentinel.engine.transition import DeliverNotice, StartTimer, Transition
from sentinel.model.changes import NoticeChanged
from sentinel.model.records import Delivery, Notice, stable_id
from sentinel.model.stored import Stored

OVER = "over"  # in the data of a message: what it says was so, and is not any more
DIGEST = "digest"  # timers: digest:RECEIVER
AGAIN = "deliver"  # timers: deliver:KEY
_PAUSES_S = (0.5, 2.0, 10.0, 30.0, 120.0, 300.0, 600.0)  # before the next attempt; the last one repeats
_MOST_PAUSE_S = 3600.0  # that a receiver may ask for: what is told later helps nobody
MOST_UNSURE = 2  # attempts at what may have arrived: one too many is better than none, and twelve are not
_STALE = timedelta(days=1)  # what was not delivered so long after it was due is no news: a start does not send it


def is_for(channel: Channel | None, notice: Notice) -> bool:
    """Whether the receiver gets this message. Whoever was told of an incident gets the rest of its thread.

    Args:
        channel: None: a plain webhook.
    """
    data = notice.data
    if channel is None:
        return not data.get("joined")
    if channel.audience == "owners":
        if not data.get("user") or not data.get("owner_text"):
            return False
    elif data.get("joined"):
        return False
    told = data.get("told")
    stages = [str(stage) for stage in told] if isinstance(told, list) else [str(data.get("stage", ""))]
    return (
        _grave(channel, notice, "worst", stages) >= SEVERITIES.index(channel.least_severity)
        and (not channel.stages or any(stage in channel.stages for stage in stages))
        and (not channel.partitions or _is_in(data.get("partition"), channel.partitions))
        and (not channel.users or data.get("user") in (None, *channel.users))
    )


def _is_in(partition: object, chosen: Sequence[str]) -> bool:
    """Whether a job of this partition, or of these ("train,other" of one that waits), is in one that was chosen."""
    return partition is None or not set(str(partition).split(",")).isdisjoint(chosen)


def is_for_log(notice: Notice) -> bool:
    """Whether the job's own log gets a line at this message."""
    return bool(notice.data.get("log_text"))


def _grave(channel: Channel, notice: Notice, key: str, stages: Sequence[str]) -> int:
    """How grave it is for the channel's people: a job that is held waits for its owner, and for no operator."""
    rank = _rank(str(notice.data.get(key) or notice.data.get("severity") or ""))
    waits = channel.audience == "owners" and Stage.HELD in stages
    return max(rank, SEVERITIES.index("warning")) if waits else rank


def _rank(severity: str) -> int:
    return SEVERITIES.index(severity) if severity in SEVERITIES else len(SEVERITIES) - 1


def receivers(state: State, notice: Notice) -> list[str]:
    """Who gets this message."""
    return [
        name
        for name in state.receivers
        if (is_for_log(notice) if name == JOB_LOG else is_for(state.channel(name), notice))
    ]


def due(channel: Channel | None, notice: Notice) -> datetime:
    """When the receiver gets this message: at once, at the end of its digest's interval, or after its quiet hours."""
    if channel is None or channel.kind == "alertmanager":
        return notice.at
    passes = channel.at_once
    stages = [str(notice.data.get("stage", ""))]
    if passes != "none" and _grave(channel, notice, "severity", stages) >= SEVERITIES.index(passes):
        return notice.at
    at = notice.at
    if channel.digest_s:
        intervals = at.timestamp() // channel.digest_s + 1
        at = datetime.fromtimestamp(intervals * channel.digest_s, UTC)
    return _after_quiet_hours(channel, at)


def _after_quiet_hours(channel: Channel, at: datetime) -> datetime:
    hours = channel.quiet_hours
    if hours is None:
        return at
    begin, end = hours
    here = at.astimezone(UTC if channel.timezone == "UTC" else ZoneInfo(channel.timezone))
    now = here.time().replace(tzinfo=None)
    if not (begin <= now < end if begin <= end else now >= begin or now < end):
        return at
    day = here.date() + timedelta(days=1 if now >= end else 0)
    ends = datetime.combine(day, time(end.hour, end.minute), here.tzinfo)
    first = ends.astimezone(UTC)
    return first if first > at else ends.replace(fold=1).astimezone(UTC)  # it comes twice where clocks are set back


def begin(state: State, out: Transition, notice: Notice, receiver: str) -> None:
    """Deliver the message now, or keep it for the receiver's next digest. The store has it already."""
    _begin(state, out, [notice], receiver)


def _begin(state: State, out: Transition, notices: Sequence[Notice], receiver: str) -> None:
    """As ``begin``, for messages of one thread: the newest of them is delivered, and tells of the others.

    So does it of earlier ones that the receiver has not taken yet: what was so before is no news. While one of the thread is
    under way the next ones wait for its end: two attempts at once could come in either order.
    """
    newest, channel = notices[-1], state.channel(receiver)
    key = _key(newest, receiver)
    if _under_way(state, key):
        state.behind.setdefault(key, []).extend(notices)
        return
    waits = state.deliveries.pop(key, None)
    of = (*(waits.of if waits is not None else ()), *notices)
    at = _due_after(channel, of)
    if at <= newest.at:
        held = state.held_back.get(receiver, [])
        earlier = [notice for notice in held if notice.thread == newest.thread]
        if earlier:
            state.held_back[receiver] = [notice for notice in held if notice.thread != newest.thread]
        _attempt(state, out, DeliverNotice(key, newest, receiver, (*earlier, *of)))
    elif waits is not None:  # what is over need not be told before; the attempts at it are not those at the newest
        for notice in waits.of:
            tried = dataclasses.replace(notice, delivery=dataclasses.replace(notice.delivery, next_at=at))
            out.save(NoticeChanged(tried, receiver, delivered=False))
        _wait(state, out, DeliverNotice(key, newest, receiver, of), at)
    else:
        _hold(state, out, notices, receiver)


def _due_after(channel: Channel | None, of: Sequence[Notice]) -> datetime:
    """When the newest of these messages of a thread goes out: as ``due``, or at once where it is about a request beside
    a stage that was to be told at once."""
    *untold, newest = of
    beside = newest.data.get("beside")
    if beside and any(one.data.get("stage") == beside and due(channel, one) <= one.at for one in untold):
        return newest.at
    return due(channel, newest)


def _wait(state: State, out: Transition, effect: DeliverNotice, at: datetime) -> None:
    """Try it at this time."""
    delivery = dataclasses.replace(effect.notice.delivery, next_at=at)
    notice = dataclasses.replace(effect.notice, delivery=delivery)
    state.deliveries[effect.id] = dataclasses.replace(effect, notice=notice)
    out.do(StartTimer(f"{AGAIN}:{effect.id}", at))


def _hold(state: State, out: Transition, notices: Sequence[Notice], receiver: str) -> None:
    held = state.held_back.setdefault(receiver, [])
    held.extend(notices)
    out.do(StartTimer(f"{DIGEST}:{receiver}", min(_times(state.channel(receiver), held).values())))


def _times(channel: Channel | None, held: Sequence[Notice]) -> dict[str, datetime]:
    """By thread, when what is held of it goes out: as ``due`` of its newest message, which tells of the others, or, where
    that was tried, after the pause."""
    newest: dict[str, Notice] = {}
    for notice in held:
        newest[notice.thread] = max(newest.get(notice.thread, notice), notice, key=lambda one: one.order)
    return {thread: notice.delivery.next_at or due(channel, notice) for thread, notice in newest.items()}


def _under_way(state: State, key: str) -> bool:
    """Whether an attempt has not ended yet, of this thread's message or of a digest with it."""
    effect = state.deliveries.get(state.in_digest.get(key, key))
    return effect is not None and effect.notice.delivery.next_at is None


def is_news(channel: Channel | None, notice: Notice, now: datetime) -> bool:
    """Whether a message that was not delivered is sent after a start."""
    over = notice.data.get(OVER) or notice.delivery.unsure >= MOST_UNSURE
    return not over and now - due(channel, notice) < _STALE


def carry_on(state: State, out: Transition, stored: Stored, now: datetime) -> None:
    """After a start: what was not delivered is tried again, dead letters too. What is old or over stays where it is."""
    for notice, receiver in stored.standing:
        if receiver in state.receivers:
            _stands(state, notice, receiver)
    threads: dict[str, tuple[str, list[Notice]]] = {}
    for notice, receiver in sorted(stored.undelivered, key=lambda one: one[0].at):
        if receiver in state.receivers and is_news(state.channel(receiver), notice, now):
            fresh = dataclasses.replace(
                notice, delivery=Delivery(took=notice.delivery.took, unsure=notice.delivery.unsure)
            )
            threads.setdefault(_key(notice, receiver), (receiver, []))[1].append(fresh)
    for receiver, notices in threads.values():
        _begin(state, out, sorted(notices, key=lambda one: one.order), receiver)


def digest_due(state: State, out: Transition, receiver: str, now: datetime) -> None:
    """The receiver's interval is over: what came in it is one message, for owners one for each of them."""
    channel, held = state.channel(receiver), state.held_back.pop(receiver, [])
    times = _times(channel, held)
    ready = {thread for thread, at in times.items() if at <= now}
    later = [notice for notice in held if notice.thread not in ready]
    owners = channel is not None and channel.audience == "owners"
    groups: dict[object, list[Notice]] = {}
    for notice in held:
        if notice.thread not in ready:
            continue
        if _under_way(state, key := _key(notice, receiver)):
            state.behind.setdefault(key, []).append(notice)
        else:
            groups.setdefault(notice.data.get("user") if owners else "", []).append(notice)
    for notices in groups.values():
        _attempt(state, out, _gathered(state, notices, receiver, now))
    if later:
        state.held_back[receiver] = later
        out.do(StartTimer(f"{DIGEST}:{receiver}", min(times[notice.thread] for notice in later)))


def _gathered(state: State, notices: Sequence[Notice], receiver: str, now: datetime) -> DeliverNotice:
    one = digests.digest(notices, now) if len(notices) > 1 else notices[0]
    tries, unsure = (max(getattr(notice.delivery, name) for notice in notices) for name in ("tries", "unsure"))
    took = set(notices[0].delivery.took).intersection(*(notice.delivery.took for notice in notices))
    one = dataclasses.replace(one, delivery=Delivery(tries, took=tuple(sorted(took)), unsure=unsure))
    key = _key(one, receiver)
    if len(notices) > 1:
        state.in_digest.update((_key(notice, receiver), key) for notice in notices)
    return DeliverNotice(key, one, receiver, tuple(notices))


def delivered(state: State, out: Transition, event: NoticeDelivered) -> None:
    effect = _ended(state, event)
    if not effect.repeat:
        _was_taken(state, out, effect)
    for waiting in _let_go(state, effect):
        for notice in waiting:
            begin(state, out, notice, event.receiver)


def _was_taken(state: State, out: Transition, effect: DeliverNotice) -> None:
    for notice in effect.of:
        done = dataclasses.replace(notice, delivery=Delivery(notice.delivery.tries + 1))
        out.save(NoticeChanged(done, effect.receiver, delivered=True))
    out.say("notice-delivered", receiver=effect.receiver, notice=effect.notice.id)
    _stands(state, effect.notice, effect.receiver)


def _stands(state: State, notice: Notice, receiver: str) -> None:
    channel = state.channel(receiver)
    if channel is None or channel.kind != "alertmanager":
        return
    standing = state.standing.setdefault(receiver, {})
    standing.pop(notice.thread, None)
    if not notice.data.get("final", True):
        standing[notice.thread] = notice


def repeat_due(state: State, out: Transition, now: datetime) -> None:
    """Send what stands to each Alertmanager again: a restarted one knows no alerts any more, and waits for its clients.

    As for a digest, a message of one of these threads waits meanwhile: it may end what is repeated.
    """
    every = timedelta(seconds=state.settings.alerts.repeat_s)
    if not every or (state.repeated_at is not None and now - state.repeated_at < every):
        return
    state.repeated_at = now
    for receiver, standing in state.standing.items():
        own = Notice("repeat", "", now, "", "")
        of = [notice for notice in standing.values() if _key(notice, receiver) not in state.deliveries]
        key = _key(own, receiver)
        if of and key not in state.deliveries:
            state.in_digest.update((_key(notice, receiver), key) for notice in of)
            _attempt(state, out, DeliverNotice(key, own, receiver, tuple(of), repeat=True))


def not_delivered(state: State, out: Transition, event: NoticeNotDelivered) -> None:
    """Try again later, or give up: which and why is stored with the message."""
    effect = _ended(state, event)
    if effect.repeat:
        for waiting in _let_go(state, effect):
            _begin(state, out, waiting, event.receiver)
        return
    tries = effect.notice.delivery.tries + 1
    pause_s = max(_PAUSES_S[min(tries, len(_PAUSES_S)) - 1], min(event.after_s, _MOST_PAUSE_S))

    def became(before: Delivery) -> Delivery:
        failed = after_failure(before, event, state.settings.alerts.attempts)
        next_at = None if failed.given_up else event.at + timedelta(seconds=pause_s)
        return dataclasses.replace(failed, next_at=next_at)

    in_digest = _is_digest(effect)  # each of its messages has its own attempts: the next digest may have others, too
    of = [
        dataclasses.replace(notice, delivery=became(notice.delivery if in_digest else effect.notice.delivery))
        for notice in effect.of
    ]
    for notice in of:
        out.save(NoticeChanged(notice, event.receiver, delivered=False))
    again = [notice for notice in of if notice.delivery.next_at is not None]
    out.say(
        "notice-refused" if not event.again else "notice-not-delivered" if again else "notice-given-up",
        receiver=event.receiver, notice=event.notice.id, attempt=tries, reason=event.reason, warning=True,
    )  # fmt: skip
    if again and in_digest:
        _hold(state, out, again, event.receiver)
    elif again:
        newest = dataclasses.replace(effect.notice, delivery=again[-1].delivery)
        again_at = again[-1].delivery.next_at or event.at
        _wait(state, out, DeliverNotice(effect.id, newest, event.receiver, tuple(again)), again_at)
    for waiting in _let_go(state, effect):
        _begin(state, out, waiting, event.receiver)


def after_failure(before: Delivery, event: NoticeNotDelivered, attempts: int) -> Delivery:
    """What became of a message that the receiver did not take.

    Args:
        attempts: in all, after which it is given up.
    """
    tries, unsure = before.tries + 1, before.unsure + event.unsure
    given_up = not event.again or tries >= attempts or unsure >= MOST_UNSURE
    took = tuple(dict.fromkeys([*before.took, *event.took]))
    return Delivery(tries, event.reason, given_up, took=took, unsure=unsure)


def may_have_heard(became: Delivery) -> bool:
    """Whether somebody may know of a message that the receiver did not take."""
    return bool(became.took or became.unsure)


def _ended(state: State, event: NoticeDelivered | NoticeNotDelivered) -> DeliverNotice:
    """The attempt that ended, with the messages that it told of."""
    key = _key(event.notice, event.receiver)
    return state.deliveries.pop(key, None) or DeliverNotice(key, event.notice, event.receiver, (event.notice,))


def _is_digest(effect: DeliverNotice) -> bool:
    return effect.notice.id not in {notice.id for notice in effect.of}


def _let_go(state: State, effect: DeliverNotice) -> list[list[Notice]]:
    """By thread, the messages that waited for the end of this attempt."""
    keys = dict.fromkeys(_key(notice, effect.receiver) for notice in effect.of)
    for key in keys:
        state.in_digest.pop(key, None)
    return [state.behind.pop(key) for key in keys if key in state.behind]


def outage_told(state: State, out: Transition, event: StoreOutageTold) -> None:
    """Keep what was told without the store, and tell those who heard it that it is over: the others need not hear that."""
    for notice, receiver, was_delivered in event.told:
        known = notice if was_delivered else dataclasses.replace(notice, data={**notice.data, OVER: True})
        out.save(NoticeChanged(known, receiver, was_delivered))
    heard = {one for notice, one, was_delivered in event.told if was_delivered or may_have_heard(notice.delivery)}
    for receiver in receivers(state, event.over):
        if receiver in heard:
            out.save(NoticeChanged(event.over, receiver, delivered=False))
            begin(state, out, event.over, receiver)


def again(state: State, out: Transition, key: str) -> None:
    """The pause is over."""
    effect = state.deliveries.get(key)
    if effect is None or effect.notice.delivery.next_at is None:
        return  # a newer message of the thread is under way, and tells of this one
    notice = dataclasses.replace(effect.notice, delivery=dataclasses.replace(effect.notice.delivery, next_at=None))
    _attempt(state, out, dataclasses.replace(effect, notice=notice))


def _attempt(state: State, out: Transition, effect: DeliverNotice) -> None:
    state.deliveries[effect.id] = effect
    out.do(effect)


def _key(notice: Notice, receiver: str) -> str:
    return f"notice:{notice.thread}:{receiver}"


def trial(receiver: str, now: datetime, cluster: str, by: str) -> Notice:
    """What ``sentinel alerts test`` sends: to one receiver, whatever its choice and its hours."""
    words = f"This is a test of the channel {receiver}, asked for by {by}. Nothing has happened."
    data = {
        "event": "test", "severity": "info", "stage": "test", "final": True, "cluster": cluster, "user": by,
        "owner_text": words, "operator_text": words,
    }  # fmt: skip
    return Notice(stable_id("notice", "test", receiver, now.isoformat())[:16], "", now, "Sentinel: a test", words, data)
