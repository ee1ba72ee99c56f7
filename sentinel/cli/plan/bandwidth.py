"""``sentinel plan bandwidth``: how fast the storage."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from sentinel.cli.offline.chart import Figure
from sentinel.cli.plan.inputs import Inputs, answering, checkpoint_input, options
from sentinel.cli.plan.output import Answer, Section, emit
from sentinel.errors import UserError
from sentinel.planning import bandwidth as sizing
from sentinel.planning import history, quantities
from sentinel.planning.quantities import show_bytes, show_duration, show_rate, show_share


@click.command()
@options(
    *("parameters", "bytes-per-parameter", "checkpoint", "interval", "overlap", "read-factor", "bandwidth", "save"),
    *("nodes", "local-copies", "local-interval", "drive-capacity", "drive-endurance", "drive-dwpd"),
)
@click.option("--blocking", is_flag=True, help="Saves stop the training: the limit is 5 %, not the 10 % for drains.")
def bandwidth(**given: Any) -> None:
    """How fast the storage: bandwidth = size / (interval x overlap), the way back, a day's writes, wear of local drives.

    With --bandwidth: is that enough? With --save: is the overlap of a measured run within 10 % (a drain behind the
    training) or 5 % (--blocking)?

    \b
    Examples:
      sentinel plan bandwidth --parameters 405B --interval 15min --overlap 10%
      sentinel plan bandwidth --parameters 175B --interval 1h --blocking
      sentinel plan bandwidth --checkpoint 5TB --interval 6.2min
      sentinel plan bandwidth --parameters 800B --interval 40min --save 3.6min
      sentinel plan bandwidth --parameters 405B --interval 15min --bandwidth 2TB/s
      sentinel plan bandwidth --parameters 405B --interval 15min --nodes 2048 --drive-capacity 30.7TB --drive-dwpd 1
    """
    with answering():
        inputs = Inputs(given)
        emit(_answer(inputs), inputs)


def _answer(inputs: Inputs) -> Answer:
    size = checkpoint_input(inputs)
    interval_s = inputs.need(
        "interval_s", "interval", quantities.duration, "Say how often a save is written, such as --interval 15min."
    )
    measured = _measured(inputs, interval_s)
    if size is None:
        if measured is None:
            raise UserError(
                "nothing says how large a checkpoint is",
                fix="Give --parameters 405B, --checkpoint 5.67TB or --history FILE.",
            )
        return _measured_alone(measured)
    blocking = bool(inputs.options["blocking"])
    limit = sizing.BLOCKING_LIMIT if blocking else sizing.DRAIN_LIMIT
    note = "for saves that stop the training" if blocking else "for drains behind the training"
    share = inputs.read("overlap_fraction", "overlap", quantities.share, default=limit, note=note)
    factor = inputs.read(
        "read_factor", "read_factor", quantities.plain, default=sizing.READ_FACTOR, note="one replica writes, all read"
    )
    assert share is not None and factor is not None
    plan = sizing.plan_bandwidth(size, interval_s, share, factor)
    warnings = [*plan.warnings]
    if blocking and sizing.BLOCKING_LIMIT < share <= sizing.DRAIN_LIMIT:
        warnings.append(f"{show_share(share)} is above the 5 % that saves which stop the training should take")
    answer = Answer(
        headline=f"{show_rate(plan.bandwidth_bytes_per_s)}: {show_bytes(size)} within {show_share(share)} of "
        f"{show_duration(interval_s)}, which is {show_duration(plan.write_window_s)}.",
        document={key: value for key, value in asdict(plan).items() if key not in ("budgets", "warnings")},
        sections=[_traffic(plan), _budgets(plan)],
        notes=[
            "a budget of 1 % asks for ten times the bandwidth of 10 %: the widely copied 631 GB/s for 405B every 15 min "
            "is that one; at 10 % it is 63 GB/s"
        ],
        warnings=warnings,
        figure=_figure(plan),
    )
    answer.document["budgets"] = [
        {"overlap_fraction": s, "write_window_s": w, "bandwidth_bytes_per_s": b} for s, w, b in plan.budgets
    ]
    if measured is not None:
        _add_measured(answer, measured, size)
    _offer(answer, inputs, plan)
    _wear(answer, inputs, plan)
    return answer


def _traffic(plan: sizing.BandwidthPlan) -> Section:
    rows = [
        ("write, during a save", show_rate(plan.bandwidth_bytes_per_s), f"for {show_duration(plan.write_window_s)}"),
        ("write, on average", show_rate(plan.average_bandwidth_bytes_per_s), ""),
        ("written a day", show_bytes(plan.bytes_per_day), f"{plan.saves_per_day:,.1f} saves"),
        ("read at a restart", show_bytes(plan.restore_bytes), "every replica reads the state back"),
        ("read, in a save's time", show_rate(plan.restore_bandwidth_bytes_per_s), "to restart as fast as a save"),
    ]
    return Section("Traffic", ("", "", ""), rows, mark=0)


def _budgets(plan: sizing.BandwidthPlan) -> Section:
    rows = [(show_share(s), show_duration(w), show_rate(b)) for s, w, b in plan.budgets]
    return Section("By budget", ("overlap", "time for a save", "bandwidth"), rows)


def _figure(plan: sizing.BandwidthPlan) -> Figure:
    spots = [plan.interval_s * 8 ** (i / 32 - 1) for i in range(65)]
    window = plan.checkpoint_bytes / plan.overlap_fraction
    return Figure(
        title=f"Write bandwidth at {show_share(plan.overlap_fraction)} overlap",
        x_label="interval",
        y_label="bandwidth",
        curves=((show_bytes(plan.checkpoint_bytes), tuple((t, window / t) for t in spots)),),
        marks=(("planned", plan.interval_s, plan.bandwidth_bytes_per_s),),
        x_log=True,
        y_log=True,
        show_x=show_duration,
        show_y=show_rate,
    )


def _measured(inputs: Inputs, interval_s: float) -> sizing.Overlap | None:
    past = None
    blocking = bool(inputs.options["blocking"])
    if inputs.history is not None:
        kinds = [s.duration_s for s in inputs.history.saves if s.tier == "global" and s.blocking is blocking]
        past = history.mean(kinds)
    took = inputs.read(
        "measured_save_s", "save", quantities.duration, past=past, past_note="mean of the global saves of this kind"
    )
    return None if took is None else sizing.overlap(took, interval_s, blocking=blocking)


def _measured_document(measured: sizing.Overlap) -> dict[str, Any]:
    return {
        "measured_save_s": measured.save_s,
        "measured_overlap_fraction": measured.overlap_fraction,
        "overlap_limit_fraction": measured.limit_fraction,
        "within_limit": measured.within,
    }


def _measured_alone(measured: sizing.Overlap) -> Answer:
    document = _measured_document(measured)
    document |= {"interval_s": measured.interval_s, "overlap_fraction": measured.overlap_fraction}
    return Answer(
        headline=f"Overlap: {measured.reason}.",
        document=document,
        notes=["with --parameters or --checkpoint the bandwidth of the run follows as well"],
    )


def _add_measured(answer: Answer, measured: sizing.Overlap, size: float) -> None:
    reached = size / measured.save_s
    answer.document |= _measured_document(measured)
    answer.document["measured_bandwidth_bytes_per_s"] = reached
    rows = [
        ("overlap", show_share(measured.overlap_fraction), measured.reason),
        ("bandwidth reached", show_rate(reached), f"{show_bytes(size)} in {show_duration(measured.save_s)}"),
    ]
    answer.sections.append(Section("Measured run", ("", "", ""), rows))
    if not measured.within:
        answer.warnings.append(f"the measured overlap of {measured.reason}")


def _offer(answer: Answer, inputs: Inputs, plan: sizing.BandwidthPlan) -> None:
    there = inputs.read("offered_bytes_per_s", "bandwidth", quantities.rate)
    if there is None:
        return
    found = sizing.offer(plan.checkpoint_bytes, plan.interval_s, plan.overlap_fraction, there)
    answer.document |= {
        "offered_bytes_per_s": there,
        "offered_save_s": found.save_s,
        "offered_overlap_fraction": found.overlap_fraction,
        "offered_least_interval_s": found.least_interval_s,
        "offered_is_enough": found.enough,
    }
    verdict = "enough" if found.enough else f"too slow by {plan.bandwidth_bytes_per_s / there:.1f} times"
    rows = [
        (
            show_rate(there),
            verdict,
            f"a save takes {show_duration(found.save_s)}, {show_share(found.overlap_fraction)}",
        ),
        ("shortest interval", show_duration(found.least_interval_s), f"at {show_share(plan.overlap_fraction)} overlap"),
    ]
    answer.sections.append(Section("Storage that is there", ("", "", ""), rows))
    if not found.enough:
        answer.warnings.append(f"{show_rate(there)} is {verdict}")


def _wear(answer: Answer, inputs: Inputs, plan: sizing.BandwidthPlan) -> None:
    capacity = inputs.read("drive_capacity_bytes", "drive_capacity", quantities.size)
    if capacity is None:
        for option in ("drive_endurance", "drive_dwpd", "local_copies", "local_interval"):
            if inputs.has(option):
                raise UserError(
                    f"--{option.replace('_', '-')} needs --drive-capacity",
                    fix="Say how large a node's local drives are.",
                )
        return
    if inputs.has("drive_endurance") and inputs.has("drive_dwpd"):
        raise UserError("--drive-endurance and --drive-dwpd both rate the drives", fix="Give one of them.")
    nodes = inputs.need("nodes", "nodes", quantities.whole_count, "Say over how many nodes the checkpoint spreads.")
    copies = inputs.read("local_copies", "local_copies", quantities.whole_count, default=1)
    often = inputs.read(
        "local_interval_s", "local_interval", quantities.duration, default=plan.interval_s, note="as --interval"
    )
    endurance = inputs.read("drive_endurance_bytes", "drive_endurance", quantities.size)
    rated = None
    if endurance is None:
        rated = inputs.read(
            "drive_dwpd", "drive_dwpd", quantities.plain, default=1.0, note="usual for read-intensive drives"
        )
    assert copies is not None and often is not None
    worn = sizing.wear(
        plan.checkpoint_bytes,
        often,
        int(nodes),
        capacity,
        copies=int(copies),
        endurance_bytes=endurance,
        rated_drive_writes_per_day=rated or 1.0,
    )
    answer.document |= {
        "local_save_bytes_per_node": worn.save_bytes_per_node,
        "local_bytes_per_day_per_node": worn.bytes_per_day_per_node,
        "drive_writes_per_day": worn.drive_writes_per_day,
        "rated_drive_writes_per_day": worn.rated_drive_writes_per_day,
        "drive_lifetime_s": worn.lifetime_s,
        "drive_within_rating": worn.within,
    }
    rows = [
        (
            "a save, each node",
            show_bytes(worn.save_bytes_per_node),
            f"{copies:.0f} {'copy' if copies == 1 else 'copies'}",
        ),
        ("a day, each node", show_bytes(worn.bytes_per_day_per_node), f"every {show_duration(often)}"),
        ("drive writes a day", f"{worn.drive_writes_per_day:.3g}", f"rated for {worn.rated_drive_writes_per_day:.3g}"),
        ("drives last", f"{worn.lifetime_s / quantities.DAY_S / 365.25:,.1f} years", "by these writes alone"),
    ]
    answer.sections.append(Section("Wear of the local tier", ("", "", ""), rows))
    if not worn.within:
        answer.warnings.append(
            f"local saves write {worn.drive_writes_per_day:.3g} drives a day, the drives are rated for "
            f"{worn.rated_drive_writes_per_day:.3g}: keep local copies in memory, or save locally less often"
        )
