from __future__ import annotations

import pytest
from cli_asked import Asked


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    return Asked(monkeypatch)
