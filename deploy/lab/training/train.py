"""The lab's training job: a small GPT, PyTorch DDP over gloo, DCP checkpoints. `srun python -m lab.training.train ...`.

The data is a fixed Markov chain drawn from a generator of each rank's own, whose state is in the checkpoint: a resumed run
continues the very same loss curve, and every rank's part is needed for that.

Two tiers: every few steps each rank writes its own part to its node's disk (DCP without collectives); more rarely all
ranks write one checkpoint to the shared file system. Both are asynchronous.
"""

from __future__ import annotations

import contextlib
import datetime
import logging
import math
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from lab.training import job
from lab.training.job import Options, Place, Resume, Trouble, say

VOCABULARY = 64
WIDTH = 64
LAYERS = 2
CONTEXT = 64
BATCH = 8
TOKENS = BATCH * CONTEXT


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before = nn.LayerNorm(WIDTH)
        self.mix = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = (part.view(batch, length, 4, -1).transpose(1, 2) for part in self.mix(self.before(x)).chunk(3, dim=2))
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, WIDTH))
        return cast(Tensor, x + self.mlp(x))


class SmallGPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, WIDTH)
        self.position = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1]))
        return cast(Tensor, self.head(self.blocks(x)))


class Data:
    """Sequences of a Markov chain in which each token has four likely successors."""

    def __init__(self, seed: int, rank: int) -> None:
        chain = torch.Generator().manual_seed(seed)
        self.successors = torch.randint(0, VOCABULARY, (VOCABULARY, 4), generator=chain)
        self.generator = torch.Generator().manual_seed(seed * 1_000_003 + rank)
        self.position = 0  # sequences drawn so far

    def batch(self) -> Tensor:
        """(BATCH, CONTEXT + 1) tokens; advances the generator."""
        rows = [torch.randint(0, VOCABULARY, (BATCH,), generator=self.generator)]
        turns = torch.randint(0, 4, (CONTEXT, BATCH), generator=self.generator)
        for turn in turns:
            rows.append(self.successors[rows[-1], turn])
        self.position += BATCH
        return torch.stack(rows, dim=1)

    def state(self) -> dict[str, Tensor]:
        return {"generator": self.generator.get_state(), "position": torch.tensor(self.position)}

    def load(self, state: dict[str, Tensor]) -> None:
        self.generator.set_state(state["generator"])
        self.position = int(state["position"])


