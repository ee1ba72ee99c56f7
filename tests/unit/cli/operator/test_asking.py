"""How commands find the daemon and ask it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sentinel.adapters import client
from sentinel.cli.operator.daemon_client import ask, settings_of, view
from sentinel.errors import Denied, FileError, Timeout
from sentinel.protocol import VIEW


class FakeClient:
    """Remembers who was asked; ``error`` is raised instead of an answer."""

    made: list[FakeClient]
    error: Exception | None

    def __init__(self, url: str, credentials: Any, *, trusted_uids: Any, deadline_s: float, **_wire: Any) -> None:
        self.url, self.socket, self.trusted, self.deadline_s = url, credentials.socket, list(trusted_uids), deadline_s
        self.asked: list[tuple[str, Any]] = []
        self.closed = False
        FakeClient.made.append(self)

    def find_active(self, deadline_s: float) -> None:
        assert self.asked == []  # before anything else

    def post(self, path: str, body: Any) -> dict[str, Any]:
        self.asked.append((path, body))
        if FakeClient.error is not None:
            raise FakeClient.error
        return {"ok": True}

    def close(self) -> None:
        self.closed = True


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "DaemonClient", FakeClient)
    FakeClient.made, FakeClient.error = [], None
    for name in ("SENTINEL_URL", "SENTINEL_MUNGE_SOCKET"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "sentinel.toml"
    path.write_text('[daemon]\nurl = "http://there:1"\nmunge_socket = "/run/m"\ntrusted_uids = [42]\n')
    return path


def test_view_asks_the_daemon_of_the_settings(config: Path) -> None:
    assert view(config, "nodes", node="n1") == {"ok": True}
    (made,) = FakeClient.made
    assert (made.url, made.socket, made.trusted) == ("http://there:1", b"/run/m", [42])
    assert made.asked == [(VIEW, {"view": "nodes", "arguments": {"node": "n1"}})] and made.closed


@pytest.mark.parametrize("fix", ["", "ask the owner"])
def test_daemon_that_does_not_answer_comes_with_what_to_do(config: Path, fix: str) -> None:
    FakeClient.error = Timeout("late", fix=fix)
    with pytest.raises(Timeout) as caught:
        ask(config, VIEW, {})
    assert caught.value.fix == (fix or "is the daemon running? systemctl status sentinel-daemon; sentinel doctor")
    assert FakeClient.made[0].closed


def test_denial_is_passed_on(config: Path) -> None:
    FakeClient.error = Denied("no", fix="see operators")
    with pytest.raises(Denied, match="see operators"):
        ask(config, VIEW, {})


def test_login_node_needs_only_the_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = tmp_path / "nothing.toml"
    with pytest.raises(FileError, match="cannot be read"):
        settings_of(nowhere)
    monkeypatch.setenv("SENTINEL_URL", "http://head:9")
    monkeypatch.setenv("SENTINEL_MUNGE_SOCKET", "/run/other")
    made = settings_of(nowhere).daemon
    assert (made.url, made.munge_socket) == ("http://head:9", "/run/other")


def test_file_that_is_there_counts_more_than_the_environment(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SENTINEL_URL", "http://head:9")
    assert settings_of(config).daemon.url == "http://there:1"
