"""Validates the checkpoint at one path: valid, invalid or not known, with the level that was reached and the reason.

    structural   names, lengths, markers, tiling, order of modification: a stat per file and a few bytes of each
    checksum     every recorded CRC-32 or sha256, or our manifest, over every byte
    content      no NaN and no infinity in weights and optimizer

A level includes those below it. Where the files carry no checksum, *checksum* is answered None: nothing was disproved,
nothing proven.
"""

from __future__ import annotations

import os
import struct
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sentinel.checkpoints import formats, kept_manifest, manifest
from sentinel.checkpoints.files import BeingWritten, Broken, NotKnown, Tree, refuse_renamed, scan
from sentinel.checkpoints.formats import (
    dcp,
    deepspeed,
    deepspeed_universal,
    megatron,
    nemo,
    nested,
    nvrx,
    one_save,
    rank_counts,
    safetensors_set,
    torch_folder,
)
from sentinel.checkpoints.formats.base import FRESH_S, Ask, Finding
from sentinel.checkpoints.formats.beside import extras, lacking
from sentinel.checkpoints.formats.beside.rank_files import scan_save
from sentinel.checkpoints.formats.huggingface import accelerate, hf_trainer, unfinished
from sentinel.checkpoints.formats.registered import refuse_unregistered
from sentinel.checkpoints.parsing.copy_names import is_not_for_use, ranks_files
from sentinel.checkpoints.parsing.ranks import ranks_or_none
from sentinel.checkpoints.reading import Progress, Work, run_all, threads_for
from sentinel.checkpoints.records import NOTHING, Level, Part, Tier, Validity, level_at_least
from sentinel.checkpoints.shared_check import deal
from sentinel.checkpoints.steps import number_of, step_of
from sentinel.checkpoints.verified_files import Memory
from sentinel.text import visible


@dataclass(frozen=True, slots=True)
class Settings:
    """How to look. ``fresh_s``: what changed more recently may still be being written."""

    fresh_s: float = FRESH_S
    threads: int | None = None
    progress: Progress | None = None
    share: tuple[int, int] | None = None  # (index, of how many): read only that share of the bytes
    memory: Memory | None = None  # results of earlier calls; None: neither used nor kept
    manifests: Path | None = None  # folder of manifests that were made while jobs ran; None: not used
    unsummed: bool = False  # where no checksum is recorded that is no doubt: for whoever records them now


DEFAULTS = Settings()
# Formats of one checkpoint in one folder that do not themselves look at every torch file in it.
_WITH_EXTRAS = frozenset((dcp.NAME, safetensors_set.NAME))
# Formats that are known by their files, whatever folders lie beside these.
_BY_FILES_ALONE = frozenset((dcp.NAME, nvrx.NAME, safetensors_set.NAME, torch_folder.NAME))
ONLY_WEIGHTS = "weights without an optimizer"
_MOST_STEPS = 1 << 63  # the store's numbers
# What a value of no foreseen kind raises in a reader: that this one save is not known, and no other one is lost with it.
_UNFORESEEN = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
    struct.error,
)
# Formats of which some files are named by nothing in the save.
_OF_ONE_SAVE = frozenset(
    (
        dcp.NAME,
        nemo.NAME,
        megatron.NAME,
        deepspeed.NAME,
        deepspeed_universal.NAME,
        hf_trainer.NAME,
        accelerate.NAME,
        nested.NAME,
        torch_folder.NAME,
    )
)


@dataclass(slots=True)
class _Judged:
    format: str = "unknown"
    step: int | None = None
    valid: bool | None = None
    level: str = "structural"
    reason: str = ""
    unfinished: str = ""  # what is wrong with it if nobody writes it any more
    whole_if_ended: bool = False  # nothing is, at that level
    bytes: int = 0
    owners: frozenset[int] = frozenset()  # by the names alone, where the check ended before it knew better
    finding: Finding | None = None
    newest_s: float = 0.0
    oldest_s: float = 0.0


