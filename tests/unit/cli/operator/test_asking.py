"""How commands find the daemon and ask it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from sentinel.adapters import client
from sentinel.cli.operator import daemon_client
from sentinel.cli.operator.daemon_client import ask, settings_of, view
from sentinel.errors import Denied, FileError, Timeout
from sentinel.protocol import CHANGE, VIEW


class FakeClient:
    """Remembers who was asked; ``error`` is raised instead of an answer."""

    made: list[FakeClient]
    error: Exception | None

    def __init__(self, url: str, credentials: Any, *, trusted_uids: Any, deadline_s: float, **_wire: Any) -> None:
        self.url, self.socket, self.trusted, self.deadline_s = url, credentials.socket, list(trusted_uids), deadline_s
        self.asked: list[tuple[str, Any]] = []
        self.closed = False
        FakeClient.made.append(self)

    def find_active(self, deadline_s: float, takeover_s: float) -> None:
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
    monkeypatch.setattr(daemon_client, "HOOK_CONF", "/nowhere/hook.conf")
    for name in ("SENTINEL_URL", "SENTINEL_MUNGE_SOCKET", "SENTINEL_DAEMON_USER"):
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


# --- whose answers are the daemon's ---------------------------------------------------------------------------------------


def trusted(config: Path) -> list[int]:
    view(config, "nodes")
    return sorted(FakeClient.made[-1].trusted)


def test_the_uid_of_the_daemon_in_the_settings_is_believed(config: Path) -> None:
    config.write_text(config.read_text() + "uid = 991\n")
    assert trusted(config) == [42, 991]


def test_settings_that_anybody_may_write_name_nobody(config: Path) -> None:
    config.chmod(0o666)
    assert trusted(config) == []
    FakeClient.error = Denied("the answer comes from uid 42", fix="name it")
    with pytest.raises(Denied, match="comes from uid 42") as caught:
        view(config, "nodes")
    assert str(config) in caught.value.fix and "root's" in caught.value.fix


@pytest.mark.skipif(os.getuid() != 0, reason="gives files away: only root can")
def test_settings_of_a_stranger_name_nobody(config: Path) -> None:
    os.chown(config, 12345, 12345)
    config.parent.chmod(0o755)
    assert trusted(config) == [42]  # where only root can put a file
    os.chown(config.parent, 12345, 12345)
    assert trusted(config) == []


def test_the_environment_alone_names_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere, hooks = tmp_path / "nothing.toml", tmp_path / "hook.conf"
    monkeypatch.setenv("SENTINEL_URL", "http://head:9")
    monkeypatch.setenv("SENTINEL_DAEMON_USER", "991")
    assert trusted(nowhere) == []
    monkeypatch.setattr(daemon_client, "HOOK_CONF", str(hooks))
    hooks.write_text("# of the hooks\nSENTINEL_URL=http://head:9\nSENTINEL_DAEMON_USER=992\n")
    assert trusted(nowhere) == [992]
    hooks.chmod(0o666)
    assert trusted(nowhere) == []
    hooks.chmod(0o644)
    hooks.write_text("SENTINEL_DAEMON_USER=nobody-of-this-name\n")
    assert trusted(nowhere) == []


@pytest.mark.parametrize(("signed", "said"), [(False, "whether it was carried out is not known"), (True, "no")])
def test_a_change_whose_answer_is_not_believed_may_have_been_made(config: Path, signed: bool, said: str) -> None:
    FakeClient.error = Denied("no", fix="see operators")
    FakeClient.error.signed = signed
    with pytest.raises(Denied) as caught:
        ask(config, CHANGE, {})
    assert caught.value.message.endswith(said) and caught.value.fix == "see operators"
    FakeClient.error = Denied("no")
    with pytest.raises(Denied) as caught:
        ask(config, VIEW, {})
    assert caught.value.message == "no"  # a question changes nothing


@pytest.mark.skipif(os.getuid() == 0, reason="root reads every file")
def test_settings_that_only_the_daemon_may_read_leave_the_environment(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.chmod(0o000)
    monkeypatch.setenv("SENTINEL_URL", "http://head:9")
    assert settings_of(config).daemon.url == "http://head:9"
