"""Bounded, seeded fuzzing of what a node reads: spool files, kernel lines, job logs. Nothing of it may raise."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from shipped import shipped_signatures

from sentinel.adapters.host.kmsg import Record
from sentinel.adapters.host.logfile import Block
from sentinel.adapters.spool import Spool
from sentinel.adapters.spool_files import Value
from sentinel.agent.collectors.kernel_log import rules_reader
from sentinel.agent.probes.joblog import Follower
from sentinel.evidence.logs.reader import Signatures
from sentinel.model.records import Source, Where

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
ANY = settings(max_examples=80, suppress_health_check=list(HealthCheck))
PIECES = st.sampled_from(
    [
        b"NVRM: Xid (PCI:0000:1c:00): ",
        b"79, ",
        b"pid=",
        b"name=",
        b"GPU has fallen off the bus",
        b"kernel BUG at ",
        b"hard LOCKUP",
        b"Out of memory: Killed process ",
        b"[rank7]: ",
        b"Traceback (most recent call last):\n",
        b'  File "x", line ',
        b"torch.OutOfMemoryError: CUDA out of memory. ",
        b"NCCL WARN ",
        b"step 10 loss ",
        b"nan",
        b"1e9999",
        b"iteration ",
        b"/",
        b"loss: ",
        b"lr: ",
        b"\x1b[31m",
        b"\r",
        b"\0",
        b"\xff\xfe",
        b"\xed\xa0\x80",
        b"9" * 400,
        b"A" * 3000,
        b"\n",
        b" ",
        b"{",
        b"}",
        b"2026-03-01T12:00:00Z ",
        b"Mar  1 12:00:00 n1 kernel: ",
        b"slurmstepd: error: ",
        b"srun: error: n2: task 3: ",
    ]
)
TEXT = st.lists(PIECES | st.binary(max_size=30), max_size=30).map(b"".join)


@pytest.fixture(scope="module")
def signatures() -> Signatures:
    return shipped_signatures()


@ANY
@given(lines=st.lists(TEXT, max_size=8), facility=st.integers(-1, 200), since=st.floats(0, 1e12))
def test_any_kernel_lines(signatures: Signatures, lines: list[bytes], facility: int, since: float) -> None:
    records = [kernel_record(at, line, facility, since) for at, line in enumerate(lines)]
    found = rules_reader("n1", "boot", signatures)(records, NOW) if records else []
    assert all(item.where.node == "n1" and item.source is Source.KERNEL for item in found)


def kernel_record(number: int, line: bytes, facility: int, since: float) -> Record:
    made: dict[str, Any] = {
        "sequence": number, "text": line.decode("utf-8", "surrogateescape"), "since_boot_s": since, "facility": facility,
        "at_s": 1.8e9, "level": 4, "priority": 4,
    }  # fmt: skip
    return Record(**{name: value for name, value in made.items() if name in Record.__annotations__})


@ANY
@given(blocks=st.lists(TEXT, max_size=6))
@example(blocks=[b"\n" * 5000, b"step 1 loss nan\n" * 2000])
def test_any_job_log(signatures: Signatures, blocks: list[bytes]) -> None:
    follower = Follower(signatures, Where(node="n1", job=5, attempt=0), lines_per_s=20, burst=50)
    line, found = 1, []
    for at, block in enumerate(blocks):
        found += follower.read(Block(block, line, False), NOW, float(at))
        line += block.count(b"\n")
        found += follower.due(NOW, float(at) + 0.5)
    found += follower.finish(NOW, 99.0)
    assert all(item.source is Source.JOB_LOG and len(item.text) < 100_000 for item in found)
    assert len(found) < 1000, "lines are limited"


@ANY
@given(data=st.data())
def test_any_spool_files(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("spool")
    try:
        first = Spool(folder, segment_bytes=300, sync_s=-1.0)
        for number in range(12):
            first.append({"number": number, "text": "x" * 40}, Value(number % 3))
        first.close()
        files = sorted(folder.iterdir())
        for _ in range(data.draw(st.integers(1, 4))):
            path = data.draw(st.sampled_from(files))
            if not path.exists():
                continue
            content = bytearray(path.read_bytes())
            place = data.draw(st.integers(0, len(content)))
            content[place : place + data.draw(st.integers(0, 40))] = data.draw(st.binary(max_size=40))
            path.write_bytes(content)
        after = Spool(folder, segment_bytes=300, sync_s=-1.0)
        new = after.append("new", Value.HIGH)
        turns = 0
        while after.pending and turns < 50:
            items = after.batch(5)
            turns += 1
            if items:
                after.acknowledge(items[-1].number)
        assert after.pending == 0 and after.acknowledged >= new
        after.close()
    finally:
        shutil.rmtree(folder)
