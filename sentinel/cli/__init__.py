"""The command ``sentinel``.

A command's module is imported only when it is called, so that ``sentinel --help`` stays quick; the table below is all
that ``--help`` reads. Every listing takes ``--json``; every refused or failed command exits non-zero and says what to
do next.
"""

from __future__ import annotations

import importlib
import sys

import click

from sentinel import __version__
from sentinel.errors import SentinelError

# command -> (module:attribute, one line of help)
COMMANDS: dict[str, tuple[str, str]] = {
    "daemon": ("sentinel.cli.services:daemon", "Run the daemon: collect, judge, decide, act, tell."),
    "agent": ("sentinel.cli.services:agent", "Run the agent of this node."),
    "doctor": ("sentinel.cli.doctor:doctor", "Check that everything is in place, and say what is not."),
    "status": ("sentinel.cli.fleet:status", "The fleet and the open incidents at a glance."),
    "nodes": ("sentinel.cli.fleet:nodes", "Nodes: state, history, score."),
    "jobs": ("sentinel.cli.fleet:jobs", "Jobs: attempts, steps gained, time lost."),
    "incidents": ("sentinel.cli.incidents:incidents", "What happened and what was decided."),
    "why": ("sentinel.cli.incidents:why", "On what grounds, and what would have changed it."),
    "history": ("sentinel.cli.history:history", "Past failures; recurring ones first."),
    "drain": ("sentinel.cli.operate:drain", "Drain a node (state shown first)."),
    "release": ("sentinel.cli.operate:release", "Return a node that Sentinel drained."),
    "pause": ("sentinel.cli.operate:pause", "Stop acting; go on observing."),
    "resume": ("sentinel.cli.operate:resume", "Act again."),
    "classify": ("sentinel.cli.classify:classify", "Judge a log, or a folder of one failure's evidence."),
    "hang": ("sentinel.cli.hang:hang", "Flight-recorder dumps: which rank, which collective, why."),
    "checkpoints": ("sentinel.cli.checkpoints:checkpoints", "Find, validate, choose, move checkpoints."),
    "plan": ("sentinel.cli.plan:plan", "How often to save, how fast the storage, how many spares."),
    "rules": ("sentinel.cli.rules:rules", "List, test and explain the rules."),
    "config": ("sentinel.cli.config:config", "Check the settings and show them with their reasons."),
}


class LazyGroup(click.Group):
    """A click group whose commands are imported on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        module, _, attribute = entry[0].partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, help_line) for name, (_, help_line) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="sentinel")
def cli() -> None:
    """Sentinel keeps large training jobs alive on Slurm GPU clusters."""


def main() -> None:
    """Entry point: errors of ours become one line on stderr and their exit status."""
    try:
        cli()
    except SentinelError as error:
        click.echo(f"sentinel: {_harmless(error.message)}", err=True)
        if error.fix:
            click.echo(f"  {_harmless(error.fix)}", err=True)
        sys.exit(error.exit_status)


def _harmless(text: str) -> str:
    """An error may quote what a user wrote: no character of it may drive the terminal."""
    return "".join(ch if ch == "\n" or ch.isprintable() else "·" for ch in text)
