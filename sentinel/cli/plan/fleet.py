"""``sentinel plan fleet``: how often it fails, and what that means for a run."""

from __future__ import annotations

from typing import Any

import click

from sentinel.cli.offline.chart import Figure
from sentinel.cli.operator.output import counted
from sentinel.cli.plan.inputs import (
    Inputs,
    answering,
    checkpoint_input,
    confidence_input,
    gpus_per_node_input,
    mtbf_input,
    options,
    restart_input,
)
from sentinel.cli.plan.output import Answer, Section, emit
from sentinel.planning import fleet as failing
from sentinel.planning import history, quantities
from sentinel.planning.interval import plan_interval
from sentinel.planning.limits import PlanningError
from sentinel.planning.quantities import DAY_S, duration_or_zero, show_bytes, show_duration, show_rate, show_share


@click.command()
@options(
    *(
        "gpus",
        "gpu-mtbf",
        "mtbf",
        "days",
        "interruptions",
        "failures-per-1000-node-days",
        "gpus-per-node",
        "confidence",
    ),
    *("goodput", "save", "restart", "checkpoints-between-failures", "interval"),
    *("checkpoint", "parameters", "bytes-per-parameter"),
)
def fleet(**given: Any) -> None:
    """How often a fleet fails: MTBF, interruptions to expect in a run and by cause, saves between two failures.

    The MTBF comes from --gpu-mtbf, from --interruptions counted in --days, from a published rate, or from --history;
    from counts it has an exact confidence interval. --goodput asks how many saves between failures reach it, and
    checks the rule of 20; --checkpoints-between-failures or --interval says what a day of saves amounts to.

    \b
    Examples:
      sentinel plan fleet --gpus 16384 --gpu-mtbf 50000h --days 54
      sentinel plan fleet --gpus 16384 --interruptions 419 --days 54
      sentinel plan fleet --gpus 16384 --gpu-mtbf 50000h --goodput 95% --save 10s --restart 1min
      sentinel plan fleet --gpus 24000 --mtbf 124min --checkpoints-between-failures 20 --checkpoint 5TB
      sentinel plan fleet --history history.json --gpus 8192 --days 30
    """
    with answering():
        inputs = Inputs(given)
        emit(_answer(inputs), inputs)


def _answer(inputs: Inputs) -> Answer:
    mtbf_s, estimate = mtbf_input(inputs)
    gpus = int(inputs.rows["gpus"].value) if "gpus" in inputs.rows else None
    answer = Answer(headline=f"A failure every {show_duration(mtbf_s)}.", document={"mtbf_s": mtbf_s})
    rows = [("between failures", show_duration(mtbf_s), f"{DAY_S / mtbf_s:,.3g} failures a day")]
    answer.document["failures_per_day"] = DAY_S / mtbf_s
    if gpus is not None:
        rows += _per_gpu(answer, inputs, mtbf_s, gpus)
    if estimate is not None:
        rows += _estimated(answer, estimate)
    answer.sections.append(Section("Failures", ("", "", ""), rows, mark=0))
    _expected(answer, inputs, mtbf_s, estimate)
    _goodput(answer, inputs, mtbf_s)
    _saves(answer, inputs, mtbf_s)
    return answer


def _per_gpu(answer: Answer, inputs: Inputs, mtbf_s: float, gpus: int) -> list[tuple[str, str, str]]:
    per_node = gpus_per_node_input(inputs)
    rate = failing.failures_per_1000_node_days(mtbf_s, gpus, per_node)
    answer.headline = f"{gpus:,} GPUs fail every {show_duration(mtbf_s)}."
    answer.document |= {
        "gpus": gpus,
        "gpu_mtbf_s": mtbf_s * gpus,
        "failures_per_1000_node_days": rate,
    }
    answer.figure = _figure(mtbf_s, gpus)
    warning = failing.check_gpu_mtbf(mtbf_s * gpus)
    if warning and warning not in inputs.warnings:
        inputs.warnings.append(warning)
    return [
        ("of one GPU", f"{mtbf_s * gpus / 3600:,.0f} h", "its share of node, network and software included"),
        ("per 1,000 node-days", f"{rate:.3g}", "6.50 on RSC-1, 2.34 on RSC-2, 3.79 for Llama 3"),
    ]


