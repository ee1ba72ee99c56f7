"""Whoever binds the host engine's port while the engine is away is no engine."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sentinel.adapters.gpu import dcgm
from sentinel.adapters.gpu.dcgm import Bindings, HostEngine
from sentinel.adapters.gpu.dcgmi import Dcgmi
from sentinel.adapters.gpu.engine_owner import EngineOwner
from sentinel.agent.probes.diagnose import diagnose
from sentinel.errors import Unavailable

STRANGER = 65534
UNTIL_S = 60.0
# A client as dcgmi is: it asks whoever listens, and prints the answer.
CLIENT = f"""#!{sys.executable}
import json, socket, sys
host = sys.argv[sys.argv.index("--host") + 1]
if host.startswith("unix://"):
    stream = socket.socket(socket.AF_UNIX)
    stream.connect(host[7:])
else:
    name, _, port = host.rpartition(":")
    stream = socket.create_connection((name, int(port)))
stream.sendall(json.dumps(sys.argv[1:]).encode() + b"\\n")
sys.stdout.write(stream.makefile().read())
"""
LOST = """1 GPU found.
| 0      | Status: Lost                                                         |
|        | Device UUID: GPU-a                                                   |
"""
# Binds, gives root up as a process of that user has none, and says what it was told to.
ENGINE = """
import os, socket, sys
where, uid, told = sys.argv[1], int(sys.argv[2]), sys.argv[3].encode()
if os.geteuid() == 0 and uid:
    os.setgroups([]); os.setgid(uid); os.setuid(uid)
if where:
    server = socket.socket(socket.AF_UNIX); server.bind(where); server.listen(); os.chmod(where, 0o777)
else:
    server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname() if where else server.getsockname()[1], flush=True)
while True:
    stream, _ = server.accept()
    with stream:
        try:
            if stream.makefile("rb").readline():
                stream.sendall(told)
        except OSError:
            pass
"""

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a process of another user")


@contextmanager
def engine(uid: int, path: str = "") -> Iterator[str]:
    """An engine of that user, on a port or a unix socket; its address."""
    command = [sys.executable, "-c", ENGINE, path, str(uid), LOST]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd="/") as process:
        try:
            assert process.stdout is not None
            said = process.stdout.readline().strip()
            yield f"unix://{path}" if path else f"127.0.0.1:{said}"
        finally:
            process.kill()


@pytest.fixture
def client(tmp_path: Path) -> str:
    command = tmp_path / "dcgmi"
    command.write_text(CLIENT)
    command.chmod(0o755)
    return str(command)


def asked(client: str, where: str, **more: Any) -> dict[str, Any]:
    path = where.removeprefix("unix://") if where.startswith("unix://") else ""
    host = "" if path else where
    arguments = {"node": "n1", "level": 1, "gpus": None, "promised": 1, "tells_missing": True, "dcgmi": client,
                 "host": host, "socket": path, "rules": "", "deadline_s": UNTIL_S, "stop_s": 5.0}  # fmt: skip
    return diagnose({**arguments, **more})


def lost(answer: dict[str, Any]) -> bool:
    return any(item["kind"] == "gpu_lost" for item in answer["evidence"])


@as_root
def test_a_user_who_listens_there_convicts_no_node(client: str) -> None:
    with engine(STRANGER) as where:
        answer = asked(client, where)
    assert not lost(answer) and answer["result"] == "inconclusive"
    assert f"on {where} belongs to uid {STRANGER}, not to root or nvidia-dcgm: not believed" in answer["reason"]
    assert "dcgm.account" in answer["reason"]


@as_root
@pytest.mark.parametrize("whose", ["the socket's", "the folder's"])
def test_a_user_with_a_unix_socket_convicts_no_node(client: str, whose: str) -> None:
    with tempfile.TemporaryDirectory() as folder:  # pytest's own are closed to others
        os.chown(folder, STRANGER, STRANGER)
        with engine(STRANGER if whose == "the socket's" else 0, f"{folder}/engine") as where:
            answer = asked(client, where)
    assert not lost(answer) and answer["result"] == "inconclusive"
    assert f"belongs to uid {STRANGER}, not to root or nvidia-dcgm: not believed" in answer["reason"]


def test_a_folder_in_which_others_may_rename_is_not_believed(client: str, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with engine(os.geteuid(), str(tmp_path / "engine")) as where:
        answer = asked(client, where)
    assert f"others may replace the DCGM host engine's socket in {tmp_path}" in answer["reason"]


@as_root
def test_the_account_that_the_site_names_is_believed(client: str) -> None:
    with engine(STRANGER) as where:
        assert lost(asked(client, where, account=str(STRANGER)))


@pytest.mark.parametrize("kind", ["port", "socket", "name"])
def test_root_and_the_own_account_are_believed(client: str, tmp_path: Path, kind: str) -> None:
    with engine(os.geteuid(), str(tmp_path / "engine") if kind == "socket" else "") as where:
        assert lost(asked(client, where.replace("127.0.0.1", "localhost") if kind == "name" else where))


def test_an_engine_that_was_restarted_meanwhile_is_not_believed(client: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody may have listened in between."""
    with engine(os.geteuid()) as where:
        dcgmi = Dcgmi(client, host=where)
        first = dcgmi.check()
        assert dcgmi.check() == first
        seen = iter([first, (0,)])
        monkeypatch.setattr(dcgmi, "check", lambda: next(seen))
        with pytest.raises(Unavailable, match="another one than before"):
            dcgmi.gpus()


