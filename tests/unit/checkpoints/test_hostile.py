"""Bad input of every kind: an answer, quickly, in bounded memory, and nothing is run."""

from __future__ import annotations

import io
import os
import pickle
import subprocess
import sys
import time
import tracemalloc
import zipfile
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sentinel import inert_pickle
from sentinel.checkpoints.fleet_parts import world_size_of
from sentinel.checkpoints.inventory import listing
from sentinel.checkpoints.join import join
from sentinel.checkpoints.records import Part
from sentinel.checkpoints.validate import validate, validate_part


def values(leaves):
    return st.recursive(
        leaves,
        lambda inner: (
            st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text() | st.integers(-9, 9), inner)
        ),
        max_leaves=12,
    )


# Before protocol 3 pickle has no bytes: it writes a call of codecs.encode, which is not made.
texts = values(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text())
plain = values(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary())


@given(texts, st.integers(0, 5))
def test_reads_what_pickle_reads(value, protocol):
    assert inert_pickle.load(pickle.dumps(value, protocol)) == value


@given(plain, st.integers(3, 5))
def test_reads_bytes_as_pickle_does(value, protocol):
    assert inert_pickle.load(pickle.dumps(value, protocol)) == value


@given(plain, st.integers(2, 5), st.data())
@settings(max_examples=200)
def test_a_damaged_pickle_is_an_error_or_a_value(value, protocol, data):
    """Never any other exception, whatever byte is changed and wherever it is cut."""
    raw = bytearray(pickle.dumps(value, protocol))
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] = data.draw(st.integers(0, 255))
    for piece in (bytes(raw), bytes(raw[:at])):
        try:
            found = inert_pickle.load(piece)
        except inert_pickle.PickleError:
            continue
        assert is_inert(found)


@given(st.binary(max_size=60))
def test_any_bytes(data):
    try:
        found = inert_pickle.load(data)
    except inert_pickle.PickleError:
        return
    assert is_inert(found)


def is_inert(value: object) -> bool:
    """Whether it is plain data, names and what was not called, all the way down."""
    seen, left = set(), [value]
    while left:
        item = left.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, inert_pickle.Opaque):
            left += [item.maker, item.args, item.state, item.items]
        elif type(item) in (list, tuple, set, frozenset):
            left += item
        elif type(item) is dict:
            left += [*item, *item.values()]
        elif type(item) not in (type(None), bool, int, float, str, bytes, bytearray, inert_pickle.Name):
            return False
    return True


class Bomb:
    def __init__(self, place):
        self.place = place

    def __reduce__(self):
        return os.system, (f"touch {self.place}",)


def test_nothing_is_run(make):
    path = make.dcp("step-10")
    make.write(path / ".metadata", pickle.dumps(Bomb(make.root / "pwned")), 1)
    assert validate(path, "content", now_s=make.now_s).valid is not True
    file = make.root / "iter_5.pt"
    bomb = pickle.dumps({"w": Bomb(make.root / "pwned")}, 2)
    make.write(file, make.torch_zip([("data.pkl", bomb), ("version", b"3\n")]))
    validate(file, "content", now_s=make.now_s)
    assert not (make.root / "pwned").exists()


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x05\x96" + (1 << 40).to_bytes(8, "little") + b".",
        b"\x80\x02B\xff\xff\xff\x7f.",
        b"\x80\x02K\x01r\xff\xff\xff\xffh\x00.",
        b"\x80\x02(" + b"}" * 3_000_000 + b"l.",
        b"\x80\x02})" + b"\x85" * 300_000 + b"K\x01s.",
        b"\x80\x02)q\x00" + b"".join(b"h%ch%c\x86q%c" % (i, i, i + 1) for i in range(60)) + b"}h\x3cK\x01s.",
        b"\x80\x02}(\x8a\x09" + b"\xff" * 8 + b"\x01K\x01u.",
        b"\x80\x02cos\nsystem\n" + b"(" * 100_000 + b"t" * 99_999 + b"R.",
        b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f.",
        b"I" + b"9" * 100_000 + b"\n.",
        b"\x80\x02\x82\x01.",
        b"",
        b".",
    ],
)
def test_pickles_made_to_exhaust(data):
    with pytest.raises(inert_pickle.PickleError):
        inert_pickle.load(data)


