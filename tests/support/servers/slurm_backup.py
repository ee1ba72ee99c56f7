"""A real Slurm with two slurmctld over one StateSaveLocation, each on a host of its own by its name and address. Needs root:
the second one has its own host name and process file, and both have an /etc/hosts that names both."""

from __future__ import annotations

import os
import shutil
import socket
import time

from servers.slurm_cluster import Cluster, _program

BACKUP = "backup"  # name of the host and of the daemon
TIMEOUT_S = 10  # after which it takes over; Slurm takes no shorter one


def missing() -> str:
    """Why these cannot be had here; empty when they can."""
    if os.geteuid() != 0:
        return "needs root: a second slurmctld on one machine has its own host name"
    return "" if shutil.which("unshare") else "not installed: unshare"


class TwoControllers(Cluster):
    """``stop("slurmctld")`` kills the primary."""

    def _configure(self) -> None:
        super()._configure()
        host = socket.gethostname().split(".")[0]
        primary = f"SlurmctldHost={host}(127.0.0.1)\n"
        more = f"SlurmctldHost={BACKUP}(127.0.0.2)\nCommunicationParameters=NoCtldInAddrAny\nSlurmctldTimeout={TIMEOUT_S}\n"
        self.conf.write_text(self.conf.read_text().replace(primary, primary + more))
        (self.folder / "hosts").write_text(f"127.0.0.1 localhost\n127.0.0.1 {host}\n127.0.0.2 {BACKUP}\n")
        (self.folder / "run-backup").mkdir()

    def start_controller(self) -> None:
        """The primary; the first time a second after the backup, by whose BOOT_TIME they are told apart."""
        if BACKUP not in self._running:
            own = f"hostname {BACKUP} && mount --bind {self.folder}/run-backup {self.folder}/run && "
            self._start_apart(BACKUP, "--uts", own)
            self.wait(lambda: f"{BACKUP} is UP" in self.command("scontrol", "ping", check=False), "the backup")
            up_s = int(time.time())
            self.wait(lambda: time.time() >= up_s + 1, "the next second")
        self._start_apart("slurmctld", "--mount", "")
        self.wait(lambda: "(primary)" in self.up(), "slurmctld")

    def up(self) -> str:
        """The lines of ``scontrol ping`` about those that run."""
        said = self.command("scontrol", "ping", check=False).splitlines()
        return "\n".join(line for line in said if line.endswith(" is UP"))

    def _start_apart(self, name: str, space: str, before: str) -> None:
        line = f"mount --bind {self.folder}/hosts /etc/hosts && {before}exec {_program('slurmctld')} -D -f {self.conf}"
        self._start(name, ["unshare", "--mount", space, "sh", "-c", line])
