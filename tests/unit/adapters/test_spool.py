"""The spool: order, bounds, torn tails, restarts."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sentinel.adapters.spool import RECENT_ITEMS, Spool
from sentinel.adapters.spool_files import Item, Value


def contents(spool: Spool, size: int = 1000) -> list[object]:
    return [item.content for item in spool.batch(size)]


def drained(spool: Spool) -> list[object]:
    found: list[object] = []
    while items := spool.batch(7):
        found.extend(item.content for item in items)
        spool.acknowledge(items[-1].number)
    return found


def test_gives_back_in_order_what_was_put_in(tmp_path: Path) -> None:
    spool = Spool(tmp_path, segment_bytes=200)
    for number in range(50):
        spool.append({"n": number})
    assert spool.pending == 50
    assert drained(spool) == [{"n": number} for number in range(50)]
    assert spool.pending == 0
    assert list(tmp_path.glob("*.seg")) == []


def test_the_same_batch_until_it_is_acknowledged(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.append("a")
    first = spool.batch(10)
    spool.append("b")
    assert spool.batch(10) == first
    spool.acknowledge(first[-1].number)
    assert contents(spool) == ["b"]


def test_a_part_of_a_batch_may_be_acknowledged(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    for letter in "abc":
        spool.append(letter)
    items = spool.batch(3)
    spool.acknowledge(items[0].number)
    assert contents(spool) == ["b", "c"]
    assert spool.pending == 2


def test_up_to_which_number_the_daemon_has_everything(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    assert spool.acknowledged == 0
    numbers = [spool.append(number) for number in range(5)]
    assert spool.acknowledged == 0
    items = spool.batch(3)
    spool.acknowledge(items[-1].number)
    assert spool.acknowledged == numbers[2]
    drained(spool)
    assert spool.acknowledged == numbers[-1] and Spool(tmp_path).acknowledged == numbers[-1]


def test_what_was_not_acknowledged_is_there_after_a_restart(tmp_path: Path) -> None:
    before = Spool(tmp_path, segment_bytes=64)
    for number in range(10):
        before.append(number)
    before.acknowledge(before.batch(4)[-1].number)
    # no close: killed
    after = Spool(tmp_path, segment_bytes=64)
    assert after.pending == 6
    after.append(10)
    assert drained(after) == list(range(4, 11))


def test_numbers_go_on_after_a_restart_when_all_was_acknowledged(tmp_path: Path) -> None:
    before = Spool(tmp_path)
    last = before.append("x")
    before.acknowledge(before.batch(1)[-1].number)
    after = Spool(tmp_path)
    assert after.append("y") > last
    assert contents(after) == ["y"]


@pytest.mark.parametrize("cut", [1, 5, 12, 25])
def test_a_torn_tail_costs_only_the_torn_line(tmp_path: Path, cut: int) -> None:
    before = Spool(tmp_path)
    for letter in "abc":
        before.append({"letter": letter})
    (segment,) = tmp_path.glob("*.seg")
    segment.write_bytes(segment.read_bytes()[:-cut])
    after = Spool(tmp_path)
    after.append({"letter": "d"})
    found = drained(after)
    assert found[:2] == [{"letter": "a"}, {"letter": "b"}]
    assert found[-1] == {"letter": "d"}
    assert after.corrupt >= 1


def test_a_damaged_line_in_the_middle_is_counted_and_passed_over(tmp_path: Path) -> None:
    before = Spool(tmp_path)
    for letter in "abc":
        before.append({"letter": letter})
    (segment,) = tmp_path.glob("*.seg")
    segment.write_bytes(segment.read_bytes().replace(b'"b"', b'"B"'))
    after = Spool(tmp_path)
    assert drained(after) == [{"letter": "a"}, {"letter": "c"}]
    assert after.corrupt == 1
    assert after.pending == 0


def test_a_damaged_line_is_counted_once_however_often_its_file_is_read(tmp_path: Path) -> None:
    before = Spool(tmp_path, segment_bytes=400)
    for number in range(60):
        before.append({"n": number})
    for segment in sorted(tmp_path.glob("*.seg"))[1:3]:
        segment.write_bytes(segment.read_bytes().replace(b'"n"', b'"N"', 1))
    after = Spool(tmp_path, segment_bytes=400)
    assert after.corrupt == 2
    assert len(drained(after)) == 58
    assert (after.corrupt, after.pending) == (2, 0)


def test_a_broken_cursor_sends_again_instead_of_losing(tmp_path: Path) -> None:
    before = Spool(tmp_path)
    for letter in "ab":
        before.append(letter)
    before.acknowledge(before.batch(1)[-1].number)
    (tmp_path / "cursor").write_text("{")
    assert drained(Spool(tmp_path)) == ["a", "b"]


def test_full_means_that_the_oldest_of_the_lowest_value_goes(tmp_path: Path) -> None:
    spool = Spool(tmp_path, limit_bytes=4000, segment_bytes=400)
    for number in range(40):
        spool.append({"step": number}, Value.LOW)
        spool.append({"xid": number}, Value.HIGH)
    for number in range(40):
        spool.append({"line": number, "pad": "x" * 40}, Value.NORMAL)
    assert spool.dropped > 0
    found = drained(spool)
    assert sum(file.stat().st_size for file in tmp_path.glob("*.seg")) <= 4000
    xids = [item["xid"] for item in found if isinstance(item, dict) and "xid" in item]
    assert xids == list(range(40)), "hardware evidence stays while there is anything cheaper"
    steps = [item["step"] for item in found if isinstance(item, dict) and "step" in item]
    assert steps == sorted(steps)
    assert len(found) + spool.dropped == 120


def take(spool: Spool, size: int) -> list[Any]:
    """Deliver one batch."""
    items = spool.batch(size)
    if items:
        spool.acknowledge(items[-1].number)
    return [item.content for item in items]


@pytest.mark.parametrize("delivered", [1, 4, 11])
def test_full_counts_what_is_lost_and_not_what_was_delivered(tmp_path: Path, delivered: int) -> None:
    spool, put = Spool(tmp_path, limit_bytes=4000, segment_bytes=400, patience_s=60.0), 60
    for number in range(put):
        spool.append({"n": number, "pad": "x" * 20})
    found = take(spool, delivered)  # part of a file, whose other items are still there when it is made smaller
    while not spool.dropped:
        spool.append({"n": put, "pad": "x" * 20})
        put += 1
    while spool.wait(0.0):
        found += take(spool, 7)
    assert (spool.batch(1), spool.pending) == ([], 0), "the sender stops when all is sent"
    assert len(found) + spool.dropped == put
    assert spool.acknowledged == put and Spool(tmp_path).pending == 0


def test_what_is_in_flight_is_never_dropped(tmp_path: Path) -> None:
    spool = Spool(tmp_path, limit_bytes=2000, segment_bytes=200)
    spool.append("first", Value.LOW)
    (sent,) = spool.batch(1)
    for number in range(100):
        spool.append({"n": number, "pad": "x" * 30}, Value.LOW)
    assert spool.dropped > 0
    assert spool.batch(1) == [sent]
    assert contents(Spool(tmp_path))[0] == "first", "also on disk, for a restart before the acknowledgement"


def test_a_disk_that_refuses_keeps_evidence_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = Spool(tmp_path)
    spool.append("on disk")

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(spool._files, "_begin", full)
    spool._files.end()
    spool.append("in memory")
    assert spool.write_errors == 1
    assert contents(spool) == ["on disk", "in memory"]
    monkeypatch.undo()
    spool.flush_memory()
    assert drained(Spool(tmp_path)) == ["on disk", "in memory"]


class Disk:
    """What a spool's ``os.write`` meets: while it is full, ``fits`` bytes of each line are written."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full, self.fits, self._write = False, 0, os.write
        monkeypatch.setattr("sentinel.adapters.spool_files.os.write", self)

    def __call__(self, descriptor: int, line: bytes) -> int:
        return self._write(descriptor, line[: self.fits] if self.full else line)