def test_a_zip_bomb_is_not_inflated(make):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(200 << 20))
    make.write(make.root / "iter_5.pt", buffer.getvalue())
    answer = validate(make.root / "iter_5.pt", "content", now_s=make.now_s)
    assert answer.valid is None and "not inflated" in answer.reason


@pytest.mark.parametrize(
    "header",
    [
        b"[" * 200_000,
        b'{"a":' * 100_000,
        b'{"a":1,"a":2}',
        b'{"__metadata__":{"a":1}}',
        b"{}" * 9,
        b'{"w":{"dtype":"F32"}}',
    ],
)
def test_headers_made_to_exhaust(make, header):
    file = make.root / "step-5.safetensors"
    make.write(file, len(header).to_bytes(8, "little") + header)
    assert validate(file, "structural", now_s=make.now_s).valid is False


@pytest.mark.parametrize("shape", [(1 << 61,) * 90, (10**4000,) * 2, (9**99,)])
def test_arrays_made_to_exhaust(make, shape):
    """Their length has more digits than Python writes."""
    head = str({"descr": "<f4", "fortran_order": False, "shape": shape}).encode()
    make.write(make.root / "step_5/a.npy", b"\x93NUMPY\x02\x00" + len(head).to_bytes(4, "little") + head)
    answer = validate(make.root / "step_5", "structural", now_s=make.now_s)
    assert answer.valid is None and "a.npy" in answer.reason, answer


@pytest.mark.parametrize("level", ["structural", "content"])
@pytest.mark.parametrize(
    "wide", [lambda inner: [inner] * 250, lambda inner: dict.fromkeys(map(str, range(250)), inner)]
)
def test_tables_that_hold_one_table_again_and_again(make, wide, level):
    """A few kilobytes that would be gone through for hours: 250 entries that are one, in each of which are 250."""
    value = {"step": 5}
    for _ in range(5):
        value = wide(value)
    for name in ("step_5/state.pt", "run/step_5.pt"):
        make.write(make.root / name, make.torch_file({"optimizer": value}, prefix=name.rpartition("/")[2][:-3]))
    began_s = time.process_time()
    for name in ("step_5", "run/step_5.pt"):
        assert validate(make.root / name, level, now_s=make.now_s).valid is True
    assert time.process_time() - began_s < 2


@pytest.mark.parametrize("text", [b"[" + b"1," * 400_000 + b"1]", b"1\n" * 1_000_000])
def test_texts_made_to_exhaust(make, text):
    for step in (5, 6):
        make.write(make.root / f"run/step_{step}/state.pt", make.torch_file({"step": step}, prefix="state"))
        for number in range(60):
            make.write(make.root / f"run/step_{step}/{number}.json", text)
    began_s = time.process_time()
    assert validate(make.root / "run/step_5", "structural", now_s=make.now_s).valid is True
    assert time.process_time() - began_s < 6


@pytest.mark.parametrize("name", ["3000000", "9" * 250, "\u00b2"])
def test_a_folder_that_names_an_absurd_rank_takes_no_memory(make, name):
    path = make.nvrx("session", 200)
    (path / name).mkdir()
    tracemalloc.start()
    answer = validate(path, "structural", now_s=make.now_s + 3600)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert answer.valid is (False if name == "3000000" else True) and most < 32 << 20


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("accelerate", "random_states_{}.pkl"),
        ("hf_writer", "shard-{}-model-00001-of-00001.safetensors"),
        ("deepspeed", "bf16_zero_pp_rank_{}_mp_rank_00_optim_states.pt"),
        ("deepspeed", "mp_rank_{}_model_states.pt"),
        ("nvrx", "0/iter_0000200_{}_local.pt"),
    ],
)
def test_a_file_that_names_an_absurd_rank_takes_no_memory(make, kind, name):
    path = getattr(make, kind)("checkpoint-200")
    like = sorted(path.rglob(Path(name.format("*")).name))
    for number in (2_000_000, "9" * 200):
        odd = path / name.format(number)
        odd.write_bytes(like[0].read_bytes())
        os.utime(odd, (like[0].stat().st_mtime,) * 2)
        tracemalloc.start()
        for ask in (validate, partial(validate_part, tier="local", host="n1", root=make.root)):
            answer = ask(path, "structural", now_s=make.now_s + 3600)
            assert answer.valid in (True, False, None)
            assert (getattr(answer, "world_size", None) or 0) < 1000
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert most < 32 << 20


