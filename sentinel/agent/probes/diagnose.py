"""Runs a diagnostic through ``dcgmi`` and reads it: pass, fail or inconclusive.

GPUs are given by UUID, since DCGM's numbers are neither Slurm's nor CUDA's. A diagnostic that is late goes on in the host
engine: it is stopped, waited for, and said so.
"""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from sentinel.adapters.dcgmi import Dcgmi
from sentinel.agent.probes import begin, say
from sentinel.errors import SentinelError, Timeout
from sentinel.evidence.diagnostics import Answer, Diagnosis, evidence_of, read_diagnostic
from sentinel.wire import to_json


def diagnose(arguments: dict[str, Any]) -> dict[str, Any]:
    """The answer to an order: DiagnosisJSON with ``level``, ``gpus``, and the evidence it makes."""
    level = int(arguments["level"])
    if level not in (1, 2, 3, 4):
        raise ValueError(f"no level {level}: 1 to 4")
    dcgmi = Dcgmi(arguments["dcgmi"], host=arguments["host"], socket=arguments.get("socket", ""))
    began = datetime.now(UTC)
    uuids: dict[int, str] = {}
    try:
        dcgmi.check()
        found = dcgmi.gpus()
        uuids = {gpu["id"]: gpu["uuid"] for gpu in found if gpu.get("uuid")}
        chosen = _chosen(arguments.get("gpus"), uuids)
        diagnosis = _run(dcgmi, level, chosen, arguments, sorted(uuids))
    except SentinelError as error:
        diagnosis = Diagnosis(Answer.INCONCLUSIVE, str(error))
    promised = int(arguments.get("promised", -1))
    if diagnosis.answer is Answer.PASS and arguments.get("gpus") is None and 0 <= promised != len(uuids):
        reason = f"{len(uuids)} GPUs were tested, {promised} are promised"
        diagnosis = Diagnosis(Answer.INCONCLUSIVE, reason, diagnosis.findings, diagnosis.tests, diagnosis.version)
    evidence = evidence_of(diagnosis, arguments["node"], level, began, uuids)
    if arguments.get("yields"):  # by order, on a node without work
        evidence = [replace(item, data={**item.data, "idle": True}) for item in evidence]
    answer = diagnosis.to_json()
    for finding in answer["findings"]:  # type: ignore[attr-defined]
        finding["gpu_uuid"] = uuids.get(finding["gpu"]) if finding["gpu"] is not None else None
    return {**answer, "level": level, "gpus": arguments.get("gpus"), "evidence": [to_json(item) for item in evidence]}


def _chosen(wanted: list[str] | None, uuids: dict[int, str]) -> list[int] | None:
    if wanted is None:
        return None
    ids = {uuid: number for number, uuid in uuids.items()}
    missing = [uuid for uuid in wanted if uuid not in ids]
    if missing:
        raise _NotThere(f"DCGM does not see {', '.join(missing)}")
    return sorted(ids[uuid] for uuid in wanted)


class _NotThere(SentinelError):
    pass


def _run(
    dcgmi: Dcgmi, level: int, chosen: list[int] | None, arguments: dict[str, Any], everyone: list[int]
) -> Diagnosis:
    stop_s = float(arguments.get("stop_s", 45.0))
    limits = arguments.get("deadlines_s") or [60.0, 600.0, 2400.0, 7200.0]
    # The order's own deadline leaves room to stop a diagnostic that is late, but never less than half of it to run.
    ordered_s = float(arguments["deadline_s"])
    deadline_s = min(float(limits[level - 1]), max(ordered_s - stop_s - 5.0, ordered_s / 2))
    began_s = time.monotonic()
    try:
        status, output = dcgmi.diagnose(level, chosen, deadline_s=deadline_s)
    except Timeout as error:
        left_s = max(1.0, min(stop_s, ordered_s - (time.monotonic() - began_s) - 2.0))
        stopped = dcgmi.stop_diagnostic(left_s)
        how = "it was stopped" if stopped else "it could not be stopped and may still be running"
        return Diagnosis(Answer.INCONCLUSIVE, f"{error.message}; {how}")
    return read_diagnostic(output, status, level, chosen if chosen is not None else everyone)


def main() -> None:
    arguments = begin()
    try:
        if arguments.get("stop"):
            dcgmi = Dcgmi(arguments["dcgmi"], host=arguments["host"], socket=arguments.get("socket", ""))
            say({"result": {"stopped": dcgmi.stop_diagnostic(float(arguments["stop_s"]))}})
            return
        say({"result": diagnose(arguments)})
    except SentinelError as error:
        say({"error": str(error)})
    except (ValueError, KeyError, TypeError) as error:
        say({"error": f"the order cannot be understood: {error!r}"})


if __name__ == "__main__":
    main()
