"""The agent's children and the hooks run without site-packages (``python -S``): a third of the start, and less memory."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import sentinel
from sentinel.agent import probes
from sentinel.agent.process.probe_programs import probe_command

PROBES = [f"{probes.__name__}.{found.name}" for found in pkgutil.iter_modules(probes.__path__)]
BARE = [module for module in PROBES if "-S" in probe_command(module)]  # the others need NVML's or DCGM's bindings


@pytest.mark.parametrize("module", [*BARE, "sentinel.hook", "sentinel.agent.health.level1"])
def test_each_starts_on_the_standard_library(module: str) -> None:
    code = f"import importlib; importlib.import_module({module!r})"
    root = str(Path(sentinel.__file__).parents[1])
    bare = ["env", "-i", f"PYTHONPATH={root}", sys.executable, "-P", "-S", "-c", code]
    done = subprocess.run(bare, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-500:]


def test_most_are_bare() -> None:
    assert len(BARE) >= 5
