"""The command itself: every entry is there, explains itself, and ends with the status its error has."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from sentinel import __version__
from sentinel import cli as root
from sentinel.agent.settings import AgentSettings
from sentinel.config.settings import Settings, load
from sentinel.errors import Denied, FileError, ProtocolError, Refused, SentinelError, Timeout, Unavailable, UserError


@pytest.mark.parametrize("name", root.COMMANDS)
def test_every_command_is_there_and_explains_itself(name: str) -> None:
    command = root.cli.get_command(click.Context(root.cli), name)
    assert isinstance(command, click.Command)
    found = CliRunner().invoke(root.cli, [name, "--help"])
    assert found.exit_code == 0 and found.output.startswith("Usage: ") and len(found.output.splitlines()) > 4


def test_help_lists_them_in_their_order_and_imports_none() -> None:
    code = (
        "import sys, sentinel.cli as root\n"
        "try: root.cli(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'rich', 'sqlalchemy', 'aiohttp', 'sentinel.daemon', 'sentinel.cli.operator.fleet'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    listed = [line.split()[0] for line in found.stdout.partition("Commands:")[2].splitlines() if line.startswith("  ")]
    assert [name for name in listed if name in root.COMMANDS] == list(root.COMMANDS)


def test_version() -> None:
    assert CliRunner().invoke(root.cli, ["--version"]).output == f"sentinel, version {__version__}\n"


@pytest.mark.parametrize("name", ["explode", "", "cli", "__init__", "daemon\n"])
def test_unknown_command(name: str) -> None:
    found = CliRunner().invoke(root.cli, [name])
    assert found.exit_code == 2 and "No such command" in found.output


def run(monkeypatch: pytest.MonkeyPatch, error: BaseException | None) -> object:
    @click.command()
    def broken() -> None:
        if error is not None:
            raise error

    monkeypatch.setattr(root.LazyGroup, "get_command", lambda *_: broken)
    monkeypatch.setattr(sys, "argv", ["sentinel", "broken"])
    with pytest.raises(SystemExit) as caught:
        root.main()
    return caught.value.code


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (SentinelError("odd"), 1),
        (ProtocolError("torn"), 1),
        (UserError("wrong"), 2),
        (FileError("a.toml", "is wrong", line=3, key="x"), 2),
        (Unavailable("away"), 3),
        (Timeout("late"), 3),
        (Denied("no"), 3),
        (Refused("limit"), 4),
    ],
)
def test_errors_of_ours_are_one_line_and_their_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: SentinelError, status: int
) -> None:
    error.fix = "do this"
    assert run(monkeypatch, error) == status
    out, err = capsys.readouterr()
    assert out == "" and err == f"sentinel: {error.message}\n  do this\n"


@pytest.mark.parametrize("kind", [SentinelError, UserError, Unavailable, Timeout, Denied, Refused, ProtocolError])
def test_error_without_a_fix_says_the_usual_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kind: type[SentinelError]
) -> None:
    run(monkeypatch, kind("away"))
    assert kind.usual_fix and capsys.readouterr().err == f"sentinel: away\n  {kind.usual_fix}\n"


def test_words_of_an_error_cannot_drive_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They may come from the daemon, and hold what a user wrote."""
    run(monkeypatch, Refused("held by \x1b[2J\x07somebody", fix="ask\u202e them"))
    assert all(ch == "\n" or ch.isprintable() for ch in capsys.readouterr().err)


def test_other_errors_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ZeroDivisionError):
        run(monkeypatch, ZeroDivisionError("a bug"))


def test_success_is_status_0(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, None) == 0


# --- the two services, and config ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "target"), [("daemon", "sentinel.daemon.run.main"), ("agent", "sentinel.agent.agent.run")]
)
def test_services_start_with_their_settings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, target: str
) -> None:
    started: list[object] = []
    monkeypatch.setattr(target, lambda settings, *_: started.append(settings))
    config = tmp_path / "here.toml"
    config.write_text('cluster = "lab"\n' if name == "daemon" else "")
    found = CliRunner().invoke(root.cli, [name, "--config", str(config)])
    assert found.exit_code == 0, found.exception
    assert [type(settings).__name__ for settings in started] == ["Settings" if name == "daemon" else "AgentSettings"]


@pytest.mark.parametrize("name", ["daemon", "agent"])
@pytest.mark.parametrize("text", [None, "x = [", "surprise = 1\n"])
def test_services_do_not_start_with_wrong_settings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, text: str | None
) -> None:
    config = tmp_path / "here.toml"
    if text is not None:
        config.write_text(text)
    error = CliRunner().invoke(root.cli, [name, "--config", str(config)]).exception
    assert isinstance(error, FileError) and error.fix and str(config) in error.message


def test_config_check_covers_signals_and_certificates(tmp_path: Path) -> None:
    config, site = tmp_path / "here.toml", tmp_path / "site.toml"
    config.write_text(f'[prometheus]\nrules = "{site}"\n')
    site.write_text('[[signal]]\nid = "nas"\nwords = "x"\nquery = "up"\nbelow = 1\ncause = "pcie"\n')
    check = ["config", "check", "--config", str(config)]
    assert "15 signals, and no Prometheus to ask" in CliRunner().invoke(root.cli, check).output
    config.write_text(f'[prometheus]\nurl = "http://localhost:9090"\nrules = "{site}"\n')
    assert CliRunner().invoke(root.cli, check).output.splitlines()[0] == f"{config}: good; 15 signals"
    site.write_text("[[signal]]\nid = 'nas'\nwords = 'x'\nquery = 'up'\nbelow = 1\ncause = 'pcie'\nfor = 5\n")
    error = CliRunner().invoke(root.cli, check).exception
    assert (
        isinstance(error, FileError) and str(error).startswith(f"{site}:7: for: unknown key") and "for_s" in error.fix
    )
    config.write_text('[prometheus]\nurl = "https://localhost:9090"\nca_file = "/nowhere.pem"\n')
    assert "/nowhere.pem" in str(CliRunner().invoke(root.cli, check).exception)


