"""Where everything of one lab lies, and the facts of the lab that its commands share (``lab.json``)."""

from __future__ import annotations

import getpass
import json
import os
import secrets
import socket
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent

# Ports of a lab lie below Linux's ephemeral range (32768..), so no outgoing connection can hold one.
PORT_FIRST, PORT_LAST = 29000, 32700
# A Unix socket path is limited to 107 bytes; munge's is the longest of ours.
LONGEST_DIR = 70


class LabError(Exception):
    """Something a person can fix; the text says what to do."""


@dataclass(frozen=True)
class Spec:
    """What was asked for at ``lab up``, and what was chosen then. Written once to ``lab.json``."""

    dir: str
    cluster: str
    nodes: int
    gpus: int
    partition: str
    isolated: bool
    sentinel: bool
    python: str
    controller_port: int
    daemon_port: int
    webhook_port: int
    node_ports: list[int]
    first_job: int
    subnet: int  # third octet of 10.<subnet>.x.y in an isolated lab
    user: str
    mode: str = "act"


class Lab:
    """Paths and facts of one lab."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.dir = Path(spec.dir)
        self.etc = self.dir / "etc"
        self.lib = self.dir / "lib"  # copies of what runs as the account of jobs
        self.log = self.dir / "log"
        self.run = self.dir / "run"
        self.state = self.dir / "state"
        self.shared = self.dir / "shared"
        self.control = self.dir / "control"
        self.messages = self.dir / "messages.jsonl"
        self.slurm_conf = self.etc / "slurm.conf"
        self.munge_socket = self.run / "munge.socket"

    @property
    def names(self) -> list[str]:
        return [f"n{i}" for i in range(1, self.spec.nodes + 1)]

    def index(self, node: str) -> int:
        """0-based place of a node; LabError for a name that the lab does not have."""
        if node not in self.names:
            raise LabError(f"no node {node!r} in this lab; it has n1 to n{self.spec.nodes}")
        return self.names.index(node)

    def node(self, name: str) -> Path:
        return self.dir / "nodes" / name

    def node_port(self, name: str) -> int:
        return self.spec.node_ports[self.index(name)]

    def node_address(self, name: str) -> str:
        return self.address(self.index(name) + 2) if self.spec.isolated else "127.0.0.1"

    @property
    def controller_address(self) -> str:
        return self.address(1) if self.spec.isolated else "127.0.0.1"

    def address(self, host: int) -> str:
        return f"10.{self.spec.subnet}.{host // 250}.{host % 250 + 1}"

    def environment(self) -> dict[str, str]:
        """What a shell needs so that Slurm's commands and ``sentinel`` talk to this lab."""
        return {
            "SLURM_CONF": str(self.slurm_conf),
            "SENTINEL_CONFIG": str(self.etc / "sentinel.toml"),
            "SENTINEL_LAB_DIR": str(self.dir),
            "PATH": f"{Path(self.spec.python).parent}:{os.environ.get('PATH', '/usr/sbin:/usr/bin:/sbin:/bin')}",
        }

    def save(self) -> None:
        write_atomic(self.dir / "lab.json", json.dumps(asdict(self.spec), indent=1) + "\n")


def default_dir() -> Path:
    """A short path, because munge's socket lies in it."""
    given = os.environ.get("SENTINEL_LAB_DIR")
    if given:
        return Path(given)
    return Path(tempfile.gettempdir()) / f"sentinel-lab-{getpass.getuser()}"


def load(directory: Path) -> Lab:
    """The lab that was brought up in ``directory``.

    Raises:
        LabError: there is none, or its ``lab.json`` is not readable.
    """
    path = directory / "lab.json"
    try:
        raw: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return Lab(Spec(**raw))
    except FileNotFoundError:
        raise LabError(f"no lab in {directory}; bring one up with: bash deploy/lab/lab up --dir {directory}") from None
    except (ValueError, TypeError) as error:
        raise LabError(f"{path} cannot be read ({error}); clean up with: lab down --dir {directory}") from error


def new_spec(
    directory: Path, *, nodes: int, gpus: int, partition: str, isolated: bool, sentinel: bool, python: str, mode: str
) -> Spec:
    """Choose names and free ports for a new lab."""
    if len(str(directory)) > LONGEST_DIR:
        raise LabError(f"{directory} is longer than {LONGEST_DIR} characters (limit of socket paths); give --dir")
    ports = free_ports(nodes + 3)
    tag = secrets.token_hex(3)
    return Spec(
        dir=str(directory),
        cluster=f"lab{tag}",
        nodes=nodes,
        gpus=gpus,
        partition=partition,
        isolated=isolated,
        sentinel=sentinel,
        python=python,
        controller_port=ports[0],
        daemon_port=ports[1],
        webhook_port=ports[2],
        node_ports=ports[3:],
        first_job=first_job(ports[0]),
        subnet=free_subnet(Path("/proc/net/route").read_text(encoding="ascii")),
        user=getpass.getuser(),
        mode=mode,
    )


def first_job(controller_port: int) -> int:
    """Job ids of labs side by side differ, as their ports do: so what a job derives from its id (a port) differs, too."""
    return 1 + 4 * (controller_port - PORT_FIRST)


def free_subnet(routes: str) -> int:
    """An N for which this machine has no route into 10.N.0.0/16; ``routes`` is the text of /proc/net/route."""
    used = set()
    for line in routes.splitlines()[1:]:
        destination = int(line.split()[1], 16).to_bytes(4, "little")  # the kernel prints network order as one number
        if destination[0] == 10:
            used.add(destination[1])
    free = [n for n in range(100, 220) if n not in used]
    if not free:
        raise LabError("no free network 10.100 to 10.219 for the nodes; stop other labs first")
    return secrets.choice(free)


def free_ports(count: int) -> list[int]:
    """A run of ``count`` consecutive ports that nobody listens on now."""
    room = PORT_LAST - PORT_FIRST - count
    if room < 0:
        raise LabError(f"{count} ports do not fit between {PORT_FIRST} and {PORT_LAST}; take fewer nodes")
    for _ in range(200):
        first = PORT_FIRST + secrets.randbelow(room + 1)
        run = list(range(first, first + count))
        if all(_free(port) for port in run):
            return run
    raise LabError(f"no {count} free consecutive ports between {PORT_FIRST} and {PORT_LAST}; stop other labs first")


def _free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
        return True


def write_atomic(path: Path, text: str, mode: int = 0o644) -> None:
    """Readers see the old file or the new one, never half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    partial.write_text(text, encoding="utf-8")
    partial.chmod(mode)
    partial.replace(path)
