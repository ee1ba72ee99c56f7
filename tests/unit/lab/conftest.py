"""The lab is no part of the package: its folder comes onto the path here."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "deploy"))


@pytest.fixture
def make_lab(tmp_path: Path) -> Callable[..., object]:
    """A lab on paper: folders and files, nothing runs."""
    from lab.layout import Lab, Spec

    def make(**changes: object) -> Lab:
        values: dict[str, object] = {
            "dir": str(tmp_path / "lab"),
            "cluster": "labtest",
            "nodes": 3,
            "gpus": 8,
            "partition": "gpu",
            "isolated": False,
            "sentinel": True,
            "python": "/usr/bin/python3",
            "controller_port": 29100,
            "daemon_port": 29101,
            "webhook_port": 29102,
            "node_ports": [29103, 29104, 29105],
            "first_job": 101,
            "subnet": 120,
            "user": "root",
        }
        lab = Lab(Spec(**{**values, **changes}))  # type: ignore[arg-type]
        for name in lab.names:
            (lab.node(name) / "nvme").mkdir(parents=True)
        for folder in (lab.shared, lab.control, lab.log, lab.etc, lab.run):
            folder.mkdir(parents=True)
        return lab

    return make
