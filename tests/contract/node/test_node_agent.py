"""The agent as a process, with a real munged, a daemon that only keeps what it gets, and GPUs from a file."""

from __future__ import annotations

import ipaddress
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from nodes.agent_process import JOB, JOB_GID, JOB_UID, PATIENCE_S, ROOT, Node, open_folder, running_munged, running_node
from nodes.fake_daemon import FakeDaemon

from sentinel.adapters.munge import Munge
from sentinel.errors import Denied, Unavailable

pytestmark = pytest.mark.skipif(shutil.which("munged") is None, reason="munged is not installed")


@pytest.fixture(scope="module")
def munge_socket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_munged(tmp_path_factory.mktemp("munge")) as socket:
        yield socket


@pytest.fixture
def node(munge_socket: str) -> Iterator[Node]:
    with open_folder() as folder, running_node(folder, munge_socket) as made:
        yield made


XID = "NVRM: Xid (PCI:0000:1c:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


def test_credentials_of_munge(munge_socket: str) -> None:
    credentials = Munge(munge_socket)
    made = credentials.encode(b"\x00payload")
    signed = credentials.decode(made)
    assert (signed.payload, signed.uid, signed.gid) == (b"\x00payload", os.getuid(), os.getgid())
    assert signed.lives_s == 300.0 and signed.made_s == pytest.approx(time.time(), abs=5)
    assert signed.address == "" or ipaddress.ip_address(signed.address).version == 4
    with pytest.raises(Denied, match=r"[Rr]eplay"):
        credentials.decode(made)
    with pytest.raises(Denied):
        credentials.decode("MUNGE:rubbish:")
    with pytest.raises(Denied):
        credentials.decode("")
    with pytest.raises(Unavailable, match="nowhere"):
        Munge("/nowhere/socket").encode(b"x")


def test_a_kernel_xid_reaches_the_daemon_with_its_gpu(node: Node) -> None:
    node.kernel(XID)
    found = node.heard("xid")
    assert (found["source"], found["data"]["xid"], found["where"]["node"]) == ("kernel", 79, "n1")
    assert (found["where"]["gpu"], found["where"]["gpu_uuid"]) == (1, "GPU-1")
    assert node.verdict("BAD")
    assert (node.folder / "run" / "verdict").read_text().startswith("BAD ")


def test_a_lost_gpu_and_its_return(node: Node) -> None:
    node.state["gpus"][1]["status"] = "lost"
    node.gpus()
    assert node.heard("gpu_lost")["where"]["gpu"] == 1
    assert node.verdict("BAD")
    node.state["gpus"][1]["status"] = "ok"
    node.gpus()
    assert node.verdict("OK")


def test_what_dcgm_alone_says_is_told_and_is_no_fault(node: Node) -> None:
    """As any user of the node may write it into the engine (``dcgmi test --inject``); then the driver says it, too."""
    node.state["gpus"][1]["injected"] = {"1523": 2}
    node.gpus()
    assert node.heard("recovery_action")["data"] == {"action": 2, "open_engine": True}
    node.daemon.heartbeats.clear()
    assert node.verdict("OK")
    node.state["gpus"][1]["fields"] = {"1523": 2}
    node.gpus()
    assert node.verdict("BAD")

    def told() -> list[str]:
        return [item["source"] for _, item in node.daemon.evidence if item["kind"] == "recovery_action"]

    assert node.daemon.wait(lambda: told() == ["dcgm", "nvml"], PATIENCE_S), told()


def test_nothing_is_lost_while_the_daemon_is_away(node: Node) -> None:
    node.daemon.stop()
    node.kernel(XID)
    time.sleep(1.0)
    port, before = node.daemon.port, node.daemon
    node.daemon = FakeDaemon(before.credentials, port).start()
    assert node.heard("xid")["data"]["xid"] == 79


def test_nothing_is_lost_or_doubled_by_kill_9(node: Node) -> None:
    node.daemon.stop()
    for number in range(5):
        node.kernel(XID.replace("0000:1c:00", f"0000:{number:02x}:00"))
    time.sleep(1.0)
    node.kill()
    node.kernel(XID.replace("0000:1c:00", "0000:77:00"))
    node.daemon = FakeDaemon(node.daemon.credentials).start()
    node.start()
    wanted = {f"0000:{number:02x}:00" for number in range(5)} | {"0000:77:00"}

    def got() -> list[str]:
        return [item["data"]["pci"] for _, item in node.daemon.evidence if item["kind"] == "xid"]

    assert node.daemon.wait(lambda: wanted <= set(got()), PATIENCE_S), got()
    assert node.verdict("BAD")
    ids = [item["id"] for _, item in node.daemon.evidence]
    assert len(ids) == len(set(ids)), "what was not acknowledged is sent once more, with its id"
    assert set(got()) == wanted


