"""slurm.conf in force: every key with its values, and an empty one swallows no neighbour."""

from __future__ import annotations

import pytest

from sentinel.adapters.slurm import conf
from sentinel.adapters.slurm.conf import slurm_config
from sentinel.config.settings import Slurm
from sentinel.errors import Unavailable

SHOWN = b"""Configuration data as of 2026-03-01T12:00:00
AccountingStorageHost   = localhost
Epilog[0]               = /etc/a.sh
Epilog[1]               = /etc/b.sh
MinJobAge               = 300 sec
Prolog                  = (null)
PrologFlags             =
RebootProgram           = /sbin/reboot --now=1
SlurmUser               = slurm(64030)
X11Parameters           = \xff

Slurmctld(primary) at head is UP
"""


class FakeCommands:
    made: list[FakeCommands]
    answer: bytes | Exception

    def __init__(self, *, bin: str | None, environment: dict[str, str], deadline_s: float) -> None:
        self.bin, self.environment, self.deadline_s = bin, environment, deadline_s
        self.ran: list[tuple[str, ...]] = []
        FakeCommands.made.append(self)

    async def run(self, *words: str) -> bytes:
        self.ran.append(words)
        if isinstance(FakeCommands.answer, Exception):
            raise FakeCommands.answer
        return FakeCommands.answer


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conf, "Commands", FakeCommands)
    FakeCommands.made, FakeCommands.answer = [], SHOWN


async def test_keys_and_values() -> None:
    found = await slurm_config(Slurm())
    assert found == {
        "AccountingStorageHost": ["localhost"],
        "Epilog": ["/etc/a.sh", "/etc/b.sh"],
        "MinJobAge": ["300 sec"],
        "Prolog": [""],
        "PrologFlags": [""],
        "RebootProgram": ["/sbin/reboot --now=1"],
        "SlurmUser": ["slurm(64030)"],
        "X11Parameters": ["\\xff"],
    }


@pytest.mark.parametrize("text", [b"", b"\n\n", b"no keys here\n= value\n"])
async def test_nothing_is_nothing(text: bytes) -> None:
    FakeCommands.answer = text
    assert await slurm_config(Slurm()) == {}


async def test_commands_of_the_settings_are_run() -> None:
    await slurm_config(Slurm(bin="/opt/slurm/bin", conf="/etc/s.conf", deadline_s=3.0))
    await slurm_config(Slurm())
    named, plain = FakeCommands.made
    assert (named.bin, named.environment, named.deadline_s) == ("/opt/slurm/bin", {"SLURM_CONF": "/etc/s.conf"}, 3.0)
    assert (plain.bin, plain.environment) == (None, {}) and plain.ran == [("scontrol", "show", "config")]


async def test_slurm_that_does_not_answer() -> None:
    FakeCommands.answer = Unavailable("away")
    with pytest.raises(Unavailable, match="away"):
        await slurm_config(Slurm())
