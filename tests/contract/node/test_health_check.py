"""The HealthCheckProgram as slurmd would run it, and the prolog that reads its verdict: a node without an agent."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from nodes.agent_process import running_munged
from nodes.fake_daemon import FakeDaemon

from sentinel.adapters.munge import Munge
from sentinel.classify import History, classify
from sentinel.config.rules_files import load_rules
from sentinel.model.records import Incident
from sentinel.wire import evidence_from

ROOT = Path(__file__).parents[3]
CLOSED = {"SENTINEL_DCGM_CLOSED": "yes"}
BAD: dict[str, Any] = {"errors": [{"test": "software", "gpu": 1, "code": 118, "severity": 2}]}


class Node:
    """A node with two GPUs and a host engine, and no agent."""

    def __init__(self, folder: Path, engine: socket.socket) -> None:
        self.folder, self.run = folder, folder / "run"
        self.run.mkdir()
        self.environment = {
            "PATH": os.environ["PATH"],
            "SENTINEL_RUN_DIR": str(self.run),
            "SENTINEL_HOOK_CONF": str(folder / "hook.conf"),
            "SENTINEL_HOME": str(ROOT),
            "SENTINEL_PYTHON": sys.executable,
            "SENTINEL_DCGM_HOST": f"127.0.0.1:{engine.getsockname()[1]}",
            "SENTINEL_DCGMI": str(ROOT / "deploy/lab/fake_dcgm/dcgmi"),
            "SENTINEL_FAKE_GPUS": str(folder / "gpus.json"),
            "SLURMD_NODENAME": "n1",
        }
        self.gpus()

    def gpus(self, count: int = 2, **diag: Any) -> None:
        gpus = [{"index": n, "uuid": f"GPU-{n}", "pci": "0000:1b:00.0"} for n in range(count)]
        (self.folder / "gpus.json").write_text(json.dumps({"gpus": gpus, "diag": diag}))

    def check(self, **environment: str) -> subprocess.CompletedProcess[str]:
        return self._run("deploy/slurm/health-check", environment)

    def prolog(self, **environment: str) -> subprocess.CompletedProcess[str]:
        # Without the engine: what it says comes from the verdict, or nothing is known.
        return self._run("prolog/10-sentinel", {"SENTINEL_DCGM_HOST": "127.0.0.1:1", **environment})

    def _run(self, file: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(ROOT / file)],
            env={**self.environment, "SLURM_JOB_ID": "31", **environment},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            cwd="/",
        )

    @property
    def verdict(self) -> str:
        return (self.run / "verdict").read_text()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with socket.create_server(("127.0.0.1", 0)) as engine:
        yield Node(tmp_path, engine)


def test_a_node_that_passes_is_ok_for_two_intervals(node: Node) -> None:
    done = node.check()
    assert (done.returncode, done.stderr) == (0, "")
    first, second = node.verdict.splitlines()
    assert first.startswith("OK ")
    assert second.split()[1] == "600"
    aged(node, 500)
    # Level 1 in the prolog would pass as well: that it is not run shows that the verdict was believed.
    assert node.prolog(SENTINEL_PYTHON="/nowhere").stderr == ""
    aged(node, 700)
    assert "/nowhere" in node.prolog(SENTINEL_PYTHON="/nowhere").stderr


def aged(node: Node, age_s: int) -> None:
    first, second = node.verdict.splitlines()
    uptime_s, valid_s = second.split()
    assert abs(int(uptime_s) - time.clock_gettime(time.CLOCK_BOOTTIME)) < 1000
    now_s = int(time.clock_gettime(time.CLOCK_BOOTTIME))
    (node.run / "verdict").write_text(f"{first}\n{now_s - age_s} {valid_s}\n")


def test_proof_makes_the_next_prolog_refuse_the_node(node: Node) -> None:
    node.gpus(**BAD)
    done = node.check()
    assert done.returncode == 0, "a health check never drains"
    assert "n1: diagnostic:" in done.stderr
    refused = node.prolog()
    assert (refused.returncode, "diagnostic" in refused.stderr) == (1, True)
    node.gpus()
    node.check()
    assert node.prolog().returncode == 0


@pytest.mark.parametrize(
    "script",
    [{"busy": True}, {"truncate": 400, **BAD}, {"sleep_s": 30}, {"errors": [{"test": "software", "gpu": 1, "code": 29,
                                                                            "severity": 5}]}],
)  # fmt: skip
def test_what_is_late_or_unreadable_is_no_pass_and_no_fault(node: Node, script: dict[str, Any]) -> None:
    node.gpus(**script)
    assert node.check(SENTINEL_HEALTH_S="4").returncode == 0
    assert node.verdict.split()[0] == "UNKNOWN", node.verdict
    assert node.prolog().returncode == 0


def test_a_gpu_that_gres_promises_and_is_not_there_is_proof(node: Node) -> None:
    node.check(SENTINEL_GPUS="8", **CLOSED)
    assert node.verdict.startswith("BAD ") and "gpu_lost 2 GPUs found, 8 promised" in node.verdict
    assert node.prolog().returncode == 1
    (node.run / "verdict").unlink()
    engine = {"SENTINEL_DCGM_HOST": node.environment["SENTINEL_DCGM_HOST"]}
    assert node.prolog(**engine, SENTINEL_GPUS="8").returncode == 0, "an engine that every user may write into"
    engine |= CLOSED
    assert node.prolog(**engine, SENTINEL_GPUS="8").returncode == 1, "the slow way alike"
    assert node.prolog(**engine).returncode == 0, "nobody promised more"


def test_a_gpu_that_the_driver_lost_is_proof_although_level_1_passes(node: Node) -> None:
    gpus = [
        {"index": n, "uuid": f"GPU-{n}", "pci": "0000:1b:00.0", "status": "lost" if n == 1 else "ok"} for n in range(2)
    ]
    (node.folder / "gpus.json").write_text(json.dumps({"gpus": gpus}))
    engine = {"SENTINEL_DCGM_HOST": node.environment["SENTINEL_DCGM_HOST"]}
    assert node.prolog(**engine).returncode == 0, "an engine that every user may write into"
    node.check()
    assert node.verdict.startswith("UNKNOWN ")
    (node.run / "verdict").unlink()
    refused = node.prolog(**engine, **CLOSED)
    assert (refused.returncode, "lost DCGM's GPU 1" in refused.stderr) == (1, True), refused.stderr
    node.check(**CLOSED)
    assert node.verdict.startswith("BAD ") and "gpu_lost" in node.verdict


CONVICTING = [(80, 6), (46, 5), (85, 6), (132, 4), (126, 2), (125, 6), (52, 2)]
NOT_CONVICTING = [(29, 5), (24, 2), (62, 4), (25, 6), (5, 1)]


@pytest.mark.parametrize(("code", "severity"), [*CONVICTING, *NOT_CONVICTING])
def test_prolog_and_health_check_refuse_for_the_same_codes(node: Node, code: int, severity: int) -> None:
    node.gpus(errors=[{"test": "software", "gpu": 1, "code": code, "severity": severity}])
    convicts = (code, severity) in CONVICTING
    engine = {"SENTINEL_DCGM_HOST": node.environment["SENTINEL_DCGM_HOST"]}
    assert node.prolog(**engine).returncode == (1 if convicts else 0)
    node.check()
    assert node.verdict.startswith("BAD ") is convicts


def test_a_sites_rules_change_the_prolog_too(node: Node) -> None:
    (node.folder / "rules").mkdir()
    (node.folder / "rules" / "ours.toml").write_text(
        '[[conviction]]\ndcgm = 118\ndrain = "no"\nremedy = "reset"\nsource = "this site"\n'
    )
    node.gpus(**BAD)
    engine = {"SENTINEL_DCGM_HOST": node.environment["SENTINEL_DCGM_HOST"]}
    assert node.prolog(**engine).returncode == 1
    assert node.prolog(**engine, SENTINEL_RULES=str(node.folder / "rules")).returncode == 0
    (node.run / "rules_dir").write_text(f"{node.folder}/rules\n")  # as the agent leaves it
    assert node.prolog(**engine).returncode == 0
    (node.folder / "rules" / "ours.toml").write_text("[[conviction]\n")
    done = node.prolog(**engine)
    assert (done.returncode, "ours.toml" in done.stderr) == (0, True), "rules that cannot be read refuse no node"


def test_an_engine_on_a_unix_socket(node: Node, tmp_path: Path) -> None:
    path = tmp_path / "dcgm.sock"
    node.gpus(**BAD)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen(64)
        assert node.prolog(SENTINEL_DCGM_HOST=f"unix://{path}").returncode == 1
        node.check(SENTINEL_DCGM_HOST=str(path))
        assert node.verdict.startswith("BAD ")
    assert node.prolog(SENTINEL_DCGM_HOST=f"unix://{path}", SENTINEL_FRESH_S="0").returncode == 1, (
        "its verdict still holds"
    )
    (node.run / "verdict").unlink()
    path.unlink()
    assert node.prolog(SENTINEL_DCGM_HOST=f"unix://{path}").returncode == 0, "no engine, no proof"


@pytest.mark.parametrize(
    "environment",
    [{"SENTINEL_DCGM_HOST": "127.0.0.1:1"}, {"SENTINEL_DCGMI": "/nowhere/dcgmi"}, {"SENTINEL_PYTHON": "/nowhere"},
     {"SENTINEL_HOME": "/nowhere"}, {"SENTINEL_HEALTH_S": "soon"}, {"SENTINEL_RUN_DIR": "/proc/nowhere"}],
)  # fmt: skip
def test_trouble_of_its_own_fails_nothing(node: Node, environment: dict[str, str]) -> None:
    assert node.check(**environment).returncode == 0
    assert not (node.run / "verdict").exists() or node.verdict.startswith("UNKNOWN ")
    assert node.prolog().returncode == 0


def test_where_an_agent_runs_it_does_nothing(node: Node) -> None:
    agents = f"OK {int(time.time())} ok fine\n{int(time.clock_gettime(time.CLOCK_BOOTTIME))}\n"
    (node.run / "verdict").write_text(agents)
    node.gpus(**BAD)
    node.check()
    assert node.verdict == agents
    (node.run / "verdict").write_text(f"OK {int(time.time())} ok fine\n7\n")  # it stopped long ago
    node.check()
    assert node.verdict.startswith("BAD ")


def test_a_check_that_forks_and_never_ends_is_left_behind(node: Node, tmp_path: Path) -> None:
    """Its processes hold the output open; the check's own deadline holds all the same (else `_run` gives up)."""
    script = tmp_path / "dcgmi"
    script.write_text("#!/bin/sh\n(sleep 100 &)\nsleep 100\n")
    script.chmod(0o755)
    assert node.check(SENTINEL_DCGMI=str(script), SENTINEL_HEALTH_S="2").returncode == 0
    assert node.verdict.startswith("UNKNOWN ")


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[FakeDaemon]:
    if shutil.which("munged") is None:
        pytest.skip("munged is not installed")
    (tmp_path / "munge").mkdir()
    with running_munged(tmp_path / "munge") as munge_socket:
        made = FakeDaemon(Munge(munge_socket)).start()
        yield made
        made.stop()


