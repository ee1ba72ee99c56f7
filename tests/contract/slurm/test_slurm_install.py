"""The hooks as an operator installs them: copied into prolog.d and epilog.d, the shipped fragment included, a real Slurm."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from nodes.fake_daemon import FakeDaemon
from servers.slurm_cluster import Cluster, missing

from sentinel.adapters.munge import Munge
from sentinel.adapters.slurm.commands import CommandWriter
from sentinel.errors import Refused

ROOT = Path(__file__).parents[3]
pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(bool(missing()), reason=f"needs slurm: {missing()}"),
]
FILES = {
    "prolog/10-sentinel": "prolog.d/10-sentinel",
    "epilog/10-sentinel": "epilog.d/10-sentinel",
    "prolog/task-sentinel": "sentinel/task-sentinel",
    "epilog/slurmctld-sentinel": "sentinel/slurmctld-sentinel",
    "deploy/slurm/health-check": "sentinel/health-check",
}


class Site:
    """A cluster of two nodes with the hooks of this repository in its etc, and a daemon that only keeps what it gets."""

    daemon: FakeDaemon

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.etc = cluster, cluster.folder / "etc"
        for source, target in FILES.items():
            path = self.etc / target
            path.parent.mkdir(parents=True, exist_ok=True)
            # What an operator would write into /etc/sentinel lies here.
            path.write_text((ROOT / source).read_text().replace("/etc/sentinel/", f"{self.etc}/sentinel/"))
            path.chmod(0o755)
        (self.etc / "prolog.d" / "90-site").write_text(f'#!/bin/sh\necho "$SLURM_JOB_ID" >> {self.etc}/site-prolog\n')
        (self.etc / "epilog.d" / "90-site").write_text(f'#!/bin/sh\necho "$SLURM_JOB_ID" >> {self.etc}/site-epilog\n')
        for name in ("prolog.d/90-site", "epilog.d/90-site"):
            (self.etc / name).chmod(0o755)
        fragment = (ROOT / "deploy/slurm/sentinel.conf").read_text()
        self.fragment = (
            uncommented(fragment).replace("/etc/slurm/", f"{self.etc}/").replace("Interval=300", "Interval=3")
        )
        (self.etc / "sentinel.conf").write_text(self.fragment)
        cluster.extra = f"include {self.etc}/sentinel.conf"
        for name in cluster.names:
            for part in ("jobs", "ended"):
                (self.run(name) / part).mkdir(parents=True)
            self.verdict(name, "OK", "ok nothing speaks against this node")

    def run(self, node: str) -> Path:
        return self.cluster.folder / "nodes" / node

    def configure(self, daemon: FakeDaemon) -> None:
        (self.etc / "sentinel" / "hook.conf").write_text(
            f"SENTINEL_RUN_DIR={self.cluster.folder}/nodes/%n\nSENTINEL_HOME={ROOT}\n"
            f"SENTINEL_PYTHON={sys.executable}\nSENTINEL_URL={daemon.url}\nSENTINEL_EVENT_S=60\nSENTINEL_DCGM_HOST=127.0.0.1:1\n"
            f"SENTINEL_MUNGE_SOCKET={self.cluster.folder}/munge/socket\nSENTINEL_RESUME={self.etc}/resume\n"
            f"PATH={self.cluster.environment['PATH']}\n"
        )

    def verdict(self, node: str, word: str, rest: str) -> None:
        """As an agent writes it; the health check leaves it alone for 15 s."""
        uptime_s = int(time.clock_gettime(time.CLOCK_BOOTTIME))
        (self.run(node) / "new").write_text(f"{word} {int(time.time())} {rest}\n{uptime_s}\n")
        (self.run(node) / "new").replace(self.run(node) / "verdict")

    def state(self, job: int) -> str:
        return self.cluster.command("squeue", "-h", "-j", str(job), "-o", "%T %r", check=False).strip()

    def reasons(self) -> str:
        return self.cluster.command("sinfo", "-R", "-h", "-o", "%N|%E")


def uncommented(fragment: str) -> str:
    """With the lines for sites without the agent switched on."""
    return re.sub(r"^#(HealthCheck)", r"\1", fragment, flags=re.M)


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    cluster = Cluster(2)
    site = Site(cluster)
    with cluster:
        site.daemon = FakeDaemon(Munge(str(cluster.folder / "munge" / "socket"))).start()
        site.configure(site.daemon)
        with pytest.MonkeyPatch.context() as patch:
            for name, value in cluster.environment.items():
                patch.setenv(name, value)
            yield site
        site.daemon.stop()


def test_every_line_is_taken(site: Site) -> None:
    """slurmctld shows each setting as the fragment has it, and complains of none."""
    lines = site.cluster.command("scontrol", "show", "config").splitlines()
    shown = {name.strip().lower(): value.strip() for name, _, value in (line.partition("=") for line in lines)}
    wanted = [line.partition("=")[::2] for line in site.fragment.splitlines() if line and not line.startswith("#")]
    assert len(wanted) > 10
    for name, value in wanted:
        seen = shown.get(name.lower(), shown.get(name.lower() + "[0]", ""))
        assert value.lower() in seen.lower().replace(" sec", ""), f"{name} is {seen!r}"
    log = (site.cluster.folder / "log" / "slurmctld.log").read_text().splitlines()
    names = "|".join(re.escape(name) for name, _ in wanted)
    complaints = [line for line in log if re.search(rf"error:.*(pars(e|ing)|unrecogni[sz]ed|{names})", line, re.I)]
    # The test's own slurm.conf has a line of that name, too; the fragment says what happens then.
    assert [line for line in complaints if "SchedulerParameters 1 specified more than once" not in line] == []


def test_a_job_passes_all_hooks(site: Site) -> None:
    """From the prolog, which tells the agent, through TaskProlog's words to the user, to the events of its end."""
    job = site.cluster.submit('echo "from $SENTINEL_RESUME_STEP at $SENTINEL_RESUME_PATH"\n', "--hold", "-w", "n1", "-o",
                              f"{site.etc}/job-%j.out", "--gres=gpu:2")  # fmt: skip
    (site.etc / "resume").mkdir(exist_ok=True)
    (site.etc / "resume" / f"{job}.env").write_text(
        f"SENTINEL_JOB={job}\nSENTINEL_ATTEMPT=0\nSENTINEL_RESUME_STEP=40\nSENTINEL_RESUME_PATH=/nvme/%N/step-40\n"
        "SENTINEL_MESSAGE=sentinel: restarted without n2, whose GPU 1 was lost; going on from step 40\n"
    )
    site.cluster.command("scontrol", "release", str(job))
    out = site.etc / f"job-{job}.out"
    site.cluster.wait(lambda: out.exists() and " at " in out.read_text(), "the job's output")
    assert "from 40 at /nvme/n1/step-40" in out.read_text()
    assert "sentinel: restarted without n2, whose GPU 1 was lost; going on from step 40" in out.read_text()
    ended = site.run("n1") / "ended"
    site.cluster.wait(lambda: any(ended.glob(f"{job}.0.*.json")), "the epilog")
    (told,) = ended.glob(f"{job}.0.*.json")
    known = json.loads(told.read_text())
    assert (known["job"], known["node"], known["stdout"], known["gpus"]) == (
        str(job),
        "n1",
        f"{site.etc}/job-%j.out",
        "0,1",
    )
    events = site.daemon.events
    assert site.daemon.wait(lambda: any(e["environment"].get("SLURM_JOB_ID") == str(job) for e in events))
    assert "error" not in site.reasons().lower()
    for hook in ("prolog", "epilog"):
        ran = site.etc / f"site-{hook}"
        site.cluster.wait(lambda ran=ran: str(job) in read(ran).split(), f"the site's own {hook}")  # type: ignore[misc]


