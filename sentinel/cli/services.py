"""The two services, and the launcher in a job's batch script."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from sentinel.cli.operator.arguments import Finite
from sentinel.cli.operator.daemon_client import config_option
from sentinel.launcher import WAIT_S, launch


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


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("--nodes", type=int, required=True, help="Nodes on which it trains; the job's others are spares.")
@click.option(
    "--wait",
    "wait_s",
    type=Finite(0),
    default=WAIT_S,
    show_default=True,
    metavar="SECONDS",
    help="After a failure, for the order to start again; then it ends with srun's status.",
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED, required=True)
def run(nodes: int, wait_s: float, command: Sequence[str]) -> None:
    """Start the training with srun, and again in the same allocation when a node fails.

    For the batch script of a job with spare nodes: submitted with --no-kill, more nodes than it trains on, and
    "in_allocation" in its comment. When one of its nodes breaks, Sentinel ends the step, gives the node back, and orders the
    next step on the good nodes, without the queue. --nodelist, --nodes and --job-name of srun are set here.

    \b
    Examples:
      sentinel run --nodes 4 -- srun --kill-on-bad-exit=1 python train.py
    """
    sys.exit(launch(nodes, command, wait_s))
