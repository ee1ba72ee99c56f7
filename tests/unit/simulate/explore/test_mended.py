"""Histories that explore found and that broke a promise once; each is here as it happened, whatever the seeds mean later."""

from __future__ import annotations

from sentinel.simulate.histories import Happening, History, JobSpec, Setup
from sentinel.simulate.world import World

TWO = Setup(nodes=8, jobs=(JobSpec(), JobSpec(user="bob")))
THREE = (JobSpec(nodes=2), JobSpec(nodes=2, user="bob"), JobSpec(nodes=2, user="eve"))


def ran(setup: Setup, *happenings: Happening, story: str = "anything") -> World:
    history = History(1, 233, story, setup, happenings, max(one.at_s for one in happenings) + 1285.0)
    world = World(history)
    assert world.run() == []
    return world


def many(drain_fraction: float, per_hour: int) -> Setup:
    return Setup(nodes=16, jobs=THREE, limits={"drain_fraction": drain_fraction, "drain_per_hour": per_hour})


def test_two_incidents_do_not_recover_the_same_attempt_side_by_side() -> None:
    """A job is taken along from a node that waits for the budget, while another node of it fails."""
    world = ran(
        many(0.1, 4),
        Happening("gpu-off-bus", 52.100349648620536, "job1/1"),
        Happening("gpu-firmware", 57.100349648620536, "job1/0"),
        Happening("gpu-off-bus", 62.100349648620536, "job2/0"),
        Happening("gpu-firmware", 67.10034964862054, "job2/1"),
    )
    stopped = [(job, attempt) for _, _, job, attempt in world.observer.stops]
    assert len(stopped) == len(set(stopped)) > 3


def test_a_node_that_waits_with_one_that_is_out_is_drained_when_there_is_room() -> None:
    ran(
        many(0.1, 6),
        Happening("node-lost", 44.5, "job2/0"),
        Happening("gpu-memory", 54.5, "job2/1"),
        Happening("repair", 444.5),
    )


def test_a_node_that_a_person_put_back_takes_no_budget_from_the_other_one_of_its_incident() -> None:
    world = ran(
        many(0.1, 2),
        Happening("gpu-memory", 47.51, "job0/1"),
        Happening("gpu-memory", 48.01, "job0/0"),
        Happening("repair", 448.51),
    )
    assert [world.slurm.nodes[name].drained for name in ("n1", "n2")] == [True, False]


def test_a_job_whose_requeue_slurmctld_forgot_is_stopped_again() -> None:
    """Slurm had counted the restart, and counted it back: that is the same attempt."""
    crash = Happening("slurmctld-crash", 49.735, data={"for_s": 200.0})
    history = History(21, 277, "slurmctld", TWO, (Happening("node-lost", 41.064, "job1/0"), crash), 1349.7)
    assert World(history).run() == []


def test_a_drained_node_that_is_set_down_costs_the_budget_of_an_hour_once() -> None:
    """Two nodes of one job, lost and broken; a third node waits for the budget, until one of them is repaired."""
    ran(
        many(0.1, 2),
        Happening("node-lost", 81.446, "job2/1"),
        Happening("gpu-memory", 81.946, "job2/0"),
        Happening("gpu-memory", 82.946, "n12"),
        Happening("repair", 481.446),
    )


def test_a_drain_that_a_person_took_back_at_once_costs_the_budget_of_an_hour() -> None:
    setup = Setup(nodes=16, jobs=THREE, limits={"drain_fraction": 0.1, "drain_per_hour": 2}, switch_nodes=4)
    faults = (Happening("gpu-memory", 59.198, "job1/0"), Happening("gpu-off-bus", 89.198, "job2/1"))
    repairs = (Happening("repair", 459.198), Happening("repair", 460.226))
    world = ran(setup, *faults, Happening("gpu-firmware", 149.198, "n1"), *repairs, story="many-nodes")
    assert len(world.observer.drains) == 2


def test_a_heterogeneous_job_resumes_from_before_the_bad_numbers_of_any_component() -> None:
    setup = Setup(jobs=(JobSpec(kind="het"),), mode="suggest", restart_mode="suggest", approval_s=300.0)
    approved = Happening("approve", 95.61, data={"part": False, "late_s": 0.0})
    ran(setup, Happening("bad-numbers", 46.301, "job0/0"), approved, story="suggest")


