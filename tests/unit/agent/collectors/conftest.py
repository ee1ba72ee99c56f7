"""A node whose jobs are watched."""

from __future__ import annotations

from pathlib import Path

import pytest
from nodes.job_site import Site


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)
