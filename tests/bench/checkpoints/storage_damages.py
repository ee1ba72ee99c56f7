"""What storage, copying tools and people do to a checkpoint: damages that leave none of it whole, and copies that do.

Each damage takes a `judge_real.Case` and returns the first level that can see it, or None where it does not apply. Each of
`COPIES` leaves a good checkpoint, however its files' times then look.
"""

from __future__ import annotations

import gzip
import os
import pickle
import shutil
import subprocess
import tempfile
from pathlib import Path

STRUCTURAL, CHECKSUM = "structural", "checksum"


def _renamed(case, name_of):
    """A file that the framework no longer finds under its name."""
    if case.path.is_file():
        return None
    file = case.pick(case.needed)
    other = name_of(file.name)
    if other == file.name or (file.parent / other).exists():
        return None
    file.rename(file.parent / other)
    return STRUCTURAL


def rsync_was_killed(case):
    """The file that was under way has rsync's name of a partial file, and ends early."""
    suffix = "".join(case.rng.choices("abcdefXYZ123", k=6))
    seen = _renamed(case, lambda name: f".{name}.{suffix}")
    for file in case.path.rglob(f".*.{suffix}") if seen else ():
        os.truncate(file, case.rng.randrange(file.stat().st_size))
    return seen


def parts_of_an_upload(case):
    """An object store's parts that were never put together."""
    if case.path.is_file():
        return None
    file = case.pick(case.needed)
    data, cut = file.read_bytes(), max(1, file.stat().st_size // 2)
    for number, part in enumerate((data[:cut], data[cut:])):
        (file.parent / f"{file.name}.part-{number:05d}").write_bytes(part)
    file.unlink()
    return STRUCTURAL


def download_under_way(case):
    return _renamed(case, lambda name: f"{name}.{case.rng.getrandbits(32):08x}")


def compressed_by_somebody(case):
    if case.path.is_file():
        return None
    file = case.pick(case.needed)
    (file.parent / f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
    file.unlink()
    return STRUCTURAL


def case_changed(case):
    return _renamed(case, lambda name: name.upper() if name != name.upper() else name.lower())


def hidden(case):
    return _renamed(case, lambda name: f".{name}" if not name.startswith(".") else name[1:])


def deleted_while_open_on_nfs(case):
    return _renamed(case, lambda name: f".nfs{case.rng.getrandbits(64):016x}{case.rng.getrandbits(32):08x}")


def downloaded_twice(case):
    return _renamed(case, lambda name: f"{Path(name).stem} (1){Path(name).suffix}")


def link_to_the_other_save(case):
    file = None if case.path.is_file() else case.pick(case.needed)
    other = case.other / file.relative_to(case.path) if file else None
    if file is None or not other.is_file():
        return None
    file.unlink()
    file.symlink_to(other)
    return STRUCTURAL


def link_to_nothing(case):
    file = None if case.path.is_file() else case.pick(case.needed)
    if file is None:
        return None
    file.unlink()
    file.symlink_to("/nowhere/scratch/" + file.name)
    return STRUCTURAL


def hard_link_to_the_other_save(case):
    """A tool that saves space took two files of one size for the same."""
    file = None if case.path.is_file() or case.file_per_item else case.pick(case.state)
    other = case.other / file.relative_to(case.path) if file else None
    if file is None or not other.is_file() or other.read_bytes() == file.read_bytes():
        return None
    file.unlink()
    os.link(other, file)
    return STRUCTURAL


def space_ran_out(case):
    """The file that was written last ends at a block, with nothing behind it."""
    files = sorted((f for f in case.files() if case.needed(f)), key=lambda f: f.stat().st_mtime)
    file = files[-1]
    data = file.read_bytes()
    block = 4096 if len(data) > 4096 else 16
    if len(data) <= block:
        return None
    case.put(file, data[: case.rng.randrange(0, len(data) - 1, block)])
    return STRUCTURAL


def preallocated(case):
    """A file of the right length of which only the beginning was written."""
    file = case.pick(case.needed)
    data = file.read_bytes()
    at = case.rng.randrange(len(data))
    if not data[at:].strip(b"\0"):
        return None
    case.put(file, data[:at])
    status = file.stat()
    os.truncate(file, len(data))
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    return CHECKSUM


def first_block_lost(case):
    file = case.pick(case.needed)
    data = file.read_bytes()
    if not data[:4096].strip(b"\0"):
        return None
    case.put(file, bytes(min(4096, len(data))) + data[4096:])
    return CHECKSUM


def only_ids_differ(file, data):
    """Whether torch loads the same of a ``.metadata``: the random ids of a save and of a load are read by nobody."""
    return file.name == ".metadata" and _without_ids(data) == _without_ids(file.read_bytes())


def _without_ids(metadata):
    try:
        made = pickle.loads(metadata)
        made.storage_meta.save_id = made.storage_meta.load_id = None
        return pickle.dumps(made)
    except Exception:  # noqa: BLE001  # whatever a damaged pickle raises
        return object()


def flipped_at_an_end(case):
    """One bit of a header, or of what a file ends with."""
    file = case.pick(case.needed)
    data = bytearray(file.read_bytes())
    at = case.rng.randrange(min(64, len(data)))
    data[at if case.rng.random() < 0.5 else -1 - at] ^= 1 << case.rng.randrange(8)
    if only_ids_differ(file, data):
        return None
    case.put(file, data)
    return CHECKSUM


def sent_as_text(case):
    """A transfer that rewrote the ends of lines."""
    file = case.pick(lambda f: case.needed(f) and f.suffix != ".json")
    data = file.read_bytes() if file else b""
    if b"\n" not in data or len(data) < 64:
        return None
    case.put(file, data.replace(b"\n", b"\r\n"))
    return CHECKSUM


def block_written_twice(case):
    """Everything behind a place was written one block too late, over what was there."""
    file = case.pick(lambda f: case.needed(f) and f.stat().st_size > 8192)
    if file is None:
        return None
    data = file.read_bytes()
    at = case.rng.randrange(0, len(data) - 4096, 4096)
    late = data[: at + 4096] + data[at:]
    if late[: len(data)] == data:
        return None
    case.put(file, late[: len(data)])
    return CHECKSUM


def two_files_swapped(case):
    """Two files whose names differ in a number have each other's content: two ranks', two shards'."""
    if case.path.is_file():
        return None
    digits = str.maketrans("0123456789", "##########")
    sets = {}
    for file in case.files():
        if case.needed(file) and file.suffix != ".json":
            sets.setdefault((file.parent, file.name.translate(digits)), []).append(file)
    pairs = [files for files in sets.values() if len(files) > 1]
    if not pairs:
        return None
    one, two = case.rng.sample(case.rng.choice(pairs), 2)
    mine, theirs = one.read_bytes(), two.read_bytes()
    if mine == theirs or case.file_per_item:
        return None
    case.put(one, theirs)
    case.put(two, mine)
    return CHECKSUM


def older_index(case):
    """The file that describes the others is the other save's, with its times."""
    names = ("trainer_state.json", ".metadata", "_METADATA", "manifest.ocdbt", ".zarray", "zarr.json")
    file = None if case.path.is_file() else case.pick(lambda f: f.name in names or f.name.endswith(".index.json"))
    other = case.other / file.relative_to(case.path) if file else None
    if file is None or not other.is_file() or file.read_bytes() == other.read_bytes():
        return None
    shutil.copy2(other, file)
    return STRUCTURAL if file.name == "trainer_state.json" else CHECKSUM


def rank_of_a_larger_job(case):
    """A rank's file that an earlier save of more ranks left in the folder."""
    if case.path.is_file():
        return None
    ranks = sorted(case.path.glob("checkpoint_*.pt"))
    if not ranks:
        return None
    shutil.copy2(case.other / ranks[0].name, case.path / f"checkpoint_{len(ranks)}.pt")
    return STRUCTURAL


def unpacked_with_one_time(case):
    """All times are one, and one file is the other save's."""
    file = None if case.path.is_file() or case.file_per_item else case.pick(case.state)
    other = case.other / file.relative_to(case.path) if file else None
    if file is None or not other.is_file() or other.read_bytes() == file.read_bytes():
        return None
    shutil.copyfile(other, file)
    one_time(case.path)
    return CHECKSUM


DAMAGES = [
    rsync_was_killed, parts_of_an_upload, download_under_way, compressed_by_somebody, case_changed, hidden,
    deleted_while_open_on_nfs, downloaded_twice, link_to_the_other_save, link_to_nothing, hard_link_to_the_other_save,
    space_ran_out, preallocated, first_block_lost, flipped_at_an_end, sent_as_text, block_written_twice,
    two_files_swapped, older_index, rank_of_a_larger_job, unpacked_with_one_time,
]  # fmt: skip


# --- copies ------------------------------------------------------------------------------------------------------------


def files_of(path):
    return [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())


def one_time(path):
    newest = max(file.stat().st_mtime for file in files_of(path))
    for file in files_of(path):
        os.utime(file, (newest, newest))


def copied_with_times(case):
    _command(case, "cp", "-a")


def copied(case):
    _command(case, "cp", "-r")


def rsynced(case):
    if shutil.which("rsync"):
        _command(case, "rsync", "-r")


def _command(case, *words):
    copy = case.path.with_name("copy")
    inside = words[0] == "rsync" and case.path.is_dir()  # rsync copies what is in a folder where its name ends so
    subprocess.run([*words, f"{case.path}/" if inside else case.path, copy], check=True)
    case.remove(case.path)
    copy.rename(case.path)


def moved_to_another_file_system(case):
    with tempfile.TemporaryDirectory(dir="/dev/shm") as there:
        shutil.move(case.path, there)
        shutil.move(Path(there) / case.path.name, case.path)


def copied_slowly(case):
    """A large one, copied file by file without its times: a minute for each file, in the order of their names."""
    _spread(files_of(case.path), 60.0, case)


def copied_backwards(case):
    _spread(files_of(case.path)[::-1], 60.0, case)


def from_an_object_store(case):
    """Many files at once, in any order, times in whole seconds; the save before is loaded at the same time."""
    files = [*files_of(case.path), *files_of(case.other)]
    case.rng.shuffle(files)
    _spread(files, 7.0, case)


def _spread(files, apart_s, case):
    began = int(min(file.stat().st_mtime for file in files))
    for number, file in enumerate(files):
        os.utime(file, (began, began + number * apart_s))
    # Whoever makes files changes their folders.
    for path in (case.path, case.other):
        for folder in [path, *path.rglob("*")] if path.is_dir() else []:
            inside = [f.stat().st_mtime for f in folder.iterdir() if f.is_file()] if folder.is_dir() else []
            if inside:
                os.utime(folder, (max(inside), max(inside)))


def unpacked(case):
    one_time(case.path)


COPIES = [
    copied_with_times, copied, rsynced, moved_to_another_file_system, copied_slowly, copied_backwards,
    from_an_object_store, unpacked,
]  # fmt: skip
