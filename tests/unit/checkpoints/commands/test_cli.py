"""The command line: what it prints, its exit status, and how folders are given."""

from __future__ import annotations

import json
import os
import shutil
import socket
import threading

import pytest
from click.testing import CliRunner
from saves.commands import rows, run

from sentinel.cli.checkpoints.commands import checkpoints
from sentinel.cli.checkpoints.find import expand_nodes, local_folders
from sentinel.cli.checkpoints.move import peer_of
from sentinel.errors import FileError, Refused, Timeout, UserError


def nodes(make, step, lost=()):
    whole = make.dcp(f"all/step-{step}", step=step, per_rank=True)
    for rank in set(range(4)) - set(lost):
        folder = make.root / f"nvme/n{rank}/run/step-{step}"
        folder.mkdir(parents=True)
        for file in whole.glob(f"__{rank}[._]*"):
            shutil.copy2(file, folder / file.name)


def test_find_takes_the_nearest_local(make):
    make.dcp("shared/run/step-100", step=100)
    nodes(make, 140)
    result = run(
        "find", "--global", make.root / "shared", "--local", make.root / "nvme/%N", "--nodes", "n[0-3]", "--json"
    )
    (answer,) = rows(result)
    assert answer["chosen"]["step"] == 140 and answer["chosen"]["tier"] == "local"
    assert {"path", "step", "tier", "format", "valid", "level", "reason", "bytes", "lost_steps"} <= set(
        answer["chosen"]
    )
    assert [c["step"] for c in answer["candidates"]] == [140, 100] and answer["candidates"][1]["lost_steps"] == 40
    assert result.exception is None


def test_find_after_a_lost_node_goes_back_to_global(make):
    make.dcp("shared/run/step-100", step=100)
    nodes(make, 140)
    where = ("--global", make.root / "shared", "--local", make.root / "nvme", "--nodes", "n0,n1,n2,n3", "--lost", "n2")
    (answer,) = rows(run("find", *where, "--json"))
    assert answer["chosen"]["tier"] == "global" and "n2" in answer["candidates"][1]["verdict"]


def test_find_before_the_onset(make):
    for step in (100, 110, 120):
        make.dcp(f"run/step-{step}", step=step)
    (answer,) = rows(run("find", "--global", make.root / "run", "--onset-step", 110, "--json"))
    assert answer["chosen"]["step"] == 100 and answer["chosen"]["level"] == "content"


def test_find_with_nothing_to_choose(make):
    result = run("find", "--global", make.root, "--json")
    assert rows(result)[0]["chosen"] is None
    assert isinstance(result.exception, Refused) and result.exception.exit_status == 4
    assert isinstance(run("find").exception, UserError)


def test_several_values_after_one_option(make):
    nodes(make, 140)
    locals_ = [make.root / f"nvme/n{i}" for i in range(4)]
    (answer,) = rows(run("find", "--local", *locals_, "--nodes", "n0", "n1", "n2", "n3", "--json"))
    assert answer["chosen"]["step"] == 140


def test_validate_one_line_per_path(make):
    good, bad = make.dcp("step-1", step=1), make.dcp("step-2", step=2)
    (bad / "__1_0.distcp").unlink()
    os.utime(bad, (0, 0))  # not just now
    result = run("validate", good, bad, make.root / "no\nthing", "--json")
    answers = rows(result)
    assert [a["valid"] for a in answers] == [True, False, None]
    assert list(answers[0]) == ["path", "format", "step", "valid", "level", "reason", "bytes"]
    assert isinstance(result.exception, FileError) and "is not there" in result.exception.message
    assert isinstance(run("validate", good, bad).exception, Refused)
    assert run("validate", good).exception is None


def test_a_path_that_may_not_be_read_has_an_answer_and_the_rest_goes_on(make, monkeypatch):
    good, other = make.dcp("run/step-10"), make.legacy("iter_5.pt")
    real, opening = os.access, os.open

    def denied(path, *given, **named):
        if str(path) == str(other):
            raise PermissionError(13, "Permission denied", str(path))
        return opening(path, *given, **named)

    monkeypatch.setattr(
        os, "access", lambda path, *given, **named: str(path) != str(other) and real(path, *given, **named)
    )
    monkeypatch.setattr(os, "open", denied)
    lines = run("validate", other, good, "--no-cache").output.splitlines()
    assert [line.split()[0] for line in lines[:2]] == ["not", "valid"], lines
    assert "Permission denied" in lines[0]