def test_a_job_has_nothing_of_the_job_that_submitted_it(site: Site) -> None:
    """As where a restarted job's script submits the next job of its chain: sbatch hands all its variables on."""
    inherited = "SLURM_RESTART_COUNT=2,SLURM_STEP_ID=0,SENTINEL_JOB=7,SENTINEL_ATTEMPT=2,SENTINEL_RESUME_STEP=40"
    said = 'echo "$SENTINEL_JOB/$SENTINEL_ATTEMPT/$SENTINEL_RESUME_STEP"\n'
    out = site.etc / "chained.out"
    script = f"unset SLURM_EXPORT_ENV\n{said}srun sh -c {shlex.quote(said)}"  # srun sets again what --export named
    job = site.cluster.submit(script, "-o", str(out), f"--export=ALL,{inherited}")
    site.cluster.wait(lambda: out.exists() and out.read_text().count("\n") == 2, "the words of script and step")
    assert out.read_text() == f"{job}/0/\n" * 2


async def explained(site: Site) -> None:
    """Only Slurm's own words are replaced, and only on a node that is drained."""
    writer = CommandWriter(environment={"SLURM_CONF": str(site.cluster.conf)}, deadline_s=60.0)
    await writer.explain("n1", "sentinel:ab12 gpu_lost: GPU 1 is lost")
    assert "n1|sentinel:ab12 gpu_lost: GPU 1 is lost" in site.reasons()
    await writer.explain("n1", "sentinel:ab12 something else")
    assert "something else" not in site.reasons()
    with pytest.raises(Refused):
        await writer.explain("n2", "sentinel:ab12 it is in service")


