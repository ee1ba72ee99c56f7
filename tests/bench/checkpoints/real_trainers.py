"""Training loops of real libraries that save after each step, to be killed. Each runs in a forked process.

    TRAINERS[name].train(root, resume, tell)

``tell`` writes a line to who watches: ``saving STEP HASH``, ``saved STEP``, ``resumed STEP HASH``; the hash is of the
weights and the optimizer's state, so that what was resumed can be held against what was saved.
"""

from __future__ import annotations

import hashlib
import logging
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STEPS = 100_000
WIDTH = 384


@dataclass(frozen=True)
class Trainer:
    level: str  # what files of this kind can be proven at by themselves: safetensors and Orbax record no sums of all
    prepare: Any  # imports; before the fork
    train: Any


def fingerprint(*trees):
    """Of all arrays, in the order of their names."""
    import torch

    digest = hashlib.sha256()

    def feed(name, value):
        if isinstance(value, dict):
            for key in sorted(value, key=str):
                feed(f"{name}.{key}", value[key])
        elif isinstance(value, (list, tuple)):
            for index, entry in enumerate(value):
                feed(f"{name}.{index}", entry)
        elif isinstance(value, torch.Tensor):
            digest.update(name.encode() + value.detach().cpu().contiguous().numpy().tobytes())
        elif hasattr(value, "tobytes"):
            digest.update(name.encode() + value.tobytes())

    for index, tree in enumerate(trees):
        feed(str(index), tree)
    return digest.hexdigest()[:16]


# --- PyTorch alone ------------------------------------------------------------------------------------------------------


def network():
    import torch

    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, WIDTH))


def one_step(model, optimizer, step):
    import torch

    torch.manual_seed(1000 + step)
    inputs = torch.randn(4, WIDTH)
    optimizer.zero_grad()
    ((model(inputs) - inputs.flip(1)) ** 2).mean().backward()
    optimizer.step()


def import_dcp():
    import torch.distributed.checkpoint  # noqa: F401


def dcp(asynchronous):
    def train(root, resume, tell):
        import torch
        from torch.distributed import checkpoint

        torch.set_num_threads(1)
        model = network()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        first = 0
        if resume:
            one_step(model, optimizer, 0)  # so that the optimizer has a state to load into
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 0}
            checkpoint.load(state, checkpoint_id=resume)
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            first = state["step"]
            tell("resumed", first, fingerprint(model.state_dict(), optimizer.state_dict()["state"]))
        for step in range(first + 1, STEPS):
            one_step(model, optimizer, step)
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            tell("saving", step, fingerprint(state["model"], state["optimizer"]["state"]))
            if asynchronous:
                checkpoint.async_save(state, checkpoint_id=root / f"step-{step}").result()
            else:
                checkpoint.save(state, checkpoint_id=root / f"step-{step}")
            tell("saved", step)

    return train


# --- Hugging Face's Trainer ---------------------------------------------------------------------------------------------


def import_transformers():
    from transformers import Trainer, TrainerCallback, TrainingArguments  # noqa: F401


def hf_trainer(root, resume, tell):
    import torch
    from transformers import Trainer, TrainerCallback, TrainingArguments
    from transformers.utils import logging as quiet

    quiet.set_verbosity_error()
    torch.set_num_threads(1)

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = network()

        def forward(self, x):
            return {"loss": ((self.layers(x) - x.flip(1)) ** 2).mean()}

    class Told(TrainerCallback):
        def on_train_begin(self, args, state, control, model=None, optimizer=None, **_):
            if resume:
                tell("resumed", state.global_step, fingerprint(model.state_dict(), optimizer.state_dict()["state"]))

        def on_step_end(self, args, state, control, model=None, optimizer=None, **_):
            tell("saving", state.global_step, fingerprint(model.state_dict(), optimizer.state_dict()["state"]))

        def on_save(self, args, state, control, **_):
            tell("saved", state.global_step)

    arguments = TrainingArguments(
        output_dir=str(root), per_device_train_batch_size=4, max_steps=STEPS, save_strategy="steps", save_steps=1,
        report_to=[], logging_strategy="no", disable_tqdm=True, use_cpu=True, dataloader_num_workers=0,
    )  # fmt: skip
    data = [{"x": torch.full((WIDTH,), float(index % 7))} for index in range(64)]
    Trainer(model=Model(), args=arguments, train_dataset=data, callbacks=[Told()]).train(resume_from_checkpoint=resume)


