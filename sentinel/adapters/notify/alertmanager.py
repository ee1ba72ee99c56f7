"""Alertmanager's API v2: an incident is one alert, so that a site keeps its routing, silences and inhibition.

Labels are those of the incident's first message, so that later ones are the same alert; annotations say how it is now. The
last message ends the alert; until then it stands for ``_ALERT_LIFETIME``, since Alertmanager's own resolve_timeout is
minutes. What belongs to no incident stands for ``_OTHER_LIFETIME``: nobody may be left to say that it is over. An incident
that becomes worse is another alert, for routes and inhibition by severity: the one with the lower severity ends.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from sentinel.adapters.notify.delivery_threads import DeliveryThreads
from sentinel.adapters.notify.http_post import post
from sentinel.adapters.notify.markup import Markup, escaped
from sentinel.adapters.notify.turns import ORDINARY, urgency_of
from sentinel.model.records import Notice
from sentinel.text import clean
from sentinel.wire import to_json

# A held job waits for its user, over holidays too. What nobody ends, since the daemon was removed, ends by itself.
_ALERT_LIFETIME = timedelta(days=30)
# No message ends what could not be read at a start, nor an outage of the store that the daemon did not survive.
_OTHER_LIFETIME = timedelta(days=1)
_MOST_AT_ONCE = 500  # alerts in one request
_SEVERITIES = ("info", "warning", "critical")


class Alertmanager:
    """Implements ``sentinel.ports.Sink``."""

    def __init__(
        self,
        url: str,
        *,
        name: str,
        deadline_s: float,
        authorization: str = "",
        link: str = "",
        threads: DeliveryThreads | None = None,
    ) -> None:
        """
        Args:
            url: where Alertmanager answers, without the path of its API.
            deadline_s: of a delivery, from when its turn has come.
            threads: whose turns it takes; None: its own.
            link: address of an incident's page; ``{incident}`` stands for its id.
        """
        self.name = name
        self._threads = threads or DeliveryThreads()
        self._url = f"{url.rstrip('/')}/api/v2/alerts"
        self._deadline_s = deadline_s
        self._authorization = authorization
        self._link = link

    async def send(self, notice: Notice) -> None:
        await self._post(alerts_of(notice, self._link), urgency_of(notice))

    async def repeat(self, notices: Sequence[Notice], now: datetime) -> None:
        """See ``sentinel.ports.StandingSink``. What ended by itself is left out."""
        firing = [
            alert
            for notice in notices
            for alert in alerts_of(notice, self._link)[:1]
            if notice.at + _lifetime(notice) > now
        ]
        for begin in range(0, len(firing), _MOST_AT_ONCE):
            await self._post(firing[begin : begin + _MOST_AT_ONCE])

    async def _post(self, alerts: Sequence[Mapping[str, Any]], urgency: int = ORDINARY) -> None:
        headers = {"Content-Type": "application/json"}
        if self._authorization:
            headers["Authorization"] = self._authorization
        body = json.dumps(alerts).encode()
        fix = f"correct [alerts.channels.{self.name}] url"
        async with self._threads.turn(self.name, urgency):
            await post(
                self._url, body, headers, deadline_s=self._deadline_s, name=self.name, fix=fix, what="Alertmanager"
            )


def _lifetime(notice: Notice) -> timedelta:
    return _ALERT_LIFETIME if notice.incident else _OTHER_LIFETIME


def alerts_of(notice: Notice, link: str = "") -> list[Mapping[str, Any]]:
    """The alerts, each as ``postableAlert`` of the API's OpenAPI description; the one that stands first."""
    data = notice.data
    events = {
        "blind": "SentinelBlind", "sees_again": "SentinelBlind", "unreadable_state": "SentinelUnreadableState",
        "test": "SentinelTest",
    }  # fmt: skip
    known = data.get("labels")
    labels = {
        "alertname": events.get(str(data.get("event")), "SentinelIncident"),
        "incident": notice.thread,
        "cluster": str(data.get("cluster") or ""),
        **(known if isinstance(known, Mapping) else {}),
    }
    worst = str(data.get("worst") or data.get("severity"))
    worst = worst if worst in _SEVERITIES else "critical"
    now, until = to_json(notice.at), to_json(notice.at if data.get("final") else notice.at + _lifetime(notice))
    shown: dict[str, Any] = {
        # Without it the end would be taken for the beginning. Of one that stands Alertmanager keeps the earliest.
        "startsAt": now,
        "annotations": {
            # Alertmanager's templates hand these on to chats: no markup of any of them.
            "summary": escaped(notice.title, Markup.PLAIN),
            "description": escaped(str(data.get("operator_text") or notice.body), Markup.PLAIN),
            "stage": str(data.get("stage") or ""),
        },
    }
    if link and notice.incident:
        shown["generatorURL"] = link.replace("{incident}", notice.incident)
    given = {key: value for key, value in labels.items() if value}  # an empty label is none
    lower = _SEVERITIES[: _SEVERITIES.index(worst)] if notice.incident else ()
    alerts = [{"labels": {**given, "severity": worst}, "endsAt": until, **shown}]
    alerts += [{"labels": {**given, "severity": severity}, "endsAt": now, **shown} for severity in lower]
    return clean(alerts)  # type: ignore[no-any-return]
