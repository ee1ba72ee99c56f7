"""The shared folder as a file system of its own (root, loop device), so that it can fill up and block for real."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from lab.layout import Lab, LabError

SIZE_BYTES = 8 << 30  # sparse: takes what is written
TIMEOUT_S = 30


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(arguments, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


def possible() -> bool:
    return os.geteuid() == 0 and Path("/dev/loop-control").exists() and shutil.which("mkfs.ext4") is not None


def create(lab: Lab) -> bool:
    """Mount an image over ``shared``; False where that is not possible, and the folder stays a plain one."""
    if not possible():
        return False
    image = lab.dir / "shared.img"
    with image.open("wb") as out:
        out.truncate(SIZE_BYTES)
    made = command("mkfs.ext4", "-q", "-F", "-m", "0", "-O", "^has_journal", str(image))
    if made.returncode != 0:
        image.unlink()
        return False
    mounted = command("mount", "-o", "loop,noatime", str(image), str(lab.shared))
    if mounted.returncode != 0:  # containers often have no loop devices
        image.unlink()
        return False
    lab.shared.chmod(0o1777)
    (lab.shared / "lost+found").rmdir()
    return True


def pass_on(lab: Lab) -> None:
    """Let what is mounted in the lab's folder later (a full disk) reach nodes that have their own view of mounts."""
    folder = str(lab.dir)
    for arguments in (("--bind", folder, folder), ("--make-private", folder), ("--make-shared", folder)):
        done = command("mount", *arguments)
        if done.returncode != 0:
            raise LabError(f"mount {' '.join(arguments)}: {done.stderr.strip()}")


def is_own_file_system(folder: Path) -> bool:
    return folder.stat().st_dev != folder.parent.stat().st_dev


def freeze(lab: Lab) -> None:
    if not is_own_file_system(lab.shared):
        raise LabError(
            "the shared folder is no file system of its own, so it cannot block: this needs root and a loop device at lab up"
        )
    done = command("fsfreeze", "--freeze", str(lab.shared))
    if done.returncode != 0:
        raise LabError(f"fsfreeze: {done.stderr.strip()}")


def thaw(lab: Lab) -> None:
    done = command("fsfreeze", "--unfreeze", str(lab.shared))
    if done.returncode != 0:
        raise LabError(f"fsfreeze: {done.stderr.strip()}")


def mounts_below(folder: Path) -> list[Path]:
    """Mount points in a folder (and the folder itself when it is one), deepest first."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        point = line.split()[4].replace("\\040", " ")
        if f"{point}/".startswith(f"{folder}/"):
            found.append(Path(point))
    return sorted(found, key=lambda point: len(str(point)), reverse=True)


def thaw_all(folder: Path) -> None:
    """Before processes are ended: one that waits for a frozen file system cannot be killed."""
    for point in mounts_below(folder):
        command("fsfreeze", "--unfreeze", str(point))  # fails where nothing is frozen


def unmount_all(folder: Path) -> None:
    for point in mounts_below(folder):
        done = command("umount", str(point))
        if done.returncode != 0:
            command("umount", "--lazy", str(point))
