"""Reads the state of host and network fabric from /sys and /proc. What cannot be read is left out.

Runs in a probe's process: a broken adapter or process can block a read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from sentinel.adapters.host.environ import environment_of, uid_of

_LIBRARIES = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64")
_VERSION = re.compile(r"\b(\d{3}\.\d+(?:\.\d+)?)\b")
# Of NVIDIA's packages, with accounts of their own; they hold GPUs as their work.
_SERVICES = frozenset({"nvidia-persistenced", "nv-hostengine", "nvvs"})
_JOB_ID = frozenset({"SLURM_JOB_ID"})
_COUNTERS = ("link_downed", "link_error_recovery", "local_link_integrity_errors", "excessive_buffer_overrun_errors")

_MOVED = (
    ("counters/port_xmit_data", 4),
    ("counters/port_rcv_data", 4),
    ("hw_counters/tx_bytes", 1),
    ("hw_counters/rx_bytes", 1),
)
_STOPPED = 2**32 - 1  # where a counter of 32 bits stops


def ports(sysfs: Path) -> list[dict[str, Any]] | None:
    """Every port of every InfiniBand or RoCE adapter with its state and its error counters.

    None where adapters are not listed: their drivers are not loaded, or sysfs cannot be read.
    """
    try:
        adapters = sorted((sysfs / "class/infiniband").iterdir())
    except OSError:
        return None
    made = []
    for folder in [port for adapter in adapters for port in sorted(adapter.glob("ports/*"))]:
        state = _text(folder / "state")  # "4: ACTIVE"
        counters = {name: number for name in _COUNTERS if (number := _number(folder / "counters" / name)) is not None}
        made.append(
            {
                "name": f"{folder.parents[1].name}:{folder.name}",
                "state": state.rpartition(":")[2].strip() if state else None,
                "counters": counters,
                "virtual": (folder.parents[1] / "device" / "physfn").exists(),
            }
        )
    return made


def network_bytes(sysfs: Path) -> int | None:
    """Bytes sent and received since the start by all hardware network adapters; None when there is none, or not all tell.

    InfiniBand and RoCE ports count words of 4 bytes, old ones only up to 32 bits, where they stop (the kernel's
    Documentation/ABI/stable/sysfs-class-infiniband); EFA counts bytes. An Ethernet interface does not count RDMA.
    """
    counters = [
        (folder / name, size)
        for folder in sysfs.glob("class/infiniband/*/ports/*")
        for name, size in _MOVED
        if (folder / name).exists()
    ]
    for interface in sysfs.glob("class/net/*"):
        if (interface / "device").exists():  # no bridge, tunnel or loopback, whose bytes do not leave the node
            counters += [(interface / "statistics" / name, 1) for name in ("rx_bytes", "tx_bytes")]
    total = 0
    for path, size in counters:
        found = _number(path)
        if found is None or found == _STOPPED:
            return None
        total += size * found
    return total if counters else None


def uncorrected(sysfs: Path) -> dict[str, int]:
    """Uncorrected errors by memory controller (EDAC)."""
    counts = (
        (folder.name, _number(folder / "ue_count")) for folder in sorted(sysfs.glob("devices/system/edac/mc/mc*"))
    )
    return {name: count for name, count in counts if count is not None}


def memory_available(proc: Path) -> float | None:
    """Share of host memory that is available."""
    text = _text(proc / "meminfo") or ""
    values = {name: int(value) for name, value in re.findall(r"^(\w+):\s+(\d+) kB", text, re.M)}
    total = values.get("MemTotal")
    return values["MemAvailable"] / total if total and "MemAvailable" in values else None


def used_fraction(path: str) -> float | None:
    """Share of a file system that ordinary users cannot fill any more, in bytes or in inodes, whichever is worse."""
    try:
        status = os.statvfs(path)
    except OSError:
        return None
    shares = []
    if status.f_blocks:
        used = status.f_blocks - status.f_bfree
        shares.append(used / (used + status.f_bavail) if used + status.f_bavail else 1.0)
    if status.f_files:
        shares.append(1 - status.f_favail / status.f_files)
    return max(shares) if shares else None


def driver_version(proc: Path) -> str | None:
    """Version of the loaded NVIDIA kernel module; None when there is none."""
    text = _text(proc / "driver" / "nvidia" / "version")
    match = _VERSION.search(text.splitlines()[0]) if text else None
    return match[1] if match else None


def library_version(folders: Collection[str] = _LIBRARIES) -> str | None:
    """Version of libnvidia-ml on disk, from the file that its link points to."""
    for folder in folders:
        link = Path(folder) / "libnvidia-ml.so.1"
        if link.is_symlink():
            match = re.search(r"\.so\.(\d+(?:\.\d+)+)$", str(link.resolve()))
            if match:
                return match[1]
    return None


def strays(proc: Path, jobs: Collection[int]) -> list[tuple[int, str]]:
    """Processes that hold a GPU's device file and are neither root's nor NVIDIA's own services nor of one of these jobs."""
    found = []
    for pid, folder in _processes(proc):
        try:
            if uid_of(folder) == 0 or not _holds_gpu(folder) or _is_program(folder, _SERVICES):
                continue
            named = environment_of(folder, _JOB_ID).get("SLURM_JOB_ID", "")
        except OSError:
            continue  # gone, or not ours to look at
        if named not in map(str, jobs):
            found.append((pid, (_text(folder / "comm") or "").strip()))
    return found


def switches(proc: Path) -> int:
    """NVSwitches that the driver has on this node."""
    return sum(1 for _ in proc.glob("driver/nvidia-nvswitch/devices/*"))


def runs(proc: Path, name: str) -> bool | None:
    """Whether a process of root runs the program of this name; None where processes cannot be listed, or where one calls
    itself so that may not be looked at."""
    try:
        named = (
            folder for _, folder in _processes(proc) if _text(folder / "comm") == name[:15] and _is_of_root(folder)
        )
        found = {_is_program(folder, {name}) for folder in named}
    except OSError:
        return None
    return True if True in found else None if None in found else False


def _is_of_root(folder: Path) -> bool:
    try:
        return uid_of(folder) == 0
    except OSError:
        return False  # gone


def _processes(proc: Path) -> Iterator[tuple[int, Path]]:
    for entry in proc.iterdir():
        if entry.name.isdigit():
            yield int(entry.name), entry


def _holds_gpu(folder: Path) -> bool:
    for entry in (folder / "fd").iterdir():
        try:
            if re.fullmatch(r"/dev/nvidia\d+", str(entry.readlink())):
                return True
        except OSError:
            continue
    return False


def _is_program(folder: Path, names: Collection[str]) -> bool | None:
    """By its program's file, which only root can have put there: a process may call itself anything. None: not permitted."""
    try:
        name, file = (folder / "exe").readlink().name, (folder / "exe").stat()
    except PermissionError:
        return None
    except OSError:
        return False
    return name.removesuffix(" (deleted)") in names and file.st_uid == 0 and not file.st_mode & 0o022


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text and text.lstrip("-").isdigit() else None
