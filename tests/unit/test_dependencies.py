"""No release of a library with a known hole is let in.

Where an index of holes answers (osv.dev), ``pip-audit`` is asked for every library that is installed. Where only the package
index is reached, which tells of releases and not of holes, that is skipped and says so; the first release without known
holes stands here, with the advisory, for what can be reached through us. Add a line when an advisory names a library.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
import urllib.request
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


def test_no_installed_library_has_a_known_hole() -> None:
    pytest.importorskip("pip_audit", reason="optional: pip-audit is not installed")
    try:
        with urllib.request.urlopen("https://api.osv.dev/v1/vulns/PYSEC-2023-120", timeout=5) as answer:
            json.load(answer)
    except (OSError, ValueError) as error:
        pytest.skip(f"optional: no index of known holes answers here (api.osv.dev: {error})")
    command = [
        sys.executable,
        "-m",
        "pip_audit",
        "--vulnerability-service=osv",
        "--progress-spinner=off",
        "--format=json",
    ]
    done = subprocess.run([*command, "--skip-editable"], capture_output=True, text=True, timeout=180, check=False)
    found = [one for one in json.loads(done.stdout)["dependencies"] if one.get("vulns")]
    assert found == [], [(one["name"], one["version"], [hole["id"] for hole in one["vulns"]]) for one in found]


def test_every_library_has_a_floor() -> None:
    bare = {name for name, asked in wanted().items() if not asked.specifier} - {"numpy"}  # torch, pinned, needs its own
    assert bare == set()
