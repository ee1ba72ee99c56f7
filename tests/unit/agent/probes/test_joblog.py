"""A job's log: late, truncated, replaced, long; steps thinned; floods counted; offsets that survive."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from shipped import shipped_signatures

from sentinel.adapters.host.logfile import LogFile
from sentinel.agent.collectors.log_path import newest, pattern_of
from sentinel.agent.probes import joblog
from sentinel.agent.probes.joblog import Follower
from sentinel.errors import Denied, Unavailable
from sentinel.evidence.logs.reader import Signatures
from sentinel.model.records import Evidence, Kind, Where, utc
from sentinel.model.vocabulary import STEP_LINES

NOW = utc(1_900_000_000)
ERROR = b"RuntimeError: CUDA error: uncorrectable ECC error encountered\n"


def lines(file: LogFile) -> list[tuple[int, bytes]]:
    return [
        (block.first_line + number, line)
        for block in file.read()
        for number, line in enumerate(block.content.split(b"\n")[:-1])
    ]


@pytest.fixture
def follow(tmp_path: Path) -> Any:
    files: list[LogFile] = []

    def made(cursor: Any = None, **rest: Any) -> LogFile:
        files.append(LogFile(str(tmp_path / "job.out"), cursor, **rest))
        return files[-1]

    yield made
    for file in files:
        file.close()


def test_a_log_that_appears_late(tmp_path: Path, follow: Any) -> None:
    file = follow()
    assert lines(file) == []
    assert not file.there
    (tmp_path / "job.out").write_bytes(b"a\nb\npart")
    assert lines(file) == [(1, b"a"), (2, b"b")]
    with (tmp_path / "job.out").open("ab") as stream:
        stream.write(b" of a line\n")
    assert lines(file) == [(3, b"part of a line")]


def test_a_restart_goes_on_where_it_was(tmp_path: Path, follow: Any) -> None:
    path = tmp_path / "job.out"
    path.write_bytes(b"a\nb\n")
    first = follow()
    lines(first)
    with path.open("ab") as stream:
        stream.write(b"c\n")
    assert lines(follow(first.cursor)) == [(3, b"c")]


def test_a_log_that_was_truncated_begins_again(tmp_path: Path, follow: Any) -> None:
    path = tmp_path / "job.out"
    path.write_bytes(b"first attempt\n" * 5)
    file = follow()
    lines(file)
    path.write_bytes(b"second attempt\n")
    blocks = list(file.read())
    assert [(block.first_line, block.fresh, block.content) for block in blocks] == [(1, True, b"second attempt\n")]


def test_the_hole_of_a_log_that_was_truncated_below_its_program_is_not_read(tmp_path: Path, follow: Any) -> None:
    """As ``copytruncate`` of logrotate leaves it to a program that does not append."""
    path = tmp_path / "job.out"
    path.write_bytes(b"step 1\n")
    file = follow()
    assert lines(file) == [(1, b"step 1")]
    os.truncate(path, 0)
    assert lines(file) == []
    with path.open("r+b") as program:
        program.seek(1 << 30)
        program.write(b"step 2\n")
    (block,) = file.read()
    assert block.content.lstrip(b"\0") == b"step 2\n" and len(block.content) < 1 << 17 and block.first_line == 1
    assert file.cursor["offset"] == path.stat().st_size


def test_a_log_that_was_replaced_is_read_to_its_end_first(tmp_path: Path, follow: Any) -> None:
    path = tmp_path / "job.out"
    path.write_bytes(b"a\n")
    file = follow()
    lines(file)
    with path.open("ab") as stream:
        stream.write(b"last words\n")
    path.rename(tmp_path / "job.out.1")
    path.write_bytes(b"new file\n")
    assert lines(file) == [(2, b"last words"), (1, b"new file")]


def test_a_cursor_for_another_file_is_no_cursor(tmp_path: Path, follow: Any) -> None:
    (tmp_path / "job.out").write_bytes(b"a\n")
    assert lines(follow({"inode": 1, "offset": 2, "line": 9})) == [(1, b"a")]


def test_a_late_start_on_a_long_log_reads_its_end(tmp_path: Path, follow: Any) -> None:
    (tmp_path / "job.out").write_bytes(b"x" * 9999 + b"\nend\n")
    file = follow(limit_bytes=100)
    assert lines(file)[-1][1] == b"end"
    assert file.skipped_bytes == 10004 - 100


def test_a_line_without_end_comes_in_pieces(tmp_path: Path, follow: Any) -> None:
    (tmp_path / "job.out").write_bytes(b"y" * 200_000)
    file = follow()
    content = b"".join(block.content for block in file.read())
    assert content == b"y" * 200_000


def test_the_last_line_needs_no_newline(tmp_path: Path, follow: Any) -> None:
    (tmp_path / "job.out").write_bytes(b"a\nKilled")
    file = follow()
    lines(file)
    block = file.rest()
    assert block is not None
    assert (block.first_line, block.content) == (2, b"Killed")
    assert file.rest() is None


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_log_that_may_not_be_read(tmp_path: Path, follow: Any) -> None:
    (tmp_path / "job.out").touch(0o000)
    with pytest.raises(Denied):
        list(follow().read())


def test_a_folder_is_no_log(tmp_path: Path, follow: Any) -> None:
    (tmp_path / "job.out").mkdir()
    with pytest.raises(Unavailable):
        list(follow().read())


@pytest.fixture(scope="module")
def signatures() -> Signatures:
    return shipped_signatures()


@pytest.fixture
def follower(signatures: Signatures) -> Follower:
    return Follower(signatures, Where(node="n1", job=8, attempt=1, path="/x"), lines_per_s=2, burst=5)


def feed(follower: Follower, file: LogFile, now_s: float) -> list[Evidence]:
    return [item for block in file.read() for item in follower.read(block, NOW + timedelta(seconds=now_s), now_s)]


def test_errors_pass_and_floods_are_counted(tmp_path: Path, follow: Any, follower: Follower) -> None:
    (tmp_path / "job.out").write_bytes(b"".join(b"[rank%d]: %s" % (rank, ERROR) for rank in range(12)))
    file = follow()
    assert len(feed(follower, file, 0.0)) == 5
    found = follower.due(NOW, 0.1, last=True)
    assert [(item.kind, item.data["count"]) for item in found] == [("suppressed", 7)]


def test_what_was_held_back_is_told_although_the_job_prints_nothing_more(
    tmp_path: Path, follow: Any, follower: Follower
) -> None:
    (tmp_path / "job.out").write_bytes(b"".join(b"[rank%d]: %s" % (rank, ERROR) for rank in range(12)))
    assert len(feed(follower, follow(), 0.0)) == 5
    told = {now_s: follower.due(NOW, now_s) for now_s in (0.5, 1.0, 1.5, 2.0, 1000.0)}  # half of the 5, at 2 a second
    assert [(now_s, item.data["count"]) for now_s, found in told.items() for item in found] == [(1.5, 7)]


def test_evidence_says_which_line_of_which_attempt(tmp_path: Path, follow: Any, follower: Follower) -> None:
    (tmp_path / "job.out").write_bytes(b"hello\n" + ERROR)
    (found,) = feed(follower, follow(), 0.0)
    assert (found.line, found.where.job, found.where.attempt, found.where.node) == (2, 8, 1, "n1")


def step(number: int) -> bytes:
    return (
        b" iteration %8d/  500000 | consumed samples: 1024 | elapsed time per iteration (ms): 812.4 | lm loss: 2.5E+00 |\n"
        % number
    )


def test_steps_are_thinned_to_the_newest(tmp_path: Path, follow: Any, follower: Follower) -> None:
    path, file = tmp_path / "job.out", follow()
    told: list[Any] = []
    for number in range(1, 31):
        with path.open("ab") as stream:
            stream.write(step(number))
        now_s = number / 10
        told += feed(follower, file, now_s) + follower.due(NOW, now_s)
    steps = [item.data["step"] for item in told if item.kind == Kind.STEP]
    assert steps[0] == 1, "the first at once"
    assert 3 <= len(steps) <= 4
    last = follower.finish(NOW, 3.05)
    assert ([*steps, *[item.data["step"] for item in last]])[-1] == 30, "and the last"
    lines = [item.data.get(STEP_LINES, 1) for item in [*told, *last] if item.kind == Kind.STEP]
    assert sum(lines) == 30, "each says for how many lines it stands"


def test_the_last_step_before_a_failure_comes_before_it(tmp_path: Path, follow: Any, follower: Follower) -> None:
    path, file = tmp_path / "job.out", follow()
    path.write_bytes(step(1))
    feed(follower, file, 0.0)
    with path.open("ab") as stream:
        stream.write(step(2) + ERROR)
    found = feed(follower, file, 0.2)
    assert found[0].kind == Kind.STEP
    assert found[0].data["step"] == 2
    assert len(found) == 2


def test_ids_are_the_same_when_lines_are_read_again(tmp_path: Path, follow: Any, signatures: Signatures) -> None:
    (tmp_path / "job.out").write_bytes(b"x\n" + ERROR)
    where = Where(node="n1", job=8, attempt=1, path="/x")
    ids = [
        [item.id for item in feed(Follower(signatures, where, lines_per_s=5, burst=5), follow(), 0.0)] for _ in range(2)
    ]
    assert ids[0] == ids[1]
    assert len(ids[0]) == 1


def _follower() -> Follower:
    return Follower(shipped_signatures(), Where(node="n1", job=7, attempt=0), lines_per_s=50.0, burst=500)


def _steps(found: list[Evidence]) -> list[tuple[object, object]]:
    return [(item.data.get("step"), item.data.get("loss")) for item in found if item.kind == Kind.STEP]


def test_steps_at_which_numbers_turn_bad_or_good_are_said_at_once(read_lines: Any) -> None:
    follower = _follower()
    lines = [f"step {n} | loss {'nan' if 40 <= n < 60 else '2.5'} | step time 0.01 s" for n in range(1, 100)]
    found = read_lines(follower, lines)
    told = [(step, str(loss)) for step, loss in _steps(found)]
    assert told[:1] == [(1, "2.5")] and set(told) >= {(39, "2.5"), (40, "nan"), (59, "nan"), (60, "2.5")}
    assert len(told) < 16 and [step for step, _ in told] == sorted(step for step, _ in told)


class Followed:
    """``follow`` of a log, a turn at a time: ``turns`` are done one after another in place of its sleeps, then it ends."""

    def __init__(self, folder: Path, signatures: Signatures, monkeypatch: pytest.MonkeyPatch) -> None:
        self.signatures = signatures
        self.log, self.ended = folder / "job.out", folder / "ended"
        self.said: list[dict[str, Any]] = []
        self.turns: list[Any] = []
        monkeypatch.setattr(joblog, "say", self.said.append)
        monkeypatch.setattr(joblog, "LOOKED_S", 0.0)
        monkeypatch.setattr(joblog.time, "sleep", self._turn)

    def _turn(self, _seconds: float) -> None:
        if self.turns:
            self.turns.pop(0)()
        else:
            self.ended.touch()

    def run(self, *turns: Any) -> list[dict[str, Any]]:
        self.turns = list(turns)
        arguments = {"uid": os.getuid(), "ended": str(self.ended),
                     "path": str(self.log), "cursor": {"inode": 1}, "read_bytes": 1 << 20,
                     "lines_per_s": 50, "burst": 500, "linger_s": 0.0, "poll_s": 0.2}  # fmt: skip
        joblog.follow(arguments, Where(node="n1", job=8, attempt=1), self.signatures)
        return self.said


@pytest.fixture
def followed(tmp_path: Path, signatures: Signatures, monkeypatch: pytest.MonkeyPatch) -> Followed:
    return Followed(tmp_path, signatures, monkeypatch)


def kinds(said: list[dict[str, Any]]) -> list[str]:
    return [message["type"] for message in said]


def test_a_look_at_the_end_is_said_after_what_was_read(followed: Followed) -> None:
    followed.log.write_bytes(step(1))
    assert kinds(followed.run())[:2] == ["evidence", "looked"]


def test_a_log_that_is_not_there_or_cannot_be_read_was_not_looked_at(followed: Followed) -> None:
    assert "looked" not in kinds(followed.run())
    followed.said.clear()
    followed.ended.unlink()
    followed.log.mkdir()
    assert kinds(followed.run())[0] == "trouble" and "looked" not in kinds(followed.said)


def test_a_step_line_that_waits_for_its_second_is_not_passed_over(followed: Followed) -> None:
    """Steps are told once a second: until the newest is told, nobody says that the log was read."""
    followed.log.write_bytes(step(1))

    def another() -> None:
        with followed.log.open("ab") as stream:
            stream.write(step(2))

    said = kinds(followed.run(another, lambda: None))
    assert said == ["evidence", "looked", "evidence", "done"], "the second step came with the end of the job"


NEXT = b"sentinel: job 8 attempt 2 begins\n"


def steps_told(said: list[dict[str, Any]]) -> list[int]:
    return [item["data"]["step"] for message in said for item in message.get("items", ()) if item["kind"] == Kind.STEP]


@pytest.mark.parametrize("after", [b"", b"Killed\n", b"sentinel: job 8 attempt 1 begins\n"])
def test_what_the_next_attempt_prints_into_the_same_log_is_not_this_one_s(followed: Followed, after: bytes) -> None:
    """It begins within seconds, while the end of this one is still read."""
    followed.log.write_bytes(step(1))

    def again() -> None:
        followed.ended.touch()
        with followed.log.open("ab") as stream:
            stream.write(after + step(2) + NEXT + step(3) + step(4))

    said = followed.run(again, lambda: None)
    assert steps_told(said) == [1, 2] and kinds(said)[-1] == "done"


def test_a_program_that_prints_the_line_of_a_next_attempt_is_still_read(followed: Followed) -> None:
    followed.log.write_bytes(step(1) + NEXT + step(3))
    assert steps_told(followed.run())[-1] == 3


def test_a_bar_does_not_stand_in_for_the_lines_with_numbers(read_lines: Any) -> None:
    follower = _follower()
    lines = []
    for n in range(10, 2000):
        lines.append(f" 12%|#1        | {n}/9000 [00:10<01:15, 11.6it/s]")
        if n % 10 == 0:
            lines.append("{'loss': 2.31, 'grad_norm': 1.5, 'learning_rate': 1e-05, 'epoch': 0.31}")
    told = _steps(read_lines(follower, lines, gap_s=0.1))
    numbers, bars = [step for step, loss in told if loss is not None], [step for step, loss in told if loss is None]
    assert 190 <= len(numbers) <= 230 and 190 <= len(bars) <= 450 and bars == sorted(bars)  # type: ignore[type-var]


@pytest.fixture
def read_lines() -> Any:
    """Lines, ``gap_s`` apart; what is said, with what waits at the end."""
    from sentinel.adapters.host.logfile import Block

    def read(follower: Follower, lines: list[str], gap_s: float = 0.01) -> list[Evidence]:
        found, now_s = [], 0.0
        for number, line in enumerate(lines, 1):
            now_s += gap_s
            block = Block(line.encode() + b"\n", first_line=number, fresh=False)
            found += follower.read(block, NOW + timedelta(seconds=now_s), now_s)
            found += follower.due(NOW + timedelta(seconds=now_s), now_s)
        return found

    return read


def test_a_wildcard_enters_no_folder_of_another_user_and_none_of_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who fills a folder of his own beside the logs would hide them; below /proc there is no end."""
    monkeypatch.setattr("sentinel.agent.collectors.log_path._MOST_NAMES", 50)
    for name in ("full", "run"):
        (tmp_path / name).mkdir()
    for number in range(60):
        (tmp_path / f"full/{number}.log").write_text("")
    (tmp_path / "run/7.log").write_text("step 1")

    class Theirs:
        st_uid = 4711

    scan = os.scandir

    class Entry:
        def __init__(self, entry: os.DirEntry[str]) -> None:
            self._entry, self.name = entry, entry.name

        def is_dir(self) -> bool:
            return self._entry.is_dir()

        def stat(self, *, follow_symlinks: bool = True) -> Any:
            return Theirs() if self.name == "full" else self._entry.stat(follow_symlinks=follow_symlinks)

    @contextlib.contextmanager
    def scandir(folder: str) -> Iterator[list[Entry]]:
        with scan(folder) as entries:
            yield sorted(map(Entry, entries), key=lambda entry: entry.name)

    monkeypatch.setattr("sentinel.agent.collectors.log_path.os.scandir", scandir)
    pattern = pattern_of(f"{tmp_path}/%x/%x.log", job=7, user="ada", node="n1")
    assert newest(pattern, os.getuid()) == f"{tmp_path}/run/7.log"
    assert newest(pattern_of("/proc/%x/root/%x/stat", job=7, user="ada", node="n1"), os.getuid()) is None


def test_a_link_in_a_circle_beside_the_logs_folder_hides_no_log(tmp_path: Path) -> None:
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "run").mkdir()
    (tmp_path / "run/7.out").write_text("step 1")
    pattern = pattern_of(f"{tmp_path}/%x/%j.out", job=7, user="ada", node="n1")
    assert newest(pattern, os.getuid()) == f"{tmp_path}/run/7.out"