# --- Lightning ----------------------------------------------------------------------------------------------------------


def import_lightning():
    import lightning.pytorch.callbacks  # noqa: F401


def lightning(root, resume, tell):
    import torch
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.callbacks import ModelCheckpoint

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)

    class Module(LightningModule):
        def __init__(self):
            super().__init__()
            self.layers = network()
            self.saving = None

        def training_step(self, batch, index):
            loss = ((self.layers(batch) - batch.flip(1)) ** 2).mean()
            self.log("loss", loss)
            return loss

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

        def look(self):
            return fingerprint(self.state_dict(), self.trainer.optimizers[0].state_dict()["state"])

        def on_train_start(self):
            if resume:
                tell("resumed", self.trainer.global_step, self.look())

        def on_save_checkpoint(self, checkpoint):
            self.saving = self.trainer.global_step
            tell("saving", self.saving, self.look())

        def on_train_batch_start(self, batch, index):
            if self.saving is not None:
                tell("saved", self.saving)

    trainer = Trainer(
        max_steps=STEPS, max_epochs=-1, accelerator="cpu", devices=1, logger=False, enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[ModelCheckpoint(dirpath=root, filename="{step}", every_n_train_steps=1, save_top_k=-1)],
    )  # fmt: skip
    data = torch.utils.data.DataLoader(torch.randn(4096, WIDTH), batch_size=4)
    trainer.fit(Module(), data, ckpt_path=resume)


# --- JAX ----------------------------------------------------------------------------------------------------------------


def import_orbax():
    import orbax.checkpoint  # noqa: F401
    import torch  # noqa: F401  # for the hash


def orbax(root, resume, tell):
    import jax
    import jax.numpy as jnp
    import numpy as np
    import orbax.checkpoint as ocp

    logging.disable(logging.WARNING)
    rng = np.random.default_rng(0)
    weights = {f"layer{n}": jnp.asarray(rng.normal(size=(WIDTH, WIDTH)), jnp.float32) for n in range(4)}
    state = {"params": weights, "mu": jax.tree.map(jnp.zeros_like, weights), "step": jnp.asarray(0)}
    manager = ocp.CheckpointManager(root, options=ocp.CheckpointManagerOptions(max_to_keep=None))

    def look():
        return fingerprint(jax.tree.map(np.asarray, state))

    if resume:
        state = manager.restore(int(Path(resume).name), args=ocp.args.StandardRestore(state))
        tell("resumed", int(state["step"]), look())
    for step in range(int(state["step"]) + 1, STEPS):
        moved = jax.tree.map(lambda a, by=0.1 / step: a * 0.9 + by, state["mu"])
        state = {
            "params": jax.tree.map(lambda a, b: a - 1e-3 * b, state["params"], moved), "mu": moved,
            "step": jnp.asarray(step),
        }  # fmt: skip
        tell("saving", step, look())
        manager.save(step, args=ocp.args.StandardSave(state))
        manager.wait_until_finished()
        tell("saved", step)


TRAINERS = {
    "dcp_sync": Trainer("checksum", import_dcp, dcp(False)),
    "dcp_async": Trainer("checksum", import_dcp, dcp(True)),
    "hf_trainer": Trainer("structural", import_transformers, hf_trainer),
    "lightning": Trainer("checksum", import_lightning, lightning),
    "orbax": Trainer("structural", import_orbax, orbax),
}


def run_forked(trainer, root, resume, out, errors):
    """The body of the forked process: it never returns."""
    import os

    os.dup2(errors, 1)
    os.dup2(errors, 2)
    warnings.filterwarnings("ignore")

    def tell(*words):
        os.write(out, (" ".join(map(str, words)) + "\n").encode())

    try:
        trainer.train(root, resume, tell)
    except BaseException as error:  # noqa: BLE001  # whatever the library raises is the finding
        import traceback

        traceback.print_exc(file=sys.stderr)
        sys.stderr.flush()
        tell("failed", 0, repr(error).replace("\n", " ")[:300])
    os._exit(1)
