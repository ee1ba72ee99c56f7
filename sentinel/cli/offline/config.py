"""``sentinel config``: check a settings file; show every setting with its unit, default and reason."""

from __future__ import annotations

import json
import shutil
import textwrap
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from sentinel.cli.operator.daemon_client import CONFIG, config_option
from sentinel.cli.operator.output import json_option, print_json
from sentinel.errors import FileError
from sentinel.given_files import file_text, toml_of

AGENT_CONFIG = Path("/etc/sentinel/agent.toml")


@click.group()
def config() -> None:
    """Check the settings and show them with their reasons."""


@config.command()
@config_option
@click.option("--agent", is_flag=True, help=f"The file is an agent's.  [default then: {AGENT_CONFIG}]")
def check(config: Path, agent: bool) -> None:
    """Read the file strictly, check what the daemon checks at its start (files, rules, channels, the page), and say in
    sentences what its modes and limits come to. A policy under which all nodes could be drained is refused.

    Errors name file, line, key and the fix, all that are found at once. Slurm, munged and the store are not asked:
    sentinel doctor does that. Run it on the daemon's host as the daemon's account, since some files may be read by that
    account only.

    \b
    Examples:
      sentinel config check
      sentinel config check --config ./sentinel.toml
    """
    from sentinel.cli.offline.policy_words import sentences
    from sentinel.cli.offline.start_checks import agent_checks, daemon_checks, run_checks
    from sentinel.config.rules_files import without_rules
    from sentinel.config.settings import load

    if agent and click.get_current_context().get_parameter_source("config") is ParameterSource.DEFAULT:
        config = AGENT_CONFIG
    try:
        settings = load(config, _kind(agent))
    except FileError as error:
        raise _of_the_other(config, agent) or error from error
    empty = without_rules(settings.rules if agent else settings.judgement.rules)
    more = [f"; {empty}"] if empty else []

    def signals() -> None:
        more.append(_signals(settings))

    run_checks(
        config, agent_checks(settings) if agent else chain(daemon_checks(settings), [("prometheus.url", signals)])
    )
    click.echo(f"{config}: good{''.join(more)}")
    if not agent:
        for sentence in sentences(settings):
            click.echo(f"  {sentence}")


def _of_the_other(config: Path, agent: bool) -> FileError | None:
    """The error for an agent's file that is read as the daemon's, or the other way round; None: it is neither of these."""
    import dataclasses

    try:
        keys = set(toml_of(config, file_text(config)))
    except FileError:
        return None
    own, other = ({field.name for field in dataclasses.fields(_kind(kind))} for kind in (agent, not agent))
    if keys <= own or not keys <= other:
        return None
    if agent:
        return FileError(
            config, "is the daemon's settings file", fix=f"leave --agent out, or name an agent's: {AGENT_CONFIG}"
        )
    return FileError(config, "is an agent's settings file", fix=f"add --agent, or name the daemon's: {CONFIG}")


def _signals(settings: Any) -> str:
    """What Prometheus would be asked, in words; raises where it could not."""
    from sentinel.adapters.prometheus import Prometheus
    from sentinel.config.signals_files import load_signals

    known = load_signals(Path(settings.prometheus.rules) if settings.prometheus.rules else None)
    if settings.prometheus.url:
        Prometheus(settings.prometheus)  # makes its certificates ready and connects to nothing
    if not settings.prometheus.url and not settings.prometheus.rules:
        return ""
    nobody = "" if settings.prometheus.url else ", and no Prometheus to ask: [prometheus] url"
    return f"; {len(known.signals)} signals{nobody}"


@config.command()
@click.option("--agent", is_flag=True, help="The agent's settings instead of the daemon's.")
@json_option
def show(agent: bool, as_json: bool) -> None:
    """Every setting with its default, unit and the reason for the default, as a file that can be written as it is."""
    from sentinel.config.settings import described

    rows = described(_kind(agent))
    if as_json:
        print_json(
            {"key": key, "default": default, "unit": unit, "reason": reason} for key, default, unit, reason in rows
        )
        return
    click.echo(_as_file(rows, shutil.get_terminal_size().columns))


def _as_file(rows: Sequence[tuple[str, object, str, str]], width: int) -> str:
    """A settings file that holds every default: above each key its unit and reason."""
    lines: list[str] = []
    last = ""
    for key, default, unit, reason in sorted(rows, key=lambda row: "." in row[0]):  # what has no section stands first
        section, _, name = key.rpartition(".")
        if section != last:
            lines.extend(["", f"[{section}]"])
            last = section
        words = f"{unit}: {reason}" if unit else reason
        lines.extend(textwrap.wrap(words, max(width, 40), initial_indent="# ", subsequent_indent="# "))
        lines.append(f"# {name} is not set" if default is None else f"{name} = {json.dumps(default)}")
    return "\n".join(lines)


def _kind(agent: bool) -> type[Any]:
    if agent:
        from sentinel.agent.settings import AgentSettings

        return AgentSettings
    from sentinel.config.settings import Settings

    return Settings
