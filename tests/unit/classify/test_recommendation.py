"""What asks for a drain, what for a test, and what is said where no cause is found."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner
from shipped import shipped_rules, shipped_signatures

from sentinel.classify import classify as judged
from sentinel.cli.offline.classify import classify
from sentinel.config.rules import Drain
from sentinel.evidence.logs.reader import LogReader
from sentinel.model.records import Cause, Incident, Recommendation, Source, Verdict, Where

RULES = shipped_rules()
SIGNATURES = shipped_signatures()
NOW = datetime(2026, 3, 4, 12, tzinfo=UTC)
README = Path(__file__).resolve().parents[3] / "rules" / "README.md"

CHANNEL = "NVRM: krcWatchdog_IMPL: RC watchdog: GPU is probably locked!  Notify Timeout Seconds: 7"
CONTAINED = "NVRM: Xid (PCI:0000:5d:00): 94, pid=1, Contained: SM (0x1). RST: No, D-RST: No"
LOST = "NVRM: Xid (PCI:0000:5d:00): 79, pid=1, GPU has fallen off the bus."
SILENT = "error: Nodes gpu9 not responding"
UNKILLABLE = "update_node: node gpu9 reason set to: Kill task failed"
SET_DOWN = "error: Nodes gpu9 not responding, setting DOWN"


def verdict_of(source: Source, *lines: str) -> Verdict:
    reader = LogReader(SIGNATURES, source=source, where=Where(node="gpu9", job=7, path="x"))
    found = reader.feed("".join(f"{line}\n" for line in lines).encode(), NOW) + reader.finish(NOW)
    return judged(Incident("i1", NOW, NOW, job=7, nodes=("gpu9",), evidence=tuple(found)), rules=RULES, now=NOW)


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        (Source.SLURM, [SILENT]),
        (Source.SLURM, [UNKILLABLE]),
        (Source.SLURM, [SILENT, UNKILLABLE]),
        (Source.KERNEL, [CHANNEL]),
        (Source.KERNEL, [CONTAINED]),
        (Source.KERNEL, [CHANNEL, CONTAINED]),
        (Source.KERNEL, ["NVRM: Xid (PCI:0000:5d:00): 109, pid=1, name=_, Ch 8, errorString CTX SWITCH TIMEOUT"]),
    ],
)
def test_what_only_suspects_drains_nothing_however_much_of_it_there_is(source: Source, lines: list[str]) -> None:
    verdict = verdict_of(source, *lines)
    assert (verdict.drain, verdict.suspect) == ((), ("gpu9",))
    assert (verdict.recommendation, verdict.drain_recommended) == (Recommendation.SUSPECT, False)


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("update_node: node gpu9 reason set to: SlurmdSpoolDir is full", Cause.DISK_FULL),
        ("error: cannot create cred context for (null)", Cause.SOFTWARE_ENV),
    ],
)
def test_a_full_disk_of_the_host_is_a_suspect_and_a_plugin_that_does_not_load_says_nothing_of_one(
    line: str, cause: Cause
) -> None:
    verdict = verdict_of(Source.SLURM, line)
    assert (verdict.cause, verdict.drain) == (cause, ())
    suspected = cause is Cause.DISK_FULL
    assert verdict.suspect == (("gpu9",) if suspected else ())
    assert verdict.recommendation is (Recommendation.SUSPECT if suspected else Recommendation.NONE)


def test_a_line_that_accuses_the_node_makes_a_suspect_whichever_cause_of_a_machine_leads(tmp_path: Path) -> None:
    """The stack of the task that hangs names the driver, the line before it the host: no node is named in either."""
    (tmp_path / "log").write_text(
        "[  630.141619] INFO: task umc_page_retire:9472 blocked for more than 122 seconds.\n"
        "[  630.306338]  amdgpu_ras_page_retirement_thread+0x469/0x4e0 [amdgpu]\n"
    )
    answer = ask(tmp_path / "log")
    assert (answer["cause"], answer["recommendation"]) == ("gpu_gsp_or_driver", "suspect")


@pytest.mark.parametrize(("source", "line"), [(Source.SLURM, SET_DOWN), (Source.KERNEL, LOST)])
def test_what_convicts_drains_by_one_line(source: Source, line: str) -> None:
    verdict = verdict_of(source, line)
    assert (verdict.drain, verdict.recommendation, verdict.drain_recommended) == (("gpu9",), Recommendation.DRAIN, True)


def test_the_table_of_what_convicts_alone_is_that_of_the_rules() -> None:
    table = README.read_text().partition("## What convicts alone")[2].partition("\n## ")[0]
    alone = {f"`{rule.id}`": rule.source for rule in RULES.rules if rule.drain is Drain.YES}
    assert all(alone.values())
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| ")]
    listed = {row[0].removeprefix("| "): row[2].removesuffix(" |") for row in rows}
    assert {name: why for name, why in listed.items() if name.startswith("`")} == alone


def ask(path: Path) -> dict:
    result = CliRunner().invoke(classify, ["--json", str(path)])
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


STEPS = "".join(f"iteration {i:8d}/ 5000 | lm loss: 2.1 |\n" for i in range(20))
OUT_OF_MEMORY = "CUDA out of memory. Tried to allocate 2.00 GiB\n"
DONE = "INFO - Training completed\n"
STORE_GONE = (
    "[rank3]:[W606 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=5): failed to recv, got 0 bytes\n"
)
WATCHDOG = "[rank0]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE)\n"
ODD = "boiler: error 17: the valve refused to turn\n"


@pytest.mark.parametrize(
    ("text", "kind", "restart", "unread"),
    [
        (STEPS, "no_failure", "none", 0),
        (ODD + STEPS, "no_failure", "none", 1),
        (ODD + "[after training is done] datetime: 2026-03-04\n", "no_failure", "none", 1),
        (f"{OUT_OF_MEMORY}{DONE}", "no_failure", "none", 0),  # it tried again with a smaller batch, and came to its end
        (f"{STEPS}{DONE}{STORE_GONE}", "no_failure", "none", 0),  # rank 0, which serves the store, leaves first
        (STEPS + ODD, "nothing_recognised", "resume", 1),
        (OUT_OF_MEMORY + STEPS, "no_failure", "none", 0),
        (ODD * 3, "nothing_recognised", "resume", 3),
        ("hello\n", "nothing_recognised", "resume", 0),
    ],
)
def test_without_a_cause_it_is_said_why(tmp_path: Path, text: str, kind: str, restart: str, unread: int) -> None:
    log = tmp_path / "job.out"
    log.write_text(text)
    answer = ask(log)
    assert (answer["cause"], answer["unknown_kind"], answer["restart"], answer["confidence"]) == (
        "unknown",
        kind,
        restart,
        0.0,
    )
    assert [line["text"] for line in answer["unread"]] == [ODD.strip()] * unread
    assert answer["recommendation"] == "none"


@pytest.mark.parametrize(("after", "cause"), [(OUT_OF_MEMORY, "app_oom_gpu"), (STEPS + WATCHDOG, "nccl_hang_unknown")])
def test_what_fails_after_the_end_of_the_training_is_told(tmp_path: Path, after: str, cause: str) -> None:
    """A last evaluation that needs too much memory, or a second run in the same log."""
    log = tmp_path / "job.out"
    log.write_text(STEPS + DONE + after)
    assert ask(log)["cause"] == cause


def test_undecided_names_the_causes_and_their_shares(tmp_path: Path) -> None:
    log = tmp_path / "job.out"
    log.write_text("    torch.distributed.barrier()\n")  # where it stood, and no word of what broke
    answer = ask(log)
    assert answer["cause"] == "unknown" and answer["unknown_kind"] == "undecided"
    assert len(answer["alternatives"]) >= 2 and all(0 < each["confidence"] < 1 for each in answer["alternatives"])


def test_one_line_of_a_program_is_never_quite_sure() -> None:
    text = "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 79.00 GiB in total"
    assert verdict_of(Source.JOB_LOG, text).confidence <= RULES.judgement.single_line
    assert verdict_of(Source.KERNEL, LOST).confidence > RULES.judgement.single_line


def test_a_cause_is_named_where_its_siblings_share_the_odds() -> None:
    verdict = verdict_of(Source.JOB_LOG, "AssertionError")
    assert verdict.cause in {Cause.USER_CODE, Cause.USER_CONFIG}


@pytest.mark.parametrize(
    ("number", "words", "recommendation"),
    [
        (
            149,
            "NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6 0x00000000 0x00000000)",
            Recommendation.DRAIN,
        ),  # the peer
        (145, "RLW_SRC_TRACK Fatal XC0 i0 Link 12 (0x040988e2 0x00000001 0x00000000)", Recommendation.DRAIN),
        (145, "RLW_SRC_TRACK Nonfatal XC1 i0 Link 12 (0x040988e2 0x00000008 0x00000000)", Recommendation.SUSPECT),
        (145, "RLW_REMAP Nonfatal XC0 i0 Link 12 (0x04098082 0x00000001 0x00000000)", Recommendation.SUSPECT),
        (144, "SAW_MVB Nonfatal XC0 i0 Link 12 (0x04098021 0x00000004 0x00000000)", Recommendation.NONE),
        (149, "NETIR_BER_EVENT Nonfatal XC0 i0 Link 03 (0x00086226 0x00000001 0x00000000)", Recommendation.NONE),
        (
            149,
            "NETIR_LINK_EVT Fatal XC0 i0 Link 03 (0x02600000 0x00000000 0x00000000)",
            Recommendation.NONE,
        ),  # software
    ],
)
def test_nvlink_5_is_judged_by_sub_code_and_status(number: int, words: str, recommendation: Recommendation) -> None:
    verdict = verdict_of(Source.KERNEL, f"NVRM: Xid (PCI:0008:01:00): {number}, {words}")
    assert verdict.recommendation is recommendation
    assert verdict.cause is (Cause.UNKNOWN if recommendation is Recommendation.NONE else Cause.GPU_NVLINK)
    assert "link" in verdict.grounds[0].note


@pytest.mark.parametrize("number", [144, 145, 149, 150])
def test_the_bare_number_of_an_nvlink_5_xid_is_a_suspicion(number: int) -> None:
    """DCGM and monitors tell the number only; the driver says of most of them that they were not fatal."""
    told = f"Detected XID {number} for GPU 0 Please consult the documentation for details of this XID."
    assert verdict_of(Source.JOB_LOG, told).recommendation is Recommendation.SUSPECT
    assert verdict_of(Source.JOB_LOG, told, told.replace("GPU 0", "GPU 1")).recommendation is Recommendation.SUSPECT
    assert verdict_of(Source.JOB_LOG, "Detected XID 79 for GPU 0").recommendation is Recommendation.DRAIN


def test_all_rows_of_nvidias_decoding_are_there() -> None:
    assert len({(key[0], key[2], key[3], row) for key, row in RULES.nvlink5.items()}) > 40
    assert sum(1 for _ in (README.parent / "nvlink5.toml").read_text().splitlines() if "xid = " in _) == 94


def test_a_line_that_convicts_the_node_counts_though_another_machine_s_cause_leads() -> None:
    """The GPU did not reset, and what its driver then does to the bus is most of what the log says."""
    reset = "amdgpu 0000:03:00.0: amdgpu: GPU mode1 reset failed"
    bus = [
        "pcieport 0000:00:01.1: AER: Uncorrectable (Non-Fatal) error message received from 0000:03:00.1",
        "pci 0000:03:00.1: PCIe Bus Error: severity=Uncorrectable (Non-Fatal), type=Transaction Layer, (Requester ID)",
        "pci 0000:03:00.1:    [20] UnsupReq               (First)",
    ]

    def asked_by(*lines: str) -> Verdict:
        reader = LogReader(SIGNATURES, where=Where(path="dmesg.txt"))
        text = "".join(f"[  151.0862{n:02}] {line}\n" for n, line in enumerate(lines))
        found = reader.feed(text.encode(), NOW) + reader.finish(NOW)
        return judged(Incident("i1", NOW, NOW, evidence=tuple(found)), rules=RULES, now=NOW)

    assert asked_by(*bus).recommendation is Recommendation.SUSPECT
    both = asked_by(*bus, "pcieport 0000:02:00.0: AER: device recovery failed", reset)
    assert (both.cause, both.recommendation) == (Cause.PCIE, Recommendation.DRAIN)
