"""Reads the SMART health of every local disk and reports each at once, so that it is kept if the next disk hangs."""

from __future__ import annotations

from sentinel.adapters.host.smart import Smartctl
from sentinel.agent.probes import begin, say
from sentinel.errors import SentinelError


def main() -> None:
    arguments = begin()
    smartctl = Smartctl(arguments["smartctl"], float(arguments["disk_s"]))
    try:
        disks = smartctl.disks()
    except SentinelError as error:
        say({"type": "smart", "absent": str(error)})
        return
    for device, kind in disks:
        try:
            say({"type": "smart", **smartctl.health(device, kind)})
        except SentinelError as error:
            say({"type": "smart", "disk": device.removeprefix("/dev/"), "error": str(error)})


if __name__ == "__main__":
    main()
