"""What DeepSpeed leaves of ZeRO 0 to 3 on two ranks, where it is installed: good, short of any file, of two saves.

``pip install deepspeed``. Run with DeepSpeed 0.19.8 and 0.16.9 on torch 2.13, on CPU and gloo.
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
import os, sys, traceback
os.environ.update(DS_ACCELERATOR="cpu", DS_BUILD_OPS="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
for name in ("transformers", "triton", "mpi4py"):  # optional to it, and slow to import
    sys.modules[name] = None
import torch
import deepspeed
# Its shared-memory operations are compiled when it starts, and wait for ever for the lock of a build that was cut off.
setattr(sys.modules["deepspeed.comm.torch"], "build_shm_op", lambda: None)

def work(rank, root, stage):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", LOCAL_SIZE="2")
    torch.set_num_threads(1)
    deepspeed.init_distributed("gloo", init_method=f"file://{root}/meet", rank=rank, world_size=2, verbose=False)
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(16, 24), torch.nn.LayerNorm(24), torch.nn.Linear(24, 8)).bfloat16()
    config = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": stage}, "bf16": {"enabled": True},
              "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    engine = deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0]
    for step in range(1, 5):
        engine.backward(engine(torch.randn(2, 16).bfloat16()).square().mean())
        engine.step()
        if step % 2 == 0:
            engine.save_checkpoint(f"{root}/run", tag=f"global_step{step}")
    torch.distributed.barrier()

children = []
for rank in range(2):
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work(rank, sys.argv[1], int(sys.argv[2]))
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    children.append(child)
sys.exit(any(os.waitpid(child, 0)[1] for child in children))
"""


@pytest.fixture(scope="module", params=[1, 2, 3])
def run(request, tmp_path_factory):
    """Two steps, an hour apart."""
    if importlib.util.find_spec("deepspeed") is None:
        pytest.skip("DeepSpeed is optional and not installed")
    run = written_by(PROGRAM, tmp_path_factory.mktemp("deepspeed"), str(request.param))
    an_hour_apart(run, earlier="global_step2")
    return run


@pytest.mark.parametrize("level", ["structural", "checksum", "content"])
def test_whole(run, level):
    for step in (2, 4):
        answer = ask(run / f"global_step{step}", level)
        assert (answer.valid, answer.format, answer.step) == (True, "deepspeed", step), answer


def test_short_of_anything(run):
    needs_each_file(run / "global_step4")


def test_a_file_of_the_other_step_or_rank(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    path = tmp_path / "run/global_step4"
    for file in sorted(path.iterdir()):
        mine, status = file.read_bytes(), file.stat()
        others = {tmp_path / "run/global_step2" / file.name, *path.glob(f"*{file.name[-16:]}")} - {file}
        for other in others:
            file.write_bytes(other.read_bytes())
            os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
            answer = ask(path)
            assert answer.valid is not True, f"{file.name} is {other.relative_to(tmp_path)}: {answer}"
        file.write_bytes(mine)
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert ask(path).valid is True
