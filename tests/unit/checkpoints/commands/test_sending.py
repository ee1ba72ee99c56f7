"""Copying to a peer over two streams: whole, resumable, verified, never overwriting, and safe from what comes."""

from __future__ import annotations

import io
import json
import os
import sys
import threading

import pytest
from click.testing import CliRunner

from sentinel.checkpoints import transfer
from sentinel.checkpoints.transfer import receive, send
from sentinel.cli.checkpoints.commands import checkpoints
from sentinel.errors import ProtocolError, Refused, SentinelError, Unavailable, UserError


class Line:
    """A pipe there and a pipe back, with the receiver in a thread; the way there may break after so many bytes."""

    def __init__(self, root, break_after=None, change=None, on_sent=None):
        self.on_sent = on_sent
        there, self.to = (os.fdopen(fd, mode) for fd, mode in zip(os.pipe(), ("rb", "wb"), strict=True))
        self.back, back = (os.fdopen(fd, mode) for fd, mode in zip(os.pipe(), ("rb", "wb"), strict=True))
        self.error = None
        if break_after is not None or change is not None:
            self.to = Bad(self.to, break_after, change)

        def run():
            try:
                receive(root, there, back)
            except SentinelError as error:
                self.error = error
            finally:
                there.close()
                back.close()

        self.thread = threading.Thread(target=run)
        self.thread.start()

    def send(self, path):
        try:
            return send(path, self.to, self.back, progress=self.on_sent)
        finally:
            self.to.close()
            self.thread.join()
            self.back.close()


class Bad:
    def __init__(self, stream, break_after, change):
        self.stream, self.left, self.change = stream, break_after, change

    def write(self, data):
        if self.left is not None:
            data = data[: self.left]
            self.left -= len(data)
        if self.change and len(data) > 500 and not data.startswith(b"{"):
            data, self.change = b"?" + data[1:], None
        self.stream.write(data)
        if self.left == 0:
            self.stream.flush()
            raise BrokenPipeError

    def flush(self):
        self.stream.flush()

    def close(self):
        self.stream.close()


def same(a, b):
    files = sorted(p.relative_to(a) for p in a.rglob("*") if p.is_file())
    assert files == sorted(p.relative_to(b) for p in b.rglob("*") if p.is_file())
    for name in files:
        assert (a / name).read_bytes() == (b / name).read_bytes()
        assert (a / name).stat().st_mtime_ns == (b / name).stat().st_mtime_ns


def test_a_whole_checkpoint(make):
    path = make.dcp("run/step-5", step=5)
    done = Line(make.root / "peer").send(path)
    assert (done.complete, done.files) == (True, 5)
    same(path, make.root / "peer/step-5")
    again = Line(make.root / "peer").send(path)
    assert (again.files, again.already, again.bytes) == (0, 5, 0)


