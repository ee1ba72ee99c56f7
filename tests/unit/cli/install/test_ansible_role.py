"""deploy/ansible: the command of docs/install.md, run from the repository's root, finds the package that was built there."""

from __future__ import annotations

import os
import re
from pathlib import Path

import jinja2
import pytest

REPOSITORY = Path(__file__).parents[4]
TASKS = REPOSITORY / "deploy/ansible/roles/sentinel/tasks/main.yml"
PRINTED = re.compile(r"ansible-playbook .* -e sentinel_package=(\S+)")


def copied_from(package: str, cwd: str) -> str:
    """What the role's copy is given as src, with the two of Ansible's words that it uses."""
    (src,) = re.findall(r'^ +src: "(.*)"$', TASKS.read_text(encoding="utf-8"), re.MULTILINE)
    words = jinja2.Environment(undefined=jinja2.StrictUndefined, autoescape=False)
    words.filters["path_join"] = lambda parts: os.path.join(*parts)
    environment = {("env", "PWD"): cwd}
    return words.from_string(src).render(sentinel_package=package, lookup=lambda *asked: environment[asked])


@pytest.mark.parametrize("package", ["dist/sentinel.deb", "/srv/sentinel.deb"])
def test_package_is_looked_for_where_the_command_is_run(package: str) -> None:
    """Ansible looks for a relative src below the role and the playbook, and never there."""
    assert copied_from(package, "/checkout") == os.path.join("/checkout", package)


def test_printed_command_names_a_package_of_the_folder_that_build_deb_writes() -> None:
    (package,) = PRINTED.findall((REPOSITORY / "docs/install.md").read_text(encoding="utf-8"))
    assert "out=${1:-dist}" in (REPOSITORY / "deploy/package/build-deb").read_text(encoding="utf-8")
    assert package.startswith("dist/slurm-sentinel_") and package.endswith(".deb")
