"""Judge checkpoints that real libraries wrote, good ones and damaged ones. Needs the libraries of `real_writers.py`.

    python tests/bench/checkpoints/judge_real.py --good 300 --damages 600 [--seed 1] [--only NAME ...] [--made DIR]
        [--draw 1] [--progress FILE]

With --made, checkpoints that lie there are judged, written by an earlier call with the same seed; those that are missing are
written there, and stay. --draw is the seed of the damages (default: --seed). With --progress FILE a call that was cut off
goes on.
Good ones must not be refused at any level, damaged ones not be accepted at a level that can see the damage. One JSON line;
exit status 1 where one was judged wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from functools import partial
from pathlib import Path

from more_writers import WRITERS
from resaved_damages import DAMAGES as RESAVED
from storage_damages import COPIES, files_of, only_ids_differ
from storage_damages import DAMAGES as STORAGE_DAMAGES

from sentinel.checkpoints.validate import Settings, validate

LEVELS = ("structural", "checksum", "content")
# What a resumed run does without, or makes anew.
_OPTIONAL = (
    "training_args.bin",
    "README.md",
    "generation_config.json",
    "config.json",
    "rng_state.pth",
    "random_states_0.pkl",  # Accelerate resumes without it, with a line in the log
    ".gitattributes",
)
_OPTIONAL += ("_sharding", "scheduler.pt", "chat_template.jinja", "adapter_config.json", "array_metadatas/process_0")


def write_all(root, names, seeds):
    """writer/seed/(10, 20) -> paths; steps an hour apart, the newest a day old."""
    made = {}
    for name in names:
        for seed in seeds:
            folder = root / name / str(seed)
            listed = root / name / f"{seed}.json"
            if listed.exists():
                made[name, seed] = [folder / path for path in json.loads(listed.read_text())]
                continue
            shutil.rmtree(folder, ignore_errors=True)
            paths = []
            for step, age_s in ((10, 90_000), (20, 86_400)):
                with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                    began = time.time()
                    path = WRITERS[name](folder, step, seed)
                shift(path, began, age_s)
                paths.append(path)
            listed.write_text(json.dumps([str(path.relative_to(folder)) for path in paths]))
            made[name, seed] = paths
    return made


def shift(path, began, age_s):
    for file in [path, *path.rglob("*")] if path.is_dir() else [path]:
        status = file.lstat()
        if not file.is_symlink():
            os.utime(file, (began - age_s, status.st_mtime - age_s))


def read_by_orbax(path, file):
    """Whether Orbax fails to restore the checkpoint without this file."""
    import orbax.checkpoint as ocp

    aside = file.rename(path.parent / "aside")
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            ocp.PyTreeCheckpointer().restore(file.parents[1 if file.parent.name != "d" else 2])
    except Exception:  # noqa: BLE001  # whatever it raises: it could not restore
        return True
    finally:
        aside.rename(file)
    return False


class Case:
    """One checkpoint with the step before it, copied, to be damaged."""

    def __init__(self, paths, root, rng, name=""):
        self.rng = rng
        self.one_process = name.startswith(ONE_PROCESS)
        self.file_per_item = name in FILE_PER_ITEM
        self.step, self.states_its_step = 20, name.startswith(STATE_THEIR_STEP)
        self.safetensors_inside = name.startswith("dcp_safetensors")
        base = Path(os.path.commonpath(paths))
        inside = base if base.is_dir() else base.parent
        shutil.copytree(inside, root, symlinks=True)
        self.other, self.path = (root / path.relative_to(inside) for path in paths)

    def pick(self, wanted=lambda file: True):
        files = [file for file in files_of(self.path) if wanted(file) and file.stat().st_size]
        return self.rng.choice(files) if files else None

    def put(self, file, data, *, late=0.0):
        status = file.stat()
        file.write_bytes(data)
        os.utime(file, (status.st_atime, status.st_mtime + late))

    def is_set(self):
        """Whether it consists of several files, and lies beside one that does."""
        return self.path.is_dir()

    def files(self):
        return files_of(self.path)

    def state(self, file):
        """Whether a file of that name is another in every save."""
        return file.name.startswith(STATE) and file.suffix not in (".json", "") and file.name != "scheduler.pt"

    def remove(self, path):
        path.unlink() if path.is_file() else shutil.rmtree(path)

    def needed(self, file):
        name = str(file.relative_to(self.path)) if self.path.is_dir() else file.name
        # A process's own store of Orbax is read where the merged one refers to it; what a commit marker says is not read.
        if "ocdbt.process" in name and not read_by_orbax(self.path, file):
            return False
        return not name.endswith((*_OPTIONAL, "commit_success.txt"))


def truncated(case):
    file = case.pick(case.needed)
    data = file.read_bytes()
    case.put(file, data[: case.rng.randrange(len(data))])
    return "structural"


def emptied(case):
    case.put(case.pick(case.needed), b"")
    return "structural"


def zeroed(case):
    file = case.pick(case.needed)
    case.put(file, bytes(file.stat().st_size))
    return "checksum" if file.suffix in ("", ".json") and file.stat().st_size < 64 else "structural"


def missing(case):
    if case.path.is_file():
        return None
    case.pick(case.needed).unlink()
    return "structural"


def flipped(case):
    file = case.pick(case.needed)
    data = bytearray(file.read_bytes())
    data[case.rng.randrange(len(data))] ^= 1 << case.rng.randrange(8)
    if only_ids_differ(file, data):
        return None
    case.put(file, data)
    return "checksum"


def zeroed_page(case):
    file = case.pick(case.needed)
    data = bytearray(file.read_bytes())
    at = case.rng.randrange(0, len(data), 512)
    if not data[at : at + 512].strip(b"\0"):
        return None
    data[at : at + 512] = bytes(len(data[at : at + 512]))
    case.put(file, data)
    return "checksum"


def cut_json(case):
    file = case.pick(lambda file: file.suffix == ".json")
    if file is None:
        return None
    data = file.read_bytes()
    case.put(file, data[: case.rng.randrange(len(data.rstrip()))])
    return "structural"


STATE = ("model", "optimizer", "shard", "__", "scheduler", "d/", "checkpoint_")


def of_another_save(case, *, times, beside):
    file = None if case.path.is_file() else case.pick(case.state)
    if file is None:
        return None
    other = case.other / file.relative_to(case.path)
    if not other.is_file() or other.read_bytes() == file.read_bytes():
        return None
    status = file.stat()
    shutil.copy2(other, file)
    if times == "mine":
        os.utime(file, (status.st_atime, status.st_mtime))
    if not beside:
        shutil.rmtree(case.other)
    return "structural" if times == "theirs" else "checksum"


def mixed_old_times(case):
    return of_another_save(case, times="theirs", beside=True)


def mixed_alone(case):
    # What only the times show: not shown where each file may be written by another process at another time.
    return None if case.path.is_file() or not case.one_process else of_another_save(case, times="theirs", beside=False)


def mixed_same_times(case):
    # A file of one item may be the same in two saves (a frozen weight): bytes equal to the other save's show nothing.
    if case.file_per_item:
        return None
    return of_another_save(case, times="mine", beside=True)


def torn_overwrite(case):
    file = None if case.path.is_file() else case.pick(case.state)
    if file is None:
        return None
    case.put(file, file.read_bytes(), late=1800)
    return "structural"


def half_of_another(case):
    """A save that was overwritten in place as far as it came."""
    file = case.pick(case.needed)
    other = case.other if case.path.is_file() else case.other / file.relative_to(case.path)
    if case.file_per_item or not other.is_file():
        return None
    mine, theirs = file.read_bytes(), other.read_bytes()
    at = case.rng.randrange(len(mine))
    mixed = theirs[:at] + mine[at:]
    if len(theirs) != len(mine) or mixed in (mine, theirs):
        return None
    case.put(file, mixed)
    return "checksum"


def hole(case):
    """Blocks that a file system lost: they read as zeros, and length and times are as they were."""
    file = case.pick(lambda file: case.needed(file) and file.stat().st_size > 8192)
    if file is None:
        return None
    status = file.stat()
    data = file.read_bytes()
    at = case.rng.randrange(0, len(data) - 4096, 4096)
    if not data[at : at + 4096].strip(b"\0"):
        return None
    with file.open("r+b") as handle:
        handle.truncate(at)
        handle.truncate(at + 4096)
        handle.seek(at + 4096)
        handle.write(data[at + 4096 :])
    os.utime(file, (status.st_atime, status.st_mtime))
    return "checksum"


def appended(case):
    """The tail of a longer file that was there before, or of two writers."""
    file = case.pick(lambda file: case.needed(file) and not file.name.endswith(".json"))
    if file is None or (file.suffix == "" and file.stat().st_size < 64):
        return None
    case.put(file, file.read_bytes() + case.rng.randbytes(case.rng.randrange(1, 5000)))
    return "checksum"


DAMAGES = [
    truncated, emptied, zeroed, missing, flipped, zeroed_page, cut_json, mixed_old_times, mixed_alone, mixed_same_times,
    torn_overwrite, half_of_another, hole, appended, *STORAGE_DAMAGES, *RESAVED,
]  # fmt: skip


def with_leftovers(case):
    """What file systems, editors and writers leave behind, beside good files."""
    folder = case.path if case.path.is_dir() else case.path.parent
    for name in (".nfs000000000001", ".DS_Store", "core.123", "notes.txt~"):
        if not (folder / name).exists():
            (folder / name).write_bytes(case.rng.randbytes(100))
            os.utime(folder / name, (case.path.stat().st_atime, case.path.stat().st_mtime - 5))


STATE_THEIR_STEP = ("trainer", "lightning", "torch_plain", "dcp_plain", "dcp_threads", "dcp_async", "dcp_titan")
ONE_PROCESS = ("trainer", "accelerate")
FILE_PER_ITEM = ("dcp_file_per_item",)


class Judged:
    """What was judged, by key, with what was wrong; kept in a file of JSON lines where one is named."""

    def __init__(self, path):
        self.file = path.open("a+") if path else io.StringIO()
        self.file.seek(0)
        self.before = dict(map(json.loads, self.file))

    def once(self, key, judge):
        """What ``judge`` returns, asked for now unless an earlier call has kept it."""
        if key not in self.before:
            self.before[key] = judge()
            print(json.dumps([key, self.before[key]]), file=self.file, flush=True)
        return self.before[key]


def judge_good(name, seed, paths, draw, room):
    """What of a good pair of steps was refused, alone and with leftovers beside it."""
    refused = []
    for path in paths:
        for level in LEVELS:
            answer = validate(path, level)
            if answer.valid is False or (level == "structural" and answer.valid is not True):
                refused.append((name, seed, level, answer.valid, answer.reason))
    case = Case(paths, room, random.Random(f"{draw} {name}"), name)
    with_leftovers(case)
    answer = validate(case.path, "structural")
    if answer.valid is not True:
        refused.append((name, seed, "with leftovers", answer.valid, answer.reason))
    shutil.rmtree(room)
    return refused


def judge_copies(name, paths, draw, room):
    """Copy one kind of checkpoint in each way: what was valid at a level is so still."""
    refused = []
    for copy in COPIES:
        case = Case(paths, room, random.Random(f"{draw} {name} {copy.__name__}"), name)
        before = {level: validate(case.path, level).valid for level in LEVELS}
        copy(case)
        for level in LEVELS:
            answer = validate(case.path, level, settings=Settings(fresh_s=0.0))
            if answer.valid is not before[level]:
                refused.append((name, copy.__name__, level, answer.valid, answer.reason))
        shutil.rmtree(room)
    return refused


def judge_damage(number, made, draw, room):
    """Kind, damage and what was accepted; None where the damage that was drawn does not apply."""
    rng = random.Random(f"{draw} {number}")
    name, seed = rng.choice(sorted(made))
    damage = DAMAGES[number % len(DAMAGES)]
    case = Case(made[name, seed], room, rng, name)
    accepted = []
    seen_at = damage(case)
    for level in LEVELS[LEVELS.index(seen_at) :] if seen_at else ():
        answer = validate(case.path, level)
        if answer.valid is True:
            accepted.append((name, damage.__name__, number, level, answer.reason[:80]))
    shutil.rmtree(room)
    return [name, damage.__name__, accepted] if seen_at else None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--good", type=int, default=300)
    parser.add_argument("--damages", type=int, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--draw", type=int)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--made", type=Path, help="folder of what was written, kept for the next call")
    parser.add_argument("--progress", type=Path)
    asked = parser.parse_args()
    names = asked.only or sorted(WRITERS)
    draw = asked.seed if asked.draw is None else asked.draw
    root, judged = Path(tempfile.mkdtemp()), Judged(asked.progress)
    seeds = [asked.seed * 1000 + index for index in range(max(1, -(-asked.good // (2 * len(names)))))]
    refused, done = [], []
    try:
        made = write_all(asked.made or root / "made", names, seeds)
        for (name, seed), paths in made.items():
            refused += judged.once(f"{name} {seed}", partial(judge_good, name, seed, paths, draw, root / "case"))
            if seed == seeds[0]:
                refused += judged.once(f"{name} copies", partial(judge_copies, name, paths, draw, root / "case"))
        number = 0
        while len(done) < asked.damages and number < 40 * asked.damages:
            number += 1
            found = judged.once(f"damage {number}", partial(judge_damage, number, made, draw, root / "case"))
            done += [found] if found else []
    finally:
        shutil.rmtree(root)
    accepted = [one for _, _, wrong in done for one in wrong]
    counts = Counter(damage for _, damage, _ in done)
    print(json.dumps({
        "kinds": len(names), "good": sum(map(len, made.values())), "copies": len(names) * len(COPIES), "refused": refused,
        "damaged_kinds": len({name for name, _, _ in done}), "damages": counts, "accepted": accepted,
    }))  # fmt: skip
    return 1 if refused or accepted else 0


if __name__ == "__main__":
    sys.exit(main())