def validate(
    path: Path,
    level: Level,
    *,
    step: int | None = None,
    now_s: float | None = None,
    settings: Settings = DEFAULTS,
) -> Validity:
    """Check one checkpoint that should be complete at this path. Never raises for what lies there.

    ``step``: which one is meant, where several lie in one folder (NVRx local); the newest otherwise.
    """
    now = time.time() if now_s is None else now_s
    judged = _judge(path, Ask(level, now, step=step, fresh_s=settings.fresh_s), settings)
    if judged.valid and judged.format in _BY_FILES_ALONE and step_of(path.name) is None:
        try:  # a listing takes each of these by itself
            nested.refuse_other_saves(scan(path))
        except NotKnown as error:
            judged.valid, judged.reason = None, error.reason
    return Validity(str(path), judged.format, judged.step, judged.valid, judged.level, judged.reason, judged.bytes)


def validate_part(
    path: Path,
    level: Level,
    *,
    tier: Tier,
    host: str,
    root: Path,
    step: int | None = None,
    now_s: float | None = None,
    settings: Settings = DEFAULTS,
    loose: bool = False,
) -> Part:
    """Check what this host holds of a checkpoint whose other shards may lie on other hosts.

    In the global tier every file must be here; in the others the answer is about what is here, with the ranks found.
    ``loose``: a file whose name does not say that it is a checkpoint: one of weights alone is none.
    """
    now = time.time() if now_s is None else now_s
    judged = _judge(path, Ask(level, now, part=tier != "global", step=step, fresh_s=settings.fresh_s), settings)
    if loose and judged.valid and not (judged.finding and judged.finding.resumable):
        judged.valid, judged.reason = None, ONLY_WEIGHTS
    finding = judged.finding or Finding(whole=tier == "global", owners=judged.owners, marked=False)
    return Part(
        host=host,
        root=sys.intern(str(root)),
        path=str(path),
        key=os.path.relpath(path, root),
        step=judged.step,
        tier=tier,
        format=judged.format,
        bytes=judged.bytes,
        valid=judged.valid,
        level=judged.level,
        reason=sys.intern(judged.reason),
        whole=finding.whole,
        world_size=ranks_or_none(finding.world_size),
        owners=finding.owners,
        has=finding.has or NOTHING,
        needs=finding.needs or NOTHING,
        coverage=finding.coverage or NOTHING,
        marked=finding.marked,
        saved_step=finding.saved_step,
        newest_mtime_s=judged.newest_s,
        oldest_mtime_s=judged.oldest_s,
        number=number_of(path.name) if judged.step is None else None,
        epoch=finding.epoch if judged.step is None else None,
        resumable=judged.finding.resumable if judged.finding else _of_whole_saves(judged),
        optimizer=judged.finding.optimizer if judged.finding else None,
        unfinished="" if loose else judged.unfinished,  # a file whose name says little may be another program's
        whole_if_ended=judged.whole_if_ended,
    )


def _of_whole_saves(judged: _Judged) -> bool | None:
    """Whether a save of which nothing was found is of a format whose saves hold an optimizer; None: that is not known."""
    return True if judged.format in _OF_ONE_SAVE and judged.format != torch_folder.NAME else None


