"""What operators say of a verdict afterwards: the cause that was found out. Kept beside the verdict, which stays."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sentinel.model.records import Cause, Scope, require_aware

MOST_NOTE = 500  # characters; as the audit keeps of a reason
MOST_KEPT = 20  # corrections of one incident, the newest; the audit has them all


@dataclass(frozen=True, slots=True)
class Correction:
    """
    Attributes:
        by: account of the operator.
        cause, scope: what it was.
        was, was_scope: what had been judged by then; None: nothing.
    """

    at: datetime
    by: str
    cause: Cause
    scope: Scope
    was: str | None = None
    was_scope: str | None = None
    note: str = ""

    def __post_init__(self) -> None:
        require_aware(self.at)