@pytest.mark.parametrize("fits", [0, 5])
def test_an_acknowledgement_removes_no_file_that_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fits: int
) -> None:
    """On a full disk each try begins a file, and names it by the same number."""
    spool, disk = Spool(tmp_path), Disk(monkeypatch)
    disk.full, disk.fits = True, fits
    for number in range(3):
        spool.append(number, Value.HIGH)
        spool.flush_memory()
    disk.full = False
    spool.flush_memory()
    spool.acknowledge(spool.batch(1)[-1].number)
    spool.append(3, Value.HIGH)
    spool.close()
    assert drained(Spool(tmp_path)) == [1, 2, 3]


def test_a_disk_that_hangs_holds_up_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = Spool(tmp_path, patience_s=0.02)
    answers, really = threading.Event(), spool._files.write

    def hang(item: Item) -> bool:
        answers.wait()
        return really(item)

    monkeypatch.setattr(spool._files, "write", hang)
    for letter in "abc":
        spool.append(letter, Value.HIGH)
    assert spool.stuck_s > 0
    assert list(tmp_path.glob("*.seg")) == [], "nothing is on disk"
    sent = spool.batch(2)
    assert [item.content for item in sent] == ["a", "b"], "and the sender has it all the same"
    spool.acknowledge(sent[-1].number)
    assert contents(spool) == ["c"]
    answers.set()
    spool.patience_s = 60.0
    spool.append("d")
    assert spool.stuck_s < 60
    spool.close()
    assert drained(Spool(tmp_path)) == ["c", "d"]


