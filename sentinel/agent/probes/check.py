"""Runs one site check and reports its exit status and the beginning of its output."""

from __future__ import annotations

import os
import subprocess
import tempfile

from sentinel.agent.probes import begin, say

OUTPUT_BYTES = 4096


def main() -> None:
    arguments = begin()
    # A file, not a pipe: a background process that the check leaves behind would keep a pipe open and block us.
    with tempfile.TemporaryFile() as output:
        try:
            process = subprocess.Popen(
                arguments["command"], stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd="/"
            )
        except OSError as error:
            say({"type": "check", "status": None, "output": f"cannot be started: {error.strerror}"})
            return
        status = process.wait()  # the agent enforces the deadline
        text = os.pread(output.fileno(), OUTPUT_BYTES, 0).decode("utf-8", "replace")
    say({"type": "check", "status": status, "output": text.strip()})


if __name__ == "__main__":
    main()
