"""A Prometheus of a test's own, which scrapes an exporter whose metrics the test sets."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from servers.keeper import Keeper
from servers.ports import free_ports

BINARY = shutil.which("prometheus")


class PrometheusServer:
    """Debian's, on loopback, with its data in a folder that goes with it.

    ``metrics`` are the lines of the exporter, scraped every ``every_s`` seconds.
    """

    def __init__(self, *metrics: str, every_s: int = 3) -> None:
        assert BINARY is not None, "needs the program prometheus"
        self.metrics = list(metrics)
        self._exporter = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        threading.Thread(target=self._exporter.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        self._keeper = Keeper("prometheus-")
        folder = self._keeper.folder
        self.url = f"http://127.0.0.1:{free_ports(1)[0]}"
        config = folder / "prometheus.yml"
        target = f"127.0.0.1:{self._exporter.server_address[1]}"
        config.write_text(
            f"global: {{scrape_interval: {every_s}s, scrape_timeout: {every_s}s}}\n"
            f"scrape_configs: [{{job_name: storage, static_configs: [{{targets: ['{target}']}}]}}]\n"
        )
        self._process = subprocess.Popen(
            [
                BINARY, f"--config.file={config}", f"--storage.tsdb.path={folder}/data",
                f"--web.listen-address={self.url.removeprefix('http://')}",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **self._keeper.environment},
        )  # fmt: skip

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = ("\n".join(server.metrics) + "\n").encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *arguments: Any) -> None:
                return

        return Handler

    def wait(self, query: str = "up", within_s: float = 60.0) -> None:
        """Until it has values for ``query``."""
        deadline_s = time.monotonic() + within_s
        while time.monotonic() < deadline_s:
            assert self._process.poll() is None, "prometheus ended"
            try:
                with urllib.request.urlopen(f"{self.url}/api/v1/query?query={query}", timeout=20) as answer:
                    if b'"value"' in answer.read():
                        return
            except OSError:
                pass
            time.sleep(0.2)
        raise AssertionError(f"{self.url} has no values")

    def stop(self) -> None:
        """Also more than once."""
        self._process.kill()
        self._process.wait()
        self._exporter.shutdown()
        self._exporter.server_close()
        self._keeper.close()
