"""Checkpoints as this machine's torch writes them: accepted whole, not accepted damaged, also where torch itself loads."""

from __future__ import annotations

import importlib.util
import os
import pickle
import time
from pathlib import Path

import pytest
from saves.real_saves import written_by

from sentinel.checkpoints.inventory import listing
from sentinel.checkpoints.join import join
from sentinel.checkpoints.validate import validate

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch", reason="PyTorch is not installed")

BENCH = Path(__file__).resolve().parents[2] / "bench" / "checkpoints"
MAKE = """
import sys, warnings
import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

def rank_main(rank, root):
    warnings.filterwarnings("ignore")
    dist.init_process_group("gloo", init_method=f"file://{root}/meet", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    def state(step):
        torch.manual_seed(step)
        big = distribute_tensor(torch.randn(7, 64), mesh, [Shard(0)])
        low = distribute_tensor(torch.randn(8, 16).bfloat16(), mesh, [Shard(0)])
        return {"model": {"w": big, "low": low, "norm": torch.ones(5)}, "optim": {"exp_avg": big * 0.1, "step": step},
                "train_state": {"step": step}, f"rank{rank}": {"seed": rank}}
    dcp.save(state(10), checkpoint_id=f"{root}/run/step-10")
    dcp.save(state(20), storage_writer=dcp.FileSystemWriter(f"{root}/run/step-20", thread_count=2))
    dcp.async_save(state(30), checkpoint_id=f"{root}/run/step-30").result()
    dcp.save(state(40), storage_writer=dcp.FileSystemWriter(f"{root}/run/step-40", single_file_per_rank=False))
    dcp.save(state(50), checkpoint_id=f"{root}/run/step-50", use_collectives=False)
    even = distribute_tensor(torch.randn(8, 64), mesh, [Shard(0)])
    tensors = {"model": {"w": even}, "optim": {"state": {"w": {"exp_avg": even * 0.1}}}}
    for name, collectives in (("even/step-60", True), ("alone/step-60", False)):
        dcp.save(tensors, checkpoint_id=f"{root}/{name}", use_collectives=collectives)
    dist.barrier()
    dist.destroy_process_group()

if __name__ == "__main__":
    mp.spawn(rank_main, (sys.argv[1],), nprocs=2)
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Five checkpoints of two ranks with sharded tensors, uneven ones among them."""
    root = tmp_path_factory.mktemp("torch")
    return written_by(MAKE, root, within_s=1800)


def put(file, data):
    status = file.stat()
    file.write_bytes(data)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("step", [10, 20, 30, 40, 50])
@pytest.mark.parametrize("level", ["structural", "checksum", "content"])
def test_accepts_what_torch_saves(run, step, level):
    answer = validate(run / f"step-{step}", level)
    assert (answer.valid, answer.step, answer.format) == (True, step, "dcp"), answer


def test_torch_loads_a_flipped_byte_and_we_do_not(run, tmp_path):
    import torch.distributed.checkpoint as dcp

    shard = run / "step-10/__0_0.distcp"
    good = shard.read_bytes()
    raw = pickle.loads((run / "step-10/.metadata").read_bytes())
    place = next(i for k, i in raw.storage_data.items() if k.fqn == "model.w" and i.relative_path == shard.name)
    item = good[place.offset : place.offset + place.length]
    at = place.offset + item.index(b"data/0") + 200
    put(shard, good[:at] + bytes([good[at] ^ 0x40]) + good[at + 1 :])
    state = {"model": {"w": torch.zeros(7, 64)}}
    with pytest.warns(UserWarning, match="single process"):
        dcp.load(state, checkpoint_id=run / "step-10")
    torch.manual_seed(10)
    assert not torch.equal(state["model"]["w"], torch.randn(7, 64))
    assert validate(run / "step-10", "checksum").valid is False
    put(shard, good)
    assert validate(run / "step-10", "checksum").valid is True


@pytest.mark.parametrize("name", ["even", "alone"])
def test_a_shard_copied_over_another_ranks(run, name):
    path = run.parent / name / "step-60"
    assert validate(path, "content").valid is True
    mine, theirs = path / "__1_0.distcp", path / "__0_0.distcp"
    good = mine.read_bytes()
    assert len(good) == theirs.stat().st_size
    put(mine, theirs.read_bytes())
    answer = validate(path, "checksum")
    put(mine, good)
    assert answer.valid is None and "holds the numbers of" in answer.reason


def test_nodes_that_hold_one_rank_each(run, tmp_path):
    for rank in range(2):
        folder = tmp_path / f"n{rank}/step-50"
        folder.mkdir(parents=True)
        for file in (run / "step-50").glob(f"__{rank}[._]*"):
            (folder / file.name).write_bytes(file.read_bytes())
        for file in sorted(folder.iterdir()):
            os.utime(file, (1e9, 1e9))
    both = [listing(tmp_path / f"n{rank}", "local", f"n{rank}", level="content") for rank in range(2)]
    (one,) = join(both)
    assert (one.valid, one.shards) == (True, {0: {"n0"}, 1: {"n1"}})
    for alone in both:
        assert join([alone])[0].valid is None


@pytest.mark.parametrize("legacy", [False, True])
def test_files_of_torch_save(tmp_path, legacy):
    path = tmp_path / "iter_70.pt"
    state = {"w": torch.randn(64, 3).t(), "tied": torch.ones(9)[2:5], "half": torch.randn(4).half(), "iteration": 70}
    torch.save(state, path, _use_new_zipfile_serialization=not legacy)
    assert validate(path, "structural").valid is True and validate(path, "structural").step == 70
    assert validate(path, "content").valid is (None if legacy else True)
    put(path, path.read_bytes()[:-1])
    assert validate(path, "structural").valid is None, "it may be being written"
    assert validate(path, "structural", now_s=time.time() + 3600).valid is False


@pytest.mark.parametrize(
    "dtype", ["float32", "float64", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "complex64"]
)
def test_every_kind_of_nan_is_seen(tmp_path, dtype):
    """And no finite number, however large, is taken for one."""
    kind = getattr(torch, dtype)
    largest = torch.finfo(kind).max
    path = tmp_path / "a.pt"
    torch.save({"w": torch.tensor([0.0, largest, -largest, 1.0], dtype=torch.float64).to(kind)}, path)
    assert validate(path, "content").valid is True, validate(path, "content")
    torch.save({"w": torch.tensor([0.0, 1.0, float("nan"), 1.0]).to(kind)}, path)
    assert validate(path, "content").valid is False


def test_a_mask_of_infinities_is_no_damage(tmp_path):
    path = tmp_path / "a.pt"
    torch.save({"mask": torch.full((9, 9), float("-inf")).triu(1)}, path)
    assert validate(path, "content").valid is True
    torch.save({"w": torch.tensor([1.0, float("-inf")])}, path)
    assert validate(path, "content").valid is False


@pytest.mark.parametrize("mode", ["plain", "async", "per_rank"])
def test_a_job_killed_in_its_saves_goes_on_as_if_it_had_not_been(mode, monkeypatch):
    monkeypatch.syspath_prepend(BENCH)  # as where it runs by itself
    spec = importlib.util.spec_from_file_location("kill_in_save", BENCH / "kill_in_save.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    result = module.run(2, mode, seed=5)
    assert result["losses_wrong"] == 0 and result["resumed_at_wrong_step"] == 0, result
