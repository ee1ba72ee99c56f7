"""The adapter against a real Prometheus that scrapes an exporter of this test: values, limits, wrong queries, TLS."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from servers.certificates import authority
from servers.prometheus import BINARY, PrometheusServer

from sentinel.adapters.prometheus import Prometheus
from sentinel.config.settings import Prometheus as Settings
from sentinel.config.signals_files import load_signals
from sentinel.errors import Denied, FileError, ProtocolError, Refused, Timeout, Unavailable, UserError
from sentinel.evidence.prometheus import Signal, evidence_of, holding
from sentinel.model.records import Cause, Scope

needs_prometheus = pytest.mark.skipif(BINARY is None, reason="needs the program prometheus (Debian package prometheus)")
Handle = Callable[[BaseHTTPRequestHandler], None]


def serving(handle: Handle, *, tls: ssl.SSLContext | None = None) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            handle(self)

        do_POST = do_GET

        def log_message(self, format: str, *arguments: Any) -> None:
            return

    made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if tls is not None:
        made.socket = tls.wrap_socket(made.socket, server_side=True)
    threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    return made


def say(request: BaseHTTPRequestHandler, body: bytes, status: int = 200) -> None:
    request.rfile.read(int(request.headers.get("Content-Length") or 0))
    request.send_response(status)
    request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    request.wfile.write(body)


@pytest.fixture(scope="module")
def real() -> Iterator[PrometheusServer]:
    made = PrometheusServer(
        'nas_up{nas="a"} 0',
        'nas_up{nas="b"} 1',
        "nas_load NaN",
        'port_errors{device="mlx5_0",host="n1.example.org:9100"} 900',
        'port_errors{device="mlx5_0",host="n2.example.org:9100"} 2',
        every_s=1,
    )
    try:
        made.wait("count(nas_up)")
        yield made
    finally:
        made.stop()


async def held(real: PrometheusServer, signal: Signal, **how: Any) -> list[Any]:
    prometheus = Prometheus(Settings(url=real.url, deadline_s=60.0, **how))
    now = datetime.now(UTC)
    try:
        answer = await prometheus.range(signal.query, now - timedelta(seconds=signal.for_s), now, signal.step_s)
    finally:
        await prometheus.close()
    return holding(signal, answer, now)


async def held_soon(real: PrometheusServer, signal: Signal) -> list[Any]:
    """Once it holds: on a busy machine a scrape may fail, and what a series then lacks does not hold."""
    until_s = time.monotonic() + 60
    while not (found := await held(real, signal)):
        assert time.monotonic() < until_s, "it never held"
        await asyncio.sleep(0.5)
    return found


NAS = Signal("nas", "a NAS is down", "nas_up", Cause.FILESYSTEM_STORAGE, below=1.0, for_s=0.0)


@needs_prometheus
async def test_series_beyond_the_limit_hold(real: PrometheusServer) -> None:
    found = await held_soon(real, NAS)
    assert [(one.value, one.labels["nas"]) for one in found] == [(0.0, "a")]
    (said,) = evidence_of(NAS, found, {}, datetime.now(UTC))
    assert said.text.startswith("a NAS is down: 0, below 1 counts (") and "nas=a" in said.text


@needs_prometheus
async def test_what_does_not_hold_is_nothing(real: PrometheusServer) -> None:
    for query in ("nas_up > 5", "no_such_metric", "nas_load"):
        assert await held(real, dataclasses.replace(NAS, query=query)) == []


@needs_prometheus
async def test_value_must_have_been_there_for_long_enough(real: PrometheusServer) -> None:
    assert await held(real, dataclasses.replace(NAS, for_s=3000.0)) == []
    assert len(await held_soon(real, dataclasses.replace(NAS, for_s=3.0))) == 1


@needs_prometheus
async def test_label_names_the_node(real: PrometheusServer) -> None:
    ports = Signal(
        "ports", "errors", "port_errors", Cause.NETWORK_FABRIC, above=100.0, for_s=0.0, scope=Scope.LINK,
        node_label="host", node_pattern=r"^([^.:]+)",
    )  # fmt: skip
    (said,) = evidence_of(ports, await held_soon(real, ports), {}, datetime.now(UTC))
    assert said.where.node == "n1" and said.data["value"] == 900.0


@needs_prometheus
async def test_wrong_query_is_refused_with_its_reason(real: PrometheusServer) -> None:
    with pytest.raises(Refused, match="parse error"):
        await held(real, dataclasses.replace(NAS, query="sum(nas_up"))


@needs_prometheus
async def test_every_shipped_query_is_one(real: PrometheusServer) -> None:
    """A query whose metrics are not there finds nothing; one that Prometheus cannot read would say so."""
    for signal in load_signals().signals.values():
        assert await held(real, signal) == [], signal.id


# --- what is not a Prometheus, or none that answers ---------------------------------------------------------------------


async def asked(settings: Settings) -> dict[str, Any]:
    prometheus = Prometheus(settings)
    now = datetime.now(UTC)
    try:
        return await prometheus.range("up", now - timedelta(seconds=60), now, 12.0)
    finally:
        await prometheus.close()


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (200, b"<html>", ProtocolError),
        (200, b"[]", ProtocolError),
        (200, b"", ProtocolError),
        (401, b"{}", Denied),
        (403, b"no", Denied),
        (302, b"", Unavailable),
        (400, b'{"status":"error","errorType":"bad_data","error":"parse error"}', Refused),
        (422, b'{"status":"error","errorType":"execution","error":"too many samples"}', Unavailable),
        (503, b'{"status":"error","errorType":"timeout","error":"late"}', Unavailable),
        (500, b"\xff\xfe", Unavailable),
    ],
)
async def test_answers_that_are_none(status: int, body: bytes, kind: type[Exception]) -> None:
    server = serving(lambda request: say(request, body, status))
    with pytest.raises(kind):
        await asked(Settings(url=f"http://127.0.0.1:{server.server_address[1]}", deadline_s=60.0))
    server.shutdown()
    server.server_close()


async def test_answer_that_is_too_long_is_not_read() -> None:
    server = serving(lambda request: say(request, b'{"status":"success","data":' + b" " * 200_000 + b"}"))
    with pytest.raises(Unavailable, match="longer than 4096 bytes") as caught:
        await asked(Settings(url=f"http://127.0.0.1:{server.server_address[1]}", answer_bytes=4096, deadline_s=60.0))
    assert "sum by" in caught.value.fix
    server.shutdown()
    server.server_close()


async def test_nobody_there_and_one_that_is_too_slow() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        with pytest.raises(Unavailable, match="cannot be reached"):
            await asked(Settings(url=f"http://127.0.0.1:{closed.getsockname()[1]}", deadline_s=60.0))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        with pytest.raises(Timeout, match=r"within 0\.3 s"):
            await asked(Settings(url=f"http://127.0.0.1:{silent.getsockname()[1]}", deadline_s=0.3))


@pytest.mark.parametrize(
    ("text", "sent"), [("t0ken\n", "Bearer t0ken"), ("Basic dXNlcjpwYXNz\n", "Basic dXNlcjpwYXNz")]
)
async def test_credentials_are_read_at_each_request(tmp_path: Path, text: str, sent: str) -> None:
    seen: list[str | None] = []

    def answer(request: BaseHTTPRequestHandler) -> None:
        seen.append(request.headers.get("Authorization"))
        say(request, b'{"status":"success","data":{"result":[]}}')

    server = serving(answer)
    file = tmp_path / "token"
    file.write_text(text)
    settings = Settings(
        url=f"http://127.0.0.1:{server.server_address[1]}", authorization_file=str(file), deadline_s=60.0
    )
    await asked(settings)
    file.write_text("other")
    await asked(settings)
    assert seen == [sent, "Bearer other"]
    for broken in ("", "\n", "a\nb: c"):
        file.write_text(broken)
        with pytest.raises(Denied):
            await asked(settings)
    file.unlink()
    with pytest.raises(Denied, match="cannot be read"):
        await asked(settings)
    assert len(seen) == 2
    server.shutdown()
    server.server_close()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
async def test_tls_with_an_authority_of_the_site(tmp_path: Path) -> None:
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(tmp_path / "key.pem"), "-out", str(tmp_path / "ca.pem")],
        check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "ca.pem", tmp_path / "key.pem")
    server = serving(lambda request: say(request, b'{"status":"success","data":{"result":[]}}'), tls=context)
    url = f"https://127.0.0.1:{server.server_address[1]}"
    assert (await asked(Settings(url=url, ca_file=str(tmp_path / "ca.pem"), deadline_s=60.0)))["status"] == "success"
    with pytest.raises(Unavailable, match="cannot be reached"):
        await asked(Settings(url=url, deadline_s=60.0))  # nobody here trusts it
    server.shutdown()
    server.server_close()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
async def test_certificates_that_were_changed_are_read_again(tmp_path: Path) -> None:
    """As where an authority of the site gives certificates of a day."""
    old, new = authority(tmp_path / "old"), authority(tmp_path / "new")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*new.sign("prometheus"))
    server = serving(lambda request: say(request, b'{"status":"success","data":{"result":[]}}'), tls=context)
    file = tmp_path / "ca.pem"
    shutil.copy(old.file, file)
    prometheus = Prometheus(
        Settings(url=f"https://127.0.0.1:{server.server_address[1]}", ca_file=str(file), deadline_s=60.0)
    )
    now = datetime.now(UTC)
    with pytest.raises(Unavailable, match="cannot be reached"):
        await prometheus.range("up", now, now, 15.0)
    file.write_text("")
    with pytest.raises(Unavailable, match=r"ca\.pem: .*cannot be used"):
        await prometheus.range("up", now, now, 15.0)
    shutil.copy(new.file, file)
    assert (await prometheus.range("up", now, now, 15.0))["status"] == "success"
    await prometheus.close()
    server.shutdown()
    server.server_close()


def test_settings_that_cannot_be_used_are_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is no address"):
        Prometheus(Settings(url="prometheus:9090"))
    with pytest.raises(FileError) as caught:
        Prometheus(Settings(url="https://prometheus:9090", ca_file=str(tmp_path / "missing.pem")))
    assert "missing.pem" in str(caught.value) and caught.value.fix
