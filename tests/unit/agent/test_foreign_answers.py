"""A job that is asked why it stands still: what other users wrote, or listen at, is none of its answers."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

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


@pytest.mark.parametrize("kind", ["port", "socket"])
def test_who_listens_is_looked_at(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: OTHER)
    until_s = time.monotonic() + UNTIL_S
    with pytest.raises(PermissionError, match="another user listens"):
        if kind == "port":
            with socket.create_server(("127.0.0.1", 0)) as port:
                ask_job.poll_ras(f"127.0.0.1:{port.getsockname()[1]}", until_s)
        else:
            with socket.socket(socket.AF_UNIX) as listening:
                listening.bind(str(tmp_path / "s"))
                listening.listen()
                ask_job.post(str(tmp_path / "s"), "dump_traceback", until_s)
