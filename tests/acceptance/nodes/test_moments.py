"""A node goes bad at a moment at which Slurm is busy with the job or with the node: completing, prolog, epilog, reboot."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from stories.other_jobs import script, standin
from stories.timeline import ROOT, Job, Story, until

pytestmark = [pytest.mark.slurm, pytest.mark.deep]

GPU = "gpu_fallen_off_bus"
_SLOW = """\
#!/bin/sh
# For a test: waits while that file is there, for two minutes at most.
[ -e {gate} ] || exit 0
touch {gate}.$SLURMD_NODENAME
for turn in $(seq 1200); do [ -e {gate} ] || exit 0; sleep 0.1; done
"""


class OfUser(Job):
    """Its log lies in a folder of its user's."""

    @property
    def log(self) -> str:
        path = self.lab.dir / "shared" / self.run.removesuffix("-run") / f"{self.run}-{self.id}.out"
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def lose_gpu(story: Story, node: str) -> None:
    story.inject("xid", "--node", node, "--gpu", "1", "--xid", "79")


@contextmanager
def slow(story: Story, hook: str) -> Iterator[Path]:
    """Slurm's prolog or epilog (after ours) takes until the block is over; gives the file that the hook waits for."""
    gate = story.paths.control / f"slow-{hook}"
    path = story.paths.etc / f"{hook}.d" / "50-slow"
    path.write_text(_SLOW.format(gate=gate), encoding="utf-8")
    path.chmod(0o755)
    gate.touch()
    try:
        yield gate
    finally:
        gate.unlink(missing_ok=True)


def entered(gate: Path, node: str) -> None:
    until(Path(f"{gate}.{node}").exists, f"the hook to run on {node}")


def stubborn(story: Story, run: str) -> Job:
    """Its processes ignore SIGTERM: it completes for KillWait, 30 s."""
    body = "trap '' TERM\nfor step in $(seq 6000); do echo \"step $step | loss 1.0 | step time 0.2 s\"; sleep 0.2; done"
    job = Job(story.lab, script(story, run, body, nodes=1), run)
    story.adopt(job, saved=False)
    job.wait_step(5)
    return job


def test_a_fault_while_a_cancelled_job_completes_brings_nothing_back(fresh: Story):
    story = fresh
    job = stubborn(story, "stubborn")
    (victim,) = job.nodes
    story.lab.slurm("scancel", str(job.id))
    until(lambda: "COMPLETING" in job.shown(), lambda: job.shown())
    lose_gpu(story, victim)
    story.jobs.remove(job)
    story.expect(drains=[victim], messages=[{"cause": GPU}])
    until(lambda: job.state() == "CANCELLED", lambda: job.shown())
    assert job.restarts() == 0


def test_a_fault_in_the_epilog_of_a_job_that_is_done_takes_the_node_out_and_leaves_the_job_done(fresh: Story):
    story = fresh
    job = story.job(1, "--steps", "60", saved=False)
    (victim,) = job.nodes
    with slow(story, "epilog") as gate:
        entered(gate, victim)
        assert "done: " in job.log
        lose_gpu(story, victim)
        until(lambda: victim in story.drained_now(), lambda: f"the drain:\n{story.daemon_log()[-3000:]}")
    story.expect(drains=[victim], messages=[{"cause": GPU}])
    assert (job.state(), job.restarts()) == ("COMPLETED", 0)


def test_a_fault_in_the_epilog_of_a_job_that_failed_restarts_it_elsewhere(fresh: Story):
    """It failed by itself, for a reason that says nothing; while its node cleans up, the GPU falls off the bus."""
    story = fresh
    job = story.job(1, "--gpu-faults-kill")
    (victim,) = job.nodes
    with slow(story, "epilog") as gate:
        story.inject("gpu-lost", "--node", victim, "--gpu", "0")
        entered(gate, victim)
        lose_gpu(story, victim)
        until(lambda: victim in story.drained_now(), lambda: f"the drain:\n{story.daemon_log()[-3000:]}")
    story.expect(drains=[victim], restarts=[job], messages=[{"job": job.id, "drained": [victim]}])
    assert victim not in job.nodes_now() and job.resumed()[0] in job.saved(job.resumed()[1])


