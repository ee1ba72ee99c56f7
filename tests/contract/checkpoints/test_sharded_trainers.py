"""What Accelerate leaves of a model sharded by FSDP, on two ranks, where it is installed: good, short of any file, damaged.

``pip install accelerate``. Run with accelerate 1.15.0 and 1.6.0 on torch 2.13. Its FSDP wants GPUs; these are the functions
with which it writes.
"""

from __future__ import annotations

import importlib.util
import os
import shutil

import pytest
from saves.real_saves import an_hour_apart, ask, written_by

pytestmark = pytest.mark.torch
pytest.importorskip("torch", reason="PyTorch is not installed")

PROGRAM = """
import os, sys
import torch, torch.multiprocessing as mp

def rank_main(rank, root, version):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    dist.init_process_group("gloo", init_method=f"file://{root}/meet", rank=rank, world_size=2)
    from accelerate import Accelerator, FullyShardedDataParallelPlugin
    from accelerate.checkpointing import save_accelerator_state
    from accelerate.utils import save_fsdp_model, save_fsdp_optimizer
    accelerator = Accelerator(cpu=True)
    plugin = FullyShardedDataParallelPlugin(fsdp_version=version, state_dict_type="SHARDED_STATE_DICT", cpu_offload=False)
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Linear(16, 4))
    if version == 2:
        torch.distributed.fsdp.fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    else:
        model = torch.distributed.fsdp.FullyShardedDataParallel(model, device_id=torch.device("cpu"))
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=100)
    for step in range(1, 5):
        model(torch.randn(2, 16)).square().mean().backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        if step % 2 == 0:
            path = f"{root}/run/step_{step}"
            os.makedirs(path, exist_ok=True)
            plugin.set_state_dict_type("SHARDED_STATE_DICT")
            save_fsdp_model(plugin, accelerator, model, path, 0)
            save_fsdp_optimizer(plugin, accelerator, optimizer, model, path, 0)
            dist.barrier()
            save_accelerator_state(path, [], [], [scheduler], [], rank, step, scaler=None)
            dist.barrier()
    dist.destroy_process_group()

if __name__ == "__main__":
    mp.spawn(rank_main, (sys.argv[1], int(sys.argv[2])), nprocs=2)
"""


@pytest.fixture(scope="module", params=[1, 2])
def run(request, tmp_path_factory):
    """Two steps, an hour apart."""
    if importlib.util.find_spec("accelerate") is None:
        pytest.skip("accelerate is optional and not installed")
    root = tmp_path_factory.mktemp("fsdp")
    run = written_by(PROGRAM, root, str(request.param))
    an_hour_apart(run, earlier="step_2")
    return run


@pytest.mark.parametrize("level", ["structural", "checksum", "content"])
def test_whole(run, level):
    for step in (2, 4):
        answer = ask(run / f"step_{step}", level)
        assert (answer.valid, answer.format, answer.step) == (True, "accelerate", step), answer


def test_short_of_anything(run, tmp_path):
    path = run / "step_4"
    for thing in sorted(path.rglob("*")):
        held = thing.rename(run.parent / "held")
        answer = ask(path)
        held.rename(thing)
        assert answer.valid is not True, f"without {thing.relative_to(path)}: {answer}"
    assert ask(path).valid is True


def test_a_file_of_the_other_step(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    path = tmp_path / "run/step_4"
    for file in sorted(path.rglob("*")):
        if not file.is_file():
            continue
        mine, status = file.read_bytes(), file.stat()
        shutil.copy2(tmp_path / "run/step_2" / file.relative_to(path), file)
        answer = ask(path)
        assert answer.valid is not True, f"{file.relative_to(path)} of step 2: {answer}"
        if file.name != "scheduler.bin" and "random" not in file.name:  # nothing in them says of which step they are
            os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
            answer = ask(path)
            assert answer.valid is not True, f"{file.relative_to(path)} of step 2 with its own time: {answer}"
        file.write_bytes(mine)
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert ask(path).valid is True
