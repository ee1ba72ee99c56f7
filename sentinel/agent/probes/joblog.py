"""Follows the log of one job, as the job's user; reports steps (one per second) and lines that rules match.

Messages: ``evidence`` (items, and the cursor after them), ``looked`` (the time at which the end of the log was reached;
everything read before was sent), ``alive``, ``trouble``.
"""

from __future__ import annotations

import dataclasses
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sentinel.adapters.host.logfile import Block, LogFile
from sentinel.agent.collectors.log_path import end_of, newest, wait_for_start
from sentinel.agent.collectors.timed_blocks import in_time, read_in_time
from sentinel.agent.probes import become, begin, say
from sentinel.config.rules_files import load_rules
from sentinel.errors import SentinelError
from sentinel.evidence.logs.reader import LogReader, Signatures
from sentinel.evidence.logs.step_numbers import bad, values
from sentinel.evidence.logs.timers import TIMERS
from sentinel.model.records import Evidence, Kind, Source, Where, stable_id
from sentinel.model.vocabulary import STEP_LINES
from sentinel.wire import to_json

STEP_S = 1.0  # at most one step line is reported per this time
ALIVE_S = 2.0
_LONGEST_PAUSE_S = 10.0  # short enough that a follower still reports in time that it is alive
LOOKED_S = 0.4  # interval of ``looked`` messages; a hang is detected later by as much


class Follower:
    """Turns lines into messages. Times are arguments, and the caller reads the file."""

    def __init__(
        self, signatures: Signatures, where: Where, *, lines_per_s: float, burst: int, first_line: int = 1
    ) -> None:
        self._signatures = signatures
        self._where = where
        self._lines_per_s = lines_per_s
        self._burst = burst
        self._allowance = float(burst)
        self._filled_s: float | None = None
        self._suppressed = 0
        self._steps: dict[bool, Evidence] = {}  # newest step line not sent: with numbers, without; in order
        self._said_s: dict[bool, float] = {}
        self._bad = False  # whether the newest printed numbers were bad (NaN, infinite)
        self._reader = self._new(first_line)
        self._expected_line = first_line

    def _new(self, first_line: int) -> LogReader:
        return LogReader(self._signatures, source=Source.JOB_LOG, where=self._where, first_line=first_line)

    def read(self, block: Block, now: datetime, now_s: float) -> list[Evidence]:
        if block.fresh or block.first_line != self._expected_line:
            self._reader = self._new(block.first_line)
        self._expected_line = block.first_line + block.content.count(b"\n")
        return self._pass(self._reader.feed(block.content, now), now_s)

    def forget(self) -> None:
        """Read what comes next as a log that begins there."""
        self._expected_line = -1

    @property
    def waits(self) -> bool:
        """Whether a step line was read that may not be sent yet."""
        return bool(self._steps)

    def finish(self, now: datetime, now_s: float) -> list[Evidence]:
        return self._pass(self._reader.finish(now), now_s) + self.due(now, now_s, last=True)

    def due(self, now: datetime, now_s: float, *, last: bool = False) -> list[Evidence]:
        """Evidence to send now: the newest step, if one may be sent; how many lines were suppressed, once few are."""
        self._fill(now_s)
        found: list[Evidence] = []
        if any(last or now_s - self._said_s.get(kind, float("-inf")) >= STEP_S for kind in self._steps):
            found = self._steps_left(now_s)
        if self._suppressed and (last or self._allowance >= self._burst / 2):
            found.append(self._count(now))
        return found

    def _fill(self, now_s: float) -> None:
        if self._filled_s is not None:
            self._allowance = min(self._burst, self._allowance + (now_s - self._filled_s) * self._lines_per_s)
        self._filled_s = now_s

    def _pass(self, evidence: list[Evidence], now_s: float) -> list[Evidence]:
        self._fill(now_s)
        found: list[Evidence] = []
        for item in evidence:
            if item.kind == Kind.STEP:
                found.extend(self._step_lines(item, now_s))
            elif item.kind == TIMERS:
                found.append(item)  # few: the reader has filtered them
            elif self._allowance >= 1:
                self._allowance -= 1
                found.extend(self._steps_left(now_s))  # in order: the last step before a failure is sent first
                found.append(item)
            else:
                self._suppressed += 1
        return found

    def _step_lines(self, item: Evidence, now_s: float) -> list[Evidence]:
        """Step lines to send now: per ``STEP_S`` one with numbers (loss) and one without, e.g. of a progress bar.

        In addition the first line whose numbers turn bad or good again, and the one before it, so that the daemon knows
        at which step they turned.
        """
        numbers = values(item.data).values()
        kind = bool(numbers)
        turned = kind and bad(numbers) != self._bad and self._allowance >= 1
        if kind:
            self._bad = bad(numbers)
        found = []
        if turned:
            self._allowance -= 1
            found = self._steps_left(now_s)
        before = self._steps.pop(kind, None)  # re-inserted, so that the newest is last
        if before is not None:
            lines = int(before.data.get(STEP_LINES) or 1) + 1
            item = dataclasses.replace(item, data={**item.data, STEP_LINES: lines})
        self._steps[kind] = item
        if turned or now_s - self._said_s.get(kind, float("-inf")) >= STEP_S:
            found += self._steps_left(now_s)
        return found

    def _steps_left(self, now_s: float) -> list[Evidence]:
        """The step lines not sent yet, in the order read: steps must not decrease."""
        left, self._steps = list(self._steps.items()), {}
        self._said_s.update(dict.fromkeys((kind for kind, _ in left), now_s))
        return [item for _, item in left]

    def _count(self, now: datetime) -> Evidence:
        count, self._suppressed = self._suppressed, 0
        return Evidence(
            id=stable_id("suppressed", self._where.job, self._where.attempt, now.isoformat()),
            at=now,
            seen_at=now,
            source=Source.JOB_LOG,
            kind="suppressed",
            where=self._where,
            text=f"{count} further lines that rules recognise were not passed on",
            data={"count": count},
        )


