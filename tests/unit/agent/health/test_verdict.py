"""The dated verdict: BAD only on proof, UNKNOWN when nothing is readable."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from shipped import shipped_rules

from sentinel.agent.health import verdict
from sentinel.agent.health.verdict import VerdictKeeper
from sentinel.config.convictions import Conviction, Convictions, Drain
from sentinel.config.rules import Rules
from sentinel.evidence.dcgm import Fact
from sentinel.model.records import Evidence, Kind, Source, Trust, Where, utc
from sentinel.wire import evidence_from, to_json

RULES = shipped_rules()
AT = utc(1_900_000_000)


def evidence(kind: str, source: Source, **data: Any) -> Evidence:
    return Evidence("e", AT, AT, source, kind, data=data)


def keeper(
    tmp_path: Path, facts: Any = (), trouble: str | None = None, boot: str = "b1", rules: Rules = RULES
) -> VerdictKeeper:
    return VerdictKeeper(
        tmp_path, tmp_path, boot, lambda: list(facts), lambda: trouble, rules, clock=lambda: 1_900_000_000.9
    )


def test_fresh_telemetry_and_nothing_against_it(tmp_path: Path) -> None:
    keeper(tmp_path).write()
    first, uptime = (tmp_path / "verdict").read_text().splitlines()
    assert first == "OK 1900000000 ok nothing speaks against this node"
    assert abs(int(uptime) - time.clock_gettime(time.CLOCK_BOOTTIME)) < 60


def test_the_prolog_refuses_nothing_until_the_daemon_says_that_it_may(tmp_path: Path) -> None:
    mode = tmp_path / "drain_mode"
    made = keeper(tmp_path)
    assert mode.read_text() == "observe\n"
    made.set_drain_mode("act")
    assert mode.read_text() == "act\n"
    keeper(tmp_path)
    assert mode.read_text() == "act\n", "a restarted agent keeps what it was told"


def test_no_telemetry_is_not_known(tmp_path: Path) -> None:
    assert keeper(tmp_path, trouble="DCGM is away").now().line == "UNKNOWN 1900000000 telemetry DCGM is away\n"


def test_a_fact_that_holds_now(tmp_path: Path) -> None:
    assert keeper(tmp_path, [Fact("gpu_lost", "a GPU is lost: GPU-1")]).now().word == "BAD"


@pytest.mark.parametrize("xid", [48, 64, 79, 95, 140, 143])
def test_xids_that_convict_alone(tmp_path: Path, xid: int) -> None:
    made = keeper(tmp_path)
    made.consider(evidence(Kind.XID, Source.KERNEL, xid=xid, pci="0000:01:00"))
    assert made.now().code == f"xid_{xid}"
    assert (tmp_path / "verdict").read_text().startswith("BAD"), "written at once"


def test_it_is_read_while_others_change_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scrapes of metrics, heartbeats, the kernel's log and telemetry are threads of their own."""
    made = keeper(tmp_path)
    for pci in ("0000:01:00", "0000:02:00"):
        made.consider(evidence(Kind.XID, Source.KERNEL, xid=79, pci=pci))

    def comes(*arguments: Any) -> Fact:
        made._convictions.setdefault(f"xid_95/{len(made._convictions)}", "Xid 95")
        return Fact(*arguments)

    class Said(dict[str, float]):
        def get(self, *arguments: Any) -> Any:
            comes("", "")
            return super().get(*arguments)

    monkeypatch.setattr(verdict, "Fact", comes)
    assert made.now().code == "xid_79"
    monkeypatch.setattr(made, "_said_s", Said(made._said_s))
    made.released("a return", 0.0)
    assert made.now().code == "xid_95", "what came meanwhile was not taken back"


def test_what_users_claim_convicts_nobody(tmp_path: Path) -> None:
    made = keeper(tmp_path)
    made.consider(replace(evidence(Kind.XID, Source.KERNEL, xid=79), trust=Trust.USER))
    assert made.now().word == "OK"


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 63, 94, 119, None, "79"])
def test_xids_that_do_not(tmp_path: Path, xid: Any) -> None:
    made = keeper(tmp_path)
    made.consider(evidence(Kind.XID, Source.KERNEL, xid=xid))
    assert made.now().word == "OK"


def test_what_a_user_printed_convicts_nobody(tmp_path: Path) -> None:
    made = keeper(tmp_path)
    made.consider(evidence(Kind.XID, Source.JOB_LOG, xid=79))
    assert made.now().word == "OK"