def test_broken_off_it_goes_on_where_it_stopped(make):
    path = make.dcp("run/step-5", step=5, rows=64)
    size = sum(file.stat().st_size for file in path.iterdir())
    with pytest.raises(Unavailable):
        Line(make.root / "peer", break_after=size // 2).send(path)
    left = [p.name for p in (make.root / "peer/step-5").iterdir()]
    assert ".metadata" not in left and any(name.endswith(".part") for name in left)
    done = Line(make.root / "peer").send(path)
    assert done.complete and done.already >= 1
    same(path, make.root / "peer/step-5")


def test_in_the_middle_of_a_large_file_too(make, monkeypatch):

    monkeypatch.setattr(transfer, "PIECE_BYTES", 1024)
    path = make.root / "run/step-5"
    make.write(path / "__0_0.distcp", os.urandom(50_000))
    with pytest.raises(Unavailable):
        Line(make.root / "peer", break_after=20_000).send(path)
    assert (make.root / "peer/step-5/.__0_0.distcp.part").stat().st_size > 10_000
    done = Line(make.root / "peer").send(path)
    assert done.bytes < 40_000
    same(path, make.root / "peer/step-5")


def test_what_was_changed_on_the_way_gets_no_name(make):
    path = make.dcp("run/step-5", step=5, rows=64)
    with pytest.raises(Unavailable, match="differs"):
        Line(make.root / "peer", change=True).send(path)
    assert not (make.root / "peer/step-5/.metadata").exists()
    assert Line(make.root / "peer").send(path).complete
    same(path, make.root / "peer/step-5")


def test_what_the_trainer_writes_anew_meanwhile_gets_no_name(make, monkeypatch):
    """At the same path, as long as before: half of the one save and half of the other."""
    monkeypatch.setattr(transfer, "PIECE_BYTES", 1024)
    path = make.dcp("run/step-5", step=5, rows=64)

    def trainer(count):
        with (path / "__0_0.distcp").open("r+b") as file:
            file.write(b"?" * (path / "__0_0.distcp").stat().st_size)

    line = Line(make.root / "peer", on_sent=trainer)
    with pytest.raises(Unavailable, match="changed"):
        line.send(path)
    assert isinstance(line.error, Unavailable)
    assert sorted(file.name for file in (make.root / "peer/step-5").iterdir()) == []
    make.age(path / "__0_0.distcp", 3600)
    assert Line(make.root / "peer").send(path).complete
    same(path, make.root / "peer/step-5")


def test_what_is_there_already_is_read_before_it_counts_as_a_copy(make):
    """The storage of the peer lost a page: size and times stay."""
    path = make.dcp("run/step-5", step=5)
    assert Line(make.root / "peer").send(path).complete
    there = make.root / "peer/step-5/__1_0.distcp"
    status = there.stat()
    with there.open("r+b") as file:
        file.write(bytes(64))
    os.utime(there, ns=(status.st_atime_ns, status.st_mtime_ns))
    line = Line(make.root / "peer")
    with pytest.raises(Refused, match=r"__1_0\.distcp holds other bytes"):
        line.send(path)
    assert isinstance(line.error, Refused)


def test_nothing_is_overwritten(make):
    path = make.dcp("run/step-5", step=5)
    make.write(make.root / "peer/step-5/__0_0.distcp", b"another")
    line = Line(make.root / "peer")
    with pytest.raises(Refused, match="not overwritten"):
        line.send(path)
    assert (make.root / "peer/step-5/__0_0.distcp").read_bytes() == b"another"
    assert isinstance(line.error, Refused)


@pytest.mark.parametrize(
    "head",
    [
        {"name": "../up", "files": []},
        {"name": "/etc", "files": []},
        {"name": "step-5", "files": [["../../x", 1, 1]]},
        {"name": "step-5", "files": [["a//b", 1, 1]]},
        {"name": "step-5", "files": [["a", -1, 1]]},
        {"name": "step-5", "files": [["a", "1", 1]]},
        {"name": "step-5", "files": "a"},
        {"name": 3, "files": []},
    ],
)
def test_names_that_lead_elsewhere(tmp_path, head):
    with pytest.raises(ProtocolError):
        receive(tmp_path / "peer", io.BytesIO(json.dumps(head).encode() + b"\n"), io.BytesIO())
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_was_not_announced(tmp_path):
    lines = [{"name": "s", "files": [["a", 1, 1]]}, {"name": "b", "offset": 0}]
    words = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    with pytest.raises(ProtocolError, match="announced"):
        receive(tmp_path, io.BytesIO(words), io.BytesIO())


@pytest.mark.parametrize("words", [b"", b"{", b"[]\n", b"hello\n"])
def test_a_stream_of_something_else(tmp_path, words):
    with pytest.raises((ProtocolError, Unavailable)):
        receive(tmp_path, io.BytesIO(words), io.BytesIO())


def test_through_srun(make, monkeypatch, tmp_path):
    """An srun that runs the task here: options, then the command as it stands."""
    seen = tmp_path / "words"
    srun = tmp_path / "bin/srun"
    srun.parent.mkdir()
    srun.write_text(f'#!/bin/sh\necho "$@" > {seen}\nwhile [ "${{1#--}}" != "$1" ]; do shift; done\nexec "$@"\n')
    srun.chmod(0o755)
    monkeypatch.setenv("PATH", f"{srun.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    path = make.dcp("run/step-5", step=5)
    peer = make.root / "peer"
    words = [
        "replicate",
        path,
        "--slurm",
        "--to",
        peer,
        "--nodes",
        "n[1-2]",
        "--host",
        "n1",
        "--srun=--jobid=7",
        "--json",
    ]
    done = CliRunner().invoke(checkpoints, [str(word) for word in words], standalone_mode=False)
    assert done.exception is None, done.exception
    assert json.loads(done.stdout)["complete"] is True
    assert "--nodelist=n2" in seen.read_text() and "--jobid=7" in seen.read_text()
    same(path, peer / "step-5")


def test_a_disk_that_is_not_mounted_on_the_peer_is_told_to_the_sender(make):
    path = make.dcp("run/step-5", step=5)
    line = Line(make.root / "nvme/run")
    with pytest.raises(UserError, match="is its file system mounted"):
        line.send(path)
    assert isinstance(line.error, UserError) and not (make.root / "nvme").exists()


def test_a_folder_that_both_nodes_see_holds_no_second_copy(make):
    path = make.dcp("run/step-10", step=10)
    (make.root / "peer").symlink_to("run")
    line = Line(make.root / "peer")
    with pytest.raises(UserError, match="no second copy"):
        line.send(path)
    assert isinstance(line.error, UserError)


def test_files_of_ranks_are_sent_together(make):
    for rank in range(3):
        make.write(make.root / f"mine/ep0-ba10-rank{rank}.pt", make.torch_file(*make.state(10)))
    path = make.root / "mine/ep0-ba10-rank0.pt"
    (make.root / "peer").mkdir()
    for files in (3, 0):
        done = Line(make.root / "peer").send(path)
        assert (done.files, done.already, done.complete) == (files, 3 - files, True)
    assert {one.name: one.read_bytes() for one in (make.root / "peer").iterdir()} == {
        one.name: one.read_bytes() for one in path.parent.iterdir()
    }
