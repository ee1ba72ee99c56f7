"""Makes the page of planning figures: the cluster's failure rates, and each running job's recommended save interval."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sentinel.daemon.web.charts import Mark, bars, curve
from sentinel.planning import interval
from sentinel.planning.history import FleetHistory, by_cause, history_from, job_mtbf, mean
from sentinel.planning.limits import PlanningError

if TYPE_CHECKING:
    from sentinel.daemon.web.pages import Asked

_DAYS = 30.0
_SIZES = (8, 64, 512, 1024, 4096, 16384)  # job sizes in GPUs for which the MTBF is shown, up to the cluster's size


async def make(asked: Asked) -> tuple[str, dict[str, Any]]:
    document = await asked.view("past", days=_DAYS)
    past, problem = None, ""
    if document["gpu_s"] > 0:
        try:
            past = history_from(document)
        except PlanningError as error:
            problem = error.message
    else:
        problem = "no job ran under Sentinel's eyes yet"
    running = [row for row in (await asked.view("jobs"))["attempts"] if "interval_verdict" in row]
    running = sorted({row["job"]: row for row in running}.values(), key=lambda row: -(row["gpus"] or 0))
    status = await asked.view("status")
    listing = await asked.view("nodes", last_known=True)
    total = sum(row["gpus"] or 0 for row in listing["nodes"])
    return "plan.html", {
        "old": asked.old(listing),
        "problem": problem,
        "past": past,
        "days": (past.end - past.start).total_seconds() / 86400.0 if past is not None else _DAYS,
        "failures": len(past.failures) if past is not None else None,
        "sizes": _mtbf(past, total),
        "causes": _causes(past),
        "restart_s": mean([failure.restart_s for failure in past.failures]) if past is not None else None,
        "running": running,
        "overhead": _overhead(past, running),
        "budget": status["budget"],
    }


def _mtbf(past: FleetHistory | None, gpus: int) -> list[dict[str, Any]]:
    if past is None:
        return []
    sizes = sorted({size for size in (*_SIZES, gpus) if 0 < size <= max(gpus, 1)})
    return [{"gpus": size, "estimate": job_mtbf(past, size), "whole": size == gpus} for size in sizes]


def _causes(past: FleetHistory | None) -> Any:
    rows = [(cause, float(count), f"{count}") for cause, count in by_cause(past)] if past is not None else []
    return bars("Failures by cause", rows[:12])


def _overhead(past: FleetHistory | None, running: list[dict[str, Any]]) -> Any:
    """The cost of other save intervals for the largest running job with known save times; None if there is none."""
    row = next((row for row in running if row.get("save_s") and row["gpus"]), None)
    if past is None or row is None:
        return None
    estimate = job_mtbf(past, row["gpus"])
    if estimate.mtbf_s is None:
        return None
    restart_s = mean([failure.restart_s for failure in past.failures]) or 0.0
    try:
        best = interval.plan_interval(row["save_s"], estimate.mtbf_s, restart_s)
        points = interval.curve(row["save_s"], estimate.mtbf_s, restart_s, best.interval_s)
    except PlanningError:
        return None
    marks = [Mark(best.interval_s, "best")]
    if row.get("save_interval_s"):
        marks.append(Mark(row["save_interval_s"], "now"))
    drawn = curve(
        f"Cost of save intervals for job {row['job']}",
        [("overhead", [(t, 100 * overhead) for t, overhead in points])],
        x_label="seconds of work between saves", y_label="overhead, %", marks=marks,
    )  # fmt: skip
    return {"job": row["job"], "chart": drawn, "best_s": best.interval_s, "overhead": best.overhead_fraction}
