"""What an Xid line says beyond its number: NVLink5 severity, the driver's recovery action."""

from __future__ import annotations

import re
from collections.abc import Mapping

from sentinel.model import Scalar

# DCGM field 1523 and Xid 154 count alike; the text decides where both are there.
ACTIONS = ("none", "reset", "reboot", "drain_p2p", "drain_reset")
_CHANGED = re.compile(
    r"recovery action changed from 0x[0-9a-fA-F]{1,4} \([^)]{0,60}\) to 0x([0-9a-fA-F]{1,4}) \(([^)]{0,60})\)"
)
_FATAL = re.compile(r"(?i)\bnon-?fatal\b")
_SEVERE = re.compile(r"\bFatal\b|\bfatal\b")


def action_of(number: int, text: str = "") -> str:
    """Name of a recovery action; "unknown" when neither number nor text is known."""
    low = text.lower()
    if "drain and reset" in low:
        return "drain_reset"
    if "p2p" in low:
        return "drain_p2p"
    if "reboot" in low:
        return "reboot"
    if "reset" in low:
        return "reset"
    if low == "none":
        return "none"
    return ACTIONS[number] if 0 <= number < len(ACTIONS) else "unknown"


def xid_data(fields: Mapping[str, str], text: str) -> dict[str, Scalar]:
    """Fields of an Xid line; ``fatal`` is None where the line does not say."""
    data: dict[str, Scalar] = {}
    if "pci" in fields:
        data["pci"] = fields["pci"].lower()
    if changed := _CHANGED.search(text):
        data["action"] = action_of(int(changed[1], 16), changed[2])
    if _FATAL.search(text):
        data["fatal"] = False
    elif _SEVERE.search(text):
        data["fatal"] = True
    return data
