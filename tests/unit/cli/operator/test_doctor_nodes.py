"""What doctor says of sources on nodes that their agents cannot read, and of evidence that never came."""

from __future__ import annotations

from sentinel.cli.operator.doctor_daemon import BAD, GOOD, NOT_KNOWN, Finding, findings_of
from sentinel.config.settings import Settings


def found(**nodes: dict[str, object]) -> dict[str, Finding]:
    told = {name: {"agent": "heard", "clock_offset_s": 0.1, **node} for name, node in nodes.items()}
    seen = {"version": "1.0", "slurm_problem": "", "modes": {}, "resume": "", "nodes": told}
    return {finding.what: finding for finding in findings_of(seen, Settings())}


def test_a_kernel_log_that_is_not_read_is_named() -> None:
    finding = found(n1={"kernel_readable": False}, n2={"kernel_readable": True}, n3={"kernel_readable": False})[
        "kernel logs"
    ]
    assert (finding.answer, finding.seen[:21]) == (NOT_KNOWN, "not read on n[1,3]: n") and "kernel.path" in finding.fix


def test_what_agents_do_not_tell_is_not_said_to_be_read() -> None:
    assert "kernel logs" not in found(n1={}, n2={"kernel_readable": None})
    assert found(n1={"kernel_readable": True}, n2={})["kernel logs"].seen == "read on 1 node"
    assert found(n1={"kernel_readable": True})["kernel logs"].answer == GOOD
    assert "kernel logs" not in found(n1={"kernel_readable": False, "agent": "silent"})


def test_evidence_that_never_came_is_told() -> None:
    assert "evidence" not in found(n1={"evidence_lost": 0}, n2={"evidence_lost": None})
    finding = found(n1={"evidence_lost": 3}, n2={"evidence_lost": 4})["evidence"]
    assert finding.answer == BAD and finding.seen.startswith("7 pieces never came from n[1-2]")
