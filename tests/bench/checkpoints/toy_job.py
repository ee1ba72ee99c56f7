"""A training job that does nothing but train a small network and save it, again and again, until it is killed.

    python toy_job.py DIR --steps 400 --every 2 --mode plain|async|per_rank [--resume DIR/step-N]

Prints ``ready`` when it starts to train and one line ``STEP LOSS`` per step. Deterministic: a step's data come from its
number, so a resumed run repeats the undisturbed one to the last bit.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp


def build():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.Tanh(), torch.nn.Linear(1024, 256))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def state_of(model, optimizer, step):
    moments = optimizer.state_dict()
    return {"model": model.state_dict(), "optimizer": moments, "train_state": {"step": step}}


def save(state, path, mode, waiting):
    if waiting is not None:
        waiting.result()
    if mode == "async":
        return dcp.async_save(state, checkpoint_id=path)
    dcp.save(state, checkpoint_id=path, use_collectives=mode != "per_rank")
    return None


def train_step(model, optimizer, step):
    torch.manual_seed(1000 + step)
    inputs = torch.randn(16, 256)
    optimizer.zero_grad()
    loss = ((model(inputs) - inputs.flip(1)) ** 2).mean()
    loss.backward()
    optimizer.step()
    return loss.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("dir", type=Path)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--every", type=int, default=2)
    parser.add_argument("--mode", default="plain")
    parser.add_argument("--resume", type=Path)
    asked = parser.parse_args()
    warnings.filterwarnings("ignore")  # torch says on every save that there is one process only
    model, optimizer = build()
    first = 0
    if asked.resume:
        train_step(model, optimizer, 0)  # so that the optimizer has a state to load into
        state = state_of(model, optimizer, 0)
        dcp.load(state, checkpoint_id=asked.resume)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["train_state"]["step"]
    print("ready", flush=True)
    waiting = None
    for step in range(first + 1, asked.steps + 1):
        print(step, repr(train_step(model, optimizer, step)), flush=True)
        if step % asked.every == 0:
            waiting = save(state_of(model, optimizer, step), asked.dir / f"step-{step}", asked.mode, waiting)
    if waiting is not None:
        waiting.result()


if __name__ == "__main__":
    main()
