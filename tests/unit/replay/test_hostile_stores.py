"""A store or a bundle of a stranger: its schema runs nothing, and its ids write nothing into a terminal."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from sentinel.adapters.store.store import Store
from sentinel.cli.operator.output import say
from sentinel.errors import UserError

ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x AS id FROM c"
PROGRAMS = {
    "view": f"CREATE VIEW another AS {ENDLESS}",
    "generated": "CREATE TABLE another (a TEXT, b TEXT GENERATED ALWAYS AS (hex(zeroblob(1000000000))))",
    "virtual": "CREATE VIRTUAL TABLE another USING fts5(a)",
}


@pytest.mark.parametrize("what", PROGRAMS)
def test_a_schema_that_runs_something_is_refused(tmp_path: Path, what: str) -> None:
    file = tmp_path / "sentinel.db"
    url = f"sqlite:///file:{file}?mode=ro&uri=true"
    Store(f"sqlite:///{file}").close()
    Store(url, read_only=True).close()
    with sqlite3.connect(file) as made:
        made.execute(PROGRAMS[what])
    made.close()
    with pytest.raises(UserError, match="is no table"):
        Store(url, read_only=True).incident("i")


def test_a_sentence_writes_nothing_but_its_letters(capsys: pytest.CaptureFixture[str]) -> None:
    say("a\x1b]52;c;ZXZpbA==\x07 b\u202ec\nd")
    assert capsys.readouterr().out.rstrip("\n") == "a·]52;c;ZXZpbA==· b·c d"
