"""The hook files with a run folder of their own."""

from __future__ import annotations

from pathlib import Path

import pytest
from nodes.hook_files import Hooks


@pytest.fixture
def hooks(tmp_path: Path) -> Hooks:
    return Hooks(tmp_path)