def _judge(path: Path, ask: Ask, settings: Settings) -> _Judged:
    judged = _Judged(step=step_of(path.name))
    tree = Tree(path)
    try:
        tree = scan_save(path)
        judged.bytes, judged.newest_s, judged.oldest_s = tree.bytes, tree.newest_s, tree.oldest_s
        found = formats.recognise(tree)
        judged.format = found.NAME if found else judged.format
        if not tree.single:
            refuse_renamed(tree, ranks_files(tree.files) if found is torch_folder else ())
        if found is None:
            raise _unrecognised(tree, ask)
        judged.owners = found.owners_by_name(tree) if ask.part else judged.owners
        judged.finding = found.check(tree, ask)
        if is_not_for_use(path.name):
            raise NotKnown(f"{visible(path.name)}: so is named what is not finished, or was set aside")
        if found.NAME in _WITH_EXTRAS and not tree.single:
            extras.check(tree, ask, judged.finding)
        if not (tree.single or ask.part):
            _refuse_in_folders(tree, ask, judged.finding)
        if found.NAME in _OF_ONE_SAVE and not (tree.single or ask.part):
            lacking.refuse_lacking(tree)
            one_save.refuse_damaged_texts(tree, ask)
        manifest.apply(tree, ask, judged.finding)
        closely = settings.manifests is not None and level_at_least(ask.level, "checksum")
        kept = kept_manifest.find(settings.manifests, tree) if closely and settings.manifests else None
        if kept is not None:
            kept_manifest.apply(kept, tree, ask, judged.finding)
        _settle_step(judged, path)
        refuse_unregistered(path)
        _deeper(tree, judged, ask, settings)
        judged.valid, judged.level = True, ask.level
        judged.reason = judged.reason or judged.finding.note or _praise(ask.level)
        if ask.remarks:
            more = f" (and {len(ask.remarks) - 1} more files)" if len(ask.remarks) > 1 else ""
            judged.reason += f"; {ask.remarks[0]}{more}"
        if judged.finding.unended:
            judged.valid, judged.reason, judged.whole_if_ended = None, judged.finding.unended, True
    except Broken as error:
        changed, unended = _changed(tree), judged.finding.unended if judged.finding else ""
        doubt = f"{changed} changed while it was looked at" if changed else unended
        judged.valid, judged.level = None if doubt else False, error.level
        judged.reason = f"{error.reason}; {doubt}" if doubt else error.reason
        judged.unfinished = error.reason if unended and not changed else ""
    except NotKnown as error:
        judged.valid, judged.reason = None, error.reason
        judged.unfinished = error.broken if isinstance(error, BeingWritten) else ""
    except OSError as error:
        judged.valid, judged.reason = None, f"cannot be read ({error.strerror or type(error).__name__})"
    except MemoryError:
        judged.valid, judged.reason = None, "its check takes more memory than it may (the agent's jobs.memory_bytes)"
    except _UNFORESEEN as error:
        judged.valid, judged.reason = None, f"holds what this reader did not foresee ({type(error).__name__})"
    return judged


def _refuse_in_folders(tree: Tree, ask: Ask, finding: Finding) -> None:
    """`NotKnown` where a save in a folder of this one is damaged, or was not finished; a known one is looked at with it."""
    nested.check_inside(tree, ask, finding)
    unfinished.refuse(tree)
    megatron.refuse_unmarked(tree)
    rank_counts.refuse_fewer(tree, ask)


def _unrecognised(tree: Tree, ask: Ask) -> Exception:
    if not tree.files:
        return NotKnown("an empty folder") if not ask.fresh(tree) else NotKnown("an empty folder, made just now")
    return NotKnown(f"no known checkpoint format among its {len(tree.files)} files")


def _settle_step(judged: _Judged, path: Path) -> None:
    """The name's step and the one stated inside must agree up to 1: some frameworks count from 0, some from 1."""
    inner = judged.finding.step if judged.finding else None
    if inner is not None and abs(inner) >= _MOST_STEPS:
        raise NotKnown("states a step that no training reaches: damaged?")
    if judged.step is None:
        judged.step = inner
        if inner is None:
            saves = "" if number_of(path.name) is None else ", which numbers saves,"
            judged.reason = f"its step is not known: neither {visible(path.name)}{saves} nor its contents state one"
            if judged.finding and judged.finding.epoch is not None:
                judged.reason += f" (epoch {judged.finding.epoch} inside)"
    elif inner is not None and abs(inner - judged.step) > 1:
        raise NotKnown(f"named step {judged.step}, but the state inside says {inner}: renamed or mixed")