def test_a_stated_number_of_ranks_takes_no_memory_of_the_daemon():
    stated = {"tier": "global", "world_size": 10**12, "whole": True, "valid": True}
    first = Part(
        "n1", "/r", "/r/x", "x", 1, "local", "dcp", 1, True, "structural", "", whole=False, owners=frozenset({0})
    )
    other = Part.from_json(first.to_json() | stated)
    assert world_size_of([first, other], 2) == 2
    tracemalloc.start()
    for owners in ([0], [0, 10**12]):
        part = Part.from_json(first.to_json() | {"owners": owners, "world_size": 3_000_000})
        (joined,) = join([[part]], world_size=world_size_of([part], 1))
        assert joined.valid is None
        (joined,) = join([[part]], world_size=3_000_000)
        assert "rank 1 and 2999998 more" in joined.reason
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 16 << 20


def test_whole_saves_beside_one_that_states_many_ranks_take_no_memory_of_the_daemon():
    """Each of the saves is what all those ranks read."""
    parts = [
        Part("n1", "/r", f"/r/{step}", f"{step}", step, "local", "torch_folder", 1, True, "structural", "")
        for step in range(50)
    ]
    tracemalloc.start()
    found = join([parts], world_size=200_000)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 4 << 20
    assert {(len(one.shards), one.shards[0], one.shards[199_999], one.valid) for one in found} == {
        (200_000, frozenset({"n1"}), frozenset({"n1"}), True)
    }
    assert 200_000 not in found[0].shards and -1 not in found[0].shards


def test_no_more_ranks_are_believed_than_the_nodes_of_the_job_can_have():
    one = Part("n1", "/r", "/r/x", "x", 1, "global", "dcp", 1, True, "structural", "", world_size=2048)
    assert [world_size_of([one], nodes) for nodes in (1, 2)] == [None, 2048]


def test_a_whole_copy_beside_the_shards_of_ranks():
    whole = Part("n1", "/r", "/r/x", "x", 1, "local", "dcp", 1, True, "structural", "")
    shards = [replace(whole, host=f"n{rank + 2}", whole=False, owners=frozenset({rank, 9})) for rank in (0, 1)]
    (found,) = join([[whole, *shards]], world_size=3)
    assert dict(found.shards) == {
        0: frozenset({"n1", "n2"}),
        1: frozenset({"n1", "n3"}),
        2: frozenset({"n1"}),
        9: frozenset({"n2", "n3"}),
    }


def test_names_that_lead_elsewhere(make):
    """Metadata that names files outside of the checkpoint reads none of them."""
    for place in ("/etc/passwd", "../../etc/passwd", "a/../../b", "nul\0l"):
        path = make.dcp("step-10", ranks=1)
        stored = [("w", (0, 0), place, 0, 100)]
        make.write(path / ".metadata", make.metadata({"w": ("float32", (1, 1), [((0, 0), (1, 1))])}, [], stored), 1)
        answer = validate(path, "checksum", now_s=make.now_s)
        assert answer.valid is False and "impossible place" in answer.reason


def test_a_link_to_elsewhere(make):
    (make.root / "step-5").symlink_to("/etc")
    assert validate(make.root / "step-5", "content").valid is None
    path = make.hf("checkpoint-6")
    (path / "model.safetensors").unlink()
    (path / "model.safetensors").symlink_to("/etc/passwd")
    assert validate(path, "content", now_s=make.now_s).valid is None


