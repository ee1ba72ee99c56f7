"""What Megatron-core leaves of a torch_dist save of two ranks, where it is installed: good, short of any file, damaged.

``pip install megatron-core``. Run with megatron-core 0.16.1 on torch 2.13. It saves from GPUs; the two questions that it
puts to torch.cuda while it saves are answered for the CPU, nothing else is replaced.
"""

from __future__ import annotations

import importlib.util
import os
import shutil

import pytest
from saves.real_saves import an_hour_apart, ask, needs_each_file, written_by

pytestmark = pytest.mark.torch
pytest.importorskip("torch", reason="PyTorch is not installed")

PROGRAM = """
import os, sys
import torch, torch.distributed as dist, torch.multiprocessing as mp

torch.cuda.synchronize = lambda *_: None
torch.cuda.current_device = lambda: "cpu"

def rank_main(rank, root):
    dist.init_process_group("gloo", init_method=f"file://{root}/meet", rank=rank, world_size=2)
    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing import ShardedObject, ShardedTensor
    for step in (10, 20):
        path = f"{root}/run/iter_{step:07d}"
        if rank == 0:
            os.makedirs(path)
        dist.barrier()
        torch.manual_seed(step * 2 + rank)
        state = {"iteration": step, "args": {"lr": 0.1}, "checkpoint_version": 3.0,
                 "rng_state": ShardedObject("rng_state", {"seed": rank}, (2,), (rank,), replica_id=0)}
        for name in ("model.weight", "optimizer.exp_avg", "optimizer.exp_avg_sq"):
            state[name] = ShardedTensor.from_rank_offsets(name, torch.rand(8, 16), (0, rank, 2))
        dist_checkpointing.save(state, path, ("torch_dist", 1))
        dist.barrier()
    if rank == 0:
        with open(f"{root}/run/latest_checkpointed_iteration.txt", "w") as file:
            file.write("20")
    dist.destroy_process_group()

if __name__ == "__main__":
    mp.spawn(rank_main, (sys.argv[1],), nprocs=2)
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Two steps, an hour apart."""
    if importlib.util.find_spec("megatron") is None:
        pytest.skip("megatron-core is optional and not installed")
    root = tmp_path_factory.mktemp("megatron")
    run = written_by(PROGRAM, root)
    an_hour_apart(run, earlier="0010")
    return run


@pytest.mark.parametrize("level", ["structural", "checksum", "content"])
def test_whole(run, level):
    for step in (10, 20):
        answer = ask(run / f"iter_{step:07d}", level)
        assert (answer.valid, answer.format, answer.step) == (True, "megatron", step), answer
    answer = ask(run, level)  # what the tracker names
    assert (answer.valid, answer.step) == (True, 20), answer


def test_short_of_anything(run):
    needs_each_file(run / "iter_0000020")


@pytest.mark.parametrize("where", [0.02, 0.5, 0.98])
def test_a_flipped_bit_or_a_short_file(run, tmp_path, where):
    path = tmp_path / "run/iter_0000020"
    shutil.copytree(run, tmp_path / "run")
    for file in [*sorted(path.glob("*.distcp")), path / "common.pt"]:
        mine, status = file.read_bytes(), file.stat()
        at = int(len(mine) * where)
        for kind, bad in (
            ("bit", mine[:at] + bytes([mine[at] ^ 4]) + mine[at + 1 :]),
            ("short", mine[:at]),
            ("zeros", mine[:at] + bytes(len(mine) - at)),
        ):
            file.write_bytes(bad)
            os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
            answer = ask(path)
            assert answer.valid is False, f"{kind} at {at} of {len(mine)} in {file.name}: {answer}"
        file.write_bytes(mine)
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert ask(path).valid is True


def test_a_file_of_the_other_step(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    path = tmp_path / "run/iter_0000020"
    for file in [*sorted(path.glob("*.distcp")), path / "common.pt", path / ".metadata"]:
        mine, status = file.read_bytes(), file.stat()
        shutil.copy2(tmp_path / "run/iter_0000010" / file.name, file)
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
        answer = ask(path)
        assert answer.valid is not True, f"{file.name} of step 10: {answer}"
        file.write_bytes(mine)
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert ask(path).valid is True