def test_what_opened_an_incident_stays_with_it_where_its_lost_node_answers_again() -> None:
    """A program ran out of memory, and its node was rebooted while slurmctld was gone: nothing opens the incident again."""
    setup = Setup(nodes=8, jobs=(JobSpec(nodes=3), JobSpec(nodes=3)), spares=2)
    gone = Happening("slurmctld-gone", 70.596, data={"for_s": 90.0})
    world = ran(
        setup, gone, Happening("out-of-memory", 74.207, "job1/1"), Happening("reboot", 80.467, "job1/0"), story="spares"
    )
    assert world.slurm.jobs[102].state == "RUNNING" and world.observer.drains == []


def test_a_hold_of_a_running_job_outlasts_its_failure() -> None:
    world = ran(Setup(), Happening("hold", 65.0, "job0"), Happening("checkpoint-torn", 75.4, "job0/0"))
    assert world.slurm.jobs[101].held and world.slurm.jobs[101].state == "PENDING"


def test_all_components_of_a_heterogeneous_job_resume_by_order() -> None:
    world = ran(Setup(jobs=(JobSpec(kind="het"),)), Happening("gpu-off-bus", 80.0, "job1/0"))
    again = [began for began in world.observer.attempts if began.attempt == 1]
    assert sorted((began.job, began.by_order, began.resumed) for began in again) == [(101, True, 25), (102, True, 25)]


def test_a_drain_after_the_breaker_has_let_go_is_told_of() -> None:
    """Its notice had joined the breaker's; what was done in the end was told nobody."""
    faults = [("gpu-firmware", 35.3, "job2/1"), ("gpu-firmware", 40.3, "job0/1"), ("gpu-firmware", 45.3, "job0/1"),
              ("gpu-off-bus", 50.3, "job1/0"), ("gpu-firmware", 55.3, "job2/1"), ("gpu-memory", 65.3, "n13")]  # fmt: skip
    world = ran(many(0.5, 6), *(Happening(what, at_s, who) for what, at_s, who in faults))
    assert any(drain.node == "n13" for drain in world.observer.drains)


def test_a_job_that_slurm_restarted_itself_needs_no_person() -> None:
    """A lost node; the daemon was killed before the requeue and away for longer than Slurm waits."""
    killed = Happening("kill", 50.133, data={"nth": 6, "after": True, "down_s": 150.0})
    world = ran(Setup(), Happening("node-lost", 50.133, "job0/1"), killed)
    assert [str(incident.state) for incident in world.store.incidents.values()] == ["closed"]


def test_the_next_attempt_leaves_a_node_that_its_own_incident_convicts_later() -> None:
    """A storm: the job is let go to a node, and a moment later its incident convicts that one as well."""
    storm = Happening("storm", 52.282246397542735, data={"nodes": 6})
    history = History(31, 863, "many-nodes", many(0.25, 4), (storm,), 952.3)
    assert World(history).run() == []


def test_a_daemon_that_cannot_save_its_start_ends_and_is_started_again() -> None:
    """It went on half begun, and heard nothing of the next failure."""
    killed = Happening("kill", 38.358, data={"nth": 4, "after": True, "down_s": 2.0})
    full = Happening("store-full", 40.335, data={"for_s": 10.0})
    world = ran(TWO, Happening("gpu-memory", 38.358, "job0/1"), killed, full,
                Happening("disk-full", 87.3, "job0/0"))  # fmt: skip
    assert world.lives > 2


def test_an_operator_whose_command_died_with_the_daemon_gives_it_again() -> None:
    pause, resume = Happening("pause", 60.629), Happening("resume", 260.629)
    for nth in range(3):
        killed = Happening("kill", 260.6, data={"nth": nth, "after": False, "down_s": 0.5})
        world = ran(Setup(), Happening("gpu-off-bus", 60.3, "job0/1"), pause, killed, resume)
        assert not world.store.settings["paused"] and world.slurm.jobs[101].restarts == 1


