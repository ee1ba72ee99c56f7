"""Nodes with their own network and host name: one network namespace per node, joined by a bridge.

A namespace is held by a process (`sleep`), entered with nsenter, and gone when its last process is gone; only the bridge
is an object of its own, named after the lab, so that `lab down` finds it even when nothing else was left behind.
(`ip netns exec` is not used: it mounts a new /sys, in which slurmd does not find its cgroup.)
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from lab import processes
from lab.layout import Lab, LabError, write_atomic

_NOWHERE = 9  # a routing table of a node's own network; any that the kernel does not use


def bridge(lab: Lab) -> str:
    return f"br-{lab.spec.cluster}"[:15]


def host_end(lab: Lab, name: str) -> str:
    """Name of the bridge's end of a node's cable (at most 15 characters)."""
    return f"v{lab.spec.cluster.removeprefix('lab')}{name}"[:15]


def ip(*arguments: str, check: bool = True) -> str:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, timeout=20, check=False)
    if check and done.returncode != 0:
        raise LabError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def check() -> None:
    """Raises LabError when nodes cannot be isolated here."""
    if os.geteuid() != 0:
        raise LabError("--isolated makes network namespaces and needs root; without it the nodes share one network")
    mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8")
    if propagation(mounts) == "unchanged" and any_shared(mounts):
        raise LabError(
            "--isolated in a chroot needs private mounts: run it under unshare --mount --propagation private"
        )


def create(lab: Lab) -> None:
    """The bridge, and for every node a namespace with a cable to it, an address and a host name."""
    ip("link", "add", bridge(lab), "type", "bridge", "forward_delay", "0")
    ip("addr", "add", f"{lab.controller_address}/16", "dev", bridge(lab))
    ip("link", "set", bridge(lab), "up")
    hosts = ["127.0.0.1 localhost", f"{lab.controller_address} {os.uname().nodename}"]
    hosts += [f"{lab.node_address(name)} {name}" for name in lab.names]
    write_atomic(lab.etc / "hosts", "\n".join(hosts) + "\n")
    for name in lab.names:
        _node(lab, name)


def _node(lab: Lab, name: str) -> None:
    passing = propagation(Path("/proc/self/mountinfo").read_text(encoding="utf-8"))
    apart = ["unshare", "--net", "--uts", "--mount", "--propagation", passing]
    # The mount namespace lets the node have its own /etc/hosts; the host name is set before anything else runs.
    hold = ["sh", "-c", _HOLD, "sh", name, str(lab.etc / "hosts")]
    holder = processes.start(lab, f"ns-{name}", apart + hold, log=lab.node(name) / "log" / "namespace.out")
    own = os.readlink("/proc/self/ns/net")
    ready = lab.node(name) / "log" / "namespace.out"

    def said() -> bool:
        return "ready" in ready.read_text(encoding="utf-8")

    if not processes.wait_until(lambda: said() or not holder.alive, 10, step_s=0.01) or not said():
        raise LabError(f"no namespace for {name}: {ready.read_text(encoding='utf-8').strip()}")
    if os.readlink(f"/proc/{holder.pid}/ns/net") == own:
        raise LabError(f"the namespace of {name} was not separated from the host's")
    cable = host_end(lab, name)
    ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", str(holder.pid))
    ip("link", "set", cable, "master", bridge(lab), "up")
    within = [f"addr add {lab.node_address(name)}/16 dev eth0", "link set eth0 up", "link set lo up"]
    _within(holder, name, within)


def propagation(mountinfo: str) -> str:
    """How mounts pass between the host and a node: the host's must reach the nodes (a full disk), never the reverse.

    In a chroot, whose root is no mount point, this cannot be set; there a node's own mounts stay its own as long as no
    mount outside the lab is shared.
    """
    return "slave" if any(line.split()[4] == "/" for line in mountinfo.splitlines()) else "unchanged"


def any_shared(mountinfo: str) -> bool:
    return any(word.startswith("shared:") for line in mountinfo.splitlines() for word in line.split())


_HOLD = 'hostname "$1" && mount --bind "$2" /etc/hosts && echo ready && exec sleep infinity'


def inside(lab: Lab, name: str, command: Sequence[str]) -> list[str]:
    """The command line that runs ``command`` on the node ``name``."""
    holder = processes.known(lab, f"ns-{name}")
    if holder is None:
        raise LabError(f"the namespace of {name} is gone; lab down, then lab up")
    # --root and --wd: entering the mounts alone would lead out of a chroot.
    enter = ["nsenter", "--net", "--uts", "--mount", "--root", "--wd", "--target", str(holder.pid)]
    return [*enter, "--", *command]


def need_own(lab: Lab) -> None:
    """Raises LabError when the nodes share one network."""
    if not lab.spec.isolated:
        raise LabError("the nodes share one network; bring the lab up with --isolated to cut one off")


def agent_cut(lab: Lab, name: str, *, off: bool) -> None:
    """Lose what the node sends to the daemon's port, and tell nobody: as a firewall does that drops it.

    The kernel would refuse a connection at once by its own ``blackhole``, so it is sent into a cable that ends nowhere.
    """
    need_own(lab)
    daemon = lab.controller_address
    rule = f"to {daemon} ipproto tcp dport {lab.spec.daemon_port} lookup {_NOWHERE}"
    commands = [f"rule del {rule}", "link del nowhere"]
    if off:
        commands = ["link add nowhere arp off type veth peer name beyond", "link set nowhere up", "link set beyond up"]
        commands += [
            f"route add {daemon} dev nowhere src {lab.node_address(name)} table {_NOWHERE}",
            f"rule add {rule}",
        ]
    _within(processes.known(lab, f"ns-{name}"), name, commands)


def _within(holder: processes.Process | None, name: str, commands: Sequence[str]) -> None:
    """Have ``ip`` carry these out in the node's network."""
    if holder is None:
        raise LabError(f"the namespace of {name} is gone; lab down, then lab up")
    done = subprocess.run(
        ["nsenter", "--net", "--target", str(holder.pid), "ip", "-batch", "-"],
        input="\n".join(commands) + "\n",
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    if done.returncode != 0:
        raise LabError(f"the network of {name}: {done.stderr.strip()}")


def cable(lab: Lab, name: str, *, up: bool) -> None:
    """Cut a node off, or plug it in again."""
    need_own(lab)
    ip("link", "set", host_end(lab, name), "up" if up else "down")


def remove(lab: Lab) -> None:
    """Remove the bridge and the cables that are left (those of ended namespaces are gone with them)."""
    if os.geteuid() != 0:
        return
    prefix = host_end(lab, "n")
    for path in Path("/sys/class/net").iterdir():
        if path.name == bridge(lab) or path.name.startswith(prefix):
            ip("link", "delete", path.name, check=False)
