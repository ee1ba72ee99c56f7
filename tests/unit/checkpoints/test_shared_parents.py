"""Quarantine and copies beside a run in a folder where others may write, too, and have prepared something."""

from __future__ import annotations

import contextlib
import io
import json
import os
import zlib
from pathlib import Path

import pytest

from sentinel.agent.probes import quarantine as probe
from sentinel.checkpoints import copying, transfer
from sentinel.checkpoints import own_folders as own
from sentinel.checkpoints import quarantine as q
from sentinel.checkpoints.setting_aside import pointing
from sentinel.checkpoints.transfer import _check_target, receive
from sentinel.errors import Denied, FileError, Refused, SentinelError


@pytest.fixture
def run(make):
    for step in (10, 20, 30):
        make.dcp(f"shared/run/step-{step}", step=step, ranks=1)
    return make.root / "shared/run"


@pytest.fixture
def somebody_else(monkeypatch):
    """From here on we are another user than the one who made the files so far."""
    return lambda: monkeypatch.setattr("os.geteuid", lambda: 54321)


def entry(source: Path, target: Path, event: str = "move") -> bytes:
    line = {"event": event, "source": str(source), "target": str(target), "reason": "", "time_s": 1.0}
    return json.dumps(line).encode() + b"\n"


def prepare(run: Path, *lines: bytes, folder_mode: int = 0o700, mode: int = 0o600) -> Path:
    store = q.store_of(run)
    store.mkdir(parents=True)
    for folder in (store, store.parent):
        folder.chmod(folder_mode)
    journal = store / q.JOURNAL
    journal.write_bytes(b"".join(lines))
    journal.chmod(mode)
    return store


def names(run: Path) -> list[str]:
    return sorted(os.listdir(run))


def test_what_another_user_prepared_is_not_obeyed(run, somebody_else):
    prepare(run)
    somebody_else()
    for attempt in (lambda: q.quarantine(run, [run / "step-30"]), lambda: q.undo(run), lambda: q.read_journal(run)):
        with pytest.raises(Refused, match="not to us"):
            attempt()
    assert names(run) == ["step-10", "step-20", "step-30"]


@pytest.mark.parametrize(("folder_mode", "mode"), [(0o770, 0o600), (0o777, 0o600), (0o700, 0o620), (0o700, 0o602)])
def test_what_others_can_write_is_not_obeyed(run, folder_mode, mode):
    prepare(run, folder_mode=folder_mode, mode=mode)
    for attempt in (lambda: q.quarantine(run, [run / "step-30"]), lambda: q.undo(run)):
        with pytest.raises(Refused, match="written by others"):
            attempt()
    assert "step-30" in names(run)


def test_a_checkpoint_is_not_moved_out_of_the_quarantine(run, tmp_path):
    """The journal names a place of the attacker's as the target that was planned."""
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    prepare(run, entry(run / "step-30", theirs / "step-30"))
    with pytest.raises(FileError, match="not between"):
        q.quarantine(run, [run / "step-30"])
    assert names(theirs) == [] and "step-30" in names(run)


@pytest.mark.parametrize("target", ["profile", "../../../profile"])
def test_undo_plants_nothing_outside(run, tmp_path, target):
    home = tmp_path / "home"
    home.mkdir()
    store = prepare(run)
    (store / "profile").write_text("echo owned")
    (run.parent / "profile").write_text("echo owned")
    (store / q.JOURNAL).write_bytes(entry(home / ".profile", store / target))
    with pytest.raises(FileError, match="not between"):
        q.undo(run)
    (store / q.JOURNAL).write_bytes(entry(run / "../../home/.profile", store / "profile"))
    with pytest.raises(FileError, match="not between"):
        q.undo(run)
    assert names(home) == []


def test_undo_goes_through_no_link(run, tmp_path):
    (tmp_path / "home").mkdir()
    store = prepare(run)
    (store / "profile").write_text("echo owned")
    (run / "out").symlink_to(tmp_path / "home")
    (store / q.JOURNAL).write_bytes(entry(run / "out/.profile", store / "profile"))
    with pytest.raises(SentinelError):
        q.undo(run)
    assert names(tmp_path / "home") == []


