"""When silence is a hang: GPUs that stand for longer than ever, pauses of a kind that is known, chance."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from sentinel.config.settings import Judgement
from sentinel.detect.activity import GpuIdleness, Motion
from sentinel.detect.hang import (
    ASK_LEAST_S,
    SilenceObservations,
    after_look,
    after_step,
    hung_after_s,
    in_pause,
    next_look_s,
    peek_after_s,
)
from sentinel.detect.step_rhythm import PAUSE, Rhythm, observe, pauses_alike
from sentinel.model.records import Evidence, Kind, Source, Where, utc

LIMITS = Judgement(stall_first_pause_s=1.0)  # the jobs of these tests are young: their first pause is tested by itself
START = utc(1_900_000_000)


def line(at_s: float, step: int, kind: str = Kind.STEP, text: str = "") -> Evidence:
    at = START + timedelta(seconds=at_s)
    return Evidence(f"{at_s}", at, at, Source.JOB_LOG, kind, Where(job=1, attempt=0), text, data={"step": step})


class Training:
    """A job that makes steps of ``gap_s``."""

    def __init__(self, gap_s: float, *, step: int = 0) -> None:
        self.gap_s, self.step, self.now_s, self.rhythm = gap_s, step, 0.0, Rhythm()

    def steps(self, count: int) -> Training:
        for _ in range(count):
            self.step, self.now_s = self.step + 1, self.now_s + self.gap_s
            self.rhythm = observe(self.rhythm, line(self.now_s, self.step))
        return self

    def pause(self, seconds: float, text: str = "") -> Training:
        if text:
            self.rhythm = observe(self.rhythm, line(self.now_s + 0.01, self.step, PAUSE, text))
        self.now_s += seconds
        return self

    def hung_after_s(
        self, silent_s: float, motion: Motion, idle_periods: tuple[tuple[float, float], ...] = ()
    ) -> float | None:
        """With all GPUs still since a second after the last line, and ``idle_periods`` (at, for) before."""
        last = START + timedelta(seconds=self.now_s)
        earlier = tuple((START + timedelta(seconds=at_s), length_s) for at_s, length_s in idle_periods)
        still = GpuIdleness(silent_s - 1.0, last + timedelta(seconds=1), earlier)
        return hung_after_s(self.rhythm, SilenceObservations(motion=motion, gpu_idleness=still), LIMITS)


def test_in_a_long_step_gpus_that_stand_for_longer_than_ever_are_a_hang() -> None:
    job = Training(60.0).steps(30)
    usual = job.hung_after_s(20.0, Motion.UNCLEAR)
    assert usual is not None and usual > 180.0
    assert job.hung_after_s(20.0, Motion.WAITS) == LIMITS.stall_floor_s
    assert peek_after_s(job.rhythm) == 12.0  # so that somebody asks that early


def test_gpus_that_stand_while_the_host_computes_are_a_hang_once_the_jobs_pauses_are_known() -> None:
    """Before that it may be the first pause: input that is prepared, a first save that is serialised."""
    assert (Training(60.0).steps(30).hung_after_s(20.0, Motion.LOOPS) or 0.0) > 300.0
    assert evaluating(5).steps(3).hung_after_s(20.0, Motion.LOOPS) == LIMITS.stall_floor_s


@pytest.mark.parametrize("motion", [m for m in Motion if m not in (Motion.STOPPED, Motion.WAITS, Motion.UNSEEN)])
def test_a_first_pause_has_its_time_unless_the_job_is_seen_only_to_wait(motion: Motion) -> None:
    job = Training(1.0).steps(30)
    found = hung_after_s(job.rhythm, SilenceObservations(motion=motion), LIMITS)
    assert found is not None and found >= 300.0
    known = hung_after_s(evaluating(5, gap_s=1.0).steps(3).rhythm, SilenceObservations(motion=motion), LIMITS)
    assert known is not None and known < 60.0
    assert hung_after_s(job.rhythm, SilenceObservations(motion=Motion.STOPPED), LIMITS) == ASK_LEAST_S
    assert (
        hung_after_s(job.rhythm, SilenceObservations(motion=Motion.WAITS, waits_s=10.0), LIMITS) == LIMITS.stall_floor_s
    )


@pytest.mark.parametrize("motion", [Motion.UNCLEAR, Motion.UNKNOWN])
def test_no_first_pause_is_expected_at_just_any_step_of_a_job_that_made_many(motion: Motion) -> None:
    """Pauses are made at round steps. What writes, sleeps in the kernel or computes keeps its time everywhere."""
    young = Training(2.0, step=7000).steps(83)
    assert (young.hung_after_s(20.0, motion) or 0.0) >= 300.0  # it may evaluate by the clock
    job = Training(2.0, step=7000).steps(1883)
    assert (job.hung_after_s(20.0, motion) or 0.0) == pytest.approx(13.0)
    assert all(
        (job.hung_after_s(20.0, alive) or 0.0) >= 300.0 for alive in (Motion.WRITES, Motion.STORAGE, Motion.WORKS)
    )
    assert (job.steps(17).hung_after_s(20.0, motion) or 0.0) >= 300.0  # step 8,900
    assert (Training(2.0, step=7000).steps(33).hung_after_s(20.0, motion) or 0.0) >= 300.0


def test_where_only_each_tenth_step_is_printed_tens_are_not_round() -> None:
    job = Training(2.0, step=7000)
    for _ in range(1883):
        job.step, job.now_s = job.step + 10, job.now_s + 2.0
        job.rhythm = observe(job.rhythm, line(job.now_s, job.step))
    assert job.step == 25830 and (job.hung_after_s(20.0, Motion.UNCLEAR) or 0.0) < 15.0


@pytest.mark.parametrize("gap_s", [30.0, 60.0])
def test_jobs_of_long_steps_may_pause_first_at_ten_or_twenty(gap_s: float) -> None:
    job = Training(gap_s).steps(20)
    assert in_pause(job.rhythm, LIMITS) and not in_pause(job.steps(3).rhythm, LIMITS)


@pytest.mark.parametrize("motion", [None, Motion.UNSEEN])
@pytest.mark.parametrize("pauses", [0, 5])
def test_of_a_job_that_could_not_be_looked_at_nothing_is_concluded(motion: Motion | None, pauses: int) -> None:
    assert hung_after_s(evaluating(pauses).steps(3).rhythm, SilenceObservations(motion=motion), LIMITS) is None


def test_a_gpu_that_works_while_all_others_wait_for_longer_than_ever_is_no_sign_of_life() -> None:
    """A kernel that never ends. While it is not known where the job pauses it may be rank 0 that evaluates."""
    job = Training(2.0, step=7000).steps(1883)
    evaluated = evaluating(5).steps(1783)
    others_worked = SilenceObservations(motion=Motion.WORKS)
    for known in (job, evaluated):
        assert (hung_after_s(known.rhythm, others_worked, LIMITS) or 0.0) > 20.0
        assert in_pause(known.rhythm, LIMITS) is False
    assert (job.hung_after_s(20.0, Motion.WORKS) or 0.0) >= 300.0
    assert (evaluated.hung_after_s(20.0, Motion.WORKS) or 0.0) == pytest.approx(1.1 * 13.0)
    waited = ((evaluated.now_s - 900.0, 12.0),)  # as long in a step before: a straggler
    assert (evaluated.hung_after_s(20.0, Motion.WORKS, waited) or 0.0) > 20.0
    assert (evaluated.steps(17).hung_after_s(20.0, Motion.WORKS) or 0.0) > 20.0  # a round step


@pytest.mark.parametrize("motion", [Motion.WORKS, Motion.WRITES, Motion.STORAGE, Motion.UNKNOWN, Motion.UNCLEAR])
def test_a_sign_of_life_outweighs_gpus_that_stand(motion: Motion) -> None:
    found = Training(60.0).steps(30).hung_after_s(20.0, motion)
    assert found is not None and found > 180.0


def test_a_job_whose_gpus_stand_in_each_step_gets_its_time() -> None:
    job = Training(60.0).steps(30)
    idle_periods = tuple((60.0 * n + 5.0, 20.0) for n in range(10, 29))  # an optimizer on the host
    assert (job.hung_after_s(30.0, Motion.WAITS, idle_periods) or 0.0) > 100.0
    assert job.hung_after_s(35.0, Motion.WAITS, idle_periods) == LIMITS.stall_floor_s


def test_gpus_that_never_worked_for_the_job_say_nothing() -> None:
    job = Training(60.0).steps(30)
    still = GpuIdleness(5_000.0, START - timedelta(seconds=60))
    assert (
        hung_after_s(job.rhythm, SilenceObservations(motion=Motion.WAITS, gpu_idleness=still), LIMITS) or 0.0
    ) > 100.0


def test_a_young_job_is_not_known_well_enough() -> None:
    job = Training(60.0).steps(10)
    assert (job.hung_after_s(20.0, Motion.WAITS) or 0.0) > 100.0
    assert peek_after_s(job.rhythm) is None


def test_nobody_peeks_where_all_are_asked_as_early() -> None:
    assert peek_after_s(Training(2.0).steps(30).rhythm) is None


def evaluating(count: int, *, gap_s: float = 2.0) -> Training:
    """Evaluates every 100 steps for 40 s and has just come to the next time."""
    job = Training(gap_s).steps(100)
    for _ in range(count):
        job.pause(40.0).steps(100)
    return job


def test_in_a_pause_of_a_kind_that_is_known_gpus_are_compared_with_what_they_did_in_those() -> None:
    job = evaluating(5)
    assert pauses_alike(job.rhythm) >= 3
    assert job.hung_after_s(20.0, Motion.WAITS) == LIMITS.stall_floor_s
    idle_periods = tuple((pause.at.timestamp() - START.timestamp() + 1.0, 38.0) for pause in job.rhythm.pauses)
    assert (job.hung_after_s(40.0, Motion.WAITS, idle_periods) or 0.0) > 60.0  # they always stand in it


def test_a_save_that_follows_an_evaluation_is_compared_from_its_own_announcement() -> None:
    """Both on the host: together the GPUs stand for longer than in any pause before."""
    job, idle_periods = Training(2.0).steps(100), []
    for _ in range(4):
        for words in ("running evaluation", "saving checkpoint"):
            idle_periods.append((job.now_s, 60.0))
            job.pause(60.0, words).steps(100)
    pauses = tuple(idle_periods)
    job.pause(0.0, "running evaluation")
    assert job.hung_after_s(100.0, Motion.LOOPS, pauses) == LIMITS.stall_floor_s
    job.rhythm = observe(job.rhythm, line(job.now_s + 60.0, job.step, PAUSE, "saving checkpoint"))
    assert (job.hung_after_s(120.0, Motion.LOOPS, pauses) or 0.0) >= 150.0
    assert job.hung_after_s(160.0, Motion.LOOPS, pauses) == LIMITS.stall_floor_s


def test_waiting_before_a_save_was_announced_is_that_of_the_evaluation() -> None:
    job = Training(2.0).steps(100)
    for _ in range(5):
        job.pause(60.0, "saving checkpoint").steps(100)
    job.pause(0.0, "running evaluation")
    began = START + timedelta(seconds=job.now_s)
    waits = SilenceObservations(
        motion=Motion.WAITS, waits_since=began, waits_s=28.0, waits_looks=9, longest_pause_lull_s=15.0
    )
    at_once = max(LIMITS.stall_floor_s, 2.4 * 2.0)
    for said_s, hung in ((0.5, True), (15.0, False)):
        saving = observe(job.rhythm, line(job.now_s + said_s, job.step, PAUSE, "saving checkpoint"))
        assert (hung_after_s(saving, waits, LIMITS) == at_once) is hung


def test_the_first_pause_of_a_kind_is_no_hang_however_it_looks() -> None:
    assert (evaluating(1).hung_after_s(60.0, Motion.WAITS) or 0.0) > 70.0
    job = evaluating(8)  # and now step 1,000, at which it may save for the first time
    job.pause(40.0).steps(100)
    assert job.step == 1000 and pauses_alike(job.rhythm) == 0
    assert (job.hung_after_s(60.0, Motion.WAITS) or 0.0) >= 300.0


def test_an_announced_save_is_not_known_by_evaluations() -> None:
    job = Training(2.0).steps(30)
    for _ in range(4):
        job.pause(40.0, "running evaluation").steps(7)
    job.pause(0.0, "running evaluation")
    assert pauses_alike(job.rhythm) == 4
    job.pause(0.0, "saving checkpoint to /p")
    assert pauses_alike(job.rhythm) == 0


def test_one_comparison_that_shows_only_waiting_decides_nothing() -> None:
    job = Training(5.0).steps(30)
    at = START + timedelta(seconds=job.now_s)
    watched = after_look(
        SilenceObservations(),
        Motion.WAITS,
        at + timedelta(seconds=8),
        at + timedelta(seconds=10.5),
        pause=False,
        beyond=False,
    )
    usual = hung_after_s(job.rhythm, SilenceObservations(motion=Motion.UNCLEAR), LIMITS)
    assert hung_after_s(job.rhythm, watched, LIMITS) == usual
    watched = after_look(
        watched, Motion.WAITS, at + timedelta(seconds=10.5), at + timedelta(seconds=13), pause=False, beyond=False
    )
    assert hung_after_s(job.rhythm, watched, LIMITS) == 12.0


def test_in_a_known_pause_waiting_must_last_and_be_seen_often() -> None:
    job = evaluating(5)
    watched = SilenceObservations(motion=Motion.WAITS, waits_s=12.5, waits_looks=5)
    assert hung_after_s(job.rhythm, watched, LIMITS) == 12.0
    for less in (
        replace(watched, waits_looks=3),  # seldom asked
        replace(watched, waits_s=9.0),
        replace(watched, longest_pause_lull_s=8.0),  # it waited nearly as long before
        replace(watched, longest_pause_lull_s=25.0, waits_s=100.0),  # a job that waits in its pauses
    ):
        assert (hung_after_s(job.rhythm, less, LIMITS) or 0.0) > 60.0


def test_a_quiet_network_is_a_hang_once_the_jobs_pauses_are_known() -> None:
    """For a usual step or more, since each moves its gradients once, and for longer than ever in a step that ended."""
    quiet = SilenceObservations(motion=Motion.QUIET, waits_s=6.5, waits_looks=3)
    for gap_s, hung_s in ((2.0, 12.0), (6.0, 14.4)):
        known, young = evaluating(5, gap_s=gap_s).steps(3), evaluating(2, gap_s=gap_s).steps(3)
        unclear = hung_after_s(known.rhythm, replace(quiet, motion=Motion.UNCLEAR), LIMITS)
        assert hung_after_s(known.rhythm, quiet, LIMITS) == pytest.approx(hung_s)
        for less in (replace(quiet, waits_s=max(gap_s, 5.0) - 1.0), replace(quiet, longest_lull_s=4.5)):
            assert hung_after_s(known.rhythm, less, LIMITS) == unclear
        assert (hung_after_s(young.rhythm, quiet, LIMITS) or 0.0) > hung_s  # it may be in its first save
    for waited_s, hung in ((9.0, False), (12.5, True)):
        in_pause = replace(quiet, waits_s=waited_s, waits_looks=5)
        assert ((hung_after_s(evaluating(5).rhythm, in_pause, LIMITS) or 0.0) == 12.0) is hung


def test_waiting_in_a_pause_that_was_expected_says_nothing_of_steps_once_pauses_are_known() -> None:
    at = START + timedelta(seconds=10)
    for pause, hung in ((True, True), (False, False)):
        watched = after_look(
            SilenceObservations(step=1), Motion.WAITS, at, at + timedelta(seconds=9), pause=pause, beyond=False
        )
        again = replace(after_step(watched, 2), motion=Motion.WAITS, waits_s=8.0, waits_looks=3)
        assert ((hung_after_s(evaluating(5).steps(3).rhythm, again, LIMITS) or 0.0) == 12.0) is hung
        assert (hung_after_s(evaluating(2).steps(3).rhythm, again, LIMITS) or 0.0) > 12.0


def test_many_short_pauses_do_not_displace_what_is_known_of_long_ones() -> None:
    job, saves = Training(2.0).steps(100), []
    for _ in range(4):
        saves.append((job.now_s, 25.0))
        job.pause(25.0, "saving checkpoint").steps(7)
    waited = (job.now_s - 5.0, 12.0)  # for a straggler
    for _ in range(41):
        job.pause(2.0, "running evaluation").steps(7)
    for more in ((), (waited,)):
        assert ((job.hung_after_s(20.0, Motion.LOOPS, (*saves, *more)) or 0.0) == LIMITS.stall_floor_s) is (not more)
    job.pause(0.0, "saving checkpoint")
    assert (job.hung_after_s(24.0, Motion.LOOPS, tuple(saves)) or 0.0) > 100.0


def test_gpus_that_stand_in_short_announced_pauses_say_nothing_of_steps() -> None:
    """Evaluations of a job with long steps, which take less than its silence may."""
    job, pauses = Training(60.0).steps(30), []
    for _ in range(4):
        pauses.append((job.now_s + 5.0, 70.0))
        job.pause(20.0, "running evaluation").steps(7)
    assert not job.rhythm.pauses
    assert job.hung_after_s(30.0, Motion.LOOPS, tuple(pauses)) == LIMITS.stall_floor_s
    job.pause(0.0, "running evaluation")
    assert (job.hung_after_s(30.0, Motion.LOOPS, tuple(pauses)) or 0.0) > 100.0


@pytest.mark.parametrize("gap_s", [2.0, 10.0, 30.0])
def test_saves_in_the_background_say_nothing_of_a_first_evaluation(gap_s: float) -> None:
    """They are announced and take no time; the evaluation after an epoch, at just any step, is not."""
    job = Training(gap_s).steps(49)
    for _ in range(4):
        job.pause(0.1, "saving checkpoint").steps(50)
    job.steps(32)
    for motion in (Motion.WORKS, Motion.WRITES):
        assert (hung_after_s(job.rhythm, SilenceObservations(motion=motion), Judgement()) or 0.0) > 600.0
    quiet, unclear = (SilenceObservations(motion=each, waits_s=60.0) for each in (Motion.QUIET, Motion.UNCLEAR))
    assert hung_after_s(job.rhythm, quiet, Judgement()) == hung_after_s(job.rhythm, unclear, Judgement())


def test_a_kind_of_pause_whose_times_the_agents_forgot_is_compared_with_the_others() -> None:
    """They keep the longest: a short evaluation of which nothing is left by longer saves is no hang."""
    job, saves = Training(40.0).steps(30), []
    for _ in range(5):
        job.pause(40.0, "running evaluation").steps(7)
        saves.append((job.now_s + 5.0, 150.0))
        job.pause(150.0, "saving checkpoint").steps(7)
    job.pause(0.0, "running evaluation")
    assert (job.hung_after_s(80.0, Motion.WAITS, tuple(saves)) or 0.0) > 100.0


def test_a_silence_that_was_called_a_hang_and_was_none_teaches_its_length() -> None:
    job = evaluating(5)
    watched = after_step(
        SilenceObservations(step=1, motion=Motion.WAITS, waits_s=12.5, waits_looks=5), 2, mistaken_s=45.0
    )
    assert (watched.longest_lull_s, watched.longest_pause_lull_s) == (45.0, 45.0)
    again = replace(watched, motion=Motion.WAITS, waits_s=30.0, waits_looks=12)
    assert (hung_after_s(job.rhythm, again, LIMITS) or 0.0) > 60.0


def test_a_short_pause_of_slow_steps_is_a_pause_from_its_beginning() -> None:
    """Its silence stays below what three steps explain, and yet other pauses must not be judged by steps."""
    job = Training(26.0).steps(40)
    for _ in range(4):
        job.pause(50.0).steps(40)
    assert in_pause(job.rhythm, LIMITS)
    assert not in_pause(job.steps(3).rhythm, LIMITS)


def test_slow_steps_do_not_hide_that_a_first_pause_may_be_made() -> None:
    """Three steps explain 300 s: as much as a first pause is given, and GPUs that stand in it are no proof of a hang."""
    job = Training(100.0).steps(100)  # the first step that is a multiple of 100
    assert in_pause(job.rhythm, LIMITS)
    assert (job.hung_after_s(150.0, Motion.WAITS) or 0.0) >= 300.0
    assert job.steps(3).hung_after_s(150.0, Motion.WAITS) == LIMITS.stall_floor_s


def test_large_jobs_are_asked_less() -> None:
    assert [next_look_s(looks, 8) for looks in (0, 10, 30, 130)] == [2.5, 2.5, 2.5, 10.0]
    assert [next_look_s(looks, 512) for looks in (0, 10, 30)] == [2.5, 5.0, 10.0]


@pytest.mark.parametrize("nodes", [8, 512])
def test_where_waiting_begins_late_in_a_silence_it_is_looked_at_closely_but_not_for_ever(nodes: int) -> None:
    assert [next_look_s(130, nodes, waiting) for waiting in (0, 1, 5, 6)] == [10.0, 2.5, 2.5, 10.0]


def test_a_young_job_that_only_waits_may_be_in_its_first_pause_unless_it_proves_the_contrary() -> None:
    limits = Judgement()
    job = Training(1.0, step=3).steps(40)
    waits = SilenceObservations(motion=Motion.WAITS, waits_s=60.0, waits_looks=20)
    assert hung_after_s(job.rhythm, waits, limits) == limits.stall_first_pause_s
    assert hung_after_s(job.rhythm, replace(waits, proven=True), limits) == limits.stall_floor_s
    assert hung_after_s(job.rhythm, replace(waits, motion=Motion.STOPPED), limits) == ASK_LEAST_S
    long = Training(10.0, step=3).steps(370)
    assert (hung_after_s(long.rhythm, waits, limits) or 999.0) < 60.0, "an hour of steps without a pause"


def test_a_job_of_which_every_gpu_waits_inside_a_collective_is_in_no_first_pause() -> None:
    limits, step = Judgement(), START + timedelta(seconds=1)
    for job in (Training(1.0, step=3).steps(40), Training(1.0).steps(100)):  # the second ends at a round step
        watched = SilenceObservations()
        assert in_pause(job.rhythm, limits) is (job.step == 100)
        for looks in (1, 2):
            assert (hung_after_s(job.rhythm, watched, limits) or 60.0) >= 60.0
            began, now = step + timedelta(seconds=3 * looks), step + timedelta(seconds=3 * looks + 3)
            watched = after_look(watched, Motion.WAITS, began, now, pause=False, beyond=True, blocked=True)
        assert hung_after_s(job.rhythm, watched, limits) == limits.stall_floor_s
        moved = after_look(watched, Motion.WAITS, began, now, pause=False, beyond=True)
        assert (hung_after_s(job.rhythm, moved, limits) or 0.0) >= 60.0
