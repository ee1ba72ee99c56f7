"""``sentinel completion``: what a shell needs to complete commands, nodes, jobs and incidents."""

from __future__ import annotations

import click

_VARIABLE = "_SENTINEL_COMPLETE"


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of SHELL. Nodes, jobs and incidents are asked of the daemon, for a second at most.

    \b
    Examples:
      sentinel completion bash > /etc/bash_completion.d/sentinel
      sentinel completion zsh > "${fpath[1]}/_sentinel"
      sentinel completion fish > ~/.config/fish/completions/sentinel.fish
    """
    from click.shell_completion import get_completion_class

    from sentinel.cli import cli

    kind = get_completion_class(shell)
    assert kind is not None, "click knows these three"
    click.echo(kind(cli, {}, "sentinel", _VARIABLE).source())
