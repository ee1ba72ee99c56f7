"""What a user may make of a checkpoint's files takes no more memory than the agent grants, and no other check with it."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from saves.torch_bytes import dumps, torch_zip

from sentinel.agent.process.probe_programs import probe_environment
from sentinel.checkpoints import reading
from sentinel.checkpoints.formats import torch_file
from sentinel.checkpoints.parsing import zips
from sentinel.checkpoints.validate import validate

ROOT = Path(__file__).parents[3]
STEP = {"step": 10}


def ranks(make, count=3, value=STEP, payloads=()):
    path = make.root / "run" / "step-10"
    for rank in range(count):
        make.write(path / f"model_rank{rank}.pt", make.torch_file(value, payloads))
    return path


def linked(make, count=3, payloads=()):
    path = ranks(make, 1, payloads=payloads)
    for rank in range(1, count):
        (path / f"model_rank{rank}.pt").hardlink_to(path / "model_rank0.pt")
    return path


def test_an_archive_of_too_many_records_is_not_known_before_its_directory_is_read(make, monkeypatch):
    monkeypatch.setattr(zips, "MOST_RECORDS", 3)
    central = []
    monkeypatch.setattr(zips, "_central", lambda *_, **__: central.append(1))
    answer = validate(ranks(make), "structural", now_s=make.now_s)
    assert (answer.valid, answer.reason) == (None, "model_rank0.pt: 4 records, more than this reader takes")
    assert not central


@pytest.mark.parametrize("files", ["torch", "numpy"])
def test_a_checkpoint_of_too_many_records_is_not_known(make, monkeypatch, files):
    monkeypatch.setattr(reading, "MOST_RECORDS", 6)
    if files == "torch":
        path = ranks(make)
    else:
        path = make.root / "run" / "step-10"
        for part in range(3):
            names = [f"{part}/{index}.npy" for index in range(4)]
            make.write(path / f"part{part}.npz", torch_zip([(name, b"\x93NUMPY" + bytes(64)) for name in names]))
    answer = validate(path, "structural", now_s=make.now_s)
    assert answer.valid is None and "more than 6 records in one checkpoint" in answer.reason, answer


def test_a_file_of_several_names_is_read_once(make, monkeypatch):
    """Each name of it costs nothing on the disk, and what its archive holds is kept until the check ends."""
    opened = []
    first = torch_file.open_archive

    def counted(*arguments, **more):
        opened.append(arguments[2])
        return first(*arguments, **more)

    monkeypatch.setattr(torch_file, "open_archive", counted)
    monkeypatch.setattr(reading, "MOST_RECORDS", 6)
    answer = validate(linked(make, 50), "content", now_s=make.now_s)
    assert answer.valid is True and opened == ["model_rank0.pt"], answer


def test_a_file_of_several_names_is_read_to_its_last_byte(make):
    path = linked(make, payloads=[bytes(4096)])
    assert validate(path, "checksum", now_s=make.now_s).valid is True
    damaged = path / "model_rank0.pt"
    content = bytearray(damaged.read_bytes())
    content[content.index(bytes(4096)) + 7] = 1
    damaged.write_bytes(content)
    make.age(damaged, 3600)
    answer = validate(path, "checksum", now_s=make.now_s)
    assert answer.valid is False and "CRC-32 differs" in answer.reason, answer


def test_a_check_without_memory_is_not_known(make, monkeypatch):
    def full(*_):
        raise MemoryError

    monkeypatch.setattr(torch_file, "open_archive", full)
    answer = validate(ranks(make), "structural", now_s=make.now_s)
    assert answer.valid is None and "jobs.memory_bytes" in answer.reason


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that another user can read: pytest's own are closed."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def test_more_than_a_users_process_may_take_is_not_known_and_the_others_are_listed(shared: Path) -> None:
    """Each of the large save's pickles is below the limit of one pickle."""
    large, small = shared / "large" / "step-20", shared / "small" / "step-10"
    floats = pickle.dumps([number + 0.5 for number in range(400_000)], 2)  # 9 bytes each, and 32 when they are read
    for rank in range(8):
        large.mkdir(parents=True, exist_ok=True)
        records = [("data.pkl", floats), ("version", b"%d\n" % rank)]
        (large / f"model_rank{rank}.pt").write_bytes(torch_zip(records))
    small.mkdir(parents=True)
    (small / "model.pt").write_bytes(torch_zip([("data.pkl", dumps(STEP, 2)), ("version", b"3\n")]))
    for path in shared.rglob("*"):
        os.utime(path, (1_700_000_000, 1_700_000_000))
    uid, gid = (65534, 65534) if os.geteuid() == 0 else (os.geteuid(), os.getegid())
    roots = [{"tier": "global", "path": str(path.parent)} for path in (large, small)]
    request = {"node": "n1", "level": "structural", "roots": roots, "uid": uid, "gid": gid}
    done = subprocess.run(
        [sys.executable, "-m", "sentinel.agent.probes.inventory"], input=json.dumps(request).encode() + b"\n",
        env={**probe_environment(100 << 20), "PATH": os.environ["PATH"]}, capture_output=True, timeout=120, check=False,
    )  # fmt: skip
    said = [json.loads(line) for line in done.stdout.splitlines()]
    listings = {message["index"]: message["listing"][0] for message in said if "index" in message}
    assert (listings[0]["valid"], listings[1]["valid"]) == (None, True), (listings, done.stderr[-500:])
    assert "jobs.memory_bytes" in listings[0]["reason"]
