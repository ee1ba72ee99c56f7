"""Webhook receiver of the lab: every message becomes one JSON line in a file (`lab messages` shows them)."""

from __future__ import annotations

import argparse
import json
import threading
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

LARGEST_BODY = 1 << 20


class Receiver(ThreadingHTTPServer):
    """Holds the file; one line a message, written under a lock so that lines never mix."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], file: Path) -> None:
        super().__init__(address, Handler)
        self.file = file
        self.lock = threading.Lock()

    def keep(self, record: dict[str, Any]) -> None:
        with self.lock, self.file.open("a", encoding="utf-8") as out:
            out.write(json.dumps(record) + "\n")


class Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        try:
            length = int(self.headers.get("Content-Length", ""))
        except ValueError:
            self.send_error(411, "Content-Length is needed")
            return
        if not 0 <= length <= LARGEST_BODY:
            self.send_error(413, "message too large")
            return
        body = self.rfile.read(length)
        try:
            message: Any = json.loads(body)
        except ValueError:
            message = body.decode("utf-8", "replace")
        self.server.keep({"at": datetime.now(UTC).isoformat(), "path": self.path, "message": message})
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """The file is the log."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="lab.receiver", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--file", type=Path, required=True)
    options = parser.parse_args()
    with Receiver((options.host, options.port), options.file) as server:
        server.serve_forever()


if __name__ == "__main__":
    main()
