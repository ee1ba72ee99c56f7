"""``sentinel plan interval``: how often to save."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from sentinel.cli.offline.chart import Figure
from sentinel.cli.operator.output import counted
from sentinel.cli.plan.inputs import Inputs, answering, mtbf_input, options, restart_input
from sentinel.cli.plan.output import Answer, Section, emit
from sentinel.errors import UserError
from sentinel.planning import history, quantities
from sentinel.planning.interval import IntervalPlan, curve, plan_interval, saxena_period_s
from sentinel.planning.limits import OutOfRange
from sentinel.planning.quantities import duration_or_zero, show_duration, show_share
from sentinel.planning.tiers import Tiers, TwoLevelPlan, plan_two_level


@click.command()
@options(
    *("mtbf", "gpus", "gpu-mtbf", "save", "restart", "interval", "local-save", "local-restart", "local-share"),
    *("failures-per-1000-node-days", "gpus-per-node", "interruptions", "days", "confidence"),
)
def interval(**given: Any) -> None:
    """How often to save. The answer is Daly's higher order (2006), as useful work between two saves.

    With --local-save: how often to save to a quick local tier and how often to the global one, by the share of the
    failures that the local tier repairs. With --interval: what that interval costs against the best.

    \b
    Examples:
      sentinel plan interval --mtbf 3.09h --save 90s
      sentinel plan interval --gpus 16384 --gpu-mtbf 50000h --save 90s --restart 10min --interval 1h
      sentinel plan interval --mtbf 3.093h --save 2min --restart 15min \\
          --local-save 10s --local-restart 3min --local-share 90%
      sentinel plan interval --history history.json --plot curve.png
    """
    with answering():
        inputs = Inputs(given)
        emit(_answer(inputs), inputs)


def _answer(inputs: Inputs) -> Answer:
    mtbf_s, estimate = mtbf_input(inputs)
    past = None if inputs.history is None else history.mean_save_s(inputs.history, "global")
    save_s = inputs.need(
        "save_s",
        "save",
        quantities.duration,
        "Say how long a save stops the training, such as --save 90s.",
        past=past,
        past_note="mean of the global saves that stop the training",
    )
    restart_s = restart_input(inputs)
    asked_s = inputs.read("asked_interval_s", "interval", quantities.duration)
    asked = None if asked_s is None else plan_interval(save_s, mtbf_s, restart_s, asked_s)
    best = plan_interval(save_s, mtbf_s, restart_s)
    two = _two_level(inputs, mtbf_s, save_s, restart_s)
    alone = "" if two is None else "the global tier alone: "
    answer = Answer(
        headline=_headline(best, two),
        document=_document(best, mtbf_s, save_s, restart_s),
        sections=[_methods(best, alone), _wrong(best, asked, alone)],
        notes=_notes(best, alone),
        warnings=[*best.warnings, *(asked.warnings if asked else ()), *(two.warnings if two else ())],
        figure=_figure(best, asked, save_s, mtbf_s, restart_s),
    )
    if estimate is not None:
        _bounds(answer, estimate, save_s)
    if asked is not None:
        _add_asked(answer, best, asked)
    if two is not None:
        _add_two(answer, two)
    return answer


def _headline(best: IntervalPlan, two: TwoLevelPlan | None) -> str:
    if two is None:
        return (
            f"Save after every {show_duration(best.interval_s)} of work ({best.interval_s:,.0f} s): "
            f"{show_share(best.overhead_fraction)} overhead, {show_share(1 / best.wall_per_work)} of the time is useful."
        )
    return (
        f"Save locally after every {show_duration(two.local_interval_s)} of work ({two.local_interval_s:,.0f} s), every "
        f"{_ordinal(two.saves_per_global)} time globally ({show_duration(two.global_interval_s)}): "
        f"{show_share(two.overhead_fraction)} overhead; the global tier alone costs "
        f"{show_share(two.single_level_overhead_fraction)}."
    )


def _ordinal(number: int) -> str:
    ending = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def _document(best: IntervalPlan, mtbf_s: float, save_s: float, restart_s: float) -> dict[str, Any]:
    methods = {m.name: m.interval_s for m in best.methods}
    return {
        "interval_s": best.interval_s,
        "overhead_fraction": best.overhead_fraction,
        "mtbf_s": mtbf_s,
        "save_s": save_s,
        "restart_s": restart_s,
        "period_s": best.interval_s + save_s,
        "wall_per_work": best.wall_per_work,
        "useful_fraction": 1 / best.wall_per_work,
        "save_overhead_fraction": best.save_overhead_fraction,
        "restart_overhead_fraction": best.restart_overhead_fraction,
        "lost_overhead_fraction": best.lost_overhead_fraction,
        "lost_per_failure_s": best.lost_per_failure_s,
        "saves_per_failure": best.saves_per_failure,
        "young_interval_s": methods["Young 1974"],
        "daly_first_order_interval_s": methods["Daly 2006, first order"],
        "daly_interval_s": methods["Daly 2006, higher order"],
        "optimum_interval_s": methods["exact optimum"],
        "saxena_period_s": saxena_period_s(save_s, mtbf_s, restart_s),
        "first_order_waste_fraction": best.first_order_waste_fraction,
        "half_interval_overhead_fraction": best.half_overhead_fraction,
        "double_interval_overhead_fraction": best.double_overhead_fraction,
        "half_interval_extra_fraction": best.half_overhead_fraction - best.overhead_fraction,
        "double_interval_extra_fraction": best.double_overhead_fraction - best.overhead_fraction,
        "methods": [asdict(method) for method in best.methods],
        "curve": [
            {"interval_s": t, "overhead_fraction": o} for t, o in curve(save_s, mtbf_s, restart_s, best.interval_s)
        ],
    }


def _methods(best: IntervalPlan, alone: str) -> Section:
    rows = [
        (m.name, show_duration(m.interval_s), f"{m.interval_s:,.0f} s", f"{100 * m.overhead_fraction:.2f} %", m.note)
        for m in best.methods
    ]
    return Section(f"{alone}by method".capitalize(), ("method", "interval", "", "overhead", "note"), rows, mark=2)


def _wrong(best: IntervalPlan, asked: IntervalPlan | None, alone: str) -> Section:
    def row(name: str, interval_s: float, overhead: float) -> tuple[str, ...]:
        return (
            name,
            show_duration(interval_s),
            show_share(overhead),
            f"+{100 * (overhead - best.overhead_fraction):.1f}",
        )

    rows = [
        row("half of it", best.interval_s / 2, best.half_overhead_fraction),
        row("the best", best.interval_s, best.overhead_fraction),
        row("twice it", best.interval_s * 2, best.double_overhead_fraction),
    ]
    if asked is not None:
        rows.append(row("yours", asked.interval_s, asked.overhead_fraction))
    return Section(f"{alone}being wrong".capitalize(), ("", "interval", "overhead", "points more"), rows, mark=1)


def _notes(best: IntervalPlan, alone: str) -> list[str]:
    return [
        f"{alone}of the overhead, {show_share(best.save_overhead_fraction)} is saving, "
        f"{show_share(best.lost_overhead_fraction)} lost work and cut-off saves "
        f"({show_duration(best.lost_per_failure_s)} a failure), {show_share(best.restart_overhead_fraction)} restarts; "
        "overhead is clock time per useful time, less one"
    ]


def _figure(best: IntervalPlan, asked: IntervalPlan | None, save_s: float, mtbf_s: float, restart_s: float) -> Figure:
    marks = [("best", best.interval_s, best.overhead_fraction)]
    span = 8.0
    if asked is not None:
        marks.append(("yours", asked.interval_s, asked.overhead_fraction))
        ratio = asked.interval_s / best.interval_s
        span = max(span, 1.1 * ratio, 1.1 / ratio)
    points = curve(save_s, mtbf_s, restart_s, best.interval_s, span=span, points=97)
    # A far end that dwarfs the valley is left out of the picture; the JSON curve keeps it.
    ceiling = max(6 * best.overhead_fraction, *(1.2 * y for _, _, y in marks))
    return Figure(
        title="Overhead by interval",
        x_label="work between saves",
        y_label="overhead",
        curves=(("expected overhead", tuple(p for p in points if p[1] <= ceiling)),),
        marks=tuple(marks),
        x_log=True,
        show_x=show_duration,
        show_y=lambda y: f"{100 * y:.0f} %",
    )


def _bounds(answer: Answer, estimate: history.MtbfEstimate, save_s: float) -> None:
    """The interval at both ends of the confidence interval of the MTBF."""
    ends = []
    for name, bound in (("low", estimate.mtbf_low_s), ("high", estimate.mtbf_high_s)):
        answer.document[f"mtbf_{name}_s"] = bound
        try:
            ends.append(None if bound is None else plan_interval(save_s, bound).interval_s)
        except OutOfRange as error:
            answer.warnings.append(f"at the lower end of the MTBF: {error.message}")
            ends.append(None)
        answer.document[f"interval_{name}_s"] = ends[-1]
    shown = " to ".join("unknown" if end is None else show_duration(end) for end in ends)
    answer.notes.append(
        f"the count of {counted(estimate.failures, 'failure')} leaves the interval between {shown} "
        f"({100 * estimate.confidence:.4g} % confidence)"
    )


def _add_asked(answer: Answer, best: IntervalPlan, asked: IntervalPlan) -> None:
    lost = 1 / best.wall_per_work - 1 / asked.wall_per_work
    answer.document |= {
        "asked_interval_s": asked.interval_s,
        "asked_overhead_fraction": asked.overhead_fraction,
        "asked_extra_fraction": asked.overhead_fraction - best.overhead_fraction,
        "asked_lost_useful_fraction": lost,
    }
    answer.notes.append(
        f"saving every {show_duration(asked.interval_s)} instead of {show_duration(best.interval_s)} gives away "
        f"{show_share(lost)} of the time"
    )


def _two_level(inputs: Inputs, mtbf_s: float, save_s: float, restart_s: float) -> TwoLevelPlan | None:
    past = inputs.history
    local_past = None if past is None else history.mean_save_s(past, "local")
    local_save = inputs.read(
        "local_save_s", "local_save", quantities.duration, past=local_past, past_note="mean of the local saves"
    )
    if local_save is None:
        for option in ("local_restart", "local_share"):
            if inputs.has(option):
                raise UserError(
                    f"--{option.replace('_', '-')} needs --local-save",
                    fix="Say how long a local save stops the training.",
                )
        return None
    known = history.Share(None, 0, 0) if past is None else history.local_share(past)
    share = inputs.need(
        "local_share_fraction",
        "local_share",
        lambda text, what: quantities.share(text, what, zero=True),
        "Say what share of the failures the local tier repairs, from your history: such as --local-share 90%.",
        past=known.fraction,
        past_note=f"{counted(known.known, 'failure')} with a known tier, {known.unknown} without",
    )
    local_restart = inputs.read(
        "local_restart_s",
        "local_restart",
        duration_or_zero,
        default=restart_s,
        note="as --restart",
    )
    assert local_restart is not None
    return plan_two_level(Tiers(local_save, local_restart, save_s, restart_s, mtbf_s, share))


def _add_two(answer: Answer, two: TwoLevelPlan) -> None:
    answer.document |= {
        "local_interval_s": two.local_interval_s,
        "global_interval_s": two.global_interval_s,
        "saves_per_global": two.saves_per_global,
        "two_level_overhead_fraction": two.overhead_fraction,
        "two_level": {key: value for key, value in asdict(two).items() if key != "warnings"},
    }
    rows = [
        (
            "two tiers, exact",
            show_duration(two.local_interval_s),
            show_duration(two.global_interval_s),
            str(two.saves_per_global),
            show_share(two.overhead_fraction),
        ),
        (
            "first order (Benoit 2017)",
            show_duration(two.first_order_local_interval_s),
            show_duration(two.first_order_global_interval_s),
            str(two.first_order_saves_per_global),
            show_share(two.first_order_overhead_fraction),
        ),
        (
            "global tier alone",
            "none",
            show_duration(two.single_level_interval_s),
            "1",
            show_share(two.single_level_overhead_fraction),
        ),
    ]
    columns = ("two tiers", "local", "global", "saves per global", "overhead")
    answer.sections.insert(0, Section("Two tiers", columns, rows, mark=0))
    answer.notes.append("first order leaves out failures during saves and restarts: it is always a little too hopeful")
