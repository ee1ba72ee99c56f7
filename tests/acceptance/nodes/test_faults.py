"""The five faults of the demo at other nodes, GPUs, ranks and moments; Xids by number."""

from __future__ import annotations

import importlib.util
import time

import pytest
from stories.other_jobs import script, standin
from stories.timeline import PATIENCE_S, STEP, Job, Story, until

pytestmark = pytest.mark.slurm

DRAINED = {
    48: "gpu_memory_ecc",
    64: "gpu_memory_ecc",
    74: "gpu_nvlink",
    79: "gpu_fallen_off_bus",
    95: "gpu_memory_ecc",
    119: "gpu_gsp_or_driver",
}


@pytest.mark.parametrize("place", [pytest.param(0, marks=pytest.mark.deep), 2])
def test_a_gpu_falls_off_the_bus(story: Story, place: int):
    job = story.job(3)
    victim = job.nodes[place]
    story.inject("xid", "--node", victim, "--gpu", str(3 - place), "--xid", "79")
    (told,) = story.expect(drains=[victim], restarts=[job], messages=["gpu_fallen_off_bus"])
    assert told["gpus"] == [f"{victim}:{3 - place}"]
    assert told["drained"] == [victim]
    assert victim not in job.nodes_now()
    assert told["resumed_step"] in (None, job.resumed()[0])  # None: told before it was chosen, on a busy machine
    assert job.resumed()[0] <= job.reached()
    assert job.resumed()[0] in job.saved(job.resumed()[1])


@pytest.mark.parametrize("numbers", [(48, 64, 74, 79), (95, 119)], ids=str)
def test_xids_that_convict_their_gpus(story: Story, numbers: tuple[int, ...]):
    """Under as many jobs at once, each of one node: every one is its own failure."""
    jobs = {number: story.job(1, saved=False) for number in numbers}
    for job in jobs.values():
        story.wait_saved(job)
    for number, job in jobs.items():
        story.inject("xid", "--node", job.nodes[0], "--gpu", str(number % 4), "--xid", str(number))
    victims = {number: job.nodes[0] for number, job in jobs.items()}
    told = story.expect(
        drains=victims.values(),
        restarts=jobs.values(),
        messages=[{"cause": DRAINED[n], "job": job.id, "nodes": [victims[n]]} for n, job in jobs.items()],
    )
    assert {tuple(m["gpus"]) for m in told} == {(f"{victims[n]}:{n % 4}",) for n in numbers}
    for number, job in jobs.items():
        assert victims[number] not in job.nodes_now()
        assert job.resumed()[0] in job.saved("global")


def test_a_contained_memory_error_restarts_and_drains_nothing(story: Story):
    job = story.job(2)
    story.inject("xid", "--node", job.nodes[1], "--gpu", "0", "--xid", "94")
    story.expect(restarts=[job], messages=["gpu_memory_ecc"])
    assert job.resumed()[0] is not None


@pytest.mark.deep
def test_xids_of_the_program_drain_nothing(fresh: Story):
    """Where the GPUs have no past: the same Xid under several jobs would speak against the GPU."""
    jobs = {number: fresh.job(1, "--gpu-faults-kill") for number in (13, 31, 43)}
    for number, job in jobs.items():
        fresh.inject("xid", "--node", job.nodes[0], "--gpu", "1", "--xid", str(number))
    fresh.expect(held=jobs.values(), messages=[{"cause": "user_code", "job": job.id} for job in jobs.values()])


@pytest.mark.deep
def test_xids_that_mean_nothing_alone_are_not_even_shown(story: Story):
    jobs = {number: story.job(2) for number in (45, 63)}
    for number, job in jobs.items():
        story.inject("xid", "--node", job.nodes[1], "--gpu", "2", "--xid", str(number))
    until(lambda: story.daemon_log().count("evidence-noted") >= 2, "both to be judged")
    for job in jobs.values():
        job.wait_step(job.step + 20)
    story.expect()
    for job in jobs.values():
        assert story.view("incidents", job=job.id) == {"incidents": []}


@pytest.mark.deep
@pytest.mark.torch
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs PyTorch")
def test_a_real_training_job_survives_a_lost_gpu(story: Story):
    job = story.job(2, torch=True)
    victim = job.nodes[0]
    story.inject("xid", "--node", victim, "--gpu", "0", "--xid", "79")
    story.expect(drains=[victim], restarts=[job], messages=["gpu_fallen_off_bus"], within_s=240)
    assert job.resumed()[0] in job.saved(job.resumed()[1])
    losses: dict[str, set[str]] = {}
    for step, loss in STEP.findall(job.log):
        losses.setdefault(step, set()).add(loss)
    assert all(len(seen) == 1 for seen in losses.values()), "a repeated step had another loss"


@pytest.mark.deep
def test_a_gpu_falls_off_the_bus_right_after_the_start(story: Story):
    """Before there is any checkpoint, perhaps before any step."""
    job = story.job(2, saved=False)
    victim = job.nodes[1]
    story.inject("xid", "--node", victim, "--gpu", "2", "--xid", "79")
    story.expect(drains=[victim], restarts=[job], messages=["gpu_fallen_off_bus"])
    assert job.resumed() == (None, "")


