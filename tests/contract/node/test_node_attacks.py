"""A daemon that is not itself any more orders what it likes of a real agent of root's: it never gets root's rights."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from nodes.agent_process import JOB, JOB_GID, JOB_UID, PATIENCE_S, ROOT, Node, open_folder, running_munged, running_node

from sentinel.agent.process.probe_programs import probe_environment

pytestmark = [
    pytest.mark.skipif(shutil.which("munged") is None, reason="munged is not installed"),
    pytest.mark.skipif(os.getuid() != 0, reason="optional: an agent that is not root has no rights to lose"),
]
OTHER = 65533  # a user whose job is not here


@pytest.fixture(scope="module")
def munge_socket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_munged(tmp_path_factory.mktemp("munge")) as path:
        yield path


class Site:
    """A node with a host engine, on which a job of an ordinary user runs, and what only root or others may read."""

    def __init__(self, node: Node) -> None:
        self.node, self.count = node, 0
        self.ran = node.folder / "ran-as-root"
        self.evil = node.folder / "evil"
        self.evil.write_text(f"#!/bin/sh\nid -u > {self.ran}\n")
        self.evil.chmod(0o755)
        self.secret = self.checkpoint(node.folder / "roots", 0)
        self.others = self.checkpoint(node.folder / "others", OTHER)
        self.own = self.checkpoint(node.folder / "own", JOB_UID)
        node.job()
        node.knows(JOB)

    def checkpoint(self, folder: Path, uid: int) -> Path:
        (folder / "step-10").mkdir(parents=True)
        (folder / "step-10" / "model.pt").write_bytes(b"x")
        for path in (folder, *folder.rglob("*")):
            os.chown(path, uid, uid)
        folder.chmod(0o700)
        return folder

    def order(self, kind: str, arguments: dict[str, Any]) -> dict[str, Any]:
        self.count += 1
        name = f"o{self.count}"
        self.node.daemon.order(name, kind, arguments)
        assert self.node.daemon.wait(lambda: name in self.node.daemon.results, PATIENCE_S), self.logged()
        return self.node.daemon.results[name]

    def list(self, folder: Path, **more: Any) -> dict[str, Any]:
        roots = [{"tier": "global", "path": str(folder)}]
        return self.order("inventory", {"job": JOB, "roots": roots, "level": "structural", "before_step": None, **more})

    def names(self, *roots: Path) -> None:
        """The job's comment names these folders."""
        comment = {"sentinel": {"global": [str(root) for root in roots]}}
        (self.node.folder / "comment").write_text(json.dumps(comment, indent=1) + "\n")

    def steps(self, answer: dict[str, Any]) -> list[int]:
        return [part["step"] for part in answer["result"]["listings"][0] if part["step"] is not None]

    def logged(self) -> str:
        return (self.node.folder / "agent.log").read_text()


@pytest.fixture
def site(munge_socket: str) -> Iterator[Site]:
    with socket.create_server(("127.0.0.1", 0)) as engine, open_folder() as folder:
        squeue = folder / "squeue"
        squeue.write_text(SQUEUE.replace("COMMENT", str(folder / "comment")))
        squeue.chmod(0o755)
        more = f'host = "127.0.0.1:{engine.getsockname()[1]}"\ndcgmi = "{ROOT}/deploy/lab/fake_dcgm/dcgmi"\n'
        more += f'[slurm]\nsqueue = "{squeue}"\n'
        with running_node(folder, munge_socket, more) as node:
            yield Site(node)


# Job 8 is the other user's, job 9 root's; no other is known.
SQUEUE = f"""#!/bin/sh
case "$*" in
*--jobs={JOB}\\ *%k) exec /bin/cat COMMENT ;;
*--jobs=8\\ *) echo "8 {OTHER} {OTHER}" ;;
*--jobs=9\\ *) echo "9 0 0" ;;
*) echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1 ;;
esac
"""


def test_it_runs_no_program_of_an_orders_choice(site: Site) -> None:
    answer = site.order("diagnose", {"level": 1, "gpus": None, "yields": False, "dcgmi": str(site.evil)})
    assert not site.ran.exists()
    assert not answer["ok"] and "order diagnose: unknown key 'dcgmi'" in answer["error"]
    assert site.order("diagnose", {"level": 1, "gpus": None, "yields": False})["result"]["result"] == "pass"


