"""``sentinel config check`` says all that is wrong at once, and whose file it was given."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from sentinel import cli as root
from sentinel.cli.offline import config as module
from sentinel.config.settings import Settings, load
from sentinel.config.settings_toml import Reader
from sentinel.errors import FileError

MANY = """[limits]
drain_fraction = 2
restarts_per_hour = -1
drain_cuont = 3
[alerts.channels.a]
kind = "fax"
[alerts.channels.b]
kind = "pager pigeon"
"""


def check(*words: object) -> FileError:
    error = CliRunner().invoke(root.cli, ["config", "check", *map(str, words)]).exception
    assert isinstance(error, FileError), error
    return error


def test_all_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    path = tmp_path / "here.toml"
    path.write_text(MANY)
    error = check("--config", path)
    assert [(one.line, one.key) for one in (error, *error.others)] == [
        (2, "limits.drain_fraction"), (3, "limits.restarts_per_hour"), (4, "limits.drain_cuont"),
        (6, "alerts.channels.a.kind"), (8, "alerts.channels.b.kind"),
    ]  # fmt: skip
    assert all(one.fix for one in error.others)


def test_each_is_a_line_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "here.toml"
    path.write_text(MANY)
    monkeypatch.delenv("COLUMNS", raising=False)  # no line is broken
    monkeypatch.setattr(sys, "argv", ["sentinel", "config", "check", "--config", str(path)])
    with pytest.raises(SystemExit) as ended:
        root.main()
    said = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2
    assert [line.split(": ")[1] for line in said if line.startswith("sentinel: ")] == [
        f"{path}:{line}" for line in (2, 3, 4, 6, 8)
    ]


def test_what_the_daemon_would_refuse_at_its_start_is_said_at_once_too(tmp_path: Path) -> None:
    path = tmp_path / "here.toml"
    path.write_text(
        '[judgement]\nrules = "/nonexist"\n[page]\nlisten = "unix:/run/p"\nracks = "("\n'
        '[alerts.channels.x]\nkind = "webhook"\nurl_file = "/nowhere"\n'
    )
    error = check("--config", path)
    assert sorted(one.key for one in (error, *error.others)) == [
        "alerts.channels.x.url_file", "judgement.rules", "page.racks",
    ]  # fmt: skip


def test_one_fault_has_no_others(tmp_path: Path) -> None:
    path = tmp_path / "here.toml"
    path.write_text("[limits]\ndrain_count = -1\n")
    with pytest.raises(FileError) as caught:
        load(path, Settings)
    assert caught.value.others == ()


def test_the_file_of_the_other_is_named_as_such(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "sentinel.toml", tmp_path / "agent.toml"
    ours.write_text('cluster = "x"\n[modes.default]\ndrain = "act"\n')
    theirs.write_text('node = "n1"\n[host]\nmounts = ["/data"]\n')
    error = check("--config", ours, "--agent")
    assert "the daemon's settings file" in error.message and "leave --agent out" in error.fix
    error = check("--config", theirs)
    assert "an agent's settings file" in error.message and "add --agent" in error.fix
    ours.write_text('cluster = "x"\nnode = "n1"\n')
    assert "unknown key" in check("--config", ours).message, "a key of the other's in a file of one's own"


def test_with_agent_the_agents_own_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SENTINEL_CONFIG", raising=False)
    monkeypatch.setattr(module, "AGENT_CONFIG", tmp_path / "agent.toml")
    assert str(tmp_path / "agent.toml") in check("--agent").message


def test_a_section_that_is_there_by_those_inside_it_has_a_line(tmp_path: Path) -> None:
    reader = Reader(tmp_path, 'x = 1\n[modes.default]\ndrain = "act"\n[mode]\n')
    assert (reader.line_of("modes"), reader.line_of("mode"), reader.line_of("mod")) == (2, 4, None)
