"""Which way to Slurm: pyslurm where it imports and fits, Slurm's commands elsewhere. Chosen once, at the start."""

from __future__ import annotations

from importlib.util import find_spec

from sentinel.adapters import slurm_pyslurm
from sentinel.adapters.slurm_commands import CommandReader, CommandWriter
from sentinel.ports import SlurmReader, SlurmWriter
from sentinel.settings import Slurm


def connect(settings: Slurm) -> tuple[SlurmReader, SlurmWriter, str]:
    """Reader, writer, and in words which way was chosen and why."""
    environment = {"SLURM_CONF": settings.conf} if settings.conf else {}
    folder = settings.bin or None
    version, why_not = "", "pyslurm is not installed"
    if find_spec("pyslurm") is not None:  # not imported here: libslurm may end the process that loads it
        version, why_not = slurm_pyslurm.probe(environment, settings.deadline_s)
    if version:
        reader, writer, _ = slurm_pyslurm.connect(bin=folder, environment=environment, deadline_s=settings.deadline_s)
        return reader, writer, f"pyslurm {version}; job updates through scontrol"
    return (
        CommandReader(bin=folder, environment=environment, deadline_s=settings.deadline_s),
        CommandWriter(bin=folder, environment=environment, deadline_s=settings.deadline_s),
        f"Slurm's commands ({why_not})",
    )