def _estimated(answer: Answer, estimate: history.MtbfEstimate) -> list[tuple[str, str, str]]:
    answer.document |= {
        "mtbf_low_s": estimate.mtbf_low_s,
        "mtbf_high_s": estimate.mtbf_high_s,
        "confidence_fraction": estimate.confidence,
        "failures": estimate.failures,
    }
    high = "unknown" if estimate.mtbf_high_s is None else show_duration(estimate.mtbf_high_s)
    text = f"{show_duration(estimate.mtbf_low_s)} to {high}"
    return [
        (f"{100 * estimate.confidence:.4g} % confidence", text, f"exact, from {counted(estimate.failures, 'failure')}")
    ]


def _figure(mtbf_s: float, gpus: int) -> Figure:
    spots = [gpus * 8 ** (i / 32 - 1) for i in range(65)]
    return Figure(
        title="Time between failures by size",
        x_label="GPUs",
        y_label="MTBF",
        curves=(("independent failures", tuple((n, mtbf_s * gpus / n) for n in spots)),),
        marks=(("this fleet", gpus, mtbf_s),),
        x_log=True,
        y_log=True,
        show_x=lambda n: f"{n:,.0f}",
        show_y=show_duration,
    )


def _expected(answer: Answer, inputs: Inputs, mtbf_s: float, estimate: history.MtbfEstimate | None) -> None:
    run_s = inputs.rows["run_s"].value if "run_s" in inputs.rows else inputs.read("run_s", "days", quantities.days)
    if run_s is None:
        return
    past = inputs.history
    counted = history.by_cause(past) if past is not None and past.failures else failing.PUBLISHED_CAUSES
    found = failing.interruptions(mtbf_s, run_s, counted, confidence_input(inputs))
    answer.document |= {
        "run_s": run_s,
        "interruptions_expected": found.expected,
        "interruptions_low": found.low,
        "interruptions_high": found.high,
        "causes_source": "history" if past is not None and past.failures else failing.PUBLISHED_SOURCE,
        "by_cause": [{"cause": c, "share_fraction": s, "interruptions_expected": n} for c, s, n in found.by_cause],
    }
    answer.headline = (
        f"{answer.headline[:-1]}: {found.expected:,.4g} interruptions in {found.days:,.4g} days "
        f"({found.low} to {found.high} in {100 * found.confidence:.4g} % of such runs)."
    )
    rows = [(cause, show_share(share), f"{count:,.1f}") for cause, share, count in found.by_cause[:10]]
    rest = found.by_cause[10:]
    if rest:
        rows.append((f"{len(rest)} others", show_share(sum(s for _, s, _ in rest)), f"{sum(n for *_, n in rest):,.1f}"))
    origin = "this history" if past is not None and past.failures else failing.PUBLISHED_SOURCE
    answer.sections.append(Section(f"By cause, shares from {origin}", ("cause", "share", "expected"), rows))
    if past is None:
        answer.notes.append("the shares by cause are published ones, not this cluster's: --history replaces them")
    if estimate is not None:
        answer.notes.append("the range of interruptions takes the MTBF as known; its own interval comes on top")


