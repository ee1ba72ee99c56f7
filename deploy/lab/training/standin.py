"""The training job without PyTorch: same lines, same resume variables, same checkpoint layout.

Linear regression by gradient descent in plain Python; the ranks meet over TCP at rank 0 in every step, so that one stopped
rank stalls all, and one that ends makes the others fail. `srun python -m lab.training.standin ...`.
"""

from __future__ import annotations

import pickle
import random
import socket
import struct
import sys
import time
import traceback
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from lab.training import dcp, job
from lab.training.job import Options, Place, Resume, Trouble, say

WIDTH = 32
BATCH = 16
RATE = 0.05
CONNECT_S = 120.0


class Ranks:
    """All ranks of the job, joined in a star around rank 0."""

    def __init__(self, here: Place) -> None:
        self.here = here
        self.peers: list[socket.socket] = []
        if here.rank == 0:
            self._accept()
        else:
            self._connect()

    def _accept(self) -> None:
        with socket.create_server(("", self.here.port), reuse_port=False) as server:
            server.settimeout(CONNECT_S)
            joined: dict[int, socket.socket] = {}
            while len(joined) < self.here.world - 1:
                peer, _ = server.accept()
                peer.settimeout(None)
                joined[int.from_bytes(_exactly(peer, 4), "little")] = peer
        self.peers = [joined[rank] for rank in sorted(joined)]

    def _connect(self) -> None:
        deadline = time.monotonic() + CONNECT_S
        while True:
            try:
                peer = socket.create_connection((self.here.master, self.here.port), timeout=5)
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
        peer.settimeout(None)
        peer.sendall(self.here.rank.to_bytes(4, "little"))
        self.peers = [peer]

    def gather(self, own: object) -> list[Any]:
        """Everyone's values on rank 0 (own first, then by rank); an empty list elsewhere."""
        if self.here.rank == 0:
            return [own, *(receive(peer) for peer in self.peers)]
        send(self.peers[0], own)
        return []

    def share(self, value: object) -> Any:
        """Rank 0's value on every rank."""
        if self.here.rank != 0:
            return receive(self.peers[0])
        for peer in self.peers:
            send(peer, value)
        return value

    def mean(self, own: Sequence[float]) -> list[float]:
        rows = self.gather(list(own))
        total = [sum(column) / len(rows) for column in zip(*rows, strict=True)] if rows else None
        return list(self.share(total))


def _exactly(peer: socket.socket, count: int) -> bytes:
    parts = b""
    while len(parts) < count:
        more = peer.recv(count - len(parts))
        if not more:
            raise RuntimeError("Connection closed by peer. This is typically caused by a remote worker crashing.")
        parts += more
    return parts


def send(peer: socket.socket, value: object) -> None:
    raw = pickle.dumps(value)
    peer.sendall(struct.pack("<I", len(raw)) + raw)


def receive(peer: socket.socket) -> Any:
    """A value of another rank of the same job (the same user's process: pickle is as safe as the job itself)."""
    return pickle.loads(_exactly(peer, struct.unpack("<I", _exactly(peer, 4))[0]))


class Training:
    """Weights (the same on every rank) and this rank's own data generator."""

    def __init__(self, opt: Options, here: Place) -> None:
        self.here = here
        self.truth = [random.Random(opt.seed).uniform(-1, 1) for _ in range(WIDTH)]
        self.weights = [0.0] * WIDTH
        self.data = random.Random(opt.seed * 1_000_003 + here.rank)
        self.step = 0

    def items(self) -> dict[str, object]:
        return {"weights": self.weights, "step": self.step, self.own: self.data.getstate()}

    @property
    def own(self) -> str:
        return f"rank_{self.here.rank}"

    def load(self, point: Resume) -> None:
        local = point.tier == "local"
        metadata = f"__{self.here.rank}.metadata" if local else ".metadata"
        # More ranks than then: the data of the new ones begins at its beginning. A local part is this rank's or nothing.
        keys, optional = (["weights", "step", self.own], ()) if local else (["weights", "step"], (self.own,))
        found = dcp.read(point.path, metadata, keys, optional)
        self.weights, self.step = found["weights"], found["step"]
        if self.own in found:
            version, state, gauss = found[self.own]
            self.data.setstate((version, tuple(state), gauss))

    def run_step(self, ranks: Ranks, spoil: bool) -> float:
        """One step over all ranks; gives the mean loss."""
        slope, loss = [0.0] * WIDTH, 0.0
        for _ in range(BATCH):
            x = [self.data.gauss(0, 1) for _ in range(WIDTH)]
            wanted = sum(a * b for a, b in zip(self.truth, x, strict=True)) + self.data.gauss(0, 0.1)
            off = sum(a * b for a, b in zip(self.weights, x, strict=True)) - wanted
            loss += off * off / BATCH
            slope = [s + 2 * off * value / BATCH for s, value in zip(slope, x, strict=True)]
        if spoil:
            loss, slope = float("nan"), [float("nan")] * WIDTH
        *slope, loss = ranks.mean([*slope, loss])
        self.weights = [w - RATE * s for w, s in zip(self.weights, slope, strict=True)]
        self.step += 1
        return loss