def test_it_asks_no_host_engine_of_an_orders_choice(site: Site) -> None:
    with socket.create_server(("127.0.0.1", 0)) as evil:
        evil.settimeout(0)
        host = f"127.0.0.1:{evil.getsockname()[1]}"
        answer = site.order("diagnose", {"level": 1, "gpus": None, "yields": False, "host": host})
        assert not answer["ok"] and "unknown key 'host'" in answer["error"]
        with pytest.raises(BlockingIOError):
            evil.accept()


def test_it_reads_no_state_of_an_orders_choice(site: Site) -> None:
    bundles = site.node.folder / "forged" / "bundles"
    (bundles / "5.0").mkdir(parents=True)
    (bundles / "5.0.done").write_text('{"folder": "x"}')
    (bundles / "5.0" / "dumps.json").symlink_to(site.node.folder / "secret.json")
    (site.node.folder / "secret.json").write_text('["root alone may read this"]')
    (site.node.folder / "secret.json").chmod(0o600)
    answer = site.order("collected", {"job": 5, "attempt": 0, "state": str(bundles.parent)})
    assert not answer["ok"] and "unknown key 'state'" in answer["error"]
    assert "root alone" not in json.dumps(site.node.daemon.results)


@pytest.mark.parametrize("user", [{"uid": 0}, {"uid": 0, "gid": 0}, {"uid": OTHER, "gid": OTHER}])
def test_it_reads_as_nobody_of_an_orders_choice(site: Site, user: dict[str, int]) -> None:
    for folder in (site.secret, site.others):
        answer = site.list(folder, **user)
        assert not answer["ok"] and "order inventory: unknown key 'uid'" in answer["error"]


def test_it_lists_what_the_jobs_user_may_and_no_more(site: Site) -> None:
    assert site.steps(site.list(site.own)) == [10]
    for folder in (site.secret, site.others, Path("/root"), Path("/etc/ssl/private")):
        answer = site.list(folder)
        assert answer["ok"] and site.steps(answer) == []


@pytest.mark.parametrize("link", [False, True])
def test_it_moves_nothing_that_is_not_the_jobs_users(site: Site, link: bool) -> None:
    root = site.secret
    if link:
        root = site.own / "run"
        root.symlink_to(site.secret)
    site.names(root)
    order = {"job": JOB, "root": str(root), "paths": [f"{root}/step-10"], "steps": [10], "reason": "", "chosen": None}
    assert not site.order("quarantine", order)["ok"]
    assert (site.secret / "step-10" / "model.pt").exists()


def test_it_moves_nothing_that_is_no_checkpoint(site: Site) -> None:
    """The daemon's account may have checkpoints moved aside, not the code or data of whoever has a job."""
    root = site.checkpoint(site.own / "run", JOB_UID)
    (root / "code").mkdir()
    (root / "code" / "train.py").write_text("import torch\n")
    site.names(root)
    for name, moved in (("code", False), ("step-10", True)):
        order = {
            "job": JOB,
            "root": str(root),
            "paths": [str(root / name)],
            "steps": [None],
            "reason": "",
            "chosen": None,
        }
        answer = site.order("quarantine", order)
        assert answer["ok"] is moved and (root / name).exists() is not moved, answer
    assert "is no checkpoint" in site.order("quarantine", {**order, "paths": [str(root / "code")]})["error"]
    assert site.order("quarantine", order)["ok"], "repeated, it gives the same answer"


def test_it_moves_no_checkpoint_of_another_job_of_the_user(site: Site) -> None:
    """Slurm says what the job names. Where it does not answer the order counts: bad checkpoints are moved then, too."""
    mine, other = (site.checkpoint(site.own / name, JOB_UID) for name in ("mine", "other"))

    def moved(root: Path) -> bool:
        order = {
            "job": JOB,
            "root": str(root),
            "paths": [f"{root}/step-10"],
            "steps": [10],
            "reason": "",
            "chosen": None,
        }
        answer = site.order("quarantine", order)
        assert answer["ok"] or "does not name" in answer["error"], answer
        return not (root / "step-10").exists()

    site.names(mine)
    assert not moved(other) and moved(mine)
    (site.node.folder / "comment").write_text("(null)\n")
    assert not moved(other)
    (site.node.folder / "comment").unlink()  # squeue fails
    assert moved(other)


