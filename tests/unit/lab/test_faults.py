from __future__ import annotations

import argparse
import json
import os
import re

import pytest
from lab import cluster, gpus, inject, processes
from lab.faults import ALL
from lab.faults.base import book
from lab.layout import LabError

NAMES = (
    "xid gpu-lost ecc hang crash nan oom node-crash node-cut agent-cut slow corrupt-checkpoint disk-full storage fabric "
    "controller-frozen"
).split()
RECORD = re.compile(r"^\d+,\d+,\d+,-;.+$")


@pytest.fixture
def lab(make_lab):
    lab = make_lab()
    gpus.prepare(lab)
    return lab


def parse(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    inject.add_arguments(parser, argparse.ArgumentParser(add_help=False))
    return parser.parse_args(list(words))


def records(lab):
    return [json.loads(line) for line in (lab.dir / "faults.jsonl").read_text().splitlines()]


def test_every_fault_that_is_promised_is_there():
    assert sorted(ALL) == sorted(NAMES)
    assert all(fault.line for fault in ALL.values())


def test_xid_79_takes_the_gpu_away_and_says_so_in_the_kernel_log(lab, capsys):
    inject.run(lab, parse("xid", "--node", "n2", "--gpu", "3", "--xid", "79", "--json"))
    said = json.loads(capsys.readouterr().out)
    assert (said["fault"], said["node"], said["gpu"], said["lasting"]) == ("xid", "n2", 3, True)
    state = gpus.read(lab, "n2")["gpus"]
    assert [gpu["status"] for gpu in state] == ["ok"] * 3 + ["lost"] + ["ok"] * 4
    assert [event["xid"] for event in state[3]["xids"]] == [79]
    lines = (lab.node("n2") / "kmsg").read_text().splitlines()
    assert all(RECORD.match(line) for line in lines)
    assert [int(line.split(",")[1]) for line in lines] == list(range(len(lines)))
    address = state[3]["pci"].removesuffix(".0")
    assert any(f"NVRM: Xid (PCI:{address}): 79, " in line for line in lines)
    assert len((lab.node("n1") / "kmsg").read_text().splitlines()) == 1


def test_other_xids_leave_the_gpu_reachable_and_take_the_words_given(lab, capsys):
    inject.run(lab, parse("xid", "--node", "n1", "--xid", "31", "--text", "own words"))
    assert gpus.read(lab, "n1")["gpus"][0]["status"] == "ok"
    assert "31, pid='<unknown>', name=<unknown>, own words" in (lab.node("n1") / "kmsg").read_text()


def test_undo_heals_and_leaves_the_list_of_faults_in_force_empty(lab, capsys):
    inject.run(lab, parse("gpu-lost", "--node", "n1", "--gpu", "2"))
    inject.run(lab, parse("ecc", "--node", "n3"))
    before = gpus.read(lab, "n1")["gpus"][2]["uuid"]
    assert [fault["fault"] for fault in cluster.faults_now(lab)] == ["gpu-lost", "ecc"]
    inject.run(lab, parse("gpu-lost", "--undo"))
    assert [fault["fault"] for fault in cluster.faults_now(lab)] == ["ecc"]
    healed = gpus.read(lab, "n1")["gpus"][2]
    assert (healed["status"], healed["uuid"]) == ("ok", before)
    with pytest.raises(LabError, match="no gpu-lost is in force"):
        inject.run(lab, parse("gpu-lost", "--undo"))


def test_double_bit_errors_count_up_and_corrected_ones_have_no_xid(lab, capsys):
    for _ in range(2):
        inject.run(lab, parse("ecc", "--node", "n1", "--gpu", "1"))
    inject.run(lab, parse("ecc", "--node", "n1", "--gpu", "1", "--kind", "sbe"))
    gpu = gpus.read(lab, "n1")["gpus"][1]
    assert (gpu["fields"]["311"], gpu["fields"]["310"]) == (2, 12)
    assert [event["xid"] for event in gpu["xids"]] == [48, 48]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("xid", "--node", "n9", "--xid", "79"), "n1 to n3"),
        (("xid", "--node", "n1", "--gpu", "8", "--xid", "79"), "GPUs 0 to 7"),
        (("xid", "--xid", "79"), "needs --node"),
        (("xid", "--node", "n1"), "needs --xid"),
        (("node-cut", "--node", "n1"), "--isolated"),
        (("agent-cut", "--node", "n1"), "--isolated"),
        (("hang",), "no job runs"),
        (("corrupt-checkpoint",), "no complete checkpoint"),
    ],
)
def test_what_cannot_be_done_says_why_and_leaves_no_record(lab, words, message):
    with pytest.raises(LabError, match=message):
        inject.run(lab, parse(*words))
    assert not (lab.dir / "faults.jsonl").exists()


def test_newest_complete_checkpoint_is_found_per_tier(lab, capsys):
    from lab.faults.checkpoints import newest

    for step in (9, 10):
        part = lab.node("n1") / "nvme" / "run1" / f"step-{step}"
        part.mkdir(parents=True)
        (part / "__0.metadata").touch()
    (lab.shared / "run1" / "step-5").mkdir(parents=True)
    (lab.shared / "run1" / "step-5" / ".metadata").touch()
    (lab.shared / "run1" / "step-7").mkdir()  # not finished
    assert newest(lab, "local", None, None).name == "step-10"
    assert newest(lab, "global", "run1", None).name == "step-5"
    with pytest.raises(LabError):
        newest(lab, "local", None, "n2")


def test_faults_that_end_by_themselves_are_not_in_force(lab):
    book(lab, ALL["crash"].record(job=7))
    book(lab, ALL["hang"].record(job=7))
    assert [fault["fault"] for fault in cluster.faults_now(lab)] == ["hang"]


def test_a_hang_ends_with_its_process(lab):
    own = processes.start_of(os.getpid())
    assert own is not None
    book(lab, ALL["hang"].record(job=7, pid=os.getpid(), start=own))
    book(lab, ALL["hang"].record(job=7, pid=os.getpid(), start=own - 1))
    assert [fault["start"] for fault in cluster.faults_now(lab)] == [own]
