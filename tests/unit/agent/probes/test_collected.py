"""The answer to the daemon's order for what was collected, and bundles that go when there are too many."""

from __future__ import annotations

import errno
import json
import os
import struct
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sentinel.agent.probes import finding
from sentinel.agent.probes.collect import HALF_DONE_S, WIRE_BYTES, Bundle, Frames, fitting, prune
from sentinel.agent.probes.collected import answer


def bundle(folder: Path, name: str, *, size: int = 10, at_s: float = 1.0) -> Path:
    made = folder / name
    made.mkdir(parents=True)
    (made / "dumps.json").write_text(json.dumps([{"trace": {"rank": 3}}]))
    (made / "data").write_bytes(bytes(size))
    os.utime(made, (at_s, at_s))
    return made


def done(folder: Path, name: str, kept: bool = True) -> None:
    (folder / f"{name}.done").write_text(json.dumps({"folder": str(folder / name) if kept else None, "trouble": None}))


def test_what_was_kept(tmp_path: Path) -> None:
    made = bundle(tmp_path, "7.0")
    done(tmp_path, "7.0")
    assert answer(tmp_path, 7, 0, 0.0) == {"done": True, "dumps": [{"trace": {"rank": 3}}], "folder": str(made)}


def test_while_it_is_not_over_nothing_is_known(tmp_path: Path) -> None:
    bundle(tmp_path, "7.0")
    assert answer(tmp_path, 7, 0, 0.0)["done"] is False


def test_a_folder_of_another_job_of_this_number_is_not_told(tmp_path: Path) -> None:
    bundle(tmp_path, "7.0")
    done(tmp_path, "7.0", kept=False)
    assert answer(tmp_path, 7, 0, 0.0) == {"done": True, "dumps": [], "folder": None}


def test_a_folder_that_is_gone_is_trouble_and_not_nothing(tmp_path: Path) -> None:
    done(tmp_path, "7.0")
    with pytest.raises(FileNotFoundError):
        answer(tmp_path, 7, 0, 0.0)


def test_the_oldest_go_by_number_and_by_bytes(tmp_path: Path) -> None:
    for number in range(6):
        bundle(tmp_path, f"{number}.0", size=1000, at_s=100.0 + number)
    prune(tmp_path, 4, 1 << 20, spare="5.0")
    assert sorted(os.listdir(tmp_path)) == ["2.0", "3.0", "4.0", "5.0"]
    prune(tmp_path, 4, 2200, spare="5.0")
    assert sorted(os.listdir(tmp_path)) == ["4.0", "5.0"]
    prune(tmp_path, 1, 10, spare="4.0")
    assert sorted(os.listdir(tmp_path)) == ["4.0"], "never the one that was just made"


def test_what_was_left_half_done_goes(tmp_path: Path) -> None:
    old = time.time() - HALF_DONE_S - 10
    bundle(tmp_path, ".7.0.4711", at_s=old)
    bundle(tmp_path, ".8.0.4712", at_s=time.time())
    (tmp_path / ".7.0.gpus").touch()
    os.utime(tmp_path / ".7.0.gpus", (old, old))
    prune(tmp_path, 4, 1 << 20, spare="")
    assert os.listdir(tmp_path) == [".8.0.4712"]


def test_many_dumps_fit_into_one_answer() -> None:
    calls = [{"sequence": number, "operation": "all_reduce" * 20} for number in range(48)]
    dumps = [{"path": "x", "trace": {"rank": rank, "groups": [{"calls": list(calls)}]}} for rank in range(1000)]
    made = fitting(dumps)
    assert sum(len(json.dumps(item)) for item in made) <= WIRE_BYTES
    assert len(made) == 1000
    assert [call["sequence"] for call in made[0]["trace"]["groups"][0]["calls"]] == list(range(40, 48))
    assert len(fitting([{"path": "y" * 5000, "trace": {"rank": rank, "groups": []}} for rank in range(1000)])) < 1000


def frame(header: bytes, content: bytes = b"", says: int | None = None) -> bytes:
    return struct.pack("!IQ", len(header), len(content) if says is None else says) + header + content


@pytest.mark.parametrize(
    ("raw", "count", "trouble"),
    [
        (frame(b'{"a": 1}', b"xy") + frame(b"{}"), 2, ""),
        (b"", 0, ""),
        (frame(b"{}", b"x" * 10)[:-3], 0, "middle"),
        (frame(b"{}")[:5], 0, "middle"),
        (frame(b"{}", b"x" * 200), 0, "more than it may"),
        (frame(b"{}", b"x" * 60) + frame(b"{}", b"x" * 60), 1, "more than it may"),
        (frame(b"{}", says=1 << 60), 0, "more than it may"),
        (b"\xff" * 64, 0, "more than it may"),
        (frame(b"not json"), 0, "cannot be read"),
        (frame(b"[]"), 0, "cannot be read"),
        (frame(b"\xff\xfe"), 0, "cannot be read"),
    ],
)
def test_what_a_users_process_hands_over_is_bounded(raw: bytes, count: int, trouble: str) -> None:
    ours, theirs = os.pipe()
    os.write(theirs, raw)
    os.close(theirs)
    frames = Frames(ours, 100, time.monotonic() + 60)
    assert len(list(frames)) == count
    assert trouble in frames.trouble and bool(trouble) == bool(frames.trouble)
    os.close(ours)


