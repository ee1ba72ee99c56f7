"""What `sentinel doctor` examines."""

from __future__ import annotations

from pathlib import Path

import pytest
from in_memory.cli_asked import Asked
from in_memory.doctor import DAEMON, Cluster, FakeMunge

from sentinel.adapters import munge
from sentinel.adapters.slurm import conf, connect


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, asked: Asked) -> Cluster:
    made = Cluster()
    monkeypatch.setattr(munge, "Munge", FakeMunge)
    monkeypatch.setattr(FakeMunge, "error", None)
    monkeypatch.setattr(connect, "connect", lambda _settings: (made, made, "commands"))
    monkeypatch.setattr(conf, "slurm_config", made.config)
    asked.views["doctor"] = DAEMON
    return made


@pytest.fixture
def config(tmp_path: Path) -> Path:
    resume = tmp_path / "resume"
    resume.mkdir()
    path = tmp_path / "sentinel.toml"
    path.write_text(f'[daemon]\nresume = "{resume}"\n[modes.default]\ndrain = "act"\n')
    return path
