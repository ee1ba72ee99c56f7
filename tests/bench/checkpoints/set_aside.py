"""What the daemon moves aside before a restart (`sentinel.daemon.effects.checkpoints`), of candidates in one folder."""

from __future__ import annotations

from collections.abc import Iterable

from sentinel.checkpoints.records import Candidate


def to_set_aside(chosen: Candidate, candidates: Iterable[Candidate]) -> list[Candidate]:
    """Every newer step than the chosen one's, and what is invalid. An older one that is not known stays where it is."""
    assert chosen.step is not None
    return [
        other
        for other in candidates
        if (other.path, other.step) != (chosen.path, chosen.step)
        and other.step is not None
        and (other.step > chosen.step or other.valid is False)
    ]