@pytest.mark.parametrize("path", ["/data/../root", "root", "~root"])
def test_paths_that_lead_elsewhere_are_refused(site: Site, path: str) -> None:
    order = {"job": JOB, "root": path, "paths": [f"{path}/x"], "steps": [None], "reason": "", "chosen": None}
    answer = site.order("quarantine", order)
    assert not answer["ok"] and "root must be an absolute path" in answer["error"]


def test_whose_a_job_is_that_is_not_here_slurm_says_or_nobody(site: Site) -> None:
    assert site.steps(site.list(site.others, job=8)) == [10], "as its user, whom slurmctld named"
    assert site.steps(site.list(site.own, job=8)) == []
    for job, words in ((9, "job 9 is root's"), (4711, "job 4711 does not run and did not lately run on this node")):
        answer = site.list(site.secret, job=job)
        assert not answer["ok"] and words in answer["error"], answer
    answer = site.order("ask_job", {"job": 4711, "ras": False, "gap_s": 0.0})
    assert not answer["ok"] and "did not lately run" in answer["error"]


def test_a_job_of_roots_is_not_looked_into(site: Site) -> None:
    site.node.job(10, uid="0", gid="0")
    site.node.knows(JOB, 10)
    answer = site.list(site.secret, job=10)
    assert not answer["ok"] and "job 10 is root's" in answer["error"]


def test_after_its_end_and_a_restart_the_jobs_user_is_known(site: Site) -> None:
    (site.node.folder / "run" / "jobs" / f"{JOB}.json").unlink()
    site.node.knows()
    assert site.steps(site.list(site.own)) == [10]
    site.node.kill()
    site.node.start()
    assert site.steps(site.list(site.own)) == [10]
    assert (site.node.folder / "state" / "owners.json").stat().st_mode & 0o777 == 0o600


def test_a_job_file_that_a_user_could_write_is_not_believed(site: Site) -> None:
    path = site.node.folder / "run" / "jobs" / "11.json"
    site.node.job(11, uid=str(OTHER))
    os.chown(path, JOB_UID, JOB_UID)
    site.node.kill()
    site.node.start()
    site.node.knows(JOB)
    assert not site.list(site.others, job=11)["ok"]


def test_an_answer_to_a_heartbeat_names_no_user(site: Site) -> None:
    site.node.job(12, uid="", gid="")  # Slurm did not say whose it is
    site.node.knows(JOB, 12)
    roots = [{"tier": "local", "path": str(site.secret)}]
    entry = {"job": 12, "attempt": 0, "first": True, "since_s": 0.0, "roots": roots}
    site.node.daemon.watch = [{**entry, "uid": 0, "gid": 0}]
    assert site.node.daemon.wait(lambda: "unknown key 'uid'" in site.logged(), PATIENCE_S)
    assert not (site.node.folder / "run" / "local" / "12.0").exists(), "nothing of it will be listed"


# --- the probes by themselves ---------------------------------------------------------------------------------------------


def run_probe(probe: str, arguments: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", f"sentinel.agent.probes.{probe}"], input=json.dumps(arguments) + "\n", text=True,
        capture_output=True, timeout=PATIENCE_S, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("uid", "gid"), [(0, 0), (0, 100), (JOB_UID, 0), (True, 1), ("0", None), (None, None), (-1, None), (JOB_UID, "100")]
)
@pytest.mark.parametrize("probe", ["inventory", "inventory, to move", "ask_job", "joblog"])
def test_no_probe_of_users_files_stays_root(tmp_path: Path, probe: str, uid: object, gid: object) -> None:
    (tmp_path / "run" / "step-10").mkdir(parents=True)
    root = str(tmp_path / "run")
    arguments = {"node": "n1", "job": JOB, "attempt": 0, "level": "structural", "roots": [{"tier": "local", "path": root}],
                 "path": f"{root}/log", "ras": False, "deadline_s": 5.0, "uid": uid, "gid": gid}  # fmt: skip
    if probe.endswith("to move"):
        arguments |= {"root": root, "paths": [f"{root}/step-10"], "steps": [10]}
    done = run_probe(probe.partition(",")[0], arguments)
    assert done.returncode != 0 and "not touched as root" in done.stderr
    assert '"result"' not in done.stdout and '"index"' not in done.stdout
    assert (tmp_path / "run" / "step-10").exists()


