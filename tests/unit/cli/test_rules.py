"""``sentinel rules`` on the files of a site."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from sentinel.cli.offline.rules import rules
from sentinel.config.rules_files import rules_folder
from sentinel.errors import FileError

XID = '[[xid]]\nnumber = 79\nname = "ours"\ncause = "user_code"\n'
RULE = """[[rule]]
id = "x-y"
pattern = "foo bar baz"
weights = { user_config = 4.0 }
match = ["foo bar baz"]
reject = ["a"]
"""


def run(*words: object):
    return CliRunner(env={"COLUMNS": "400"}).invoke(rules, [str(word) for word in words], standalone_mode=False)


def test_a_second_rule_with_an_id_of_the_same_file_is_refused(tmp_path: Path) -> None:
    site = tmp_path / "ours.toml"
    site.write_text(RULE + RULE)
    error = run("test", "--rules", site).exception
    assert isinstance(error, FileError)
    assert f"{site}:8" in error.message and "'x-y'" in error.message and f"{site}:1" in error.message


def test_the_rows_that_a_site_replaces_are_named(tmp_path: Path) -> None:
    site = tmp_path / "ours.toml"
    site.write_text(RULE + XID)
    shipped = rules_folder() / "xid.toml"
    line = shipped.read_text().splitlines().index("number = 79")
    *_, last = run("test", "--rules", site).output.splitlines()
    assert last == f"{site}:7: [[xid]] 79 takes the place of the one in {shipped}:{line}"
    (row,) = json.loads(run("test", "--rules", site, "--json").output)["replaced"]
    assert (row["table"], row["row"], row["line"], row["before_line"]) == ("xid", "79", 7, line)
    site.write_text(RULE)
    assert "place" not in run("test", "--rules", site).output


@pytest.mark.parametrize(
    ("pattern", "line"), [("quux &gt; limit", "quux &gt; limit"), (r"^\\+ quux failed", "+ quux failed")]
)
def test_a_rule_that_no_line_of_a_log_fits_does_not_hold(tmp_path: Path, pattern: str, line: str) -> None:
    """The reader reads entities as what they stand for, and leaves the shell's own lines out."""
    site = tmp_path / "ours.toml"
    site.write_text(RULE.replace('"foo bar baz"', f'"{pattern}"', 1).replace('["foo bar baz"]', f'["{line}"]'))
    error = run("test", "--rules", site).exception
    assert isinstance(error, FileError) and "is not recognised" in error.message and "x-y" in error.message
    assert "no rule knows" in run("explain", "--rules", site, line).output
    site.write_text(RULE)
    assert run("test", "--rules", site).exception is None


def test_a_cause_that_is_none_is_a_wrong_argument() -> None:
    for words in ((), ("--xid",), ("--json",)):
        error = run("list", "--cause", "user_confg", *words).exception
        assert isinstance(error, click.UsageError) and error.exit_code == 2 and "user_config" in error.format_message()
    assert "pcie" in run("list", "--cause", "pcie").output
