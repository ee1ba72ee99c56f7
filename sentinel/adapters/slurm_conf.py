"""slurm.conf as slurmctld has it in force, for ``sentinel doctor``."""

from __future__ import annotations

import re

from sentinel.adapters.slurm_process import Commands
from sentinel.settings import Slurm

_LINE = re.compile(r"^([A-Za-z]\w*)(?:\[\d+\])?[ \t]*=[ \t]*(.*?)[ \t]*$", re.MULTILINE)


async def slurm_config(settings: Slurm) -> dict[str, list[str]]:
    """Every key of ``scontrol show config`` with its values (a key like ``Prolog[1]`` repeats).

    Raises:
        Unavailable: slurmctld does not answer, or refuses us.
    """
    environment = {"SLURM_CONF": settings.conf} if settings.conf else {}
    commands = Commands(bin=settings.bin or None, environment=environment, deadline_s=settings.deadline_s)
    text = (await commands.run("scontrol", "show", "config")).decode("utf-8", "replace")
    found: dict[str, list[str]] = {}
    for key, value in _LINE.findall(text):
        found.setdefault(key, []).append("" if value == "(null)" else value)
    return found
