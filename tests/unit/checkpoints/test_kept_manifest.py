"""Manifests made while a job runs: what was read once is proven while nothing changes, and invalid when it does."""

from __future__ import annotations

import os
import shutil
import struct

import pytest

from sentinel.checkpoints.files import Broken, NotKnown, scan
from sentinel.checkpoints.kept_manifest import Kept, find, keep, paced, place_of
from sentinel.checkpoints.validate import Settings, record, validate

LEVELS = ("structural", "checksum", "content")
FORMATS = {
    "hf": lambda m: m.hf("run/checkpoint-20", 20),
    "hf_sharded": lambda m: m.hf("run/checkpoint-20", 20, sharded=True),
    "accelerate": lambda m: m.accelerate("run/step_20", 20),
    "legacy": lambda m: m.legacy("run/iter_5.pt"),
    "dcp": lambda m: m.dcp("run/step-20", step=20),
    "consolidated": lambda m: m.consolidated("run/step-20"),
}


@pytest.fixture(params=sorted(FORMATS))
def saved(request, make):
    return FORMATS[request.param](make)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "kept"


def made(make, path, folder):
    return record(path, folder, lambda count: None, now_s=make.now_s)


def ask(make, path, level, folder):
    return validate(path, level, now_s=make.now_s, settings=Settings(manifests=folder))


def files(path):
    return [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())


def test_what_was_read_once_is_proven(make, saved, folder, monkeypatch):
    before = [file.stat().st_mtime_ns for file in files(saved)]
    kept = made(make, saved, folder)
    assert kept.level == "content" and kept.bytes == scan(saved).bytes
    for level in ("structural", "checksum", "content"):
        assert ask(make, saved, level, folder).valid is True
    assert "nothing has changed" in ask(make, saved, "content", folder).reason
    assert [file.stat().st_mtime_ns for file in files(saved)] == before
    assert not [file for file in files(saved) if "manifest" in file.name]


def test_what_was_changed_after_it_is_invalid(make, saved, folder):
    made(make, saved, folder)
    for file in files(saved):
        data = bytearray(file.read_bytes())
        status = file.stat()
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
        answer = ask(make, saved, "checksum", folder)
        assert answer.valid is False, (file, answer)
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    answer = ask(make, saved, "content", folder)
    assert answer.valid is True and "same bytes" in answer.reason


@pytest.mark.parametrize("share", [0.3, 1.0])
def test_a_part_of_another_save_that_no_checksum_shows(make, folder, share):
    """Pieces of the step before in the place of its own, each whole, the times restored, and that step gone."""
    path, other = (
        make.dcp(f"run/step-{step}", step=step, names=("model.w", "model.v", "model.u")) for step in (20, 10)
    )
    made(make, path, folder)
    file = path / "__3_0.distcp"
    mine, theirs, status = file.read_bytes(), (other / file.name).read_bytes(), file.stat()
    length = len(mine) // 3 * round(3 * share)
    file.write_bytes(theirs[:length] + mine[length:])
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    shutil.rmtree(other)
    assert validate(path, "checksum", now_s=make.now_s).valid is True
    answer = ask(make, path, "checksum", folder)
    assert answer.valid is False and "changed after its manifest" in answer.reason


def test_a_rank_that_was_written_over_minutes_later_where_there_is_no_marker(make, folder):
    path = make.root / "step-10"

    def rank(number):
        value, payloads = make.state(10)
        make.write(path / f"checkpoint_{number}.pt", make.torch_file({"optimizer": value, "step": 10}, payloads))

    rank(0)
    rank(1)
    made(make, path, folder)
    rank(1)
    assert validate(path, "content", now_s=make.now_s).valid is True
    assert ask(make, path, "content", folder).valid is False


def age_all(make, path, seconds):
    for file in files(path):
        make.age(file, seconds)


