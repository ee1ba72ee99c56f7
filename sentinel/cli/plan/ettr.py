"""``sentinel plan ettr``: how much of the time is training, and which lever buys most."""

from __future__ import annotations

from typing import Any

import click

from sentinel.cli.offline.chart import Figure
from sentinel.cli.plan.inputs import Inputs, answering, mtbf_input, options
from sentinel.cli.plan.output import Answer, Section, emit
from sentinel.planning import history, quantities
from sentinel.planning.ettr import EttrPlan, Run, plan_ettr
from sentinel.planning.interval import curve, young_s
from sentinel.planning.quantities import duration_or_zero, show_duration, show_share


@click.command()
@options(
    *("mtbf", "gpus", "gpu-mtbf", "failures-per-1000-node-days", "gpus-per-node", "interruptions", "days"),
    *("save", "interval", "restart", "detection", "wait", "load", "confidence"),
)
def ettr(**given: Any) -> None:
    """Expected share of the clock that is training (effective training time ratio), and which lever buys most.

    After each failure pass --detection, --wait (for nodes), --restart and --load before the first new step. Without
    --interval the best one is taken, for each lever anew. Levers: detection, restart, interval, spares (no wait),
    storage (saves and loads twice as fast); each alone, best first.

    \b
    Examples:
      sentinel plan ettr --gpus 12000 --failures-per-1000-node-days 6.5 --save 5min --restart 5min
      sentinel plan ettr --mtbf 3.09h --save 90s --interval 1h --detection 10min --wait 5min --restart 3min --load 2min
      sentinel plan ettr --history history.json --gpus 8192 --save 30s
    """
    with answering():
        inputs = Inputs(given)
        emit(_answer(inputs), inputs)


def _answer(inputs: Inputs) -> Answer:
    mtbf_s, estimate = mtbf_input(inputs)
    past = inputs.history
    save_s = inputs.need(
        "save_s",
        "save",
        duration_or_zero,
        "Say how long a save stops the training, such as --save 90s.",
        past=None if past is None else history.mean_save_s(past, "global"),
    )
    interval_s = inputs.read("asked_interval_s", "interval", quantities.duration)
    parts = {}
    for name in ("detection", "wait", "restart", "load"):
        known = None
        if past is not None and name in ("detection", "restart"):
            known = history.mean([getattr(failure, f"{name}_s") for failure in past.failures])
        parts[f"{name}_s"] = (
            inputs.read(f"{name}_s", name, duration_or_zero, past=known, default=0.0, note="not counted") or 0.0
        )
    if sum(parts.values()) == 0:
        inputs.warnings.append("nothing is counted between a failure and the first new step: give --restart at least")
    run = Run(mtbf_s=mtbf_s, save_s=save_s, interval_s=interval_s, **parts)
    plan = plan_ettr(run)
    rows = [
        (
            "exact expectation",
            f"{100 * plan.ettr_fraction:.2f} %",
            "Poisson failures, saves and restarts struck as well",
        ),
        (
            "first order",
            "does not hold" if plan.first_order_fraction is None else f"{100 * plan.first_order_fraction:.2f} %",
            "Kokolis et al., arXiv:2410.21680",
        ),
        (
            "saving after every",
            show_duration(plan.interval_s),
            "of work" if interval_s else "of work, the best (Daly 2006)",
        ),
        ("failure to first step", show_duration(plan.downtime_s), f"every {show_duration(mtbf_s)}"),
    ]
    best = plan.levers[0]
    twice = f"{100 * plan.half_failures_ettr_fraction:.2f} %"
    answer = Answer(
        headline=f"{100 * plan.ettr_fraction:.1f} % of the time is training. {_lever_sentence(plan)}",
        document=_document(plan, run),
        sections=[Section("Effective training time", ("", "", ""), rows, mark=0), _levers(plan)],
        notes=[f"for comparison, half the failures would give {twice}"],
        warnings=list(plan.warnings),
        figure=_figure(plan, run),
        bars=[
            (lever.name, max(0.0, lever.gain_fraction), f"+{100 * lever.gain_fraction:.2f}") for lever in plan.levers
        ],
    )
    answer.document["best_lever"] = best.name if best.gain_fraction > 0 else None
    if estimate is not None:
        answer.document |= {"mtbf_low_s": estimate.mtbf_low_s, "mtbf_high_s": estimate.mtbf_high_s}
    return answer


def _lever_sentence(plan: EttrPlan) -> str:
    best = plan.levers[0]
    if best.gain_fraction <= 0:
        return "No lever buys more."
    return f"Most is bought by {best.name} ({best.change}): +{100 * best.gain_fraction:.1f} points."


def _document(plan: EttrPlan, run: Run) -> dict[str, Any]:
    return {
        "ettr_fraction": plan.ettr_fraction,
        "ettr_first_order_fraction": plan.first_order_fraction,
        "interval_s": plan.interval_s,
        "first_order_interval_s": young_s(run.save_s, run.mtbf_s) if run.save_s > 0 else None,
        "mtbf_s": run.mtbf_s,
        "save_s": run.save_s,
        "downtime_s": plan.downtime_s,
        "overhead_fraction": 1 / plan.ettr_fraction - 1,
        "half_failures_ettr_fraction": plan.half_failures_ettr_fraction,
        "levers": [
            {
                "lever": lever.name,
                "change": lever.change,
                "ettr_fraction": lever.ettr_fraction,
                "gain_fraction": lever.gain_fraction,
            }
            for lever in plan.levers
        ],
    }


def _levers(plan: EttrPlan) -> Section:
    rows = [
        (lever.name, lever.change, f"{100 * lever.ettr_fraction:.2f} %", f"+{100 * lever.gain_fraction:.2f}")
        for lever in plan.levers
    ]
    return Section("Levers, each alone", ("lever", "change", "training", "points"), rows)


def _figure(plan: EttrPlan, run: Run) -> Figure | None:
    """Training time by interval (for the file; the terminal shows the levers as bars)."""
    points = curve(run.save_s, run.mtbf_s, run.downtime_s, plan.interval_s, points=97)
    if not points:
        return None
    return Figure(
        title="Effective training time by interval",
        x_label="work between saves",
        y_label="share of the time that is training",
        curves=(("expected", tuple((t, 1 / (1 + overhead)) for t, overhead in points)),),
        marks=(("this run", plan.interval_s, plan.ettr_fraction),),
        x_log=True,
        show_x=show_duration,
        show_y=show_share,
    )