@pytest.mark.parametrize("which", [".quarantine", ".quarantine/run", ".quarantine/run/journal.jsonl"])
def test_links_are_not_followed(run, tmp_path, which):
    theirs = tmp_path / "theirs"
    store = prepare(run)
    place = run.parent / which
    place.rename(theirs)
    place.symlink_to(theirs)
    before = sorted(map(str, theirs.rglob("*")))
    with pytest.raises((Refused, Denied)):
        q.quarantine(run, [run / "step-30"])
    assert "step-30" in names(run) and sorted(map(str, theirs.rglob("*"))) == before
    assert store.name == "run"


def test_a_journal_with_a_second_name_is_not_obeyed(run, tmp_path):
    os.link(prepare(run) / q.JOURNAL, tmp_path / "second")
    with pytest.raises(Refused, match="another name"):
        q.quarantine(run, [run / "step-30"])


def test_a_quarantine_that_is_swapped_meanwhile_gets_nothing(run, tmp_path, monkeypatch):
    theirs = tmp_path / "theirs"
    (theirs / "run").mkdir(parents=True)
    append = q.journal.append

    def swapped(*arguments):
        append(*arguments)
        (run.parent / ".quarantine").rename(run.parent / ".gone")
        (run.parent / ".quarantine").symlink_to(theirs)

    monkeypatch.setattr(q.journal, "append", swapped)
    q.quarantine(run, [run / "step-30"])
    assert list((theirs / "run").iterdir()) == [] and list((run.parent / ".gone/run").rglob("step-30"))


@pytest.mark.parametrize("link", [False, True])
def test_a_root_that_is_swapped_meanwhile_moves_nothing_of_what_took_its_place(make, run, monkeypatch, link):
    """Found as an attack: who may rename in the parent folder had a user's code moved, under a checkpoint's name."""
    code = make.root / "shared/project/step-30"
    make.write(code / "train.py", b"import torch")
    search = probe.find

    def swapped(root):
        found = search(root)
        run.rename(run.parent / "gone")
        run.symlink_to(code.parent) if link else code.parent.rename(run)
        return found

    monkeypatch.setattr(probe, "find", swapped)
    if link:  # the quarantine lies beside what a link names
        with pytest.raises(Refused, match="another folder"):
            probe.move_aside(run, [f"{run}/step-30"], [30], "")
    else:
        (move,) = probe.move_aside(run, [f"{run}/step-30"], [30], "")
        assert names(Path(move.target)) != ["train.py"]
    assert names(run) == ["step-30"] and names(run / "step-30") == ["train.py"]
    assert names(run.parent / "gone") == ["step-10", "step-20", *(["step-30"] if link else [])]


def test_what_is_there_is_looked_at_in_the_folder_that_is_open(make, run):
    make.write(make.root / "shared/project/src/train.py", b"import torch")
    with own.opened_folder(make.root / "shared/project") as opened, pytest.raises(Refused, match="no checkpoint"):
        probe.asked_for(run, [f"{run}/src"], None, opened)  # at the root's path there is no src


def test_a_quarantine_that_is_taken_away_at_once_is_an_error_of_ours(run, monkeypatch):
    monkeypatch.setattr(own.os, "mkdir", lambda *_, **__: None)
    with pytest.raises(Denied, match="taken away"):
        q.quarantine(run, [run / "step-30"])


def test_new_folders_and_the_journal_are_ours_alone(run):
    q.quarantine(run, [run / "step-30"])
    store = q.store_of(run)
    assert [part.stat().st_mode & 0o777 for part in (store.parent, store, store / q.JOURNAL)] == [0o700, 0o700, 0o600]


def test_a_tracker_is_not_written_through_a_prepared_link(tmp_path):
    (tmp_path / "root").mkdir()
    (tmp_path / "root/iter_0000100").mkdir()
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / f"root/.latest_checkpointed_iteration.txt.{os.getpid()}.tmp").symlink_to(victim)
    pointing.point_to(tmp_path / "root", "megatron", 100)
    assert victim.read_text() == "mine"
    assert (tmp_path / "root/latest_checkpointed_iteration.txt").read_text() == "100"


