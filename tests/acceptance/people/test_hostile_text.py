"""What users write and what their programs print is data: it forges no state and drains no node."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from stories.timeline import Job, Story, until

pytestmark = [pytest.mark.slurm, pytest.mark.deep]

NAME = """x' "y"; $(touch {mark}) `touch {mark}` JobState=FAILED
   JobState=NODE_FAIL Reason=JobHeldAdmin
NodeList=n8 Restarts=99 [bold]%N"""

LINES = """\
[ 4711.1] NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
<4>NVRM: Xid (PCI:0000:43:00): 48, DBE (double bit error) ECC Error
4,812,99,-;NVRM: Xid (PCI:0000:52:00): 95, Uncontained: LTC TAG (0x2,0x0). RST: Yes, D-RST: No
kernel: mce: [Hardware Error]: Machine check events logged
kernel: EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0
slurmd: error: Node n2 has low real_memory size; draining node
slurmstepd: error: *** JOB 1 ON n1 CANCELLED DUE TO NODE FAILURE ***
2026-01-01T00:00:00Z ERROR drain node=n1 node=n2
JobState=NODE_FAIL Reason=NodeDown NodeList=n[1-8]
\x1b[2J\x1b]0;sentinel drain n1\x07[red]n1[/red] \x00 \ufffd
step 1e309 | loss 0.0 | step time -1 s | 99 tokens/s
resumed from step 999999 (local) /etc/shadow
saved step 999999 (global)
"""


def submit(story: Story, script: str, *arguments: str, nodes: int = 2) -> Job:
    """An own batch script, as a user writes one."""
    run = f"own{len(story.jobs)}"
    path = story.lab.dir / "shared" / f"{run}.sh"
    path.write_text(f"#!/bin/bash\n{script}\n", encoding="utf-8")
    words = ["sbatch", "--parsable", f"--nodes={nodes}", "--exclusive", "--open-mode=append", "--requeue"]
    words += [f"--output={story.lab.dir}/shared/{run}-%j.out", f"--job-name={run}"]
    said = story.lab.slurm(*words, *arguments, str(path))
    return story.adopt(Job(story.lab, int(said.split(";")[0]), run, forges=True), saved=False)


def opted_in(story: Story) -> str:
    return "--comment=" + json.dumps({"sentinel": {"restart": True, "global": [f"{story.lab.dir}/shared/own"]}})


def told_of_all(story: Story, job: Job) -> bool:
    seen = story.view("incidents", job=job.id)
    return seen is not None and {row["id"] for row in seen["incidents"]} == {m["incident"] for m in story.messages()}


@pytest.mark.parametrize("end", ["goes on", "fails"])
def test_a_job_that_prints_fake_xids_and_kernel_lines_drains_nothing(story: Story, end: str):
    lines = story.lab.dir / "shared" / "lines.txt"
    lines.write_text(LINES, encoding="utf-8")
    after = "sleep 3; exit 1" if end == "fails" else "exec sleep 1000"
    job = submit(story, f"for i in $(seq 20); do cat {lines}; done; cat {lines} >&2; {after}", opted_in(story))
    job.wait_log("saved step 999999")
    if end == "goes on":
        story.settle(5)
        story.expect()
        return
    # It fails as often as it is restarted, until it is held: only then nothing more comes of it.
    until(lambda: job.held() and story.quiet() and told_of_all(story, job), "the end of the job to be judged")
    assert story.drains() == {}
    assert story.drained_now() == set()
    story.accept_what_became_of(job)


def test_a_job_that_prints_a_thousand_tracebacks_is_told_once(story: Story):
    text = 'Traceback (most recent call last):\\n  File "a.py", line 1, in <module>\\nKeyError: "x"\\n'
    job = submit(story, f"sleep 2; for i in $(seq 1000); do printf '{text}'; done; exit 1", opted_in(story))
    story.expect(held=[job], messages=["user_code"])


def test_a_name_and_a_comment_that_imitate_slurm(story: Story, tmp_path: Path):
    mark = tmp_path / "executed"
    roots = {"global": [f"{story.lab.dir}/shared/hostile"], "local": [f"{story.lab.dir}/nodes/%N/nvme/hostile"]}
    asked = json.dumps({"sentinel": {"restart": True, **roots}, "x": "JobState=FAILED Restarts=99 '\"; $(reboot)"})
    comment = asked.replace(', "x"', ',\n\n   \n"x"')  # JSON may have lines, too
    job = story.job(
        2,
        "--",
        f"--job-name={NAME.format(mark=mark)}",
        f"--comment={comment}",
        f"--output={story.lab.dir}/shared/hostile-%j.out",
        run="hostile",
    )
    victim = job.nodes[1]
    story.inject("xid", "--node", victim, "--gpu", "0", "--xid", "79")
    (told,) = story.expect(drains=[victim], restarts=[job], messages=["gpu_fallen_off_bus"])
    assert job.resumed()[0] in job.saved(job.resumed()[1])
    assert told["title"].count("\n") == 0
    for command in (["status"], ["jobs"], ["nodes"], ["incidents"], ["why", told["incident"]], ["history"]):
        shown = story.sentinel(*command).stdout
        assert not any(line.startswith(("   JobState=NODE_FAIL", "NodeList=n8")) for line in shown.splitlines())
    rows = [json.loads(line) for line in story.sentinel("jobs", "--json").stdout.splitlines()]
    assert {row["state"] for row in rows if row["job"] == job.id} <= {"running", "requeued", "failed", "pending"}
    assert not mark.exists()


def test_a_waiting_job_whose_name_is_no_text_blinds_nobody(story: Story):
    """It waits, held, while another job's GPU fails: that is seen and acted on as ever."""
    name, written = os.fsdecode(b"evil\xff\xed\xa0\x80"), "evil\\xff\\xed\\xa0\\x80"
    held = story.lab.slurm(
        "sbatch", "--parsable", "--hold", f"--job-name={name}", f"--comment={name}", "--wrap=sleep 1"
    ).strip()
    job = story.job(2)
    victim = job.nodes[1]
    story.inject("xid", "--node", victim, "--gpu", "0", "--xid", "79")
    story.expect(drains=[victim], restarts=[job], messages=["gpu_fallen_off_bus"])
    status = json.loads(story.sentinel("status", "--json").stdout)
    assert status["slurm"]["answers"] and status["slurm"]["unread"] == [] and status["jobs"]["pending"] == 1
    story.lab.slurm("scontrol", "release", held)

    def shown() -> bool:
        return written in story.sentinel("jobs", "--json").stdout.replace("\\\\", "\\")

    until(shown, "the job under its name")


def test_a_comment_that_cannot_be_understood_is_said_and_nothing_restarted(story: Story):
    broken = ('{"sentinel": {"restart": true, "global": "relative"}}', '{"sentinel": ', '{"sentinel": {"restrat": 1}}')
    jobs = [story.job(1, "--", f"--comment={comment}") for comment in broken]
    for job in jobs:
        story.inject("crash", "--job", str(job.id), "--rank", "0")
    for told in story.expect(messages=[{"cause": "user_code", "job": job.id} for job in jobs]):
        assert f"Job {told['job']} did not ask to be restarted" in told["text"]
        assert "comment" in told["text"]
