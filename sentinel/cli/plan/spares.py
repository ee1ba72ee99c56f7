"""``sentinel plan spares``: spare nodes, copies of shards and where to put them."""

from __future__ import annotations

from typing import Any

import click

from sentinel.cli.offline.chart import Figure
from sentinel.cli.operator.output import counted
from sentinel.cli.plan.copies import add_copies, add_payoff
from sentinel.cli.plan.inputs import Inputs, answering, gpus_per_node_input, mtbf_input, options
from sentinel.cli.plan.output import Answer, Section, emit
from sentinel.errors import UserError
from sentinel.planning import history, quantities
from sentinel.planning.quantities import duration_or_zero, show_duration, show_share
from sentinel.planning.spares import SparesPlan, plan_spares, within_wait_probability

# Whose flags are needed for what: docs/operate.md, "Nodes kept for restarts".
_RESERVATION = (
    "scontrol create reservation ReservationName=spares StartTime=now Duration=UNLIMITED NodeCnt={nodes} "
    "PartitionName=YOUR_PARTITION Users=root Flags=FLEX,REPLACE,IGNORE_JOBS"
)


@click.command()
@options(
    *("nodes", "gpus", "gpus-per-node", "node-mtbf", "gpu-mtbf", "mtbf", "failures-per-1000-node-days"),
    *("node-loss-share", "repair", "wait", "probability"),
    *("copies", "losses", "placement", "domain-nodes", "returns", "memory"),
    *("checkpoint", "parameters", "bytes-per-parameter", "storage-bandwidth", "peer-bandwidth"),
    *("local-share", "restart", "local-save", "local-restart", "interruptions", "days", "confidence"),
)
def spares(**given: Any) -> None:
    """How many spare nodes; how many copies of each shard, and where; when peer copies pay.

    Three questions, each answered when its inputs are there. --repair: spare nodes, so that a failed node is replaced
    within --wait for --probability of the failures. --losses: the chance that every shard survives that many lost
    nodes, by copies and placement. --storage-bandwidth with --peer-bandwidth: from what share of locally repairable
    failures copies at peers pay.

    \b
    Examples:
      sentinel plan spares --nodes 2048 --node-mtbf 6250h --repair 24h --wait 10min
      sentinel plan spares --nodes 128 --losses 4
      sentinel plan spares --nodes 128 --losses 2 --domain-nodes 8 --copies 2
      sentinel plan spares --nodes 2048 --losses 8 --returns 60% --parameters 405B --memory 2TiB
      sentinel plan spares --nodes 2048 --gpu-mtbf 50000h --parameters 405B \\
          --storage-bandwidth 100GB/s --peer-bandwidth 40GB/s --local-share 90%
    """
    with answering():
        inputs = Inputs(given)
        emit(_answer(inputs), inputs)


def _answer(inputs: Inputs) -> Answer:
    past = inputs.history
    wants_nodes = inputs.has("repair") or (past is not None and bool(past.repairs_s))
    wants_copies = inputs.has("losses") or inputs.has("copies")
    wants_payoff = inputs.has("storage_bandwidth") or inputs.has("peer_bandwidth")
    if not (wants_nodes or wants_copies or wants_payoff):
        raise UserError(
            "nothing to answer: spare nodes need --repair, copies --losses, their payoff --storage-bandwidth",
            fix="sentinel plan spares --nodes 2048 --node-mtbf 6250h --repair 24h --wait 10min",
        )
    nodes = _nodes(inputs)
    answer = Answer(headline="", document={"nodes": nodes})
    if wants_nodes or wants_payoff:
        mtbf_s = _mtbf(inputs, nodes)
        answer.document["mtbf_s"] = mtbf_s
        if wants_nodes:
            _add_spares(answer, inputs, nodes, mtbf_s)
        if wants_payoff:
            add_payoff(answer, inputs, nodes, mtbf_s)
    if wants_copies:
        add_copies(answer, inputs, nodes)
    return answer