RULE = """
[[rule]]
id = "boiler"
pattern = 'boiler pressure \\d{1,4}'
weights = { user_code = 1.0 }
match = ["the boiler pressure 12 is odd"]
reject = ["boiler pressure unknown"]
"""


def test_a_users_log_is_held_against_rules_that_only_root_may_read(tmp_path: Path) -> None:
    """As below an /etc/sentinel of mode 0700, or with Sentinel in /root: the rules are the agent's own."""
    rules = tmp_path / "site.toml"
    rules.write_text(RULE)
    with open_folder() as folder:
        log = folder / "job.out"
        log.write_text("the boiler pressure 12 is odd\n")
        if os.geteuid() == 0:
            os.chown(log, JOB_UID, JOB_GID)
        (folder / "ended").touch()
        arguments = {"node": "n1", "job": JOB, "attempt": 0, "uid": JOB_UID, "gid": JOB_GID, "path": str(log),
                     "cursor": {"inode": log.stat().st_ino, "offset": 0, "line": 1}, "ended": str(folder / "ended"),
                     "rules": str(rules), "read_bytes": 1 << 16, "lines_per_s": 9.0, "burst": 9, "linger_s": 0.0,
                     "poll_s": 0.01}  # fmt: skip
        done = run_probe("joblog", arguments)
    assert "boiler pressure 12" in done.stdout, done.stderr


def test_the_collector_reads_no_users_files_as_root(tmp_path: Path) -> None:
    secret = tmp_path / "nccl_trace_rank_0"
    secret.write_text('{"version": "2.10", "entries": []}')
    settings = {"files": 9, "dumps": 9, "file_bytes": 9999, "total_bytes": 9999, "log_bytes": 99, "kernel_lines": 9,
                "end_stray": False, "term_s": 0.1, "bundles": 9, "bundles_bytes": 9999,
                "user_s": 9.0, "look_s": 9.0}  # fmt: skip
    arguments = {"node": "n1", "job": JOB, "attempt": 0, "uid": 0, "gid": 0, "began_s": 0.0, "ended_s": 1.0, "code": "1",
                 "why": "code", "look": True, "first": True, "work_dir": str(tmp_path), "log": "", "gpus": [], "others": {},
                 "places": {}, "here_again": str(tmp_path / "jobs" / "7.json"),
                 "folder": str(tmp_path / "bundles" / "7.0"), "kernel": "", "gpus_seen": "", "rules": "",
                 **settings}  # fmt: skip
    (tmp_path / "bundles").mkdir()
    done = run_probe("collect", arguments)
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["dumps"] == 0 and "not touched as root" in "; ".join(told["notes"]), done.stderr


BECOME = """
import json, os
from sentinel.agent.probes import become
os.setgroups([0, 4, 27, 1234])
become({uid}, {gid})
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(json.dumps([os.getresuid(), os.getresgid(), os.getgroups(), status["NoNewPrivs"].strip(), status["CapEff"].strip()]))
"""


LIMITED = """
import contextlib, json, resource
from sentinel.agent.probes import become
with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
    score.write("-500")  # the agent's, by its unit
become({uid}, {gid})
print(json.dumps([resource.getrlimit(resource.RLIMIT_DATA), int(open("/proc/self/oom_score_adj").read())]))
"""


def test_what_becomes_a_user_takes_no_more_memory_than_the_agent_grants() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIMITED.format(uid=JOB_UID, gid=JOB_GID)], capture_output=True, text=True,
        timeout=PATIENCE_S, check=True, env={**os.environ, **probe_environment(256 << 20)},
    )  # fmt: skip
    limit, score = json.loads(done.stdout)
    assert limit == [256 << 20] * 2 and score >= 0


@pytest.mark.parametrize("gid", [JOB_GID, None])
def test_what_becomes_a_user_keeps_nothing_of_root(gid: int | None) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BECOME.format(uid=JOB_UID, gid=gid)], capture_output=True, text=True, timeout=PATIENCE_S,
        check=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    uids, gids, groups, bounded, rights = json.loads(done.stdout)
    assert uids == [JOB_UID] * 3 and gids == [JOB_GID] * 3 and groups == [JOB_GID]
    assert (bounded, int(rights, 16)) == ("1", 0)