def test_a_backlog_on_a_hanging_disk_waits_and_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Spool(tmp_path).append("old")
    spool = Spool(tmp_path, patience_s=0.02)
    answers, really = threading.Event(), spool._read_back

    def hang(size: int, cursor: int) -> None:
        answers.wait()
        really(size, cursor)

    monkeypatch.setattr(spool, "_read_back", hang)
    assert spool.batch(5) == []
    spool.append("new")
    assert spool.batch(5) == [], "order is kept: what is newer waits behind it"
    assert spool.pending == 2
    answers.set()
    spool.patience_s = 60.0
    spool.append("newest")
    assert drained(spool) == ["old", "new", "newest"]


def test_what_has_high_value_is_on_the_disk_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = threading.Event()
    monkeypatch.setattr(os, "fdatasync", lambda _fd: synced.set())
    spool = Spool(tmp_path, sync_s=3600.0)
    spool.append("a line", Value.NORMAL)
    assert (spool._files.until_sync_s() or 0) > 3000
    spool.append("an Xid", Value.HIGH)
    assert synced.wait(60)
    spool.append("a line", Value.NORMAL)
    synced.clear()
    spool.close()
    assert synced.is_set(), "an agent that ends in order loses nothing"


def test_without_a_policy_nothing_is_forced_to_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fdatasync", lambda _fd: pytest.fail("synced"))
    spool = Spool(tmp_path, sync_s=-1.0)
    spool.append("an Xid", Value.HIGH)
    spool.close()
    assert contents(Spool(tmp_path)) == ["an Xid"]


def test_more_than_memory_holds_is_read_back_from_the_disk(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    for number in range(RECENT_ITEMS + 300):
        spool.append(number)
    assert len(spool._recent) == RECENT_ITEMS
    assert drained(spool) == list(range(RECENT_ITEMS + 300))


def test_memory_is_bounded_while_the_disk_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sentinel.adapters.spool.MEMORY_ITEMS", 20)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    spool = Spool(tmp_path)
    monkeypatch.setattr(spool._files, "_begin", full)
    for number in range(15):
        spool.append({"xid": number}, Value.HIGH)
        spool.append({"step": number}, Value.LOW)
    assert (spool.dropped, spool.pending) == (10, 20)
    found = drained(spool)
    assert sum(isinstance(item, dict) and "xid" in item for item in found) == 15


@settings(max_examples=60, deadline=None)
@given(
    actions=st.lists(
        st.one_of(st.tuples(st.just("put"), st.sampled_from(list(Value))), st.tuples(st.just("take"), st.integers(1, 5)),
                  st.tuples(st.just("full"), st.integers(0, 30)), st.tuples(st.just("flush"), st.just(0)),
                  st.tuples(st.just("restart"), st.just(0))),
        max_size=60,
    )
)  # fmt: skip
def test_nothing_is_lost_or_reordered_by_any_order_of_events(
    tmp_path_factory: pytest.TempPathFactory, actions: list[tuple[str, int]]
) -> None:
    folder, put, taken = tmp_path_factory.mktemp("spool"), 0, list[object]()
    with pytest.MonkeyPatch.context() as patched:
        disk, spool = Disk(patched), Spool(folder, segment_bytes=120)
        for action, argument in [*actions, ("restart", 0)]:
            if action == "put":
                spool.append(put, Value(argument))
                put += 1
            elif action == "full":
                disk.full, disk.fits = True, argument
            elif action == "flush":
                spool.flush_memory()
            elif action == "restart":  # with space again: what is in memory alone would be lost
                disk.full = False
                spool.flush_memory()
                spool = Spool(folder, segment_bytes=120)
            elif items := spool.batch(argument):
                taken.extend(item.content for item in items)
                spool.acknowledge(items[-1].number)
    taken.extend(drained(spool))
    assert taken == list(range(put))


@settings(max_examples=60, deadline=None)
@given(
    actions=st.lists(
        st.one_of(
            st.tuples(st.just("put"), st.sampled_from(list(Value))), st.tuples(st.just("take"), st.integers(1, 5))
        ),
        min_size=20,
        max_size=100,
    )
)
def test_a_full_spool_delivers_or_counts_each_item_in_any_order_of_events(
    tmp_path_factory: pytest.TempPathFactory, actions: list[tuple[str, int]]
) -> None:
    spool = Spool(tmp_path_factory.mktemp("spool"), limit_bytes=150, segment_bytes=60, patience_s=60.0)
    taken: list[Any] = []
    put = 0
    for action, argument in actions:
        if action == "put":
            spool.append(put, Value(argument))
            put += 1
        else:
            taken += take(spool, argument)
    while spool.wait(0.0):
        taken += take(spool, 5)
    assert spool.batch(1) == [] and len(taken) + spool.dropped == put
    assert taken == sorted(set(taken))
