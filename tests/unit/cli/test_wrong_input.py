"""What every command makes of wrong input: one exit status for what is not there, a fix, and lines that fit the terminal."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from path_arguments import MISSING

from sentinel import cli as root
from sentinel.cli.offline.manual import commands

NOWHERE = "nowhere"
WRITTEN = {  # they are made, or are the daemon's settings, which every command asks alike
    "out", "plot", "target", "config", "root", "export",
}  # fmt: skip


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "log").write_text(
        "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\nError: nobody knows this\n"
    )
    (tmp_path / "rules").mkdir()

    def call(*words: str, columns: int = 0) -> tuple[int, str, str]:
        monkeypatch.delenv("COLUMNS", raising=False)
        if columns:
            monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setattr(sys, "argv", ["sentinel", *words])
        status: object = 0
        try:
            root.main()
        except SystemExit as ended:
            status = ended.code or 0
        assert isinstance(status, int)
        return status, *capsys.readouterr()

    return call


@pytest.mark.parametrize("words", MISSING)
def test_what_is_not_there_is_status_2_and_named(run, words: str) -> None:
    status, out, err = run(*words.split())
    assert (status, "Traceback" in err) == (2, False)
    said = out if words.startswith("classify nowhere") else err
    assert NOWHERE in said or "no attempt of a job" in said
    assert len(said.splitlines()) >= 2, "an error without a fix"


@pytest.fixture
def closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A path below a folder into which one may not look; also for root, who may look into all."""
    inside = str(tmp_path / "closed" / "nowhere")

    def guarded(name: str) -> None:
        inner = getattr(os, name)

        def call(path: Any, *given: Any, **named: Any) -> Any:
            if isinstance(path, str | bytes | os.PathLike) and os.fsdecode(path).startswith(inside):
                raise PermissionError(errno.EACCES, "Permission denied", os.fspath(path))
            return inner(path, *given, **named)

        monkeypatch.setattr(os, name, call)

    for name in ("stat", "lstat", "open", "scandir", "listdir"):
        guarded(name)
    return Path(inside)


LOOKED_INTO = [words for words in MISSING if not words.startswith(("install", "uninstall"))]


@pytest.mark.parametrize("words", LOOKED_INTO)
def test_what_may_not_be_looked_at_is_status_2_and_not_called_missing(run, words: str, closed: Path) -> None:
    status, out, err = run(*words.replace(NOWHERE, str(closed)).split())
    said = out + err
    assert (status, "Traceback" in said) == (2, False), said
    if " store" not in words and " --logs" not in words:  # of which another argument is wrong as well
        assert str(closed) in said and "Permission denied" in said and "is not there" not in said, said


@pytest.mark.parametrize("words", LOOKED_INTO)
def test_a_name_that_no_file_can_have_is_status_2(run, words: str) -> None:
    status, out, err = run(*words.replace(NOWHERE, "x" * 300).split())
    assert (status, "Traceback" in out + err) == (2, False), out + err


def test_of_several_logs_those_that_may_be_read_are_judged(run, closed: Path) -> None:
    status, out, _ = run("classify", str(closed), "log")
    assert status == 2 and "Permission denied" in out and "gpu_fallen_off_bus" in out