def test_one_that_says_nothing_is_left(tmp_path: Path) -> None:
    ours, theirs = os.pipe()
    frames = Frames(ours, 100, time.monotonic())
    assert list(frames) == []
    assert "deadline" in frames.trouble
    os.close(ours)
    os.close(theirs)


OF_JOB = {
    "job": 7, "attempt": 0, "node": "n1", "uid": 1000, "began_s": 0.0, "ended_s": 1.0, "code": 1, "why": "failed",
    "rules": "", "bundles": 5, "bundles_bytes": 1 << 20, "user_s": 20.0, "total_bytes": 1 << 20, "log_bytes": 1 << 20,
}  # fmt: skip


def sent(folder: Path, *parts: tuple[object, bytes]) -> None:
    """A bundle of what a process of the user sends, as another process does."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        for header, content in (*parts, ({"last": True}, b"")):
            raw = json.dumps(header).encode()
            os.write(write, struct.pack("!IQ", len(raw), len(content)) + raw + content)
        os._exit(0)
    os.close(write)
    made = Bundle(folder / "bundles" / ".7.0.1", OF_JOB)
    made.user(pid, read)
    made.finish(folder / "bundles" / "7.0")


@pytest.mark.parametrize("kind", ["../../../etc/x", "../x", "a/b", "node", "", "a" * 300, None, 7, ["log"], {}])
def test_what_the_users_process_calls_a_file_is_no_path(tmp_path: Path, kind: object) -> None:
    """Root writes it, so only kinds that are known are part of a name."""
    (tmp_path / "etc").mkdir()
    sent(
        tmp_path,
        ({"kind": kind, "path": "/home/ada/job"}, b"words"),
        ({"kind": "log", "path": "/home/ada/l"}, b"end"),
    )
    kept = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert kept == {f"bundles/7.0/{name}" for name in ("about.json", "dumps.json", "log-end.txt")}
    about = json.loads((tmp_path / "bundles" / "7.0" / "about.json").read_text())
    assert any("cannot be read" in note for note in about["notes"])


SPACE = {"f_frsize": 4096, "f_blocks": 1 << 20, "f_bavail": 1 << 10, "f_files": 1000, "f_favail": 500}


@pytest.mark.parametrize(
    ("space", "full"),
    [
        ({}, False),
        ({"f_bavail": 255}, True),  # less than 1 MiB
        ({"f_favail": 0}, True),
        ({"f_files": 0, "f_favail": 0}, False),  # of a file system that does not count files
        ({"f_blocks": 0, "f_bavail": 0}, False),  # nor blocks
        (None, False),  # it does not answer
    ],
)
def test_a_log_on_a_full_file_system_is_evidence_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, space: dict[str, int] | None, full: bool
) -> None:
    """A program that can write nothing more cannot write why it failed, either."""

    def told(_: int) -> SimpleNamespace:
        if space is None:
            raise OSError(errno.EIO, "Input/output error")
        return SimpleNamespace(**{**SPACE, **space})

    log = tmp_path / "job-7.out"
    log.write_text("step 100 | loss 2.1\nTracebac")
    monkeypatch.setattr("os.fstatvfs", told)
    parts: list[tuple[dict[str, Any], bytes]] = []
    about = {"log": str(log), "log_bytes": 1000, "job": 7, "attempt": 0, "began_s": time.time()}
    finding._log(about, os.getuid(), lambda header, content: parts.append((dict(header), content)))
    assert parts[0][1] == log.read_bytes()
    said: list[dict[str, Any]] = []
    monkeypatch.setattr("sentinel.agent.probes.collect.say", said.append)
    sent(tmp_path, *parts)
    items = [item for message in said if message["type"] == "evidence" for item in message["items"]]
    assert [item["where"]["path"] for item in items if item["kind"] == "log_no_space"] == [str(log)] * full


@pytest.mark.parametrize("dump", [{}, {"dump": None}, {"dump": "x"}, {"dump": ["x"]}])
def test_a_dump_that_is_none_costs_no_other_file(tmp_path: Path, dump: dict[str, object]) -> None:
    sent(tmp_path, ({"kind": "dump", "path": "/d", **dump}, b""), ({"kind": "log", "path": "/home/ada/l"}, b"end"))
    assert (tmp_path / "bundles" / "7.0" / "log-end.txt").read_bytes() == b"end"


@pytest.mark.parametrize("trace", ["x", {"groups": [7]}, {"groups": [{}]}, {"groups": 7}, {"groups": [{"calls": 7}]}])
def test_a_dump_of_another_form_is_left_out_where_they_are_shortened(trace: object) -> None:
    whole = {"trace": {"groups": [{"calls": ["x" * WIRE_BYTES]}]}}
    short = {"trace": {"groups": [{"calls": ["x"]}]}}
    assert fitting([{"trace": trace}, short, whole]) == [short]


def test_what_is_said_beside_files_is_bounded_in_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sentinel.agent.probes.collect.HEADERS_BYTES", 1000)
    sent(tmp_path, *(({"note": "x" * 100}, b"") for _ in range(100)))
    about = json.loads((tmp_path / "bundles" / "7.0" / "about.json").read_text())
    assert len(about["notes"]) < 12 and "more than it may" in about["notes"][-1]
