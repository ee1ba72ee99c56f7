"""The end of a job on a node: the agent as a process, the epilog as Slurm runs it, real files of a real other user."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from nodes.agent_process import JOB, PATIENCE_S, ROOT, Node, open_folder, running_munged, running_node

from sentinel.checkpoints.packed import unpack
from sentinel.classify.hang.analyse import analyse
from sentinel.evidence.nccl.flight_recorder_wire import from_wire
from sentinel.model.collectives import RankTrace

pytestmark = [
    pytest.mark.skipif(shutil.which("munged") is None, reason="munged is not installed"),
    pytest.mark.skipif(os.getuid() != 0, reason="optional: becomes another user, which only root can"),
]
NOBODY = 65534
XID = "NVRM: Xid (PCI:0000:1c:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


@pytest.fixture(scope="module")
def munge_socket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_munged(tmp_path_factory.mktemp("munge")) as socket:
        yield socket


class Ending:
    """A node with one job of an ordinary user on it."""

    def __init__(self, node: Node, home: Path) -> None:
        self.node, self.work = node, home / "work"
        self.work.mkdir(parents=True)
        os.chown(self.work, NOBODY, NOBODY)
        self.log = self.work / "job.out"
        self.processes: list[subprocess.Popen[bytes]] = []
        self.here: list[int] = []

    def come(self, job: int = JOB, attempt: int = 0, **changes: str) -> None:
        self.job, self.attempt = job, attempt
        self.log.write_text("starting\n")
        os.chown(self.log, NOBODY, NOBODY)
        self.node.job(job, attempt, uid=str(NOBODY), gid=str(NOBODY), nodelist="n[1-2]", stdout=str(self.log),
                      work_dir=str(self.work), gpus="0,1", **changes)  # fmt: skip
        self.here = sorted({*self.here, job})
        self.node.knows(*self.here)

    def write(self, path: Path, content: bytes) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        for part in (path, *path.parents):
            if self.work in (part, *part.parents):
                os.chown(part, NOBODY, NOBODY)
        return path

    def process(self, **environment: str) -> subprocess.Popen[bytes]:
        """A process of the job that ignores what would end it kindly."""
        made = subprocess.Popen(
            ["sh", "-c", "trap '' TERM; exec sleep 600"],
            env={"PATH": os.environ["PATH"], "SLURM_JOB_ID": str(self.job), "SLURMD_NODENAME": "n1", **environment},
            user=NOBODY, group=NOBODY, extra_groups=[], start_new_session=True,
        )  # fmt: skip
        self.processes.append(made)
        wait_for(lambda: Path(f"/proc/{made.pid}/comm").read_text() == "sleep\n")  # the trap is set by then
        return made

    def epilog(self, code: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        self.here = [job for job in self.here if job != self.job]
        return subprocess.run(
            [str(ROOT / "epilog" / "10-sentinel")],
            env={"PATH": os.environ["PATH"], "SENTINEL_RUN_DIR": str(self.node.folder / "run"),
                 "SENTINEL_HOOK_CONF": "/nowhere", "SLURM_JOB_ID": str(self.job), "SLURM_JOB_EXIT_CODE": code,
                 "SLURM_JOB_RESTART_COUNT": str(self.attempt), "SLURM_JOB_GPUS": "0,1", **environment},
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip

    def collected(self) -> dict[str, Any]:
        """What the agent answers to the daemon's order, which waits until it is over."""
        identity = f"collected-{self.job}.{self.attempt}-{time.monotonic_ns()}"
        self.node.daemon.order(identity, "collected", {"job": self.job, "attempt": self.attempt}, deadline_s=90.0)
        assert self.node.daemon.wait(lambda: identity in self.node.daemon.results, 120), self.logged()
        answer: dict[str, Any] = self.node.daemon.results[identity]
        assert answer["ok"], answer
        assert answer["result"]["done"], self.logged()
        found: dict[str, Any] = answer["result"]
        return found

    def against(self) -> str:
        path = self.node.folder / "run" / "against" / f"{self.job}.{self.attempt}"
        return path.read_text() if path.exists() else ""

    def logged(self) -> str:
        return (self.node.folder / "agent.log").read_text()

    def bundle(self) -> Path:
        return self.node.folder / "state" / "bundles" / f"{self.job}.{self.attempt}"

    def names(self) -> list[str]:
        return sorted(path.name for path in self.bundle().iterdir())

    def heard(self, kind: str, source: str = "") -> list[dict[str, Any]]:
        """Evidence of that kind, once there is any: it comes by another way than the answer to an order."""
        assert self.node.daemon.wait(lambda: self.told(kind, source), PATIENCE_S), (kind, self.logged())
        return self.told(kind, source)

    def told(self, kind: str, source: str = "") -> list[dict[str, Any]]:
        found = [item for _, item in self.node.daemon.evidence if item["kind"] == kind]
        return [item for item in found if source in ("", item["source"])]


