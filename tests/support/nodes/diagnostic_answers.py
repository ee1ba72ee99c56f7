"""Answers of ``dcgmi diag -j`` as 2.x to 3.2 and 4.x write them, made for tests of how they are read."""

from __future__ import annotations

import json
from typing import Any

from sentinel.config.rules_files import load_convictions
from sentinel.evidence.diagnostics import Diagnosis, read_diagnostic

RULES = load_convictions()
GPUS = range(4)
SOFTWARE = [
    "Denylist", "NVML Library", "CUDA Main Library", "Permissions and OS Blocks", "Persistence Mode",
    "Environment Variables", "Page Retirement/Row Remap", "Graphics Processes", "Inforom",
]  # fmt: skip
HARDWARE = ["PCIe", "GPU Memory", "Diagnostic", "Targeted Stress", "Targeted Power", "Memory Bandwidth"]


def without_codes(level: int, blame: dict[str, str], gpu: int | str = 2, absent: int | None = None) -> dict[str, Any]:
    """As 2.x to 3.2 write: ``gpu_ids``, and a warning is a sentence. Level 1 names no GPU.

    Args:
        blame: test → warning; ``gpu``: which one, or several as "0,1".
        absent: a GPU that no test of the hardware names.
    """
    tests: list[dict[str, Any]] = []
    for name in SOFTWARE:
        result = {"status": "Fail", "warnings": blame[name]} if name in blame else {"status": "Pass"}
        tests.append({"name": name, "results": [result]})
    for name in HARDWARE[: {1: 0, 2: 2, 3: 6}[level]]:
        results = [{"gpu_ids": str(number), "status": "Pass"} for number in GPUS if number != absent]
        if name in blame:
            results = [result for result in results if result["gpu_ids"] not in str(gpu).split(",")]
            results.append({"gpu_ids": str(gpu), "status": "Fail", "warnings": blame[name]})
        tests.append({"name": name, "results": results})
    return {"DCGM GPU Diagnostic": {"test_categories": [{"category": "Any", "tests": tests}], "version": "3.1.8"}}


def with_codes(*warnings: tuple[int, int, str], test: str = "targeted_power", group: str = "GPU") -> dict[str, Any]:
    """As 4.x writes: one test of level 3 that failed on entity 2; each warning is code, severity and text."""
    items = [{"error_id": code, "error_severity": severity, "warning": text} for code, severity, text in warnings]
    result = {"entity_group": group, "entity_id": 2, "status": "Fail", "warnings": items}
    tests = [{"name": test, "results": [result], "test_summary": {"status": "Fail", "warnings": items}}]
    return {"DCGM Diagnostic": {"test_categories": [{"category": "Any", "tests": tests}]}}


def read(document: Any, status: int = 226, level: int = 3) -> Diagnosis:
    content = document if isinstance(document, bytes) else json.dumps(document).encode()
    return read_diagnostic(content, status, level, GPUS, convictions=RULES)
