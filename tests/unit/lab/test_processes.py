from __future__ import annotations

import os
import signal

import pytest
from lab import processes
from lab.processes import Process


def test_a_reused_pid_is_never_signalled(monkeypatch):
    own = processes.start_of(os.getpid())
    assert own is not None
    sent: list[int] = []
    monkeypatch.setattr(signal, "pidfd_send_signal", lambda handle, number: sent.append(number))
    stranger = Process(os.getpid(), own - 1)
    assert not stranger.alive
    assert not stranger.send(signal.SIGTERM)
    assert sent == []
    assert Process(os.getpid(), own).send(signal.SIGTERM)
    assert sent == [signal.SIGTERM]


def test_what_is_remembered_is_found_only_while_it_is_the_same_process(make_lab):
    lab = make_lab()
    own = processes.start_of(os.getpid())
    assert own is not None
    processes.remember(lab, "daemon", Process(os.getpid(), own))
    assert processes.known(lab, "daemon") == Process(os.getpid(), own)
    processes.remember(lab, "daemon", Process(os.getpid(), own + 1))
    assert processes.known(lab, "daemon") is None
    assert processes.known(lab, "never-started") is None


@pytest.mark.parametrize(
    ("environ", "node", "mine"),
    [
        ({"SLURM_CLUSTER_NAME": "labtest", "SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1"}, "", True),
        ({"SLURM_CLUSTER_NAME": "labtest", "SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1"}, "n2", False),
        ({"SLURM_CLUSTER_NAME": "another", "SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1"}, "", False),
        # A person's shell after eval "$(lab env)": it knows the cluster, and is no job of it.
        ({"SLURM_CONF": "/tmp/lab/etc/slurm.conf", "SENTINEL_LAB_DIR": "/tmp/lab"}, "", False),
    ],
)
def test_only_processes_of_the_labs_jobs_are_its_own(make_lab, environ, node, mine):
    assert processes.is_task_of(make_lab(), environ, node) is mine


def test_an_editor_with_a_file_of_the_lab_open_is_no_daemon_of_it(make_lab):
    lab = make_lab()
    with (lab.dir / "note").open("w"):
        assert processes.has_open(os.getpid(), lab.dir)
        assert not processes.is_daemon_of(os.getpid(), lab.dir)
