"""A job that is asked why it stands still: what other users wrote, or listen at, is none of its answers."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sentinel.agent.probes import ask_job

UNTIL_S = 20.0
OTHER = os.geteuid() + 1


def test_a_dump_of_another_user_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "nccl_trace_rank_7"
    place.write_bytes(b"dump")
    assert ask_job._written(place) is not None and ask_job._own_content(place) == b"dump"
    (tmp_path / "link").symlink_to(place)
    assert ask_job._written(tmp_path / "link") is None
    with pytest.raises(OSError, match="link"):
        ask_job._own_content(tmp_path / "link")
    monkeypatch.setattr(os, "geteuid", lambda: OTHER)
    assert ask_job._written(place) is None
    with pytest.raises(PermissionError, match="not of the job's user"):
        ask_job._own_content(place)


@contextmanager
def answering(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A port whose listener is closed as soon as it has accepted; yields its address."""
    port = socket.create_server(("127.0.0.1", 0))
    closed = threading.Event()
    connect = socket.create_connection

    def connected(*arguments: Any) -> socket.socket:
        stream = connect(*arguments)
        assert closed.wait(UNTIL_S)
        return stream

    monkeypatch.setattr(socket, "create_connection", connected)

    def serve() -> None:
        stream, _ = port.accept()
        port.close()
        closed.set()
        with stream, stream.makefile("rwb") as lines:
            for line in lines:
                lines.write(b"{}" if line.startswith(b"VERBOSE") else b"OK\n")
                lines.flush()
                if line.startswith(b"VERBOSE"):
                    return

    thread = threading.Thread(target=serve)
    thread.start()
    address = f"127.0.0.1:{port.getsockname()[1]}"
    try:
        yield address
    finally:
        thread.join(UNTIL_S)


def test_a_port_of_the_own_user_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(monkeypatch) as address:
        assert ask_job.poll_ras(address, time.monotonic() + UNTIL_S) == b"{}"


@pytest.mark.parametrize("kind", ["port", "socket"])
def test_who_listens_is_looked_at(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: OTHER)
    until_s = time.monotonic() + UNTIL_S
    with pytest.raises(PermissionError, match="another user listens"):
        if kind == "port":
            with answering(monkeypatch) as address:
                ask_job.poll_ras(address, until_s)
        else:
            with socket.socket(socket.AF_UNIX) as listening:
                listening.bind(str(tmp_path / "s"))
                listening.listen()
                ask_job.post(str(tmp_path / "s"), "dump_traceback", until_s)
