"""The kernel's own log -> evidence: records of /dev/kmsg, and the text of dmesg and journald.

Only the kernel's facility convicts: what user space wrote into /dev/kmsg or syslog under another name is no kernel line,
and an Xid counts only where the message begins with the driver's own name (a process can be named like one).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from sentinel.evidence.logs import LogReader, Signatures
from sentinel.model import Evidence, Kind, Source, Where, stable_id

_KMSG = re.compile(r"^(\d{1,6}),(\d{1,20}),(\d{1,20}),([^;]{0,80});(.*)$", re.S)
_SYSLOG = re.compile(
    r"^(?:[A-Z][a-z]{2} [ \d]\d [\d:.]{8,15}|\d{4}-\d\d-\d\d[T ]\S{8,32})\s+(\S{1,64})\s+kernel: ?(.*)$", re.S
)
_DMESG = re.compile(r"^(?:<(\d{1,3})>)?(?:\[\s*[^\]]{1,32}\] ?)?(.*)$", re.S)


@dataclass(frozen=True, slots=True)
class KernelLine:
    """One message, without what stands before it."""

    text: str
    node: str | None = None
    sequence: int | None = None
    since_boot_s: float | None = None
    facility: int = 0  # 0 is the kernel itself

    @property
    def own(self) -> bool:
        return self.facility == 0


def kernel_line(raw: str) -> KernelLine:
    """A message from a kmsg record, a syslog line of the kernel, or a line of dmesg."""
    if found := _KMSG.match(raw):
        text = found[5].partition("\n")[0]  # continuation lines hold device keys
        return KernelLine(text, None, int(found[2]), int(found[3]) / 1e6, int(found[1]) >> 3)
    if found := _SYSLOG.match(raw):
        inner = kernel_line(found[2]) if found[2].startswith("[") else KernelLine(found[2])
        return replace(inner, node=found[1])
    found = _DMESG.match(raw)
    assert found is not None  # every part of the pattern is optional
    stamp = re.match(r"^(?:<\d+>)?\[\s*(\d+\.\d+)\]", raw)
    facility = int(found[1]) >> 3 if found[1] else 0
    return KernelLine(found[2], None, None, float(stamp[1]) if stamp else None, facility)


def read_message(
    signatures: Signatures, line: KernelLine, *, at: datetime, now: datetime, where: Where, boot: str = ""
) -> list[Evidence]:
    """Evidence of one kernel message. The id holds boot and sequence, so a record read twice is one evidence."""
    if not line.own:
        return []
    reader = LogReader(signatures, source=Source.KERNEL, where=replace(where, node=line.node or where.node))
    found = reader.feed(line.text.encode("utf-8", "surrogateescape") + b"\n", now)
    evidence = []
    for item in found:
        if item.kind == Kind.XID and not line.text.startswith("NVRM: Xid"):
            continue
        key = line.sequence if line.sequence is not None else line.since_boot_s
        identity = stable_id("kernel", item.where.node, boot, key, item.rule, line.text)
        node = line.node or where.node
        evidence.append(replace(item, id=identity, at=at, line=None, where=replace(item.where, node=node)))
    return evidence


class KernelReader:
    """The text of a kernel log, fed as it comes (a file, ``dmesg``, ``journalctl -k``)."""

    def __init__(self, signatures: Signatures, where: Where, *, booted_at: datetime | None = None) -> None:
        self._signatures = signatures
        self._where = where
        self._booted_at = booted_at
        self._pending = b""
        self._line = 0

    def feed(self, data: bytes, now: datetime) -> list[Evidence]:
        *lines, self._pending = (self._pending + data).split(b"\n")
        self._pending = self._pending[-65536:]
        return [item for line in lines for item in self._read(line, now)]

    def finish(self, now: datetime) -> list[Evidence]:
        line, self._pending = self._pending, b""
        return self._read(line, now) if line else []

    def _read(self, raw: bytes, now: datetime) -> list[Evidence]:
        self._line += 1
        line = kernel_line(raw[:8192].decode("utf-8", "surrogateescape"))
        at = now
        if self._booted_at is not None and line.since_boot_s is not None:
            at = min(now, self._booted_at + timedelta(seconds=line.since_boot_s))
        found = read_message(self._signatures, line, at=at, now=now, where=self._where)
        return [replace(item, line=self._line) for item in found]
