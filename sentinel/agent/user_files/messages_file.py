"""Reads the file in which a user says where messages about own jobs go, as that user; a few KB at most."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from sentinel.agent.probes import account, become, begin, say
from sentinel.model.orders import MOST_MESSAGES_FILE


class NotTaken(Exception):
    """The file exists and is not accepted; the message says why."""


def text_of(path: Path) -> str | None:
    """The text of a file that only this process's user can write; None: there is no file.

    Raises:
        NotTaken: not a regular file, writable by others, too long, not UTF-8, or not readable.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise NotTaken(f"it cannot be read: {error.strerror}") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise NotTaken("it is no regular file")
        if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise NotTaken("others may write it: chmod 644 makes it the user's own")
        if status.st_size > MOST_MESSAGES_FILE:
            raise NotTaken(f"it has more than {MOST_MESSAGES_FILE} bytes")
        return os.read(descriptor, MOST_MESSAGES_FILE).decode("utf-8")
    except UnicodeDecodeError as error:
        raise NotTaken(f"it is not UTF-8 at byte {error.start}") from error
    except OSError as error:
        raise NotTaken(f"it cannot be read: {error.strerror}") from error
    finally:
        os.close(descriptor)


def main() -> None:
    arguments = begin()
    become(arguments["uid"], arguments["gid"])
    name, (user, home) = str(arguments["file"]), account()
    try:
        text = text_of(Path(home) / name) if name and home else None
    except NotTaken as error:
        say({"result": {"problem": str(error)}})
        return
    say({"result": {"text": text, "user": user}})


if __name__ == "__main__":
    main()
