"""The two services."""

from __future__ import annotations

from pathlib import Path

import click

from sentinel.cli.operator.daemon_client import config_option


@click.command()
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    default=Path("/etc/sentinel/agent.toml"),
    show_default=True,
    help="Settings of this node's agent.",
)
def agent(config: Path) -> None:
    """Run the agent of this node until it is told to stop (SIGTERM).

    It watches the kernel log, the GPUs and the jobs' logs, keeps what it sees on disk until the daemon has it, writes the
    verdict that the prolog reads, and does what the daemon orders. It decides nothing.

    \b
    Examples:
      sentinel agent
      sentinel agent --config /etc/sentinel/agent.toml
    """
    from sentinel.adapters.munge import Munge
    from sentinel.agent.agent import run
    from sentinel.agent.settings import AgentSettings, require_sound
    from sentinel.config.settings import load

    settings = load(config, AgentSettings)
    require_sound(settings)
    run(settings, Munge)


@click.command()
@config_option
def daemon(config: Path) -> None:
    """Run the daemon until it is told to stop (SIGTERM).

    It collects what agents and Slurm say, judges it, decides, acts where acting is switched on, and tells people. A second
    one on the same store stands by.

    \b
    Examples:
      sentinel daemon
      sentinel daemon --config /etc/sentinel/sentinel.toml
    """
    from sentinel.config.settings import Settings, load
    from sentinel.daemon.run import main

    main(load(config, Settings))
