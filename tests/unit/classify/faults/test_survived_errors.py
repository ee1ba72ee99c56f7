"""Errors of programs that ended nothing: the job printed on for long, or ended by what they bring about in no case."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from shipped import shipped_rules

from sentinel.classify import classify
from sentinel.cli.offline.unread_lines import with_unread
from sentinel.evidence.logs.reader import LogReader, Signatures
from sentinel.model.records import Cause, Incident, Source, UnknownKind, Verdict, Where

NOW = datetime(2026, 3, 4, 12, tzinfo=UTC)
RULES = shipped_rules()
AS_CLASSIFY = Signatures(with_unread(RULES))
TIME_LIMIT = "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-03-04T11:00:00 DUE TO TIME LIMIT ***\n"
CANCELLED = "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-03-04T11:00:00 ***\n"
NOT_THERE = '  File "/home/u/run/train.py", line 120, in step\n    z = out["logit"]\nKeyError: \'logit\'\n'
FULL = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB.\n"
QUEUE = "n1:53:57 [3] NCCL WARN Call to ibv_modify_qp failed with error Connection timed out errno 110\n"


def verdict(text: str) -> Verdict:
    reader = LogReader(AS_CLASSIFY, source=Source.JOB_LOG, where=Where(path="out.txt"))
    found = reader.feed(text.encode(), NOW) + reader.finish(NOW)
    return classify(Incident("i1", NOW, NOW, evidence=tuple(found)), rules=RULES, now=NOW)


def cause(text: str) -> Cause:
    return verdict(text).cause


def answered(requests: int) -> str:
    return "".join(f"answered request {n} of the test set\n" for n in range(requests))


def test_a_request_that_timed_out_long_before_the_time_limit_is_not_why_the_job_ended() -> None:
    timed_out = "Request timed out: HTTPConnectionPool(host='localhost', port=11500): Read timed out.\n"
    assert cause(timed_out + TIME_LIMIT) is Cause.DATALOADER
    assert cause(timed_out + answered(250) + TIME_LIMIT) is Cause.SCHEDULER_PREEMPT_OR_TIMELIMIT
    frame = '  File "/home/u/run/train.py", line 12, in step\n    z = out["logit"]\n'
    raised = f"Traceback (most recent call last):\n{frame}KeyError: 'logit'\n"
    assert cause(raised + answered(250) + TIME_LIMIT) is Cause.USER_CODE, "one rank raised, the others waited for it"


def test_a_command_that_a_shell_did_not_find_long_before_another_failure_is_not_its_cause() -> None:
    missing = "/usr/bin/bash: line 1: n1.site.org: command not found\n"
    assert cause(missing + QUEUE) is Cause.SOFTWARE_ENV
    assert cause(missing + answered(60) + QUEUE) is Cause.NETWORK_FABRIC


def test_bad_numbers_do_not_bring_about_that_memory_is_full() -> None:
    inf = " iteration        1/      30 | lm loss: 1069607.0 | loss scale: 1.0 | grad norm: inf |\n"
    assert cause(inf) is Cause.NUMERICAL_NAN
    assert cause(inf + FULL) is Cause.APP_OOM_GPU


def test_a_file_of_the_program_on_a_scratch_file_system_is_not_what_is_unavailable() -> None:
    place = "/scratch/u/run/utils.py:313: UserWarning: fused kernels unavailable, using the slow path\n"
    assert cause(place + CANCELLED) is Cause.SCHEDULER_PREEMPT_OR_TIMELIMIT
    assert cause("/scratch: file system is unavailable\n") is Cause.FILESYSTEM_STORAGE


@pytest.mark.parametrize(
    "word", ["shutdown the rendezvous 'none'", "send a keep-alive heartbeat to the rendezvous 'none'"]
)
def test_an_agent_that_finds_the_store_gone_as_it_leaves_is_no_failure(word: str) -> None:
    steps = "".join(f"step {step} | loss 2.{step} | lr 3.0e-04\n" for step in range(9))
    left = (
        "W0403 16:15:06.176000 5389 site-packages/torch/distributed/elastic/rendezvous/dynamic_rendezvous.py:1331] "
        f"The node 'n1_53_0' has failed to {word} due to an error of type RendezvousConnectionError.\n"
    )
    assert cause(steps + left) is Cause.UNKNOWN
    raised = (
        "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: the connection to the store has failed\n"
    )
    assert cause(steps + raised) is Cause.NETWORK_BOOTSTRAP


@pytest.mark.parametrize(
    "line",
    [
        "srun: error: n1: tasks 0-7: Out Of Memory",
        "srun: error: n1: task 3: Out Of Memory",
    ],
)
def test_what_slurm_says_of_a_memory_limit(line: str) -> None:
    assert cause(line + "\n") is Cause.APP_OOM_HOST


def test_epochs_show_that_a_training_went_on() -> None:
    frame = '  File "main.py", line 195, in <module>\n'
    raised = f"Traceback (most recent call last):\n{frame}NameError: name 'parser' is not defined\n"
    epochs = "".join(f"[10:24:0{n}][main.py][INFO] [Epoch:{n}/50]: loss1:0.07 AUC:0.84\n" for n in range(1, 10))
    assert cause(raised) is Cause.USER_CODE
    assert cause(raised + epochs) is Cause.UNKNOWN


@pytest.mark.parametrize("line", ["Epoch 1/50\n", "[rank{}] Epoch 1/50\n", "{}: Epoch [1/50]\n"])
def test_ranks_that_begin_an_epoch_each_do_not_outlive_the_error_of_another(line: str) -> None:
    """None waits for the others before it says so."""
    frame = '  File "main.py", line 195, in <module>\n'
    raised = f"Traceback (most recent call last):\n{frame}NameError: name 'parser' is not defined\n"
    assert cause(raised + "".join(line.format(rank) for rank in range(16))) is Cause.USER_CODE
    trained = "".join(line.format(rank).replace("1/", f"{n}/") for n in range(1, 10) for rank in range(16))
    assert cause(raised + trained) is Cause.UNKNOWN


def test_a_mean_that_has_no_value_in_its_first_steps_is_no_bad_number() -> None:
    bar = "Epoch 0: {}%|# | {}/90 [00:0{}<00:43, 2.08it/s, loss={}]\n".format
    empty = "".join(bar(step, step, step, "nan") for step in (1, 2, 3))
    means = "".join(bar(step, step, step, f"7.{step}") for step in (3, 4, 5))
    assert cause(empty + means + NOT_THERE) is Cause.USER_CODE
    assert cause(empty + means + bar(6, 6, 6, "nan") + NOT_THERE) is Cause.NUMERICAL_NAN
    assert cause(means + empty) is Cause.NUMERICAL_NAN


def test_what_a_program_skips_did_not_end_it() -> None:
    told = "No GPU available, skipping the clean-up\n"
    assert cause(told + NOT_THERE) is Cause.USER_CODE
    assert cause(told.replace(", skipping", " for") + NOT_THERE) is not Cause.USER_CODE


@pytest.mark.parametrize(
    ("end", "before"),
    [
        ("INFO:     Application shutdown complete.\n", "INFO:     Application startup complete.\n"),
        ("[eval] Results saved to runs/a/scores.json\n", "[eval] evaluating 10 tasks\n"),
    ],
)
def test_what_is_also_said_after_an_error_outlives_none(end: str, before: str) -> None:
    gone = CANCELLED.replace(" ***\n", " DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***\n")
    for failed, why in ((FULL, Cause.APP_OOM_GPU), (NOT_THERE, Cause.USER_CODE), (gone, Cause.NODE_FAILURE)):
        assert cause(before + failed + end) is why
    assert verdict(before + "pipeline: fatal: worker 3 was refused\n" + end).unknown_kind is not UnknownKind.NO_FAILURE
    assert verdict(before + end).unknown_kind is UnknownKind.NO_FAILURE
