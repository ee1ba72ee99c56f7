"""Disks by a scripted smartctl: NVMe, ATA, disks that do not answer, and no smartctl at all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sentinel.adapters.host.smart import Smartctl
from sentinel.errors import ProtocolError, Timeout, Unavailable

ROOT = Path(__file__).parents[3]
SCRIPT = """#!{python}
import json, os, sys, time
answer = json.load(open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "answers")))[sys.argv[-1]]
if answer == "hang":
    time.sleep(600)
print(answer if isinstance(answer, str) else json.dumps(answer))
sys.exit(answer.get("smartctl", {}).get("exit_status", 0) if isinstance(answer, dict) else 0)
"""
NVME = {
    "smartctl": {"version": [7, 4], "exit_status": 8},
    "smart_status": {"passed": False, "nvme": {"value": 4}},
    "nvme_smart_health_information_log": {
        "critical_warning": 4, "available_spare": 97, "available_spare_threshold": 10, "percentage_used": 112,
        "media_errors": 31, "temperature": 44,
    },
}  # fmt: skip
ATA = {
    "smartctl": {"version": [7, 2], "exit_status": 0},
    "smart_status": {"passed": True},
    "ata_smart_attributes": {
        "table": [
            {"id": 5, "name": "Reallocated_Sector_Ct", "raw": {"value": 8, "string": "8"}},
            {"id": 194, "name": "Temperature_Celsius", "raw": {"value": 94489280548, "string": "36 (Min/Max 22/51)"}},
            {"id": 197, "name": "Current_Pending_Sector", "raw": {"value": 2, "string": "2"}},
            {"id": 198, "raw": {}},
            "rubbish",
        ]
    },
}
GONE = {
    "smartctl": {"exit_status": 2, "messages": [{"string": "Smartctl open device: /dev/sdz failed: No such device"}]}
}


@pytest.fixture
def command(tmp_path: Path) -> Path:
    devices = [
        {"name": name, "type": kind} for name, kind in (("/dev/nvme0", "nvme"), ("/dev/sda", "sat"), ("/dev/sdb", ""))
    ]
    answers: dict[str, Any] = {
        "--json": {"devices": [*devices, "rubbish"]}, "/dev/nvme0": NVME, "/dev/sda": ATA, "/dev/sdb": "hang",
        "/dev/sdz": GONE, "/dev/sdy": "smartctl 6.6 is older than JSON",
    }  # fmt: skip
    (tmp_path / "answers").write_text(json.dumps(answers))
    made = tmp_path / "smartctl"
    made.write_text(SCRIPT.replace("{python}", sys.executable))
    made.chmod(0o755)
    return made


def test_what_disks_tell(command: Path) -> None:
    smartctl = Smartctl(str(command))
    assert smartctl.disks() == [("/dev/nvme0", "nvme"), ("/dev/sda", "sat"), ("/dev/sdb", "")]
    assert smartctl.health("/dev/nvme0", "nvme") == {
        "disk": "nvme0", "passed": False, "critical_warning": 4, "media_errors": 31, "percent_used": 112, "spare": 97,
        "spare_threshold": 10,
    }  # fmt: skip
    assert smartctl.health("/dev/sda", "sat") == {"disk": "sda", "passed": True, "reallocated": 8, "pending": 2}


def test_a_disk_whose_name_is_no_text_tells_all_the_same(command: Path) -> None:
    command.write_text('#!/bin/sh\nprintf \'{"model_name": "X\\377", "smart_status": {"passed": false}}\'\n')
    assert Smartctl(str(command)).health("/dev/sda")["passed"] is False


def test_a_disk_that_cannot_be_asked(command: Path) -> None:
    with pytest.raises(Timeout, match="sdb"):
        Smartctl(str(command), deadline_s=0.5).health("/dev/sdb")
    smartctl = Smartctl(str(command), deadline_s=60.0)
    with pytest.raises(Unavailable, match="No such device"):
        smartctl.health("/dev/sdz")
    with pytest.raises(ProtocolError, match="not JSON"):
        smartctl.health("/dev/sdy")
    with pytest.raises(Unavailable, match="smartmontools"):
        Smartctl(str(command.parent / "no")).disks()


def probe(command: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-P", "-S", "-m", "sentinel.agent.probes.smart"],
        input=json.dumps({"smartctl": command, "disk_s": 4}).encode() + b"\n",
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        timeout=120,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_the_probe_says_each_disk_as_it_answers(command: Path) -> None:
    said = probe(str(command))
    assert [message["disk"] for message in said] == ["nvme0", "sda", "sdb"]
    assert "no answer" in said[2]["error"]
    assert "absent" in probe("/no/smartctl")[0]