def test_a_conviction_outlives_the_agent_and_ends_with_the_boot(tmp_path: Path) -> None:
    keeper(tmp_path).consider(evidence(Kind.XID, Source.DCGM, xid=95))
    assert keeper(tmp_path).now().word == "BAD"
    assert keeper(tmp_path, boot="b2").now().word == "OK"


def test_what_convicts_is_kept_with_it_and_sent_again_when_it_is_asked_for(tmp_path: Path) -> None:
    made, sent = keeper(tmp_path), list[dict[str, Any]]()
    made.consider(replace(evidence(Kind.XID, Source.DCGM, xid=95), id="lost"))
    made.consider(replace(evidence(Kind.XID, Source.KERNEL, xid=79, pci="0000:61:00"), id="there"))
    made.consider(replace(evidence(Kind.XID, Source.KERNEL, xid=43), id="harmless"))
    again = keeper(tmp_path)
    assert again.now().told["evidence"] == ["lost", "there"]
    for asked in (["lost", "harmless", 7], None, "lost", []):
        again.send_again(asked, sent.append)
    assert [item["id"] for item in sent] == ["lost"]
    assert evidence_from(sent[0]).data == {"xid": 95}
    again.released("2030-03-17T17:46:41Z", 0.0)
    assert keeper(tmp_path).now().told["evidence"] == []


def test_a_diagnostic_of_all_gpus_that_passed_takes_it_back(tmp_path: Path) -> None:
    made = keeper(tmp_path)
    made.consider(evidence(Kind.XID, Source.DCGM, xid=95))
    made.diagnosed({"result": "inconclusive", "gpus": None, "level": 3})
    made.diagnosed({"result": "pass", "gpus": ["GPU-1"], "level": 3})
    made.diagnosed({"result": "pass", "gpus": None})  # which one is not known
    assert made.now().word == "BAD"
    made.diagnosed({"result": "pass", "gpus": None, "level": 3})
    assert made.now().word == "OK"


GSP_CONVICTS = replace(RULES, convictions=Convictions({("xid", 119): Conviction(Drain.YES)}))


@pytest.mark.parametrize(
    ("item", "rules", "level"),
    [
        (evidence(Kind.XID, Source.KERNEL, xid=64, pci="0000:5d:00"), RULES, 3),  # as gpu_memory_ecc asks
        (evidence(Kind.XID, Source.KERNEL, xid=119, pci="0000:5d:00"), GSP_CONVICTS, 2),  # as gpu_gsp_or_driver asks
        (evidence(Kind.XID, Source.KERNEL, xid=154, action="reset", pci="0000:5d:00"), RULES, 3),  # of no cause
        *((evidence(Kind.DIAG_FAILED, Source.DIAGNOSTIC, code=80, part="GPU 3", level=n), RULES, n) for n in (1, 2, 4)),
        (evidence(Kind.DIAG_FAILED, Source.DIAGNOSTIC, code=80, part="GPU 3"), RULES, 3),  # which one is not known
    ],
)
def test_a_pass_of_a_lower_level_than_what_it_must_disprove_takes_nothing_back(
    tmp_path: Path, item: Evidence, rules: Rules, level: int
) -> None:
    keeper(tmp_path, rules=rules).consider(item)
    made = keeper(tmp_path, rules=rules)  # started again
    for lower in range(level):
        made.diagnosed({"result": "pass", "gpus": None, "level": lower})
        assert (made.now().word, made.now().level) == ("BAD", level)
    made.diagnosed({"result": "pass", "gpus": None, "level": level})
    assert (made.now().word, made.now().level) == ("OK", 0)


def test_each_conviction_ends_with_its_own_level_and_the_verdict_tells_the_deepest(tmp_path: Path) -> None:
    made = keeper(tmp_path)
    for level in (2, 1):  # the same part: what failed deeper is not disproved by the lighter test
        made.consider(evidence(Kind.DIAG_FAILED, Source.DIAGNOSTIC, code=80, part="GPU 3", level=level))
    made.consider(evidence(Kind.XID, Source.KERNEL, xid=64, pci="0000:5d:00"))
    assert (made.now().code, made.now().level) == ("diagnostic", 3)
    made.diagnosed({"result": "pass", "gpus": None, "level": 2})
    assert (made.now().code, made.now().level) == ("xid_64", 3)


def test_a_conviction_that_an_agent_before_this_kept_ends_with_what_an_unknown_cause_asks_for(tmp_path: Path) -> None:
    old = {"boot": "b1", "convictions": {"xid_64/0000:5d:00": "Xid 64 on 0000:5d:00"}, "since_s": {}}
    (tmp_path / "convictions.json").write_text(json.dumps(old))
    assert (keeper(tmp_path).now().word, keeper(tmp_path).now().level) == ("BAD", 3)