def test_of_another_host_nothing_is_asked_but_whether_it_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    """No socket of this host is at that address."""

    class Elsewhere(socket.socket):
        def getpeername(self) -> Any:
            return ("192.0.2.1", 5555)

    def connected(address: tuple[str, int], timeout: float) -> socket.socket:
        assert address == ("gpu9", 5555) and timeout > 0
        return Elsewhere(socket.AF_INET)

    monkeypatch.setattr(socket, "create_connection", connected)
    dcgmi = Dcgmi("dcgmi", host="gpu9:5555")
    assert dcgmi.check() == () and dcgmi.where == "gpu9:5555"


@contextmanager
def library(monkeypatch: pytest.MonkeyPatch, port: int) -> Iterator[Bindings]:
    """Bindings whose library connects, as DCGM's does."""
    monkeypatch.setattr(dcgm, "Values", lambda *_: None)
    with ExitStack() as connections:

        def handle(**_: Any) -> Any:
            connections.enter_context(socket.create_connection(("127.0.0.1", port)))
            return SimpleNamespace(GetSystem=lambda: None)

        class Failed(Exception):
            pass

        pydcgm = SimpleNamespace(DcgmHandle=handle)
        yield cast(Bindings, SimpleNamespace(pydcgm=pydcgm, agent=None, structs=None, error=Failed, misuse=Failed))


@as_root
@pytest.mark.parametrize("still", [True, False])
def test_bindings_that_connect_to_a_stranger_tell_nothing(monkeypatch: pytest.MonkeyPatch, still: bool) -> None:
    """Also one who did not listen yet when it was looked."""
    with engine(STRANGER) as where, library(monkeypatch, int(where.rpartition(":")[2])) as bindings:
        if not still:
            monkeypatch.setattr("sentinel.adapters.gpu.engine_owner.EngineOwner.look", lambda _: ())
        with pytest.raises(Unavailable, match=f"belongs to uid {STRANGER}"):
            HostEngine(bindings, host=where)


def test_bindings_wait_until_the_engine_takes_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with library(monkeypatch, port) as bindings, ThreadPoolExecutor() as pool:
            made = pool.submit(HostEngine, bindings, host=f"127.0.0.1:{port}", connect_s=UNTIL_S)
            with server.accept()[0], server.accept()[0]:  # of the look, and the library's
                made.result(UNTIL_S)
        with library(monkeypatch, port) as bindings, pytest.raises(Unavailable, match="does not take connections"):
            HostEngine(bindings, host=f"127.0.0.1:{port}", connect_s=0.1)


@pytest.mark.parametrize(
    ("host", "address"),
    [("::1", "[::1]:5555"), ("[::1]", "[::1]:5555"), ("[::1]:6000", "[::1]:6000"), ("fd00::7", "[fd00::7]:5555"),
     ("fd00::5555", "[fd00::5555]:5555"), ("127.0.0.1", "127.0.0.1:5555"), ("127.0.0.1:6000", "127.0.0.1:6000"),
     ("gpu7", "gpu7:5555"), ("gpu7:6000", "gpu7:6000")],
)  # fmt: skip
def test_an_address_without_a_port_has_dcgms_own(host: str, address: str) -> None:
    owner = EngineOwner(host=host, path="", account="")
    assert owner.address == owner.where == address
