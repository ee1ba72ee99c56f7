"""Sharing one check out over nodes, and joining what they say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.checkpoints.records import Validity
from sentinel.checkpoints.shared_check import deal, join_answers, parse_share
from sentinel.checkpoints.validate import Settings, validate
from sentinel.cli.checkpoints import slurm
from sentinel.errors import ProtocolError, Timeout, Unavailable


@given(st.dictionaries(st.text("abc", min_size=1), st.integers(0, 1000)), st.integers(1, 9))
def test_every_file_is_dealt_once_and_evenly(sizes, shares):
    dealt = deal(sizes, shares)
    assert sorted(name for names in dealt for name in names) == sorted(sizes)
    loads = [sum(sizes[name] for name in names) for names in dealt]
    best = max(sum(sizes.values()) / shares, max(sizes.values(), default=0))
    assert max(loads) <= best * 4 / 3 + 1e-9 or max(loads) - min(loads) <= max(sizes.values())
    assert deal(dict(reversed(sizes.items())), shares) == dealt


def test_what_is_a_share():
    assert parse_share("3/8") == (2, 8)
    for wrong in ("0/8", "9/8", "3", "a/b", ""):
        with pytest.raises(ValueError, match="no share"):
            parse_share(wrong)


def answer(valid=True, **more):
    return Validity("/a", "dcp", 1, valid, "checksum", more.pop("reason", ""), more.pop("bytes", 5))


def test_answers_together():
    assert join_answers([answer(), answer()], 2).valid is True
    assert join_answers([answer(), answer(None, reason="x"), answer(False, reason="y")], 3).reason == "y"
    assert join_answers([answer(), answer(None, reason="x")], 2).valid is None
    assert join_answers([answer()], 2).valid is None
    assert join_answers([answer(), answer(bytes=6)], 2).valid is None


def test_the_shares_read_all_and_only_their_own(make):
    path = make.dcp("step-10", ranks=6)
    shard = path / "__4_0.distcp"
    data = bytearray(shard.read_bytes())
    data[data.index(b"archive/data/0") + 100] ^= 1
    shard.write_bytes(data)
    make.age(shard, 3600)
    answers = [validate(path, "checksum", now_s=make.now_s, settings=Settings(share=(i, 3))) for i in range(3)]
    assert sorted(str(a.valid) for a in answers) == ["False", "True", "True"]
    assert "__4_0" in join_answers(answers, 3).reason


def test_the_command_is_a_list():
    words = slurm.command([Path("/a b/step-1")], "checksum", 4, ["--partition=io"])
    assert words[:4] == ["srun", "--nodes=4", "--ntasks=4", "--ntasks-per-node=1"]
    assert {"--partition=io", "--kill-on-bad-exit=0", "--wait=0", "--input=none"} <= set(words)
    assert words[-3:] == ["SLURM/4", "--", "/a b/step-1"]


def test_answers_of_tasks_are_checked():
    line = json.dumps(answer().to_json())
    assert len(slurm.parse_answers(f"{line}\n{line}\n")["/a"]) == 2
    for wrong in ("hello", "{}", line.replace("true", '"yes"')):
        with pytest.raises(ProtocolError):
            slurm.parse_answers(wrong)


def test_without_slurm(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(Unavailable, match="no srun"):
        slurm.validate_shared([Path("/a")], "checksum", 2)


def test_a_complaint_that_is_no_text_hides_no_answer(tmp_path, monkeypatch):
    line = json.dumps(answer().to_json())
    srun = tmp_path / "srun"
    srun.write_text(f"#!/bin/sh\nprintf 'srun: \\377\\n' >&2\necho '{line}'\n")
    srun.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (told,) = slurm.validate_shared([Path("/a")], "checksum", 1)
    assert told.valid is not False
    srun.write_text("#!/bin/sh\nprintf 'srun: \\377\\n' >&2\nexit 1\n")
    with pytest.raises(Unavailable, match="xff"):
        slurm.validate_shared([Path("/a")], "checksum", 1)


def test_srun_is_stopped_and_what_was_answered_counts(tmp_path, monkeypatch):
    line = json.dumps(answer(False, reason="one shard").to_json())
    srun = tmp_path / "srun"
    srun.write_text(f"#!/bin/sh\ntrap 'exit 1' TERM\necho '{line}'\nwhile :; do sleep 0.05; done\n")
    srun.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (told,) = slurm.validate_shared([Path("/a")], "checksum", 2, deadline_s=4.0)
    assert told.valid is False
    srun.write_text("#!/bin/sh\ntrap 'exit 1' TERM\nwhile :; do sleep 0.05; done\n")
    with pytest.raises(Timeout, match="within"):
        slurm.validate_shared([Path("/a")], "checksum", 2, deadline_s=0.5)


def test_tasks_killed_before_any_had_answered_leave_it_unknown(tmp_path, monkeypatch):
    """A node that dies takes the step along: that srun complains of its tasks is no fault of the question."""
    srun = tmp_path / "srun"
    srun.write_text("#!/bin/sh\necho 'srun: error: n2: task 1: Terminated' >&2\nexit 143\n")
    srun.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (told,) = slurm.validate_shared([Path("/a")], "checksum", 4)
    assert (told.valid, told.reason) == (None, "only 0 of 4 shares were answered: srun: error: n2: task 1: Terminated")
