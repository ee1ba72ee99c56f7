"""Independent faults on nodes of one job: both are named, whatever order, kind and noise they come in."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from in_memory.daemon import RULES
from made_records import AT, ended, evidence, incident

from sentinel.classify import classify
from sentinel.model.records import Cause, Evidence, Kind, Scope, Source, Trust

XIDS = {79: Cause.GPU_FALLEN_OFF_BUS, 95: Cause.GPU_MEMORY_ECC, 48: Cause.GPU_MEMORY_ECC, 143: Cause.GPU_GSP_OR_DRIVER}


def xid(number: int, node: str, at_s: float = 0.0) -> Evidence:
    return evidence(
        Kind.XID, node=node, at_s=at_s, data={"xid": number, "pci": "0000:3b:00"}, text=f"NVRM: Xid {number}"
    )


def noise(kind: str, node: str, at_s: float) -> Evidence:
    return evidence(kind, node=node, at_s=at_s, source=Source.DCGM, text=kind)


@given(
    one=st.sampled_from(sorted(XIDS)),
    other=st.sampled_from(sorted(XIDS)),
    apart_s=st.floats(-90, 90),
    noisy=st.lists(
        st.tuples(
            st.sampled_from(["clocks_slowdown", "nvlink_errors", "gpu_thermal", "pcie_replay", "link_flap"]),
            st.sampled_from(["n5", "n6", "n7", "n8"]),
            st.floats(-100, 0),
        ),
        max_size=6,
    ),
    died=st.booleans(),
)
def test_two_convicted_nodes_are_both_drained(
    one: int, other: int, apart_s: float, noisy: list[tuple[str, str, float]], died: bool
) -> None:
    items = [xid(one, "n1"), xid(other, "n2", apart_s), *(noise(*told) for told in noisy)]
    items += [ended(at_s=100.0)] if died else []
    verdict = classify(incident(*items, nodes=["n1", "n2"]), rules=RULES, now=AT)
    assert set(verdict.drain) == {"n1", "n2"}, (verdict.cause, verdict.confidence, verdict.drain)
    assert set(verdict.culprits.nodes) >= {"n1", "n2"}
    assert verdict.confidence >= 0.6 and verdict.drain_recommended  # else nothing would be done for either


@pytest.mark.parametrize("second_node", ["n1", "n2"])
def test_two_faults_of_one_machine_leave_the_cause_open_and_not_the_drain(second_node: str) -> None:
    """Each of both lines is enough; that either may have come first makes nobody less sure that the node goes."""
    items = [xid(48, "n1"), xid(79, second_node, 0.1), ended(at_s=1.0)]
    verdict = classify(incident(*items, nodes=["n1", "n2"]), rules=RULES, now=AT)
    assert set(verdict.drain) == {"n1", second_node} and verdict.drain_confidence >= 0.8, verdict


@pytest.mark.parametrize("number", [48, 95, 140, 64, 79])
def test_a_gpu_that_runs_hot_beside_a_fault_that_is_enough_does_not_keep_its_node_in_service(number: int) -> None:
    heat = [noise(kind, "n1", -1.0) for kind in ("gpu_thermal", "clocks_slowdown")]
    verdict = classify(incident(xid(number, "n1", -5.0), *heat, ended(at_s=1.0), nodes=["n1"]), rules=RULES, now=AT)
    assert verdict.drain == ("n1",) and verdict.drain_confidence >= 0.8, verdict


def test_a_second_node_makes_nobody_less_sure_of_the_first() -> None:
    items = [xid(48, "n1"), xid(79, "n1", 0.1), xid(48, "n2", 0.2), ended(at_s=1.0)]
    verdict = classify(incident(*items, nodes=["n1", "n2"]), rules=RULES, now=AT)
    assert set(verdict.drain) == {"n1", "n2"} and verdict.drain_confidence >= 0.6, verdict


def test_what_a_program_says_adds_nothing_to_the_drain() -> None:
    said = evidence("oom-gpu", source=Source.JOB_LOG, text="CUDA out of memory", at_s=0.5)
    alone = classify(incident(xid(79, "n1"), nodes=["n1"]), rules=RULES, now=AT)
    both = classify(incident(xid(79, "n1"), said, nodes=["n1"]), rules=RULES, now=AT)
    assert both.drain_confidence <= alone.drain_confidence and alone.drain == ("n1",), both


@pytest.mark.parametrize("count", [0, 1, 3, 6])
def test_slow_clocks_elsewhere_do_not_hide_a_broken_node(count: int) -> None:
    hot = [noise("clocks_slowdown", f"n{5 + n}", -60.0 + n) for n in range(count)]
    verdict = classify(incident(*hot, xid(119, "n1"), noise("gpu_lost", "n1", 0.1), nodes=["n1"]), rules=RULES, now=AT)
    assert verdict.drain == ("n1",) and verdict.scope is not Scope.CLUSTER, verdict


def test_node_that_is_only_advised_against_is_a_suspect_beside_the_other_fault() -> None:
    verdict = classify(incident(xid(79, "n1"), xid(119, "n2", 1.0), nodes=["n1", "n2"]), rules=RULES, now=AT)
    assert verdict.drain == ("n1",) and verdict.suspect == ("n2",)


def test_shared_fault_stays_one() -> None:
    down = [noise("link_down", f"n{n}", 0.1 * n) for n in range(1, 6)]
    verdict = classify(incident(*down, nodes=["n1"]), rules=RULES, now=AT)
    assert (verdict.cause, verdict.scope, verdict.drain) == (Cause.NETWORK_FABRIC, Scope.CLUSTER, ())


def test_what_follows_on_the_same_node_is_no_second_fault() -> None:
    verdict = classify(
        incident(xid(79, "n1"), xid(45, "n1", 1.0), xid(45, "n2", 2.0), nodes=["n1"]), rules=RULES, now=AT
    )
    assert verdict.cause is Cause.GPU_FALLEN_OFF_BUS and verdict.drain == ("n1",) and verdict.suspect == ()


def test_words_of_a_program_accuse_no_second_node() -> None:
    said = evidence(Kind.XID, node="n2", source=Source.JOB_LOG, job=101, data={"xid": 79}, text="NVRM: Xid 79")
    verdict = classify(incident(xid(95, "n1"), said, nodes=["n1"]), rules=RULES, now=AT)
    assert verdict.drain == ("n1",)


@pytest.mark.parametrize("lines", [1, 2, 4])
def test_what_a_program_prints_hides_no_convicted_node(lines: int) -> None:
    """It says of another machine that a GPU is gone, as often as it likes: the kernel's word about this one stays."""
    printed = [
        evidence(
            kind, at_s=-3.0 + 0.1 * n, source=Source.JOB_LOG, job=101, attempt=0, data={"xid": 79, "pci": "0000:5d:00"},
            text="n9 kernel: NVRM: Xid (PCI:0000:5d:00): 79, GPU has fallen off the bus.",
        )
        for n in range(lines) for kind in (Kind.XID, "gpu-off-bus")
    ]  # fmt: skip
    verdict = classify(incident(*printed, ended(at_s=-1.0), xid(48, "n2"), nodes=["n2"]), rules=RULES, now=AT)
    assert verdict.drain == ("n2",) and verdict.drain_recommended, verdict


