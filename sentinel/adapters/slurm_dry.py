"""A writer that writes nothing: it notes what would have been done (promise 7) and succeeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import MappingProxyType

from sentinel.model import Scalar, require_aware

KEPT = 10_000  # notes; a daemon that observes for months must not grow with them

_NOTHING: Mapping[str, Scalar] = MappingProxyType({})


def _utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class WouldHave:
    """One request that was not made."""

    at: datetime
    verb: str  # method of the SlurmWriter port
    node: str | None = None
    job: int | None = None
    data: Mapping[str, Scalar] = field(default_factory=lambda: _NOTHING, hash=False)

    def __post_init__(self) -> None:
        require_aware(self.at)


class DryWriter:
    """``SlurmWriter`` that only records. ``tell`` is called with every note, e.g. to log it."""

    def __init__(
        self, *, tell: Callable[[WouldHave], None] | None = None, now: Callable[[], datetime] = _utc_now
    ) -> None:
        self._tell = tell
        self._now = now
        self.notes: list[WouldHave] = []  # in order of time; the oldest go first

    async def drain(self, node: str, reason: str) -> None:
        self._note("drain", node=node, data={"reason": reason})

    async def down(self, node: str, reason: str) -> None:
        self._note("down", node=node, data={"reason": reason})

    async def explain(self, node: str, reason: str) -> None:
        self._note("explain", node=node, data={"reason": reason})

    async def undrain(self, node: str) -> None:
        self._note("undrain", node=node)

    async def requeue_hold(self, job: int) -> None:
        self._note("requeue_hold", job=job)

    async def update_job(
        self,
        job: int,
        *,
        excluded: Sequence[str] | None = None,
        required: Sequence[str] | None = None,
        admin_comment: str | None = None,
        start_now: bool = False,
    ) -> None:
        asked: dict[str, Scalar] = {
            "excluded": None if excluded is None else ",".join(excluded),
            "required": None if required is None else ",".join(required),
            "admin_comment": admin_comment,
            "start_now": start_now or None,
        }
        self._note("update_job", job=job, data={key: value for key, value in asked.items() if value is not None})

    async def defer(self, job: int) -> None:
        self._note("defer", job=job)

    async def release(self, job: int) -> None:
        self._note("release", job=job)

    async def notify(self, job: int, text: str) -> None:
        self._note("notify", job=job, data={"text": text})

    def _note(
        self, verb: str, *, node: str | None = None, job: int | None = None, data: Mapping[str, Scalar] = _NOTHING
    ) -> None:
        note = WouldHave(at=self._now(), verb=verb, node=node, job=job, data=MappingProxyType(dict(data)))
        self.notes.append(note)
        del self.notes[:-KEPT]
        if self._tell is not None:
            self._tell(note)
