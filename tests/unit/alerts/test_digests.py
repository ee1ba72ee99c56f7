"""One message for many: the newest of each incident, worst first, and short."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from typing import Any

from made_records import AT

from sentinel.alerts import as_sent
from sentinel.alerts.digests import digest
from sentinel.model.records import Notice


def notice(at: datetime = AT, severity: str = "warning", **data: Any) -> Notice:
    return Notice("note", "inc1", at, "a title", "a body", {"severity": severity, "stage": "handled", **data})


def at(hour: int, minute: int = 0) -> datetime:
    return datetime(2026, 7, 1, hour, minute, tzinfo=UTC)


def test_digest_tells_the_newest_of_each_incident_worst_first() -> None:
    many = [
        dataclasses.replace(notice(at(9, n), "info", operator_text=f"text {n}", stage="restarting"), id=f"a{n}")
        for n in range(3)
    ]
    worse = dataclasses.replace(notice(at(9), "critical", operator_text="worse"), id="b", incident="inc2")
    made = digest([*many, worse], at(10))
    assert made.title == "2 incidents: 1 critical, 1 info"
    assert made.data["operator_text"] == "worse\n\ntext 2" and made.data["severity"] == "critical"
    assert made.id == digest([worse, *reversed(many)], at(11)).id


def test_digest_tells_the_last_message_of_a_thread_although_the_clock_was_ahead_at_an_earlier_one() -> None:
    first, last = (dataclasses.replace(notice(at(11 - n), message=n, operator_text=f"{n}"), id=f"{n}") for n in (1, 2))
    assert digest([first, last], at(12)).data["operator_text"] == "2"


def test_digest_of_thousands_is_one_short_message() -> None:
    many = [dataclasses.replace(notice(operator_text="x" * 250), id=f"{n}", incident=f"i{n}") for n in range(10_000)]
    made = digest(many, AT)
    assert len(str(made.data["operator_text"])) < 8000 and "And 9980 more: sentinel incidents" in made.body


def test_digest_says_of_each_incident_what_holds_on_and_of_those_left_out_nothing() -> None:
    def told(incident: int, number: int, *stands: str) -> Notice:
        made = notice(message=number, operator_text=f"how {incident} is", owner_text="of a job", stands=list(stands))
        return dataclasses.replace(made, id=f"{incident}.{number}", incident=f"i{incident}", title=f"of {incident}")

    many = [told(n, 1, f"Slurm took its failure for its end: it let go {n}.") for n in range(1000)]
    many += [told(n, 2) for n in range(1000)]
    made = as_sent(digest(many, AT), many, AT)
    first = "Slurm took its failure for its end: it let go 0."
    assert str(made.data["operator_text"]).startswith(f"how 0 is\n{first}\n\nhow 1 is\n")
    assert str(made.data["owner_text"]).startswith(f"of a job {first}\n\nof a job ")
    assert made.body.split("\n")[:2] == [f"{AT:%H:%M} UTC of 0", first]
    assert made.body.count("let go") == str(made.data["operator_text"]).count("let go") == 20
