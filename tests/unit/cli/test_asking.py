"""How commands find the daemon and ask it, and how values become words."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cli_asked import HOSTILE, harmless

from sentinel.adapters import client
from sentinel.cli.asking import ago, ask, folded, print_json, settings_of, shown, styled_state, table, view
from sentinel.errors import Denied, FileError, Timeout
from sentinel.protocol import VIEW

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


class FakeClient:
    """Remembers who was asked; ``error`` is raised instead of an answer."""

    made: list[FakeClient]
    error: Exception | None

    def __init__(self, url: str, credentials: Any, *, trusted_uids: Any, deadline_s: float) -> None:
        self.url, self.socket, self.trusted, self.deadline_s = url, credentials.socket, list(trusted_uids), deadline_s
        self.asked: list[tuple[str, Any]] = []
        self.closed = False
        FakeClient.made.append(self)

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


# --- words ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "-"), ("", "-"), ([], "-"), (0, "0"), (0.0, "0"), (1234.5678, "1.23e+03"), (0.12345, "0.123"),
        ("n1", "n1"), (["n1", "n2"], "n1, n2"), (("a\nb",), "a·b"), (False, "False"),
        ([f"n{i}" for i in range(8)], "n0, n1, n2, n3, n4, n5 +2"),
        (HOSTILE, "[red]x[/red]·[2J·]0;title···root·evil {0} %s"),
    ],
)  # fmt: skip
def test_shown(value: object, words: str) -> None:
    assert shown(value) == words


def test_folded_to_its_limit() -> None:
    assert folded(["a", "b", "c"], most=3) == "a, b, c" and folded(["a", "b", "c"], most=1) == "a +2"
    assert folded([]) == ""


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0 s ago"), (59, "59 s ago"), (60, "1 min ago"), (3599, "60 min ago"), (3600, "1 h ago"), (86400, "1 d ago"),
     (200000, "2 d ago"), (-30, "0 s ago")],
)  # fmt: skip
def test_ago(seconds: float, words: str) -> None:
    then = (NOW - timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")
    assert ago(then, NOW) == words


@pytest.mark.parametrize("value", [None, 7, ""])
def test_time_that_is_not_known(value: object) -> None:
    assert ago(value or None, NOW) == "-"


def test_state_keeps_its_word_without_colour() -> None:
    assert styled_state("down").plain == "down" and styled_state("down").style == "red"
    assert styled_state("odd\x1b").plain == "odd·" and styled_state("odd").style == ""


def test_json_lines(capsys: pytest.CaptureFixture[str]) -> None:
    print_json([{"b": 1, "a": HOSTILE}, [1]])
    out = capsys.readouterr().out
    assert len(out.splitlines()) == 2 and out.startswith('{"b": 1, "a": ') and harmless(out)


@pytest.mark.parametrize(("columns", "both"), [("80", False), ("109", False), ("110", True)])
def test_columns_for_wide_terminals(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: str, both: bool
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    table("Title of [i]n1[/i]", ("name", "more"), [("[b]x[/b]", "long " * 60)], wide=("more",), whole=("name",))
    out = capsys.readouterr().out
    assert "[b]x[/b]" in out and "[i]n1[/i]" in out and ("more" in out) is both
    assert max(len(line) for line in out.splitlines()) <= int(columns)
