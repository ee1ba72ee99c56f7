"""Draining and replicating: verified, resumable, bounded, never overwriting."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.checkpoints import copying
from sentinel.checkpoints.copies.peers import choose_peers
from sentinel.checkpoints.copying import Pace, copy, incoming
from sentinel.checkpoints.files import Entry, Tree
from sentinel.checkpoints.validate import validate
from sentinel.errors import Refused, Unavailable, UserError

STEP = Path("step-10")


@pytest.fixture
def source(make):
    return make.dcp("nvme/run/step-10")


@pytest.fixture
def shared(make):
    (make.root / "shared" / "run").mkdir(parents=True)
    return make.root / "shared" / "run"


def test_copies_with_times_and_is_valid(make, source, shared):
    done = copy(source, shared, STEP)
    assert done.complete and done.files == 5
    answer = validate(shared / STEP, "checksum", now_s=make.now_s)
    assert answer.valid is True
    assert (shared / STEP / ".metadata").stat().st_mtime_ns == (source / ".metadata").stat().st_mtime_ns
    assert not any(p.is_file() for p in (shared.parent / copying.FOLDER).rglob("*"))


def test_again_copies_nothing(source, shared):
    copy(source, shared, STEP)
    again = copy(source, shared, STEP)
    assert (again.complete, again.files, again.bytes, again.already) == (True, 0, 0, 5)


def lose_a_page(path):
    """As storage does: size and times stay."""
    status = path.stat()
    with path.open("r+b") as file:
        file.seek(status.st_size // 2)
        file.write(bytes(64))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("damaged", ["copy", "source"])
def test_what_is_there_already_is_read_before_it_counts_as_a_copy(source, shared, in_place, damaged):
    shutil.copytree(source, shared / STEP)
    assert copy(source, shared, STEP, in_place=in_place).already == 5
    lose_a_page((shared / STEP if damaged == "copy" else source) / "__1_0.distcp")
    before = {path.name: path.read_bytes() for path in (shared / STEP).iterdir()}
    with pytest.raises(Refused, match=r"__1_0\.distcp holds other bytes"):
        copy(source, shared, STEP, in_place=in_place)
    assert {path.name: path.read_bytes() for path in (shared / STEP).iterdir()} == before


def test_never_overwrites(make, source, shared):
    make.dcp("shared/run/step-10", step=10)
    before = {p.name: p.read_bytes() for p in (shared / STEP).iterdir()}
    make.age(shared / STEP / "__0_0.distcp", 99)
    with pytest.raises(Refused, match="not overwritten"):
        copy(source, shared, STEP)
    assert {p.name: p.read_bytes() for p in (shared / STEP).iterdir()} == before


def test_the_markers_come_last(source, shared, monkeypatch):
    order = []
    real = copying._copy_file

    def note(path, *rest):
        order.append(path.name)
        return real(path, *rest)

    monkeypatch.setattr(copying, "_copy_file", note)
    copy(source, shared, STEP)
    assert order[-1] == ".metadata"


def test_goes_on_where_it_was_killed(make, source, shared, monkeypatch):
    monkeypatch.setattr(copying, "PIECE_BYTES", 256)
    seen = 0

    def killed(count):
        nonlocal seen
        seen += count
        if seen > 3000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        copy(source, shared, STEP, progress=killed)
    assert not (shared / STEP).exists()
    total = sum(p.stat().st_size for p in source.iterdir())
    done = copy(source, shared, STEP)
    assert done.complete and total - 3600 < done.bytes < total
    assert validate(shared / STEP, "checksum", now_s=make.now_s).valid is True


def test_a_disk_that_loses_bytes_is_noticed(source, shared, monkeypatch):
    monkeypatch.setattr(copying, "read_back", lambda fd, size: 0)
    with pytest.raises(Unavailable, match="differs"):
        copy(source, shared, STEP)
    assert not (shared / STEP).exists()


def written_anew(path):
    """In place, as long as before: what a trainer does that saves to the same path again."""
    with path.open("r+b") as file:
        file.write(b"?" * path.stat().st_size)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("name", ["__0_0.distcp", "__2_0.distcp"])
def test_a_source_that_is_written_anew_meanwhile(make, source, shared, monkeypatch, name, in_place):
    """Whether it is the file that is being copied or one that comes after it."""
    monkeypatch.setattr(copying, "PIECE_BYTES", 256)
    changed = []

    def trainer(count):
        if not changed:
            changed.append(count)
            written_anew(source / name)

    with pytest.raises(Unavailable, match="changed"):
        copy(source, shared, STEP, progress=trainer, in_place=in_place)
    stage = shared / STEP if in_place else incoming(shared, STEP)
    assert not (stage / name).exists() and not (stage / ".metadata").exists()


@pytest.mark.parametrize("in_place", [False, True])
def test_a_source_that_is_written_anew_while_its_copy_is_read(source, shared, monkeypatch, in_place):
    """Neither of the two is damaged: nobody is to move one aside."""
    monkeypatch.setattr(copying, "PIECE_BYTES", 256)
    shutil.copytree(source, shared / STEP)
    with pytest.raises(Unavailable, match="changed"):
        copy(source, shared, STEP, progress=lambda count: written_anew(source / "__0_0.distcp"), in_place=in_place)


def test_a_damaged_source_does_not_become_a_checkpoint(make, source, shared):
    shard = source / "__1_0.distcp"
    data = bytearray(shard.read_bytes())
    data[data.index(b"archive/data/0") + 100] ^= 1
    shard.write_bytes(data)
    make.age(shard, 3600)
    done = copy(source, shared, STEP)
    assert not done.complete and "CRC" in done.damaged and not (shared / STEP).exists()


def test_four_nodes_drain_one_checkpoint(make, shared):
    whole = make.dcp("all/step-10", per_rank=True)
    for rank in range(4):
        folder = make.root / f"n{rank}/run/step-10"
        folder.mkdir(parents=True)
        for file in whole.glob(f"__{rank}[._]*"):
            shutil.copy2(file, folder / file.name)
    for rank in (2, 0, 3):
        done = copy(make.root / f"n{rank}/run/step-10", shared, STEP)
        assert not done.complete and not (shared / STEP).exists()
    assert copy(make.root / "n1/run/step-10", shared, STEP).complete
    assert validate(shared / STEP, "checksum", now_s=make.now_s).valid is True
    assert incoming(shared, STEP).parent.exists()


def test_a_replica_lies_beside_the_peers_own_shards(make):
    own, peer = make.root / "n0/run/step-10", make.root / "n1/run/step-10"
    whole = make.dcp("all/step-10", per_rank=True)
    for rank, folder in ((0, own), (1, peer)):
        folder.mkdir(parents=True)
        for file in whole.glob(f"__{rank}[._]*"):
            shutil.copy2(file, folder / file.name)
    copy(own, peer.parent, STEP, in_place=True)
    assert sorted(p.name for p in peer.iterdir()) == ["__0.metadata", "__0_0.distcp", "__1.metadata", "__1_0.distcp"]
    assert copy(own, peer.parent, STEP, in_place=True).files == 0


def test_the_rate_is_kept():
    now, slept = [0.0], []

    def sleep(seconds):
        slept.append(seconds)
        now[0] += seconds

    pace = Pace(100.0, clock=lambda: now[0], sleep=sleep)
    for _ in range(10):
        pace.spend(50)
    assert now[0] == pytest.approx(5.0) and len(slept) == 10


def test_overlap():
    assert copying.overlap_fraction(60, 600) == pytest.approx(0.1)
    with pytest.raises(ValueError, match="more than 0"):
        copying.overlap_fraction(1, 0)


def test_peers_of_two_racks():
    hosts = [f"n{i}" for i in range(8)]
    peers = choose_peers(hosts, {h: f"rack{int(h[1]) // 4}" for h in hosts})
    assert not peers.unsafe and all(int(a[1]) // 4 != int(b[1]) // 4 for a, b in peers.of.items())
    with pytest.raises(UserError, match="twice"):
        choose_peers(["a", "a"], {})


@given(st.lists(st.integers(0, 4), min_size=0, max_size=24))
def test_any_single_domain_can_be_lost(domains):
    """Whenever no domain has more than half of the hosts, everybody has a peer outside; each peer serves one."""
    hosts = [f"n{i:02d}" for i in range(len(domains))]
    of = {host: f"d{d}" for host, d in zip(hosts, domains, strict=True)}
    peers = choose_peers(hosts, of)
    assert set(peers.of) | set(peers.unsafe) == set(hosts)
    assert all(of[a] != of[b] for a, b in peers.of.items())
    assert len(set(peers.of.values())) == len(peers.of)
    largest = max((domains.count(d) for d in domains), default=0)
    if 2 * largest <= len(hosts):
        assert not peers.unsafe


@pytest.mark.parametrize(
    "name", ["trainer_state.json", "policy/trainer_state.json", "random_states_12.pkl", ".metadata"]
)
def test_what_ends_a_save_is_copied_last(name, tmp_path):
    entry = Entry(1, 0.0, 1, 0)
    tree = Tree(tmp_path, {name: entry, "model.safetensors": Entry(1, 9.0, 1, 9), "z/scheduler.bin": entry})
    assert copying.order_of(tree)[-1] == name
