"""The reader of one save, as the agent starts it: on the standard library alone, as the user that it is given."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
from pathlib import Path

import pytest

from sentinel.agent.agent import probe_command
from sentinel.checkpoints.kept_manifest import place_of

UID = os.getuid() or next((entry.pw_uid for entry in pwd.getpwall() if entry.pw_name == "nobody"), 65534)


def read(path: Path, cache: Path, uid: int = UID) -> list[dict[str, object]]:
    root = str(Path(__file__).resolve().parents[4])
    arguments = {"uid": uid, "gid": 65534 if os.getuid() == 0 else os.getgid(), "path": str(path), "bytes_per_s": 1e9}
    environment = {"PYTHONPATH": root, "XDG_CACHE_HOME": str(cache), "PATH": os.environ["PATH"]}
    done = subprocess.run(
        probe_command("sentinel.agent.probes.manifest"),
        input=json.dumps(arguments) + "\n", capture_output=True, text=True, env=environment, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    import importlib.util

    place = Path(__file__).resolve().parents[2] / "checkpoints" / "conftest.py"
    spec = importlib.util.spec_from_file_location("makers", place)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    path: Path = module.Maker(tmp_path / "run").hf("checkpoint-6")
    (tmp_path / "cache").mkdir(mode=0o777)
    (tmp_path / "cache").chmod(0o777)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.owner() == pwd.getpwuid(os.getuid()).pw_name and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o755)
    return path


def test_a_save_is_read_and_its_manifest_kept(run: Path, tmp_path: Path) -> None:
    *_, last = read(run, tmp_path / "cache")
    assert last["valid"] is True and last["level"] == "content", last
    kept = place_of(tmp_path / "cache/sentinel/manifests", run)
    assert kept.exists() and kept.stat().st_uid == UID
    assert not [file for file in run.iterdir() if "manifest" in file.name]


def test_a_damaged_one_is_said(run: Path, tmp_path: Path) -> None:
    (run / "optimizer.pt").write_bytes(b"")
    *_, last = read(run, tmp_path / "cache")
    assert last["valid"] is False and "optimizer.pt" in str(last["reason"])
