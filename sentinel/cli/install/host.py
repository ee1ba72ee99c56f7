"""Carries an installation out on this host: files by rename, accounts, units. Each step is shown before it is done."""

from __future__ import annotations

import difflib
import os
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from sentinel.adapters.atomic_file import replace_file
from sentinel.cli.install.files import File, nothing_hook
from sentinel.errors import FileError, Unavailable

COMMAND_S = 60.0  # deadline of systemctl, useradd, sacctmgr: a slurmdbd that does not answer must not hold up the rest
FOLDER_MODE = 0o755  # users run TaskProlog, SlurmUser EpilogSlurmctld, and the daemon's account reads its settings


@dataclass(frozen=True, slots=True)
class Write:
    path: Path
    text: str
    mode: int
    state: str  # "new", "changed", "same", "yours"
    gid: int = -1  # the group of a new file; -1: that of this process
    like: Path | None = None  # mode and owner are those of this file
    here: bool = False  # where the path is a link, it is replaced: what it leads to is other hosts', too


@dataclass
class Actions:
    """What is done, in this order: account, files, links, commands."""

    writes: list[Write] = field(default_factory=list)
    links: list[tuple[Path, str]] = field(default_factory=list)
    removals: list[Path] = field(default_factory=list)
    before: list[list[str]] = field(default_factory=list)  # commands that come before the files
    after: list[list[str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    modes: list[tuple[Path, int]] = field(default_factory=list)  # of what is there already
    # The files once more, after the commands before them: the uid of an account that these make is known only then.
    again: Callable[[], list[Write]] | None = None

    def lines(self) -> list[str]:
        """What will be done, a line each."""
        said = [f"run     {' '.join(command)}" for command in self.before]
        said += [f"{_VERBS[write.state]:7} {write.path}" for write in self.writes]
        said += [f"change  {path} (mode {mode:o})" for path, mode in self.modes]
        said += [f"link    {link} -> {target}" for link, target in self.links]
        said += [f"remove  {path}" for path in self.removals]
        return said + [f"run     {' '.join(command)}" for command in self.after]

    def carry_out(self) -> None:
        for command in self.before:
            run(command)
        for write in self.again() if self.before and self.again is not None else self.writes:
            if write.state in ("new", "changed"):
                _carry_out(write)
        for path, mode in self.modes:
            with _writing(path):
                path.chmod(mode)
        for link, target in self.links:
            with _writing(link):
                make_folders(link.parent)
                if not link.is_symlink():
                    link.symlink_to(target)
        for path in self.removals:
            with _writing(path):
                path.unlink(missing_ok=True)
        for command in self.after:
            run(command)

    def require_inside(self, root: Path) -> None:
        """Nothing of this host is changed for an image: an absolute link in it leads to this host's files.

        Raises:
            FileError: a path below ``root`` leads out of it.
        """
        followed = [
            *(w.path for w in self.writes if w.state in ("new", "changed") and not w.here),
            *(p for p, _ in self.modes),
        ]
        kept = [*(w.path for w in self.writes if w.here), *(link for link, _ in self.links), *self.removals]
        for path, leads in [*((p, p) for p in followed), *((p, p.parent) for p in kept)]:
            if path.absolute().is_relative_to(root.absolute()) and not leads.resolve().is_relative_to(root.resolve()):
                raise FileError(
                    path,
                    f"leads out of {root}, to {leads.resolve()}",
                    fix="make the link relative, or run this in a chroot",
                )


_VERBS = {"new": "write", "changed": "change", "same": "same", "yours": "keep"}


def writes(files: Sequence[File], root: Path) -> list[Write]:
    """What becomes of each file below ``root``; a file that is the site's is kept as it is."""
    found = []
    for file in {file.path: file for file in files}.values():
        path = below(root, file.path)
        if not path.exists():
            state = "new"
        elif not file.ours or not path.is_file():  # a unit that is masked leads to /dev/null
            state = "yours"
        else:
            same = path.read_text(encoding="utf-8", errors="replace") == file.text
            state = "same" if same and path.stat().st_mode & 0o777 == file.mode else "changed"
        found.append(Write(path, file.text, file.mode, state, file.gid))
    return found


def removals(files: Sequence[File], root: Path, needed: Sequence[str]) -> Actions:
    """Files of ours go; a hook that slurm.conf needs is replaced by one that does nothing."""
    actions = Actions()
    for file in files:
        path = below(root, file.path)
        if not file.ours or not path.exists():
            continue
        if file.path in needed:
            actions.writes.append(Write(path, nothing_hook(file), file.mode, "changed", here=True))
        else:
            actions.removals.append(path)
    return actions


def below(root: Path, path: str) -> Path:
    return root / path.lstrip("/")


def difference(before: str, after: str, name: str) -> list[str]:
    return list(difflib.unified_diff(before.splitlines(), after.splitlines(), name, f"{name} (new)", lineterm="", n=1))


def make_folders(folder: Path) -> None:
    """Make the folder and those above it where they are missing, for all to enter, whatever the umask is.

    Raises:
        OSError: it cannot be made.
    """
    if not folder.is_dir():
        make_folders(folder.parent)
        folder.mkdir()
        folder.chmod(FOLDER_MODE)


def write_file(path: Path, text: str, mode: int, owner: tuple[int, int] = (-1, -1)) -> None:
    """Replace the file by rename, and make its folder where there is none. What a link leads to is written, the link stays.

    Args:
        owner: uid and gid, given by root only; -1: those of this process.

    Raises:
        FileError: it cannot be written, or is a link that leads to no file.
    """
    target = path.resolve() if path.is_symlink() else path
    if path.is_symlink() and not target.is_file():
        raise FileError(
            path, f"is a link to {target}, which is no file", fix="mount what it lies on, or remove the link"
        )
    with _writing(path):
        make_folders(target.parent)
        # A slurm.conf may hold bytes of another encoding.
        replace_file(target, text, mode, owner if os.geteuid() == 0 else (-1, -1), errors="surrogateescape")


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """
    Raises:
        FileError: it cannot be written.
    """
    try:
        yield
    except OSError as error:
        raise FileError(path, f"cannot be written: {error.strerror}", fix="run it as root") from error


def _carry_out(write: Write) -> None:
    if write.here and write.path.is_symlink():
        with _writing(write.path):
            replace_file(write.path, write.text, write.mode)
    elif write.like is not None:
        status = write.like.stat()
        write_file(write.path, write.text, stat.S_IMODE(status.st_mode), (status.st_uid, status.st_gid))
    else:
        write_file(write.path, write.text, write.mode, (-1, write.gid))


def run(command: Sequence[str]) -> None:
    """
    Raises:
        Unavailable: the command failed, or did not end in time.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{' '.join(command)}: {error}") from error
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise Unavailable(
            f"{' '.join(command)} ended with {done.returncode}: {said[-1] if said else 'it said nothing'}",
            fix="correct that and run the same again: what is done already stays done",
        )


def has_systemd() -> bool:
    """Whether systemd runs this host (not a chroot, not a container without it)."""
    return Path("/run/systemd/system").is_dir() and shutil.which("systemctl") is not None
