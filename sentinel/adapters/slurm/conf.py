"""Reads the configuration that slurmctld has in force, for ``sentinel doctor``."""

from __future__ import annotations

import re

from sentinel.adapters.slurm.process import Commands
from sentinel.config.settings import Slurm
from sentinel.text import text_of

_LINE = re.compile(r"^([A-Za-z]\w*)(?:\[\d+\])?[ \t]*=[ \t]*(.*?)[ \t]*$", re.MULTILINE)


async def slurm_config(settings: Slurm) -> dict[str, list[str]]:
    """Every key of ``scontrol show config`` with its values (a key like ``Prolog[1]`` repeats).

    Raises:
        Unavailable: slurmctld does not answer, or refuses us.
    """
    text = text_of(await _commands(settings).run("scontrol", "show", "config"))
    found: dict[str, list[str]] = {}
    for key, value in _LINE.findall(text):
        found.setdefault(key, []).append("" if value == "(null)" else value)
    return found


async def admin_level(settings: Slurm, account: str) -> str:
    """The account's AdminLevel in Slurm's accounting ("Administrator", "Operator", "None"); empty: it is not known there.

    Raises:
        Unavailable: slurmdbd does not answer, or there is none.
    """
    words = ("-n", "-P", "show", "user", f"name={account}", "format=AdminLevel")
    return text_of(await _commands(settings).run("sacctmgr", *words)).strip().partition("\n")[0]


def administrator_command(account: str, level: str) -> list[str]:
    """What makes the account an Administrator in Slurm, whose present AdminLevel this is; it may be run again.

    ``create`` fails for an account that is known there, and leaves its level; ``modify`` finds no other.
    """
    if level:
        return ["sacctmgr", "-i", "modify", "user", "where", f"name={account}", "set", "adminlevel=Administrator"]
    return ["sacctmgr", "-i", "create", "user", f"name={account}", "account=root", "adminlevel=Administrator"]


def _commands(settings: Slurm) -> Commands:
    environment = {"SLURM_CONF": settings.conf} if settings.conf else {}
    return Commands(bin=settings.bin or None, environment=environment, deadline_s=settings.deadline_s)
