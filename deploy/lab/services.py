"""What runs beside Slurm in a lab: the webhook receiver, the daemon, an agent per node."""

from __future__ import annotations

import socket

from lab import netns, processes, sentinel_config, slurm
from lab.layout import ROOT, Lab, LabError


def start_receiver(lab: Lab) -> None:
    lab.messages.touch()
    command = [lab.spec.python, "-m", "lab.receiver", "--port", str(lab.spec.webhook_port), "--file", str(lab.messages)]
    processes.start(lab, "receiver", command, log=lab.log / "receiver.log", env={"PYTHONPATH": str(ROOT / "deploy")})


def start_daemon(lab: Lab) -> None:
    command = sentinel_config.daemon_command(lab)
    processes.start(lab, "daemon", command, log=lab.log / "daemon.log", env={"SENTINEL_RUN_DIR": str(lab.run)})


def wait_daemon(lab: Lab, timeout_s: float = 60.0) -> None:
    """Agents that start before the daemon listens would only log that they cannot reach it."""

    def listens() -> bool:
        if processes.known(lab, "daemon") is None:
            raise LabError(f"the daemon ended; see {lab.log / 'daemon.log'}:\n{slurm.tail(lab.log / 'daemon.log')}")
        with socket.socket() as probe:
            probe.settimeout(1.0)
            return probe.connect_ex((lab.controller_address, lab.spec.daemon_port)) == 0

    if not processes.wait_until(listens, timeout_s):
        raise LabError(f"the daemon does not listen on port {lab.spec.daemon_port}; see {lab.log / 'daemon.log'}")


def start_agent(lab: Lab, name: str) -> None:
    command = sentinel_config.agent_command(lab, name)
    if lab.spec.isolated:
        command = netns.inside(lab, name, command)
    log = lab.node(name) / "log" / "agent.log"
    processes.start(lab, f"agent-{name}", command, log=log, env=sentinel_config.agent_environment(lab, name))


def start(lab: Lab, ready_s: float) -> None:
    """Start what this lab was brought up with."""
    start_receiver(lab)
    if not lab.spec.sentinel:
        return
    if "daemon" in sentinel_config.SERVICES:
        start_daemon(lab)
        wait_daemon(lab, ready_s)
    if "agent" in sentinel_config.SERVICES:
        for name in lab.names:
            start_agent(lab, name)


def expected(lab: Lab) -> list[str]:
    """Names of all services that should run in this lab."""
    names = ["munged", "slurmctld", *(f"slurmd-{name}" for name in lab.names), "receiver"]
    if lab.spec.sentinel and "daemon" in sentinel_config.SERVICES:
        names.append("daemon")
    if lab.spec.sentinel and "agent" in sentinel_config.SERVICES:
        names += [f"agent-{name}" for name in lab.names]
    return names
