"""NVIDIA's decoding of Xid 144 to 150, read strictly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sentinel.config.rules import NvLink5
from sentinel.errors import FileError

KEYS = frozenset({"xid", "units", "subcode", "status", "immediate", "investigate"})
_IMMEDIATE = frozenset({"ignore", "reset_gpu", "xid_154_eval"})


def nvlink5_rows(name: str, data: Mapping[str, Any]) -> dict[tuple[int, str, int, int], NvLink5]:
    """The rows of one file's ``nvlink5``, by Xid, unit, sub-code and error status.

    Raises:
        FileError: a row is not of the form that rules/nvlink5.toml shows; names file and row.
    """
    rows: dict[tuple[int, str, int, int], NvLink5] = {}
    given = data.get("nvlink5", [])
    if not isinstance(given, list):
        raise FileError(name, "not a list of rows", key="nvlink5", fix="see rules/nvlink5.toml")
    for number, row in enumerate(given, 1):
        fault = _fault(row)
        if fault:
            raise FileError(name, f"row {number}: {fault}", key="nvlink5", fix="see rules/nvlink5.toml")
        for unit in row["units"]:
            key = (row["xid"], unit, row["subcode"], row["status"])
            known = rows.setdefault(key, NvLink5(row["immediate"], row["investigate"]))
            if known.immediate != row["immediate"]:
                raise FileError(name, f"row {number}: {unit} says otherwise above", key="nvlink5", fix="remove one")
    return rows


def _fault(row: object) -> str:
    if not isinstance(row, dict) or row.keys() != KEYS:
        return f"its keys are not: {', '.join(sorted(KEYS))}"
    if not all(type(row[key]) is int and row[key] >= 0 for key in ("xid", "subcode", "status")):
        return "xid, subcode and status are whole numbers"
    if not 144 <= row["xid"] <= 150:
        return f"Xid {row['xid']} is none of 144 to 150"
    if (
        not isinstance(row["units"], list)
        or not row["units"]
        or not all(isinstance(unit, str) for unit in row["units"])
    ):
        return "units is a list of names"
    if row["immediate"] not in _IMMEDIATE or not isinstance(row["investigate"], str):
        return f"immediate is none of: {', '.join(sorted(_IMMEDIATE))}"
    return ""