@pytest.mark.deep
@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.deep), 2])
def test_a_rank_stops(story: Story, rank: int):
    job = story.job(3)
    story.inject("hang", "--job", str(job.id), "--rank", str(rank))
    (told,) = story.expect(restarts=[job], messages=["nccl_hang_unknown"])
    assert told["ranks"] == [rank]
    assert job.resumed()[0] in job.saved(job.resumed()[1])


@pytest.mark.deep
def test_a_rank_stops_right_after_the_start(story: Story):
    job = story.job(2, saved=False)
    job.wait_step(1)
    story.inject("hang", "--job", str(job.id), "--rank", "1")
    story.expect(restarts=[job], messages=["nccl_hang_unknown"])


@pytest.mark.deep
def test_a_restarted_job_stops_before_its_first_step(fresh: Story):
    """How long it may start is known from its first attempt. The next attempt is elsewhere, and goes on."""
    story, run = fresh, "starts"
    stops = 'if [ "${SLURM_RESTART_COUNT:-0}" = 1 ]; then echo "building the model"; sleep 3600; fi'
    job = Job(story.lab, script(story, run, f"{stops}\nexec srun --kill-on-bad-exit=1 {standin(story, run)}"), run)
    story.adopt(job)
    job.wait_step(60)  # a rhythm, not a line that looks like a step
    victim = job.nodes[1]
    story.inject("xid", "--node", victim, "--gpu", "0", "--xid", "79")
    messages = ["gpu_fallen_off_bus", {"cause": "nccl_hang_unknown", "job": job.id}]
    story.expect(drains=[victim], restarts=[job, job], messages=messages, within_s=2 * PATIENCE_S)
    assert job.resumed()[0] in job.saved(job.resumed()[1])


@pytest.mark.deep
@pytest.mark.parametrize("place", [pytest.param(0, marks=pytest.mark.deep), 2])
def test_a_node_is_lost_with_its_disk(story: Story, place: int):
    job = story.job(3)
    victim = job.nodes[place]
    story.inject("node-crash", "--node", victim)
    (told,) = story.expect(drains=[victim], restarts=[job], messages=["node_failure"])
    assert told["nodes"] == [victim]
    assert victim not in job.nodes_now()
    step, tier = job.resumed()
    assert step in job.saved(tier)


@pytest.mark.deep
def test_a_node_is_lost_right_after_the_start(story: Story):
    job = story.job(2, saved=False)
    victim = job.nodes[0]
    story.inject("node-crash", "--node", victim)
    story.expect(drains=[victim], restarts=[job], messages=["node_failure"])
    assert job.resumed() == (None, "")


@pytest.mark.deep
@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.deep), 2])
def test_an_exception_holds_the_job_and_tells_its_user(story: Story, rank: int):
    job = story.job(3)
    story.inject("crash", "--job", str(job.id), "--rank", str(rank))
    (told,) = story.expect(held=[job], messages=["user_code"])
    assert told["ranks"] in ([], [rank])  # Python's traceback does not say whose it is; another rank must not be named
    assert told["job"] == job.id and told["user"]
    assert f"scontrol release {job.id}" in told["text"]


@pytest.mark.deep
def test_the_newest_checkpoint_is_torn(story: Story):
    """An operator requeues the job, which picks the newest by itself and falls over it."""
    job = story.job(2)
    begun = len(job.log)
    story.lab.slurm("scontrol", "requeue", str(job.id))
    until(lambda: job.state() == "PENDING", "the requeued job to be pending")
    # Only now: while it runs it may save another one.
    (spoilt,) = story.inject("corrupt-checkpoint", "--tier", "global", "--how", "truncate", "--run", job.run)
    time.sleep(2)  # within the same second slurmd takes the new start for the one that was just revoked
    story.lab.slurm("scontrol", "update", f"JobId={job.id}", "StartTime=now")
    job.wait_log("Traceback", after=begun)
    story.expect(restarts=[job, job], messages=["checkpoint_corrupt"])
    assert job.resumed()[0] != spoilt["step"]


@pytest.mark.deep
def test_a_node_that_was_returned_is_not_convicted_again_by_what_it_was_drained_for(story: Story):
    """An operator repairs it and returns it within the minute; then another node of its next job fails."""
    job = story.job(2)
    first = job.nodes[0]
    story.inject("xid", "--node", first, "--gpu", "0", "--xid", "79")
    story.expect(drains=[first], restarts=[job], messages=["gpu_fallen_off_bus"])
    story.cancel(job)
    story.lab.run("inject", "xid", "--undo")
    story.reboot([first])
    story.sentinel("release", first, "--yes")
    job = story.job(2, "--", f"--nodelist={first}")
    victim = next(name for name in job.nodes if name != first)
    story.inject("xid", "--node", victim, "--gpu", "1", "--xid", "79")
    story.expect(drains=[victim], returns=[first], restarts=[job], messages=[{"gpus": [f"{victim}:1"]}])
