"""What two processes of Orbax 0.12.8 saved to their own nodes' disks (``primary_host=None``, as its emergency manager does;
recorded): each store describes every array, and holds half of ``w`` and ``mu`` and all of ``step``."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

import pytest

from sentinel.checkpoints.copying import copy
from sentinel.checkpoints.files import Broken
from sentinel.checkpoints.inventory import listing
from sentinel.checkpoints.join import join
from sentinel.checkpoints.validate import record, validate

NOW_S = 2_000_000_000.0
RECORDED = Path(__file__).parents[1] / "recorded/orbax-node-local-0.12.8.tar.gz"


@pytest.fixture
def disks(tmp_path):
    with tarfile.open(RECORDED) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


def joined(disks, *nodes):
    parts = [listing(disks / node / "run", "local", node, now_s=NOW_S) for node in nodes]
    (candidate,) = join(parts)
    return candidate


def test_both_nodes_hold_it(disks):
    candidate = joined(disks, "node0", "node1")
    assert candidate.valid is True and candidate.step == 10, candidate
    assert candidate.shards == {0: {"node0"}, 1: {"node1"}}


@pytest.mark.parametrize("node", ["node0", "node1"])
def test_one_node_alone_does_not(disks, node):
    candidate = joined(disks, node)
    assert candidate.valid is None and "shard" in candidate.reason, candidate


def test_a_copy_of_the_one_is_not_the_other(disks):
    shutil.copytree(disks / "node0", disks / "node2")
    candidate = joined(disks, "node0", "node2")
    assert candidate.valid is None and "do not cover every tensor" in candidate.reason, candidate
    assert joined(disks, "node0", "node1", "node2").valid is True


@pytest.mark.parametrize("node", ["node0", "node1"])
def test_as_a_save_for_all_nodes_it_is_not_whole(disks, node):
    save = disks / node / "run/10"
    answer = validate(save, "structural", now_s=NOW_S)
    assert answer.valid is False, answer
    assert node == "node1" or "of the array mu 2 of 4 chunks are there" in answer.reason, answer
    with pytest.raises(Broken):
        record(save, disks / "kept", lambda count: None, now_s=NOW_S)
    (disks / "shared").mkdir()
    done = copy(save, disks / "shared/run", Path("10"))
    assert not done.complete and done.waiting_for and not (disks / "shared/run/10").exists()
