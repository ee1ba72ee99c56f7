"""Runs a diagnostic through ``dcgmi`` and interprets the result: pass, fail or inconclusive.

GPUs are given by UUID, since DCGM's numbering differs from Slurm's and CUDA's. A diagnostic that exceeds its deadline
would go on in the host engine: it is told to stop and waited for, and the answer says so.
"""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sentinel.adapters.gpu.dcgmi import Dcgmi
from sentinel.adapters.gpu.engine_owner import ACCOUNT
from sentinel.agent.probes import begin, say
from sentinel.config.convictions import Convictions, Drain
from sentinel.config.rules_files import load_convictions
from sentinel.errors import SentinelError, Timeout
from sentinel.evidence.diagnostics import Answer, Diagnosis, evidence_of, read_diagnostic
from sentinel.evidence.gpu_samples import LOST, OK
from sentinel.model.records import Evidence, Kind, Scalar, Source, Where, stable_id
from sentinel.model.vocabulary import OPEN_ENGINE
from sentinel.wire import to_json

LOOK_AGAIN_S = 1.0  # between two checks whether a stopped diagnostic has ended


def diagnose(arguments: dict[str, Any]) -> dict[str, Any]:
    """Run the diagnostic of an order; returns DiagnosisJSON with ``level``, ``gpus`` and the evidence that follows."""
    level = int(arguments["level"])
    if level not in (1, 2, 3, 4):
        raise ValueError(f"no level {level}: 1 to 4")
    dcgmi = _dcgmi(arguments)
    began = datetime.now(UTC)
    uuids: dict[int, str] = {}
    missing: list[Evidence] = []
    known = 0
    try:
        convictions = load_convictions(Path(arguments["rules"]) if arguments.get("rules") else None)
        dcgmi.check()
        found = dcgmi.gpus()
        known = len(found)
        uuids = {gpu["id"]: gpu["uuid"] for gpu in found if gpu.get("uuid") and gpu["status"] == OK}
        closed = dcgmi.closed or bool(arguments.get("closed_to_users"))
        missing = _missing(arguments, found, convictions, began, closed=closed)
        chosen = _chosen(arguments.get("gpus"), uuids)
        diagnosis = _run(dcgmi, level, chosen, arguments, sorted(uuids), convictions)
    except SentinelError as error:
        diagnosis = Diagnosis(Answer.INCONCLUSIVE, str(error))
    wanted = max(int(arguments.get("promised", -1)), known)
    if diagnosis.answer is Answer.PASS and arguments.get("gpus") is None and len(uuids) < wanted:
        # DCGM's level 1 skips a lost GPU and passes.
        reason = f"{len(uuids)} GPUs were tested, {wanted} are {'promised' if wanted > known else 'known to DCGM'}"
        diagnosis = replace(diagnosis, answer=Answer.INCONCLUSIVE, reason=reason)
    evidence = evidence_of(diagnosis, arguments["node"], level, began, uuids)
    if arguments.get("gpus") is not None:  # of the others it says nothing
        evidence = [replace(item, data={**item.data, "gpus": len(arguments["gpus"])}) for item in evidence]
    if arguments.get("yields"):  # ordered, on an idle node
        evidence = [replace(item, data={**item.data, "idle": True}) for item in evidence]
    if arguments.get("tells_missing"):  # with an agent, its telemetry reports missing GPUs
        evidence = [*missing, *evidence]
    answer = diagnosis.to_json()
    for finding in answer["findings"]:  # type: ignore[attr-defined]
        finding["gpu_uuid"] = uuids.get(finding["gpu"]) if finding["gpu"] is not None else None
    return {**answer, "level": level, "gpus": arguments.get("gpus"), "evidence": [to_json(item) for item in evidence]}


def _dcgmi(arguments: dict[str, Any]) -> Dcgmi:
    account = arguments.get("account", ACCOUNT)
    return Dcgmi(arguments["dcgmi"], host=arguments["host"], socket=arguments.get("socket", ""), account=account)


def _missing(
    arguments: dict[str, Any], found: list[dict[str, Any]], convictions: Convictions, at: datetime, *, closed: bool
) -> list[Evidence]:
    """Evidence of GPUs that DCGM reports as lost, and of expected GPUs that it does not list.

    It convicts where the engine is closed to users: a test's result is the driver's, a list of GPUs is the engine's own.
    """
    node, promised = arguments["node"], int(arguments.get("promised", -1))

    def made(text: str, uuid: str | None, **data: Scalar) -> Evidence:
        item = Evidence(
            stable_id("diagnostic", node, at.isoformat(), Kind.GPU_LOST, uuid or text), at, at, Source.DIAGNOSTIC,
            Kind.GPU_LOST, Where(node=node, gpu_uuid=uuid), text, data=data if closed else {**data, OPEN_ENGINE: True},
        )  # fmt: skip
        return replace(item, data={**item.data, "convicts": convictions.of(item) is Drain.YES})

    lost = [gpu for gpu in found if gpu["status"] == LOST]
    items = [
        made(
            f"the driver lost DCGM's GPU {gpu['id']} ({gpu.get('uuid') or 'UUID not known'})",
            gpu.get("uuid"),
            status=LOST,
        )
        for gpu in lost
    ]
    if 0 < len(found) < promised:  # an engine that lists none was started without the driver, and tells nothing
        items.append(made(f"{len(found)} GPUs found, {promised} promised", None, promised=promised, found=len(found)))
    return items


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
    dcgmi: Dcgmi,
    level: int,
    chosen: list[int] | None,
    arguments: dict[str, Any],
    everyone: list[int],
    convictions: Convictions,
) -> Diagnosis:
    stop_s = float(arguments.get("stop_s", 45.0))
    limits = arguments.get("deadlines_s") or [60.0, 600.0, 2400.0, 7200.0]
    # Part of the order's deadline, at most half, is kept for stopping a diagnostic that is late.
    ordered_s = float(arguments["deadline_s"])
    deadline_s = min(float(limits[level - 1]), max(ordered_s - stop_s - 5.0, ordered_s / 2))
    began_s = time.monotonic()
    try:
        status, output = dcgmi.diagnose(level, chosen, deadline_s=deadline_s)
    except Timeout as error:
        left_s = max(1.0, min(stop_s, ordered_s - (time.monotonic() - began_s) - 2.0))
        how = "it was stopped" if _stopped(dcgmi, left_s) else "it was told to stop and had not done so"
        return Diagnosis(Answer.INCONCLUSIVE, f"{error.message}; {how} after {time.monotonic() - began_s:.0f} s")
    return read_diagnostic(output, status, level, chosen if chosen is not None else everyone, convictions=convictions)


def _stopped(dcgmi: Dcgmi, within_s: float) -> bool:
    """Stop the diagnostic; whether it ended in time. The host engine kills one that hangs after some seconds."""
    end_s = time.monotonic() + within_s
    while (left_s := end_s - time.monotonic()) > 0:
        if dcgmi.stop_diagnostic(left_s):
            return True
        time.sleep(min(LOOK_AGAIN_S, max(0.0, end_s - time.monotonic())))
    return False


def main() -> None:
    arguments = begin()
    try:
        if arguments.get("stop"):
            say({"result": {"stopped": _stopped(_dcgmi(arguments), float(arguments["stop_s"]))}})
            return
        say({"result": diagnose(arguments)})
    except SentinelError as error:
        say({"error": str(error)})
    except (ValueError, KeyError, TypeError) as error:
        say({"error": f"the order cannot be understood: {error!r}"})


if __name__ == "__main__":
    main()
