"""``sentinel manual``: the man page and the reference pages, made from the commands and settings themselves."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import click

from sentinel import __version__
from sentinel.cli import INTERRUPTED, PIPE_CLOSED


@click.command()
@click.argument("page", type=click.Choice(["man", "commands", "settings", "metrics"]), default="man")
def manual(page: str) -> None:
    """Print a reference PAGE: the man page (roff), or commands, settings or metrics (Markdown).

    \b
    Examples:
      sentinel manual man | man -l -
      sentinel manual settings > docs/settings.md
    """
    makers = {"man": man_page, "commands": commands_page, "settings": settings_page, "metrics": metrics_page}
    click.echo(makers[page](), nl=False)


def commands() -> Iterator[tuple[str, click.Command]]:
    """Every command by its full name, in the order of ``sentinel --help``; groups before their commands."""
    from sentinel.cli import COMMANDS, cli

    context = click.Context(cli, info_name="sentinel")
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None
        yield from _with_children(f"sentinel {name}", command, context)


def _with_children(name: str, command: click.Command, parent: click.Context) -> Iterator[tuple[str, click.Command]]:
    yield name, command
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=name.rpartition(" ")[2], parent=parent)
        for child in command.list_commands(context):
            found = command.get_command(context, child)
            if found is not None and not found.hidden:
                yield from _with_children(f"{name} {child}", found, context)


def usage_of(name: str, command: click.Command) -> str:
    context = click.Context(command, info_name=name)
    return " ".join([name, *command.collect_usage_pieces(context)])


def help_of(command: click.Command) -> list[str]:
    """The paragraphs of a command's help; those that are kept as written begin with a line of a single ``\\b``."""
    text = (command.help or "").split("\f")[0].strip()
    return [paragraph for paragraph in re.split(r"\n[ \t]*\n", text) if paragraph.strip()]


def options_of(name: str, command: click.Command) -> list[tuple[str, str]]:
    context = click.Context(command, info_name=name)
    records = [parameter.get_help_record(context) for parameter in command.params]
    return [record for record in records if record is not None]


EXIT_STATUS = (
    (0, "done; judged, also where the cause is unknown"),
    (1, "something differs or is bad (doctor, replay, explore), or a question was answered with no"),
    (
        2,
        "a wrong argument or setting: a file that is not there or cannot be used, an unknown name, a quantity without unit",
    ),
    (3, "the daemon, Slurm, the store or a device does not answer, or denies it; or the output cannot be written"),
    (
        4,
        "a limit or a promise forbids it, or nothing could be proven; nothing was done, of several nodes to those that "
        "were refused",
    ),
    (INTERRUPTED, "interrupted, as by Ctrl-C; at a question that is a no: 1"),
    (
        PIPE_CLOSED,
        "whoever read the output has gone away (`| head -1`), as with other tools; `set -o pipefail` sees it",
    ),
)


# --- man -----------------------------------------------------------------------------------------------------------------


def man_page() -> str:
    """``sentinel(1)`` in roff."""
    lines = [
        f'.TH SENTINEL 1 "" "Sentinel {__version__}" "Sentinel"',
        ".SH NAME",
        "sentinel \\- keeps large training jobs alive on Slurm GPU clusters",
        ".SH SYNOPSIS",
        ".B sentinel",
        "COMMAND [OPTIONS] [ARGUMENTS]",
        ".SH COMMANDS",
    ]
    for name, command in commands():
        lines += [f".SS {_roff(usage_of(name, command))}"]
        for paragraph in help_of(command):
            lines += _man_paragraph(paragraph)
        for option, words in options_of(name, command):
            lines += [".TP", f".B {_roff(option)}", _roff(" ".join(words.split()))]
    lines += [
        ".SH EXIT STATUS",
        *(_roff(f"{status}: {words}") + "\n.br" for status, words in EXIT_STATUS),
        ".SH ENVIRONMENT",
        "SENTINEL_CONFIG: the settings file. SENTINEL_URL: the daemon, where there is no settings file. COLUMNS: width of",
        "tables. PAGER: shows what is longer than the terminal. NO_COLOR: no colour.",
        ".SH FILES",
        "/etc/sentinel/sentinel.toml (daemon), /etc/sentinel/agent.toml (nodes), /etc/sentinel/hook.conf (hooks)",
        ".SH SEE ALSO",
        "slurm.conf(5), scontrol(1), sinfo(1)",
    ]
    return "\n".join(lines) + "\n"


