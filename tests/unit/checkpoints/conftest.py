"""The maker of checkpoints that these tests share."""

from __future__ import annotations

import pytest
from saves.made_checkpoints import Maker


@pytest.fixture
def make(tmp_path):
    return Maker(tmp_path)