def reaching(daemon: FakeDaemon, tmp_path: Path) -> dict[str, str]:
    return {"SENTINEL_URL": daemon.url, "SENTINEL_MUNGE_SOCKET": f"{tmp_path}/munge/socket", "SENTINEL_EVENT_S": "60"}


def test_a_daemon_that_is_configured_hears_of_the_fault(node: Node, daemon: FakeDaemon, tmp_path: Path) -> None:
    node.gpus(**BAD)
    done = node.check(**reaching(daemon, tmp_path))
    assert done.returncode == 0
    assert "diag_failed" in daemon.kinds(), done.stderr
    (found,) = [item for _, item in daemon.evidence if item["kind"] == "diag_failed"]
    assert (found["where"]["node"], found["source"], found["trust"]) == ("n1", "diagnostic", "system")
    daemon.stop()
    assert node.check(**reaching(daemon, tmp_path) | {"SENTINEL_EVENT_S": "1"}).returncode == 0
    assert node.verdict.startswith("BAD "), "the verdict does not wait for the daemon"


def test_a_prolog_that_finds_proof_itself_tells_the_daemon(node: Node, daemon: FakeDaemon, tmp_path: Path) -> None:
    """No agent, no health check: level 1 in the prolog."""
    node.gpus(**BAD)
    engine = {"SENTINEL_DCGM_HOST": node.environment["SENTINEL_DCGM_HOST"]}
    done = node.prolog(**engine, **reaching(daemon, tmp_path))
    assert done.returncode == 1
    ((_, item),) = daemon.evidence
    found = evidence_from(item)
    assert (found.kind, found.where.node, found.trust, found.data["convicts"]) == ("diag_failed", "n1", "system", True)
    assert "118" in found.text
    verdict = classify(
        Incident("i", found.at, found.at, nodes=("n1",), evidence=(found,)), history=History(), rules=load_rules(),
        now=found.at,
    )  # fmt: skip
    assert verdict.drain == ("n1",)
    daemon.stop()
    refused = node.prolog(**engine, **reaching(daemon, tmp_path) | {"SENTINEL_EVENT_S": "1"})
    assert refused.returncode == 1, "a daemon that is away changes nothing"
    node.gpus()
    assert node.prolog(**engine).returncode == 0
