"""Jobs that were cancelled, signalled or ran into their limit: why, where they say so, and what ended nothing."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from shipped import shipped_rules, shipped_signatures

from sentinel.classify import classify
from sentinel.evidence.logs.reader import LogReader
from sentinel.model.records import Cause, Incident, Where

NOW = datetime(2026, 3, 4, 12, tzinfo=UTC)
RULES = shipped_rules()
SIGNATURES = shipped_signatures()
CANCELLED = "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-03-04T11:40:00 ***"
LIMIT = "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-03-04T11:40:00 DUE TO TIME LIMIT ***"
UNMET = "[W socket.cpp:663] [c10d] The client socket has failed to connect to [n1]:29500 (errno: 110 - Connection timed out)"


def cause(*lines: str, err: tuple[str, ...] = ()) -> Cause:
    """``err``: the lines of another log of the job."""
    found = []
    for path, text in (("job.out", lines), ("job.err", err)):
        reader = LogReader(SIGNATURES, where=Where(path=path), own_times=True)
        found += reader.feed("".join(f"{line}\n" for line in text).encode(), NOW) + reader.finish(NOW)
    return classify(Incident("i", NOW, NOW, evidence=tuple(found)), rules=RULES, now=NOW).cause


def records(count: int, between: tuple[str, ...] = (), loss: str = "loss: nan") -> list[str]:
    return [line for n in range(count) for line in (f"2026-03-04 10:0{n}:00,134 - INFO - step {n} {loss}", *between)]


def test_numbers_that_stay_bad_are_seen_where_slurms_word_is_in_another_log() -> None:
    assert cause(*records(6), err=(CANCELLED,)) is Cause.NUMERICAL_NAN
    fine = ("2026-03-04 10:30:00,134 - INFO - step 9 loss: 2.1",)
    assert cause(*records(6), *fine, err=(CANCELLED,)) is Cause.SCHEDULER_PREEMPT_OR_TIMELIMIT


def test_records_are_as_far_from_the_end_as_from_each_other() -> None:
    timers = tuple(f"    timer {name}: 12 ms" for name in ("forward", "backward", "step", "data", "log", "all", "rest"))
    assert cause(*records(6, timers), CANCELLED) is Cause.NUMERICAL_NAN
    assert cause(*records(6), *("Saving the last shard",) * 6, CANCELLED) is Cause.NUMERICAL_NAN
    assert cause(*records(2), *("went on without a word",) * 40, CANCELLED) is Cause.SCHEDULER_PREEMPT_OR_TIMELIMIT
    frames = tuple(f"    frame #{n}: c10d::TCPStore + 0x{n}" for n in range(13))
    assert cause(*(UNMET, *frames) * 5, LIMIT) is Cause.NETWORK_BOOTSTRAP
    assert cause(UNMET, UNMET, *("waiting for data",) * 40, LIMIT) is Cause.SCHEDULER_PREEMPT_OR_TIMELIMIT


@pytest.mark.parametrize(
    "loss",
    [
        "train_loss: nan, val_loss: nan",
        "loss: nan - accuracy: 0.1 - val_loss: nan",
        "lm loss: nan | aux_loss: 1.02",
        "loss: nan best_val_loss: 2.31",
        "policy_loss: nan value_loss: nan",
    ],
)
def test_the_training_s_loss_counts_beside_others(loss: str) -> None:
    assert cause(*records(6, loss=loss), CANCELLED) is Cause.NUMERICAL_NAN


@pytest.mark.parametrize("loss", ["val_loss: nan", "eval loss: nan", "aux_loss: inf"])
def test_another_loss_alone_does_not(loss: str) -> None:
    assert cause(*records(6, loss=loss), CANCELLED) is Cause.SCHEDULER_PREEMPT_OR_TIMELIMIT


def test_warnings_of_an_earlier_run_or_after_the_end_explain_nothing() -> None:
    work = ("preparing the batches",) * 200
    assert cause(CANCELLED, UNMET, UNMET, *work, CANCELLED) is Cause.SCHEDULER_PREEMPT_OR_TIMELIMIT
    assert cause(*work, CANCELLED, UNMET, UNMET, UNMET) is Cause.SCHEDULER_PREEMPT_OR_TIMELIMIT


def test_ranks_that_met_after_their_warnings_found_each_other() -> None:
    met = "n1:52:61 [0] NCCL INFO ncclCommInitRank comm 0x5 rank 0 nranks 2 cudaDev 0 busId 5d000 - Init COMPLETE"
    assert cause(UNMET, UNMET, met, "Resumed from iteration 400", LIMIT) is Cause.SCHEDULER_PREEMPT_OR_TIMELIMIT
    assert cause(met, UNMET, UNMET, UNMET, LIMIT) is Cause.NETWORK_BOOTSTRAP


def test_a_warning_of_each_of_several_ranks_is_no_repetition() -> None:
    assert cause(f"0: {UNMET}", f"1: {UNMET}", "0: waiting", LIMIT) is Cause.SCHEDULER_PREEMPT_OR_TIMELIMIT
    assert cause(f"0: {UNMET}", f"0: {UNMET}", "1: waiting", LIMIT) is Cause.NETWORK_BOOTSTRAP


def test_of_one_member_alone_the_others_were_not_started() -> None:
    """Of several the other nodes' logs may not be here."""
    members = [f"Initializing distributed: GLOBAL_RANK: {rank}, MEMBER: {rank + 1}/3" for rank in range(3)]
    assert cause(members[0], LIMIT) is Cause.USER_CONFIG
    assert cause(members[0], members[2], LIMIT) is Cause.NETWORK_BOOTSTRAP


