"""DCGM's double, and what connects to it."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from nodes.dcgm_double import DOUBLE, FOLDERS, State

from sentinel.adapters.gpu.dcgmi import Dcgmi


@pytest.fixture
def clean_imports() -> Iterator[None]:
    """The double and the real bindings have the same module names: all of their folders are forgotten, since one that
    stayed would hold on to classes of the others."""
    before, path = set(sys.modules), list(sys.path)

    def forget(but: set[str]) -> None:
        for name in set(sys.modules) - but:
            if Path(str(getattr(sys.modules[name], "__file__", None) or "/")).parent in FOLDERS or name == "logger":
                del sys.modules[name]

    forget(set())
    yield
    forget(before)
    sys.path[:] = path


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clean_imports: None) -> State:
    monkeypatch.setenv("SENTINEL_FAKE_GPUS", str(tmp_path / "gpus.json"))
    return State(tmp_path / "gpus.json")


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[str]:
    """A port that listens as a host engine would."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def dcgmi(state: State, listener: str) -> Dcgmi:
    return Dcgmi(str(DOUBLE / "dcgmi"), host=listener)
