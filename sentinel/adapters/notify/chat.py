"""Chats and pagers through Apprise, which knows their protocols: Slack, Teams, Discord, Mattermost, Matrix, PagerDuty,
Opsgenie, ntfy and others. Imported when the first message is sent: it takes a quarter of a second, and not every site has a
chat.

What Apprise leaves open is decided here: text is made plain for each service, redirects are not followed, pictures of other
sites are left out, an incident is one alert of a pager, and a status that says *never* is not tried again.
"""

from __future__ import annotations

import json
import logging
import re
from typing import Any
from urllib.parse import quote

from sentinel.adapters.notify.delivery_threads import DeliveryThreads
from sentinel.adapters.notify.http_post import post
from sentinel.adapters.notify.markup import Markup, escaped
from sentinel.adapters.notify.turns import urgency_of
from sentinel.adapters.notify.wording import Wording
from sentinel.errors import Refused, Timeout, Unavailable, UserError
from sentinel.model.records import Notice

# Scheme of the address -> how the service reads text, where that is markup; the others show it as it is.
_MARKDOWN = frozenset({"discord", "mmost", "mmosts", "workflow", "workflows", "msteams", "rocket", "rockets", "zulip"})
_OPSGENIE = "opsgenie"
_STATUS = re.compile(r"error=(\d{3})")  # in what Apprise logs of a request that failed
_RETRY_STATUSES = frozenset({408, 425, 429})
_REQUESTS = 6  # of one message, e.g. Matrix: log in, join, send
_PAGERS = {"info": "info", "warning": "warning", "critical": "failure"}  # severity -> Apprise's type of a notification


