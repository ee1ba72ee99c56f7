"""Which way to Slurm: pyslurm where it imports and fits, Slurm's commands elsewhere. Chosen once, at the start."""

from __future__ import annotations

from importlib.util import find_spec

from sentinel.adapters import slurm_pyslurm
from sentinel.adapters.slurm_commands import CommandReader, CommandWriter
from sentinel.adapters.slurm_process import Asked, untold
from sentinel.ports import SlurmReader, SlurmWriter
from sentinel.settings import Slurm


def connect(settings: Slurm, asked: Asked = untold) -> tuple[SlurmReader, SlurmWriter, str]:
    """Reader, writer, and in words which way was chosen and why. ``asked`` is told of each request."""
    environment = {"SLURM_CONF": settings.conf} if settings.conf else {}
    folder = settings.bin or None
    version, why_not = "", "pyslurm is not installed"
    if find_spec("pyslurm") is not None:  # not imported here: libslurm may end the process that loads it
        version, why_not = slurm_pyslurm.probe(environment, settings.deadline_s)
    if version:
        reader, writer, _ = slurm_pyslurm.connect(
            bin=folder, environment=environment, deadline_s=settings.deadline_s, asked=asked
        )
        return reader, writer, f"pyslurm {version}; job updates through scontrol"
    return (
        CommandReader(bin=folder, environment=environment, deadline_s=settings.deadline_s, asked=asked),
        CommandWriter(bin=folder, environment=environment, deadline_s=settings.deadline_s, asked=asked),
        f"Slurm's commands ({why_not})",
    )