def test_a_fault_in_the_prolog_moves_the_job_to_another_node(fresh: Story):
    """After our own look at the node: the job starts on a GPU that is gone."""
    story = fresh
    with slow(story, "prolog") as gate:
        words = ["--nodes", "1", "--run", "early", "--standin", "--steps", "100000", "--step-time", "0.1"]
        job = Job(story.lab, story.lab.submit(*words, "--local-every", "5", "--global-every", "10"), "early")
        story.jobs.append(job)
        (victim,) = until(job.nodes_now, lambda: job.shown())
        entered(gate, victim)
        lose_gpu(story, victim)
        until(lambda: victim in story.drained_now(), lambda: f"the drain:\n{story.daemon_log()[-3000:]}")
    story.expect(drains=[victim], restarts=[job], messages=[{"cause": GPU, "job": job.id}])
    assert victim not in job.nodes_now()


_REBOOT = """\
#!/bin/sh
# For a test: what a reboot looks like from outside. slurmd runs it, by way of a shell.
up=$$
while ! tr '\\0' ' ' < /proc/$up/cmdline | grep -q 'slurmd -D -N '; do
    up=$(sed 's/.*) . \\([0-9]*\\) .*/\\1/' /proc/$up/stat)
    [ "$up" -gt 1 ] || exit 1
done
node=$(tr '\\0' ' ' < /proc/$up/cmdline | sed 's/.* -N \\(n[0-9]*\\).*/\\1/')
PYTHONPATH={root}:{root}/deploy setsid {python} -c "
import os, sys
os.closerange(3, 1024)  # since 24.11 the port of a slurmd that was told to reconfigure is open in its children
from pathlib import Path
from lab import layout, processes, services, slurm
Path(sys.argv[1], 'control', 'reboots-' + sys.argv[2]).touch()
lab = layout.load(Path(sys.argv[1]))
for name in ('agent', 'slurmd'):
    found = processes.known(lab, name + '-' + sys.argv[2])
    found.send(9)
    processes.wait_gone([found], 20)
Path(sys.argv[1], 'control', 'rebooted-' + sys.argv[2]).touch()
processes.wait_until(Path(sys.argv[1], 'control', 'boot').exists, 120)
command = [slurm.binary('slurmd'), '-D', '-b', '-N', sys.argv[2]]  # -b: as after a boot
processes.start(lab, 'slurmd-' + sys.argv[2], command, log=lab.node(sys.argv[2]) / 'log' / 'slurmd.out')
services.start_agent(lab, sys.argv[2])
" {dir} "$node" > {dir}/log/reboot.log 2>&1 < /dev/null &
# slurmd of 26.05 kills the process group of a program that has ended: not before that one has left it.
until [ -e {dir}/control/reboots-"$node" ]; do sleep 0.1; done
"""


def test_a_reboot_that_an_operator_asked_for_during_a_recovery_is_no_failure(fresh: Story):
    """Of the other node of the job: it reboots as soon as the job has left it, and comes back by itself."""
    story = fresh
    program = story.paths.etc / "reboot"
    program.write_text(_REBOOT.format(root=ROOT, python=sys.executable, dir=story.lab.dir), encoding="utf-8")
    program.chmod(0o755)
    with story.paths.slurm_conf.open("a", encoding="utf-8") as conf:
        conf.write(f"RebootProgram={program}\nResumeTimeout=300\n")
    story.lab.slurm("scontrol", "reconfigure")
    job = story.job(2)
    other, victim = job.nodes
    story.lab.slurm("scontrol", "reboot", "ASAP", "nextstate=RESUME", "reason=firmware", other)
    lose_gpu(story, victim)
    until(
        (story.paths.control / f"rebooted-{other}").exists, lambda: story.lab.slurm("scontrol", "show", "node", other)
    )
    until(lambda: job.restarts() == 1 and job.steps_again(), lambda: f"{job.shown()}\n{story.daemon_log()[-3000:]}")
    story.settle(10)  # its agent says nothing, its slurmd does not answer: as long as any reboot takes
    (story.paths.control / "boot").touch()
    until(lambda: story.lab.slurm("sinfo", "-h", "-n", other, "-o", "%T").strip() == "idle", "the node to be back")
    (told,) = story.expect(drains=[victim], restarts=[job], messages=[{"cause": GPU, "job": job.id}])
    assert told["nodes"] == [victim] and not {other, victim} & set(job.nodes_now())


