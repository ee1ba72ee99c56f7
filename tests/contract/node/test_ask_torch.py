"""A real PyTorch job that hangs, asked while it hangs: two gloo ranks, one of which never comes to the third collective."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from in_memory.daemon import FakeOrders
from in_memory.slurm import FakeClock
from nodes.agent_process import JOB, JOB_GID, JOB_UID, ROOT, open_folder

from sentinel.daemon.effects.ask_hung_job import HungJobQuestions
from sentinel.engine.transition import AskHungJob

sys.path.insert(0, str(ROOT / "deploy"))

from lab.account import account

PROGRAM = """
import os, sys, time
import torch, torch.distributed as dist
from torch.distributed.elastic.control_plane import worker_main

def stuck_in_loader():
    time.sleep(600)

@worker_main()
def main():
    rank, folder = int(os.environ["RANK"]), sys.argv[1]
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=3)
    for _ in range(2):
        dist.all_reduce(torch.ones(4))
    open(f"{folder}/came{rank}", "w").close()
    if rank == 1:
        stuck_in_loader()
    dist.all_reduce(torch.ones(4))

main()
"""

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="needs torch: a job to ask")


@pytest.fixture
def folder() -> Iterator[Path]:
    with open_folder() as made:
        os.chown(made, JOB_UID, JOB_GID)
        yield made


@pytest.fixture
def hung(folder: Path) -> Iterator[list[subprocess.Popen[Any]]]:
    script = folder / "train.py"
    script.write_text(PROGRAM)
    errors = (folder / "errors").open("ab")
    user = account(sys.executable)
    root = os.getuid() == 0
    ranks = [
        subprocess.Popen(
            [user.python, str(script), str(folder)],
            user=JOB_UID if root else None,
            group=JOB_GID if root else None,
            extra_groups=[] if root else None,
            cwd=folder,
            env={
                **os.environ,
                "PYTHONPATH": ":".join(user.packages),
                "HOME": str(folder),
                "SLURM_JOB_ID": str(JOB),
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "TORCH_WORKER_SERVER_SOCKET": str(folder / f"worker{rank}"),
                "TORCH_FR_BUFFER_SIZE": "200",
                "OMP_NUM_THREADS": "1",
            },
            stderr=errors,
        )
        for rank in range(3)
    ]
    try:
        until_s = time.monotonic() + 120
        while not all((folder / f"came{rank}").exists() for rank in range(3)):
            for rank in ranks:
                if rank.poll() is not None:
                    pytest.fail((folder / "errors").read_text()[-2000:])
            assert time.monotonic() < until_s, "the job does not start"
            time.sleep(0.1)
        yield ranks
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
        errors.close()


def ask() -> dict[str, Any]:
    order = {"job": JOB, "uid": JOB_UID, "gid": JOB_GID, "ras": False, "gap_s": 0.1, "deadline_s": 60.0}
    done = subprocess.run(
        [sys.executable, "-m", "sentinel.agent.probes.ask_job"],
        input=json.dumps(order).encode() + b"\n",
        capture_output=True,
        timeout=120,
        check=True,
    )
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])["result"]
    return answer


async def test_the_rank_that_never_came_is_named_and_all_live_on(hung: list[subprocess.Popen[Any]]) -> None:
    answer = ask()
    until_s = time.monotonic() + 120
    # Each rank came as far as the collective; that it is in it by now only its stack shows.
    while sum("all_reduce" in item["text"] for item in answer["stacks"]) < 2 and time.monotonic() < until_s:
        answer = ask()
    assert {item["rank"] for item in answer["ranks"]} == {0, 1, 2} and len(answer["stacks"]) == 3, answer["notes"]
    orders = FakeOrders({("n1", "ask_job"): answer})
    (found,) = await HungJobQuestions(orders, FakeClock()).ask(AskHungJob("ask:101:0", 101, 0, ("n1",), None))
    assert (found.kind, found.data["ranks"], found.where.rank, found.where.node) == ("hang", "1", 1, "n1")
    assert "stuck_in_loader" in found.text
    assert [rank.poll() for rank in hung] == [None, None, None]