@contextmanager
def started(munge_socket: str, more: str = "") -> Iterator[Ending]:
    with open_folder() as folder, running_node(folder, munge_socket, more) as node:
        made = Ending(node, folder / "home")
        try:
            yield made
        finally:
            for process in made.processes:
                process.kill()
                process.wait()


@pytest.fixture
def ending(munge_socket: str) -> Iterator[Ending]:
    more = "[collect]\nplaces_s = [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0]\nlisting_s = 60.0\n"
    with started(munge_socket, more) as made:
        yield made


def dump(rank: int, calls: int, world: int = 3) -> bytes:
    """A flight-recorder dump of a rank that has called ``calls`` collectives and completed all but those from 5 on."""
    entries = [
        {
            "record_id": number, "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": number + 1,
            "p2p_seq_id": 0, "op_id": number + 1, "profiling_name": "nccl:all_reduce", "input_sizes": [[64]],
            "output_sizes": [[64]], "input_dtypes": ["Float"], "output_dtypes": ["Float"],
            "state": "completed" if number < 4 else "scheduled", "time_created_ns": 1000 + number,
            "time_discovered_completed_ns": 2000 + number if number < 4 else None, "retired": number < 4, "is_p2p": False,
        }
        for number in range(calls)
    ]  # fmt: skip
    ranks = str(list(range(world)))
    return pickle.dumps(
        {"version": "2.10", "entries": entries, "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": ranks}}}
    )


ERROR = {
    "message": {
        "message": "RuntimeError: CUDA error: an illegal memory access was encountered",
        "extraInfo": {
            "py_callstack": "Traceback (most recent call last):\n  File \"step.py\", line 3, in step\n    loss.backward()\n"
            "RuntimeError: CUDA error: an illegal memory access was encountered\n",
            "timestamp": "0",
        },
    }
}  # fmt: skip


def test_dumps_where_the_job_said_are_kept_and_told(ending: Ending) -> None:
    """Where Slurm does not say how it ended (22.05): what the job left tells."""
    ending.come()
    prefix = ending.work / "flight" / "run-7 of it_"
    ending.process(TORCH_NCCL_DEBUG_INFO_TEMP_FILE=str(prefix))
    places = ending.node.folder / "state" / "places.json"
    wait_for(lambda: places.exists() and prefix.name in places.read_text())
    for rank in (0, 2):
        ending.write(prefix.with_name(f"{prefix.name}{rank}"), dump(rank, 6))
    ending.write(prefix.with_name(f"{prefix.name}1"), dump(1, 4))
    elsewhere = ending.work.parent / "everybody may read this"
    elsewhere.write_bytes(dump(8, 6))
    prefix.with_name(f"{prefix.name}8").symlink_to(elsewhere)
    ending.processes[0].kill()
    ending.processes[0].wait()
    assert ending.epilog().returncode == 0
    answer = ending.collected()
    traces = [from_wire(item) for item in answer["dumps"]]
    finding = analyse(trace for trace in traces if isinstance(trace, RankTrace))
    assert (finding.kind, finding.culprit_ranks) == ("missing", (1,))
    assert answer["folder"] == str(ending.bundle())
    (told,) = ending.heard("dumps")
    assert (told["trust"], told["source"], told["where"]["job"]) == ("user", "flight_recorder", JOB)
    assert "ranks 0, 1, 2" in told["text"]
    (kept,) = ending.heard("bundle")
    assert kept["where"]["path"] == str(ending.bundle())
    assert [name for name in ending.names() if name.startswith("dump-")] == [
        "dump-000-run-7_of_it_0", "dump-001-run-7_of_it_1", "dump-002-run-7_of_it_2",
    ]  # fmt: skip
    assert "log-end.txt" in ending.names()
    assert ending.bundle().stat().st_mode & 0o077 == 0, "nobody else's to read"