def main() -> None:
    arguments = begin()
    # Read before dropping root: the job's user may not be able to read the rules, nor this package's folder.
    site = arguments.get("rules")
    signatures = Signatures(load_rules(site=Path(site) if site else None))
    become(arguments["uid"], arguments.get("gid"))
    where = Where(node=arguments["node"], job=arguments["job"], attempt=arguments["attempt"], path=arguments["path"])
    follow(arguments, where, signatures)


def follow(arguments: dict[str, Any], where: Where, signatures: Signatures) -> None:
    ended = Path(arguments["ended"])
    path, cursor = _where_it_begins(arguments, where, ended)
    where = dataclasses.replace(where, path=path)
    file = LogFile(path, cursor, limit_bytes=arguments["read_bytes"], owner=arguments["uid"])
    follower = Follower(
        signatures,
        where,
        lines_per_s=arguments["lines_per_s"],
        burst=arguments["burst"],
        first_line=int(cursor.get("line", 1)),
    )
    alive_s, ended_s, trouble, said_s, cut = time.monotonic(), None, "", float("-inf"), False
    while True:
        look_s, seen = time.monotonic(), False  # taken before reading: lines that arrive during it are not covered
        try:
            for block in file.read():
                own, cut = _of_this_attempt(block, where, ended)
                _read(follower, own, file, arguments)
                if cut:
                    break
            trouble, seen = "", file.there
        except SentinelError as error:
            if str(error) != trouble:
                trouble = str(error)
                say({"type": "trouble", "reason": trouble})
        now_s = time.monotonic()
        _tell(follower.due(datetime.now(UTC), now_s), file)
        if seen and not follower.waits and look_s - said_s >= LOOKED_S:
            said_s = look_s
            say({"type": "looked", "at_s": look_s})
        if ended_s is None and ended.exists():
            ended_s = now_s
        if cut or (ended_s is not None and now_s - ended_s >= arguments["linger_s"]):
            break
        if now_s - alive_s >= ALIVE_S:
            alive_s = now_s
            say({"type": "alive", "there": file.there, "cursor": file.cursor, "skipped_bytes": file.skipped_bytes})
        time.sleep(arguments["poll_s"])
    rest = None if cut else file.rest()
    if rest is not None:
        _read(follower, rest, file, arguments)
    found = in_time(lambda: follower.finish(datetime.now(UTC), now_s), _limit_s(arguments))
    if found is None:
        say({"type": "trouble", "reason": f"its end takes more than {_limit_s(arguments):g} s to read: left out"})
    _tell(found or [], file)
    say({"type": "done", "there": file.there, "cursor": file.cursor})


