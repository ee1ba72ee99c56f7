"""The agent's file: strict, and checked for what single keys cannot say."""

from __future__ import annotations

from pathlib import Path

import pytest

from sentinel.agent.settings import AgentSettings, require_sound
from sentinel.config.settings import described, load
from sentinel.errors import FileError, UserError


def loaded(tmp_path: Path, text: str) -> AgentSettings:
    (tmp_path / "agent.toml").write_text(text)
    settings = load(tmp_path / "agent.toml", AgentSettings)
    require_sound(settings)
    return settings


def test_an_empty_file_is_sound(tmp_path: Path) -> None:
    made = loaded(tmp_path, "")
    assert (made.gpus, made.run_dir, made.dcgm.host) == (-1, "/run/sentinel", "127.0.0.1:5555")


def test_a_check_of_the_site(tmp_path: Path) -> None:
    text = '[checks.fans]\ncommand = ["/opt/fans", "-q"]\nconvention = "nhc"\n'
    assert loaded(tmp_path, text).checks["fans"].command == ["/opt/fans", "-q"]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("[checks.fans]\nperiod_s = 9\n", "checks.fans.command"),
        ('[checks.fans]\ncommand = ["x"]\nconvention = "yes"\n', "convention"),
        ('[checks.fans]\ncommand = ["x"]\nperiod_s = 10\ndeadline_s = 20\n', "deadline_s"),
        ("[diagnostics]\ndeadline_s = [1.0]\n", "four"),
        ('[host]\nmounts = ["data"]\n', "absolute"),
    ],
)
def test_what_does_not_fit_together_is_named(tmp_path: Path, text: str, word: str) -> None:
    with pytest.raises(UserError, match=word):
        loaded(tmp_path, text)


@pytest.mark.parametrize(
    "text", ["gpu = 8\n", "heartbeat_s = 0\n", "[dcgm]\nhost = 5555\n", "[kernel]\nlines_per_kind = -1\n"]
)
def test_a_wrong_key_or_value_names_its_line(tmp_path: Path, text: str) -> None:
    with pytest.raises(FileError, match=r"agent\.toml:\d"):
        loaded(tmp_path, text)


def test_every_setting_has_its_reason() -> None:
    assert [key for key, _, _, reason in described(AgentSettings) if len(reason) < 10] == []
