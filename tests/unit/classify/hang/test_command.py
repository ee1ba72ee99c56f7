"""``sentinel hang``."""

from __future__ import annotations

import json
import os
import pickle

import pytest
from click.testing import CliRunner

from sentinel.cli.offline.hang import hang
from sentinel.errors import UserError
from sentinel.evidence.nccl.flight_recorder import MAX_BYTES

KEYS = {"culprit_ranks", "kind", "collective", "sequence", "waiting", "explanation"}


@pytest.fixture
def folder(make, tmp_path):
    for name, value in make.nested().items():
        for item in value["entries"]:
            item["frames"] = [{"name": "[bold]step\x1b[31m", "filename": "train.py", "line": 42}]
        (tmp_path / name).write_bytes(pickle.dumps(value, 2))
    (tmp_path / "torchrun.log").write_text("starting\n")
    return tmp_path


def run(*arguments):
    return CliRunner().invoke(hang, list(map(str, arguments)), catch_exceptions=False)


def test_one_object_on_one_line(folder):
    result = run("--json", folder)
    answer = json.loads(result.stdout)
    assert result.exit_code == 0
    assert answer.keys() >= KEYS
    assert (answer["culprit_ranks"], answer["waiting"]["2"], answer["files_ignored"]) == ([3], [3], 1)
    assert "train.py:42" in answer["call_sites"]["3"][0]


def test_the_words_for_people_name_rank_and_line_and_obey_no_markup(folder):
    result = run(folder)
    assert "rank 3: never called" in result.stdout
    assert "[bold]step?[31m (train.py:42)" in result.stdout
    assert "\x1b" not in result.stdout


def test_a_folder_of_nothing_is_bad_input(tmp_path):
    with pytest.raises(UserError, match="no flight-recorder dump") as caught:
        run(tmp_path)
    assert caught.value.exit_status == 2
    assert "TORCH_FR_DUMP_TEMP_FILE" in caught.value.fix


def test_a_path_that_is_not_there_is_bad_input(tmp_path):
    with pytest.raises(UserError, match="is not there"):
        run(tmp_path / "none")


def test_a_fifo_does_not_block(folder):
    os.mkfifo(folder / "nccl_trace_rank_9.pipe")
    answer = json.loads(run("--json", folder).stdout)
    assert answer["culprit_ranks"] == [3]
    assert [item["reason"] for item in answer["unreadable"]] == ["no regular file"]


def test_a_huge_file_is_refused_by_its_size(folder):
    with (folder / "nccl_trace_rank_7").open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    answer = json.loads(run("--json", folder).stdout)
    assert "more than" in answer["unreadable"][0]["reason"]


def test_the_world_size_tells_of_ranks_that_no_dump_mentions(make, tmp_path):
    for name, value in make.world(3, lambda rank: {}).items():
        value["pg_config"] = {"": {"name": "", "desc": "", "ranks": "[]"}}
        (tmp_path / name).write_bytes(pickle.dumps(value, 2))
    assert json.loads(run("--json", tmp_path).stdout)["kind"] == "stuck"
    answer = json.loads(run("--json", "--world-size", 4, tmp_path).stdout)
    assert (answer["kind"], answer["culprit_ranks"]) == ("missing", [3])


def cut(folder, length):
    """The first dump, cut to what ``length`` says of its bytes."""
    path = sorted(path for path in folder.iterdir() if path.suffix != ".log")[0]
    data = path.read_bytes()
    path.write_bytes(data[: length(data)])
    return str(path)


def in_one_line(text):
    """As it was written: a terminal's width breaks it where the path is long."""
    return " ".join(text.split())


def test_a_dump_of_which_nothing_of_use_is_left_is_named_as_torn(folder):
    """Its first words alone, without calls and states, are no state of its rank."""
    read = json.loads(run("--json", folder).stdout)["ranks_read"]
    path = cut(folder, lambda data: data.index(b"pg_status"))
    answer = json.loads(run("--json", folder).stdout)
    assert [(item["path"], "torn" in item["reason"]) for item in answer["unreadable"]] == [(path, True)]
    assert answer["ranks_read"] == read - 1
    assert f"not read: {path}: torn" in in_one_line(run(folder).stdout)


def test_a_torn_dump_is_used_as_far_as_it_goes_and_named(folder):
    assert json.loads(run("--json", folder).stdout)["torn"] == []
    path = cut(folder, lambda data: len(data) * 9 // 10)
    answer = json.loads(run("--json", folder).stdout)
    assert (answer["torn"], answer["unreadable"]) == ([path], [])
    assert f"torn: {path}" in in_one_line(run(folder).stdout)
