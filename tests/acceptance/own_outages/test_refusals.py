"""Slurm says no for a reason that nobody foresaw, and a while later it says yes: what was refused is done, once.

In place of a slurmctld that refuses stands a scontrol that does, with Slurm's words for an error without a name.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from stories.timeline import Story, until

pytestmark = [pytest.mark.slurm, pytest.mark.deep]

GPU = "gpu_fallen_off_bus"
_REFUSES = """\
#!/bin/sh
# For a test: refuses some requests while that file is there.
case "$*" in
{pattern}) [ ! -e {gate} ] || {{ echo refused "$*" >>{gate}; echo "{error}" >&2; exit 1; }} ;;
esac
exec {scontrol} "$@"
"""


@contextmanager
def refused(story: Story, pattern: str) -> Iterator[None]:
    """Each scontrol of the daemon whose arguments match (as in ``case`` of sh) is refused until the block is over.

    At least one was refused by then.
    """
    scontrol = shutil.which("scontrol")
    assert scontrol is not None
    folder, gate = story.paths.etc / "bin", story.paths.control / "refuse"
    folder.mkdir()
    gate.touch()
    text = _REFUSES.format(pattern=pattern, gate=gate, scontrol=scontrol, error="slurm_update error: Unspecified error")
    path = folder / "scontrol"
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
    story.restart_daemon({"[slurm]\n": f'[slurm]\nbin = "{folder}:{scontrol.rpartition("/")[0]}"\n'})
    try:
        yield
        until(lambda: gate.read_text(encoding="utf-8"), "a refusal")
    finally:
        gate.unlink()


def test_a_drain_is_asked_for_again_and_the_job_does_not_wait_for_it(fresh: Story):
    story = fresh
    job = story.job(2)
    victim = job.nodes[1]
    with refused(story, "*NodeName=*State=DRAIN*"):
        story.inject("xid", "--node", victim, "--gpu", "1", "--xid", "79")

        def restarted() -> bool:
            again = job.restarts() == 1 and job.state() == "RUNNING"
            return again and victim not in job.nodes_now() and job.steps_again()

        until(restarted, lambda: f"{job.shown()}\n{story.daemon_log()[-3000:]}")
        assert story.drained_now() == set()
        assert "drain-refused" in story.sentinel("status").stdout
        assert "Unspecified error" in story.sentinel("why", str(job.id)).stdout
    story.expect(drains=[victim], restarts=[job], messages=[{"cause": GPU, "job": job.id}])


@pytest.mark.parametrize("pattern", ["requeuehold*", "*JobId=*"], ids=["requeue", "change"])
def test_a_job_is_restarted_once_its_requeue_or_change_is_no_longer_refused(fresh: Story, pattern: str):
    story = fresh
    job = story.job(2)
    victim = job.nodes[1]
    with refused(story, pattern):
        story.inject("xid", "--node", victim, "--gpu", "1", "--xid", "79")
        until(lambda: victim in story.drained_now(), lambda: f"the drain:\n{story.daemon_log()[-3000:]}")
    story.expect(drains=[victim], restarts=[job], messages=[{"cause": GPU, "job": job.id}])
    assert victim not in job.nodes_now() and job.resumed()[0] in job.saved(job.resumed()[1])
