"""Diagnostics by order, through the agent as a process: what they find is evidence, and a job goes before them."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from nodes.agent_process import JOB, PATIENCE_S, ROOT, Node, open_folder, running_munged, running_node

pytestmark = pytest.mark.skipif(shutil.which("munged") is None, reason="munged is not installed")
ALL = {"level": 2, "gpus": None, "yields": True}


@pytest.fixture(scope="module")
def munge_socket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_munged(tmp_path_factory.mktemp("munge")) as path:
        yield path


@pytest.fixture
def node(munge_socket: str) -> Iterator[Node]:
    with socket.create_server(("127.0.0.1", 0)) as engine:  # dcgmi is asked only where a host engine listens
        port = engine.getsockname()[1]
        more = f'host = "127.0.0.1:{port}"\ndcgmi = "{ROOT}/deploy/lab/fake_dcgm/dcgmi"\n'
        with open_folder() as folder, running_node(folder, munge_socket, more) as made:
            yield made


def answered(node: Node, order: str) -> dict[str, Any]:
    assert node.daemon.wait(lambda: order in node.daemon.results, PATIENCE_S), (node.folder / "agent.log").read_text()
    answer = node.daemon.results[order]
    assert answer["ok"], answer
    result: dict[str, Any] = answer["result"]
    return result


def test_what_it_finds_is_evidence(node: Node) -> None:
    node.daemon.order("o1", "diagnose", ALL)
    assert answered(node, "o1")["result"] == "pass"
    assert node.heard("diag_passed")["data"]["level"] == 2
    node.gpus(diag={"errors": [{"test": "memory", "gpu": 1, "code": 52, "severity": 2}]})
    node.daemon.order("o2", "diagnose", ALL)
    assert answered(node, "o2")["result"] == "fail"
    found = node.heard("diag_failed")
    assert (found["where"]["gpu_uuid"], found["data"]["code"], found["data"]["convicts"]) == ("GPU-1", 52, True)
    assert found["data"]["idle"] is True
    assert node.verdict("BAD")


def test_a_job_ends_it_also_in_the_host_engine(node: Node) -> None:
    node.gpus(diag={"sleep_s": 600})
    running = Path(f"{node.folder}/gpus.json.diag")
    node.daemon.order("o1", "diagnose", ALL)
    assert node.daemon.wait(lambda: running.exists() and running.read_text(), PATIENCE_S)
    client = Path(f"/proc/{running.read_text()}")
    assert client.exists()
    node.job()
    result = answered(node, "o1")
    assert (result["result"], result["reason"]) == ("inconclusive", "a job goes before it")
    assert node.daemon.wait(lambda: not running.exists(), PATIENCE_S), "it would go on without its client"
    assert node.daemon.wait(lambda: not client.exists(), PATIENCE_S), "and its client without the probe"
    node.gpus(diag={})
    node.daemon.order("o2", "diagnose", ALL)
    assert answered(node, "o2")["reason"] == "a job goes before it"
    node.knows(JOB)
    (node.folder / "run" / "jobs" / f"{JOB}.json").unlink()
    node.knows()
    node.daemon.order("o3", "diagnose", ALL)
    assert answered(node, "o3")["result"] == "pass"
