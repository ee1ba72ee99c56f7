"""What became of sending one message to one receiver."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Delivery:
    """What became of sending a message to one receiver so far."""

    tries: int = 0
    reason: str = ""  # why the last one failed
    given_up: bool = False  # a dead letter: no further attempt before the next start
    next_at: datetime | None = None  # of the next attempt
