"""The copy of a store that docs/install.md tells to make before an upgrade, and how it is brought back."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from in_memory.direct_store import DirectStore

from sentinel.adapters.store.database import sqlite_url

INSTALL = Path(__file__).parents[3] / "docs/install.md"
_WRITES = (
    "import os, sys; from sentinel.adapters.store.store import Store; "
    "Store(sys.argv[1]).put(sys.argv[2], sys.argv[3]); os._exit(9)"
)


def killed_daemon(state: Path, name: str) -> None:
    """Saves something, and dies without a word: it stays in the log beside the file."""
    done = subprocess.run([sys.executable, "-c", _WRITES, sqlite_url(state), name, "1"], timeout=120, check=False)
    assert done.returncode == 9 and (state / "sentinel.db-wal").stat().st_size > 0


def told(comment: str, state: Path, root: Path) -> None:
    """Does the lines of a block of the section Upgrade that have this comment."""
    section = INSTALL.read_text().partition("\n## Upgrade\n")[2].partition("\n## ")[0]
    lines = re.findall(rf"^    (.*?)  +# {comment}.*$", section, re.MULTILINE)
    assert lines, f"nothing says how: {comment}"
    script = "\n".join(lines).replace("/var/lib/sentinel", str(state)).replace("/root", str(root))
    subprocess.run(["sh", "-ec", script], timeout=60, check=True)


def held(state: Path) -> list[bool]:
    """Which of three things the store holds."""
    store = DirectStore(sqlite_url(state))
    found = [store.get(name) == "1" for name in ("before", "more", "after")]
    store.close()
    return found


def test_the_copy_has_what_a_killed_daemon_saved_and_comes_back_whole(tmp_path: Path) -> None:
    state, root = tmp_path / "state", tmp_path / "root"
    state.mkdir()
    root.mkdir()
    killed_daemon(state, "before")
    killed_daemon(state, "more")
    told("SQLite: copy", state, root)
    killed_daemon(state, "after")  # the new release
    told("SQLite: bring back", state, root)
    assert held(state) == [True, True, False]


@pytest.mark.skipif(shutil.which("sqlite3") is None, reason="needs SQLite's own program")
def test_a_copy_of_a_running_daemons_store_is_one_file(tmp_path: Path) -> None:
    state, root = tmp_path / "state", tmp_path / "root"
    state.mkdir()
    root.mkdir()
    killed_daemon(state, "before")
    running = DirectStore(sqlite_url(state))
    running.put("more", "1")
    told("SQLite: while it runs", state, root)
    running.put("after", "1")
    running.close()
    (copy,) = root.iterdir()
    copy.rename(root / "sentinel.db")
    assert held(root) == [True, True, False]