def test_a_failed_job_leaves_the_whole_story(ending: Ending) -> None:
    ending.come()
    ending.node.kernel("eth0: link is up")
    worker = ending.work / "logs" / "run_x1" / "attempt_0" / "1"
    ending.write(worker / "error.json", json.dumps(ERROR).encode())
    ending.log.write_text("step 1\n" * 9 + "srun: error: n1: task 1: Exited with exit code 1\n")
    assert ending.epilog("256").returncode == 0
    ending.collected()
    (found,) = ending.heard("cuda-illegal-access", "error_file")
    assert (found["trust"], found["data"]["local_rank"], found["where"]["node"]) == ("user", 1, "n1")
    assert "eth0: link is up" in (ending.bundle() / "kernel.txt").read_text()
    assert (ending.bundle() / "log-end.txt").read_text().endswith("exit code 1\n")
    assert json.loads((ending.bundle() / "gpus.json").read_text())[0]["gpus"][0]["uuid"] == "GPU-0"
    about = json.loads((ending.bundle() / "about.json").read_text())
    assert (about["job"], about["code"], about["why"], about["node"]) == (JOB, "256", "code", "n1")
    assert {file["file"] for file in about["files"]} | {"about.json", "dumps.json"} == set(ending.names())


@pytest.mark.parametrize("code", ["0", ""])
def test_a_good_job_leaves_nothing(ending: Ending, code: str) -> None:
    ending.come()
    ending.epilog(code)
    assert ending.collected()["dumps"] == []
    assert not ending.bundle().exists()
    assert ending.told("bundle") == []


def test_evidence_against_the_node_makes_it_a_bad_end(ending: Ending) -> None:
    ending.come()
    ending.node.kernel(XID)
    ending.node.heard("xid")
    wait_for(lambda: ending.against() == "node\n")
    ending.epilog()
    ending.collected()
    assert "Xid" in (ending.bundle() / "kernel.txt").read_text()


def test_the_log_speaks_where_slurm_does_not(ending: Ending) -> None:
    ending.come()
    with ending.log.open("a") as stream:
        stream.write("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n")
    wait_for(lambda: ending.against() == "log\n")
    ending.epilog()
    ending.collected()
    assert json.loads((ending.bundle() / "about.json").read_text())["why"] == "log"


def test_what_is_not_the_jobs_is_left_alone(ending: Ending, tmp_path: Path) -> None:
    """Links, another user's files in a folder for all, older files, FIFOs, names that nobody wants."""
    old = ending.write(ending.work / "nccl_trace_rank_9", dump(9, 6))
    os.utime(old, (1, 1))
    ending.come()
    secret = tmp_path / "secret"
    secret.write_bytes(dump(4, 6))
    (ending.work / "nccl_trace_rank_4").symlink_to(secret)
    os.mkfifo(ending.work / "nccl_trace_rank_5")
    everybodys = ending.work / "everybodys"
    everybodys.mkdir(mode=0o777)
    everybodys.chmod(0o777)
    (everybodys / "nccl_trace_rank_6").write_bytes(dump(6, 6))  # root's
    (ending.work / "loop").symlink_to(ending.work)
    ending.write(ending.work / "nccl_trace\n\x1b[31m`id`_rank_3", dump(3, 6))
    ending.write(ending.work / "nccl_trace_rank_2", b"\x80\x04not a pickle")
    ending.write(ending.work / os.fsdecode(b"nccl_trace_\xff\xfe_rank_1"), dump(1, 6))
    ending.epilog("256")
    answer = ending.collected()
    ranks = sorted(item.get("trace", item.get("unreadable"))["rank"] for item in answer["dumps"])
    assert ranks == [1, 2, 3]
    assert all(name.isascii() and name.isprintable() for name in ending.names())
    (told,) = ending.heard("dumps")
    assert "1 of them cannot be read" in told["text"]


