"""Reads the health of local disks through ``smartctl --json`` (smartmontools 7 and later). Missing values are left out.

Runs in a probe's process: a disk that is about to fail may take its time to answer, and each has its own deadline.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from typing import Any

from sentinel.errors import ProtocolError, Timeout, Unavailable
from sentinel.text import json_of

# ATA attributes by number; their names differ between vendors.
REALLOCATED, PENDING, UNCORRECTABLE = 5, 197, 198
_BROKEN = 0b11  # bits of the exit status: the command line, or the device, could not be understood or opened


class Smartctl:
    """The command.

    Args:
        deadline_s: of each call.
    """

    def __init__(self, command: str = "smartctl", deadline_s: float = 10.0) -> None:
        self.command = command
        self.deadline_s = deadline_s

    def disks(self) -> list[tuple[str, str]]:
        """(device, type) of every disk that smartctl finds.

        Raises:
            Unavailable: there is no such command. ProtocolError: it answers in another form.
        """
        answer = self._run(["--scan", "--json"])
        devices = answer.get("devices", [])
        if not isinstance(devices, list):
            raise ProtocolError(f"{self.command} --scan: no list of devices")
        return [
            (str(disk["name"]), str(disk.get("type", "")))
            for disk in devices
            if isinstance(disk, dict) and "name" in disk
        ]

    def health(self, device: str, kind: str = "") -> dict[str, Any]:
        """The disk's name and health values; values that it does not report are missing.

        Raises:
            Timeout: it did not answer. ProtocolError: not JSON. Unavailable: it cannot be opened.
        """
        of = ["--device", kind] if kind else []
        answer = self._run(["--json", "--health", "--attributes", *of, device])
        status = _dict(answer, "smartctl").get("exit_status")
        if isinstance(status, int) and status & _BROKEN:
            messages = _dict(answer, "smartctl").get("messages", [])
            words = "; ".join(str(item.get("string", "")) for item in messages if isinstance(item, dict))
            raise Unavailable(f"{device}: {words or f'smartctl ended with status {status}'}")
        made: dict[str, Any] = {"disk": device.removeprefix("/dev/"), **_nvme(answer), **_ata(answer)}
        passed = _dict(answer, "smart_status").get("passed")
        if isinstance(passed, bool):
            made["passed"] = passed
        return made

    def _run(self, arguments: list[str]) -> dict[str, Any]:
        try:
            done = subprocess.run(
                [self.command, *arguments],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=self.deadline_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise Timeout(f"smartctl {arguments[-1]}: no answer within {self.deadline_s:g} s") from error
        except OSError as error:
            raise Unavailable(f"{self.command}: {error.strerror}", fix="install smartmontools") from error
        try:
            answer = json_of(done.stdout)
        except ValueError as error:
            raise ProtocolError(f"smartctl {arguments[-1]}: not JSON: {done.stdout[:80]!r}") from error
        if not isinstance(answer, dict):
            raise ProtocolError(f"smartctl {arguments[-1]}: no object")
        return answer


def _nvme(answer: Mapping[str, Any]) -> dict[str, int]:
    log = _dict(answer, "nvme_smart_health_information_log")
    names = {
        "critical_warning": "critical_warning",
        "media_errors": "media_errors",
        "percentage_used": "percent_used",
        "available_spare": "spare",
        "available_spare_threshold": "spare_threshold",
    }
    return {name: log[key] for key, name in names.items() if _whole(log.get(key))}


def _ata(answer: Mapping[str, Any]) -> dict[str, int]:
    table = _dict(answer, "ata_smart_attributes").get("table", [])
    names = {REALLOCATED: "reallocated", PENDING: "pending", UNCORRECTABLE: "uncorrectable"}
    made = {}
    for row in table if isinstance(table, list) else []:
        if isinstance(row, dict) and row.get("id") in names:
            raw = _dict(row, "raw")
            # Some vendors pack more into the raw value: the number that people see comes first in its text.
            found = re.match(r"\d+", str(raw.get("string", raw.get("value", ""))))
            if found:
                made[names[row["id"]]] = int(found[0])
    return made


def _dict(value: Mapping[str, Any], key: str) -> dict[str, Any]:
    found = value.get(key)
    return found if isinstance(found, dict) else {}


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
