"""Opens folders of ours beside a checkpoint root, where others may write as well, and works below their descriptors.

What lies in ``.quarantine`` and ``.incoming`` is trusted: moves are taken back as the journal says, files that are there
are not copied again. Therefore both must be ours and writable by nobody else; and since somebody with rights in the parent
folder could put another one in their place, everything is done relative to the descriptors that were checked.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from sentinel.errors import Denied, Refused, UserError
from sentinel.text import visible

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FULL = (errno.ENOSPC, errno.EDQUOT)
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def check_own(fd: int, shown: Path) -> None:
    """
    Raises:
        Refused: the open file or folder is another user's, or others may write to it.
    """
    status = os.fstat(fd)
    if status.st_uid != os.geteuid():
        raise Refused(
            f"{visible(str(shown))} belongs to uid {status.st_uid}, not to us (uid {os.geteuid()}): what it says is not "
            "believed",
            fix=f"run this as uid {status.st_uid}, or let the checkpoints lie in a folder of their own",
        )
    if status.st_mode & _OTHERS_WRITE:
        raise Refused(
            f"{visible(str(shown))} can be written by others: what it says is not believed",
            fix=f"look at what is in it, then chmod go-w {visible(str(shown))}",
        )
    if stat.S_ISREG(status.st_mode) and status.st_nlink != 1:
        raise Refused(f"{visible(str(shown))} has another name elsewhere: what it says is not believed")


@contextlib.contextmanager
def opened_folder(path: Path) -> Iterator[int]:
    """A descriptor of a folder that a person named; links to it are followed.

    Raises:
        Denied: it cannot be opened.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise Denied(f"{visible(str(path))} cannot be opened as a folder: {error.strerror}") from error
    try:
        yield fd
    finally:
        os.close(fd)


def refuse_root_beside_users(path: Path, fd: int) -> None:
    """Root's quarantine beside a user's folder would keep out the agents, which move saves aside as that user; and a user's
    link, put there after root looked, leads to saves of others.

    Args:
        fd: what was opened by that path.

    Raises:
        Refused: this process is root, and the folder, or a link on the way to it, is a user's.
    """
    if os.geteuid() != 0:
        return
    owners = {os.fstat(fd).st_uid}
    if str(Path(f"/proc/self/fd/{fd}").readlink()) != os.path.normpath(path):
        above = [status for at in (path, *path.parents) if (status := _status_of(at)) is not None]
        on_the_way = [status.st_uid for status in above if stat.S_ISLNK(status.st_mode)]
        if not on_the_way:
            raise Refused(f"{visible(str(path))} is another folder than was looked at: somebody changes it")
        owners.update(on_the_way)
    if owner := max(owners):
        raise Refused(
            f"{visible(str(path))} belongs to uid {owner}, or a link of that user leads there: root moves nothing in it",
            fix=f"Run it as that user: sudo -u '#{owner}' sentinel ...",
        )


def _status_of(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except OSError:
        return None


def require_parent(root: Path) -> None:
    """The folder above a target must be there: made in the place of a file system that is not mounted, it would be filled.

    Raises:
        UserError: it is not there.
    """
    if not root.parent.is_dir():
        raise UserError(
            f"{visible(str(root.parent))} is no folder that is there: is its file system mounted?",
            fix=f"Mount it; if the folder is meant to be new, make it: mkdir -p {visible(str(root.parent), None)}",
        )


@contextlib.contextmanager
def below(fd: int, parts: Sequence[str], *, make: bool = False) -> Iterator[int]:
    """A descriptor of the folder at ``parts`` below an open one, through no link.

    Raises:
        OSError: it is not there (and not made), or something on the way is a link or no folder.
    """
    at = os.dup(fd)
    try:
        for name in parts:
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, 0o755, dir_fd=at)
            inner = os.open(name, _FOLDER, dir_fd=at)
            os.close(at)
            at = inner
        yield at
    finally:
        os.close(at)


def opened_half(name: str, folder: int, shown: Path) -> int:
    """A descriptor of the file in which a copy named ``name`` is put together, taken up where it was left.

    Raises:
        OSError: it cannot be opened. Refused: it is not ours alone: whoever made it could change it after its check.
    """
    fd = os.open(
        half_of(name), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644, dir_fd=folder
    )
    try:
        check_own(fd, shown.with_name(half_of(name)))
    except Refused:
        os.close(fd)
        raise
    return fd


def keep_owner(fd: int, of: os.stat_result) -> None:
    """Give a file that is put in the place of another one to whom that belongs, as far as we may: its mode may be for its
    owner alone."""
    for uid in (of.st_uid, -1):
        try:
            os.fchown(fd, uid, of.st_gid)
        except OSError:
            continue
        return


def half_of(name: str) -> str:
    return f".{name}.part"


@contextlib.contextmanager
def own_store(parent: Path, names: Sequence[str], *, make: bool, mode: int = 0o700) -> Iterator[int]:
    """A descriptor of our folder at ``names`` below ``parent``, each of them checked; ``mode``: of those that are made.

    Raises:
        FileNotFoundError: there is none, and none was to be made.
        Denied: it cannot be made or opened. Refused: it is not ours alone.
    """
    shown = parent
    with opened_folder(parent) as top:
        at = os.dup(top)
        try:
            for name in names:
                shown /= name
                try:
                    if make:
                        with contextlib.suppress(FileExistsError):
                            os.mkdir(name, mode, dir_fd=at)
                    inner = os.open(name, _FOLDER, dir_fd=at)
                except FileNotFoundError as error:
                    if make:  # somebody else may rename here
                        raise Denied(f"{visible(str(shown))} was taken away as soon as it was made") from error
                    raise
                except NotADirectoryError as error:  # also for a link
                    raise Refused(f"{visible(str(shown))} is a link or no folder", fix="Move it away.") from error
                except OSError as error:
                    right = f"Give yourself the right to write in {visible(str(parent))}, or make the folder."
                    raise Denied(
                        f"{visible(str(shown))} cannot be made: {error.strerror}",
                        fix="Free some space there." if error.errno in FULL else right,
                    ) from error
                os.close(at)
                at = inner
                check_own(at, shown)
            yield at
        finally:
            os.close(at)


def exists(fd: int, name: str) -> bool:
    """Whether there is an entry of this name, a link too, in an open folder."""
    try:
        os.stat(name, dir_fd=fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def exists_below(fd: int, inside: Path) -> bool:
    """The same of a path below an open folder, through no link."""
    try:
        with below(fd, inside.parts[:-1]) as parent:
            return exists(parent, inside.name)
    except (FileNotFoundError, NotADirectoryError):
        return False
