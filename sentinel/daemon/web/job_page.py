"""Makes the page of a job: its attempts, loss and step-time curves, and restarts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sentinel.daemon.api.histories import job_given
from sentinel.daemon.web.charts import Mark, curve
from sentinel.errors import UserError

if TYPE_CHECKING:
    from sentinel.daemon.web.pages import Asked

_NUMBERS = 20  # rows of the table with a curve's values


async def make(asked: Asked) -> tuple[str, dict[str, Any]]:
    given = job_given(asked.name)
    seen = await asked.view("jobs", job=given)
    attempts = newest_of_each(seen["attempts"])
    if not attempts:
        return _without_attempts(given, seen)
    own = of_newest(attempts)
    job = own[-1]["job"]
    curves = (await asked.view("curves", job=job))["curves"]
    drawn = [row for row in curves if row["points"]]
    restarts = [
        Mark(float(row["first_step"]), f"attempt {row['attempt']}") for row in own[1:] if row["first_step"] is not None
    ]
    charts = []
    for column, title, label in ((2, "Loss", "loss"), (3, "Step time", "s/step")):
        series = [
            (f"attempt {row['attempt']}", [(float(point[0]), point[column]) for point in row["points"]])
            for row in drawn
        ]
        made = curve(f"{title} of job {job} over its steps", series, x_label="step", y_label=label, marks=restarts)
        if made is not None:
            charts.append((title, made))
    return "job.html", {
        "job": summary(own),
        "of_others": len(attempts) - len(own),
        "attempts": attempts,
        "incidents": seen["incidents"],
        "charts": charts,
        "series": [row["attempt"] for row in drawn],
        "numbers": _numbers(drawn),
    }


def _without_attempts(given: int | str, seen: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """A job of which no attempt was seen, or is kept: its incidents, and how Slurm shows it.

    Raises:
        UserError: there is neither.
    """
    if not seen["incidents"] and seen["slurm"] is None:
        raise UserError(f"nothing is known of job {given}", fix="squeue and sacct may know it")
    job = seen["slurm"]["job"] if seen["slurm"] is not None else given
    return "job_without_attempts.html", {
        "job": job, "slurm": seen["slurm"], "refused": seen["refused"], "incidents": seen["incidents"],
    }  # fmt: skip


def newest_of_each(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each attempt, the newest where there are two.

    While a requeued job's nodes are being freed, Slurm may report the next attempt with the start and nodes of the
    previous one; the store then has it twice.
    """
    return list({(row["nth_of_id"], row["attempt"]): row for row in rows}.values())


def of_newest(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of attempts of one id those of the newest job with it."""
    return [row for row in rows if row["nth_of_id"] == rows[-1]["nth_of_id"]]


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Summary of a job from its attempts, the oldest first; repeated steps count once."""
    attempts = newest_of_each(rows)
    newest = attempts[-1]
    firsts = [row["first_step"] for row in attempts if row["first_step"] is not None]
    lasts = [row["last_step"] for row in attempts if row["last_step"] is not None]
    failed = [row for row in attempts if row.get("incident")]
    known = [row["known_lost_gpu_h"] for row in failed if row["known_lost_gpu_h"] is not None]
    return {
        **newest,
        "attempts": len(attempts),
        "preemption": next((words for row in reversed(attempts) if (words := row.get("preemption"))), ""),
        "gained": max(lasts) - min(firsts) + 1 if firsts and lasts else None,
        "lost_gpu_h": sum(known) if known or not failed else None,
        "lost_not_known": sum(row["lost_gpu_h"] is None for row in failed),
    }


def _numbers(drawn: list[dict[str, Any]]) -> list[tuple[int, list[Any]]]:
    """Points of the curves as rows: (attempt, [step, time, loss, seconds per step])."""
    rows = [(row["attempt"], point) for row in drawn for point in row["points"]]
    return rows[:: max(1, len(rows) // _NUMBERS)]
