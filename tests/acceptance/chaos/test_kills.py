"""kill -9 of the daemon at random moments while several jobs recover on a real Slurm: the same end as without.

    python -m pytest tests/acceptance/chaos/test_kills.py --seed 7 --kills 200

Every round has a lab of its own, four jobs and a failure under each; the daemon is killed again and again, also while it
starts, until all have recovered, and started again at once. Then everything is counted: exactly these drains, restarts,
holds and messages.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
from chaos.acts import thaw
from lab import processes
from stories.timeline import Job, Story, until

pytestmark = pytest.mark.slurm

MOST_KILLS = 15  # of a round: then it is left to finish
LONGEST_S = 5.0  # between a start and the next kill; a recovery takes about so long, on a busy machine more
CONVICTED = {
    48: "gpu_memory_ecc", 64: "gpu_memory_ecc", 74: "gpu_nvlink", 79: "gpu_fallen_off_bus", 95: "gpu_memory_ecc",
    119: "gpu_gsp_or_driver",
}  # fmt: skip


@dataclass(frozen=True)
class Failure:
    """What one job of a round meets, and what must come of it."""

    inject: tuple[str, ...]
    cause: str
    drains: bool = True
    held: bool = False


def failures(random: Random) -> list[Failure]:
    """Two that take a node out, and two that take none."""
    gpus = [Failure(("xid", "--gpu", "1", "--xid", str(number)), cause) for number, cause in CONVICTED.items()]
    lost = Failure(("node-crash",), "node_failure")
    contained = Failure(("xid", "--gpu", "0", "--xid", "94"), "gpu_memory_ecc", drains=False)
    crash = Failure(("crash",), "user_code", drains=False, held=True)
    hang = Failure(("hang",), "nccl_hang_unknown", drains=False)
    found = [*random.sample([*gpus, lost, lost], 2), *random.sample([contained, crash, hang], 2)]
    random.shuffle(found)
    return list(dict.fromkeys(found))


def recovered(job: Job, failure: Failure) -> bool:
    return job.held() if failure.held else job.restarts() == 1 and job.steps_again()


@pytest.fixture
def more_wanted(counted: Any) -> None:
    """Before a lab is brought up."""
    if counted.kills >= counted.kills_wanted:
        pytest.skip(f"optional: {counted.kills} kills are done")


@pytest.mark.usefixtures("more_wanted")
def test_the_same_end(stage: Story, kill_round: tuple[int, int], counted: Any):
    seed, number = kill_round
    random = Random(f"kills {seed}:{number}")
    # Steps that a busy machine does not make slow: people would be told of that, too.
    pairs = [(stage.job(2 if failure.inject[0] == "hang" else 1, pace=0.4), failure) for failure in failures(random)]
    done = 0
    try:
        for job, failure in pairs:
            of_node = failure.inject[0] in ("xid", "node-crash")
            stage.inject(*failure.inject, *(("--node", job.nodes[0]) if of_node else ("--job", str(job.id))))
            time.sleep(random.uniform(0, 1))
        most = min(MOST_KILLS, counted.kills_wanted - counted.kills)
        while done < most and not all(recovered(job, failure) for job, failure in pairs):
            until_killed(stage, random.uniform(0, LONGEST_S))
            done += 1
            print(f"kill {done}")
        if processes.known(stage.paths, "daemon") is None:
            stage.start_daemon()
        count(stage, pairs)
    finally:
        thaw(stage)
        counted.kills += done
    counted.kills_right += done


def until_killed(story: Story, after_s: float) -> None:
    """Killed after that time, and started at once, not waited for: the next kill may come while it loads."""
    time.sleep(after_s)
    story.kill_daemon()
    story.call_lab("services.start_daemon(lab)")


def count(story: Story, pairs: list[tuple[Job, Failure]]) -> None:
    until(story.quiet, lambda: f"the incidents to close:\n{story.daemon_log()[-3000:]}")
    story.expect(
        drains=[job.nodes[0] for job, failure in pairs if failure.drains],
        restarts=[job for job, failure in pairs if not failure.held],
        held=[job for job, failure in pairs if failure.held],
        messages=[{"cause": failure.cause, "job": job.id} for job, failure in pairs],
    )
    for job, failure in pairs:
        if not failure.held:
            step, tier = job.resumed()
            assert step in job.saved(tier), f"job {job.id} resumed from {step} ({tier})"
            assert not failure.drains or job.nodes[0] not in job.nodes_now()