def test_a_bad_node_that_is_power_cycled_during_the_recovery_stays_out(fresh: Story):
    """By hand, at once: it is back before the job runs again, and nobody has tested it."""
    story = fresh
    job = story.job(2)
    victim = job.nodes[1]
    lose_gpu(story, victim)
    story.wait_daemon_log("kind=drain ")
    story.inject("node-crash", "--node", victim, "--disk", "kept")
    undo = "inject.undo(lab, ALL['node-crash'], None, as_json=True)"
    story.call_lab(f"from lab import inject; from lab.faults import ALL; {undo}")
    story.wait_agents()
    story.expect(drains=[victim], restarts=[job], messages=[{"cause": GPU, "job": job.id}])
    assert victim not in job.nodes_now()


def test_a_job_that_is_to_requeue_itself_soon_loses_its_gpu(story: Story):
    """``--signal``: it was told of its time limit and saves, when the GPU falls off the bus. One restart."""
    run = "limit"
    body = "trap 'echo warned; sleep 8; scontrol requeue $SLURM_JOB_ID; sleep 600' USR1\n"
    body += f"srun --kill-on-bad-exit=1 {standin(story, run)} &\nwhile :; do wait; done"
    job = Job(story.lab, script(story, run, body, "--time=2", "--signal=B:USR1@80", nodes=1), run)
    story.adopt(job)
    (victim,) = job.nodes
    job.wait_log("warned")
    lose_gpu(story, victim)
    story.expect(drains=[victim], restarts=[job], messages=[{"cause": GPU, "job": job.id}])
    assert victim not in job.nodes_now()


def test_jobs_of_ordinary_users_whose_files_nobody_else_may_read(story: Story):
    """Two users, each with a folder of their own, closed to others: log, checkpoints, local checkpoints."""
    users = {"games": 5, "www-data": 33}
    jobs = []
    for name, uid in users.items():
        home = story.paths.shared / name
        home.mkdir(mode=0o700)
        shutil.chown(home, uid, uid)
        words = standin(story, run := f"{name}-run").replace(str(story.paths.shared / run), str(home / "saves"))
        body = f"umask 077\nexport HOME={home}\nexec srun --kill-on-bad-exit=1 {words}"
        own = [f"--uid={uid}", f"--gid={uid}", f"--output={home}/%x-%j.out", f"--chdir={home}"]
        told = {"restart": True, "global": [str(home / "saves")], "local": [str(story.paths.node("%N") / "nvme" / run)]}
        own.append(f"--comment={json.dumps({'sentinel': told})}")
        job = OfUser(story.lab, script(story, run, body, *own, nodes=1), run)
        jobs.append(job)
    for job in jobs:
        story.adopt(job)
        lose_gpu(story, job.nodes[0])
    told = story.expect(
        drains=[job.nodes[0] for job in jobs],
        restarts=jobs,
        messages=[{"cause": GPU, "job": job.id} for job in jobs],
    )
    assert {message["job"]: message.get("user") for message in told} == dict(
        zip((j.id for j in jobs), users, strict=True)
    )
    for job in jobs:
        assert job.resumed()[0] in job.saved(job.resumed()[1])
        assert "a GPU fell off the bus" in job.log, "its own log says it, written as its user"


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_job_released_onto_a_node_that_has_just_crashed_goes_on_elsewhere(fresh: Story, nodes: int):
    """It was idle: neither Slurm nor we have noticed. Where it was the batch host, Slurm requeues the job itself."""
    story = fresh
    job = story.job(nodes)
    victim = job.nodes[-1]
    following = sorted(set(story.paths.names) - set(job.nodes))[0]
    lose_gpu(story, victim)
    with story.daemon_stopped_at("kind=write_resume "):
        story.inject("node-crash", "--node", following)
    until(lambda: following in story.drained_now(), lambda: f"the drain:\n{story.daemon_log()[-3000:]}")
    until(
        lambda: job.steps_again() and story.quiet() and not {victim, following} & set(job.nodes_now()),
        lambda: f"{job.shown()}\n{story.daemon_log()[-5000:]}",
    )
    story.settle(5)
    causes = [message["cause"] for message in story.messages()]
    story.expect(drains=[victim, following], restarts=[job] * job.restarts(), messages=causes)
    assert set(causes) == {GPU, "node_failure"}
    ends = [stages[-1] for stages in story.corrections().values() if "restarting" in stages]
    assert ends in (["running again"], ["resolved", "running again"]), story.corrections()