def _read(follower: Follower, block: Block, file: LogFile, arguments: dict[str, Any]) -> None:
    def read(part: Block) -> list[Evidence]:
        return follower.read(part, datetime.now(UTC), time.monotonic())

    def alive() -> None:
        say({"type": "alive"})

    before: list[Evidence] | None = None
    for found, left_out in read_in_time(block, read, follower.forget, alive, _limit_s(arguments)):
        if before is not None:
            _tell(before, None)
        before = found
        if left_out:
            say({"type": "trouble", "reason": left_out})
    _tell(before or [], file)


def _limit_s(arguments: dict[str, Any]) -> float:
    """For what is read at once: well below the silence after which this process is killed."""
    return float(arguments.get("silent_s", 30.0)) / 3


def _of_this_attempt(block: Block, where: Where, ended: Path) -> tuple[Block, bool]:
    """What this attempt printed of the block, and whether the next one begins in it: it appends to the same file, within
    seconds. Not while this attempt runs: its program may print such a line, too."""
    end = end_of(block.content, job=where.job or 0, attempt=where.attempt or 0)
    if end is None or not ended.exists():
        return block, False
    return dataclasses.replace(block, content=block.content[:end]), True


def _where_it_begins(arguments: dict[str, Any], where: Where, ended: Path) -> tuple[str, dict[str, Any]]:
    """The file and the cursor to start from: an earlier process's cursor, else where this attempt's output begins."""
    kept = arguments.get("cursor")
    pattern = arguments["path"]
    if kept:
        try:
            return newest(pattern, arguments["uid"], where.job, where.attempt) or pattern, kept
        except OSError as error:
            say({"type": "trouble", "reason": str(error)})
            return pattern, kept
    trouble, alive_s = "", time.monotonic()
    while True:
        began_s = time.monotonic()
        try:
            found = wait_for_start(
                pattern,
                uid=arguments["uid"],
                job=where.job or 0,
                attempt=where.attempt or 0,
                began_s=float(arguments.get("began_s", 0.0)),
                limit_bytes=arguments["read_bytes"],
                over=ended.exists(),
            )
        except OSError as error:
            found = None
            if str(error) != trouble:
                trouble = str(error)
                say({"type": "trouble", "reason": trouble})
        if found is not None:
            path, offset = found
            return path, {"inode": Path(path).stat().st_ino, "offset": offset, "line": 1}
        if ended.exists() and time.time() - ended.stat().st_mtime > arguments["linger_s"]:
            return pattern, {}
        if time.monotonic() - alive_s >= ALIVE_S:
            alive_s = time.monotonic()
            say({"type": "alive", "there": False, "cursor": {}, "skipped_bytes": 0})
        # Pause for 20 times as long as the search took: wildcards over many folders then cost 5 % of a core at most.
        time.sleep(max(arguments["poll_s"], min(20 * (time.monotonic() - began_s), _LONGEST_PAUSE_S)))


def _tell(evidence: list[Evidence], read_to: LogFile | None) -> None:
    """``read_to``: the file, where all was read up to its cursor. Behind a part of a block it says nothing of the rest."""
    if evidence:
        items = [to_json(item) for item in evidence]
        say({"type": "evidence", "items": items, **({"cursor": read_to.cursor} if read_to is not None else {})})


if __name__ == "__main__":
    main()
