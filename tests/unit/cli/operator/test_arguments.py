"""Arguments that commands share: since when, and what a shell completes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import click
import pytest
from in_memory.cli_asked import Asked

from sentinel.cli.operator import arguments
from sentinel.cli.operator.arguments import JOB, NODES, SUBJECT, since_time
from sentinel.errors import Unavailable, UserError

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


@pytest.fixture
def zurich(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One hour ahead of UTC at that time."""
    monkeypatch.setenv("TZ", "Europe/Zurich")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("7d", datetime(2026, 2, 22, 12, 0, tzinfo=UTC)),
        ("90min", datetime(2026, 3, 1, 10, 30, tzinfo=UTC)),
        ("03:00", datetime(2026, 3, 1, 2, 0, tzinfo=UTC)),
        ("13:30", datetime(2026, 2, 28, 12, 30, tzinfo=UTC)),  # has not been today
        ("2026-02-01", datetime(2026, 1, 31, 23, 0, tzinfo=UTC)),
        ("2026-02-01T03:00", datetime(2026, 2, 1, 2, 0, tzinfo=UTC)),
        ("2026-02-01T03:00:00Z", datetime(2026, 2, 1, 3, 0, tzinfo=UTC)),
    ],
)
@pytest.mark.usefixtures("zurich")
def test_since(text: str, at: datetime) -> None:
    assert since_time(text, NOW) == at


@pytest.mark.parametrize(
    ("now", "at"),
    [
        (datetime(2026, 3, 29, 8, 0, tzinfo=UTC), datetime(2026, 3, 28, 22, 0, tzinfo=UTC)),  # summer time now
        (datetime(2026, 10, 25, 9, 0, tzinfo=UTC), datetime(2026, 10, 24, 21, 0, tzinfo=UTC)),  # and until then
    ],
)
@pytest.mark.usefixtures("zurich")
def test_a_clock_time_of_yesterday_is_by_yesterdays_clock(now: datetime, at: datetime) -> None:
    assert since_time("23:00", now) == at


@pytest.mark.usefixtures("zurich")
@pytest.mark.parametrize("text", ["", "soon", "7", "yesterday", "25:00", "1e300y", "2026-13-01", "0001-01-01"])
def test_no_time(text: str) -> None:
    with pytest.raises(UserError) as caught:
        since_time(text, NOW)
    assert "how long ago (7d" in caught.value.fix


def completed(kind: click.ParamType, beginning: str) -> list[str]:
    context = click.Context(click.Command("x"))
    return [item.value for item in kind.shell_complete(context, click.Argument(["x"]), beginning)]


def test_shell_completes_names_that_the_daemon_knows(asked: Asked) -> None:
    asked.views["names"] = {"nodes": ["n1", "n12", "m1"], "jobs": [8801, 12], "incidents": ["0f3a", "88ff"]}
    assert completed(NODES, "n1") == ["n1", "n12"] and completed(JOB, "8") == ["8801"]
    assert completed(SUBJECT, "") == ["last", "0f3a", "88ff", "n1", "n12", "m1", "8801", "12"]
    assert completed(SUBJECT, "88") == ["88ff", "8801"] and completed(SUBJECT, "la") == ["last"]


def test_shell_waits_no_longer_than_a_second_and_completes_nothing_without_a_daemon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[float] = []

    def away(_config: Path, _name: str, *, deadline_s: float) -> None:
        asked.append(deadline_s)
        raise Unavailable("away")

    monkeypatch.setattr(arguments, "view", away)
    assert completed(NODES, "n") == [] and asked == [arguments.COMPLETION_S]
