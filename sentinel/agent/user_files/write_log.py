"""Appends the daemon's paragraph to a job's log, as the job's user. Root's own record names the file."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from sentinel.agent.collectors.log_path import of_ended
from sentinel.agent.probes import become, begin, say


def append(path: Path, text: str) -> None:
    """Append ``text``, starting on a new line, in one write.

    Raises:
        OSError: the file cannot be opened or written, is a link, not a regular file, or another user's.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            raise PermissionError(f"{path} is not the user's own file")
        os.write(descriptor, f"\n{text}\n".encode())
    finally:
        os.close(descriptor)


def main() -> None:
    arguments = begin()
    become(arguments["uid"], arguments["gid"])
    pattern = str(arguments["log"])
    try:
        job, attempt = int(arguments["job"]), int(arguments["attempt"])
        path = of_ended(pattern, os.geteuid(), job, attempt) if pattern else None
        if path is None:
            say({"error": "the job's log is not on this node"})
            return
        append(Path(path), str(arguments["text"]))
    except OSError as error:
        say({"error": f"the job's log cannot be written: {error.strerror or error}"})
        return
    say({"result": {"written": True}})


if __name__ == "__main__":
    main()
