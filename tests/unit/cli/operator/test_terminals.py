"""Names that users chose on a terminal that has no character for them: shown by escapes, never a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from in_memory.cli_asked import HOSTILE, STATUS, attempt_row, harmless, incident_row, node_row

NAME = f"caf\u00e9 \u2603 \\xff \ud800 \udcff \0 {HOSTILE}"
UNREAD = {"unread": [{"what": "job", "name": "7", "reason": NAME}], "unread_count": 1}
VIEWS: dict[str, Any] = {
    "status": STATUS | {
        "cluster": NAME, "slurm": STATUS["slurm"] | UNREAD, "recent_incidents": [incident_row(user=NAME, outcome=NAME)],
    },
    "nodes": {"nodes": [node_row(reason=NAME, suspect_reasons=[NAME])], "incidents": []},
    "jobs": {"attempts": [attempt_row(name=NAME, user=NAME, partition=NAME, nodes=[NAME])]},
    "incidents": {"incidents": [incident_row(user=NAME, outcome=NAME)]},
}  # fmt: skip
CODE = """
import json, sys
import sentinel.cli as root
from sentinel.cli.operator import fleet, incidents, jobs, status
views = json.loads(sys.stdin.read())
status.view = fleet.view = jobs.view = incidents.view = lambda config, name, **rest: views[name]
root.main()
"""
TERMINALS = {
    "ascii": {"PYTHONIOENCODING": "ascii"},
    "latin-1": {"PYTHONIOENCODING": "latin-1"},
    "C": {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
    "C, as Python takes it": {"LC_ALL": "C"},
    "UTF-8": {"PYTHONIOENCODING": "utf-8"},
}


@pytest.mark.parametrize("terminal", TERMINALS)
@pytest.mark.parametrize("words", [(name, *more) for name in VIEWS for more in ((), ("--json",))], ids=" ".join)
def test_every_table_is_printed(words: tuple[str, ...], terminal: str) -> None:
    kept = {key: value for key, value in os.environ.items() if key in ("PATH", "PYTHONPATH", "HOME")}
    found = subprocess.run(
        [sys.executable, "-c", CODE, *words],
        env={**kept, "COLUMNS": "200", "TERM": "dumb", **TERMINALS[terminal]},
        input=json.dumps(VIEWS).encode(),
        capture_output=True,
        check=False,
    )
    assert found.returncode == 0 and found.stderr == b"", found.stderr.decode(errors="replace")[-500:]
    if terminal != "latin-1":
        shown = found.stdout.decode("ascii" if terminal in ("ascii", "C") else "utf-8")
        assert harmless(shown) and "caf" in shown