def test_bounds_hold_and_are_said(munge_socket: str) -> None:
    more = "[collect]\nfiles = 3\nfile_bytes = 5000\ntotal_bytes = 65536\nlog_bytes = 1024\nbundles = 2\n"
    with started(munge_socket, more) as ending:
        for job in (11, 12, 13):
            ending.come(job)
            for rank in range(6):
                ending.write(ending.work / f"nccl_trace_rank_{rank}", dump(rank, 6))
            ending.write(ending.work / "nccl_trace_rank_7", dump(7, 6) + b"x" * 20000)
            ending.log.write_text("a line\n" * 3000)
            ending.epilog("256")
            answer = ending.collected()
            assert len(answer["dumps"]) == 7, "what they say is told of all"
            kept = [name for name in ending.names() if name.startswith("dump-")]
            assert len(kept) == 3
            assert (ending.bundle() / "log-end.txt").stat().st_size == 1024
        folders = lambda: sorted(path.name for path in ending.bundle().parent.iterdir() if path.is_dir())  # noqa: E731
        wait_for(lambda: folders() == ["12.0", "13.0"])


def test_a_process_that_stays_is_named_and_left_alone(ending: Ending) -> None:
    ending.come()
    stray = ending.process()
    ending.epilog("256")
    ending.collected()
    (found,) = ending.heard("left_behind")
    assert (found["data"]["pid"], found["data"]["ended"], found["trust"]) == (stray.pid, "no", "system")
    assert (found["data"]["uid"], found["where"]["job"]) == (NOBODY, JOB)
    assert stray.poll() is None


def test_it_is_ended_where_the_site_says_so_and_no_other(munge_socket: str) -> None:
    with started(munge_socket, "[collect]\nend_stray = true\nterm_s = 0.5\n") as ending:
        ending.come(JOB + 1)
        ending.come(JOB)
        stray = ending.process()
        another = ending.process(SLURM_JOB_ID=str(JOB + 1))  # of a job that runs
        elsewhere = ending.process(SLURMD_NODENAME="n2")  # another node of the same host
        roots = subprocess.Popen(["sleep", "60"], env={"SLURM_JOB_ID": str(JOB), "SLURMD_NODENAME": "n1"})
        ending.processes.append(roots)
        ending.epilog("0")  # also after a good end
        ending.collected()
        assert stray.wait(PATIENCE_S) == -signal.SIGKILL, "it ignores TERM"
        (found,) = ending.heard("left_behind")
        assert (found["data"]["pid"], found["data"]["ended"]) == (stray.pid, "KILL")
        assert [process.poll() for process in (another, elsewhere, roots)] == [None, None, None]


