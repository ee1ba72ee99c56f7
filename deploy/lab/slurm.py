"""The Slurm of a lab: configuration, start, waiting until it answers."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from lab import netns, processes
from lab.layout import Lab, LabError, write_atomic

CPUS_PER_NODE = 8

SLURM_CONF = """\
# Written by `lab up`; `lab down` removes it. What a site would choose too is as shipped by Slurm; what only a lab needs
# says why.
ClusterName={cluster}
SlurmctldHost={host}({controller})
SlurmctldPort={controller_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={munge}
CredType=cred/munge
StateSaveLocation={dir}/state
SlurmctldPidFile={dir}/run/slurmctld.pid
SlurmctldLogFile={dir}/log/slurmctld.log
SlurmctldTimeout=120
SlurmdSpoolDir={dir}/nodes/%n/spool
SlurmdPidFile={dir}/nodes/%n/slurmd.pid
SlurmdLogFile={dir}/nodes/%n/log/slurmd.log
SlurmdTimeout=300
SlurmdSyslogDebug=quiet
SlurmctldSyslogDebug=quiet
MessageTimeout=10
KillWait=30
MinJobAge=300
ReturnToService=1
JobRequeue=1
# Job ids of several labs on one machine differ, and with them the ports that jobs derive from them.
FirstJobId={first_job}

# Many nodes on one host: no cgroups, and take the node sizes of this file, not those of the machine.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SlurmdParameters=config_overrides
MpiDefault=none
SwitchType=switch/none
PropagateResourceLimits=NONE

SchedulerType=sched/backfill
SchedulerParameters=nohold_on_prolog_fail
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
JobAcctGatherType=jobacct_gather/none

PrologFlags=Alloc
Prolog={dir}/etc/prolog.d/*
Epilog={dir}/etc/epilog.d/*
TaskProlog={dir}/etc/taskprolog
EpilogSlurmctld={dir}/etc/epilogslurmctld

{nodes}
PartitionName={partition} Nodes={all} Default=YES MaxTime=INFINITE State=UP
"""


def configure(lab: Lab) -> None:
    """Write slurm.conf, gres.conf, the key of MUNGE and the folders that the daemons need."""
    spec = lab.spec
    for folder in (lab.etc, lab.log, lab.run, lab.state, lab.shared, lab.control, lab.dir / "pids"):
        folder.mkdir(parents=True, exist_ok=True)
    lab.dir.chmod(0o755)
    lab.run.chmod(0o755)
    for name in lab.names:
        for part in ("spool", "log", "run", "nvme"):
            (lab.node(name) / part).mkdir(parents=True, exist_ok=True)
    # Jobs of any user write here; so do they on a real cluster.
    for folder in (lab.shared, lab.control, *(lab.node(name) / "nvme" for name in lab.names)):
        folder.chmod(0o1777 if spec.user == "root" else 0o755)
    key = lab.etc / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o400)
    devices = lab.dir / "dev"
    devices.mkdir(exist_ok=True)
    for index in range(spec.gpus):
        # Slurm asks for character devices and takes links to one: no mknod, so no root is needed.
        (devices / f"nvidia{index}").unlink(missing_ok=True)
        (devices / f"nvidia{index}").symlink_to("/dev/null")
    last = f"[0-{spec.gpus - 1}]" if spec.gpus > 1 else "0"
    write_atomic(lab.etc / "gres.conf", f"Name=gpu File={devices}/nvidia{last}\n" if spec.gpus else "")
    write_atomic(lab.slurm_conf, _slurm_conf(lab))
    if release() >= (23, 0):
        # Newer Slurm looks for cgroups in any case and stops in a container; 22.05 does not know the word.
        write_atomic(lab.etc / "cgroup.conf", "CgroupPlugin=disabled\n")


def _slurm_conf(lab: Lab) -> str:
    spec = lab.spec
    gres = f" Gres=gpu:{spec.gpus}" if spec.gpus else ""
    every = f"n[1-{spec.nodes}]" if spec.nodes > 1 else "n1"
    host = socket.gethostname()
    if spec.isolated:
        nodes = "\n".join(
            f"NodeName={name} NodeHostname={name} NodeAddr={lab.node_address(name)} Port={lab.node_port(name)} "
            f"CPUs={CPUS_PER_NODE}{gres} State=UNKNOWN"
            for name in lab.names
        )
    else:
        first, last = spec.node_ports[0], spec.node_ports[-1]
        ports = f"[{first}-{last}]" if spec.nodes > 1 else str(first)
        nodes = (
            f"NodeName={every} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports} "
            f"CPUs={CPUS_PER_NODE}{gres} State=UNKNOWN"
        )
    return SLURM_CONF.format(
        cluster=spec.cluster,
        host=host,
        controller=lab.controller_address,
        controller_port=spec.controller_port,
        user=spec.user,
        munge=lab.munge_socket,
        dir=lab.dir,
        first_job=spec.first_job,
        nodes=nodes,
        partition=spec.partition,
        all=every,
    )


def binary(name: str) -> str:
    """Full path of a daemon, also where /usr/sbin is not in an ordinary user's PATH."""
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin:/usr/local/sbin")
    if found is None:
        raise LabError(f"{name} is not installed; on Debian: apt-get install slurmctld slurmd slurm-client munge")
    return found


def release() -> tuple[int, int]:
    """(major, minor) of the Slurm that is installed."""
    said = subprocess.run([binary("slurmctld"), "-V"], capture_output=True, text=True, timeout=20, check=False).stdout
    match = re.search(r"(\d+)\.(\d+)", said)
    if match is None:
        raise LabError(f"slurmctld -V said {said.strip()!r}, which names no release; is it Slurm's?")
    return int(match[1]), int(match[2])


def start_munged(lab: Lab) -> None:
    log = lab.log / "munged.log"
    processes.start(
        lab,
        "munged",
        [
            binary("munged"),
            "--foreground",
            "--force",  # /tmp and the lab's folders are looser than MUNGE likes; the key itself is 0400
            f"--key-file={lab.etc / 'munge.key'}",
            f"--socket={lab.munge_socket}",
            f"--pid-file={lab.run / 'munged.pid'}",
            f"--log-file={log}",
            f"--seed-file={lab.run / 'munge.seed'}",
            "--num-threads=10",  # two, the default, refuse clients when a large job ends
        ],
        log=lab.log / "munged.out",
    )
    if not processes.wait_until(lab.munge_socket.is_socket, 60):
        raise LabError(f"munged did not start; see {log} and {lab.log / 'munged.out'}:\n{tail(lab.log / 'munged.out')}")


def start_controller(lab: Lab) -> None:
    processes.start(lab, "slurmctld", [binary("slurmctld"), "-D"], log=lab.log / "slurmctld.out")


def start_slurmd(lab: Lab, name: str) -> None:
    command = [binary("slurmd"), "-D", "-N", name]
    if lab.spec.isolated:
        command = netns.inside(lab, name, command)
    processes.start(lab, f"slurmd-{name}", command, log=lab.node(name) / "log" / "slurmd.out")


def client(
    lab: Lab, command: Sequence[str], *, timeout_s: float = 20.0, environment: Mapping[str, str] | None = None
) -> str:
    """Run one of Slurm's commands against the lab; LabError with its own words when it fails."""
    try:
        done = subprocess.run(
            list(command),
            env={**os.environ, **lab.environment(), **(environment or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="backslashreplace",  # job names may hold any byte
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise LabError(
            f"{command[0]} did not answer within {timeout_s:.0f} s; is slurmctld frozen? lab status"
        ) from None
    if done.returncode != 0:
        raise LabError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def wait_ready(lab: Lab, timeout_s: float) -> None:
    """Wait until slurmctld answers and every node is usable."""
    deadline = time.monotonic() + timeout_s
    reason = "slurmctld did not answer"
    while time.monotonic() < deadline:
        if processes.known(lab, "slurmctld") is None:
            log = lab.log / "slurmctld.out"
            raise LabError(f"slurmctld ended; see {log}:\n{tail(log)}")
        try:
            states = client(lab, ["sinfo", "-h", "-N", "-o", "%N %T"], timeout_s=5).split("\n")
        except LabError as error:
            reason = str(error)
        else:
            nodes = dict(line.split() for line in states if line.strip())
            bad = sorted(name for name, state in nodes.items() if not state.startswith(("idle", "mixed", "alloc")))
            bad = [name for name in bad if not nodes[name].endswith(("$", "@"))]
            if len(nodes) == lab.spec.nodes and not bad:
                return
            reason = f"nodes not ready: {', '.join(f'{name} {nodes[name]}' for name in bad[:5])}"
        time.sleep(0.1)
    raise LabError(f"the cluster was not ready within {timeout_s:.0f} s ({reason}); see {lab.log} and lab logs")


def tail(path: Path, lines: int = 8) -> str:
    try:
        return "\n".join(path.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])
    except OSError as error:
        return f"({path}: {error.strerror})"