def test_a_refused_node_is_drained_and_its_job_goes_elsewhere(site: Site) -> None:
    # A node that still ends a job is not given this one.
    site.cluster.wait(lambda: set(site.cluster.node_states().values()) == {"IDLE"}, "all nodes idle")

    def refused() -> bool:
        site.verdict("n1", "BAD", "gpu_lost GPU 1 is lost")  # again and again, as an agent does: it holds for 15 s
        return "n1|Prolog error" in site.reasons()

    assert not refused()
    job = site.cluster.submit("hostname; echo $SLURMD_NODENAME; sleep 1\n", "-o", f"{site.etc}/job-%j.out", "-N1")
    site.cluster.wait(refused, "the refused node")

    def elsewhere() -> bool:
        if "BeginTime" in site.state(job):  # Slurm itself would wait for two minutes
            site.cluster.command("scontrol", "update", f"JobId={job}", "StartTime=now", check=False)
        return "n2" in read(site.etc / f"job-{job}.out")

    site.cluster.wait(elsewhere, "the job elsewhere")
    assert "Held" not in site.state(job)
    asyncio.run(explained(site))
    assert (site.run("n2") / "ended").is_dir()
    # The site's prolog comes after ours in the folder: it is not run on a node that was refused.
    site.verdict("n1", "OK", "ok fine")
    site.cluster.command("scontrol", "update", "nodename=n1", "state=resume")
    site.cluster.wait(lambda: "n1" not in site.reasons(), "the node back")


def test_slurm_runs_the_health_check(site: Site) -> None:
    """Where no agent writes verdicts; the engine is away, so that nothing is known and nothing is drained."""
    (site.run("n2") / "verdict").unlink()
    site.cluster.wait(lambda: read(site.run("n2") / "verdict").endswith("\n"), "a verdict of the health check")
    assert (site.run("n2") / "verdict").read_text().startswith("UNKNOWN ")
    assert "n2" not in site.reasons()


def read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def test_the_fragment_names_files_that_are_shipped() -> None:
    text = (ROOT / "deploy/slurm/sentinel.conf").read_text()
    named = set(re.findall(r"/etc/slurm/([\w./-]+)", text)) - {"prolog.d/", "epilog.d/"}
    assert named == set(FILES.values()), "what the fragment names, and nothing else, is installed"
    for source in FILES:
        assert os.access(ROOT / source, os.X_OK)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="optional: systemd-analyze is not installed")
@pytest.mark.parametrize("unit", ["sentinel-agent.service", "sentinel-daemon.service"])
def test_systemd_takes_the_units(unit: str, tmp_path: Path) -> None:
    (tmp_path / unit).write_text((ROOT / "deploy/systemd" / unit).read_text())
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / unit)], capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    mine = [line for line in done.stderr.splitlines() if unit in line]
    assert mine == [], done.stderr


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="optional: systemd-analyze is not installed")
@pytest.mark.parametrize("unit", ["agent", "daemon"])
def test_exposure_of_a_unit_is_what_the_documentation_states(unit: str) -> None:
    done = subprocess.run(
        ["systemd-analyze", "security", "--no-pager", "--offline=true", f"deploy/systemd/sentinel-{unit}.service"],
        capture_output=True, text=True, timeout=60, check=False, cwd=ROOT,
    )  # fmt: skip
    if "unrecognized option" in done.stderr:
        pytest.skip("optional: systemd-analyze is too old for --offline")
    score = re.search(r"exposure level for \S+: ([\d.]+)", done.stdout)
    text = (ROOT / "docs/security.md").read_text()
    stated = re.search(r"daemon's unit ([\d.]+) \(.*?the agent's ([\d.]+)\.", text)
    assert score is not None and stated is not None, done.stderr
    # Releases of systemd count a little differently.
    assert float(score[1]) <= float(stated[2 if unit == "agent" else 1]) + 0.3