@pytest.mark.parametrize("name", sorted(FORMATS))
@pytest.mark.parametrize("anew", [False, True])
def test_a_later_save_at_the_same_path_is_judged_by_itself(make, folder, name, anew):
    """A rolling file, or a step that a run reaches once more after it was set back."""
    path = FORMATS[name](make)
    age_all(make, path, 7200)
    made(make, path, folder)
    if anew:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert FORMATS[name](make) == path
    assert [ask(make, path, level, folder) for level in LEVELS] == [
        validate(path, level, now_s=make.now_s) for level in LEVELS
    ]
    made(make, path, folder)
    assert ask(make, path, "content", folder).valid is True


def test_bad_numbers_of_an_earlier_save_are_none_of_a_later_one(make, folder):
    path = make.lightning("last.ckpt")
    whole = path.read_bytes()
    bad = {"global_step": 90, "state_dict": {"w": make.tensor((16, 8))}}
    path.write_bytes(make.torch_file(bad, [struct.pack("<f", float("nan")) * 128]))
    make.age(path, 7200)
    assert "NaN" in made(make, path, folder).finding
    make.write(path, whole)
    assert ask(make, path, "content", folder).valid is True


def test_shards_of_ranks_that_are_no_more_do_not_convict_a_later_save(make, folder):
    path = make.dcp("run/last", step=20, ranks=4)
    age_all(make, path, 7200)
    made(make, path, folder)
    make.dcp("run/last", step=30, ranks=2)
    assert ask(make, path, "checksum", folder).valid is validate(path, "checksum", now_s=make.now_s).valid is True


def test_a_save_of_which_a_part_was_written_over_is_not_known(make, folder):
    """Two saves mixed, or one of a trainer that writes only what changed: its bytes do not say which."""
    path = make.root / "step-10"

    def rank(number, after_s=0.0):
        value, payloads = make.state(10)
        data = make.torch_file({"optimizer": value, "step": 10}, payloads)
        make.write(path / f"checkpoint_{number}.pt", data, after_s)

    rank(0)
    rank(1)
    made(make, path, folder)
    rank(1, 600)
    assert validate(path, "content", now_s=make.now_s).valid is True
    answer = ask(make, path, "content", folder)
    assert answer.valid is None and "checkpoint_1.pt was written after its manifest" in answer.reason


def test_the_reason_names_the_manifest(make, folder):
    path = make.hf("run/checkpoint-20", 20)
    made(make, path, folder)
    file = path / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    status = file.stat()
    file.write_bytes(data)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    answer = ask(make, path, "checksum", folder)
    assert (answer.valid, answer.level) == (False, "checksum") and "changed after its manifest" in answer.reason
    (path / "training_args.bin").unlink()
    assert "was there when its manifest was made" in ask(make, path, "checksum", folder).reason


def test_bad_numbers_are_remembered(make, folder):
    path = make.hf("run/checkpoint-20", 20)
    file = path / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-4:] = struct.pack("<f", float("nan"))
    make.write(file, bytes(data))
    kept = made(make, path, folder)
    assert kept.level == "checksum" and "NaN" in kept.finding
    assert ask(make, path, "checksum", folder).valid is True
    answer = ask(make, path, "content", folder)
    assert (answer.valid, answer.level) == (False, "content") and "when it was saved" in answer.reason


def test_no_manifest_of_what_is_not_whole(make, folder):
    path = make.hf("run/checkpoint-20", 20)
    (path / "optimizer.pt").write_bytes(b"")
    with pytest.raises(Broken):
        made(make, path, folder)
    with pytest.raises(NotKnown):
        made(make, make.root / "nothing", folder)
    assert not folder.exists()


def test_a_file_that_came_later_is_not_proven(make, folder):
    path = make.hf("run/checkpoint-20", 20)
    made(make, path, folder)
    make.write(path / "notes.txt", b"good run")
    assert ask(make, path, "content", folder).valid is True
    make.write(path / "adapter.safetensors", make.safetensors({"w": ("F32", (4, 4), make.floats(16))}))
    assert ask(make, path, "content", folder).valid is None


