"""What ``sentinel classify`` says to people: which file a line is of, each line once, and logs in which nothing is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from sentinel.cli.offline.classify import classify

XID = "Nov 28 03:12:45 gpu021 kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus.\n"


def ask(*arguments: object, code: int = 0, given: bytes | None = None) -> str:
    result = CliRunner(env={"COLUMNS": "300"}).invoke(classify, [*map(str, arguments)])
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "failure"
    (made / "logs").mkdir(parents=True)
    (made / "dmesg.txt").write_text(f"Nov 28 03:12:40 gpu021 kernel: eth0: link up\n{XID}")
    (made / "logs/slurm-4711.out").write_text(
        "".join(f"[rank{rank}]: step 1 | loss 2.0\n" for rank in range(6))
        + "[rank5]: torch.AcceleratorError: CUDA error: unspecified launch failure\n"
    )
    return made


def test_of_a_folder_each_line_is_named_with_its_file(folder: Path) -> None:
    rows = [line for line in ask(folder).splitlines() if line.startswith(("  +", "  -"))]
    assert any("dmesg.txt, line 2: " in row for row in rows), rows
    assert any("logs/slurm-4711.out, line 7: " in row for row in rows), rows
    assert "dmesg.txt" not in "".join(row for row in ask(folder / "dmesg.txt").splitlines()[1:]), "there is only one"


def test_each_line_is_shown_once_with_its_sum_and_what_that_is_made_of(folder: Path) -> None:
    told = ask(folder)
    (answer,) = map(json.loads, ask(folder, "--json").splitlines())
    for text in ("GPU has fallen off the bus.\n", "unspecified launch failure\n"):
        assert told.count(text) == 1, told
        grounds = [
            g for g in (*answer["evidence"], *answer["against"]) if g["text"] + "\n" == text or text[:-1] in g["text"]
        ]
        assert len(grounds) > 1
        total = sum(g["weight"] for g in grounds)
        assert f"{'+' if total >= 0 else '-'} {abs(total):5.2f}  " in told
        for ground in grounds:
            assert f"{ground['weight']:+.2f} {ground['note']}" in told


@pytest.mark.parametrize("content", ["", "\n \n", "\0" * 5000])
def test_a_log_in_which_nothing_is_is_empty(tmp_path: Path, content: str) -> None:
    path = tmp_path / "job.out"
    path.write_text(content)
    told = ask(path)
    assert "the log is empty" in told and "read the lines" not in told and "restart: none" in told
    (answer,) = map(json.loads, ask(path, "--json").splitlines())
    assert (answer["empty"], answer["restart"], answer["cause"]) == (True, "none", "unknown")
    path.write_text("hello\n")
    assert "empty" not in ask(path, "--json")


def test_standard_input_that_is_empty_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "nothing").write_bytes(b"")
    monkeypatch.setattr("sentinel.cli.offline.log_blocks.os.read", lambda fd, count: b"")
    assert "the log is empty" in ask("-")


def test_a_folder_is_empty_only_if_all_its_logs_are(tmp_path: Path) -> None:
    (tmp_path / "a.out").write_text("")
    (tmp_path / "b.out").write_text("")
    assert "the log is empty" in ask(tmp_path)
    (tmp_path / "b.out").write_text("hello\n")
    assert "log is empty" not in ask(tmp_path)


def test_what_cannot_be_read_asks_for_no_restart(tmp_path: Path) -> None:
    (answer,) = map(json.loads, ask("--json", tmp_path / "nowhere", code=2).splitlines())
    assert (answer["restart"], answer["recommendation"]) == ("none", "none")
    assert "error" in answer and "read the lines" not in answer["advice"]


def test_a_verdict_that_is_not_sure_says_so_before_its_advice(tmp_path: Path) -> None:
    path = tmp_path / "job.out"
    path.write_text("RuntimeError: CUDA error: unspecified launch failure\n")
    (answer,) = map(json.loads, ask(path, "--json").splitlines())
    assert answer["cause"] == "user_code" and answer["confidence"] < 0.5
    other = answer["alternatives"][0]
    lines = ask(path).splitlines()
    both = f"{answer['cause']} {answer['confidence']:.2f}, or {other['cause']} {other['confidence']:.2f}"
    assert lines[1] == f"  not sure (below 0.50): {both}" and lines[2].startswith("  restart: ")
    path.write_text('Traceback (most recent call last):\n  File "t.py", line 3, in <module>\n    f()\nKeyError: 7\n')
    (answer,) = map(json.loads, ask(path, "--json").splitlines())
    assert answer["confidence"] >= 0.5 and "not sure" not in ask(path)
    path.write_text("nothing that is known\n")
    assert "not sure" not in ask(path), "an unknown cause says that by itself"
