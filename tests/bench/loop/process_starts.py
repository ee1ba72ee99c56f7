"""Which programs were started and ended on this machine in a stretch of time, with the CPU that each took.

The kernel tells of each exec and exit (netlink connector, CN_IDX_PROC), so nothing is polled. Needs root.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

_CONNECTOR, _PROCESSES, _LISTEN = 11, 1, 1  # NETLINK_CONNECTOR, CN_IDX_PROC, PROC_CN_MCAST_LISTEN
_EXEC, _EXIT = 0x2, 0x80000000
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Started:
    name: str
    at_s: float
    cpu_s: float = 0.0


def _name(pid: int) -> str:
    """The module of a Python program, else the name of the program."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    if "-m" in words[:-1]:
        return words[words.index("-m") + 1]
    scripts = [word for word in words[1:3] if word.endswith((".py", ".sh"))]
    return os.path.basename(scripts[0] if scripts else words[0])


class ProcessStarts:
    """Listens from its making on, in a thread."""

    def __init__(self) -> None:
        self.found: list[Started] = []
        self._running: dict[int, Started] = {}
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _CONNECTOR)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
        self._socket.bind((0, _PROCESSES))
        words = struct.pack("=IIIIHHI", _PROCESSES, 1, 0, 0, 4, 0, _LISTEN)
        self._socket.send(struct.pack("=IHHII", 16 + len(words), 3, 0, 0, os.getpid()) + words)
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                message = self._socket.recv(4096)
            except OSError:  # more than fits: some are not counted
                continue
            what, pid, group = struct.unpack_from("=I", message, 36)[0], *struct.unpack_from("=II", message, 52)
            if pid != group:
                continue
            try:
                if what == _EXEC:
                    self._running[pid] = started = Started(_name(pid), time.time())
                    self.found.append(started)
                elif what == _EXIT and pid in self._running:
                    started = self._running.pop(pid)
                    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                    started.cpu_s = (int(fields[11]) + int(fields[12])) / _TICKS
            except (OSError, IndexError):
                continue

    def between(self, from_s: float, until_s: float) -> list[Started]:
        return [started for started in self.found if from_s <= started.at_s < until_s]


def table(found: list[Started], most: int = 12) -> str:
    """How many of each, and their CPU, the costliest first."""
    counts, cpu = Counter(one.name for one in found), defaultdict[str, float](float)
    for one in found:
        cpu[one.name] += one.cpu_s
    ordered = sorted(counts, key=lambda name: (-cpu[name], -counts[name]))[:most]
    return ", ".join(f"{name} {counts[name]} ({cpu[name]:.2f} s)" for name in ordered)