def save(opt: Options, here: Place, training: Training, ranks: Ranks, tier: str, trouble: Trouble) -> None:
    """All ranks together; complete when it returns."""
    local = tier == "local"
    where = job.folder(opt.local_dir if local else opt.global_dir, training.step)
    if local:
        job.remove_part(where, here.rank)
        if trouble.asked("disk-full"):
            where.mkdir(parents=True, exist_ok=True)
            (where / f"__{here.rank}_0.distcp").symlink_to("/dev/full")
    elif here.rank == 0:
        (where / ".metadata").unlink(missing_ok=True)
    ranks.mean([0.0])  # nobody writes before the old marker is gone
    items = training.items()
    if not local and here.rank != 0:
        items = {training.own: items[training.own]}  # what all have alike is written once
    table = dcp.write_part(where, here.rank, items)
    if local:
        dcp.write_table(where / f"__{here.rank}.metadata", table)
        job.purge_local(opt.local_dir, here.rank, training.step)
    tables = ranks.gather(table)
    if here.rank != 0:
        return
    if not local:
        dcp.write_table(where / ".metadata", {key: place for part in tables for key, place in part.items()})
        job.purge_global(opt.global_dir, training.step)
    say(f"saved step {training.step} ({tier})")


def unpack(batch: dict[str, list[float]]) -> tuple[list[float], list[float]]:
    """A user's bug, for the fault `crash`: this data has no such field."""
    return batch["tokens"], batch["labels"]


def troubles(trouble: Trouble) -> bool:
    """Have the faults that were asked for; True when this step's loss is to be spoilt."""
    trouble.before_step()
    if trouble.asked("crash"):
        unpack({"tokens": [0.0]})
    if trouble.asked("oom"):
        raise MemoryError("CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 79.11 GiB")
    return trouble.asked("nan") is not None


def _in_one_piece(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Prints a traceback by one write: of several, srun loses the later ones where it ends the step meanwhile (22.05)."""
    sys.stderr.write("".join(traceback.format_exception(kind, error, trace)))


def main() -> None:
    sys.excepthook = _in_one_piece
    opt, here = job.options(), job.place()
    trouble = Trouble(opt, here)
    trouble.at_start()
    ranks = Ranks(here)
    training = Training(opt, here)
    point = job.resume_point(opt)
    if point is not None:
        training.load(point)
    if here.rank == 0:
        say(f"run {opt.run}: {here.world} ranks, {WIDTH} parameters, attempt {here.attempt} (stand-in)")
        say(f"resumed from step {point.step} ({point.tier}) {point.path}" if point else "starting from scratch")
    while training.step < opt.steps:
        began = time.monotonic()
        loss = training.run_step(ranks, troubles(trouble))
        time.sleep(max(0.0, opt.step_time_s - (time.monotonic() - began)))
        if here.rank == 0:
            say(job.step_line(training.step, loss, time.monotonic() - began, BATCH * here.world))
        if training.step % opt.global_every == 0:
            save(opt, here, training, ranks, "global", trouble)
        elif training.step % opt.local_every == 0:
            save(opt, here, training, ranks, "local", trouble)
    if here.rank == 0:
        say(f"done: {training.step} steps")


if __name__ == "__main__":
    main()
