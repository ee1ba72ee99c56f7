"""Options that name nodes and the folders on them."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Sequence
from pathlib import Path

import click

from sentinel.errors import ProtocolError, UserError
from sentinel.model.hostlist import expand
from sentinel.text import visible

MOST_NODES = 100_000


class Spread(click.Command):
    """A command whose listed options take several values: ``--lost a b`` is ``--lost a --lost b``."""

    several: frozenset[str] = frozenset({"--local", "--lost", "--nodes", "--next", "--global", "--peer"})

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        spread: list[str] = []
        option = ""
        taken = 0
        for word in args:
            if word.startswith("-") and word != "-":
                name = word.partition("=")[0]
                option = name if name in self.several else ""
                taken = 1 if "=" in word and option else 0
                spread.append(word)
                continue
            if option and taken:
                spread.append(option)
            taken += 1
            spread.append(word)
        return super().parse_args(ctx, spread)


def expand_nodes(texts: Iterable[str]) -> list[str]:
    """Node names of ``a,b``, ``n[1-3,07-09]`` and several such; in order, each once.

    Raises:
        UserError: not a list of nodes, or an absurd number of them.
    """
    names: dict[str, None] = {}
    for text in texts:
        for word in text.split():
            try:
                names.update(dict.fromkeys(expand(word.strip(","))))
            except ProtocolError as error:
                raise UserError(
                    f"{visible(text, 60)} is no list of nodes", fix="Write it like node[1-4,7] or a,b,c."
                ) from error
            if len(names) > MOST_NODES:
                raise UserError(f"{visible(text, 60)} names more than {MOST_NODES:,} nodes", fix="Name fewer.")
    return list(names)


def local_folders(texts: Sequence[str], nodes: Sequence[str]) -> list[tuple[str, Path]]:
    """(host, folder) pairs of the --local options.

    ``NODE=DIR``; ``DIR`` with ``%N`` or ``{node}``, one per node; ``DIR`` that holds a folder per node; ``DIR`` with a
    node's name in its path; otherwise a folder of this host.
    """
    known = set(nodes)
    pairs: list[tuple[str, Path]] = []
    for text in texts:
        node, equals, folder = text.partition("=")
        if equals and "/" not in node and node:
            pairs.append((node, Path(folder)))
            continue
        if "%N" in text or "{node}" in text:
            if not nodes:
                raise UserError(f"--local {visible(text)} needs --nodes", fix="Name the nodes: --nodes node[1-4].")
            pairs.extend((name, Path(text.replace("%N", name).replace("{node}", name))) for name in nodes)
            continue
        path = Path(text)
        inside = [name for name in nodes if (path / name).is_dir()]
        if inside:
            pairs.extend((name, path / name) for name in inside)
            continue
        named = next((part for part in reversed(path.absolute().parts) if part in known), None)
        pairs.append((named or this_host(), path))
    return pairs


def this_host() -> str:
    return socket.gethostname().partition(".")[0]
