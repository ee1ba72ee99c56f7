"""The kernel's log from journald, for nodes whose /dev/kmsg we may not read: ``journalctl _TRANSPORT=kernel --follow``.

The same records as ``kmsg`` gives, and the same facilities: what user space wrote into /dev/kmsg keeps the facility that it
claimed, and what it sent to syslog does not come this way. Journald's cursor takes the place of the sequence number.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
from collections.abc import Iterator, Mapping
from typing import Any

from sentinel.adapters.host.kmsg import Record
from sentinel.errors import Denied, Unavailable
from sentinel.text import json_of

_READ_BYTES = 1 << 20
_FIRST_S = 10.0  # a journal of years is searched from its end
_LINE_BYTES = 1 << 20  # a longer line is no kernel message
# journald's own word that the kernel threw messages away before it read them (SD_MESSAGE_JOURNAL_MISSED). By its transport
# it is journald's: what others log has another one.
_MISSED, _BY_JOURNALD = "e9bf28e6e834481bb6f48f548ad13606", "driver"


class Journal:
    """Reads records after a cursor.

    Args:
        command: name or path of ``journalctl``.
        cursor: what ``cursor`` was in an earlier process; records before it are not given again.
        replay: without a cursor, begin with the oldest record of this boot instead of the next one.

    Raises:
        Unavailable: it cannot be started, or journald has nothing of the kernel. Denied: not for this user.
    """

    device = True  # it tells when there is something: no polling

    def __init__(
        self,
        command: str = "journalctl",
        cursor: Mapping[str, Any] | None = None,
        *,
        replay: bool = False,
        boot: str = "",
    ) -> None:
        self.path = command
        self.boot = boot
        self.overruns = 0  # times that journald missed messages of the kernel
        self.unparsable = 0
        self._pending = b""
        cursor = cursor or {}
        place = cursor.get("journal")
        self._place = place if isinstance(place, str) else ""
        _require_kernel_lines(command)
        # A cursor of another boot still counts: journald has what that one said before it died.
        where = (
            [f"--after-cursor={self._place}"] if self._place else ["--boot", "--lines=all"] if replay else ["--lines=0"]
        )
        try:
            gaps = [f"_TRANSPORT={_BY_JOURNALD}", f"MESSAGE_ID={_MISSED}"]
            self._process = subprocess.Popen(
                [command, "--output=json", "--all", "--no-pager", "--follow", *where, "_TRANSPORT=kernel", "+", *gaps],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise Unavailable(f"{command}: {error.strerror}", fix="give the agent access to /dev/kmsg") from error
        assert self._process.stdout is not None and self._process.stderr is not None
        self._out, self._error = self._process.stdout.fileno(), self._process.stderr.fileno()
        for descriptor in (self._out, self._error):
            os.set_blocking(descriptor, False)

    @property
    def cursor(self) -> dict[str, Any]:
        return {"boot": self.boot, "journal": self._place}

    def wait(self, timeout_s: float, _poll_s: float = 0.0) -> None:
        """Wait until there may be something to read."""
        select.select([self._out], [], [], timeout_s)

    def read(self) -> Iterator[Record]:
        """Read all records that are available now.

        Raises:
            Unavailable: journalctl ended. Denied: this user may not read the kernel's messages.
        """
        while True:
            try:
                content = os.read(self._out, _READ_BYTES)
            except BlockingIOError:
                self._complaints()
                return
            if not content:
                raise Unavailable(f"{self.path} ended: {self._words() or 'without a word'}")
            *lines, self._pending = (self._pending + content).split(b"\n")
            if len(self._pending) > _LINE_BYTES:
                self._pending = b""
                self.unparsable += 1
            for line in lines:
                record = self._record(line)
                if record is not None:
                    yield record

    def close(self) -> None:
        """Stop journalctl; waits only briefly for it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=1.0)

    def _complaints(self) -> None:
        _refuse_if_denied(self.path, self._words())

    def _words(self) -> str:
        try:
            return " ".join(os.read(self._error, 4096).decode("utf-8", "replace").split())[:300]
        except BlockingIOError:
            return ""

    def _record(self, line: bytes) -> Record | None:
        try:
            entry = json_of(line)
            self._place = str(entry["__CURSOR"])
            if entry.get("MESSAGE_ID") == _MISSED and entry.get("_TRANSPORT") == _BY_JOURNALD:
                self.overruns += 1
                return None
            at_us = int(entry.get("_SOURCE_MONOTONIC_TIMESTAMP") or entry["__MONOTONIC_TIMESTAMP"])
            wall_us = int(entry["__REALTIME_TIMESTAMP"])
            message = entry.get("MESSAGE")
            # Without a facility it is not known to come from the kernel.
            priority, told = int(entry.get("PRIORITY", 6)), entry.get("SYSLOG_FACILITY")
            facility = -1 if told is None else int(told)
        except (ValueError, KeyError, TypeError):
            if line.strip():
                self.unparsable += 1
            return None
        if isinstance(message, list):  # bytes that are no text
            message = bytes(part & 0xFF for part in message if isinstance(part, int)).decode("utf-8", "replace")
        if not isinstance(message, str):
            return None
        # The kernel's own stamp, as kmsg has it. A line end is part of the message: what is behind it says whose it is.
        return Record(at_us, wall_us / 1e6, priority & 7, facility, message, at_us / 1e6)


def _require_kernel_lines(command: str) -> None:
    """Raise if journald does not run or does not collect kernel messages: following it would wait forever."""
    try:
        done = subprocess.run(
            [command, "--output=json", "--no-pager", "--lines=1", "_TRANSPORT=kernel"],
            capture_output=True, timeout=_FIRST_S, check=False,
        )  # fmt: skip
    except OSError as error:
        raise Unavailable(f"{command}: {error.strerror}", fix="give the agent access to /dev/kmsg") from error
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"{command} did not answer within {_FIRST_S:g} s") from error
    words = " ".join(done.stderr.decode("utf-8", "replace").split())[:300]
    _refuse_if_denied(command, words)
    if not done.stdout.strip():
        raise Unavailable(f"{command}: journald has no messages of the kernel {words}".rstrip())


def _refuse_if_denied(command: str, words: str) -> None:
    if "not seeing messages" in words or "insufficient permissions" in words:
        raise Denied(f"{command}: {words}", fix="run the agent as root, or in the group systemd-journal")
