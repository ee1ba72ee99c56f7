"""Ports for servers of tests, which collide with nobody's.

Jobs of labs meet on ports above these (``deploy/lab/training/train.sbatch``), labs listen above those, and higher ones
the kernel hands out by itself.
"""

from __future__ import annotations

import random
import socket

FIRST, LAST = 10_000, 11_999
_claims: list[socket.socket] = []


def free_ports(count: int) -> list[int]:
    """Ports that no other test gets before this process ends, also while nothing listens there."""
    ports: list[int] = []
    for port in random.SystemRandom().sample(range(FIRST, LAST + 1), LAST + 1 - FIRST):
        if _claim(port):
            ports.append(port)
            if len(ports) == count:
                return ports
    raise RuntimeError("no free ports")


def _claim(port: int) -> bool:
    """Whether the port is now this process's, which holds an abstract socket of its name until it ends."""
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0sentinel-tests-port-{port}")
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("", port))
    except OSError:
        claim.close()
        return False
    _claims.append(claim)
    return True
