"""Damage of every kind to checkpoints of every format: nothing damaged is accepted at a level that can see it.

How many cases: SENTINEL_CORRUPTIONS (240 in the usual run; the bench runs 1,200). Each is reproducible by its number.
"""

from __future__ import annotations

import os
import random
import shutil
import struct
from pathlib import Path

import pytest

from sentinel.checkpoints import manifest
from sentinel.checkpoints.files import scan
from sentinel.checkpoints.validate import validate

CASES = int(os.environ.get("SENTINEL_CORRUPTIONS", "240"))
GOOD = CASES

FORMATS = {
    "dcp": lambda m, at, step, **k: m.dcp(f"{at}/step-{step}", step=step, **k),
    "dcp_per_rank": lambda m, at, step, **k: m.dcp(f"{at}/step-{step}", step=step, per_rank=True, **k),
    "hf": lambda m, at, step: m.hf(f"{at}/checkpoint-{step}", step),
    "hf_sharded": lambda m, at, step: m.hf(f"{at}/checkpoint-{step}", step, sharded=True),
    "megatron": lambda m, at, step: m.megatron(f"{at}/iter_{step:07d}", step),
    "megatron_plain": lambda m, at, step: m.megatron(f"{at}/iter_{step:07d}", step, integrity=False),
    "megatron_legacy": lambda m, at, step: m.megatron_legacy(f"{at}/iter_{step:07d}", step),
    "deepspeed": lambda m, at, step: m.deepspeed(f"{at}/global_step{step}", step),
    "deepspeed3": lambda m, at, step: m.deepspeed(f"{at}/global_step{step}", step, ranks=3, stage=3),
    "nvrx": lambda m, at, step: m.nvrx(f"{at}/s{step}", step),
    "nemo": lambda m, at, step: m.nemo(f"{at}/m--step={step}-last", step),
    "lightning": lambda m, at, step: m.lightning(f"{at}/epoch=0-step={step}.ckpt", step),
    "legacy": lambda m, at, step: m.legacy(f"{at}/iter_{step}.pt", step),
    "accelerate": lambda m, at, step: m.accelerate(f"{at}/step_{step}", step),
    "accelerate_bin": lambda m, at, step: m.accelerate(f"{at}/step_{step}", step, model="bin"),
    "accelerate_fsdp": lambda m, at, step: m.accelerate(f"{at}/step_{step}", step, model="fsdp"),
    "universal": lambda m, at, step: m.universal(f"{at}/global_step{step}_universal", step),
    "consolidated": lambda m, at, step: m.consolidated(f"{at}/step-{step}"),
    "hf_writer": lambda m, at, step: m.hf_writer(f"{at}/step-{step}"),
}


class Case:
    """One checkpoint, another step beside it, and what is done to the first."""

    def __init__(self, make, kind, number):
        self.make, self.kind = make, kind
        self.random = random.Random(f"{kind} {number}")
        make.random = random.Random(number)
        at = f"{kind}/{number}"
        self.path = FORMATS[kind](make, at, 20)
        self.other = FORMATS[kind](make, at, 10)
        if self.path.is_file():
            self.files = [self.path]
        else:
            self.files = sorted(p for p in self.path.rglob("*") if p.is_file() and "context" not in p.parts)

    def put(self, file, data):
        """Write what a failing disk would leave: other bytes, the same times."""
        status = file.stat()
        file.write_bytes(data)
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))

    def pick(self, *suffixes):
        files = [f for f in self.files if not suffixes or f.name.endswith(suffixes)]
        return self.random.choice(files) if files else None

    def judge(self, level):
        return validate(self.path, level, now_s=self.make.now_s)


PAYLOAD = (".distcp", ".pt", ".pth", ".bin", ".ckpt", ".safetensors")


def truncated(case):
    file = case.pick()
    data = file.read_bytes()
    case.put(file, data[: case.random.randrange(len(data))])
    return "structural"


def flipped_payload(case):
    file = case.pick(*PAYLOAD)
    data = bytearray(file.read_bytes())
    data[case.random.randrange(len(data))] ^= 1 << case.random.randrange(8)
    case.put(file, data)
    return "checksum"


def flipped_in_a_header(case):
    """In the first 60 bytes of a file, where every format has its head, or in the last 90, where a zip has its end."""
    file = case.pick(*PAYLOAD)
    data = bytearray(file.read_bytes())
    at = case.random.choice([case.random.randrange(min(60, len(data))), -1 - case.random.randrange(min(90, len(data)))])
    data[at] ^= 1 << case.random.randrange(8)
    case.put(file, data)
    return "checksum"