def checkpoint(ending: Ending, step: int) -> None:
    header = json.dumps({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    content = struct.pack("<Q", len(header)) + header + bytes(16)
    ending.write(ending.work / "nvme" / f"step-{step}" / "model.safetensors", content)


def test_local_checkpoints_are_listed_before_they_are_wiped(ending: Ending) -> None:
    ending.node.daemon.watch = [
        {"job": JOB, "attempt": 0, "first": True, "since_s": 0.0,
         "roots": [{"tier": "local", "path": str(ending.work / "nvme")}]}
    ]  # fmt: skip
    checkpoint(ending, 20)
    ending.come()
    checkpoint(ending, 40)
    wait_for((ending.node.folder / "run" / "local" / f"{JOB}.0").exists)
    ending.epilog("0", SENTINEL_LISTING_S="90")
    shutil.rmtree(ending.work / "nvme")  # the site's own epilog, after ours
    assert not (ending.node.folder / "run" / "local" / f"{JOB}.0").exists()
    ending.node.heard("checkpoints_held")
    (held,) = ending.heard("checkpoints_held")
    parts = unpack(held["data"]["listing"])
    assert sorted(part.step for part in parts if part.step is not None) == [20, 40]
    assert {(part.host, part.tier) for part in parts} == {("n1", "local")}
    assert held["trust"] == "user"


def test_an_end_while_the_agent_was_away_is_looked_at_when_it_comes(ending: Ending) -> None:
    ending.come()
    ending.node.kill()
    ending.write(ending.work / "nccl_trace_rank_0", dump(0, 6))
    ending.epilog("256")
    ending.node.start()
    assert len(ending.collected()["dumps"]) == 1


def test_a_failed_job_is_tested_in_its_epilog_where_slurm_does_not_say_that_it_failed(munge_socket: str) -> None:
    """Slurm 22.05, with SENTINEL_EPILOG_LEVEL on: the node's evidence is the sign."""
    with socket.create_server(("127.0.0.1", 0)) as engine:
        dcgm = f'host = "127.0.0.1:{engine.getsockname()[1]}"\ndcgmi = "{ROOT}/deploy/lab/fake_dcgm/dcgmi"\n'
        with started(munge_socket, dcgm) as ending:
            ending.node.gpus(diag={"errors": [{"test": "software", "gpu": 1, "code": 118, "severity": 2}]})
            ending.come()
            ending.node.kernel(XID)
            wait_for(lambda: ending.against() == "node\n")
            done = ending.epilog(SENTINEL_EPILOG_LEVEL="2", SENTINEL_EPILOG_S="90")
            assert done.returncode == 0
            found = ending.node.heard("diag_failed")
            assert (found["data"]["level"], found["where"]["gpu_uuid"]) == (2, "GPU-1")
            wait_for(lambda: not list((ending.node.folder / "run" / "checks").glob("[0-9]*")))


def test_the_prolog_answers_while_a_diagnostic_runs(munge_socket: str) -> None:
    """From the verdict alone: nothing is started, so nothing waits for the driver."""
    with socket.create_server(("127.0.0.1", 0)) as engine:
        dcgm = f'host = "127.0.0.1:{engine.getsockname()[1]}"\ndcgmi = "{ROOT}/deploy/lab/fake_dcgm/dcgmi"\n'
        with started(munge_socket, dcgm) as ending:
            ending.node.gpus(diag={"sleep_s": 60})
            ending.node.daemon.order("deep", "diagnose", {"level": 2, "gpus": None, "yields": False}, deadline_s=120.0)
            wait_for(lambda: "order-begun id=deep" in ending.logged())
            wait_for(lambda: (ending.node.folder / "run" / "drain_mode").read_text().strip() == "act")
            for word in ("OK", "BAD"):
                assert ending.node.verdict(word)
                done = subprocess.run(
                    [str(ROOT / "prolog" / "10-sentinel")],
                    env={"PATH": os.environ["PATH"], "SENTINEL_RUN_DIR": str(ending.node.folder / "run"),
                         "SENTINEL_HOOK_CONF": "/nowhere", "SENTINEL_PYTHON": "/nowhere", "SLURM_JOB_ID": ""},
                    capture_output=True, text=True, timeout=120, check=False,
                )  # fmt: skip
                assert "/nowhere" not in done.stderr
                assert done.returncode == (word == "BAD")
                ending.node.kernel(XID)
            assert "deep" not in ending.node.daemon.results


def wait_for(condition: Any) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until_s, "it never came"
        time.sleep(0.05)