def test_what_was_read_is_remembered_until_it_changes(make):
    path = make.dcp("step-1", step=1)
    assert "read before" not in rows(run("validate", path, "--level", "checksum", "--json"))[0]["reason"]
    assert "read before" in rows(run("validate", path, "--level", "checksum", "--json"))[0]["reason"]
    assert "read before" not in rows(run("validate", path, "--level", "content", "--json"))[0]["reason"]
    assert "read before" not in rows(run("validate", path, "--level", "checksum", "--no-cache", "--json"))[0]["reason"]
    shard = path / "__1_0.distcp"
    data = bytearray(shard.read_bytes())
    data[data.index(b"archive/data/0") + 100] ^= 1
    status = shard.stat()
    with shard.open("r+b") as file:
        file.write(data)
    os.utime(shard, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert rows(run("validate", path, "--level", "checksum", "--json"))[0]["valid"] is False


def test_text_from_the_disk_cannot_write_to_the_terminal(make):
    path = make.dcp("step-1\x1b[31m\nfake: valid", step=1)
    for words in (("validate", path), ("inventory", "--global", make.root), ("find", "--global", make.root)):
        result = run(*words)
        assert "\x1b[31m" not in result.stdout and "\nfake" not in result.stdout and "fake" in result.stdout


def test_inventory_lists_the_ranks(make):
    nodes(make, 140)
    result = run("inventory", "--local", make.root / "nvme/n2", "--host", "n2", "--json")
    (part,) = rows(result)
    assert (part["host"], part["owners"], part["valid"]) == ("n2", [2], True)


def test_nobody_to_ask_moves_nothing(make):
    for step in (10, 20):
        make.dcp(f"run/step-{step}", step=step, ranks=1)
    result = run("quarantine", make.root / "run", "--newer-than", 10)
    assert "--yes" in result.exception.fix
    assert sorted(os.listdir(make.root / "run")) == ["step-10", "step-20"]


def test_quarantine_and_undo(make):
    for step in (10, 20, 30):
        make.dcp(f"run/step-{step}", step=step, ranks=1)
    result = run("quarantine", make.root / "run", "--newer-than", 10, "--yes", "--json")
    assert len(rows(result)) == 2 and sorted(os.listdir(make.root / "run")) == ["step-10"]
    assert len(rows(run("quarantine", make.root / "run", "--list", "--json"))) == 2
    assert len(rows(run("quarantine", make.root / "run", "--undo", "--json"))) == 2
    assert len(os.listdir(make.root / "run")) == 3


def test_drain_reports_its_share_of_the_interval(make):
    make.dcp("nvme/step-10")
    (make.root / "shared").mkdir()
    result = run("drain", make.root / "nvme/step-10", "--to", make.root / "shared/run", "--interval", 1e-6, "--json")
    (line,) = rows(result)
    assert line["complete"] is True and line["overlap_fraction"] > 0.1 and "warning" in result.stderr


def test_replicate_to_the_peer(make):
    nodes(make, 140)
    words = (
        "--to",
        make.root / "nvme/%P/run",
        "--nodes",
        "n[0-3]",
        "--host",
        "n0",
        "--domain",
        "n[0-1]=a",
        "--domain",
        "n[2-3]=b",
    )
    (line,) = rows(run("replicate", make.root / "nvme/n0/run/step-140", *words, "--json"))
    assert line["complete"] and "/n2/" in line["target"]


def test_a_manifest_makes_safetensors_provable(make):
    path = make.hf("checkpoint-6")
    assert rows(run("validate", path, "--level", "checksum", "--json"))[0]["valid"] is None
    assert run("manifest", path).exception is None
    assert rows(run("validate", path, "--level", "checksum", "--json"))[0]["valid"] is True
    assert isinstance(run("manifest", path).exception, Refused)


def test_node_lists():
    assert expand_nodes(["n[1-3,08-10],x", "a b"]) == ["n1", "n2", "n3", "n08", "n09", "n10", "x", "a", "b"]
    assert expand_nodes(["r[1-2]n[1-2]"]) == ["r1n1", "r1n2", "r2n1", "r2n2"]
    for wrong in ("n[a-b]", "n[1-999999999]"):
        with pytest.raises(UserError):
            expand_nodes([wrong])


def test_how_local_folders_are_given(tmp_path):
    for node in ("n1", "n2"):
        (tmp_path / "per" / node).mkdir(parents=True)
    names = ["n1", "n2"]
    assert [h for h, _ in local_folders([f"n7={tmp_path}"], names)] == ["n7"]
    assert [str(p) for _, p in local_folders(["/x/%N/y"], names)] == ["/x/n1/y", "/x/n2/y"]
    assert [h for h, _ in local_folders([str(tmp_path / "per")], names)] == names
    assert [h for h, _ in local_folders([str(tmp_path / "per/n2")], names)] == ["n2"]
    assert [h for h, _ in local_folders(["/nvme"], [])] == [socket.gethostname().partition(".")[0]]
    with pytest.raises(UserError, match="needs --nodes"):
        local_folders(["/x/{node}"], [])


def test_peers():
    assert peer_of("a", ["a", "b"], ()) == "b"
    for me, hosts, domain in (("z", ["a"], ()), ("a", ["a", "b"], ("a,b=r",)), ("a", ["a", "b"], ("a",))):
        with pytest.raises(UserError):
            peer_of(me, hosts, domain)


def flip(make, path):
    shard = path / "__1_0.distcp"
    data = bytearray(shard.read_bytes())
    data[data.index(b"archive/data/0") + 100] ^= 1
    shard.write_bytes(data)
    make.age(shard, 3600)


def test_large_tiers_are_read_only_where_it_counts(make, monkeypatch):
    """By structure first; then the best is read; it does not hold; then the next, and no more."""
    from sentinel.cli.checkpoints import find as module

    monkeypatch.setattr(module, "EAGER_BYTES", 0)
    for step in (10, 20, 30):
        path = make.dcp(f"run/step-{step}", step=step)
    flip(make, path)
    words = ("find", "--global", make.root / "run", "--level", "checksum", "--json")
    (answer,) = rows(run(*words))
    found = {c["step"]: (c["valid"], c["level"]) for c in answer["candidates"]}
    assert answer["chosen"]["step"] == 20
    assert found == {20: (True, "checksum"), 10: (True, "structural"), 30: (False, "checksum")}
    (answer,) = rows(run(*words, "--all"))
    assert {c["level"] for c in answer["candidates"]} == {"checksum"}


def test_large_local_tiers_too(make, monkeypatch):
    from sentinel.cli.checkpoints import find as module

    monkeypatch.setattr(module, "EAGER_BYTES", 0)
    nodes(make, 140)
    nodes(make, 160)
    flip_at = make.root / "nvme/n1/run/step-160"
    flip(make, flip_at)
    where = ("--local", make.root / "nvme/%N", "--nodes", "n[0-3]")
    (answer,) = rows(run("find", *where, "--level", "checksum", "--json"))
    assert answer["chosen"]["step"] == 140 and "n1" in answer["candidates"][1]["reason"]


def test_one_folder_for_all_nodes_is_placed_in_blocks(make):
    make.nvrx("local/session", 200)
    where = ("find", "--local", make.root / "local", "--nodes", "n[0-1]", "--json")
    assert rows(run(*where))[0]["chosen"]["shards"] == {"0": ["n0"], "1": ["n0"], "2": ["n1"], "3": ["n1"]}
    assert rows(run(*where, "--lost", "n1"))[0]["chosen"] is None


@pytest.fixture
def frozen(tmp_path_factory, monkeypatch):
    """A folder whose every listing waits for ever, as one on a file system that does not answer."""
    path = tmp_path_factory.mktemp("frozen")
    real = os.scandir

    def scandir(folder="."):
        if str(folder).startswith(str(path)):
            threading.Event().wait()
        return real(folder)

    monkeypatch.setattr(os, "scandir", scandir)
    return path


def test_a_frozen_file_system_is_not_known(frozen, make):
    whole = make.dcp("step-10", ranks=2)
    done = CliRunner().invoke(
        checkpoints,
        ["inventory", "--global", str(frozen), str(whole.parent), "--deadline", "5", "--json", "--no-cache"],
    )
    said = [json.loads(line) for line in done.stdout.splitlines()]
    assert (said[0]["valid"], said[0]["reason"]) == (None, "did not answer within 5 s")
    assert [part["valid"] for part in said if part["step"] == 10] == [True]
    done = CliRunner().invoke(checkpoints, ["find", "--global", str(frozen), "--deadline", "0.3", "--json"])
    assert json.loads(done.stdout)["chosen"] is None


def test_a_check_within_its_deadline_answers_as_without(make):
    whole = make.dcp("step-10", ranks=2)
    words = ["validate", str(whole), "--level", "checksum", "--json", "--no-cache"]
    bare, limited = (CliRunner().invoke(checkpoints, [*words, *more]) for more in ((), ("--deadline", "60")))
    assert json.loads(limited.stdout) == json.loads(bare.stdout)
    assert (limited.exit_code, json.loads(bare.stdout)["valid"]) == (0, True)


@pytest.fixture
def frozen_moves(monkeypatch):
    """A file system on which nothing that changes it ends."""
    from sentinel.checkpoints import copying, quarantine
    from sentinel.cli.checkpoints import move

    def never(*_, **__):
        threading.Event().wait()

    for module, name in ((quarantine, "quarantine"), (quarantine, "undo"), (copying, "copy")):
        monkeypatch.setattr(module, name, never)
    monkeypatch.setattr(move.manifests, "write", never)


@pytest.mark.parametrize(
    "words",
    [
        ("quarantine", "{root}/run", "{root}/run/step-5", "--yes"),
        ("quarantine", "{root}/run", "--undo"),
        ("manifest", "{root}/run/step-5"),
        ("drain", "{root}/run/step-5", "--to", "{root}/shared"),
        ("replicate", "{root}/run/step-5", "--to", "{root}/peer"),
    ],
)
def test_what_moves_and_copies_gives_up_at_its_deadline(make, frozen_moves, words):
    make.dcp("run/step-5", step=5)
    done = CliRunner().invoke(
        checkpoints, [*(word.format(root=make.root) for word in words), "--deadline", "0.2"], standalone_mode=False
    )
    assert isinstance(done.exception, Timeout), done.output
    assert "0.2 s" in done.exception.message
    assert (make.root / "run/step-5/.metadata").exists()


def test_within_its_deadline_a_move_does_what_it_does_without(make):
    make.dcp("run/step-5", step=5)
    make.dcp("run/step-6", step=6)
    (moved,) = rows(run("quarantine", make.root / "run", "--newer-than", "5", "--deadline", "60", "--yes", "--json"))
    assert moved["source"].endswith("step-6") and not (make.root / "run/step-6").exists()
    (back,) = rows(run("quarantine", make.root / "run", "--undo", "--deadline", "60", "--json"))
    assert back == moved and (make.root / "run/step-6/.metadata").exists()
    (copied,) = rows(run("drain", make.root / "run/step-6", "--to", make.root / "shared", "--deadline", "60", "--json"))
    assert copied["complete"] is True
    refused = run("quarantine", make.root / "run", make.root / "elsewhere", "--yes", "--deadline", "60")
    assert isinstance(refused.exception, UserError) and "not below" in refused.exception.message


def local_tier(make, replicas=False):
    """NVRx, four ranks on four nodes; with replicas each node also holds its neighbour's shard."""
    whole = make.nvrx("whole", step=200)
    for rank in range(4):
        for owner in {rank, (rank + 1) % 4} if replicas else {rank}:
            target = make.root / f"nvme/n{rank}/run/s1/{rank}/iter_0000200_{owner}_local.pt"
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(whole / f"{owner}/iter_0000200_{owner}_local.pt", target)


def chosen(make, *more):
    words = [
        "find",
        "--local",
        f"{make.root}/nvme/%N/run",
        "--nodes",
        "n[0-3]",
        "--world-size",
        "4",
        "--json",
        "--no-cache",
    ]
    done = CliRunner().invoke(checkpoints, [*words, *more], standalone_mode=False)
    decision = json.loads(done.stdout.splitlines()[0])
    return (decision["chosen"] or {}).get("step"), decision["candidates"][0]["verdict"]


def test_each_rank_must_find_its_shard_on_its_own_node(make):
    local_tier(make)
    assert chosen(make)[0] == 200
    assert chosen(make, "--next", "n[0-3]")[0] == 200
    step, why = chosen(make, "--next", "n0,n2,n1,n3")
    assert step is None and "rank 1 will run on n2, its shard is on n1" in why


def test_with_replication_a_replaced_node_is_no_loss(make):
    local_tier(make, replicas=True)
    assert chosen(make, "--lost", "n1", "--next", "n0,n2,n3,n4")[0] == 200
    step, why = chosen(make, "--lost", "n0,n1", "--next", "n2,n3,n4,n5")
    assert step is None and "rank 1" in why


def test_without_replication_a_replaced_node_is(make):
    local_tier(make)
    step, why = chosen(make, "--lost", "n1", "--next", "n0,n2,n3,n4")
    assert step is None and "rank 1 was only on n1, which is lost" in why
