"""What each cause asks for before a node returns, and what a site allows: strict, with line, key and fix."""

from __future__ import annotations

from pathlib import Path

import pytest
from shipped import shipped_rules

from sentinel.config.return_settings import filled
from sentinel.config.returns import Remedial, ReturnRow, Returns
from sentinel.config.rules_toml import parse_rules
from sentinel.config.settings import Settings, load
from sentinel.errors import FileError
from sentinel.model.records import Cause

ROW = '[[return]]\ncause = "pcie"\ntests = [1, 2]\nactions = ["reset", "reboot"]\nsource = "this site"\n'


def test_the_shipped_rows_cover_every_cause_and_ask_for_a_test_each() -> None:
    returns = shipped_rules().returns
    assert all(returns.of(cause).tests and returns.of(cause).source for cause in Cause)
    assert returns.of(Cause.GPU_FALLEN_OFF_BUS).action(0) is Remedial.REBOOT
    ecc = returns.of(Cause.GPU_MEMORY_ECC)
    assert [ecc.action(failed) for failed in range(3)] == [Remedial.RESET, Remedial.REBOOT, Remedial.REBOOT]
    assert Returns().of(Cause.PCIE) == ReturnRow()


def test_a_site_overrides_a_row() -> None:
    ours = '[[return]]\ncause = ["pcie", "other"]\ntests = [4]\nfailures = 1\nsource = "we"\n'
    returns = parse_rules([("rules.toml", ROW)], site=[("site.toml", ours)]).returns
    assert returns.of(Cause.PCIE).tests == returns.of(Cause.UNKNOWN).tests == (4,)
    assert returns.of(Cause.PCIE).failures == 1


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        (ROW.replace('"pcie"', '"boiler"'), 2, "not known"),
        (ROW.replace("tests = [1, 2]", "tests = []"), 3, "only after a test"),
        (ROW.replace("tests = [1, 2]\n", ""), 1, "only after a test"),
        (ROW.replace("[1, 2]", "[1, 5]"), 3, "not levels"),
        (ROW.replace("[1, 2]", "[2, 1]"), 3, "not in order"),
        (ROW.replace('"reset", ', '"kick", '), 4, "not a list of"),
        (ROW + "failures = 0\n", 6, "not a number"),
        (ROW.replace("this site", " "), 5, "missing"),
        (ROW + 'colour = "red"\n', 6, "unknown key"),
        (ROW + ROW, 7, "listed twice"),
    ],
)
def test_refused_rows(text: str, line: int, words: str) -> None:
    with pytest.raises(FileError, match=words) as caught:
        parse_rules([("rules.toml", text)])
    assert caught.value.line == line
    assert caught.value.fix


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('reset_command = ["/site/reset"]', "names no node"),
        ('reset_command = ["", "{node}"]', "no program"),
        ('reboot_command = ["scontrol", "reboot", "ASAP", "nextstate=RESUME", "{node}"]', "before it is tested"),
        ('reboot_command = ["/site/boot", "{node}", "{host}"]', "not replaced"),
        ('ticket_url = "ftp://x"', "scheme"),
        ("test_level = 5", "above 4"),
    ],
)
def test_refused_settings(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "sentinel.toml"
    path.write_text(f"[returns]\n{text}\n")
    with pytest.raises(FileError, match=words) as caught:
        load(path, Settings)
    assert caught.value.line == 2
    assert caught.value.fix


def test_a_command_is_filled_in_word_by_word() -> None:
    made = filled(["/site/boot", "{node}", "reason={reason}"], "n1", "sentinel:0f3a {node}; rm")
    assert made == ("/site/boot", "n1", "reason=sentinel:0f3a {node}; rm")
