"""Services that messages go to, as far as they document what they take: a fake that answers as they do, and holds us to it.

Requests of the ``requests`` library to any host end here, over a real socket: chats have fixed addresses.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import requests
import requests.adapters

Json = Mapping[str, Any]


@dataclass
class Request:
    method: str
    host: str
    path: str
    query: Mapping[str, list[str]]
    headers: Mapping[str, str]
    body: Any


Answer = tuple[int, bytes]
_send = requests.adapters.HTTPAdapter.send


def slack(request: Request) -> Answer:
    """https://api.slack.com/messaging/webhooks: answers "ok", or 400 no_text."""
    assert request.host == "hooks.slack.com" and re.fullmatch(r"/services/T\w+/\w+/\w+", request.path)
    body = request.body
    if not (body.get("text") or body.get("attachments") or body.get("blocks")):
        return 400, b"no_text"
    return 200, b"ok"


def discord(request: Request) -> Answer:
    """https://discord.com/developers/docs/resources/webhook#execute-webhook: content of 1 to 2,000 characters; 204."""
    assert request.host == "discord.com" and re.fullmatch(r"/api/webhooks/\d+/[\w-]+", request.path)
    content = request.body.get("content", "")
    return (204, b"") if 0 < len(content) <= 2000 else (400, b'{"code": 50035, "message": "Invalid Form Body"}')


def mattermost(request: Request) -> Answer:
    """https://developers.mattermost.com/integrate/webhooks/incoming/: text or attachments; "ok"."""
    assert re.fullmatch(r"/hooks/\w+", request.path)
    return (200, b"ok") if request.body.get("text") else (400, b'{"id": "web.incoming_webhook.text.app_error"}')


def teams(request: Request) -> Answer:
    """A Power Automate flow that posts an Adaptive Card: a message with one attachment of that type; 202."""
    assert "/triggers/manual/paths/invoke" in request.path and request.query["sig"]
    (attachment,) = request.body["attachments"]
    assert request.body["type"] == "message" and attachment["contentType"] == "application/vnd.microsoft.card.adaptive"
    card = attachment["content"]
    assert card["type"] == "AdaptiveCard" and all(item["type"] == "TextBlock" for item in card["body"])
    return 202, b""


def ntfy(request: Request) -> Answer:
    """https://docs.ntfy.sh/publish/#publish-as-json: POST to the root; topic must be there, message is text."""
    assert request.path == "/" and request.body["topic"] and "markdown" not in request.body
    return 200, b'{"id": "x", "event": "message"}'


def pagerduty(request: Request) -> Answer:
    """https://developer.pagerduty.com/docs/events-api-v2: 202; dedup_key of at most 255, summary of at most 1,024."""
    body = request.body
    assert request.host == "events.pagerduty.com" and request.path == "/v2/enqueue"
    assert body["event_action"] in ("trigger", "acknowledge", "resolve") and len(body["routing_key"]) == 32
    assert 0 < len(body["dedup_key"]) <= 255
    if body["event_action"] == "trigger":
        payload = body["payload"]
        assert len(payload["summary"]) <= 1024 and payload["source"]
        assert payload["severity"] in ("critical", "warning", "error", "info")
    return 202, b'{"status": "success", "message": "Event processed", "dedup_key": "x"}'


def opsgenie(request: Request) -> Answer:
    """https://docs.opsgenie.com/docs/alert-api: 202 with a requestId; message of at most 130; close by alias."""
    assert request.headers["Authorization"] == "GenieKey a-b-c-d-e"
    if request.path.endswith("/close"):
        assert request.query == {"identifierType": ["alias"]} and request.method == "POST"
    else:
        assert request.path == "/v2/alerts" and len(request.body["message"]) <= 130 and request.body["alias"]
        assert len(request.body["description"]) <= 15_000
    return 202, b'{"result": "Request will be processed", "requestId": "43a29c5c-3dbf-4fa4-9c26-f4f71023e120"}'


def matrix(request: Request) -> Answer:
    """https://spec.matrix.org/latest/client-server-api/: log in, join, send an event by PUT with a transaction id."""
    if request.path.endswith("/login"):
        return 200, b'{"access_token": "t", "user_id": "@a:matrix.example", "device_id": "d"}'
    if "/join/" in request.path:
        return 200, b'{"room_id": "!a:b"}'
    if "/send/m.room.message" in request.path:
        assert request.method == "PUT" and request.body["msgtype"] == "m.text"
        assert "formatted_body" not in request.body
        return 200, b'{"event_id": "$e"}'
    return (404, b'{"errcode": "M_NOT_FOUND"}') if "well-known" in request.path else (200, b"{}")


@dataclass
class Service:
    """A server on loopback that gets what is meant for every host."""

    answers: Callable[[Request], Answer]
    got: list[Request] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)  # what it was asked against its documentation
    status: int | None = None  # answered whatever is asked
    location: str = ""
    silent: threading.Event = field(default_factory=threading.Event)  # set: it answers

    def __post_init__(self) -> None:
        self.silent.set()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def stop(self) -> None:
        self.silent.set()
        self.server.shutdown()
        self.server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        service = self

        class Handler(BaseHTTPRequestHandler):
            def handle_any(self) -> None:
                raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                there = urlsplit(self.path)
                body = json.loads(raw) if raw else None
                host = self.headers.get("X-Meant-For") or self.headers.get("Host", "")
                request = Request(self.command, host, there.path, parse_qs(there.query), dict(self.headers), body)
                service.got.append(request)
                service.silent.wait()
                status, answer = service.answer(request)
                self.send_response(status)
                if service.location:
                    self.send_header("Location", service.location)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            do_GET = do_POST = do_PUT = handle_any

            def log_message(self, format: str, *arguments: Any) -> None:
                return

        return Handler

    def answer(self, request: Request) -> Answer:
        if self.status is not None:
            return self.status, b"{}"
        try:
            return self.answers(request)
        except (AssertionError, KeyError, ValueError, TypeError, AttributeError) as error:
            self.broken.append(f"{request.method} {request.path}: {error!r} {request.body!r:.500}")
            return 400, b"{}"


def redirect_requests(service: Service, patch: pytest.MonkeyPatch) -> None:
    """Every request of the ``requests`` library goes to ``service``, with the host it was meant for in a header."""

    def send(self: Any, request: Any, **how: Any) -> Any:
        there = urlsplit(request.url)
        if there.netloc not in service.url:
            request.headers["X-Meant-For"] = there.hostname
            request.url = there._replace(scheme="http", netloc=urlsplit(service.url).netloc).geturl()
        return _send(self, request, **how)

    patch.setattr(requests.adapters.HTTPAdapter, "send", send)
