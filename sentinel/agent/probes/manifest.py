"""Reads one finished checkpoint once, as the job's user, and keeps its manifest in that user's cache.

It runs at the lowest CPU and disk priority and at a bounded rate, so that training and its next save are not slowed
down.
"""

from __future__ import annotations

import contextlib
import os
import platform
import resource
import time
from pathlib import Path

from sentinel.agent.probes import account, become, begin, say
from sentinel.checkpoints.files import Broken, NotKnown
from sentinel.checkpoints.kept_manifest import default_folder, paced
from sentinel.checkpoints.validate import record

_SAY_EVERY_S = 5.0  # a sign of life for the agent
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}  # system call numbers
_IDLE = 3 << 13  # IOPRIO_CLASS_IDLE


def main() -> None:
    arguments = begin()
    become(arguments["uid"], arguments["gid"])
    os.environ["HOME"] = account()[1]
    _idle()
    pace = paced(float(arguments["bytes_per_s"]))
    said_s = time.monotonic()
    done = 0

    def read(count: int) -> None:
        nonlocal said_s, done
        done += count
        pace(count)
        if time.monotonic() - said_s > _SAY_EVERY_S:
            said_s = time.monotonic()
            say({"read": done})

    try:
        kept = record(Path(arguments["path"]), default_folder(), read)
    except (Broken, NotKnown) as error:
        say({"valid": False if isinstance(error, Broken) else None, "reason": error.reason, "read": done})
        return
    except OSError as error:
        say({"valid": None, "reason": f"its manifest cannot be kept: {error.strerror or error}", "read": done})
        return
    used = resource.getrusage(resource.RUSAGE_SELF)
    cost = {"read": kept.bytes, "seconds": kept.seconds, "cpu_s": round(used.ru_utime + used.ru_stime, 3)}
    say({"valid": True, "reason": kept.finding, "level": kept.level, **cost})


def _idle() -> None:
    """Take the lowest CPU and disk priority, where the kernel supports it."""
    with contextlib.suppress(OSError):
        os.nice(19)
    call = _IOPRIO_SET.get(platform.machine())
    if call is not None:
        import ctypes

        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).syscall(call, 1, 0, _IDLE)


if __name__ == "__main__":
    main()
