"""A real Slurm cluster for one test session: own munged, slurmctld and slurmds on loopback in a temporary folder.

Nothing of the machine's own Slurm is read or touched. The daemons die with the test process, also when that is killed:
see ``keeper``.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from servers.keeper import MARK, Keeper
from servers.ports import free_ports
from servers.slurm_accounting import Accounting

PROGRAMS = ("munged", "slurmctld", "slurmd", "scontrol", "sinfo", "squeue", "sbatch")
SEARCH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/sbin"])
STATES_READY = {"IDLE"}


def missing() -> str:
    """Why a cluster cannot be had here; empty when it can."""
    absent = [program for program in PROGRAMS if shutil.which(program, path=SEARCH) is None]
    return f"not installed: {', '.join(absent)}" if absent else ""


def _program(name: str) -> str:
    path = shutil.which(name, path=SEARCH)
    assert path is not None, f"{name} is not installed"
    return path


class Cluster:
    """``with Cluster(nodes=4) as cluster`` - ready when the block begins, gone when it ends."""

    def __init__(self, nodes: int = 4, *, gpus: int = 8, extra: str = "", accounting: bool = False) -> None:
        self._keeper = Keeper("sc-")
        self.folder = self._keeper.folder
        self.names = [f"n{index}" for index in range(1, nodes + 1)]
        self.gpus = gpus
        self.extra = extra
        self.accounting = Accounting(self, *free_ports(2)) if accounting else None
        self.conf = self.folder / "slurm.conf"
        self.ports: dict[str, int] = {}
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    # -- life ---------------------------------------------------------------------------------------------------------

    def __enter__(self) -> Cluster:
        try:
            self._configure()
            self._start_munged()
            if self.accounting is not None:
                self.accounting.start()
            self.start_controller()
            for name in self.names:
                self.start_node(name)
            self.wait(lambda: set(self.node_states().values()) == STATES_READY, "all nodes idle")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running.values():
            process.kill()
            process.send_signal(signal.SIGCONT)
        for process in self._running.values():
            process.wait()
        self._keeper.close()

    @property
    def environment(self) -> dict[str, str]:
        """For commands and daemons: this cluster's configuration and nothing else of a Slurm that may be around."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "SBATCH", "SQUEUE"))}
        return {**kept, "PATH": SEARCH, "SLURM_CONF": str(self.conf), **self._keeper.environment}

    def _configure(self) -> None:
        self.folder.chmod(0o755)
        for name in ("state", "spool", "log", "run", "munge", "jobs"):
            (self.folder / name).mkdir(mode=0o755)
        controller, *ports = free_ports(len(self.names) + 1)
        self.ports = dict(zip(self.names, ports, strict=True))
        host, user = socket.gethostname().split(".")[0], _user()
        nodes = "\n".join(
            f"NodeName={name} NodeAddr=127.0.0.1 NodeHostname={host} Port={port} CPUs=8 RealMemory=1000 "
            f"Gres=gpu:{self.gpus} State=UNKNOWN"
            for name, port in self.ports.items()
        )
        self.conf.write_text(
            f"""ClusterName=contract
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={self.folder}/munge/socket
StateSaveLocation={self.folder}/state
SlurmdSpoolDir={self.folder}/spool/%n
SlurmctldPidFile={self.folder}/run/slurmctld.pid
SlurmdPidFile={self.folder}/run/slurmd-%n.pid
SlurmctldLogFile={self.folder}/log/slurmctld.log
SlurmdLogFile={self.folder}/log/slurmd-%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SwitchType=switch/none
MpiDefault=none
KillWait=2
MessageTimeout=10
GresTypes=gpu
SchedulerParameters=batch_sched_delay=0,nohold_on_prolog_fail
{self.extra}
{"" if self.accounting is None else self.accounting.conf_lines()}
{nodes}
PartitionName=train Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
        )
        for index in range(self.gpus):  # any character device will do; slurmd only looks whether it is there
            (self.folder / f"gpu{index}").symlink_to("/dev/null")
        (self.folder / "gres.conf").write_text(f"Name=gpu File={self.folder}/gpu[0-{self.gpus - 1}]\n")
        if self.release() >= (23, 2):  # 22.05 has no such plugin and stops
            (self.folder / "cgroup.conf").write_text("CgroupPlugin=disabled\n")

    def release(self) -> tuple[int, int]:
        answer = subprocess.run([_program("slurmctld"), "-V"], capture_output=True, text=True, check=True, timeout=20)
        found = re.search(r"(\d+)\.(\d+)", answer.stdout)
        assert found, answer.stdout
        return int(found[1]), int(found[2])

    def _start_munged(self) -> None:
        munge = self.folder / "munge"
        key = munge / "key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o600)
        self._start(
            "munged",
            [
                _program("munged"),
                "--foreground",
                "--num-threads=4",
                f"--key-file={key}",
                f"--socket={munge}/socket",
                f"--pid-file={munge}/pid",
                f"--log-file={munge}/log",
                f"--seed-file={munge}/seed",
            ],
        )
        self.wait((munge / "socket").is_socket, "munged")

    def start_controller(self) -> None:
        self._start("slurmctld", [_program("slurmctld"), "-D", "-f", str(self.conf)])
        self.wait(lambda: "UP" in self.command("scontrol", "ping", check=False), "slurmctld")

    def start_node(self, name: str) -> None:
        """Start slurmd of a node (again)."""
        self._start(name, [_program("slurmd"), "-D", "-N", name, "-f", str(self.conf)])

    def start(self, program: str, *arguments: str) -> None:
        """Start one more daemon of this cluster; its output is ``log/PROGRAM.out``."""
        self._start(program, [_program(program), *arguments])

    def _start(self, name: str, command: list[str]) -> None:
        with (self.folder / "log" / f"{name}.out").open("ab") as output:
            self._running[name] = subprocess.Popen(
                command,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self.folder,
                start_new_session=True,
            )

    # -- faults -------------------------------------------------------------------------------------------------------

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a daemon: "slurmctld", "munged" or a node's name."""
        self._running[name].send_signal(number)

    def stop(self, name: str) -> None:
        """Kill a daemon: "slurmctld", "munged" or a node's name."""
        process = self._running.pop(name)
        process.kill()
        process.wait()

    def kill_node(self, name: str) -> None:
        """The machine is gone: slurmd and everything it started."""
        daemon = self._running.pop(name)
        pids = [daemon.pid, *_descendants_and_steps(name, self.folder)]
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        daemon.wait()

    # -- questions ----------------------------------------------------------------------------------------------------

    def command(self, program: str, *arguments: str, check: bool = True) -> str:
        """Run one of Slurm's commands against this cluster and give its stdout."""
        done = subprocess.run(
            [_program(program), *arguments],
            env=self.environment,
            cwd=self.folder / "jobs",
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        if check and done.returncode != 0:
            raise AssertionError(f"{program} {' '.join(arguments)}: {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def background(self, program: str, *arguments: str) -> None:
        """Start one of Slurm's commands that stays, e.g. srun; it ends with the cluster at the latest."""
        self._start(f"{program}-{secrets.token_hex(4)}", [_program(program), *arguments])

    def node_states(self) -> dict[str, str]:
        """Node -> extended state as sinfo prints it, upper case (``%T`` with flag suffixes)."""
        answer = self.command("sinfo", "-h", "-N", "-o", "%N %T", check=False)
        return {name: state.upper() for name, state in (line.split() for line in answer.splitlines())}

    def submit(self, script: str, *options: str) -> int:
        """Submit a batch script (its text) and give the job's id."""
        path = self.folder / "jobs" / f"{secrets.token_hex(4)}.sh"
        path.write_text("#!/bin/sh\n" + script)
        return int(self.command("sbatch", "--parsable", *options, str(path)).split(";")[0])

    def start_requeued(self, job: int) -> None:
        """Let a requeued job start without Slurm's wait of two minutes.

        In a later second than its end: a start that slurmctld signs in the same second slurmd takes for old, and the job
        fails ("Job credential revoked").
        """
        self.wait(
            lambda: self.command("squeue", "-h", "-j", f"{job}", "-o", "%T").strip() == "PENDING",
            f"job {job} waits for its next attempt",
        )
        ended = int(time.time())
        self.wait(lambda: time.time() >= ended + 1, "the next second")
        self.command("scontrol", "update", f"jobid={job}", "starttime=now")

    def wait(self, condition: Callable[[], bool], what: str, *, within_s: float = 120.0) -> None:
        """Wait until a condition holds; fails with the logs when it does not."""
        deadline = time.monotonic() + within_s
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"{what}: not within {within_s:g} s\n{self.logs()}")
            time.sleep(0.05)

    def logs(self, lines: int = 15) -> str:
        parts = []
        for path in sorted((self.folder / "log").glob("*")):
            tail = path.read_text(errors="replace").splitlines()[-lines:]
            parts.append(f"--- {path.name}\n" + "\n".join(tail))
        return "\n".join(parts)


def _user() -> str:
    import pwd

    return pwd.getpwuid(os.getuid()).pw_name


def _descendants_and_steps(node: str, folder: Path) -> list[int]:
    """Processes of one node: slurmstepd carries the node's spool in its command or environment; jobs carry its name."""
    marks = (f"{MARK}={folder}".encode(), f"SLURMD_NODENAME={node}".encode())
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            environment = (entry / "environ").read_bytes().split(b"\0")
            command = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if marks[0] in environment and (marks[1] in environment or b"slurmstepd" in command):
            found.append(int(entry.name))
    return found


def _serve() -> None:
    """``python slurm_cluster.py [NODES]``: a cluster to look at by hand; prints its environment, ends with Ctrl-C."""
    with Cluster(int(sys.argv[1]) if len(sys.argv) > 1 else 4) as cluster:
        print(json.dumps({"SLURM_CONF": str(cluster.conf), "folder": str(cluster.folder)}), flush=True)
        signal.sigwait({signal.SIGINT, signal.SIGTERM})


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    _serve()
