"""Faults of checkpoints and of the file systems that hold them."""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import shutil
import subprocess
from pathlib import Path

from lab import storage
from lab.faults.base import Fault, Options, Record, add_victim, ask, pick_rank, take_back
from lab.layout import Lab, LabError
from lab.training import job

BLOCK = 4096
ROOM = 1 << 30  # of a node's disk that was full once


def newest(lab: Lab, tier: str, run: str | None, node: str | None) -> Path:
    """Folder of the newest complete checkpoint of a tier (of one node's parts, in the local tier)."""
    if tier == "global":
        roots = [lab.shared]
        marker = ".metadata"
    else:
        roots = [lab.node(name) / "nvme" for name in ([node] if node else lab.names)]
        marker = "__*.metadata"
    found: list[tuple[float, int, Path]] = []
    for root in roots:
        for base in (p for p in root.iterdir() if p.is_dir() and run in (None, p.name)):
            for step in job.steps_in(base):
                where = job.folder(base, step)
                markers = list(where.glob(marker))
                if markers:
                    found.append((markers[0].stat().st_mtime, step, where))
    if not found:
        raise LabError(f"no complete checkpoint in the {tier} tier yet; wait for a 'saved step ... ({tier})' line")
    last_run = max(found)[2].parent.name
    return max((step, where) for _, step, where in found if where.parent.name == last_run)[1]


def spoil(where: Path, how: str) -> Path:
    """Damage one file of a checkpoint; gives the file."""
    if how == "torn":
        victim = min(where.glob("*.metadata")) if list(where.glob("__*.metadata")) else where / ".metadata"
        victim.unlink()
        return victim
    victim = max(where.glob("*.distcp"), key=lambda part: (part.stat().st_size, part.name))
    stat = victim.stat()
    with victim.open("r+b") as data:
        if how == "truncate":
            data.truncate(stat.st_size // 2)
        else:
            # The middle of a part is payload, neither header nor directory of an item.
            data.seek(stat.st_size // 2)
            block = data.read(BLOCK if how == "zero" else 1)
            data.seek(stat.st_size // 2)
            data.write(bytes(len(block)) if how == "zero" else bytes([block[0] ^ 0x40]))
    if how != "truncate":
        os.utime(victim, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # rot on a disk does not touch the date
    return victim


def corrupt(lab: Lab, options: Options) -> list[Record]:
    tiers = ("local", "global") if options.tier == "both" else (options.tier,)
    records = []
    for tier in tiers:
        where = newest(lab, tier, options.run, options.node)
        victim = spoil(where, options.how)
        step = int(where.name.removeprefix("step-"))
        node = where.parents[2].name if tier == "local" else None
        records.append(CORRUPT.record(node=node, tier=tier, step=step, how=options.how, path=str(victim)))
    return records


def corrupt_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tier", choices=("local", "global", "both"), default="both")
    parser.add_argument("--how", choices=("truncate", "flip", "zero", "torn"), default="truncate")
    parser.add_argument("--run", help="name of the run (default: the one that saved last)")
    parser.add_argument("--node", help="whose part, in the local tier (default: any)")


def disk_full(lab: Lab, options: Options) -> list[Record]:
    """Really full as root; as an ordinary user the program's next file is /dev/full, which says ENOSPC to every write."""
    if options.tier == "global":
        if not storage.is_own_file_system(lab.shared):
            raise LabError(
                "the shared folder is no file system of its own (not root, or no loop device); take --tier local"
            )
        filler = lab.shared / ".filler"
        fill(filler)
        return [DISK_FULL.record(tier="global", path=str(lab.shared), filler=str(filler))]
    if os.geteuid() != 0:
        victim = pick_rank(lab, options)
        record = DISK_FULL.record(node=victim.node, rank=victim.rank, job=victim.job, tier="local", path="/dev/full")
        ask(lab, victim.job, {"id": record["id"], "kind": "disk-full", "node": victim.node})
        return [record]
    node = options.node or pick_rank(lab, options).node
    lab.index(node)
    nvme = lab.node(node) / "nvme"
    small_disk(nvme)
    filler = nvme / ".filler"
    fill(filler)
    return [DISK_FULL.record(node=node, tier="local", path=str(nvme), filler=str(filler))]


def small_disk(nvme: Path) -> None:
    """Put a small file system with the same content in place of a folder, or make the one that is there small again."""
    if storage.is_own_file_system(nvme):
        there = os.statvfs(nvme)
        resize(nvme, (there.f_blocks - there.f_bfree) * there.f_frsize + 64 * BLOCK)
        return
    used = sum(part.stat().st_size for part in nvme.rglob("*") if part.is_file())
    aside = nvme.with_name("nvme-under")
    copy(nvme, aside)
    mode = oct(nvme.stat().st_mode & 0o7777)[2:]
    size = used + 64 * BLOCK
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size},mode={mode}", "tmpfs", str(nvme)]
    subprocess.run(mount, check=True, timeout=20)
    copy(aside, nvme)
    shutil.rmtree(aside)


def copy(source: Path, target: Path) -> None:
    """With owners: a job goes on in its own folders."""
    target.mkdir(exist_ok=True)
    subprocess.run(["cp", "--archive", f"{source}/.", str(target)], check=True, timeout=60)


def resize(nvme: Path, size: int) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size}", str(nvme)], check=True, timeout=20)


def fill(filler: Path) -> None:
    """Take all space there is: in one piece (which writes nothing), then block by block."""
    free = os.statvfs(filler.parent)
    with filler.open("wb", buffering=0) as out:
        with contextlib.suppress(OSError):  # a little less than the file system promised
            os.posix_fallocate(out.fileno(), 0, max(1, free.f_bavail * free.f_frsize - (1 << 20)))
        out.seek(0, os.SEEK_END)
        try:
            while out.write(bytes(BLOCK)):
                pass
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise


def disk_arguments(parser: argparse.ArgumentParser) -> None:
    add_victim(parser)
    parser.add_argument("--tier", choices=("local", "global"), default="local")


def make_room(lab: Lab, record: Record) -> str:
    if record.get("filler"):
        Path(record["filler"]).unlink(missing_ok=True)
        if record["tier"] == "local" and storage.is_own_file_system(Path(record["path"])):
            resize(Path(record["path"]), ROOM)  # else the jobs that come later would fill it in a moment
    else:
        take_back(lab, record["job"], record["id"])
    return f"{record['path']} has room again"


def block(lab: Lab, options: Options) -> list[Record]:
    storage.freeze(lab)
    return [STORAGE.record(path=str(lab.shared))]


def unblock(lab: Lab, record: Record) -> str:
    storage.thaw(lab)
    return f"{record['path']} answers again"


CORRUPT = Fault("corrupt-checkpoint", "the newest complete checkpoint is damaged", corrupt, None, corrupt_arguments)
DISK_FULL = Fault("disk-full", "no space left where checkpoints go", disk_full, make_room, disk_arguments)
STORAGE = Fault("storage", "the shared folder blocks: every write waits (root)", block, unblock)
FAULTS = (CORRUPT, DISK_FULL, STORAGE)