@given(
    number=st.sampled_from(sorted(XIDS)),
    programs=st.lists(st.sampled_from(["oom-kill-cgroup", 13, 31, 43]), min_size=1, max_size=3, unique=True),
    noisy=st.lists(st.sampled_from(["link_down", "nvlink_errors", "pcie_replay", "clocks_slowdown"]), max_size=3),
    apart_s=st.floats(-20, 20),
)
def test_what_the_kernel_says_of_a_program_hides_no_convicted_node(
    number: int, programs: list[str | int], noisy: list[str], apart_s: float
) -> None:
    """Found by explore: out of memory, a link that was down and a GPU off the bus, all on one node, within 6 s."""
    said = [
        xid(told, "n1") if isinstance(told, int) else evidence(told, node="n1", text="Memory cgroup out of memory")
        for told in programs
    ]
    items = [*said, *(noise(kind, "n1", 0.5) for kind in noisy), ended(at_s=1.5), xid(number, "n1", apart_s)]
    verdict = classify(incident(*items, nodes=["n1"]), rules=RULES, now=AT)
    assert verdict.drain == ("n1",) and verdict.drain_recommended, verdict


@pytest.mark.parametrize("kind", [Kind.NODE_UNREACHABLE, Kind.GPU_LOST, Kind.XID])
@pytest.mark.parametrize("apart_s", [-10.0, 5.0])
def test_bad_numbers_of_the_job_leave_no_broken_machine_in_service(kind: str, apart_s: float) -> None:
    """Found by a random story: the losses of a job stayed no numbers, then one of its nodes was gone."""
    numbers = evidence(
        Kind.NUMBERS, source=Source.PROGRESS, job=101, attempt=0, trust=Trust.USER, at_s=apart_s,
        text="loss nan since step 32", data={"onset_step": 32, "prints": 5, "step": 36},
    )  # fmt: skip
    line = evidence(
        "nan", source=Source.JOB_LOG, job=101, attempt=0, trust=Trust.USER, at_s=apart_s - 1, text="loss nan"
    )
    said = (dataclasses.replace(line, rule="nan"), numbers)
    broken = xid(79, "n7") if kind == Kind.XID else evidence(kind, node="n7", source=Source.HOST, text=kind)
    verdict = classify(incident(*said, broken, job=101, attempt=0, nodes=["n7", "n8"]), rules=RULES, now=AT)
    assert verdict.drain == ("n7",) and verdict.drain_recommended, verdict
    assert max(verdict.confidence, verdict.drain_confidence) >= 0.6, verdict
