"""Our part of a job's admin comment, beside what somebody else wrote there."""

from __future__ import annotations

from sentinel.model.records import OURS

BESIDE = " || "  # separates our part of the admin comment from what somebody else wrote there
_COMMENT = 1024  # characters that Slurm keeps


def beside(ours: str, before: str) -> str:
    """Our text for the admin comment, followed by what somebody else had written there."""
    theirs = before.partition(BESIDE)[2] if before.startswith(OURS) else before
    text = f"{ours}{BESIDE}{theirs}" if theirs else ours
    return text if len(text) <= _COMMENT else f"{text[: _COMMENT - 1]}…"
