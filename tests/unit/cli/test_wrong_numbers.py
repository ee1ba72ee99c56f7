"""Numbers that no time or count can be made of, and lines that are no text: refused, or read as they are."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from sentinel import cli as root
from sentinel.cli.checkpoints.deadline import within
from sentinel.cli.offline.manual import commands
from sentinel.cli.operator.arguments import Finite


def test_every_option_that_takes_a_number_refuses_what_is_none() -> None:
    for name, command in commands():
        for parameter in command.params:
            if isinstance(parameter.type, (click.types.FloatParamType, click.FloatRange)):
                assert isinstance(parameter.type, Finite), f"{name}: {parameter.name}"


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "-5", "1e999"])
@pytest.mark.parametrize(
    "option", ["--deadline", "--step-time", "--world-size", "--limit", "--onset-step", "--step-last"]
)
def test_find(tmp_path: Path, option: str, value: str) -> None:
    result = CliRunner().invoke(root.cli, ["checkpoints", "find", "--global", str(tmp_path), option, value])
    assert result.exit_code == 2 and isinstance(result.exception, SystemExit), result.output


@pytest.mark.parametrize(
    "words", [["validate", "."], ["inventory", "--global", "."], ["manifest", "."], ["drain", ".", "--to", "x"]]
)
def test_a_deadline_that_never_comes(words: list[str]) -> None:
    result = CliRunner().invoke(root.cli, ["checkpoints", *words, "--deadline", "inf"])
    assert result.exit_code == 2 and "no finite number" in result.output


def test_a_deadline_in_ten_thousand_years() -> None:
    assert within(1e300, lambda: [1]) == (True, [1])


@pytest.mark.parametrize("locale", [{}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}])
def test_a_line_with_a_byte_that_is_no_utf8(locale: dict[str, str]) -> None:
    line = b"caf\xe9 NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus."
    words = [os.fsencode(sys.executable), b"-m", b"sentinel", b"rules", b"explain", line]
    done = subprocess.run(words, env=os.environ | locale, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0 and b"xid" in done.stdout, done.stderr
