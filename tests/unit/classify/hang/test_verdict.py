"""What a hang's verdict says once the job was asked: who, where, why; suspected, never drained."""

from __future__ import annotations

import pytest
from made_records import AT, evidence, incident
from shipped import shipped_rules

from sentinel.classify import classify
from sentinel.model.records import Cause, Evidence, Kind, Restart, Source, Trust, Verdict

RULES = shipped_rules()
STALL = evidence(
    Kind.STALL, source=Source.PROGRESS, job=101, attempt=0,
    text="no step after 37 for 12.1 s; usual gap 1.00 s, allowed 12.0 s; no process of the job computes",
)  # fmt: skip


def asked(kind: str, node: str | None, ranks: str, text: str) -> Evidence:
    rank = int(ranks.partition(",")[0]) if ranks else None
    return evidence(
        "hang", at_s=1.0, source=Source.FLIGHT_RECORDER, job=101, attempt=0, node=node, rank=rank, text=text,
        trust=Trust.USER, data={"kind": kind, "ranks": ranks, "live": True},
    )  # fmt: skip


def verdict(*items: Evidence) -> Verdict:
    tasks = [
        evidence(Kind.TASK_STATE, source=Source.PROCESS, job=101, attempt=0, node="n1", rank=0, data={"state": "S"})
    ]
    return classify(incident(STALL, *tasks, *items), rules=RULES, now=AT)


def test_the_rank_that_holds_the_others_up_is_named_with_its_node_and_the_reason() -> None:
    words = "Counts are frozen: 1 of communicator a launched 8 AllReduce, others 9. Behind: n2 process 503."
    found = verdict(asked("missing", "n2", "3", words))
    assert (found.cause, found.culprits.ranks, found.suspect) == (Cause.NCCL_HANG_UNKNOWN, (3,), ("n2",))
    assert found.restart is Restart.RESUME_EXCLUDING
    assert any(words in ground.evidence.text for ground in found.grounds)


@pytest.mark.parametrize(
    ("kind", "node", "ranks"), [("missing", "n2", "3"), ("stuck", None, ""), ("mismatch", "n2", "3")]
)
def test_what_a_job_says_of_itself_drains_nothing(kind: str, node: str | None, ranks: str) -> None:
    found = verdict(asked(kind, node, ranks, "the job says so"))
    assert found.drain == () and not found.drain_recommended


def test_calls_that_differ_are_the_programs_own() -> None:
    assert verdict(asked("mismatch", "n2", "3", "it called all_gather")).cause is Cause.COLLECTIVE_MISMATCH