def test_peers_of_a_rank_that_was_asked_to_stop_see_its_connection_close() -> None:
    steps = [f"step {step} loss: 2.1" for step in range(5)]
    asked = "WARNING: stop requested (SIGUSR1) at step 5: saving and leaving"
    refused = (
        "socketPollConnect: connect to 10.0.0.5<41231> returned Connection refused, exceeded error retry count (35)"
    )
    lost = "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has failed."
    assert cause(*steps, asked, refused, lost) is Cause.SCHEDULER_PREEMPT_OR_TIMELIMIT
    assert cause(*steps, refused, lost, asked) is Cause.NETWORK_BOOTSTRAP
    assert cause(*steps, asked, *steps, refused, lost) is Cause.NETWORK_BOOTSTRAP


def test_two_bad_records_of_a_log_whose_end_is_not_known_explain_nothing() -> None:
    went_on = ["2026-03-04 10:20:00,134 - INFO - train loss: 0.7 acc 0.5"] * 90
    assert cause(*records(2), *went_on, err=(CANCELLED,)) is Cause.SCHEDULER_PREEMPT_OR_TIMELIMIT


def test_two_pairs_of_warnings_hours_apart_are_no_repetition() -> None:
    waiting = ("preparing the batches",)
    apart = (UNMET, UNMET, *waiting * 300, UNMET, *waiting * 250)
    assert cause(*apart, LIMIT) is Cause.SCHEDULER_PREEMPT_OR_TIMELIMIT


# --- torchrun was told to end ----------------------------------------------------------------------------------------------

FULL = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB.\n"
TRACEBACK = 'Traceback (most recent call last):\n  File "/home/u/run/train.py", line 120, in {}\n    {}\n'
SIGNALLED = (
    "W0308 01:50:04.324000 6290 site-packages/torch/distributed/elastic/agent/server/api.py:739]"
    " Received {0} death signal, shutting down workers\n"
    "W0308 01:50:04.329000 6290 site-packages/torch/distributed/elastic/multiprocessing/api.py:1010]"
    " Sending process 6291 closing signal SIGTERM\n"
    'Traceback (most recent call last):\n  File "/v/site-packages/torch/distributed/elastic/agent/server/api.py", line 908,'
    " in _invoke_run\n    time.sleep(monitor_interval)\n"
    "torch.distributed.elastic.multiprocessing.api.SignalException: Process 6290 got signal: {0}\n"
)


def ended_by(text: str) -> Cause:
    return cause(*text.splitlines())


@pytest.mark.parametrize("signal", [1, 2, 15])
def test_what_a_program_printed_long_before_its_launcher_was_signalled_did_not_end_it(signal: int) -> None:
    hint, worked = "FlashAttention is not installed.\n", "".join(f"loaded shard {n}\n" for n in range(60))
    end = SIGNALLED.format(signal)
    assert ended_by(hint + worked + end) is Cause.SCHEDULER_PREEMPT_OR_TIMELIMIT
    assert ended_by(f"{FULL}{worked}{end}") is Cause.APP_OOM_GPU  # a rank that raised may hang until somebody ends it
    failed = "E0308 01:50:04.100000 6290 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1)\n"
    assert ended_by(hint + worked + failed + end) is Cause.SOFTWARE_ENV  # a worker ended before
    handler = TRACEBACK.format("_terminate_process_handler", "return self._signals[sig]") + "KeyError: 30\n"
    assert ended_by(worked + end + handler) is Cause.SCHEDULER_PREEMPT_OR_TIMELIMIT
