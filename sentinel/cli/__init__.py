"""The command ``sentinel``.

A command's module is imported only when it is called, so that ``sentinel --help`` stays quick; the table below is all
that ``--help`` reads. Every listing takes ``--json``; every refused or failed command exits non-zero and says what to
do next.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import io
import os
import select
import sys
import time
from collections.abc import Iterator
from typing import Any

import click

from sentinel import __version__
from sentinel.cli import help_text
from sentinel.errors import FileError, SentinelError

# command -> (module:attribute, one line of help)
COMMANDS: dict[str, tuple[str, str]] = {
    "install": ("sentinel.cli.install.commands:install", "Install or upgrade on this host: controller or node."),
    "uninstall": ("sentinel.cli.install.commands:uninstall", "Remove Sentinel from this host; Slurm goes on working."),
    "daemon": ("sentinel.cli.services:daemon", "Run the daemon: collect, judge, decide, act, tell."),
    "agent": ("sentinel.cli.services:agent", "Run the agent of this node."),
    "doctor": ("sentinel.cli.operator.doctor:doctor", "Check that everything is in place, and say what is not."),
    "status": ("sentinel.cli.operator.status:status", "The fleet, the mode and the open incidents at a glance."),
    "watch": ("sentinel.cli.operator.status:watch", "The same, refreshed in place."),
    "why": ("sentinel.cli.operator.incidents:why", "Why: an incident, the last one, a node, a job."),
    "nodes": ("sentinel.cli.operator.fleet:nodes", "Nodes: state, history, score."),
    "repairs": ("sentinel.cli.operator.fleet:repairs", "Which nodes and GPUs to pull: serial number, advice."),
    "jobs": ("sentinel.cli.operator.jobs:jobs", "Jobs: attempts, steps gained, time lost; one job's attempts."),
    "lost": ("sentinel.cli.operator.jobs:lost", "GPU-hours lost, by job, user, node or cause."),
    "report": (
        "sentinel.cli.operator.report:report",
        "A week in numbers: interruptions, recovery, worst nodes.",
    ),
    "incidents": ("sentinel.cli.operator.incidents:incidents", "What happened and what was decided."),
    "correct": (
        "sentinel.cli.operator.corrections:correct",
        "Say what an incident's cause was; list and export what was said.",
    ),
    "history": ("sentinel.cli.operator.history:history", "Past failures; recurring ones first."),
    "audit": ("sentinel.cli.operator.audit:audit", "Who changed what, from where and why."),
    "drain": ("sentinel.cli.operator.commands:drain", "Drain nodes (state shown first)."),
    "release": ("sentinel.cli.operator.commands:release", "Return nodes that Sentinel drained."),
    "pause": ("sentinel.cli.operator.commands:pause", "Stop acting; go on observing."),
    "resume": ("sentinel.cli.operator.commands:resume", "Act again."),
    "approve": ("sentinel.cli.operator.approvals:approve", "Approve what mode suggest asks for."),
    "refuse": ("sentinel.cli.operator.approvals:refuse", "Refuse it: nothing of it is done."),
    "alerts": ("sentinel.cli.operator.alerts:alerts", "Messages: what was not delivered; test the channels."),
    "classify": ("sentinel.cli.offline.classify:classify", "Judge a log, or a folder of one failure's evidence."),
    "hang": ("sentinel.cli.offline.hang:hang", "Flight-recorder dumps: which rank, which collective, why."),
    "checkpoints": ("sentinel.cli.checkpoints.commands:checkpoints", "Find, validate, choose, move checkpoints."),
    "plan": ("sentinel.cli.plan.commands:plan", "How often to save, how fast the storage, how many spares."),
    "run": ("sentinel.cli.services:run", "In a batch script: srun that starts again in its allocation."),
    "replay": ("sentinel.cli.recordings.replay:replay", "Judge the past again, by today's rules and policy."),
    "bundle": ("sentinel.cli.recordings.bundle:bundle", "Export an incident, a node or a time as one file."),
    "import": (
        "sentinel.cli.recordings.import_jobs:import_jobs",
        "What failed before Sentinel: Slurm's accounting and old logs.",
    ),
    "simulate": (
        "sentinel.cli.simulate.command:simulate",
        "Weeks of training on a simulated cluster: what failures cost.",
    ),
    "explore": ("sentinel.cli.offline.explore:explore", "Try to break Sentinel's promises on a simulated cluster."),
    "rules": ("sentinel.cli.offline.rules:rules", "List, test and explain the rules."),
    "completion": ("sentinel.cli.offline.completion:completion", "Completion for bash, zsh or fish."),
    "manual": ("sentinel.cli.offline.manual:manual", "The man page, and the reference pages of docs/."),
    "config": ("sentinel.cli.offline.config:config", "Check the settings and show them with their reasons."),
}


# As a shell tells of tools that a signal ended: 128 and its number.
PIPE_CLOSED = 141
INTERRUPTED = 130

help_text.use()


class LazyGroup(click.Group):
    """A click group whose commands are imported on use."""

    def make_context(self, *given: Any, **named: Any) -> click.Context:
        with _ending_as_other_tools():
            return super().make_context(*given, **named)

    def invoke(self, ctx: click.Context) -> Any:
        with _ending_as_other_tools():
            return super().invoke(ctx)

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


@contextlib.contextmanager
def _ending_as_other_tools() -> Iterator[None]:
    """Ends with `PIPE_CLOSED` where whoever reads the output is gone (``| head -1``), and with `INTERRUPTED` after Ctrl-C:
    click's 1 means that something is bad.

    SIGPIPE itself stays ignored: it would also end a command one of whose connections or children goes away.
    """
    try:
        yield
    except KeyboardInterrupt:
        click.echo("\nInterrupted.", err=True)
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        if not _reader_is_gone():
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing is flushed into it at the exit
        sys.exit(PIPE_CLOSED)


def _reader_is_gone() -> bool:
    try:
        asked = select.poll()
        asked.register(sys.stdout, 0)
        return any(events & (select.POLLERR | select.POLLHUP) for _, events in asked.poll(0))
    except (AttributeError, OSError, ValueError):  # no stream with a descriptor
        return False


def _leave_unknown_zone() -> None:
    """Show times in UTC where $TZ names an offset that Python has no datetime for: a day or more (``UTC+99``)."""
    if max(abs(time.timezone), abs(time.altzone), abs(time.localtime().tm_gmtoff)) >= 86400:
        os.environ["TZ"] = "UTC"
        time.tzset()


def main() -> None:
    """Entry point: errors of ours become one line on stderr and their exit status."""
    _leave_unknown_zone()
    for stream in (sys.stdout, sys.stderr):
        # What a terminal, a pipe or a file of another encoding has no character for is shown by its escape.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        cli(prog_name="sentinel")
    except SentinelError as error:
        _say_error(error)
        sys.exit(error.exit_status)
    except OSError as error:
        if isinstance(error.filename, str | bytes):  # of a path that a command only looked at: whether it is there
            path = os.fsdecode(error.filename)
            fix = "check the path, or run it as an account that may look there: the files' owner, or the daemon's"
            _say_error(FileError(path, f"cannot be read: {error.strerror}", fix=fix))
            sys.exit(FileError.exit_status)
        # What commands read and write themselves comes as an error of ours, and a path's has its name: this is the output.
        if error.errno not in (errno.ENOSPC, errno.EIO, errno.EDQUOT):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing is flushed into it at the exit
        click.echo(f"sentinel: the output cannot be written: {error.strerror}", err=True)
        click.echo("  free space there, or write it elsewhere", err=True)
        sys.exit(3)


def _say_error(error: SentinelError) -> None:
    """What is wrong, and below it the fix. Long lines are broken for a terminal only, and within no path."""
    _say_one(error)
    for other in error.others if isinstance(error, FileError) else ():
        _say_one(other)


def _say_one(error: SentinelError) -> None:
    from sentinel.cli.operator.output import say, unbroken

    path = str(error.path) if isinstance(error, FileError) else ""
    for text, indent in ((f"sentinel: {error.message}", ""), (error.fix or error.usual_fix, "  ")):
        for line in (text.replace(path, unbroken(path)) if path else text).splitlines():
            say(line, indent, hanging=2, err=True)