def _nodes(inputs: Inputs) -> int:
    nodes = inputs.read("nodes", "nodes", quantities.whole_count)
    if nodes is not None:
        if inputs.has("gpus"):
            raise UserError("--nodes and --gpus both say how large the job is", fix="Give one of them.")
        return int(nodes)
    past = None if inputs.history is None else float(max(1, round(inputs.history.mean_gpus)))
    gpus = inputs.need("gpus", "gpus", quantities.whole_count, "Say how many nodes: --nodes 2048.", past=past)
    per_node = gpus_per_node_input(inputs)
    return int(inputs.derive("nodes", float(-(-int(gpus) // per_node)), "GPUs over GPUs of a node"))


def _mtbf(inputs: Inputs, nodes: int) -> float:
    per_node = inputs.read("node_mtbf_s", "node_mtbf", quantities.duration)
    if per_node is None:
        if not inputs.has("mtbf") and "gpus" not in inputs.rows:
            # The other ways to state a failure rate count GPUs; they follow from the nodes.
            inputs.derive("gpus", float(nodes * gpus_per_node_input(inputs)), "nodes x GPUs of a node")
        mtbf_s, _ = mtbf_input(inputs)
        return mtbf_s
    for other in ("mtbf", "gpu_mtbf", "failures_per_1000_node_days"):
        if inputs.has(other):
            raise UserError(
                f"--node-mtbf and --{other.replace('_', '-')} both say how often it fails", fix="Give one of them."
            )
    return inputs.derive("mtbf_s", per_node / nodes, "MTBF of a node over their number")


def _add_spares(answer: Answer, inputs: Inputs, nodes: int, mtbf_s: float) -> None:
    past = inputs.history
    repair_past = None if past is None else history.mean(past.repairs_s)
    repair = inputs.need(
        "repair_s", "repair", quantities.duration, "", past=repair_past, past_note="mean of the repairs"
    )
    known = history.Share(None, 0, 0) if past is None else history.node_loss_share(past)
    share = inputs.read(
        "node_loss_share_fraction",
        "node_loss_share",
        quantities.share,
        past=known.fraction or None,
        past_note=f"{counted(known.known, 'failure')} where it is known, {known.unknown} where not",
        default=1.0,
        note="every failure sends a node to repair: more spares than needed, not fewer",
    )
    wait = inputs.read("wait_s", "wait", duration_or_zero, default=600.0, note="10 min")
    wish = inputs.read(
        "probability_fraction", "probability", lambda t, w: quantities.share(t, w, one=False), default=0.99
    )
    assert share is not None and wait is not None and wish is not None
    plan = plan_spares(share / mtbf_s, repair, wait, wish, nodes)
    answer.headline = (
        f"{plan.spares} spare nodes for {nodes:,}: a replacement within {show_duration(wait)} for {show_share(wish)} "
        "of the failures."
    )
    answer.document |= {
        "spares": plan.spares,
        "spares_nodes": plan.spares,
        "node_failures_per_day": plan.failures_per_day,
        "in_repair_mean_nodes": plan.in_repair_mean,
        "repair_s": repair,
        "wait_s": wait,
        "probability_fraction": wish,
        "within_wait_fraction": within_wait_probability(plan.spares, share / mtbf_s, repair, wait),
        "pools": [
            {
                "spares": pool.spares,
                "no_wait_fraction": pool.no_wait_probability,
                "within_wait_fraction": pool.within_wait_probability,
                "mean_wait_s": pool.mean_wait_s,
            }
            for pool in plan.pools
        ],
    }
    answer.sections.append(_pools(plan))
    answer.notes.append(
        f"{plan.failures_per_day:.3g} nodes a day go to repair, {plan.in_repair_mean:.3g} are there at any time "
        "(Palm 1938); "
        "the wait takes repairs as equally long, its mean holds for any repair times"
    )
    if plan.spares:
        _add_reservation(answer, plan.spares)
    answer.warnings.extend(plan.warnings)
    answer.figure = _figure(plan, share / mtbf_s, repair)


def _add_reservation(answer: Answer, nodes: int) -> None:
    reservation = _RESERVATION.format(nodes=nodes)
    answer.document["reservation_command"] = reservation
    answer.notes.append(
        'to keep them for jobs that lost a node, make this reservation once and set spares = "spares" in [recovery]:'
    )
    answer.commands.append(reservation)


def _pools(plan: SparesPlan) -> Section:
    rows = [
        (
            f"{pool.spares}",
            f"{100 * pool.no_wait_probability:.2f} %",
            f"{100 * pool.within_wait_probability:.2f} %",
            show_duration(pool.mean_wait_s),
        )
        for pool in plan.pools
    ]
    mark = next(i for i, pool in enumerate(plan.pools) if pool.spares == plan.spares)
    columns = ("spares", "no wait", f"within {show_duration(plan.wait_s)}", "mean wait")
    return Section("Spare nodes", columns, rows, mark=mark)


def _figure(plan: SparesPlan, rate: float, repair_s: float) -> Figure:
    top = max(4, 2 * plan.spares)
    step = max(1, top // 100)
    points = tuple((float(s), within_wait_probability(s, rate, repair_s, plan.wait_s)) for s in range(0, top + 1, step))
    at = within_wait_probability(plan.spares, rate, repair_s, plan.wait_s)
    return Figure(
        title=f"Replaced within {show_duration(plan.wait_s)}",
        x_label="spare nodes",
        y_label="share of failures",
        curves=(("share of failures", points),),
        marks=(("least that does", float(plan.spares), at),),
        show_x=lambda x: f"{x:.0f}",
        show_y=lambda y: f"{100 * y:.0f} %",
    )
