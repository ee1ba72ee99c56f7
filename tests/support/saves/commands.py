"""Runs `sentinel checkpoints ...` in this process."""

from __future__ import annotations

import json
from typing import Any

from click.testing import CliRunner, Result

from sentinel.cli.checkpoints.commands import checkpoints


def run(*words: object) -> Result:
    # Wide, so that no path is broken, however deep the folder of the tests lies.
    return CliRunner(env={"COLUMNS": "400"}).invoke(checkpoints, [str(word) for word in words], standalone_mode=False)


def rows(result: Result) -> list[Any]:
    return [json.loads(line) for line in result.stdout.splitlines()]
