"""Whose a job is: kept for a while after its end, within bounds, over a restart, and never from what others could write."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from sentinel.agent.collectors.jobs import JobOnNode
from sentinel.agent.process.job_owners import Owner, Owners
from sentinel.agent.process.state_files import own_bytes, require_own
from sentinel.agent.settings import AgentSettings, Jobs
from sentinel.errors import UserError

DAY_S = 86400.0
JOB = JobOnNode(7, 0, 1000, 100, "n1", "")


class Node:
    def __init__(self, folder: Path) -> None:
        self.folder, self.now_s = folder, 1e9
        self.owners = self.restart()

    def restart(self) -> Owners:
        settings = AgentSettings(state=str(self.folder), jobs=Jobs(remembered=16, remembered_s=7 * DAY_S))
        self.owners = Owners(settings, lambda: self.now_s)
        return self.owners

    def ran(self, job: int) -> None:
        one = replace(JOB, job=job)
        self.owners.came(one)
        self.now_s += 1.0
        self.owners.left(one)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_a_job_that_is_here_and_one_that_never_was(node: Node) -> None:
    node.owners.came(JOB)
    assert node.owners.of(7) == Owner(1000, 100)
    assert node.owners.of(8) is None
    node.owners.came(replace(JOB, job=8, uid=None))
    assert node.owners.of(8) is None, "Slurm did not tell whose it is"


def test_it_is_remembered_after_the_end_and_over_a_restart(node: Node) -> None:
    node.ran(7)
    for pause_s in (3600.0, 6 * DAY_S):
        node.now_s += pause_s
        assert node.restart().of(7) == Owner(1000, 100)
    node.now_s += DAY_S
    assert node.owners.of(7) is None
    node.ran(8)
    assert "7" not in json.loads((node.folder / "owners.json").read_text())


def test_what_runs_is_kept_and_of_what_ended_the_latest(node: Node) -> None:
    node.owners.came(replace(JOB, job=1))
    for job in range(2, 40):
        node.ran(job)
    kept = json.loads((node.folder / "owners.json").read_text())
    assert sorted(map(int, kept)) == [1, *range(25, 40)]
    assert node.owners.of(1) is not None and node.owners.of(2) is None


def test_an_end_of_an_attempt_before_is_not_this_ones(node: Node) -> None:
    node.owners.came(JOB)
    node.owners.came(replace(JOB, attempt=1))
    node.owners.left(JOB)
    node.now_s += 30 * DAY_S
    assert node.owners.of(7) is not None


def test_a_job_that_came_and_ended_while_nobody_looked(node: Node) -> None:
    node.owners.left(JOB)
    assert node.owners.of(7) == Owner(1000, 100)
    node.owners.came(replace(JOB, job=8))
    node.restart().here(set())
    node.now_s += 8 * DAY_S
    assert node.owners.of(8) is None, "its time began when we came back, at the latest"


def test_the_record_is_roots_alone(node: Node) -> None:
    node.owners.came(JOB)
    path = node.folder / "owners.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and path.stat().st_uid == os.geteuid()


@pytest.mark.parametrize(
    "content",
    ["", "[]", "7", '{"7": 3}', '{"7": {"uid": "0"}}', '{"x": {}}',
     '{"7": {"uid": "1", "gid": 1, "attempt": 0, "ended_s": null}}'],
)  # fmt: skip
def test_a_record_that_is_none_is_nothing(node: Node, content: str) -> None:
    (node.folder / "owners.json").write_text(content)
    assert node.restart().of(7) is None


# --- files of root's alone -----------------------------------------------------------------------------------------------


def test_a_link_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("7")
    assert own_bytes(tmp_path / "real") == b"7"
    (tmp_path / "link").symlink_to(tmp_path / "real")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe"):
        with pytest.raises(OSError, match=name):
            own_bytes(tmp_path / name)


@pytest.mark.skipif(os.geteuid() != 0, reason="optional: gives files to another user, which only root can")
@pytest.mark.parametrize(("uid", "gid", "mode", "fine"), [
    (0, 0, 0o644, True), (0, 0, 0o664, True), (0, 100, 0o664, False), (0, 0, 0o666, False), (65534, 0, 0o600, False),
])  # fmt: skip
def test_what_others_could_write_is_not_believed(tmp_path: Path, uid: int, gid: int, mode: int, fine: bool) -> None:
    path = tmp_path / "7.json"
    path.write_text("{}")
    path.chmod(mode)
    os.chown(path, uid, gid)
    if fine:
        assert own_bytes(path) == b"{}"
    else:
        with pytest.raises(PermissionError, match="not believed"):
            own_bytes(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="optional: gives folders to another user, which only root can")
def test_the_agents_folders_lie_below_roots(tmp_path: Path) -> None:
    inner = tmp_path / "sentinel" / "agent"
    inner.mkdir(parents=True)
    require_own("state", inner)
    os.chown(inner.parent, 65534, 0)  # as where the daemon's own state folder holds the agent's
    with pytest.raises(UserError, match=f"state: {inner.parent} can be written by others") as refused:
        require_own("state", inner)
    assert "/var/lib/sentinel-agent" in refused.value.fix
    os.chown(inner.parent, 0, 0)
    inner.chmod(0o1777)
    with pytest.raises(UserError):
        require_own("state", inner)


def test_the_log_of_the_attempt_that_began_here_is_known_over_a_restart(node: Node) -> None:
    name = node.owners._node
    job = replace(JOB, nodelist=f"{name},n2", stdout="out-%j.txt", work_dir="/home/ada", attempt=1)
    node.owners.came(job)
    node.owners.left(job)
    assert node.restart().log_of(7, 1) == "/home/ada/out-7.txt"
    assert node.owners.log_of(7, 0) == node.owners.log_of(8, 1) == ""
    node.owners.came(replace(job, job=9, nodelist=f"n2,{name}"))
    assert node.owners.log_of(9, 1) == "", "its script runs on another node"


def test_a_record_of_an_earlier_release_is_read(node: Node) -> None:
    node.ran(7)
    path = node.folder / "owners.json"
    kept = json.loads(path.read_text())
    del kept["7"]["log"]
    path.write_text(json.dumps(kept))
    assert node.restart().of(7) == Owner(1000, 100) and node.owners.log_of(7, 0) == ""