@pytest.mark.parametrize("damage", [b"", b"{}", b"[1", b'{"version": 1}'])
def test_a_damaged_manifest_is_none(make, folder, damage):
    path = make.dcp("run/step-20", step=20)
    made(make, path, folder)
    place_of(folder, path).write_bytes(damage)
    assert find(folder, scan(path)) is None
    assert ask(make, path, "checksum", folder).valid is True


def test_the_oldest_are_forgotten(folder, monkeypatch):
    monkeypatch.setattr("sentinel.checkpoints.kept_manifest.KEPT", 3)
    for number in range(5):
        place = keep(folder, Kept(f"/run/{number}", "content", "", 0.0, 0, 0.0, {}))
        os.utime(place, (number, number))
    assert len(list(folder.iterdir())) == 3 and place_of(folder, type(folder)("/run/4")).exists()


def kept_of(folder, path, at_s=0.0):
    place = keep(folder, Kept(path, "content", "", 0.0, 0, 0.0, {}))
    os.utime(place, (at_s, at_s))
    return place


def test_the_saves_of_other_runs_push_out_none_of_a_slow_one(folder, monkeypatch):
    """They are never made again: at its restart nothing would prove its saves."""
    monkeypatch.setattr("sentinel.checkpoints.kept_manifest.KEPT", 12)
    slow = [kept_of(folder, f"/slow/step-{number}", number) for number in range(2)]
    last = {run: kept_of(folder, f"/sweep/{run}/step-{n}", 10 + n) for n in range(10) for run in range(4)}
    assert all(place.exists() for place in (*slow, *last.values()))
    assert len(list(folder.iterdir())) == 12


def test_one_runs_saves_are_not_kept_without_end(folder, monkeypatch):
    monkeypatch.setattr("sentinel.checkpoints.kept_manifest.KEPT_OF_RUN", 3)
    other = kept_of(folder, "/other/step-1")
    places = [kept_of(folder, f"/run/step-{number}", 10 + number) for number in range(5)]
    assert set(folder.iterdir()) == {other, *places[2:]}


def test_two_nodes_forget_at_once(folder, monkeypatch):
    """What one of them has removed is gone for the other, too."""
    for number in range(4):
        kept_of(folder, f"/run/{number}", number)
    real = os.scandir

    class Raced:
        def __init__(self, path):
            self.entries = real(path)

        def __enter__(self):
            listed = list(self.entries)
            for entry in listed[:2]:
                os.unlink(entry.path)
            return iter(listed)

        def __exit__(self, *_):
            self.entries.close()

    monkeypatch.setattr("sentinel.checkpoints.kept_manifest.KEPT", 2)
    monkeypatch.setattr(os, "scandir", Raced)
    newest = kept_of(folder, "/run/5", 5)
    monkeypatch.undo()
    assert newest in folder.iterdir()


def test_what_was_kept_before_runs_were_told_apart_is_found(make, folder):
    path = make.hf("run/checkpoint-20", 20)
    made(make, path, folder)
    place = place_of(folder, path)
    place.rename(folder / place.name.partition("-")[2])
    assert ask(make, path, "checksum", folder).valid is True
    made(make, path, folder)  # and gives way to a new one
    assert [one.name for one in folder.iterdir()] == [place.name]


def test_what_was_kept_before_is_of_several_runs(folder, monkeypatch):
    """As one run's, all but the newest hundred went at the first save after an upgrade."""
    monkeypatch.setattr("sentinel.checkpoints.kept_manifest.KEPT_OF_RUN", 2)
    former = []
    for number in range(4):
        place = kept_of(folder, f"/run-{number}/step-1", number)
        former.append(place.rename(folder / place.name.partition("-")[2]))
    kept_of(folder, "/run-5/step-1")
    assert all(place.exists() for place in former)


def test_the_rate_is_kept():
    now, slept = [0.0], []

    def sleep(seconds):
        slept.append(seconds)
        now[0] += seconds

    pace = paced(100.0, sleep, lambda: now[0])
    for _ in range(10):
        pace(50)
        now[0] += 0.1
    assert sum(slept) == pytest.approx(4.1) and now[0] >= 5