def test_a_release_that_was_on_its_way_when_the_job_was_cancelled_is_no_harm() -> None:
    history = History(77, 466, "people", TWO, (
        Happening("diagnostic-failed", 35.872658943735495, "n8"), Happening("reboot", 36.2562, "job1/1"),
        Happening("cancel", 46.146, "job1"),
    ), 1000.0)  # fmt: skip
    assert World(history).run() == []


def test_a_lost_node_that_was_rebooted_before_anybody_could_look_need_not_go() -> None:
    world = ran(
        TWO,
        Happening("node-lost", 43.301, "job0/1"),
        Happening("store-full", 45.092, data={"for_s": 120.0}),
        Happening("reboot", 57.442, "job0/1"),
        Happening("application-xid", 75.609, "job0/1"),
    )
    assert not world.slurm.nodes["n2"].out and world.slurm.jobs[101].state == "RUNNING"


def test_a_heterogeneous_job_that_slurm_requeued_itself_is_held_with_all_its_components() -> None:
    world = ran(Setup(jobs=(JobSpec(kind="het"),)), Happening("node-lost", 45.126, "n4"))
    assert [world.slurm.jobs[part].state for part in (101, 102)] == ["RUNNING", "RUNNING"]


def test_a_job_cancelled_inside_our_requeue_runs_when_a_person_requeues_it() -> None:
    """Slurm keeps the hold of our requeue: the job stayed held, and nobody said why."""
    fault = Happening("gpu-lost-silently", 50.297, "job0/1")
    world = ran(TWO, fault, Happening("cancel", 51.188, "job0"), Happening("requeue", 55.182, "job0"))
    assert world.slurm.jobs[101].state == "RUNNING"


def test_a_drain_that_was_looked_for_before_the_daemon_stood_still_is_looked_for_again() -> None:
    """A person drains the node while the daemon is stopped between its look and its request: the reason stays theirs."""
    for from_s in range(38_588, 38_612, 4):
        frozen = Happening("freeze", from_s / 1000, data={"for_s": 100.0})
        world = ran(TWO, Happening("gpu-lost-silently", 38.201, "job1/1"), frozen, Happening("drain", 47.878, "n4"))
        assert world.slurm.nodes["n4"].drained


def test_a_hold_of_a_running_job_outlasts_the_loss_of_its_node() -> None:
    """Slurm requeues it as soon as the node is down, and counts the restart while its epilogs run: it was released."""
    world = ran(Setup(nodes=8), Happening("hold", 58.247, "job0"), Happening("node-lost", 62.0, "job0/1"))
    assert world.slurm.jobs[101].held and world.slurm.jobs[101].state == "PENDING"


def test_a_node_put_back_before_the_daemon_was_killed_is_left_in_service() -> None:
    """The next daemon knew the drain, which a job still excludes its node for, and not that snapshots had shown it saved."""
    setup = Setup(nodes=8, jobs=(JobSpec(), JobSpec(user="bob")), returns=True)
    ran(
        setup, Happening("gpu-lost-silently", 40.879, "job0/1"), Happening("repair", 123.208),
        Happening("slurmctld-crash", 252.618, data={"for_s": 5.0}),
        Happening("kill", 308.582, data={"nth": 33, "after": False, "down_s": 150.0}), story="returned",
    )  # fmt: skip


def test_a_stop_does_not_wait_for_an_attempt_that_a_person_began_meanwhile() -> None:
    """A person releases the job while it is being stopped: the next attempt's hold by its own failure was taken off."""
    history = History(12, 1321, "reserved", TWO, (
        Happening("gpu-lost-silently", 44.525, "job1/0"), Happening("release", 46.299, "job1"),
        Happening("killed-process", 54.356, "job1/1"),
    ), 400.0)  # fmt: skip
    world = World(history)
    assert world.run() == []
    assert world.slurm.jobs[102].held and world.slurm.jobs[102].state == "PENDING"


def test_a_job_that_is_cancelled_while_our_requeue_is_on_its_way_stays_cancelled() -> None:
    """Slurm has ended jobs run again, too, unless the request says "Incomplete"."""
    for hundredth in range(14, 23):
        cancelled = Happening("cancel", 60.4 + hundredth / 100, "job0")
        world = ran(Setup(nodes=8), Happening("gpu-lost-silently", 60.0, "job0/0"), cancelled, story="people")
        assert [began.attempt for began in world.observer.attempts if began.job == 101] == [0]