def _deeper(tree: Tree, judged: _Judged, ask: Ask, settings: Settings) -> None:
    finding = judged.finding
    assert finding is not None
    if ask.level == "structural":
        return
    if settings.memory and settings.memory.covers(tree, ask.level, ask.step):
        judged.reason = f"{_praise(ask.level)} (read before; nothing has changed since)"
        return
    works = _shared(finding.works, settings.share) if settings.share else finding.works
    known = finding.manifest or settings.unsummed
    run_all(works, settings.threads or threads_for(ask.level), settings.progress, manifest=known)
    _unchanged(tree)
    if finding.unread and ask.level == "content":
        raise NotKnown(f"structurally whole; the numbers in {finding.unread} are not looked at")
    if finding.unsummed and not settings.unsummed:
        count = len(finding.unsummed)
        more = f" and {count - 1} more" if count > 1 else ""
        numbers = ", its numbers are finite" if ask.level == "content" else ""
        raise NotKnown(
            f"structurally whole{numbers}; no checksum recorded for {visible(finding.unsummed[0])}{more}"
            " (`sentinel checkpoints manifest` records them)"
        )
    if settings.memory:
        settings.memory.keep(tree, ask.level, ask.step)


def _shared(works: Iterable[Work], share: tuple[int, int]) -> list[Work]:
    """This share of the works. They come in the same order on every node, since the files are the same."""
    index, count = share
    listed = list(works)
    mine = deal({f"{number:09d}": work.bytes for number, work in enumerate(listed)}, count)[index]
    return [listed[int(number)] for number in sorted(mine)]


def _unchanged(tree: Tree) -> None:
    """What was read must still be what was listed."""
    for name, entry in tree.files.items():
        try:
            status = os.lstat(tree.path(name))
        except FileNotFoundError:
            raise NotKnown(f"{visible(name)} vanished while the checkpoint was read (being deleted)") from None
        if (status.st_size, status.st_mtime_ns, status.st_ino) != (entry.size, entry.mtime_ns, entry.inode):
            raise NotKnown(f"{visible(name)} changed while the checkpoint was read (being written)")


def _changed(tree: Tree) -> str:
    """A file that is not as it was listed, by its visible name; empty: none. An incomplete listing makes nothing invalid."""
    try:
        now = scan_save(tree.root).files
    except NotKnown:
        return "the checkpoint"
    differ = [name for name in {**tree.files, **now} if tree.files.get(name) != now.get(name)]
    return visible(min(differ)) if differ else ""


def _praise(level: Level) -> str:
    return {
        "structural": "complete: every file, length and marker as its metadata says",
        "checksum": "every recorded checksum matches",
        "content": "every checksum matches, no NaN and no infinity",
    }[level]


def record(path: Path, folder: Path, pace: kept_manifest.Pace, *, now_s: float | None = None) -> kept_manifest.Kept:
    """Read a finished save once and keep its manifest in that folder.

    The sums are taken first and the numbers looked at then, from the page cache as far as that holds the files.

    Raises:
        NotKnown: it is not whole, or changes meanwhile; the reason says which.
        Broken: it is invalid, and not by its numbers.
        OSError: the manifest cannot be written.
    """
    began = time.monotonic()
    now = time.time() if now_s is None else now_s
    tree = scan_save(path)
    files = kept_manifest.sums_of(tree, pace)
    level: Level = "content"
    settings = Settings(threads=1, unsummed=True, fresh_s=0.0)
    answer = validate(path, "content", now_s=now, settings=settings)
    finding = answer.reason if answer.valid is False and answer.level == "content" else ""
    if answer.valid is not True:
        answer = validate(path, "checksum", now_s=now, settings=settings)
        level = "checksum"
    if answer.valid is False:
        raise Broken(answer.reason, answer.level)
    if answer.valid is None:
        raise NotKnown(answer.reason)
    _unchanged(tree)
    kept = kept_manifest.Kept(
        str(path.absolute()), level, finding, now, tree.bytes, round(time.monotonic() - began, 3), files
    )
    kept_manifest.keep(folder, kept)
    return kept
