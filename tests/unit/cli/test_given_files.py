"""Files that people name may be pipes, devices, sockets or endless: each command refuses them soon, with a sentence."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from path_arguments import MISSING

from sentinel import cli as root
from sentinel import given_files
from sentinel.adapters.notify.channels import secret
from sentinel.adapters.notify.wording import template_of
from sentinel.adapters.tls import ServerCertificate, client_context
from sentinel.cli.install.conf_lines import read
from sentinel.cli.recordings.import_jobs import sacct_text
from sentinel.config.settings import Settings, load
from sentinel.daemon.web.access import read_tokens
from sentinel.errors import FileError

PATIENCE_S = 150  # whoever waits longer waits for ever: on a busy machine it takes half a minute to compile the rules
MEMORY = 1 << 20
# Not those that take folders, nor the one that asks for a store first.
TAKES_FILES = [w for w in MISSING if not any(part in w for part in ("checkpoints", "--logs", "replay --rules"))]


@pytest.fixture(autouse=True)
def limits(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def late(*_: object) -> None:
        raise AssertionError("it waits, or reads, without end")

    monkeypatch.setattr(given_files, "SILENT_S", 0.05)
    monkeypatch.setattr("sentinel.adapters.slurm.accounting.DEADLINE_S", 0.05)
    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(PATIENCE_S)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def places(tmp_path: Path) -> Iterator[dict[str, Path]]:
    """What may lie where a file is expected."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "device").symlink_to("/dev/zero")
    with (tmp_path / "large").open("wb") as file:
        file.truncate(3 << 30)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        yield {name: tmp_path / name for name in ("pipe", "device", "large", "socket")}


@pytest.mark.parametrize("kind", ["pipe", "device", "socket"])
@pytest.mark.parametrize("words", TAKES_FILES)
def test_a_command_refuses_what_is_no_file(
    words: str, kind: str, places: dict[str, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(places[kind].parent)
    (places[kind].parent / "log").write_text("nothing\n")
    monkeypatch.setattr(sys, "argv", ["sentinel", *words.replace("nowhere", str(places[kind])).split()])
    with pytest.raises(SystemExit) as ended:
        root.main()
    said = capsys.readouterr()
    assert ended.value.code not in (0, None) and "Traceback" not in said.err
    assert kind in said.err + said.out, "it names the file"


READERS: dict[str, Callable[[Path], object]] = {
    "settings": lambda path: load(path, Settings),
    "secret": lambda path: secret(path, "key"),
    "template": template_of,
    "tokens": read_tokens,
    "authority": lambda path: client_context(str(path)),
    "certificate": lambda path: ServerCertificate(str(path), str(path)),
    "accounting": lambda path: sacct_text([path]),
    "slurm.conf": lambda path: read(f"Include {path}\n", path.parent / "slurm.conf", Path("/")),
}


@pytest.mark.parametrize("kind", ["pipe", "device", "socket", "large"])
@pytest.mark.parametrize("reader", READERS)
def test_what_the_daemon_reads_at_its_start_is_refused(reader: str, kind: str, places: dict[str, Path]) -> None:
    if kind != "device":
        places[kind].chmod(0o600)
    with pytest.raises(FileError):
        READERS[reader](places[kind])


@pytest.mark.parametrize("command", ["replay", "bundle --store"])
def test_a_pipe_in_the_place_of_a_store_is_no_store(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "sentinel.db")
    monkeypatch.setattr(sys, "argv", ["sentinel", *command.split(), str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        root.main()
    assert ended.value.code == 2 and "is a pipe" in capsys.readouterr().err


def test_a_pipe_that_somebody_writes_is_read_whole_and_within_bounds(places: dict[str, Path]) -> None:
    def wrote(content: bytes) -> threading.Thread:
        def write() -> None:
            with open(places["pipe"], "wb") as file:
                try:
                    file.write(content)
                    file.flush()
                except BrokenPipeError:
                    pass  # the reader had enough

        made = threading.Thread(target=write, daemon=True)
        made.start()
        return made

    writer = wrote(b'cluster = "a"\r\n' + b"# more\n" * 20_000)
    assert load(places["pipe"], Settings).cluster == "a"
    writer.join(PATIENCE_S)
    writer = wrote(b"x" * (2 * MEMORY))
    with given_files.opened(places["pipe"]) as file, pytest.raises(FileError, match="larger than 1 MiB"):
        file.whole(MEMORY, PATIENCE_S)
    writer.join(PATIENCE_S)
