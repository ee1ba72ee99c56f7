"""Nodes that Slurm's power saving has switched off: it gives them work, and switches them on for that."""

from __future__ import annotations

import pytest
from made_records import fleet, job, node, verdict
from made_situations import RESTART, decide, drained, kinds

from sentinel.model.records import Fleet, StepKind
from sentinel.policy.situation import is_startable


def with_others(*flags: str) -> Fleet:
    """The job's node, which is on, and seven others with these flags."""
    return fleet([node("n1", state="allocated"), *(node(f"n{at}", flags=flags) for at in range(2, 9))])


@pytest.mark.parametrize("flags", [("powered_down",), ("powered_down", "not_responding"), ("power_down",)])
def test_the_only_node_that_is_on_is_drained_and_its_job_restarted(flags: tuple[str, ...]) -> None:
    plan = decide(verdict(drain=("n1",)), fleet=with_others(*flags), job=job(nodes=("n1",)))
    assert drained(plan) == ["n1"] and kinds(plan) == [StepKind.DRAIN, *RESTART] and plan.waits == ()
    assert "waits in the queue" not in plan.explanation


@pytest.mark.parametrize("flag", ["drain", "fail", "maintenance"])
def test_what_else_keeps_a_node_out_keeps_it_out_while_it_is_off(flag: str) -> None:
    plan = decide(verdict(drain=("n1",)), fleet=with_others("powered_down", flag), job=job(nodes=("n1",)))
    assert [wait.kind for wait in plan.waits] == ["last-healthy", "no-node"] and plan.steps == ()


@pytest.mark.parametrize(
    ("state", "flags", "startable"),
    [
        ("idle", (), True), ("idle", ("not_responding",), False), ("idle", ("powered_down",), True),
        ("idle", ("powered_down", "not_responding"), True), ("idle", ("powering_up",), True),
        ("idle", ("powered_down", "drain"), False), ("down", ("powered_down",), False), ("unknown", (), False),
    ],
)  # fmt: skip
def test_which_nodes_slurm_gives_work(state: str, flags: tuple[str, ...], startable: bool) -> None:
    assert is_startable(node("n1", state=state, flags=flags)) is startable