def test_folders_without_end(make):
    path = make.dcp("step-5", step=5)
    deep = path
    for _ in range(20):
        deep = deep / "d"
    deep.mkdir(parents=True)
    answer = validate(path, "structural", now_s=make.now_s)
    assert answer.valid is None and "deep" in answer.reason


@pytest.mark.skipif(os.getuid() == 0, reason="root may read everything")
def test_permission_denied(make):
    make.dcp("run/step-5", step=5)
    locked = make.dcp("run/step-6", step=6)
    locked.chmod(0)
    try:
        parts = {p.step: p for p in listing(make.root, "global", None, now_s=make.now_s)}
    finally:
        locked.chmod(0o700)
    assert parts[5].valid is True and parts[6].valid is None and "cannot be read" in parts[6].reason


def test_a_folder_that_cannot_be_listed(make, monkeypatch):
    make.dcp("run/step-5", step=5)
    locked = make.dcp("run/step-6", step=6)
    real = os.scandir

    def refuse(path):
        if Path(path) == locked:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", refuse)
    parts = {p.step: p for p in listing(make.root, "global", None, now_s=make.now_s)}
    assert parts[5].valid is True and parts[6].valid is None and "cannot be read" in parts[6].reason


def test_a_file_that_shrinks_while_it_is_read(make, monkeypatch):
    path = make.dcp("step-5", step=5, rows=128)
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, offset: 0)
    answer = validate(path, "checksum", now_s=make.now_s)
    assert answer.valid is None and "shorter" in answer.reason


def test_a_file_that_is_renamed_while_it_is_listed_condemns_nothing(make, monkeypatch):
    """Away and back again: the listing lacks it, and nothing is wrong."""
    path = make.hf("checkpoint-6")
    real = os.scandir

    def without(folder):
        away = path / "scheduler.pt"
        away.rename(path.parent / "away")
        listed = list(real(folder))
        (path.parent / "away").rename(away)
        monkeypatch.setattr(os, "scandir", real)
        return nullcontext(listed)

    monkeypatch.setattr(os, "scandir", without)
    answer = validate(path, "structural", now_s=make.now_s)
    assert answer.valid is None and "scheduler.pt changed while it was looked at" in answer.reason
    assert validate(path, "structural", now_s=make.now_s).valid is True
    (path / "scheduler.pt").unlink()
    assert validate(path, "structural", now_s=make.now_s).valid is False


def test_a_purge_while_it_is_read(make, monkeypatch):
    path = make.dcp("step-5", step=5)
    from sentinel.checkpoints import validate as module

    real = module.run_all

    def purge(works, *rest, **more):
        (path / "__3_0.distcp").unlink()
        real(works, *rest, **more)

    monkeypatch.setattr(module, "run_all", purge)
    answer = validate(path, "checksum", now_s=make.now_s)
    assert answer.valid is None and "deleted" in answer.reason


def test_memory_stays_small(make, tmp_path):
    """Half a gigabyte of holes in one file, and a pickle that asks for much: both in a process of its own."""
    sparse = make.root / "step-5.safetensors"
    header = b'{"w":{"dtype":"F32","shape":[134217728],"data_offsets":[0,536870912]}}'
    sparse.write_bytes(len(header).to_bytes(8, "little") + header)
    os.truncate(sparse, 8 + len(header) + (512 << 20))
    greedy = make.root / "iter_6.pt"
    data = b"\x80\x02(" + b"}" * 1_400_000 + b"l."
    make.write(greedy, make.torch_zip([("data.pkl", data), ("version", b"3\n")]))
    script = (
        "import sys; from pathlib import Path; from sentinel.checkpoints.validate import validate\n"
        "for name in sys.argv[1:]: validate(Path(name), 'content')\n"
        # not ru_maxrss: that one remembers the process we were forked from
        "print(next(l.split()[1] for l in open('/proc/self/status') if l.startswith('VmHWM')))"
    )
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run(
        [sys.executable, "-c", script, sparse, greedy], capture_output=True, text=True, check=True, cwd=root
    )
    assert int(done.stdout) < 200 * 1024
