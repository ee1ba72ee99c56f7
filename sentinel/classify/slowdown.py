"""What slower steps speak for, by whom they point at."""

from __future__ import annotations

from collections.abc import Mapping

from sentinel.classify.machine_readings import TELEMETRY
from sentinel.config.rules import Role
from sentinel.model.records import Cause, Scope

C = Cause
_PATTERNS: dict[str, tuple[Mapping[Cause, float], Role, Scope | None, str]] = {
    "component": (
        {C.GPU_THERMAL_POWER: 2.6, C.PCIE: 1.2, C.GPU_NVLINK: 0.6, C.NETWORK_FABRIC: 0.6},
        Role.CAUSE,
        Scope.GPU,
        "the same rank is slow each time: a part of its node",
    ),
    "application": (
        {C.USER_CONFIG: 2.2, C.USER_CODE: 0.8},
        Role.CAUSE,
        Scope.APPLICATION,
        "other ranks are slow each time: the work is unevenly shared (sequence lengths, stages)",
    ),
    "everyone": (
        {C.NETWORK_FABRIC: 0.8, C.FILESYSTEM_STORAGE: 0.8, C.USER_CONFIG: 0.8, C.GPU_THERMAL_POWER: 0.8},
        Role.CAUSE,
        Scope.CLUSTER,
        "all ranks became slower alike in their own work: what they share, or larger batches",
    ),
    "cluster": (
        {C.FILESYSTEM_STORAGE: 1.8, C.NETWORK_FABRIC: 1.8},
        Role.CAUSE,
        Scope.CLUSTER,
        "all that share something became slow together: what they share",
    ),
}
_ANY = ({C.GPU_THERMAL_POWER: 0.5, C.NETWORK_FABRIC: 0.5, C.PCIE: 0.3}, Role.CONTEXT, None, "steps became slower")
_WITH_FACT = 0.8  # of the weight that the node's telemetry has by itself


def slowdown(pattern: object, fact: object) -> tuple[Mapping[Cause, float], Role, Scope | None, str]:
    """Weights, role, scope and words; ``fact``: the kind of a telemetry evidence of the node that it points at."""
    weights, role, scope, note = _PATTERNS.get(str(pattern or ""), _ANY)
    known = TELEMETRY.get(str(fact or ""))
    if pattern == "component" and known is not None:
        strong = {cause: _WITH_FACT * weight for cause, weight in known[0].items()}
        return {**weights, **strong}, role, scope, f"{note}; and {known[2]}"
    return weights, role, scope, note