def _man_paragraph(paragraph: str) -> list[str]:
    if paragraph.lstrip().startswith("\b"):
        kept = paragraph.lstrip().removeprefix("\b").strip("\n").splitlines()
        return [".PP", ".nf", *(_roff(line) for line in kept), ".fi"]
    return [".PP", _roff(" ".join(paragraph.split()))]


def _roff(text: str) -> str:
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("``", "")
    return f"\\&{escaped}" if escaped[:1] in (".", "'") else escaped


# --- Markdown ------------------------------------------------------------------------------------------------------------


def commands_page() -> str:
    lines = ["# Commands", "", "Made by `sentinel manual commands` from the commands' own help.", ""]
    lines += ["Exit statuses, the same everywhere:", "", "| status | means |", "|---|---|"]
    lines += [*(f"| {status} | {words} |" for status, words in EXIT_STATUS), ""]
    for name, command in commands():
        lines += [f"## `{name}`", "", f"    {usage_of(name, command)}", ""]
        for paragraph in help_of(command):
            lines += [*_markdown_paragraph(paragraph), ""]
        for option, words in options_of(name, command):
            lines.append(f"- `{option}` {' '.join(words.split())}".rstrip())
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _markdown_paragraph(paragraph: str) -> list[str]:
    if paragraph.lstrip().startswith("\b"):
        kept = paragraph.lstrip().removeprefix("\b").strip("\n").splitlines()
        return [f"    {line}".rstrip() for line in kept]
    return [" ".join(paragraph.split()).replace("``", "`")]


def settings_page() -> str:
    """All settings files as tables."""
    lines = [
        "# Settings",
        "",
        "Made by `sentinel manual settings`. All files are TOML and read strictly: an unknown key, a wrong type or",
        "an absurd value is an error that names file, line, key and the fix (`sentinel config check [--agent]`).",
        "",
        'A length of time, a size or a rate may be written with its unit: `confirm_s = "10min"`, `store_bytes = "8GiB"`,',
        '`restore_bytes_per_s = "2GB/s"`. A bare number has the unit of the table.',
        "",
        "What stands elsewhere: rules and what convicts ([site rules](site-rules.md)), the hooks ([hooks](hooks.md)), a",
        "job's comment ([researcher](researcher.md)).",
        "",
    ]
    for title, kind in settings_tables():
        lines += [f"## {title}", "", "| key | default | unit | why |", "|---|---|---|---|", *_rows(kind), ""]
    return "\n".join(lines).rstrip() + "\n"


def settings_tables() -> list[tuple[str, type[Any]]]:
    """What each table of the page is about, and the class of its settings."""
    from sentinel.agent.settings import AgentSettings, Check
    from sentinel.config.alerts import Channel
    from sentinel.config.modes import CauseMode
    from sentinel.config.settings import Settings
    from sentinel.config.user_messages import UserMessages

    return [
        ("`/etc/sentinel/sentinel.toml`: the daemon", Settings),
        ("`[modes.default.causes.CAUSE]`, `[modes.partitions.PARTITION.causes.CAUSE]` there", CauseMode),
        ("`[alerts.channels.NAME]` in the daemon's file: one for each channel", Channel),
        ("`/etc/sentinel/agent.toml`: each node", AgentSettings),
        ("`[checks.NAME]` in the node's file: one for each check of the site's own", Check),
        ("`~/.config/sentinel/messages.toml`: a user's, where the site lets users choose", UserMessages),
    ]


def _rows(kind: type[Any]) -> Iterator[str]:
    from sentinel.config.settings import described

    for key, default, unit, reason in described(kind):
        value = "not set" if default is None else f"`{json.dumps(default)}`"
        yield f"| `{key}` | {value} | {unit} | {_cell(reason)} |"


def metrics_page() -> str:
    """The daemon's metrics as a table."""
    from sentinel.telemetry import described_metrics

    lines = [
        "# Metrics",
        "",
        "Made by `sentinel manual metrics`. The daemon serves them at `/metrics`; every series is there, at zero, from the",
        "first scrape, but for those by a name of the site, and for what is left of a budget, there once it is known.",
        "Labels are bounded sets: no job ids, no users.",
        "",
        "| metric | type | labels | meaning |",
        "|---|---|---|---|",
    ]
    for name, kind, labels, meaning in described_metrics():
        lines.append(f"| `{name}` | {kind} | {', '.join(f'`{label}`' for label in labels)} | {_cell(meaning)} |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
