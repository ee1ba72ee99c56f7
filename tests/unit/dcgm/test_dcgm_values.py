"""Values as DCGM's library lays them in memory."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sentinel.adapters.gpu.dcgm_values import Values
from sentinel.errors import ProtocolError

DOUBLE = Path(__file__).parents[3] / "deploy" / "lab" / "fake_dcgm"
AT_US = 1_700_000_000_000_000


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Any:
    for name in ("dcgm_agent", "dcgm_structs"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(str(DOUBLE))
    import dcgm_agent
    import dcgm_structs

    yield SimpleNamespace(agent=dcgm_agent, structs=dcgm_structs)
    for name in ("dcgm_agent", "dcgm_structs"):
        sys.modules.pop(name, None)


def told(modules: Any, rows: list[tuple[str, object, int]], group: int = 1) -> dict[int, Any]:
    """What is made of (type, value, status) of the fields 100, 101, ... of GPU 3."""
    values = (modules.structs.c_dcgmFieldValue_v1 * len(rows))()
    for number, (made, (kind, value, status)) in enumerate(zip(values, rows, strict=True)):
        made.fieldId, made.fieldType, made.status, made.ts = 100 + number, ord(kind), status, AT_US
        setattr(made.value, {"d": "dbl", "s": "str"}.get(kind, "i64"), value)

    def library(handle: int, gpus: int, fields: int, callback: Any, _: object) -> int:
        assert (handle, gpus, fields) == (7, 8, 9)
        return int(callback(group, 3, values, len(rows), None))

    agent = SimpleNamespace(
        dcgmGetLatestValues_v2=library,
        dcgmFieldValueEntityEnumeration_f=modules.agent.dcgmFieldValueEntityEnumeration_f,
    )
    return Values(agent, modules.structs).latest(7, 8, 9)


def test_each_type_is_decoded_with_its_time(modules: Any) -> None:
    rows: list[tuple[str, object, int]] = [("i", -5, 0), ("d", 95.5, 0), ("s", b"00000000:1B:00.0", 0), ("t", AT_US, 0)]
    assert told(modules, rows) == {
        3: {100: (-5, AT_US), 101: (95.5, AT_US), 102: ("00000000:1B:00.0", AT_US), 103: (AT_US, AT_US)}
    }


def test_blanks_and_what_could_not_be_read_are_not_known(modules: Any) -> None:
    rows: list[tuple[str, object, int]] = [
        ("i", 0x7FFFFFF0, 0), ("i", 0x7FFFFFFFFFFFFFF3, 0), ("d", 140737488355330.0, 0), ("s", b"<<<NULL>>>", 0),
        ("i", 4, -6), ("b", 4, 0),
    ]  # fmt: skip
    assert {value for value, _ in told(modules, rows)[3].values()} == {None}


def test_what_is_no_gpu_is_left_out(modules: Any) -> None:
    assert told(modules, [("i", 1, 0)], group=3) == {}


def test_another_layout_is_refused(modules: Any) -> None:
    class Other(ctypes.Structure):
        _fields_ = [*modules.structs.c_dcgmFieldValue_v1._fields_[:3], ("more", ctypes.c_int64),
                    *modules.structs.c_dcgmFieldValue_v1._fields_[3:]]  # fmt: skip

    with pytest.raises(ProtocolError, match="lays values out"):
        Values(modules.agent, SimpleNamespace(c_dcgmFieldValue_v1=Other))
