"""No release of a library with a known hole is let in.

CI reaches only the package index, which tells of releases and not of holes (pip-audit needs its JSON API or osv.dev): so the
first release without known holes stands here, with the advisory, for what can be reached through us. Add a line when an
advisory names a library that we use; ``pip-audit`` on a machine with a network names them.
"""

from __future__ import annotations

import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[2]
# library -> first release without the hole, and what the hole is
FLOORS = {
    "aiohttp": ("3.14.4", "PYSEC-2026-4369, -4370; before 3.14.1 CVE-2026-54273: requests queued without end"),
    "mako": ("1.3.12", "CVE-2026-44307, through alembic"),
}


def wanted() -> dict[str, Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    texts = [*project["dependencies"], *(text for extra in project["optional-dependencies"].values() for text in extra)]
    return {one.name.lower(): one for one in map(Requirement, texts)}


@pytest.mark.parametrize("name", FLOORS)
def test_library_with_a_known_hole_is_not_let_in(name: str) -> None:
    floor, hole = FLOORS[name]
    assert Version(version(name)) >= Version(floor), f"installed is {name} {version(name)}: {hole}"
    asked = wanted().get(name)
    if asked is not None:  # no library that we install through another one
        lowest = [Version(part.version) for part in asked.specifier if part.operator in (">=", "==")]
        assert lowest and min(lowest) >= Version(floor), f"pyproject.toml lets in {asked}: {hole}"


def test_every_library_has_a_floor() -> None:
    bare = {name for name, asked in wanted().items() if not asked.specifier} - {"numpy"}  # torch, pinned, needs its own
    assert bare == set()
