"""Reads the state of host, network fabric and local disks once."""

from __future__ import annotations

from pathlib import Path

from sentinel.adapters.host import readings
from sentinel.agent.probes import begin, say

FABRIC_MANAGER = "nv-fabricmanager"


def main() -> None:
    arguments = begin()
    sysfs, proc = Path(arguments["sysfs"]), Path(arguments["proc"])
    disks = {path: used for path in arguments["disks"] if (used := readings.used_fraction(path)) is not None}
    say(
        {
            "type": "host",
            "ports": readings.ports(sysfs),
            "uncorrected": readings.uncorrected(sysfs),
            "memory_available": readings.memory_available(proc),
            "disks": disks,
            "driver": readings.driver_version(proc),
            "library": readings.library_version(),
            "strays": readings.strays(proc, arguments["jobs"]),
            "switches": readings.switches(proc),
            "fabric_manager": readings.runs(proc, FABRIC_MANAGER),
        }
    )


if __name__ == "__main__":
    main()
