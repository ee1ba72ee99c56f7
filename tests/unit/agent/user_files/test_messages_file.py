"""The file in which a user says where messages go: read within bounds, and only where it is the user's own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sentinel.agent.user_files import messages_file
from sentinel.model.orders import MOST_MESSAGES_FILE

TEXT = 'mail = ["ada@example.org"]\n'


def ask(monkeypatch: pytest.MonkeyPatch, home: Path, name: str = "messages.toml") -> object:
    said: list[dict[str, object]] = []
    monkeypatch.setattr(messages_file, "begin", lambda: {"uid": 1000, "gid": 100, "file": name})
    monkeypatch.setattr(messages_file, "become", lambda uid, gid: None)
    monkeypatch.setattr(messages_file, "account", lambda: ("ada", str(home)))
    monkeypatch.setattr(messages_file, "say", said.append)
    messages_file.main()
    (answer,) = said
    return answer["result"]


def test_its_text_is_the_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "messages.toml").write_text(TEXT)
    (tmp_path / "messages.toml").chmod(0o644)
    assert ask(monkeypatch, tmp_path) == {"text": TEXT, "user": "ada"}


@pytest.mark.parametrize("name", ["messages.toml", "no/such/folder.toml", ""])
def test_none_is_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    assert ask(monkeypatch, tmp_path, name) == {"text": None, "user": "ada"}


@pytest.mark.parametrize("kind", ["writable", "long", "bytes", "fifo", "folder", "device", "closed"])
def test_what_is_not_the_users_own_short_text_is_not_taken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str
) -> None:
    file = tmp_path / "messages.toml"
    if kind == "fifo":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    elif kind == "device":
        file.symlink_to("/dev/zero")
    else:
        file.write_bytes({"long": b"#" * (MOST_MESSAGES_FILE + 1), "bytes": b"\xff"}.get(kind, TEXT.encode()))
        file.chmod({"writable": 0o664}.get(kind, 0o600))
    if kind == "closed":
        real = os.open
        monkeypatch.setattr(os, "open", lambda path, *a: real(path, *a) if path != file else _closed())
    result = ask(monkeypatch, tmp_path)
    assert isinstance(result, dict) and set(result) == {"problem"} and result["problem"]


def _closed() -> int:
    raise PermissionError(13, "Permission denied")


def test_a_file_of_somebody_else_is_not_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "messages.toml").write_text(TEXT)
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    assert "problem" in ask(monkeypatch, tmp_path)  # type: ignore[operator]