def zeroed_page(case):
    file = case.pick(*PAYLOAD)
    data = bytearray(file.read_bytes())
    at = case.random.randrange(0, len(data), 512)
    end = min(at + 512, len(data))
    if not data[at:end].strip(b"\0"):
        return None
    data[at:end] = bytes(end - at)
    case.put(file, data)
    return "checksum"


def zero_filled_tail(case):
    file = case.pick(*PAYLOAD)
    data = bytearray(file.read_bytes())
    count = case.random.randrange(64, max(65, len(data) // 2))
    data[-count:] = bytes(count)
    case.put(file, data)
    return "checksum" if file.suffix == ".safetensors" or case.kind == "legacy" else "structural"


def missing_file(case):
    file = case.pick()
    if file.name in ("training_args.bin", "rng_state.pth", "integrity.json"):
        return None  # a job starts without them
    if file.name == "metadata.json" and case.kind == "megatron_plain":
        return None  # then it is what torch_dcp writes
    if case.kind == "hf_writer" and file == case.files[-1]:
        shutil.rmtree(case.other)
        FORMATS["hf_writer"](case.make, str(case.other.parent.relative_to(case.make.root)), 10)
    file.unlink()
    return "structural"


def half_deleted(case):
    if len(case.files) < 3:
        return None
    doomed = case.random.sample(case.files, case.random.randrange(2, len(case.files)))
    if {f.name for f in doomed} <= {"training_args.bin", "rng_state.pth", "integrity.json", "metadata.json"}:
        return None
    for file in doomed:
        file.unlink()
    return "structural"


def mixed_steps(case):
    """A shard of the other step, its own times kept."""
    file = case.pick(".distcp", "optim_states.pt", "_local.pt", "model_optim_rng.pt", "optimizer.pt", "scheduler.pt")
    if file is None or case.path.is_file():
        return None
    other = case.other / str(file.relative_to(case.path)).replace("0000020", "0000010")
    case.put(file, other.read_bytes())
    return "checksum"


def torn_overwrite(case):
    """The markers of the first save, some shards of a second one."""
    if not any(f.name in (".metadata", "__0.metadata", "trainer_state.json") for f in case.files):
        return None
    file = case.pick(".distcp", "optimizer.pt", ".safetensors")
    data = bytearray(file.read_bytes())
    case.put(file, data)
    case.make.age(file, 1800)
    return "structural"


def wrong_world_size(case):
    if case.kind == "dcp_per_rank":
        more = case.make.dcp(f"{case.kind}/more", step=20, ranks=6, per_rank=True)
        for name in ("__4_0.distcp", "__4.metadata"):
            shutil.copy2(more / name, case.path / name)
        return "structural"
    if case.kind.startswith("deepspeed"):
        file = case.pick("optim_states.pt")
        shutil.copy2(file, file.with_name("bf16_zero_pp_rank_7_mp_rank_00_optim_states.pt"))
        return "structural"
    return None


def not_a_number(case):
    """Rewrite one float tensor with a NaN in it, its checksum right: only the contents are wrong."""
    file = case.pick(".distcp", ".pt", ".ckpt", ".safetensors")
    if file is None or (case.kind == "megatron" and True):
        return None
    bad = struct.pack("<f", float("nan"))
    if case.kind.startswith(("hf", "legacy")) and file.name not in ("optimizer.pt",):
        data = bytearray(file.read_bytes())
        if file.suffix == ".safetensors":
            data[-64:-60] = bad
        elif case.kind == "legacy":
            data[-64:-60] = bad
        else:
            return None
        case.put(file, data)
        return "content"
    return _nan_in_archive(case, file, bad)


def _nan_in_archive(case, file, bad):
    data = bytearray(file.read_bytes())
    import zlib

    name = data.find(b"/data/0FB")
    if name < 0:
        return None
    start = name + 7 + 4 + int.from_bytes(data[name + 9 : name + 11], "little")
    note = data.find(b"PK\x07\x08", start)
    before = zlib.crc32(data[start:note])
    if (note - start) % 4 or note - start < 4:
        return None
    data[start : start + 4] = bad
    after = zlib.crc32(data[start:note])
    # once in the note, once in the directory of this archive
    old, new = before.to_bytes(4, "little"), after.to_bytes(4, "little")
    for _ in range(2):
        at = data.find(old, note)
        data[at : at + 4] = new
    case.put(file, data)
    return "content"


DAMAGES = [
    truncated, flipped_payload, flipped_in_a_header, zeroed_page, zero_filled_tail, missing_file, half_deleted,
    mixed_steps, torn_overwrite, wrong_world_size, not_a_number,
]  # fmt: skip


def worst(level):
    return ("structural", "checksum", "content").index(level)


@pytest.mark.parametrize("kind", FORMATS)
def test_nothing_damaged_is_accepted(make, kind):
    accepted, done = [], 0
    number = 0
    share = -(-CASES // len(FORMATS))
    while done < share:
        number += 1
        damage = DAMAGES[number % len(DAMAGES)]
        case = Case(make, kind, number)
        seen_at = damage(case)
        if seen_at is not None:
            done += 1
            for level in ("structural", "checksum", "content")[worst(seen_at) :]:
                answer = case.judge(level)
                if answer.valid is True:
                    accepted.append((number, damage.__name__, level, answer.reason))
        shutil.rmtree(make.root / kind, ignore_errors=True)
    assert not accepted, accepted


@pytest.mark.parametrize("kind", FORMATS)
def test_nothing_good_is_refused(make, kind):
    for number in range(-(-GOOD // len(FORMATS))):
        rng = random.Random(number)
        make.random = rng
        more = {"ranks": rng.randint(1, 9), "rows": rng.randint(1, 12)} if kind.startswith("dcp") else {}
        path = FORMATS[kind](make, kind, rng.randint(1, 300 if kind.startswith("hf") else 10**6), **more)
        before = validate(path, "content", now_s=make.now_s)
        assert before.valid is not False, before
        assert validate(path, "structural", now_s=make.now_s).valid is True
        manifest.write(path)
        for level in ("structural", "checksum", "content"):
            answer = validate(path, level, now_s=make.now_s)
            assert answer.valid is True, answer
        shutil.rmtree(make.root / kind)


@pytest.mark.parametrize("kind", FORMATS)
def test_with_a_manifest_any_flipped_bit_is_seen(make, kind):
    rng = random.Random(kind)
    path = FORMATS[kind](make, kind, 20)
    manifest.write(path)
    for name in scan(path).files:
        file = path if path.is_file() else path / name
        data = bytearray(file.read_bytes())
        at, bit = rng.randrange(len(data)), 1 << rng.randrange(8)
        data[at] ^= bit
        status = file.stat()
        file.write_bytes(data)
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
        assert validate(path, "checksum", now_s=make.now_s).valid is not True, (name, at, bit)
        data[at] ^= bit
        file.write_bytes(data)
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert validate(path, "checksum", now_s=make.now_s).valid is True


@pytest.mark.parametrize("seed", range(6))
def test_a_flipped_bit_in_the_metadata(make, seed):
    """No checksum covers .metadata, so it is held against itself and the shards. A flip must be seen at level checksum,
    or change nothing that a load would read (the free-text fields about the save)."""
    rng = random.Random(seed)
    path = make.dcp("step-20", step=20)
    file = path / ".metadata"
    good = file.read_bytes()
    harmless = good.index(b"storage_meta")
    escaped = []
    for _ in range(max(20, CASES // 6)):
        data = bytearray(good)
        at, bit = rng.randrange(harmless), 1 << rng.randrange(8)
        data[at] ^= bit
        file.write_bytes(data)
        make.age(file, 3599)
        if validate(path, "checksum", now_s=make.now_s).valid is True:
            escaped.append((at, bit, bytes(good[max(0, at - 30) : at + 10])))
    assert not escaped, escaped[:5]


def test_samples_of_real_frameworks(make):
    """Where the recorded checkpoints lie beside the project, each of them is accepted by structure."""
    samples = Path(__file__).resolve().parents[4] / "shared" / "samples"
    if not samples.is_dir():
        pytest.skip("no recorded checkpoints beside this checkout")
    paths = [*samples.glob("dcp/*"), *samples.glob("megatron/iter*"), *samples.glob("deepspeed/*/global*")]
    paths += [*samples.glob("nvrx_local/*/*"), *samples.glob("frameworks/hf/check*"), *samples.glob("single/good*")]
    assert len(paths) > 10
    for path in paths:
        for level in ("structural", "checksum"):
            assert validate(path, level).valid is not False, path
        assert validate(path, "structural").valid is True, path
