"""``sentinel config``: check a settings file; show every setting with its unit, default and reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from sentinel.cli.asking import config_option, json_option, print_json


@click.group()
def config() -> None:
    """Check the settings and show them with their reasons."""


@config.command()
@config_option
@click.option("--agent", is_flag=True, help="The file is an agent's.")
def check(config: Path, agent: bool) -> None:
    """Read the file strictly; errors name file, line, key and the fix."""
    from sentinel.settings import load

    load(config, _kind(agent))
    click.echo(f"{config}: good")


@config.command()
@click.option("--agent", is_flag=True, help="The agent's settings instead of the daemon's.")
@json_option
def show(agent: bool, as_json: bool) -> None:
    """Every setting: key, default, unit and the reason for the default."""
    from sentinel.settings import described

    rows = described(_kind(agent))
    if as_json:
        print_json(
            {"key": key, "default": default, "unit": unit, "reason": reason} for key, default, unit, reason in rows
        )
        return
    from sentinel.cli.asking import table

    table("", ("key", "default", "unit", "reason"), rows)


def _kind(agent: bool) -> type[Any]:
    if agent:
        from sentinel.agent.settings import AgentSettings

        return AgentSettings
    from sentinel.settings import Settings

    return Settings
