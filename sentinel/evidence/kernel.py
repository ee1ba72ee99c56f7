"""The kernel's own log -> evidence: records of /dev/kmsg, and the text of dmesg and journald.

Only the kernel's facility counts: what user space wrote into /dev/kmsg or syslog under another name is no kernel line. Which
part of a kernel's line can convict is said in ``sentinel.evidence.logs.machine_logs`` and in the rules' anchors.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from sentinel.evidence.logs.machine_logs import KernelLine
from sentinel.evidence.logs.reader import LogReader, Signatures
from sentinel.model.records import Evidence, Source, Where, stable_id

_CONTROLS = bytes(byte if byte >= 32 or byte == 9 else 63 for byte in range(256))  # control characters as "?"


def read_message(
    signatures: Signatures, line: KernelLine, *, at: datetime, now: datetime, where: Where, boot: str = ""
) -> list[Evidence]:
    """Evidence of one kernel message. The id holds boot and sequence, so a record read twice is one evidence."""
    if not line.own:
        return []
    reader = LogReader(signatures, source=Source.KERNEL, where=replace(where, node=line.node or where.node), bare=True)
    # One record is one message: a line end or a carriage return within a name must not begin another.
    text = line.text.encode("utf-8", "surrogateescape").translate(_CONTROLS)
    found = reader.feed(text + b"\n", now)
    evidence = []
    for item in found:
        key = line.sequence if line.sequence is not None else line.since_boot_s
        identity = stable_id("kernel", item.where.node, boot, key, item.rule, line.text)
        node = line.node or where.node
        evidence.append(replace(item, id=identity, at=at, line=None, where=replace(item.where, node=node)))
    return evidence
