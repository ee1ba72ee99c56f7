"""``sentinel plan``: how often to save, how fast the storage, how many spares."""

from __future__ import annotations

import importlib

import click

_COMMANDS: dict[str, str] = {
    "interval": "How often to save: one tier or two, and what being wrong costs.",
    "bandwidth": "How fast the storage: writing, reading back, wear; is a measured run within limits?",
    "fleet": "How often it will fail, and how many saves fit between two failures.",
    "spares": "How many spare nodes, how many copies of a shard and where.",
    "ettr": "How much of the time is training, and which lever buys most.",
}


class _PlanGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command = getattr(importlib.import_module(f"sentinel.cli.plan.{cmd_name}"), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


@click.group(cls=_PlanGroup, context_settings={"help_option_names": ["-h", "--help"]})
def plan() -> None:
    """How often to save, how fast the storage, how many spares: numbers with their reasons.

    Quantities carry units: 405B, 15min, 3.09h, 54d, 2TB/s, 80GiB, 50000h, 0.1 or 10%. Decimal units are decimal
    (1 TB = 1e12 bytes), binary ones binary (1 TiB = 2^40). Every answer says which inputs were given, taken from the
    history or defaulted. What has no answer is refused with exit status 2 (a bad quantity) or 4 (outside the range of
    the formulas).

    \b
    Examples:
      sentinel plan interval --mtbf 3.09h --save 90s
      sentinel plan bandwidth --parameters 405B --interval 15min --overlap 10%
      sentinel plan fleet --gpus 16384 --gpu-mtbf 50000h --days 54
      sentinel plan spares --nodes 2048 --node-mtbf 6250h --repair 24h --wait 10min
      sentinel plan ettr --gpus 12000 --failures-per-1000-node-days 6.5 --save 5min --restart 5min
    """
