"""Makes checkpoints of every format byte for byte as their frameworks do, without torch."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import random
import struct
from collections import OrderedDict
from pathlib import Path

from saves.torch_bytes import Call, Made, Name, Pickler, Stored, dumps, torch_zip

NOW_S = 1_800_000_000.0


class Maker:
    """Builds checkpoints below a folder. Every number comes from its own seeded source."""

    Name, Call, Made, Stored = Name, Call, Made, Stored
    metadata_type = ("torch.distributed.checkpoint.metadata", "Metadata")
    saved_to: object = "run"  # as the metadata of a distributed checkpoint says
    now_s = NOW_S
    dumps = staticmethod(dumps)
    torch_zip = staticmethod(torch_zip)

    def __init__(self, root: Path):
        self.root = root
        self.random = random.Random(7)

    def memory_format(self):
        return Call(self.META, "_MEM_FORMAT_ENCODING", 0)

    def floats(self, count, dtype="float32", low=-1):
        """Finite numbers between ``low`` and 1."""
        values = [self.random.uniform(low, 1) for _ in range(count)]
        data = struct.pack(f"<{count}f", *values)
        if dtype == "float32":
            return data
        if dtype == "bfloat16":
            return b"".join(data[i + 2 : i + 4] for i in range(0, len(data), 4))
        return struct.pack(f"<{count}e", *values)

    def tensor(self, shape, dtype="float32", key=0):
        count = 1
        for length in shape:
            count *= length
        strides, step = [], 1
        for length in reversed(shape):
            strides.append(step)
            step *= length
        stored = Stored(key, dtype, count)
        hooks = Call("collections", "OrderedDict")
        return Call("torch._utils", "_rebuild_tensor_v2", stored, 0, tuple(shape), tuple(strides[::-1]), False, hooks)

    def torch_file(self, value, payloads=(), prefix="archive", crc=True):
        """A torch.save file of that value; ``payloads`` are the storages' bytes in the order of their keys."""
        records = [("data.pkl", dumps(value, 2)), ("byteorder", b"little")]
        records += [(f"data/{key}", data) for key, data in enumerate(payloads)]
        records += [("version", b"3\n"), (".data/serialization_id", b"%040d" % self.random.randrange(10**39))]
        return torch_zip(records, prefix, crc)

    def item(self, shape, dtype="float32", low=-1):
        count = 1
        for length in shape:
            count *= length
        return self.torch_file(self.tensor(shape, dtype), [self.floats(count, dtype, low)])

    # --- DCP ---------------------------------------------------------------------------------------------------------

    META = "torch.distributed.checkpoint.metadata"

    def size(self, shape):
        return Call("torch", "Size", tuple(shape))

    def metadata(self, tensors, blobs, stored, descriptors=None):
        """tensors: {fqn: (dtype, shape, [(offsets, sizes)])}; stored: [(fqn, offsets or None, file, offset, length)]."""
        table = {}
        for name, (dtype, shape, chunks) in tensors.items():
            layout = Call("torch.serialization", "_get_layout", "torch.strided")
            memory = self.memory_format()
            kind = Made(self.META, "TensorProperties", (Name("torch", dtype), layout, False, memory, False))
            pieces = [
                Made(self.META, "ChunkStorageMetadata", {"offsets": self.size(o), "sizes": self.size(s)})
                for o, s in chunks
            ]
            state = {"properties": kind, "size": self.size(shape), "chunks": pieces}
            table[name] = Made(self.META, "TensorStorageMetadata", state)
        for name in blobs:
            table[name] = Made(self.META, "BytesStorageMetadata", {})
        places = {}
        for name, offsets, file, offset, length in stored:
            index = {"fqn": name, "index": None}
            if offsets is not None:
                index["offset"] = self.size(offsets)
            info = {"relative_path": file, "offset": offset, "length": length}
            info |= {"transform_descriptors": descriptors} if descriptors else {}
            places[Made(self.META, "MetadataIndex", index)] = Made(
                "torch.distributed.checkpoint.filesystem", "_StorageInfo", info
            )
        planner = {name: tuple(name.split(".", 1)) for name in table}
        meta = Made(
            self.META, "StorageMeta", {"checkpoint_id": self.saved_to, "save_id": "s", "load_id": None, "modules": []}
        )
        return dumps(
            Made(
                *self.metadata_type,
                {
                    "state_dict_metadata": table,
                    "planner_data": planner,
                    "storage_data": places,
                    "storage_meta": meta,
                    "version": "1.0.0",
                },
            )
        )

    def dcp(self, folder, step=10, ranks=4, names=("model.w", "optim.exp_avg.w"), rows=8, per_rank=False, width=16):
        """A DCP checkpoint: every tensor cut by rows over the ranks; rank 0 keeps the step."""
        path = self.root / folder
        path.mkdir(parents=True, exist_ok=True)
        tensors = {name: ("float32", (rows * ranks, width), []) for name in names}
        stored = []
        for rank in range(ranks):
            file = f"__{rank}_0.distcp"
            data = bytearray()
            mine = {name: ("float32", (rows * ranks, width), [((rank * rows, 0), (rows, width))]) for name in names}
            here = []
            for name in names:
                piece = self.item((rows, width), low=0 if "exp_avg_sq" in name else -1)
                here.append((name, (rank * rows, 0), file, len(data), len(piece)))
                data += piece
                tensors[name][2].append(((rank * rows, 0), (rows, width)))
            if rank == 0 or per_rank:
                piece = self.torch_file(step)
                here.append(("train_state.step", None, file, len(data), len(piece)))
                data += piece
            self.write(path / file, bytes(data))
            stored += here
            if per_rank:
                self.write(path / f"__{rank}.metadata", self.metadata(mine, ["train_state.step"], here), 1)
        if not per_rank:
            self.write(path / ".metadata", self.metadata(tensors, ["train_state.step"], stored), 1)
        return path

    # --- the other formats -------------------------------------------------------------------------------------------

    def safetensors(self, tensors, metadata=None):
        """tensors: {name: (dtype, shape, bytes)}."""
        header, body = {}, b""
        if metadata:
            header["__metadata__"] = metadata
        for name, (dtype, shape, data) in tensors.items():
            header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [len(body), len(body) + len(data)]}
            body += data
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        return len(text).to_bytes(8, "little") + text + body

    def state(self, step, keys=2, shape=(16, 8)):
        """(value, payloads): an optimizer state with a step tensor per parameter."""
        value, payloads = {}, []
        count = shape[0] * shape[1]
        for key in range(keys):
            base = len(payloads)
            value[key] = {
                "step": self.tensor((), key=base),
                "exp_avg": self.tensor(shape, key=base + 1),
                "exp_avg_sq": self.tensor(shape, key=base + 2),
            }
            payloads += [struct.pack("<f", step), self.floats(count), self.floats(count, low=0)]
        return value, payloads

    def hf(self, folder, step=6, sharded=False):
        path = self.root / folder
        names = [f"model.layers.{i}.weight" for i in range(4)]
        tensors = {name: ("F32", (16, 8), self.floats(128)) for name in names}
        if sharded:
            parts = [names[:2], names[2:]]
            table = {}
            for i, part in enumerate(parts, 1):
                file = f"model-{i:05d}-of-00002.safetensors"
                self.write(path / file, self.safetensors({n: tensors[n] for n in part}, {"format": "pt"}))
                table |= dict.fromkeys(part, file)
            self.json(path / "model.safetensors.index.json", {"metadata": {"total_size": 2048}, "weight_map": table})
        else:
            self.write(path / "model.safetensors", self.safetensors(tensors, {"format": "pt"}))
        value, payloads = self.state(step)
        self.write(path / "optimizer.pt", self.torch_file({"state": value, "param_groups": []}, payloads, "optimizer"))
        self.write(path / "scheduler.pt", self.torch_file({"last_epoch": step}, prefix="scheduler"))
        rng = {"cpu": self.tensor((64,)), "python": (3, (1, 2), None)}
        self.write(path / "rng_state.pth", self.torch_file(rng, [self.floats(64)], "rng_state"))
        self.write(path / "training_args.bin", self.torch_file({"lr": 0.1}, prefix="training_args"))
        history = [{"step": s, "loss": 1.0 / s} for s in range(1, step + 1)]
        self.json(path / "trainer_state.json", {"global_step": step, "log_history": history}, 1)
        return path

    def megatron(self, folder, step=200, integrity=True):
        path = self.dcp(folder, step=step)
        self.write(path / "common.pt", self.torch_file({"iteration": step}, prefix="common"))
        self.json(path / "metadata.json", {"sharded_backend": "torch_dist", "sharded_backend_version": 1}, 2)
        if integrity:
            files = {f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in path.iterdir()}
            self.json(path / "integrity.json", {"algorithm": "sha256", "files": files}, 3)
        return path

    def megatron_legacy(self, folder, step=200, tp=2, pp=2):
        path = self.root / folder
        for t in range(tp):
            for p in range(pp):
                value = {"iteration": step, "model": {"w": self.tensor((16, 8))}}
                data = self.torch_file(value, [self.floats(128)], "model_optim_rng")
                self.write(path / f"mp_rank_{t:02d}_{p:03d}" / "model_optim_rng.pt", data)
        return path

    def deepspeed(self, folder, step=4, ranks=2, stage=1):
        path = self.root / folder
        for rank in range(ranks):
            value, payloads = self.state(step, keys=1)
            whole = {
                "optimizer_state_dict": {
                    "base_optimizer_state": {"state": value, "param_groups": [{"params": [0]}]},
                    "partition_count": [ranks],
                    "zero_stage": stage,
                },
                "ds_version": "0.19.8",
            }
            name = f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
            self.write(path / name, self.torch_file(whole, payloads, name[:-3]))
            model = {
                "module": {"w": self.tensor((16, 8))},
                "global_steps": step,
                "dp_world_size": ranks,
                "mp_world_size": 1,
                "ds_config": {"zero_optimization": {"stage": stage}},
            }
            if stage == 3:
                name = f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt"
            elif rank:
                continue
            else:
                name = "mp_rank_00_model_states.pt"
            self.write(path / name, self.torch_file(model, [self.floats(128)], name[:-3]))
        return path

    def nvrx(self, folder, step=200, ranks=4):
        path = self.root / folder
        for rank in range(ranks):
            state = Made("ckpt", "StateDict", {"state_dict": {"w": self.tensor((16, 8)), "iteration": step}})
            data = self.torch_file(state, [self.floats(128)])
            self.write(path / str(rank) / f"iter_{step:07d}_{rank}_local.pt", data)
        return path

    def nemo(self, folder, step=100):
        path = self.dcp(f"{folder}/weights", step=step).parent
        self.json(path / "context" / "model.json", {"layers": 2})
        return path

    def lightning(self, name, step=100):
        value = {"global_step": step, "state_dict": {"w": self.tensor((16, 8))}, "epoch": 1}
        self.write(self.root / name, self.torch_file(value, [self.floats(128)]))
        return self.root / name

    def hf_writer(self, folder, ranks=3, pieces=None):
        path = self.root / folder
        for rank in range(ranks):
            info = {"w": {"saved_offsets": [rank * 8, 0]}}
            values = self.floats(32) if pieces is None else pieces[rank]
            data = self.safetensors(
                {"w": ("F32", (8, 4), values)}, {"DCP_SHARDING_INFO": json.dumps(info), "format": "pt"}
            )
            self.write(path / f"shard-{rank + 1:05d}-model-00001-of-00001.safetensors", data)
        return path

    def consolidated(self, folder="step-70"):
        path = self.root / folder
        pieces = [self.floats(32) for _ in range(3)]
        self.hf_writer(f"{folder}/sharded", pieces=pieces)
        table = {"w": "model-00001-of-00001.safetensors"}
        whole = self.safetensors({"w": ("F32", (24, 4), b"".join(pieces))}, {"format": "pt"})
        self.write(path / table["w"], whole)
        self.json(path / "model.safetensors.index.json", {"metadata": {}, "weight_map": table})
        return path

    def accelerate(self, folder="step_100", step=100, ranks=4, model="safetensors"):
        path = self.root / folder
        if model == "safetensors":
            weights = {name: ("F32", (16, 8), self.floats(128)) for name in ("a.weight", "b.weight")}
            self.write(path / "model.safetensors", self.safetensors(weights))
        elif model == "bin":
            value = OrderedDict(
                {"a.weight": self.tensor((16, 8)), "b.weight": self.tensor((16, 8), key=1)}
            )  # as torch's
            data = self.torch_file(value, [self.floats(128), self.floats(128)], "pytorch_model")
            self.write(path / "pytorch_model.bin", data)
        else:
            self.dcp(f"{folder}/pytorch_model_fsdp_0", step=step)
        value, payloads = self.state(step)
        self.write(path / "optimizer.bin", self.torch_file({"state": value}, payloads, "optimizer"))
        self.write(path / "scheduler.bin", self.torch_file({"last_epoch": step}, prefix="scheduler"))
        for rank in range(ranks):
            data = self.torch_file({"step": 7}, prefix=f"random_states_{rank}")
            self.write(path / f"random_states_{rank}.pkl", data, 1)
        return path

    def universal(self, folder="global_step4_universal", step=4):
        path = self.root / folder
        names = ["layers.0.weight", "layers.1.weight"]
        for name in names:
            for kind in ("fp32", "exp_avg", "exp_avg_sq"):
                low = 0 if kind == "exp_avg_sq" else -1
                data = self.torch_file({"param": self.tensor((4, 4))}, [self.floats(16, low=low)], kind)
                self.write(path / "zero" / name / f"{kind}.pt", data)
        groups = self.torch_file({"param_groups": [{"lr": 0.1}]}, prefix="optimizer_state")
        self.write(path / "zero" / "optimizer_state.pt", groups)
        states = {"global_steps": step, "param_shapes": [dict.fromkeys(names, 1)], "dp_world_size": 8, "mp_world_size": 1,
                  "ds_config": {"zero_optimization": {"stage": 1}}}  # fmt: skip
        self.write(path / "mp_rank_00_model_states.pt", self.torch_file(states, prefix="mp_rank_00_model_states"))
        return path

    def legacy(self, name, step=5):
        """A file of torch's format before 1.6."""
        out = io.BytesIO()
        for value in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}):
            pickle.dump(value, out, 2)
        stored = Stored("77", "float32", 128)
        stored.reference = (*stored.reference, None)
        tensor = Call("torch._utils", "_rebuild_tensor_v2", stored, 0, (16, 8), (8, 1), False, None)
        Pickler(out, 2).dump({"w": tensor, "iteration": step})
        pickle.dump(["77"], out, 2)
        out.write((128).to_bytes(8, "little") + self.floats(128))
        self.write(self.root / name, out.getvalue())
        return self.root / name

    def write(self, path, data, after_s=0.0):
        """Write a file that is an hour old."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        self.age(path, 3600 - after_s)

    def age(self, path, seconds):
        os.utime(path, (NOW_S - seconds, NOW_S - seconds))

    def json(self, path, value, after_s=0.0):
        self.write(path, json.dumps(value).encode(), after_s)
