"""The faked GPUs of a node: `gpus.json`, which the fake DCGM bindings read, and the node's kernel log.

Fields hold DCGM field values by number; what is not there has the bindings' healthy default.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lab.layout import Lab, write_atomic

# Bus addresses as on a machine with eight GPUs.
BUSES = ("1b", "43", "52", "61", "9d", "c3", "d1", "df")

State = dict[str, Any]


def pci(index: int) -> str:
    if index < len(BUSES):
        return f"0000:{BUSES[index]}:00.0"
    return f"0000:{0x10 + index:02x}:00.0"


def fresh(lab: Lab, node: str) -> State:
    """Healthy GPUs; the uuid of a GPU stays the same over the life of a lab."""
    gpus = [
        {
            "index": index,
            "uuid": f"GPU-{uuid.uuid5(uuid.NAMESPACE_URL, f'{lab.spec.cluster}/{node}/{index}')}",
            "pci": pci(index),
            "status": "ok",
            "fields": {},
            "xids": [],
        }
        for index in range(lab.spec.gpus)
    ]
    return {"gpus": gpus, "all_blank": False, "hang_s": 0}


def path(lab: Lab, node: str) -> Path:
    return lab.node(node) / "gpus.json"


def read(lab: Lab, node: str) -> State:
    state: State = json.loads(path(lab, node).read_text(encoding="utf-8"))
    return state


def write(lab: Lab, node: str, state: State) -> None:
    write_atomic(path(lab, node), json.dumps(state, indent=1) + "\n")


def change(lab: Lab, node: str, edit: Callable[[State], None]) -> None:
    state = read(lab, node)
    edit(state)
    write(lab, node, state)


def heal(lab: Lab, node: str) -> None:
    """New GPUs in the same slots."""
    write(lab, node, fresh(lab, node))


def add_xid(lab: Lab, node: str, index: int, xid: int, *, lost: bool = False) -> None:
    def edit(state: State) -> None:
        gpu = state["gpus"][index]
        gpu["xids"].append({"xid": xid, "at_us": time.time_ns() // 1000})
        if lost:
            gpu["status"] = "lost"

    change(lab, node, edit)


def kernel_line(lab: Lab, node: str, text: str, *, level: int = 4) -> str:
    """Append one record in the form of /dev/kmsg: ``level,sequence,microseconds since boot,-;text``."""
    log = lab.node(node) / "kmsg"
    sequence = 0
    if log.exists():
        with log.open("rb") as lines:
            sequence = sum(1 for _ in lines)
    record = f"{level},{sequence},{time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000},-;{text}\n"
    with log.open("a", encoding="utf-8") as out:
        out.write(record)
    return record.rstrip("\n")


def prepare(lab: Lab) -> None:
    for name in lab.names:
        heal(lab, name)
        log = lab.node(name) / "kmsg"
        if not log.exists():
            kernel_line(lab, name, f"Linux version of lab node {name}", level=5)
