"""One round over host, fabric and local disks."""

from __future__ import annotations

from pathlib import Path

from sentinel.adapters import host
from sentinel.agent.probes import begin, say

FABRIC_MANAGER = "nv-fabricmanager"


def main() -> None:
    arguments = begin()
    sysfs, proc = Path(arguments["sysfs"]), Path(arguments["proc"])
    disks = {path: used for path in arguments["disks"] if (used := host.used_fraction(path)) is not None}
    say(
        {
            "type": "host",
            "ports": host.ports(sysfs),
            "uncorrected": host.uncorrected(sysfs),
            "memory_available": host.memory_available(proc),
            "disks": disks,
            "driver": host.driver_version(proc),
            "library": host.library_version(),
            "strays": host.strays(proc, arguments["jobs"]),
            "switches": host.switches(proc),
            "fabric_manager": host.runs(proc, FABRIC_MANAGER),
        }
    )


if __name__ == "__main__":
    main()