@pytest.mark.parametrize("words", [(), ("--agent",)])
def test_config_check(tmp_path: Path, words: tuple[str, ...]) -> None:
    config = tmp_path / "here.toml"
    config.write_text("")
    good = CliRunner().invoke(root.cli, ["config", "check", "--config", str(config), *words]).output
    assert good.splitlines()[0] == f"{config}: good"
    config.write_text("\nlimit = 1\n")
    error = CliRunner().invoke(root.cli, ["config", "check", "--config", str(config), *words]).exception
    assert isinstance(error, FileError) and error.line == 2 and error.key == "limit"


def test_config_of_the_one_is_not_the_others(tmp_path: Path) -> None:
    config = tmp_path / "here.toml"
    config.write_text("[limits]\ndrain_count = 3\n")
    assert CliRunner().invoke(root.cli, ["config", "check", "--config", str(config)]).exit_code == 0
    assert CliRunner().invoke(root.cli, ["config", "check", "--config", str(config), "--agent"]).exit_code != 0


@pytest.mark.parametrize(("words", "key"), [((), "limits.drain_count"), (("--agent",), "node")])
@pytest.mark.parametrize("columns", ["80", "140"])
def test_config_show(words: tuple[str, ...], key: str, columns: str) -> None:
    from in_memory.cli_asked import objects

    rows = objects(CliRunner().invoke(root.cli, ["config", "show", "--json", *words]).output)
    assert all(set(row) == {"key", "default", "unit", "reason"} and row["reason"] for row in rows)
    assert key in {row["key"] for row in rows}
    shown = CliRunner().invoke(root.cli, ["config", "show", *words], env={"COLUMNS": columns})
    comments = [line for line in shown.output.splitlines() if line.startswith("#")]
    assert shown.exit_code == 0 and max(map(len, comments)) <= int(columns)


@pytest.mark.parametrize(("words", "kind"), [((), Settings), (("--agent",), AgentSettings)])
def test_what_config_show_prints_is_a_file_of_defaults(
    words: tuple[str, ...], kind: type[object], tmp_path: Path
) -> None:
    config = tmp_path / "all.toml"
    config.write_text(CliRunner().invoke(root.cli, ["config", "show", *words]).output)
    assert load(config, kind) == kind()


def test_output_that_cannot_be_written_is_one_line() -> None:
    with open("/dev/full", "w") as full:
        found = subprocess.run(
            [sys.executable, "-m", "sentinel", "manual", "commands"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert found.returncode == 3 and "Traceback" not in found.stderr
    assert found.stderr.startswith("sentinel: the output cannot be written: No space left on device\n")


@pytest.mark.parametrize(
    "words",
    [
        ["manual", "commands"],
        ["--help"],
        ["config", "show", "--json"],
        ["jobs", "--help"],
        ["plan", "interval", "--mtbf", "3.09h", "--save", "90s"],
        ["plan", "spares", "--nodes", "128", "--losses", "4"],
        ["simulate", "--nodes", "8", "--days", "1"],
    ],
)
def test_a_reader_that_is_gone_ends_it_as_it_ends_other_tools(words: list[str]) -> None:
    """``... | head -1``: no status of ours, and no word on stderr."""
    reading, writing = os.pipe()
    os.close(reading)
    found = subprocess.run(
        [sys.executable, "-m", "sentinel", *words], stdout=writing, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writing)
    assert (found.returncode, found.stderr) == (root.PIPE_CLOSED, "")


def test_an_interrupted_command_is_not_one_that_found_something(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of replay and explore 1 says that something differs, or that a promise is broken."""
    assert run(monkeypatch, KeyboardInterrupt()) == root.INTERRUPTED == 128 + signal.SIGINT
    assert capsys.readouterr().err.strip() == "Interrupted."


def test_another_pipe_that_breaks_is_no_reader_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("stdout", "stderr"):  # which click wraps for good
        monkeypatch.setattr(sys, name, getattr(sys, name))
    assert run(monkeypatch, BrokenPipeError(errno.EPIPE, "a child is gone")) != root.PIPE_CLOSED


@pytest.mark.parametrize(
    ("zone", "shown"), [("UTC+99", "UTC"), ("AAA+1BBB+47", "UTC"), ("<+0545>-5:45", "+0545"), ("UTC+12", "UTC")]
)
def test_zone_that_is_a_day_or_more_off_ends_no_command(zone: str, shown: str) -> None:
    code = (
        "from sentinel import cli\n"
        "cli.cli = lambda prog_name: None\n"
        "cli.main()\n"
        "from sentinel.cli.operator.output import clock\n"
        "print(clock('2026-07-01T12:00:00+00:00'))\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env={**os.environ, "TZ": zone}
    )
    assert found.returncode == 0 and found.stdout.strip().endswith(shown), found.stderr