def test_a_cancellation_that_slurmctld_forgot_is_nobodys_will_any_more() -> None:
    """And the launcher that waited in the job's allocation for an order was gone with it: it failed a minute later."""
    setup = Setup(nodes=8, jobs=(JobSpec(nodes=3, trains_on=3), JobSpec(user="bob")))
    world = ran(
        setup, Happening("program-error", 63.325, "job0/2"), Happening("cancel", 72.055, "job0"),
        Happening("slurmctld-crash", 72.227, data={"for_s": 2.0}), story="in-allocation",
    )  # fmt: skip
    assert world.slurm.jobs[101].state == "RUNNING"


def test_a_job_that_slurm_could_not_start_once_is_restarted_after_its_next_failure() -> None:
    """A node of its restart had just died while the daemon stood still. Slurm's JSON has such a job as interactive."""
    world = ran(
        Setup(), Happening("gpu-off-bus", 60.0, "job0/1"), Happening("node-lost", 60.4, "n3"),
        Happening("freeze", 64.0, data={"for_s": 20.0}), Happening("gpu-off-bus", 400.0, "job0/1"),
    )  # fmt: skip
    assert world.slurm.jobs[101].launch_failed
    assert [began.attempt for began in world.observer.attempts if began.job == 101] == [0, 2, 3]


def test_what_broke_while_nothing_could_be_judged_is_judged_by_the_next_daemon() -> None:
    """Slurm is gone; the evidence was saved with the incident when its plan was begun anew, before the kill."""
    history = History(101, 1264, "anything", TWO, (
        Happening("gpu-firmware", 37.15265457907045, "job1/0"),
        Happening("slurmctld-crash", 38.93607811062872, data={"for_s": 90.0}),
        Happening("gpu-off-bus", 64.20587291027891, "job1/1"), Happening("node-lost", 72.54142102154067, "job0/0"),
        Happening("kill", 72.54142102154067, data={"nth": 43, "after": True, "down_s": 60.0}),
    ), 1097.9432731097747)  # fmt: skip
    assert World(history).run() == []


def test_a_list_that_is_written_again_after_the_release_lends_nothing_to_a_job_that_runs() -> None:
    """With its new list alone the job started at once, before the reservation of spare nodes was named."""
    history = History(201, 490, "spares", Setup(nodes=8, jobs=(JobSpec(nodes=3), JobSpec(nodes=3)), spares=2), (
        Happening("gpu-memory-contained", 40.09450649047325, "job1/1"), Happening("gpu-off-bus", 50.24734103057012, "n7"),
        Happening("repair", 240.09450649047324),
    ), 1140.0945064904731)  # fmt: skip
    assert World(history).run() == []


def test_what_a_person_does_while_slurmctld_is_dead_is_done_once_it_is_back() -> None:
    """A node seemed to be put back meanwhile, which nobody could tell from a drain that slurmctld had forgotten."""
    world = ran(
        Setup(nodes=8, jobs=(JobSpec(), JobSpec(user="bob"))),
        Happening("reboot", 68.94, "job1/0"),
        Happening("kill", 76.34, data={"nth": 69, "down_s": 150.0}),
        Happening("slurmctld-crash", 86.136, data={"for_s": 200.0}),
        Happening("resume-node", 171.726, "n3"),
    )
    assert world.observer.resumed["n3"] > 86.136 + 200.0 and world.slurm.jobs[102].state == "RUNNING"


def test_a_node_put_back_before_slurmctld_died_and_before_anybody_looked_may_be_drained_again() -> None:
    """Nothing tells it from one whose drain slurmctld had not saved."""
    ran(
        Setup(nodes=8, jobs=(JobSpec(), JobSpec(user="bob")), returns=True),
        Happening("diagnostic-failed", 34.443, "n6"),
        Happening("repair", 44.652),
        Happening("slurmctld-crash", 53.611, data={"for_s": 5.0}),
        story="returned",
    )


def test_a_node_put_back_between_the_two_requests_of_one_step_is_no_second_drain() -> None:
    for hundredth in range(30):
        ran(TWO, Happening("reboot", 39.181, "job1/0"), Happening("resume-node", 47.5 + hundredth / 100, "job1/0"))


