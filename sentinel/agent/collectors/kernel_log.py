"""Reads the kernel log in a thread and turns its lines into evidence."""

from __future__ import annotations

import bisect
import itertools
import re
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from sentinel.adapters.host.journal import Journal
from sentinel.adapters.host.kmsg import KernelLog, Record, boot_id
from sentinel.adapters.host.pstore import crash_dumps
from sentinel.agent.process.retries import Retries
from sentinel.agent.process.state_files import restore, save
from sentinel.agent.settings import AgentSettings
from sentinel.errors import Unavailable
from sentinel.evidence.kernel import read_message
from sentinel.evidence.logs.machine_logs import KernelLine, kernel_line
from sentinel.evidence.logs.reader import Signatures
from sentinel.evidence.logs.user_names import without_names
from sentinel.log import Log
from sentinel.model.records import Evidence, Kind, Source, Where, stable_id, utc

log = Log()

_DIGITS = re.compile(r"0x[0-9a-fA-F]+|[0-9a-fA-F]*\d[0-9a-fA-F]*")
# As the kernel names what a line is about: an address on PCIe, a disk, a memory controller, a port of a network.
_DEVICE = re.compile(
    r"\b[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\b|\b(?:sd[a-z]{1,3}|nvme\d{1,3}n?\d{0,3}|(?:mlx[45]_|dm-|md|MC|ata|ib)\d{1,3})\b"
)


class Flood:
    """Passes the first lines of each kind in a window and counts the rest, so that the first of a new kind always passes.

    Lines about one device share one limit, however they read: one fault in all processors of a GPU is hundreds of lines
    of a few kinds. No line about a device is held back for another device's, or for another number's.
    """

    def __init__(self, lines: int, window_s: float) -> None:
        self._lines = lines
        self._window_s = window_s
        self._kinds: dict[Hashable, list[float]] = {}  # kind, or device -> [start of window in s, lines passed]
        self.suppressed = 0

    def passes(self, text: str, now_s: float, device: tuple[object, ...] | None = None) -> bool:
        """Args: device: what the line is about, where it is known: rule, address and number."""
        words = without_names(text)[:160]
        kind = device, *_DEVICE.findall(words), _DIGITS.sub("#", words)
        counted = self._entry(kind if device is None else device, now_s)
        new = device is not None and not self._entry(kind, now_s)[1]
        if device is not None:
            self._entry(kind, now_s)[1] += 1
        if new or counted[1] < self._lines:
            counted[1] += 1
            return True
        self.suppressed += 1
        return False

    def _entry(self, key: Hashable, now_s: float) -> list[float]:
        entry = self._kinds.get(key)
        if entry is None or not 0 <= now_s - entry[0] < self._window_s:  # below 0: the clock was set back
            if len(self._kinds) > 2000:
                self._kinds = {name: kept for name, kept in self._kinds.items() if now_s - kept[0] < self._window_s}
            entry = self._kinds[key] = [now_s, 0]
        return entry


DEVICE = "/dev/kmsg"
PANIC = "Panic"  # reason of a record in pstore: the kernel died
Reader = Callable[[Sequence[Record], datetime], list[Evidence]]
FORM = "kernel.path names /dev/kmsg, or a file of such records; what syslog or journalctl writes is read through journalctl"
LONGEST_PAUSE_S = 60.0  # longest pause before an unreadable log is opened again
BATCH = 500  # records read in one batch
WAIT_S = 10.0  # for a record, before it is looked whether the agent stops; the process does not wait for this thread


