"""A message to people, and what became of sending it to one receiver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Delivery:
    """What became of sending a message to one receiver so far."""

    tries: int = 0
    reason: str = ""  # why the last one failed
    given_up: bool = False  # a dead letter: no further attempt before the next start
    next_at: datetime | None = None  # of the next attempt
    took: tuple[str, ...] = ()  # addresses, of several of one receiver, that have it: the receiver's own words for them
    unsure: int = 0  # attempts after which it is not known whether it arrived


@dataclass(frozen=True, slots=True)
class Notice:
    """One message to people: one of an incident's thread, for each receiver."""

    id: str
    incident: str
    at: datetime
    title: str
    body: str
    data: Mapping[str, object] = field(default_factory=dict, hash=False)
    delivery: Delivery = field(default=Delivery(), compare=False)

    def __post_init__(self) -> None:
        if self.at.utcoffset() is None:
            raise ValueError(f"naive datetime {self.at!r}: records hold aware UTC times")

    @property
    def thread(self) -> str:
        """What the message and others tell of: an incident, an outage by its beginning, or this message alone."""
        return self.incident or str(self.data.get("since") or self.id)

    @property
    def order(self) -> tuple[int, bool, datetime]:
        """Of the messages of one thread the newest has the highest, also where the clock was set back between two. It says
        nothing of messages of several threads. Those of an outage have no numbers: the one that it is over is the last."""
        number, over = self.data.get("message"), not self.incident and bool(self.data.get("final"))
        return number if isinstance(number, int) else 0, over, self.at
