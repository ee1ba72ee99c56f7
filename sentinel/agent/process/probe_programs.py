"""Builds the commands that start probes as child processes, without site-packages where they are not needed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from sentinel.agent.probes import MEMORY_VARIABLE

INVENTORY = "sentinel.agent.probes.inventory"
ASK_SLURM = "sentinel.agent.probes.ask_slurm"

# Variables that a child inherits from the agent's environment, beside SENTINEL_*.
PASSED_ON = ("PATH", "LD_LIBRARY_PATH", "TZ")


def probe_command(module: str) -> list[str]:
    # -P: the working folder is not searched for modules. -S: no site-packages, which saves a third of the start; the
    # GPU probe needs them for NVML.
    site = [] if module.endswith((".dcgm", ".inventory")) else ["-S"]
    return [sys.executable, "-P", *site, "-m", module]


def probe_environment(user_memory_bytes: int = 0) -> dict[str, str]:
    """
    Args:
        user_memory_bytes: what a child takes at most once it has become a job's user; 0: no limit.
    """
    kept = {name: value for name, value in os.environ.items() if name in PASSED_ON or name.startswith("SENTINEL_")}
    package = Path(__file__).resolve().parents[3]
    fixed = {"PYTHONPATH": str(package), "PYTHONUNBUFFERED": "1", "LC_ALL": "C.UTF-8"}
    return {**kept, **fixed, MEMORY_VARIABLE: str(user_memory_bytes)}
