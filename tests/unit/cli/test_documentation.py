"""The pages of docs/ say what is there: reference pages are made from the program, commands and links exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from sentinel import cli as root

ROOT = Path(__file__).parents[3]
PAGES = sorted([*ROOT.glob("docs/*.md"), ROOT / "README.md", *ROOT.glob("deploy/*.md")])


@pytest.mark.parametrize("page", ["commands", "settings", "metrics"])
def test_reference_pages_are_made_from_the_program(page: str) -> None:
    made = CliRunner().invoke(root.cli, ["manual", page]).output
    assert (ROOT / f"docs/{page}.md").read_text() == made, (
        f"docs/{page}.md is not what the program says; write it again: sentinel manual {page} > docs/{page}.md"
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!http)([^)#\s]+)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_that_a_page_names_is_there(page: Path) -> None:
    text = page.read_text()
    named = re.findall(r"(?:`|^    (?:\$ )?)sentinel ([a-z]+)", text, re.MULTILINE)
    assert [name for name in named if name not in root.COMMANDS] == []