def test_the_default_store_that_only_the_daemon_s_account_may_read(run, closed: Path, tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(f'cluster = "c"\n[daemon]\nstate = "{closed}"\n')
    status, _, err = run("bundle", "last", "--config", "s.toml")
    assert status == 2 and str(closed) in err and "account" in err


def test_every_command_that_takes_a_path_is_in_the_table() -> None:
    for name, command in commands():
        takes = [p for p in command.params if isinstance(p.type, click.Path) and p.name not in WRITTEN]
        line = name.removeprefix("sentinel ")
        assert not takes or command.hidden or any(row.startswith(f"{line} ") for row in MISSING), name


@pytest.mark.parametrize("command", ["classify log", "rules list", "rules test", "rules explain x"])
def test_a_folder_without_rules_is_said(run, command: str) -> None:
    status, _, err = run(*command.split(), "--rules", "rules")
    assert status == 2 and "holds no rules" in err and "*.toml" in err


@pytest.mark.parametrize("nodes", ["n[1-", "n[1-x]", "n]1[", "n[3-1]", "n[1-99999999999]"])
@pytest.mark.parametrize("option", ["--nodes", "--lost", "--next"])
def test_a_node_list_that_is_none_is_refused(run, option: str, nodes: str) -> None:
    status, _, err = run("checkpoints", "find", "--local", "./%N", "--nodes", "n1", option, nodes)
    assert status == 2 and "list of nodes" in err


@pytest.mark.parametrize("command", ["manifest log", "drain log --to there", "replicate log --to there"])
def test_what_is_no_checkpoint_is_neither_copied_nor_recorded(run, command: str, tmp_path: Path) -> None:
    status, _, err = run("checkpoints", *command.split())
    assert status == 4 and "is no checkpoint that is known here" in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "rules"]


@pytest.mark.parametrize("command", ["replay", "bundle --store"])
@pytest.mark.parametrize("content", [b"SQLite format 3\0", b"SQLite format 3\0" + b"\0" * 4096])
def test_a_broken_store_is_told_without_its_statements(run, command: str, content: bytes, tmp_path: Path) -> None:
    store = tmp_path / "sentinel.db"
    store.write_bytes(content)
    status, _, err = run(*command.split(), str(store))
    assert status in (2, 3) and str(store) in err
    assert not any(word in err for word in ("SELECT", "sqlalche", "sqlite3."))


@pytest.mark.parametrize("when", ["2026-03-01", "03:00", "7d"])
@pytest.mark.parametrize("command", ["bundle --store store", "replay store", "import --from log"])
def test_since_is_read_alike(run, command: str, when: str) -> None:
    _, _, err = run(*command.split(), "--since", when)
    assert "is no time" not in err and "--since" not in err.partition("\n")[0]


def too_long(text: str, columns: int) -> list[str]:
    """Lines that could have been broken: one word alone may be a path."""
    return [line for line in text.splitlines() if len(line) > columns and len(line.split()) > 1]


@pytest.mark.parametrize("columns", [40, 80])
@pytest.mark.parametrize("name", [name for name, _ in commands()])
def test_help_fits(run, name: str, columns: int) -> None:
    status, out, _ = run(*name.split()[1:], "--help", columns=columns)
    left = [line for line in too_long(out, columns) if '"' not in line]  # a quoted argument stays whole
    assert (status, left) == (0, [])


@pytest.mark.parametrize("columns", [40, 80])
@pytest.mark.parametrize(
    "words",
    [
        "classify log",
        "classify nowhere",
        "checkpoints validate log rules",
        "checkpoints find --global .",
        "checkpoints inventory --global .",
        "rules list --cause network_fabric",
        "rules explain NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.",
        "explore --histories 2",
        "explore --story list",
        "explore --seed 7 --replay people-17",
        "simulate --nodes 8 --days 1",
        "plan interval --mtbf 3h --save 30s",
        "plan spares --nodes 100",
        "replay nowhere",
    ],
)
def test_output_and_errors_fit(run, words: str, columns: int) -> None:
    _, out, err = run(*words.split(), columns=columns)
    assert too_long(out, columns) + too_long(err, columns) == []


def test_a_pipe_gets_whole_lines(run, tmp_path: Path) -> None:
    deep = tmp_path / "/".join(["a_folder_with_a_rather_long_name"] * 3)
    deep.mkdir(parents=True)
    for words in ("checkpoints validate", "classify", "replay"):
        _, out, err = run(*words.split(), str(deep))
        assert any(str(deep) in line for line in (out + err).splitlines()), words
    _, out, _ = run("rules", "list", "--cause", "network_fabric")
    assert max(map(len, out.splitlines())) > 80
