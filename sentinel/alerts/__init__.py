"""Writes the notices: one per incident, from its verdict, plan and outcomes, and those about an unreadable Slurm."""

from sentinel.alerts.audiences import Stage, Story, for_operators, for_owner, severity_of, stage_of
from sentinel.alerts.blindness import blind, sees_again
from sentinel.alerts.compose import compose

__all__ = [
    "Stage",
    "Story",
    "blind",
    "compose",
    "for_operators",
    "for_owner",
    "sees_again",
    "severity_of",
    "stage_of",
]
