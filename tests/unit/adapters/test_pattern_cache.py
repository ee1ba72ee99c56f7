"""Compiled patterns are kept between runs, and read only where nobody else can have written them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sentinel.adapters import hyperscan
from sentinel.adapters.hyperscan import HyperscanScreen
from sentinel.adapters.pattern_cache import KEPT_FILES, MAGIC, key_of, load, save

KEY = key_of("test 1", ["a", "b"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "sentinel"


def kept(folder: Path) -> Path:
    return next(folder.glob("*.patterns"))


def test_what_was_saved_is_loaded(folder: Path) -> None:
    assert load(KEY, folder) is None
    assert save(KEY, b"automaton", folder)
    assert load(KEY, folder) == b"automaton"
    assert [path.name for path in folder.iterdir()] == [f"{KEY}.patterns"]
    assert folder.stat().st_mode & 0o077 == 0


def test_other_patterns_and_versions_have_other_keys() -> None:
    keys = {
        key_of("test 1", ["a", "b"]),
        key_of("test 2", ["a", "b"]),
        key_of("test 1", ["b", "a"]),
        key_of("test 1", ["ab"]),
    }
    assert len(keys) == 4


@pytest.mark.parametrize("harm", [lambda b: b[:-1], lambda b: b[:-1] + b"X", lambda b: b"", lambda b: b"other\n" + b])
def test_a_broken_file_is_none(folder: Path, harm) -> None:
    save(KEY, b"automaton", folder)
    kept(folder).write_bytes(harm(kept(folder).read_bytes()))
    assert load(KEY, folder) is None
    assert save(KEY, b"again", folder)
    assert load(KEY, folder) == b"again"


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777, 0o1777])
def test_a_folder_that_others_can_write_is_not_used(folder: Path, mode: int) -> None:
    save(KEY, b"automaton", folder)
    folder.chmod(mode)
    assert load(KEY, folder) is None
    assert not save(KEY, b"automaton", folder)


def test_a_file_that_others_can_write_or_a_link_is_not_read(folder: Path, tmp_path: Path) -> None:
    save(KEY, b"automaton", folder)
    kept(folder).chmod(0o666)
    assert load(KEY, folder) is None
    kept(folder).chmod(0o600)
    elsewhere = tmp_path / "elsewhere"
    kept(folder).rename(elsewhere)
    (folder / f"{KEY}.patterns").symlink_to(elsewhere)
    assert load(KEY, folder) is None


def test_a_folder_of_somebody_else_is_not_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(KEY, b"automaton", folder)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert load(KEY, folder) is None
    assert not save(KEY, b"automaton", folder)


def test_a_pipe_in_its_place_does_not_hold_up(folder: Path) -> None:
    save(KEY, b"automaton", folder)
    kept(folder).unlink()
    os.mkfifo(folder / f"{KEY}.patterns", 0o600)
    assert load(KEY, folder) is None


def test_only_some_files_are_kept(folder: Path) -> None:
    for i in range(KEPT_FILES + 3):
        save(key_of("test 1", [str(i)]), b"automaton", folder)
    assert len(list(folder.iterdir())) == KEPT_FILES


def test_without_a_home_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert not save(KEY, b"automaton")
    assert load(KEY) is None


def test_the_automaton_of_an_earlier_run_answers_the_same(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("hyperscan")
    compiled = []
    compile_ = hyperscan._compiled
    monkeypatch.setattr(hyperscan, "_compiled", lambda *given: compiled.append(given) or compile_(*given))
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder.parent))
    block = b"a 12\nbeta\nb"
    answers = [HyperscanScreen([r"a \d{2}", "beta"], keep=True).scan(block) for _ in range(2)]
    assert len(compiled) == 1
    kept(folder).write_bytes(MAGIC + b"0" * 40)
    answers.append(HyperscanScreen([r"a \d{2}", "beta"], keep=True).scan(block))
    assert len(compiled) == 2
    assert answers[0] and answers == [answers[0]] * 3