def test_a_failed_diagnostic_convicts_only_with_proof(tmp_path: Path) -> None:
    made = keeper(tmp_path)
    made.consider(evidence(Kind.DIAG_FAILED, Source.DIAGNOSTIC, code=62, dcgm_severity=4))
    assert made.now().word == "OK"
    made.consider(evidence(Kind.DIAG_FAILED, Source.DIAGNOSTIC, code=80, dcgm_severity=6))
    assert made.now().word == "BAD"


def test_the_sentence_stays_on_one_line(tmp_path: Path) -> None:
    assert keeper(tmp_path, trouble="a\nOK 1 ok\x1b[0m").now().line.count("\n") == 1


class Node:
    """An agent's verdict and what its node's clocks say; ``keeper`` anew: the agent was started again."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.clock_s, self.up_s = folder, 1_900_000_000.9, 100.0
        self.keeper = self.started()

    def started(self, *facts: Fact) -> VerdictKeeper:
        self.keeper = VerdictKeeper(
            self.folder, self.folder, "b1", lambda: facts, lambda: None, RULES, lambda: self.clock_s, lambda: self.up_s
        )
        return self.keeper

    def xid(self) -> None:
        self.keeper.consider(evidence(Kind.XID, Source.KERNEL, xid=79, pci="0000:01:00"))

    def passes(self, seconds: float) -> None:
        self.clock_s, self.up_s = self.clock_s + seconds, self.up_s + seconds

    def answered(self, released_s: float, at_s: float, took_s: float = 0.0) -> str:
        """Its word, once the daemon said of a return, and of now, which second of its own clock it was."""
        told = {"at": to_json(utc(at_s)), "released_at": to_json(utc(released_s))}
        self.keeper.heard(told, took_s)
        return self.keeper.now().word


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_a_release_answers_for_what_was_said_before_it_and_not_for_what_holds_now(node: Node) -> None:
    node.xid()
    node.passes(10.0)
    assert node.answered(500.0, 515.0) == "BAD", "before the Xid was read: it speaks of something else"
    assert node.answered(510.0, 515.0) == "OK"
    assert node.started().now().word == "OK"
    node.xid()
    node.passes(60.0)
    node.xid()
    node.passes(5.0)
    assert node.answered(550.0, 580.0) == "BAD", "heard late: the same came again after it"
    node.started(Fact("gpu_lost", "GPU 3 is lost"))
    assert node.answered(580.0, 580.0) == "BAD"
    assert "GPU 3" in node.keeper.now().sentence and "Xid" not in node.keeper.now().sentence


@pytest.mark.parametrize("step_s", [-3600.0, 3600.0])
def test_a_release_holds_however_the_nodes_clock_was_set_meanwhile(node: Node, step_s: float) -> None:
    """A node comes up with the local time in its hardware clock, an Xid is read, and then its time is set right."""
    node.xid()
    node.clock_s += step_s
    node.passes(60.0)
    assert node.answered(7_000.0, 7_001.0) == "OK"
    node.xid()
    node.clock_s -= step_s
    node.passes(60.0)
    assert node.answered(7_000.0, 7_061.0) == "BAD", "the same return, told again"


def test_a_return_counts_once_also_for_an_agent_that_is_started_again(node: Node) -> None:
    """The daemon's clock may be set meanwhile, or another host's daemon answer by then."""
    assert node.answered(500.0, 501.0) == "OK"
    node.passes(5.0)
    node.xid()
    node.passes(5.0)
    node.started()
    assert node.answered(500.0, 500.5) == "BAD"
    assert node.answered(520.0, 519.0) == "OK", "another one"


def test_what_was_said_while_the_answer_was_under_way_is_newer_than_the_return(node: Node) -> None:
    node.passes(5.0)
    node.xid()
    node.passes(1.0)
    assert node.answered(500.0, 500.5, took_s=6.0) == "BAD"


def test_what_an_agent_before_this_kept_is_released_by_a_return_after_it_ended(node: Node) -> None:
    old = {
        "boot": "b1",
        "convictions": {"xid_64/0000:5d:00": "Xid 64"},
        "since_s": {"xid_64/0000:5d:00": 1_899_999_000.0},
    }
    (node.folder / "convictions.json").write_text(json.dumps(old))
    node.started()
    node.passes(10.0)
    assert node.answered(500.0, 520.0) == "BAD"
    assert node.answered(521.0, 525.0) == "OK"


def test_the_sentence_names_the_gpu_of_each_fault(tmp_path: Path) -> None:
    made = keeper(tmp_path)
    places = [f"00000000:{number:02X}:00.0" for number in range(8)]
    for pci in places:
        made.consider(evidence(Kind.XID, Source.KERNEL, xid=154, action="drain_reset", pci=pci))
    assert made.now().sentence == f"the driver asks for drain reset of {', '.join(places)}"
    made.consider(evidence(Kind.XID, Source.KERNEL, xid=79, pci=places[2]))
    assert made.now().sentence.endswith(f"; Xid 79 on {places[2]}")


def test_the_sentence_counts_what_it_does_not_name(tmp_path: Path) -> None:
    facts = [Fact(f"fault_{number}", f"fault {number} was found somewhere") for number in range(400)]
    line = keeper(tmp_path, facts).now()
    shown = line.sentence.split("; ")
    assert len(line.sentence) <= 300 and all(shown)
    assert shown[-1] == f"and {400 - (len(shown) - 1)} more" and len(shown) > 8


def test_a_diagnostics_part_stands_where_it_is_not_cut_away(tmp_path: Path) -> None:
    made = keeper(tmp_path)
    for gpu in range(8):
        text = f"an error of the memory that cannot be repaired was found with certainty on GPU {gpu}; replace it"
        made.consider(replace(evidence(Kind.DIAG_FAILED, Source.DIAGNOSTIC, code=80, part=f"GPU {gpu}"), text=text))
    assert all(f"GPU {gpu}" in made.now().sentence for gpu in range(8))


@pytest.mark.parametrize(
    "text",
    [
        "GPU {} had uncorrectable memory errors and row remapping failed. Run a field diagnostic on the GPU.",
        "On the GPU {} were uncorrectable memory errors and row remapping failed. Run a field diagnostic.",
        "Row remapping failed after {} uncorrectable errors of the memory. Run a field diagnostic.",
        "GPU {}Detected a miscompare failure in the L1 cache. Run a field diagnostic on the GPU, soon.",
    ],
)
def test_the_sentence_names_all_of_sixteen_gpus(tmp_path: Path, text: str) -> None:
    made = keeper(tmp_path)
    for gpu in range(16):
        item = evidence(Kind.DIAG_FAILED, Source.DIAGNOSTIC, code=80, part=f"GPU {gpu}")
        made.consider(replace(item, text=text.format(gpu)))
    sentence = made.now().sentence
    assert len(sentence) <= 300
    assert all(re.search(rf"\bGPU {gpu}\b", sentence) for gpu in range(16)), sentence


def test_a_condition_that_a_site_lets_convict_names_each_gpu(tmp_path: Path) -> None:
    made = keeper(tmp_path, rules=Rules(convictions=Convictions({("condition", "ecc_dbe"): Conviction(Drain.YES)})))
    for gpu in range(16):
        item = evidence("ecc_dbe", Source.DCGM)
        made.consider(replace(item, text="uncorrectable memory errors: 0 -> 1", where=Where(gpu=gpu)))
    assert made.now().code == "ecc_dbe"
    assert made.now().sentence == f"{', '.join(f'GPU {n}' for n in range(16))}: uncorrectable memory errors: 0 -> 1"


def test_the_sentence_names_all_of_sixteen_lost_gpus_by_the_starts_of_their_uuids(tmp_path: Path) -> None:
    uuids = [f"GPU-{number * 0x1234567:08x}-0000-1111-2222-333344445555" for number in range(16)]
    assert keeper(tmp_path, [Fact("gpu_lost", f"a GPU is lost: {uuids[3]}")]).now().sentence.endswith(uuids[3])
    sentence = keeper(tmp_path, [Fact("gpu_lost", f"a GPU is lost: {uuid}") for uuid in uuids]).now().sentence
    assert all(uuid[:12] in sentence for uuid in uuids) and sentence.startswith("a GPU is lost: GPU-"), sentence


def test_the_sentence_of_sixteen_xids_has_their_number_and_each_address(tmp_path: Path) -> None:
    made = keeper(tmp_path)
    for bus in range(16):
        made.consider(evidence(Kind.XID, Source.KERNEL, xid=154, action="drain_reset", pci=f"00000000:{bus:02X}:00.0"))
        made.consider(evidence(Kind.XID, Source.KERNEL, xid=79, pci="00000000:03:00.0"))
    sentence = made.now().sentence
    assert (
        sentence.startswith("the driver asks for drain reset of 0000:")
        and "Xid 79 on 0000:03:00.0" in sentence
        and len(sentence) <= 300
    )
    assert all(f"0000:{bus:02X}:00.0" in sentence for bus in range(16)), sentence
