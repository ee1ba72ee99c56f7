"""What an Xid line says beyond its number: NVLink5 severity, the driver's recovery action."""

from __future__ import annotations

import re
from collections.abc import Mapping

from sentinel.config.convictions import action_name
from sentinel.model.records import Scalar

_CHANGED = re.compile(
    r"recovery action changed from 0x[0-9a-fA-F]{1,4} \([^)]{0,60}\) to 0x([0-9a-fA-F]{1,4}) \(([^)]{0,60})\)"
)
# 145, RLW_SRC_TRACK Nonfatal XC1 i0 Link 12 (0x040988e2 0x00000008 ...): unit, link, first word, error status
_NVLINK5 = re.compile(
    r"\b([A-Z][A-Z0-9_]{2,31})\s{1,8}(?:(?i:non-?fatal|fatal)\s{1,8})?XC\d\s{1,4}i\d\s{1,4}Link\s{1,4}(-?\d{1,3}) "
    r"\((0x[0-9a-fA-F]{1,8}) (0x[0-9a-fA-F]{1,8})"
)
_NVLINK4 = re.compile(r"\bNVLink: [^\n]{0,60}?\blink (\d{1,3})\b")
_NONFATAL = re.compile(r"(?i)\bnon-?fatal\b")
_FATAL = re.compile(r"\bFatal\b|\bfatal\b")


def action_of(number: int, text: str = "") -> str:
    """Name of a recovery action: the text decides where there is one; "unknown" when neither it nor the number is known."""
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
    return action_name(number)


def xid_data(fields: Mapping[str, str], text: str) -> dict[str, Scalar]:
    """Fields of an Xid line; ``fatal`` is None where the line does not say."""
    data: dict[str, Scalar] = {}
    if "pci" in fields:
        data["pci"] = fields["pci"].lower()
    if changed := _CHANGED.search(text):
        data["action"] = action_of(int(changed[1], 16), changed[2])
    if found := _NVLINK5.search(text):
        data.update(unit=found[1], link=int(found[2]), status=int(found[4], 16))
        data["subcode"] = int(found[3], 16) >> 20 & 0x3F
    elif link := _NVLINK4.search(text):
        data["link"] = int(link[1])
    if _NONFATAL.search(text):
        data["fatal"] = False
    elif _FATAL.search(text):
        data["fatal"] = True
    return data
