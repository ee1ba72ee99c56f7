"""Chooses the access to Slurm once, at start: pyslurm if it imports and matches the release, else Slurm's commands."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from importlib.util import find_spec

from sentinel.adapters.slurm import pyslurm_reader
from sentinel.adapters.slurm.commands import CommandReader, CommandWriter, utc_now
from sentinel.adapters.slurm.fenced import FencedVerbs
from sentinel.adapters.slurm.process import Asked, uncounted
from sentinel.adapters.slurm.writer import Writer
from sentinel.config.settings import Slurm
from sentinel.ports import Fence, SlurmReader, SlurmWriter


def connect(
    settings: Slurm,
    asked: Asked = uncounted,
    fence: Fence | None = None,
    now: Callable[[], datetime] = utc_now,
) -> tuple[SlurmReader, SlurmWriter, str]:
    """Reader, writer, and in words which way was chosen and why.

    Args:
        asked: told of each request.
        fence: without its consent nothing is written.
        now: the time of a snapshot.
    """
    reader, writer, description = _connected(settings, asked, now)
    return reader, writer if fence is None else Writer(FencedVerbs(writer.verbs, fence)), description


def _connected(settings: Slurm, asked: Asked, now: Callable[[], datetime]) -> tuple[SlurmReader, Writer, str]:
    environment = {"SLURM_CONF": settings.conf} if settings.conf else {}
    folder = settings.bin or None
    version, why_not = "", "pyslurm is not installed"
    if find_spec("pyslurm") is not None:  # not imported here: libslurm may end the process that loads it
        version, why_not = pyslurm_reader.probe(environment, settings.deadline_s)
    if version:
        reader, writer, _ = pyslurm_reader.connect(
            bin=folder, environment=environment, deadline_s=settings.deadline_s, now=now, asked=asked
        )
        return reader, writer, f"pyslurm {version}; job updates through scontrol"
    return (
        CommandReader(bin=folder, environment=environment, deadline_s=settings.deadline_s, now=now, asked=asked),
        CommandWriter(bin=folder, environment=environment, deadline_s=settings.deadline_s, asked=asked),
        f"Slurm's commands ({why_not})",
    )