class Training:
    """Model, optimizer and data of this rank, and their way to and from checkpoints."""

    def __init__(self, opt: Options, here: Place) -> None:
        torch.manual_seed(opt.seed)
        self.here = here
        self.model = SmallGPT()
        self.ddp = DistributedDataParallel(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.data = Data(opt.seed, here.rank)
        self.step = 0

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds. Optimizer state is keyed by parameter index; it exists from the first step on."""
        moments: dict[str, Tensor] = {}
        for index, values in self.optimizer.state_dict()["state"].items():
            moments |= {f"{index}.{name}": value for name, value in values.items()}
        return {
            "model": self.model.state_dict(),
            "optimizer": moments,
            "step": torch.tensor(self.step),
            f"rank_{self.here.rank}": self.data.state(),
        }

    def load(self, point: Resume) -> None:
        """Read a checkpoint in place of what is here.

        Raises:
            Exception: whatever DCP raises for a checkpoint that is not whole; the job ends with it, as real ones do.
        """
        from torch.distributed.checkpoint.filesystem import FileSystemReader
        from torch.distributed.checkpoint.state_dict_loader import load

        self._moments_for_all()
        state = self.state()
        own = f"rank_{self.here.rank}"
        if point.tier != "local":
            saved = FileSystemReader(point.path).read_metadata().state_dict_metadata
            if f"{own}.position" not in saved:
                del state[own]  # more ranks than then: this one's data begins at its beginning
        # In parts of ranks DCP first looks for a `.metadata` that is not there, and logs a traceback for nothing.
        logging.disable(logging.WARNING if point.tier == "local" else logging.NOTSET)
        try:
            load(state, checkpoint_id=point.path)
        finally:
            logging.disable(logging.NOTSET)
        self.model.load_state_dict(state["model"])
        optimizer = self.optimizer.state_dict()
        for key, value in state["optimizer"].items():
            index, _, name = key.partition(".")
            optimizer["state"][int(index)][name] = value
        self.optimizer.load_state_dict(optimizer)
        if own in state:
            self.data.load(state[own])
        self.step = int(state["step"])

    def _moments_for_all(self) -> None:
        """Create the optimizer's state (zero gradients change nothing that is not overwritten by the load)."""
        for parameter in self.model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def run_step(self, spoil: bool) -> float:
        """One step over all ranks; gives the mean loss."""
        tokens = self.data.batch()
        scores = self.ddp(tokens[:, :-1])
        loss = functional.cross_entropy(scores.reshape(-1, VOCABULARY), tokens[:, 1:].reshape(-1))
        if spoil:
            loss = loss * float("nan")
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        self.step += 1
        return float(mean) / self.here.world


class Saver:
    """Asynchronous checkpoints of both tiers; one is under way at a time."""

    def __init__(self, opt: Options, here: Place, trouble: Trouble) -> None:
        self.opt = opt
        self.here = here
        self.trouble = trouble
        # Its own group: the writer's thread talks while the training goes on.
        self.group = dist.new_group(backend="gloo")
        self.pending: tuple[Future[Any], str, int] | None = None

    def begin(self, training: Training, tier: str) -> None:
        from torch.distributed.checkpoint.filesystem import FileSystemWriter
        from torch.distributed.checkpoint.state_dict_saver import async_save

        self.finish()
        base = self.opt.local_dir if tier == "local" else self.opt.global_dir
        where = job.folder(base, training.step)
        self._clear(where, tier)
        if tier == "local" and self.trouble.asked("disk-full"):
            where.mkdir(parents=True, exist_ok=True)
            (where / f"__{self.here.rank}_0.distcp").symlink_to("/dev/full")
        future = async_save(
            training.state(),
            storage_writer=FileSystemWriter(where),
            process_group=self.group,
            use_collectives=tier == "global",
        )
        self.pending = (cast("Future[Any]", future), tier, training.step)

    def _clear(self, where: Path, tier: str) -> None:
        """A step that is reached again is written anew, and is seen to be incomplete until it is whole."""
        if tier == "local":
            job.remove_part(where, self.here.rank)
        elif self.here.rank == 0:
            (where / ".metadata").unlink(missing_ok=True)

    def poll(self) -> None:
        if self.pending and self.pending[0].done():
            self.finish()

    def finish(self) -> None:
        """Wait for what is under way; its failure (a full disk) ends the job."""
        if self.pending is None:
            return
        future, tier, step = self.pending
        self.pending = None
        future.result()
        if tier == "local":
            job.purge_local(self.opt.local_dir, self.here.rank, step)
        elif self.here.rank == 0:
            job.purge_global(self.opt.global_dir, step)
        if self.here.rank == 0:
            say(f"saved step {step} ({tier})")


def unpack(batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """A user's bug, for the fault `crash`: this data has no such field."""
    return batch["tokens"], batch["labels"]


def troubles(trouble: Trouble) -> bool:
    """Have the faults that were asked for; True when this step's loss is to be spoilt."""
    trouble.before_step()
    if trouble.asked("crash"):
        unpack({"tokens": torch.zeros(BATCH, CONTEXT)})
    if trouble.asked("oom"):
        raise torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 79.11 GiB of which 1.02 GiB is "
            "free. Including non-PyTorch memory, this process has 78.07 GiB memory in use."
        )
    return trouble.asked("nan") is not None


def loop(opt: Options, here: Place, training: Training, trouble: Trouble) -> None:
    saver = Saver(opt, here, trouble)
    while training.step < opt.steps:
        began = time.monotonic()
        loss = training.run_step(troubles(trouble))
        rest = opt.step_time_s - (time.monotonic() - began)
        if rest > 0:
            time.sleep(rest)
        if here.rank == 0:
            say(job.step_line(training.step, loss, time.monotonic() - began, TOKENS * here.world))
        saver.poll()
        if training.step % opt.global_every == 0:
            saver.begin(training, "global")
        elif training.step % opt.local_every == 0:
            saver.begin(training, "local")
    saver.finish()


def main() -> None:
    opt, here = job.options(), job.place()
    torch.set_num_threads(1)
    trouble = Trouble(opt, here)
    trouble.at_start()
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://{here.master}:{here.port}",
        rank=here.rank,
        world_size=here.world,
        timeout=datetime.timedelta(minutes=30),  # as NCCL's watchdog: a hang is not found by waiting for it
    )
    training = Training(opt, here)
    point = job.resume_point(opt)
    if point is not None:
        training.load(point)
    if here.rank == 0:
        parameters = sum(math.prod(p.shape) for p in training.model.parameters())
        say(f"run {opt.run}: {here.world} ranks, {parameters} parameters, attempt {here.attempt}")
        say(f"resumed from step {point.step} ({point.tier}) {point.path}" if point else "starting from scratch")
    loop(opt, here, training, trouble)
    if here.rank == 0:
        say(f"done: {training.step} steps")
    with contextlib.suppress(RuntimeError):  # a peer that left first
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