def test_an_end_that_was_not_final_before_the_daemon_died_is_not_its_to_know() -> None:
    """The node boots, so the job is completing for a minute; Slurm forgets it before the next daemon starts."""
    happenings = (
        Happening("kill", 30.97, data={"after": True, "down_s": 400.0, "nth": 48}),
        Happening("out-of-memory", 79.49, "job0/0"),
        Happening("reboot", 80.091, "job0/0"),
    )
    world = World(History(9101, 358, "anything", TWO, happenings, 640.0))
    assert world.run() == []
    ((died_s, _),) = world.away
    final_s = world.final_s(101)
    assert final_s is not None
    assert died_s < final_s


def test_an_end_that_a_daemon_saw_and_had_not_reported_when_it_was_killed_is_reported_by_the_next() -> None:
    """The first snapshot after slurmctld was gone answers the judgement of bad numbers, which leaves the job running."""
    happenings = (
        Happening("time-limit", 49.332, "job0/1"),
        Happening("gpu-lost-silently", 75.763, "job0/0"),
        Happening("kill", 75.763, data={"after": False, "down_s": 10.0, "nth": 38}),
        Happening("bad-numbers", 78.457, "job1/0"),
        Happening("slurmctld-gone", 84.477, data={"for_s": 90.0}),
    )
    world = World(History(9103, 243, "anything", TWO, happenings, 460.0))
    assert world.run() == []


def test_a_hold_that_slurm_shows_like_ours_counts_as_ours_while_no_daemon_looks() -> None:
    """The daemon died between saying that it stops the job and doing so; a person requeues and holds it then."""
    kill = Happening("kill", 36.256, data={"after": True, "down_s": 150.0, "nth": 17})
    world = ran(
        TWO,
        Happening("link-down", 36.256, "job0/0"),
        kill,
        Happening("requeue-hold", 92.9, "job0"),
        story="requeue-held",
    )
    assert world.slurm.jobs[101].state == "RUNNING"


def test_a_node_put_back_unseen_after_a_drain_of_unknown_outcome_may_be_drained_again() -> None:
    kill = Happening("kill", 68.7, data={"after": True, "down_s": 400.0, "nth": 6})
    world = ran(TWO, Happening("gpu-firmware", 68.7, "job0/0"), kill, Happening("repair", 268.7))
    assert len(world.observer.drains) == 2


def test_a_lost_node_put_back_unseen_after_a_down_of_unknown_outcome_may_be_set_down_again() -> None:
    kill = Happening("kill", 81.1, data={"after": False, "down_s": 150.0, "nth": 7})
    world = ran(TWO, Happening("node-lost", 76.3, "job1/1"), kill, Happening("resume-node", 134.2, "job1/1"))
    assert len(world.observer.drains) == 2


def test_a_job_released_after_bad_numbers_does_not_go_back_to_what_they_were_saved_in() -> None:
    """It was held, as no checkpoint is older than they; a person lets it run on, and it hangs before it shows a number."""
    world = ran(
        TWO,
        Happening("bad-numbers", 36.985, "job1/0"),
        Happening("release", 67.136, "job1"),
        Happening("hang", 71.149, "job1/1"),
    )
    assert world.slurm.jobs[102].held


def test_numbers_that_go_bad_while_a_plan_waits_are_not_what_the_job_resumes_from() -> None:
    """The drain was not answered, then people paused: the job trained on, and its numbers went bad."""
    ran(
        TWO,
        Happening("gpu-firmware", 32.78821942067941, "job0/1"),
        Happening("lose", 32.78821942067941, data={"nth": 5, "after": False, "times": 1}),
        Happening("pause", 35.43273524323463),
        Happening("bad-numbers", 45.43273524323463, "job0/1"),
        Happening("resume", 235.43273524323462),
    )


def test_no_job_begins_on_a_node_that_two_faults_convict_although_neither_cause_is_sure() -> None:
    world = ran(
        TWO,
        Happening("requeue", 43.32003928078047, "job0"),
        Happening("gpu-off-bus", 43.71676351209935, "n4"),
        Happening("gpu-lost-silently", 45.66961545600747, "job0/1"),
        Happening("gpu-memory", 45.66961545600747, "job0/1"),
    )
    assert world.slurm.nodes["n2"].drained
