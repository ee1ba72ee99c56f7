"""The kernel's own log -> evidence: records of /dev/kmsg, and the text of dmesg and journald.

Only the kernel's facility counts: what user space wrote into /dev/kmsg or syslog under another name is no kernel line. Which
part of a kernel's line can convict is said in ``sentinel.evidence.logs.machine_logs`` and in the rules' anchors.
"""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime

from sentinel.evidence.logs.machine_logs import KernelLine
from sentinel.evidence.logs.reader import LogReader, Signatures
from sentinel.model.records import Evidence, Source, Where, stable_id

# With which GPU's address a line of NVIDIA's driver begins; an Xid's rule reads it itself.
_OF_GPU = re.compile(
    r"(?:NVRM: (?:The NVIDIA )?(?:GPU (?:at )?|Xid \()(?:PCI:)?|nvidia )"
    r"([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)(?![0-9a-fA-F])"
)
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
    of_gpu = _OF_GPU.match(line.text)
    evidence = []
    for item in found:
        # Without its function, as an Xid has it. A GPU not named is anybody's.
        data = item.data if of_gpu is None else {"pci": of_gpu[1].lower().partition(".")[0], **item.data}
        key = line.sequence if line.sequence is not None else line.since_boot_s
        identity = stable_id("kernel", item.where.node, boot, key, item.rule, line.text)
        node = line.node or where.node
        evidence.append(replace(item, id=identity, at=at, line=None, data=data, where=replace(item.where, node=node)))
    return evidence