# --- copies ------------------------------------------------------------------------------------------------------------


def planted(run: Path, target: Path) -> Path:
    """A file of the right size and time where a copy is put together: it would count as copied already."""
    shard = next(path for path in (run / "step-30").iterdir() if path.name.endswith(".distcp"))
    place = copying.incoming(target, Path("step-30")) / shard.name
    place.parent.mkdir(parents=True)
    for folder in (place.parent, *place.parent.parents[:2]):
        folder.chmod(0o755)
    place.write_bytes(b"\0" * shard.stat().st_size)
    os.utime(place, ns=(shard.stat().st_mtime_ns,) * 2)
    return place


def test_a_copy_takes_up_nothing_that_another_user_began(run, tmp_path, somebody_else):
    target = tmp_path / "global/run"
    planted(run, target)
    somebody_else()
    with pytest.raises(Refused, match="not to us"):
        copying.copy(run / "step-30", target, Path("step-30"))
    assert not target.exists()


def test_a_copy_takes_up_nothing_where_others_can_write(run, tmp_path):
    target = tmp_path / "global/run"
    planted(run, target)
    (target.parent / copying.FOLDER).chmod(0o777)
    with pytest.raises(Refused, match="written by others"):
        copying.copy(run / "step-30", target, Path("step-30"))


def test_a_copy_is_put_together_in_the_folder_that_was_checked(run, tmp_path, monkeypatch):
    target, theirs = tmp_path / "global/run", tmp_path / "theirs"
    theirs.mkdir()
    target.parent.mkdir()
    copy_file = copying._copy_file

    def swapped(*arguments):
        if not (target.parent / copying.FOLDER).is_symlink():
            (target.parent / copying.FOLDER).rename(target.parent / ".gone")
            (target.parent / copying.FOLDER).symlink_to(theirs)
        return copy_file(*arguments)

    monkeypatch.setattr(copying, "_copy_file", swapped)
    copying.copy(run / "step-30", target, Path("step-30"))
    assert list(theirs.rglob("*")) == [] and list((target.parent / ".gone").rglob("*.distcp"))


def test_a_received_checkpoint_goes_into_no_folder_of_others(tmp_path, somebody_else):
    _check_target(tmp_path / "new")
    (tmp_path / "step").mkdir(mode=0o755)
    _check_target(tmp_path / "step")
    (tmp_path / "link").symlink_to(tmp_path / "step")
    with pytest.raises(Denied):
        _check_target(tmp_path / "link")
    somebody_else()
    with pytest.raises(Refused):
        _check_target(tmp_path / "step")


def prepared_half(folder: Path, name: str, how: str, elsewhere: Path) -> None:
    """What somebody with rights in the folder lays where the file is to be put together."""
    folder.mkdir(parents=True, exist_ok=True)
    half = folder / f".{name}.part"
    half.write_bytes(b"")
    half.chmod(0o666 if how == "open to others" else 0o644)
    if how == "second name":
        elsewhere.hardlink_to(half)


HOW = ["another's", "open to others", "second name"]


@pytest.mark.parametrize("how", HOW)
def test_a_copy_in_place_goes_into_no_file_that_others_keep(tmp_path, somebody_else, how):
    """Verified and renamed, it would be theirs to change."""
    source = tmp_path / "step_30.pt"
    source.write_bytes(b"x" * 5000)
    prepared_half(tmp_path / "peer", "step_30.pt", how, tmp_path / "second")
    if how == "another's":
        somebody_else()
    with pytest.raises(Refused):
        copying.copy(source, tmp_path / "peer", Path("step_30.pt"), in_place=True)
    assert not (tmp_path / "peer/step_30.pt").exists()


def received(root: Path, name: str, file: str | None, content: bytes) -> None:
    """A checkpoint of one file comes over the stream."""
    head = {"name": name, "single": file is None, "files": [[file or name, len(content), 10**18]]}
    lines = [head, {"name": file or name, "offset": 0}, {"crc": zlib.crc32(content)}, {"end": True}]
    said = [json.dumps(line).encode() + b"\n" for line in lines]
    receive(root, io.BytesIO(said[0] + said[1] + content + said[2] + said[3]), io.BytesIO())