def _goodput(answer: Answer, inputs: Inputs, mtbf_s: float) -> None:
    wish = inputs.read("goodput_fraction", "goodput", lambda text, what: quantities.share(text, what, one=False))
    if wish is None:
        return
    save_s = inputs.read(
        "save_s",
        "save",
        duration_or_zero,
        past=None if inputs.history is None else history.mean_save_s(inputs.history, "global"),
        past_note="mean of the global saves that stop the training",
        default=0.0,
        note="free saves: the least number there can be",
    )
    assert save_s is not None
    found = failing.checkpoints_for_goodput(wish, save_s, mtbf_s, restart_input(inputs))
    answer.document |= {
        "checkpoints_between_failures": found.least,
        "checkpoints_between_failures_most": found.most,
        "checkpoints_between_failures_best": found.best,
        "goodput_fraction": found.goodput_fraction,
        "best_goodput_fraction": found.best_goodput_fraction,
        "save_limit_s": found.save_limit_s,
        "goodput_at_20_fraction": found.at_20_goodput_fraction,
        "goodput_at_20_free_fraction": found.at_20_free_goodput_fraction,
    }
    most = "any more" if found.most is None else f"{found.most:,.1f}"
    reach = "not reachable" if found.least is None else f"{found.least:,.1f} to {most}"
    best = "as many as you like" if found.best is None else f"{found.best:,.1f}"
    limit = "none: the restarts alone forbid it" if found.save_limit_s is None else show_duration(found.save_limit_s)
    rows = [
        (f"for {show_share(wish)}", reach, "saves between two failures"),
        ("best", best, f"gives {show_share(found.best_goodput_fraction)}"),
        ("longest save", limit, f"with which {show_share(wish)} can be met"),
    ]
    answer.sections.append(Section("Goodput", ("", "", ""), rows))
    answer.notes.append(found.folklore)
    if found.least is None:
        fix = "restart faster" if found.save_limit_s is None else f"save in {show_duration(found.save_limit_s)} or less"
        answer.warnings.append(
            f"no number of saves reaches {show_share(wish)}: the best is {show_share(found.best_goodput_fraction)}; {fix}"
        )


def _saves(answer: Answer, inputs: Inputs, mtbf_s: float) -> None:
    """How often, how much a day: by the stated interval, by saves per failure, or by the best interval for the save."""
    size = checkpoint_input(inputs)
    often = inputs.read("interval_s", "interval", quantities.duration)
    times = inputs.read("checkpoints_between_failures", "checkpoints_between_failures", quantities.plain)
    if often is not None and times is not None:
        raise PlanningError(
            "--interval and --checkpoints-between-failures both say how often to save", fix="Give one of them."
        )
    if often is None and times is not None:
        often = failing.interval_for_checkpoints(times, mtbf_s)
    elif often is None:
        past = None if inputs.history is None else history.mean_save_s(inputs.history, "global")
        save_s = inputs.read(
            "save_s", "save", duration_or_zero, past=past, past_note="mean of the global saves that stop the training"
        )
        if save_s:
            often = plan_interval(save_s, mtbf_s).interval_s + save_s
            answer.notes.append(f"saves counted at the best interval for {show_duration(save_s)} a save (Daly 2006)")
    if often is None:
        if size is not None and inputs.history is None:
            answer.warnings.append(
                "how often to save is not said: give --interval, --save or --checkpoints-between-failures"
            )
        return
    if "save_s" in inputs.rows and often < inputs.rows["save_s"].value:
        raise PlanningError(
            f"an interval of {often:g} s is shorter than the save of {inputs.rows['save_s'].value:g} s",
            fix="Save less often, or make the save shorter.",
        )
    answer.document |= {"interval_s": often, "saves_per_day": DAY_S / often, "saves_per_failure": mtbf_s / often}
    rows = [
        ("every", show_duration(often), f"{mtbf_s / often:,.1f} between two failures"),
        ("a day", f"{DAY_S / often:,.1f}", "saves"),
    ]
    if size is not None:
        answer.document |= {
            "checkpoint_bytes": size,
            "bytes_per_day": size * DAY_S / often,
            "average_bandwidth_bytes_per_s": size / often,
        }
        rows += [
            ("written a day", show_bytes(size * DAY_S / often), f"{show_bytes(size)} each"),
            ("on average", show_rate(size / often), "written without a pause"),
        ]
    answer.sections.append(Section("Saves", ("", "", ""), rows))
