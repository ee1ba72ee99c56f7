"""Turns odds into the confidence that a verdict states: how often such odds were right on held-out logs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sentinel.config.rules import Rules
from sentinel.model.records import Cause, Source, Verdict

_PROGRAM = frozenset({Source.JOB_LOG, Source.ERROR_FILE})


def calibrated(verdict: Verdict, rules: Rules) -> Verdict:
    """``verdict`` with odds turned into confidence: along one curve where only a program spoke, another where a machine did.

    One line can be misread: alone it never gives full confidence. That a machine is broken is surer than what broke in it,
    so how sure a drain is has a factor of its own.
    """
    if verdict.cause is Cause.UNKNOWN:
        return verdict
    judgement = rules.judgement
    confidence = along(judgement.machine_curve, verdict.confidence)
    # At least as sure as the cause, also where other lines than the cause's convict the node.
    convicts = max(verdict.drain_confidence, verdict.confidence) if verdict.drain else verdict.drain_confidence
    drain_confidence = convicts * judgement.calibration  # a machine spoke, else no node is named
    if verdict.grounds and all(ground.evidence.source in _PROGRAM for ground in verdict.grounds):
        confidence = along(judgement.program_curve, verdict.confidence)
        if len({ground.evidence.id for ground in verdict.grounds}) == 1:
            confidence = min(confidence, judgement.single_line)
    factor = confidence / verdict.confidence if verdict.confidence else 1.0
    others = tuple(
        replace(other, confidence=round(min(other.confidence * factor, confidence), 3))
        for other in verdict.alternatives
    )
    confidence, drain_confidence = round(confidence, 3), round(drain_confidence, 3)
    return replace(verdict, confidence=confidence, drain_confidence=drain_confidence, alternatives=others)


def along(curve: Sequence[tuple[float, float]], share: float) -> float:
    """The value of ``curve``, points of growing share, at ``share``; straight between points, level beyond them."""
    left = curve[0]
    for right in curve:
        if share <= right[0]:
            width = right[0] - left[0]
            return left[1] + (right[1] - left[1]) * ((share - left[0]) / width if width else 1.0)
        left = right
    return left[1]
