"""A daemon that only answers: keeps what it gets with the time of its arrival, hands out orders. For tests and benches."""

from __future__ import annotations

import json
import threading
import time
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from servers.ports import free_ports

from sentinel.daemon.api.sessions import Sessions
from sentinel.errors import Unavailable
from sentinel.ports import Credentials
from sentinel.protocol import (
    EVENT,
    EVIDENCE,
    HEADER,
    HEARTBEAT,
    ORDER_RESULT,
    ORDERS,
    SESSION,
    answer_mark,
    digest_of,
    is_session_mark,
    with_key,
)


class FakeDaemon:
    """``start`` listens on a free port; ``url`` says where.

    Args:
        sessions: whether it has sessions, as the daemon does: for benches, whose cost they are a part of.
    """

    def __init__(self, credentials: Credentials, port: int = 0, *, sessions: bool = False) -> None:
        self.credentials = credentials
        self._sessions = Sessions(3600.0, 10, time.monotonic) if sessions else None
        self.heartbeats: list[dict[str, Any]] = []
        self.evidence: list[tuple[float, dict[str, Any]]] = []
        self.batches: list[dict[str, Any]] = []
        self.results: dict[str, dict[str, Any]] = {}
        self.events: list[dict[str, Any]] = []
        self.callers: list[int] = []
        self.changed = threading.Condition()
        self.stopped = False
        self.watch: list[dict[str, Any]] = []  # folders of jobs that heartbeats are answered with
        self.lie: str = ""  # "signature": answers are signed for something else
        self._orders: dict[str, dict[str, Any]] = {}
        daemon = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                try:
                    daemon._serve(self)
                except (OSError, Unavailable):
                    self.close_connection = True  # the agent was killed, or the test is over

            def log_message(self, *_: object) -> None:
                return

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

        # While it is away nobody gets its port.
        self._server = Server(("127.0.0.1", port or free_ports(1)[0]), Handler)
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def start(self) -> FakeDaemon:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def stop(self) -> None:
        """No answer to anybody any more, also not on connections that are kept."""
        self.stopped = True
        self._server.shutdown()
        self._server.server_close()
        with self.changed:
            self.changed.notify_all()

    def order(self, identity: str, kind: str, arguments: dict[str, Any], deadline_s: float = 30.0) -> None:
        with self.changed:
            self._orders[identity] = {"id": identity, "kind": kind, "arguments": arguments, "deadline_s": deadline_s}
            self.changed.notify_all()

    def wait(self, condition: Any, timeout_s: float = 60.0) -> bool:
        """Until ``condition()`` holds."""
        end_s = time.monotonic() + timeout_s
        with self.changed:
            while not condition():
                left_s = end_s - time.monotonic()
                if left_s <= 0:
                    return False
                self.changed.wait(left_s)
        return True

    def kinds(self) -> list[str]:
        return [item["kind"] for _, item in self.evidence]

    def _serve(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers["Content-Length"]))
        if self.stopped:
            request.close_connection = True
            return
        credential, session = request.headers[HEADER], None
        if self._sessions is not None and is_session_mark(credential):
            session, signed = self._sessions.check(credential, "")
        else:
            signed = self.credentials.decode(credential)
        if signed.payload != digest_of(request.path, body):
            self._answer(request, 401, credential, {"error": "wrong signature"})
            return
        if self._sessions is not None and request.path == SESSION:
            name, key = self._sessions.open(signed, "")
            content = {"session": name}
            digest = digest_of(credential, json.dumps(content).encode())
            self._answer(request, 200, credential, content, self.credentials.encrypt(with_key(digest, key), signed.uid))
            return
        if request.path not in (HEARTBEAT, EVIDENCE, ORDERS, ORDER_RESULT, EVENT):
            self._answer(request, 404, credential, {"error": "not found"})  # as a daemon that has no sessions
            return
        answer = self._handle(request.path, json.loads(body), signed.uid)
        mark = session and answer_mark(session.key, credential, 200, json.dumps(answer).encode())
        self._answer(request, 200, credential, answer, mark)

    def _answer(
        self,
        request: BaseHTTPRequestHandler,
        status: int,
        credential: str,
        answer: dict[str, Any],
        mark: str | None = None,
    ) -> None:
        content = json.dumps(answer).encode()
        signed = digest_of("something else" if self.lie == "signature" else credential, content)
        request.send_response(status)
        request.send_header("Content-Length", str(len(content)))
        request.send_header(HEADER, mark or self.credentials.encode(signed))
        request.end_headers()
        request.wfile.write(content)

    def _handle(self, path: str, body: dict[str, Any], uid: int) -> dict[str, Any]:
        with self.changed:
            self.callers.append(uid)
            now_s = time.time()
            answer: dict[str, Any] = {}
            if path == HEARTBEAT:
                self.heartbeats.append(body)
                answer = {"at": datetime.now(UTC).isoformat(), "watch": self.watch, "drain_mode": "act"}
            elif path == EVIDENCE:
                self.batches.append(body)
                self.evidence.extend((now_s, item) for item in body["items"])
                answer = {"acknowledged": body["first"] + len(body["items"]) - 1}
            elif path == ORDERS:
                self.changed.wait_for(lambda: bool(self._orders), timeout=5.0)
                answer = {"orders": list(self._orders.values())}
            elif path == ORDER_RESULT:
                self.results[body["id"]] = body
                self._orders.pop(body["id"], None)
            elif path == EVENT:
                self.events.append(body)
            self.changed.notify_all()
            return answer
