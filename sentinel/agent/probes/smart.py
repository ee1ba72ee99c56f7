"""Asks every local disk for its health, each as it answers: what a disk said is kept when the next one hangs."""

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