def until_watched(node: Node) -> None:
    """What happens before the probe watches is an engine's past."""
    until_s = time.monotonic() + PATIENCE_S
    while "xid" not in node.daemon.kinds():
        assert time.monotonic() < until_s, node.daemon.kinds()
        node.state["gpus"][0]["xids"].append({"xid": 95, "at_us": int(time.time() * 1e6)})
        node.gpus()
        node.daemon.wait(lambda: "xid" in node.daemon.kinds(), 1.5)


def test_a_driver_that_hangs_is_evidence_and_stops_nothing(node: Node) -> None:
    node.kill()
    node.start(silent_s=2.0)
    until_watched(node)  # while it connects, a driver that hangs is an engine that does not answer
    node.gpus(hang_s=600)
    found = node.heard("probe_hung")
    assert found["data"]["probe"] == "dcgm"
    node.daemon.evidence.clear()
    node.kernel(XID)
    node.heard("xid")
    node.gpus(hang_s=0)


def test_a_host_engine_that_restarts_is_watched_again(node: Node) -> None:
    node.gpus(engine="second")
    until_watched(node)
    found = node.heard("xid")
    assert (found["source"], found["data"]["xid"]) == ("dcgm", 95)


def test_a_kernel_log_that_is_not_there_is_said_and_read_when_it_comes(node: Node) -> None:
    node.kill()
    (node.folder / "kmsg").unlink()
    node.start()
    found = node.heard("unreadable")
    assert (found["source"], "kmsg" in found["text"]) == ("agent", True)
    node.kernel(XID)
    node.heard("xid")


def test_only_one_agent_for_a_state_folder(node: Node) -> None:
    second = subprocess.run(
        [sys.executable, "-m", "sentinel", "agent", "--config", str(node.folder / "agent.toml")],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert second.returncode == 4
    assert "another agent" in second.stderr


def test_the_log_of_a_job(node: Node) -> None:
    log = node.job()
    node.knows(JOB)
    log.write_text("starting\nRuntimeError: CUDA error: uncorrectable ECC error encountered\n")
    os.chown(log, JOB_UID, JOB_GID)  # as Slurm writes it
    found = node.heard("ecc-uncorrectable")
    assert (found["source"], found["trust"], found["where"]["job"], found["line"]) == ("job_log", "user", JOB, 2)
    (node.folder / "run" / "jobs" / f"{JOB}.json").unlink()
    node.knows()


def test_orders_are_carried_out(node: Node) -> None:
    node.job()
    node.knows(JOB)
    user = JOB_UID if os.getuid() == 0 else None
    task = subprocess.Popen(
        ["sleep", "60"], env={**os.environ, "SLURM_JOB_ID": str(JOB), "SLURM_PROCID": "2"}, user=user
    )
    try:
        until_s = time.monotonic() + PATIENCE_S
        while Path(f"/proc/{task.pid}/stat").read_text().rpartition(")")[2].split()[0] != "S":  # it is still starting
            assert time.monotonic() < until_s
            time.sleep(0.05)
        node.daemon.order("tasks", "task_states", {"job": JOB})
        assert node.daemon.wait(lambda: "tasks" in node.daemon.results, PATIENCE_S)
    finally:
        task.kill()
        task.wait()
    (found,) = node.daemon.results["tasks"]["result"]["tasks"]
    assert (found["pid"], found["rank"], found["state"], found["leaf"]) == (task.pid, 2, "S", True)
    root = node.folder / "checkpoints"
    root.mkdir()
    node.job()
    node.knows(JOB)
    arguments = {"job": JOB, "level": "structural", "before_step": None,
                 "roots": [{"tier": "local", "path": str(root)}, {"tier": "global", "path": "/nowhere/at/all"}]}  # fmt: skip
    node.daemon.order("list", "inventory", arguments)
    assert node.daemon.wait(lambda: "list" in node.daemon.results, PATIENCE_S)
    answer = node.daemon.results["list"]
    assert answer["ok"], answer
    assert answer["result"]["listings"][0] == []
    assert [part["valid"] for part in answer["result"]["listings"][1]] == [None]


def test_an_answer_that_is_not_the_daemons_orders_nothing(node: Node) -> None:
    node.daemon.lie = "signature"
    node.daemon.order("evil", "task_states", {"job": 1})
    time.sleep(1.5)
    assert node.daemon.results == {}
    assert not list((node.folder / "state" / "orders").iterdir())


def test_it_stays_small(node: Node) -> None:
    """60 MB, with its GPU probe, counting shared pages once."""
    assert node.agent is not None
    pids = [node.agent.pid]
    listed = subprocess.run(["ps", "--ppid", str(pids[0]), "-o", "pid="], capture_output=True, text=True, check=True)
    pids += [int(word) for word in listed.stdout.split()]
    total = 0
    for pid in pids:
        try:
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue  # a child that lived for a moment only
        total += next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
    assert total <= 60 * 1024, f"{total} kB in {len(pids)} processes"


def test_it_stops_when_told_even_with_a_stuck_probe(node: Node) -> None:
    node.gpus(hang_s=600)
    time.sleep(1.0)
    assert node.agent is not None
    node.agent.send_signal(signal.SIGTERM)
    assert node.agent.wait(PATIENCE_S) == 0