def test_what_is_received_lies_where_it_should(tmp_path):
    received(tmp_path / "peer", "step_30.pt", None, b"x" * 5000)
    received(tmp_path / "peer", "step-30", "deep/er/a.pt", b"x" * 5000)
    found = [tmp_path / "peer/step_30.pt", tmp_path / "peer/step-30/deep/er/a.pt"]
    assert [(path.stat().st_size, path.stat().st_mtime_ns) for path in found] == [(5000, 10**18)] * 2
    assert (tmp_path / "peer/step-30").stat().st_mode & 0o777 == 0o755 & ~umask()


def umask() -> int:
    before = os.umask(0)
    os.umask(before)
    return before


@pytest.mark.parametrize("how", HOW)
def test_what_is_received_goes_into_no_file_that_others_keep(tmp_path, somebody_else, how):
    prepared_half(tmp_path / "peer", "step_30.pt", how, tmp_path / "second")
    if how == "another's":
        somebody_else()
    with pytest.raises(Refused):
        received(tmp_path / "peer", "step_30.pt", None, b"x" * 5000)
    assert not (tmp_path / "peer/step_30.pt").exists()


@pytest.mark.parametrize("inside", ["", "deep/er"])
def test_what_is_received_goes_through_no_link_that_comes_meanwhile(tmp_path, monkeypatch, inside):
    """Between the look at the place and the first file somebody put a link to a folder of the victim's there."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "profile").write_text("mine")
    link = tmp_path / "peer/step-30" / inside
    say = transfer._say

    def swapped(*arguments):
        if not link.is_symlink():
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(home)
        say(*arguments)

    monkeypatch.setattr(transfer, "_say", swapped)
    with pytest.raises(SentinelError):
        received(tmp_path / "peer", "step-30", f"{inside}/profile".lstrip("/"), b"theirs")
    assert (home / "profile").read_text() == "mine" and os.listdir(home) == ["profile"]


def test_descriptors_are_closed(run):
    before = len(os.listdir("/proc/self/fd"))
    q.quarantine(run, [run / "step-30"])
    q.undo(run)
    with pytest.raises(OSError), own.opened_folder(run) as fd, own.below(fd, ("nothing",)):
        pass
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("call", [lambda run: q.quarantine(run, [run / "step-30"]), q.undo], ids=["quarantine", "undo"])
def test_a_root_that_is_a_link_for_a_moment_moves_nothing_of_what_it_names(make, run, monkeypatch, call):
    """Found as an attack: opened by the link, and the quarantine beside the folder that was there again."""
    other = make.dcp("others/run/step-30", step=30, ranks=1).parent
    q.quarantine(run, [run / "step-30"])
    q.undo(run)
    opened = q.opened_folder

    @contextlib.contextmanager
    def for_a_moment(base):
        run.rename(run.parent / "gone")
        run.symlink_to(other)
        with opened(base) as fd:
            run.unlink()
            (run.parent / "gone").rename(run)
            yield fd

    monkeypatch.setattr(q, "opened_folder", for_a_moment)
    with pytest.raises(Refused, match="another folder"):
        call(run)
    assert names(other) == ["step-30"] and names(run) == ["step-10", "step-20", "step-30"]


@pytest.mark.parametrize("whose", ["run", "link"])
def test_root_moves_nothing_aside_in_a_users_folder_nor_by_a_users_link(run, monkeypatch, whose):
    """Found by hand: root's .quarantine, for root alone, kept the agents out, which move saves aside as the user."""
    (run.parent / "link").symlink_to(run)
    user = os.lstat(run.parent / whose).st_ino

    def of_user(look):
        def looked(*given, **named):
            status = look(*given, **named)
            return os.stat_result((*status[:4], 54321 if status.st_ino == user else 0, *status[5:]))

        return looked

    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("os.fstat", of_user(os.fstat))
    monkeypatch.setattr(Path, "lstat", of_user(Path.lstat))
    with pytest.raises(Refused, match="54321") as caught:
        q.quarantine(run.parent / whose, [run.parent / whose / "step-30"])
    assert "sudo -u '#54321'" in caught.value.fix and names(run.parent) == ["link", "run"]
