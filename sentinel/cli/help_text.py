"""Help that fits the terminal, examples too: a command that is too long goes on in the next line, as a shell takes it."""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Iterable

import click

MOST_COLUMNS = 80  # longer lines are hard to read
LEAST_COLUMNS = 30
_INDENT = 4  # of what goes on in the next line
_QUOTED = re.compile(r"""(?:"[^"]*"|'[^']*'|\S)+""")
_EXPLAINED = re.compile(r"( *\S.*?) {3,}(\S.*)")  # a command and, in a column of its own, what it is for


class HelpFormatter(click.HelpFormatter):
    """As click's, which never writes fewer than 50 columns and leaves examples as they are."""

    def __init__(self, indent_increment: int = 2, width: int | None = None, max_width: int | None = None) -> None:
        columns = min(shutil.get_terminal_size().columns, max_width or MOST_COLUMNS)
        super().__init__(indent_increment, width or max(LEAST_COLUMNS, columns - 2), max_width)

    def write_text(self, text: str) -> None:
        before = len(self.buffer)
        super().write_text(text)
        written = "".join(self.buffer[before:]).removesuffix("\n")
        lines = [part for line in written.split("\n") for part in self._fitted(line)]
        self.buffer[before:] = ["\n".join(lines), "\n"]

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        super().write_dl(list(rows), min(col_max, self.width // 2), col_spacing)

    def _fitted(self, line: str) -> list[str]:
        if len(line) <= self.width:
            return [line]
        indent = " " * (len(line) - len(line.lstrip()) + _INDENT)
        if explained := _EXPLAINED.fullmatch(line):
            words = textwrap.wrap(explained[2], self.width, initial_indent=indent, subsequent_indent=indent)
            return [*self._fitted(explained[1]), *words]
        lines = [indent[_INDENT:]]
        for word in _QUOTED.findall(line):
            if lines[-1].strip() and len(f"{lines[-1]} {word} \\") > self.width:
                lines.append(indent)
            lines[-1] += word if lines[-1].isspace() or not lines[-1] else f" {word}"
        return [f"{part} \\" for part in lines[:-1]] + lines[-1:]


def use() -> None:
    """Write every command's help so, whatever made the command."""
    click.Context.formatter_class = HelpFormatter
