"""The command ``dcgmi``: diagnostics, and telemetry where there are no bindings. Every call has a deadline.

A ``dcgmi`` that finds no host engine starts one inside itself and answers for that one, and one that finds a stranger at the
engine's address repeats what that one says: so before and behind each answer it is looked whose engine is there.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import select
import signal
import subprocess
import time
from collections.abc import Sequence
from typing import Any

from sentinel.adapters.gpu.engine_owner import ACCOUNT, EngineOwner, Seen
from sentinel.errors import ProtocolError, Timeout, Unavailable
from sentinel.gpu_values import known_value

MOST_BYTES = 1 << 26  # of what one run prints; the largest answer of a diagnostic has a few million
_LINE = re.compile(r"^GPU\s+(\d+)\s+(.*)$")
_FIELD = re.compile(r"^\S.*?\s(\d{1,5})\s*$", re.M)  # long name, short name, number
_OTHERS = re.compile(r"^\d+ (?!GPU)\S+ found\.", re.M)  # switches, adapters and CPUs come behind the GPUs
_IDENTITY = re.compile(r"^\|\s*(\d*)\s*\|\s*(Status|Name|PCI Bus ID|Device UUID|Error|Return):\s*(.*?)\s*\|$")
_COUNT = re.compile(r"^(\d+) GPUs? found", re.M)
_INACTIVE_HINT = "Use -a flag to show all GPUs"  # since 4.6, where some are not active
_LAST_KNOWN = " (last known)"
_NAMES = {"PCI Bus ID": "pci", "Device UUID": "uuid"}
# Words of ``discovery -l -a`` (4.6) by GetGpuStatus; without one a GPU is listed as active.
_STATUS = {"OK": 1, "UNSUPPORTED": 2, "INACCESSIBLE": 3, "LOST": 4, "FAKE": 5, "DISABLED": 6, "DETACHED": 7}


class Dcgmi:
    """Runs ``dcgmi`` against a running host engine.

    Args:
        command: name or path of ``dcgmi``.
        host: TCP address of the engine; ``socket`` instead for a unix socket.
        account: who may run the engine on this host besides root and us.
    """

    def __init__(self, command: str, *, host: str = "", socket: str = "", account: str = ACCOUNT) -> None:
        self.command = command
        self._engine = EngineOwner(host=host, path=socket, account=account)
        self._known_fields: set[int] | None = None

    @property
    def where(self) -> str:
        return self._engine.where

    @property
    def closed(self) -> bool:
        """Whether no user of this node can connect to the engine, and so write values into it."""
        return self._engine.is_closed()

    def check(self) -> Seen:
        """Raises Unavailable when no host engine listens, or one that is not believed. Returns what tells it from others."""
        return self._engine.look()

    def run(self, arguments: Sequence[str], deadline_s: float) -> tuple[int, bytes]:
        """Exit status and output.

        Raises:
            Unavailable: no such command. Timeout: late; its processes were killed, not waited for. ProtocolError: it
            prints without end; killed likewise.
        """
        command = [self.command, *arguments, "--host", self.where]
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_end_with_us,  # noqa: PLW1509 - one call into a library that is loaded before
            )
        except OSError as error:
            raise Unavailable(f"{self.command}: {error.strerror}", fix="install DCGM, or set dcgm.dcgmi") from error
        assert process.stdout is not None
        output, end_s = bytearray(), time.monotonic() + deadline_s
        descriptor = process.stdout.fileno()
        os.set_blocking(descriptor, False)
        while (left_s := end_s - time.monotonic()) > 0 and len(output) <= MOST_BYTES:
            if select.select([descriptor], [], [], min(left_s, 0.5))[0]:
                more = os.read(descriptor, 1 << 16)
                output += more
                if not more and (status := _status(process, end_s)) is not None:
                    process.stdout.close()
                    return status, bytes(output)
        os.killpg(process.pid, signal.SIGKILL)
        process.stdout.close()
        with contextlib.suppress(subprocess.TimeoutExpired):  # one that stands in the driver is left behind
            process.wait(timeout=0.5)
        if len(output) > MOST_BYTES:
            raise ProtocolError(f"dcgmi {arguments[0]} printed more than {MOST_BYTES} bytes and was killed")
        raise Timeout(f"dcgmi {arguments[0]} did not end within {deadline_s:g} s and was killed")

    def _answered(self, arguments: Sequence[str], deadline_s: float) -> tuple[int, bytes]:
        """As ``run``, where the same engine was there all the while.

        Raises:
            Unavailable: it was not there, is not believed, or was restarted meanwhile.
        """
        before = self.check()
        made = self.run(arguments, deadline_s)
        if self.check() != before:
            raise Unavailable(f"dcgmi {arguments[0]}: the host engine on {self.where} is another one than before")
        return made

    def diagnose(self, level: int, gpus: Sequence[int] | None, *, deadline_s: float) -> tuple[int, bytes]:
        """Exit status and output of a diagnostic by the host engine.

        Raises:
            Unavailable: the engine is not there before, or not any more after it: then ``dcgmi`` may have started one
            inside itself, which tests and passes what it finds; or it is not believed. Timeout: as ``run``.
        """
        chosen = ["-i", ",".join(map(str, gpus))] if gpus is not None else []
        return self._answered(["diag", "-r", str(level), "-j", *chosen], deadline_s)

    def stop_diagnostic(self, deadline_s: float) -> bool:
        """Stop a diagnostic that continues in the engine after its client was killed; True if the engine confirmed."""
        environment = {**os.environ, "DCGMI_STOP_DIAG_HOSTNAME": self.where}
        try:
            done = subprocess.run(
                [self.command, "diag"], env=environment, capture_output=True, timeout=deadline_s, check=False
            )
        except subprocess.TimeoutExpired:
            return False
        except OSError as error:
            raise Unavailable(f"{self.command}: {error.strerror}") from error
        return done.returncode == 0

    def gpus(self, deadline_s: float = 15.0) -> list[dict[str, Any]]:
        """Id, status, uuid and pci (where known) of every GPU; before 4.6 ``dcgmi`` does not say which are lost.

        Raises:
            Unavailable: the list is not whole, or the engine is not believed. The exit status alone says little: where an
            optional module (NvSwitch, sysmon) is missing, all GPUs are listed and it is 223.
        """
        status, output = self._answered(["discovery", "-l"], deadline_s)
        text = output.decode("utf-8", "replace")
        if _INACTIVE_HINT in text:
            status, output = self._answered(["discovery", "-l", "-a"], deadline_s)
            text = output.decode("utf-8", "replace")
        found: list[dict[str, Any]] = []
        for line in _OTHERS.split(text)[0].splitlines():
            match = _IDENTITY.match(line)
            if match is None:
                continue
            number, name, value = match.groups()
            value = value.removesuffix(_LAST_KNOWN)
            if number:
                found.append({"id": int(number), "status": 1})
            if found and name == "Status":
                found[-1]["status"] = _STATUS.get(value.upper(), 0)
            if found and name in _NAMES and known_value(value) is not None:  # a lost GPU has no name
                found[-1][_NAMES[name]] = value
            if found and name in ("Error", "Return"):  # no attributes, and why
                found[-1]["status"] = _STATUS["LOST"] if value == "GPU is lost" else 0
        count = _COUNT.search(text)
        if count is None or int(count[1]) != len(found):
            raise Unavailable(f"dcgmi discovery: exit status {status}: {text.strip()[:200]}")
        return found

    def sample(self, fields: Sequence[int], deadline_s: float = 15.0) -> dict[str, Any]:
        """The newest value of each field, by one run of ``dcgmi dmon``; only the last Xid of each GPU is known."""
        gpus = self.gpus(deadline_s)
        known = self.known_fields(deadline_s)
        wanted = [number for number in (230, *fields) if number in known]
        status, output = self._answered(["dmon", "-e", ",".join(map(str, wanted)), "-c", "1"], deadline_s)
        if status != 0:
            raise Unavailable(f"dcgmi dmon: exit status {status}: {output.decode('utf-8', 'replace').strip()[:200]}")
        rows = {}
        for line in output.decode("utf-8", "replace").splitlines():
            match = _LINE.match(line)
            if match:
                values = match[2].split()
                if len(values) != len(wanted):
                    raise ProtocolError(f"dcgmi dmon: {len(values)} columns for {len(wanted)} fields")
                rows[int(match[1])] = dict(zip(wanted, map(_value, values), strict=True))
        for gpu in gpus:
            gpu["fields"] = {str(number): value for number, value in rows.get(gpu["id"], {}).items() if number != 230}
        return {"gpus": gpus, "last_xids": {gpu: row[230] for gpu, row in rows.items() if row.get(230) is not None}}

    def known_fields(self, deadline_s: float = 15.0) -> set[int]:
        """Numbers of the fields that this release has: one that it has not makes ``dmon`` refuse all of them."""
        if self._known_fields is None:
            status, output = self._answered(["dmon", "-l"], deadline_s)
            found = {int(number) for number in _FIELD.findall(output.decode("utf-8", "replace"))}
            if status != 0 or not found:
                raise ProtocolError(f"dcgmi dmon -l: exit status {status}, no fields in what it says")
            self._known_fields = found
        return self._known_fields


_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1


def _end_with_us() -> None:
    """Runs in the child: have the kernel kill it with the probe, although it has its own session."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _status(process: subprocess.Popen[bytes], end_s: float) -> int | None:
    """Exit status of a process that has closed its output."""
    try:
        return process.wait(timeout=max(0.05, min(5.0, end_s - time.monotonic())))
    except subprocess.TimeoutExpired:
        return None


def _value(text: str) -> Any:
    if text == "N/A":
        return None
    for kind in (int, float):
        try:
            value: float = kind(text)
        except ValueError:
            continue
        return known_value(value)
    return text
