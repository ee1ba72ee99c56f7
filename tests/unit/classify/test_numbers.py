"""Bad numbers and what came before: the program's where they come again elsewhere, one machine's where they follow it."""

from __future__ import annotations

import dataclasses

import pytest
from made_records import evidence, incident, later
from shipped import shipped_rules

from sentinel.classify import History, PastFailure, classify
from sentinel.model.records import Cause, Kind, Restart, Scope, Source, Trust, Verdict

RULES = shipped_rules()


def bad(step: int, rank: int | None = None) -> tuple[object, ...]:
    stays = evidence(
        Kind.NUMBERS, source=Source.PROGRESS, job=101, attempt=1, trust=Trust.USER, text=f"loss nan since step {step}",
        data={"onset_step": step, "prints": 5, "step": step + 4},
    )  # fmt: skip
    line = evidence("nan", source=Source.JOB_LOG, job=101, attempt=1, rank=rank, trust=Trust.USER, text="found NaN in")
    return (stays,) if rank is None else (stays, dataclasses.replace(line, rule="nan"))


def past(
    step: int, *nodes: str, attempt: int = 0, job: int = 101, at_s: float = -3600.0, ranks: tuple[int, ...] = ()
) -> PastFailure:
    return PastFailure(
        at=later(at_s), cause=Cause.NUMERICAL_NAN, job=job, attempt=attempt, user="ada", step=step, blamed=False,
        nodes=nodes, ranks=ranks, incident=f"{job}-{attempt}-{at_s}",
    )  # fmt: skip


def judged(step: int, *failures: PastFailure, on: tuple[str, ...] = ("n1", "n2"), rank: int | None = None) -> Verdict:
    happened = incident(*bad(step, rank), job=101, attempt=1)  # type: ignore[arg-type]
    return classify(happened, history=History(failures=failures, nodes=on), rules=RULES, now=later(0.0))


def test_for_the_first_time_they_are_the_program_s_and_tried_again() -> None:
    verdict = judged(250)
    assert (verdict.cause, verdict.scope, verdict.restart) == (Cause.NUMERICAL_NAN, Scope.APPLICATION, Restart.RESUME)
    assert verdict.onset_step == 250 and verdict.suspect == () and verdict.drain == ()


def test_the_same_step_on_other_machines_is_held() -> None:
    verdict = judged(250, past(252, "n3", "n4"))
    assert (verdict.cause, verdict.restart, verdict.suspect) == (Cause.NUMERICAL_NAN, Restart.HOLD, ())


@pytest.mark.parametrize("before", [past(250, "n2", "n3"), past(250), past(400, "n3", "n4"), past(250, "n3", job=7)])
def test_a_machine_that_was_there_another_step_or_another_job_is_no_proof(before: PastFailure) -> None:
    assert judged(250, before).restart is Restart.RESUME


def test_another_rank_at_the_same_step_is_another_matter() -> None:
    before = past(250, "n3", "n4", ranks=(5,))
    assert judged(250, before, rank=2).restart is Restart.RESUME
    assert judged(250, before, rank=5).restart is Restart.HOLD


def test_one_machine_that_all_had_is_a_suspect() -> None:
    verdict = judged(700, past(250, "n2", "n3"), past(400, "n2", "n4", job=7))
    assert (verdict.suspect, verdict.drain, verdict.restart) == (("n2",), (), Restart.RESUME_EXCLUDING)


@pytest.mark.parametrize(
    ("others", "suspect"),
    [
        (("eve",), ()),
        (("eve", "eve", "eve"), ()),  # users count, not jobs
        (("eve", "bob"), ("n2",)),
        ((None, None), ("n2",)),  # whose they were is not known
    ],
)
def test_one_other_user_s_words_on_a_machine_make_it_no_suspect(
    others: tuple[str | None, ...], suspect: tuple[str, ...]
) -> None:
    seen = [
        dataclasses.replace(past(90, job=900 + i, at_s=-60.0 * i), node="n2", user=user, users_words=True)
        for i, user in enumerate(others)
    ]
    happened = incident(*on_n2(250), job=101, attempt=1)  # type: ignore[arg-type]
    history = History(failures=tuple(seen), nodes=("n1", "n2"))
    assert classify(happened, history=history, rules=RULES, now=later(0.0)).suspect == suspect
    wide = [dataclasses.replace(one, node=None, nodes=("n2", f"m{i}")) for i, one in enumerate(seen)]
    assert judged(250, *wide).suspect == (suspect if len(others) > 1 else ())


def on_n2(step: int) -> tuple[object, ...]:
    """``bad``, by a rank whose node is known."""
    return tuple(dataclasses.replace(item, where=dataclasses.replace(item.where, node="n2")) for item in bad(step))  # type: ignore


def test_a_machine_s_own_words_or_the_own_job_s_need_no_second_user() -> None:
    before = dataclasses.replace(past(90), node="n2")
    happened = incident(*on_n2(250), job=101, attempt=1)  # type: ignore[arg-type]
    for one in (dataclasses.replace(before, users_words=True), dataclasses.replace(before, job=7, user="eve")):
        history = History(failures=(one,), nodes=("n1", "n2"))
        assert classify(happened, history=history, rules=RULES, now=later(0.0)).suspect == ("n2",)


def test_two_incidents_of_one_attempt_are_one_failure() -> None:
    told, crashed = past(250, "n2", "n3"), past(250, "n2", "n3", at_s=-1800.0)
    assert judged(700, told, crashed).suspect == ()
    assert judged(700, past(250, "n1", "n2"), past(400, "n1", "n2", job=7)).suspect == ()


def test_what_was_told_of_this_very_attempt_is_no_second_time() -> None:
    assert judged(250, past(250, "n3", "n4", attempt=1)).restart is Restart.RESUME


def test_a_machine_that_convicts_itself_explains_them() -> None:
    xid = evidence(Kind.XID, node="n2", at_s=9.0, data={"xid": 48, "pci": "0000:3b:00"}, text="Xid 48: DBE")
    happened = incident(*bad(250), xid, job=101, attempt=1)  # type: ignore[arg-type]
    verdict = classify(happened, rules=RULES, now=later(0.0))
    assert (verdict.cause, verdict.drain, verdict.onset_step) == (Cause.GPU_MEMORY_ECC, ("n2",), 250)