class Chat:
    """Implements ``sentinel.ports.Sink``."""

    def __init__(
        self, url: str, wording: Wording, *, name: str, deadline_s: float, threads: DeliveryThreads, turn: str = ""
    ) -> None:
        """
        Args:
            url: Apprise's. Whether it is one is known when the first message is sent.
            deadline_s: of each request.
            turn: with whose deliveries it takes turns; empty: with those of its name.
        """
        self.name = name
        self._url = url
        self._scheme = url.partition(":")[0].lower()
        self._wording = wording
        self._deadline_s = deadline_s
        self._threads, self._turn = threads, turn or name
        self._fix = f"correct [alerts.channels.{name}] url; its form is at https://appriseit.com/services/"

    async def send(self, notice: Notice) -> None:
        if self._scheme == _OPSGENIE and notice.data.get("final") and notice.incident:
            await self._close(notice)
            return
        try:
            most_s, urgency = self._deadline_s * _REQUESTS, urgency_of(notice)
            await self._threads.call(self._turn, most_s, self._send, notice, urgency=urgency)
        except TimeoutError as error:
            silent = Timeout(f"channel {self.name} did not answer in time")
            silent.late = True  # its thread goes on
            raise silent from error

    def _send(self, notice: Notice) -> None:
        import apprise

        service = self._service(notice)
        heard = _ResponseStatus()
        service.logger = heard.logger  # its own, so that what failed is not mixed up with another message's
        title, body = self._title_and_body(notice, service)
        group = apprise.Apprise(asset=service.asset)
        group.add(service)
        kind = apprise.NotifyType(_PAGERS.get(str(notice.data.get("severity")), "warning"))
        if group.notify(body=body, title=title, notify_type=kind, body_format=apprise.NotifyFormat.TEXT):
            return
        status = heard.status
        if status is not None and 300 <= status < 500 and status not in _RETRY_STATUSES:
            raise Refused(f"channel {self.name} answered {status}", fix=self._fix)
        answered = f"answered {status}" if status is not None else "cannot be reached"
        raise Unavailable(f"channel {self.name} {answered}")

    def require_known(self) -> None:
        """
        Raises:
            UserError: the address is none of Apprise's.
        """
        try:
            self._of_address()
        except Refused as error:
            raise UserError(error.message, fix=error.fix) from error

    def _of_address(self) -> Any:
        """Apprise's object for the address, with attributes that depend on the service.

        Raises:
            Refused: the address is none of Apprise's.
        """
        import apprise

        asset = apprise.AppriseAsset(
            app_id="Sentinel", app_desc="Sentinel", http_redirects=False, image_url_mask=None, image_url_logo=None
        )
        found = apprise.Apprise.instantiate(self._url, asset=asset, suppress_exceptions=True)
        if not isinstance(found, apprise.NotifyBase):
            raise Refused(f"channel {self.name}: its address is none that Apprise knows", fix=self._fix)
        return found

    def _service(self, notice: Notice) -> Any:
        """The object for this message. Raises as ``_of_address``."""
        service = self._of_address()
        service.socket_connect_timeout = service.socket_read_timeout = self._deadline_s
        service.request_rate_per_sec = 0  # the engine paces messages
        thread = notice.thread
        if self._scheme == "pagerduty":
            service.dedup, service.source = thread, str(notice.data.get("cluster") or "sentinel")
            service.action = "resolve" if notice.data.get("final") and notice.data.get("event") != "test" else "trigger"
        elif self._scheme == _OPSGENIE:
            service.alias = thread
        return service

    def _title_and_body(self, notice: Notice, service: Any) -> tuple[str, str]:
        """Title and body as the service shows them. One that reads markup gets the title as the body's first line."""
        title, body = self._wording.of(notice)
        link = self._wording.link_of(notice)
        if self._scheme not in _MARKDOWN and service.title_maxlen > 0 and self._scheme not in ("matrix", "matrixs"):
            return escaped(title, Markup.PLAIN), _cut(body, Markup.PLAIN, link, service.body_maxlen)
        adds_escapes = self._scheme in ("workflow", "workflows")  # Apprise does it for the body
        markup = Markup.MARKDOWN if self._scheme in _MARKDOWN and not adds_escapes else Markup.PLAIN
        most = service.body_maxlen // 2 if adds_escapes else service.body_maxlen
        return "", _cut(f"{title}\n{body}", markup, link, most)

    async def _close(self, notice: Notice) -> None:
        """Close an Opsgenie alert by its alias, which Apprise does not support."""
        from apprise.plugins.opsgenie import OPSGENIE_API_LOOKUP

        service = self._service(notice)
        api = OPSGENIE_API_LOOKUP[service.region_name]
        url = f"{api}/{quote(notice.incident, safe='')}/close?identifierType=alias"
        _, text = self._wording.of(notice)
        body = escaped(text, Markup.PLAIN)[:25_000]
        headers = {"Content-Type": "application/json", "Authorization": f"GenieKey {service.apikey}"}
        raw = json.dumps({"source": "Sentinel", "note": body}).encode()
        async with self._threads.turn(self._turn, urgency_of(notice)):
            await post(url, raw, headers, deadline_s=self._deadline_s, name=self.name, fix=self._fix, what="channel")


class _ResponseStatus(logging.Handler):
    """Collects the status of failed requests from what a service logs."""

    def __init__(self) -> None:
        super().__init__()
        self.status: int | None = None
        self.logger = logging.Logger("sentinel.chat", logging.INFO)
        self.logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        found = _STATUS.search(record.getMessage())
        if found and record.levelno >= logging.WARNING:
            self.status = int(found[1])


def _cut(text: str, markup: Markup, link: str, most: int) -> str:
    """The escaped text, cut to the service's limit, followed by our own link, which is not escaped."""
    end = f"\n{link}" if link else ""
    fits = max(0, most - len(end) - 2)
    shown = escaped(text, markup)
    while len(shown) > fits and text:
        text = text[: max(0, min(len(text) - 1, len(text) * fits // max(1, len(shown))))]
        shown = escaped(f"{text}…", markup)
    return shown + end