class KernelWatch:
    """Reads kernel records, has ``reader`` turn them into evidence, and then saves the cursor."""

    def __init__(self, node: str, settings: AgentSettings, reader: Reader, keep: Callable[[Evidence], None]) -> None:
        self.node = node
        self.readable: bool | None = None
        self.records = 0
        self._settings = settings.kernel
        self._cursors = Path(settings.state)
        self._seen_words = Path(settings.state) / "pstore.json"
        self._boot = boot_id()
        self._reader = reader
        self._keep = keep
        self.flood = Flood(settings.kernel.lines_per_kind, settings.kernel.window_s)
        self._stopped = threading.Event()
        self._retries = Retries(LONGEST_PAUSE_S)

    def run(self) -> None:
        """The thread's loop, until ``stop``. An unreadable log is reported once and tried again with growing pauses."""
        while not self._stopped.is_set():
            try:
                self._follow()
            except Unavailable as error:
                self._retries.failed(error)
                if self.readable is not False:
                    self._unreadable(str(error))
                self.readable = False
                self._stopped.wait(self._retries.pause_s())
            except Exception:  # noqa: BLE001 - the loop of a root: it goes on, and the event is found
                log.bug("kernel watch")
                self._stopped.wait(1.0)

    def stop(self) -> None:
        self._stopped.set()

    def _follow(self) -> None:
        source, state = self._open()
        try:
            save(state, source.cursor)
            self.readable = True
            self._retries.succeeded()
            overruns, read = 0, 0
            while not self._stopped.is_set():
                if count := self.turn(source):
                    read += count
                    self.readable = True
                    save(state, source.cursor)
                elif source.unparsable and not read and self.readable:
                    self._unreadable(f"{source.path}: its lines are no records of the kernel; {FORM}")
                    self.readable = False
                if source.overruns != overruns:
                    overruns = source.overruns
                    self._unreadable(f"{source.path}: the kernel threw records away before they were read")
                source.wait(WAIT_S, self._settings.poll_s)
        finally:
            source.close()

    def _open(self) -> tuple[KernelLog | Journal, Path]:
        """The open log and the file of its cursor: /dev/kmsg, or journald where the device may not be read."""
        own, other = self._cursors / "kernel.json", self._cursors / "journal.json"
        settings = self._settings
        try:
            return KernelLog(settings.path, restore(own), replay=settings.replay, boot=self._boot), own
        except Unavailable as error:
            if not settings.journalctl or settings.path != DEVICE:
                raise
            try:
                journal = Journal(settings.journalctl, restore(other), replay=settings.replay, boot=self._boot)
            except Unavailable as second:
                raise Unavailable(f"{error.message}; {second.message}", fix=error.fix) from error
            log.info("kernel-log-by-journald", reason=error)
            return journal, other

    def turn(self, source: KernelLog | Journal) -> int:
        """Process all records available now; returns their number."""
        count = 0
        records = source.read()
        while batch := list(itertools.islice(records, BATCH)):
            count += len(batch)
            for evidence in self._reader(batch, datetime.now(UTC)):
                pci = evidence.data.get("pci")
                device = None if pci is None else (evidence.rule, pci, evidence.data.get("xid"))
                if self.flood.passes(evidence.text, evidence.at.timestamp(), device):
                    self._keep(evidence)
        self.records += count
        return count

    def panics(self) -> None:
        """Report once what each crash of the kernel left (pstore): its lines, and that it died where it was a panic."""
        known = restore(self._seen_words)
        seen = dict(known) if isinstance(known, dict) else {}
        settings = self._settings
        oldest_s = time.time() - settings.pstore_age_s
        try:
            dumps = crash_dumps(settings.pstore, settings.pstore_archive, seen, oldest_s)
        except Unavailable as error:
            self._unreadable(str(error))
            return
        for dump in dumps:
            seen[dump.digest] = dump.written_s
            at = utc(dump.written_s)
            lines = [kernel_line(line) for line in dump.text.split("\n")[-400:]]
            records = [Record(number, dump.written_s, 0, 0, line.text) for number, line in enumerate(lines) if line.own]
            for evidence in self._reader(records, at):
                self._keep(evidence)
            if dump.reason == PANIC and dump.part == 1:  # each part of a panic's log is a record
                self._keep(
                    Evidence(
                        id=stable_id("pstore", self.node, dump.digest),
                        at=at,
                        seen_at=datetime.now(UTC),
                        source=Source.KERNEL,
                        kind="kernel_panic",
                        where=Where(node=self.node),
                        text=f"the kernel died and left {dump.name}: {dump.text.strip()[-1500:]}",
                        data={"file": dump.name},
                    )
                )
            else:
                log.info("kernel-last-words", file=dump.name, reason=dump.reason or "not told", part=dump.part)
        if dumps:
            save(self._seen_words, {key: at_s for key, at_s in seen.items() if at_s >= oldest_s})

    def _unreadable(self, reason: str) -> None:
        now = datetime.now(UTC)
        log.warning("kernel-log-unreadable", reason=reason)
        self._keep(
            Evidence(
                id=stable_id("kernel-unreadable", self.node, reason, now.isoformat()),
                at=now,
                seen_at=now,
                source=Source.AGENT,
                kind=Kind.UNREADABLE,
                where=Where(node=self.node),
                text=reason,
                data={"source": "kernel"},
            )
        )


def rules_reader(node: str, boot: str, signatures: Signatures) -> Reader:
    """Make the reader of kernel lines: a quick check of a whole batch selects the few lines that rules must match."""

    def read(records: Sequence[Record], now: datetime) -> list[Evidence]:
        texts = [record.text.replace("\n", " ").encode("utf-8", "surrogateescape") for record in records]
        ends = list(itertools.accumulate(len(text) + 1 for text in texts))
        hits = {bisect.bisect_right(ends, max(place - 1, 0)) for _, place in signatures.screen.scan(b"\n".join(texts))}
        found = []
        for index in sorted(hits):
            record = records[min(index, len(records) - 1)]
            # Identified by the kernel's own time stamp, which is the same in every source; crash dumps have none.
            sequence = None if record.since_boot_s else record.sequence
            line = KernelLine(record.text, node, sequence, record.since_boot_s, record.facility)
            found.extend(
                read_message(signatures, line, at=utc(record.at_s), now=now, where=Where(node=node), boot=boot)
            )
        return found

    return read
