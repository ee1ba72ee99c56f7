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

OVER = "over"  # in the data of a message: what it says was so, and is not any more
DIGEST = "digest"  # timers: digest:RECEIVER
AGAIN = "deliver"  # timers: deliver:KEY
_PAUSES_S = (0.5, 2.0, 10.0, 30.0, 120.0, 300.0, 600.0)  # before the next attempt; the last one repeats
_MOST_PAUSE_S = 3600.0  # that a receiver may ask for: what is told later helps nobody
_STALE = timedelta(days=1)  # what was not delivered for so long is no news: a start does not send it


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
    return datetime.combine(day, time(end.hour, end.minute), here.tzinfo).astimezone(UTC)


def begin(state: State, out: Transition, notice: Notice, receiver: str) -> None:
    """Deliver the message now, or keep it for the receiver's next digest. The store has it already."""
    when = due(state.channel(receiver), notice)
    if when <= notice.at:
        _attempt(state, out, DeliverNotice(_key(notice, receiver), notice, receiver))
        return
    held = state.held_back.setdefault(receiver, [])
    held.append(notice)
    out.do(StartTimer(f"{DIGEST}:{receiver}", min(due(state.channel(receiver), one) for one in held)))


def carry_on(state: State, out: Transition, undelivered: tuple[tuple[Notice, str], ...], now: datetime) -> None:
    """After a start: what was not delivered is tried again, dead letters too. What is old or over stays where it is."""
    for notice, receiver in undelivered:
        if receiver in state.receivers and now - notice.at < _STALE and not notice.data.get(OVER):
            begin(state, out, dataclasses.replace(notice, delivery=Delivery()), receiver)


def digest_due(state: State, out: Transition, receiver: str, now: datetime) -> None:
    """The receiver's interval is over: what came in it is one message, for owners one for each of them."""
    channel, held = state.channel(receiver), state.held_back.pop(receiver, [])
    later = [notice for notice in held if due(channel, notice) > now]
    owners = channel is not None and channel.audience == "owners"
    groups: dict[object, list[Notice]] = {}
    for notice in held:
        if notice not in later:
            groups.setdefault(notice.data.get("user") if owners else "", []).append(notice)
    for notices in groups.values():
        one = digests.digest(notices, now) if len(notices) > 1 else notices[0]
        _attempt(state, out, DeliverNotice(_key(one, receiver), one, receiver, of=tuple(notices)))
    if later:
        state.held_back[receiver] = later
        out.do(StartTimer(f"{DIGEST}:{receiver}", min(due(channel, notice) for notice in later)))


def delivered(state: State, out: Transition, event: NoticeDelivered) -> None:
    effect = state.deliveries.pop(_key(event.notice, event.receiver), None)
    for notice in effect.of if effect is not None and effect.of else (event.notice,):
        done = dataclasses.replace(notice, delivery=Delivery(notice.delivery.tries + 1))
        out.save(NoticeChanged(done, event.receiver, delivered=True))
    out.say("notice-delivered", receiver=event.receiver, notice=event.notice.id)


def not_delivered(state: State, out: Transition, event: NoticeNotDelivered) -> None:
    """Try again later, or give up: which and why is stored with the message."""
    key = _key(event.notice, event.receiver)
    effect = state.deliveries.pop(key, None) or DeliverNotice(key, event.notice, event.receiver)
    tries = effect.notice.delivery.tries + 1
    given_up = not event.again or tries >= state.settings.alerts.attempts
    pause_s = max(_PAUSES_S[min(tries, len(_PAUSES_S)) - 1], min(event.after_s, _MOST_PAUSE_S))
    next_at = None if given_up else event.at + timedelta(seconds=pause_s)
    became = Delivery(tries, event.reason, given_up, next_at)
    for notice in effect.of or (effect.notice,):
        out.save(NoticeChanged(dataclasses.replace(notice, delivery=became), event.receiver, delivered=False))
    out.say(
        "notice-refused" if not event.again else "notice-given-up" if given_up else "notice-not-delivered",
        receiver=event.receiver, notice=event.notice.id, attempt=tries, reason=event.reason, warning=True,
    )  # fmt: skip
    if next_at is not None:
        again = dataclasses.replace(effect, notice=dataclasses.replace(effect.notice, delivery=became))
        state.deliveries[key] = again
        out.do(StartTimer(f"{AGAIN}:{key}", next_at))


def outage_told(state: State, out: Transition, event: StoreOutageTold) -> None:
    """Keep what was told without the store, and tell those who heard it that it is over: the others need not hear that."""
    for notice, receiver, was_delivered in event.told:
        known = notice if was_delivered else dataclasses.replace(notice, data={**notice.data, OVER: True})
        out.save(NoticeChanged(known, receiver, was_delivered))
    heard = {receiver for _, receiver, was_delivered in event.told if was_delivered}
    for receiver in receivers(state, event.over):
        if receiver in heard:
            out.save(NoticeChanged(event.over, receiver, delivered=False))
            begin(state, out, event.over, receiver)


def again(state: State, out: Transition, key: str) -> None:
    """The pause is over."""
    effect = state.deliveries.get(key)
    if effect is not None:
        out.do(effect)


def _attempt(state: State, out: Transition, effect: DeliverNotice) -> None:
    state.deliveries[effect.id] = effect
    out.do(effect)


def _key(notice: Notice, receiver: str) -> str:
    return f"notice:{notice.id}:{receiver}"


def trial(receiver: str, now: datetime, cluster: str, by: str) -> Notice:
    """What ``sentinel alerts test`` sends: to one receiver, whatever its choice and its hours."""
    words = f"This is a test of the channel {receiver}, asked for by {by}. Nothing has happened."
    data = {
        "event": "test", "severity": "info", "stage": "test", "final": True, "cluster": cluster, "user": by,
        "owner_text": words, "operator_text": words,
    }  # fmt: skip
    return Notice(stable_id("notice", "test", receiver, now.isoformat())[:16], "", now, "Sentinel: a test", words, data)
