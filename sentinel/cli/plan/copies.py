"""The part of ``sentinel plan spares`` about copies of shards: do they survive, do they fit, do they pay?"""

from __future__ import annotations

from sentinel.cli.offline.chart import Figure
from sentinel.cli.operator.output import counted
from sentinel.cli.plan.inputs import Inputs, checkpoint_input, restart_input
from sentinel.cli.plan.output import Answer, Section
from sentinel.errors import UserError
from sentinel.planning import history, quantities
from sentinel.planning.bandwidth import stall_s
from sentinel.planning.limits import OutOfRange
from sentinel.planning.quantities import duration_or_zero, show_bytes, show_duration, show_share
from sentinel.planning.replicas import PLACEMENTS, copy_cost, domain_survival, on_disk_survival, survival
from sentinel.planning.tiers import Tiers, TwoLevelPlan, break_even_local_share, plan_two_level

_SHOWN_COPIES = (2, 3, 4)
MOST_DRAWN_LOSSES = 64


def _placement(inputs: Inputs) -> str:
    text = inputs.options.get("placement")
    if text is None:
        return "group"
    if text not in PLACEMENTS:
        raise UserError(f"--placement: {text!a:.40} is not known", fix=f"One of {', '.join(PLACEMENTS)}.")
    return str(text)


def add_copies(answer: Answer, inputs: Inputs, nodes: int) -> None:
    """The chance that every shard survives, by copies and placement."""
    losses = int(
        inputs.need("losses", "losses", quantities.whole_count, "Say how many nodes are lost at once: --losses 4.")
    )
    copies = int(inputs.read("copies", "copies", quantities.whole_count, default=2, note="3 and 4 are shown too") or 2)
    placement = _placement(inputs)
    if inputs.has("domain_nodes"):
        _domains(answer, inputs, nodes, copies, losses)
        return
    if copies > nodes or losses > nodes:
        raise UserError(
            f"--copies and --losses cannot be more than the {counted(nodes, 'node')} there are",
            fix="Check the numbers.",
        )
    chance = survival(nodes, copies, losses, placement)
    sentence = f"{copies} copies on {nodes:,} nodes ({placement}) survive {losses} losses in {100 * chance:.4g} %."
    answer.headline = f"{answer.headline} {sentence}".strip()
    table = [
        (m, kind, survival(nodes, m, losses, kind))
        for m in sorted({*_SHOWN_COPIES, copies})
        if m <= nodes
        for kind in PLACEMENTS
    ]
    answer.document |= {
        "copies": copies,
        "losses": losses,
        "placement": placement,
        "survival_fraction": chance,
        "survival": [
            {"copies": m, "placement": kind, "losses": losses, "survival_fraction": p} for m, kind, p in table
        ],
    }
    rows = []
    for m in sorted({row[0] for row in table}):
        rows.append((str(m), *(f"{100 * p:.4f} %" for count, _, p in table if count == m)))
    answer.sections.append(Section(f"Every shard survives {losses} lost nodes", ("copies", *PLACEMENTS), rows))
    if answer.figure is None and losses <= MOST_DRAWN_LOSSES:
        answer.figure = _figure(nodes, copies, losses, placement)
    back = inputs.read("returns_fraction", "returns", lambda t, w: quantities.share(t, w, zero=True))
    if back is not None:
        _on_disk(answer, nodes, copies, losses, placement, back)
    else:
        answer.notes.append("copies in memory: a lost node never comes back with them; --returns adds copies on disk")
    _room(answer, inputs, nodes, copies)


def _figure(nodes: int, copies: int, losses: int, placement: str) -> Figure:
    top = min(nodes, max(8, 2 * losses))
    curves = tuple(
        (
            f"{m} copies",
            tuple((float(k), survival(nodes, m, k, placement)) for k in range(0, top + 1, max(1, top // 16))),
        )
        for m in sorted({*_SHOWN_COPIES, copies})
        if m <= nodes
    )
    return Figure(
        title=f"Every shard survives: {', '.join(name.split()[0] for name, _ in curves)} copies from below ({placement})",
        x_label="nodes lost at once",
        y_label="chance",
        curves=curves,
        marks=((f"{copies} copies", float(losses), survival(nodes, copies, losses, placement)),),
        y_from_zero=False,
        show_x=lambda x: f"{x:.3g}",
        show_y=lambda y: f"{100 * y:.4g} %",
    )


def _on_disk(answer: Answer, nodes: int, copies: int, losses: int, placement: str, back: float) -> None:
    disk = on_disk_survival(nodes, copies, losses, placement, back)
    answer.document["disk_survival_fraction"] = disk
    rows = [
        (
            "in peers' memory",
            f"{100 * answer.document['survival_fraction']:.4f} %",
            "gone with every node that goes down",
        ),
        ("on peers' disks", f"{100 * disk:.4f} %", f"back with the {show_share(back)} of the nodes that come back"),
    ]
    answer.sections.append(Section(f"{copies} copies, {placement}", ("", "survival", ""), rows))
    answer.notes.append("copies on disk are there again only when the node is: their restart waits for its reboot")


def _room(answer: Answer, inputs: Inputs, nodes: int, copies: int) -> None:
    size = checkpoint_input(inputs)
    memory = inputs.read("memory_bytes", "memory", quantities.memory)
    if size is None:
        if memory is not None:
            raise UserError(
                "--memory needs the size of a checkpoint", fix="Give --parameters 405B or --checkpoint 5.67TB."
            )
        return
    cost = copy_cost(size, nodes, copies)
    answer.document |= {
        "checkpoint_bytes": size,
        "held_bytes_per_node": cost.held_bytes_per_node,
        "sent_bytes_per_save": cost.sent_bytes_per_save,
    }
    fits = "" if memory is None else f"{show_share(cost.held_bytes_per_node / memory)} of its memory"
    rows = [
        (
            "held by each node",
            show_bytes(cost.held_bytes_per_node),
            fits or "the last whole copies and those being filled",
        ),
        ("sent at each save", show_bytes(cost.sent_bytes_per_save), "by each node"),
    ]
    answer.sections.append(Section("Memory for the copies", ("", "", ""), rows))
    if memory is not None and cost.held_bytes_per_node > memory / 2:
        answer.warnings.append("the copies take more than half of a node's memory: fewer copies, more nodes, or disks")


def _domains(answer: Answer, inputs: Inputs, nodes: int, copies: int, losses: int) -> None:
    size = int(inputs.need("domain_nodes", "domain_nodes", quantities.whole_count, ""))
    if nodes % size:
        raise UserError(f"{nodes} nodes do not divide into domains of {size}", fix="Take a number of nodes that does.")
    domains = nodes // size
    if losses > domains or copies > domains:
        raise UserError(
            f"there are only {domains} domains", fix="With --domain-nodes, --losses and --copies count domains."
        )
    across = domain_survival(domains, copies, losses, across=True)
    within = domain_survival(domains, copies, losses, across=False)
    lost = f"{losses} {'domain' if losses == 1 else 'domains'} of {size} nodes"
    sentence = (
        f"{copies} copies, each in another domain, survive the loss of {lost} in {100 * across:.4g} % of the cases."
    )
    answer.headline = f"{answer.headline} {sentence}".strip()
    answer.document |= {
        "copies": copies,
        "losses": losses,
        "domains": domains,
        "survival_fraction": across,
        "survival_within_domain_fraction": within,
    }
    rows = [
        ("each in another domain", f"{100 * across:.4f} %", f"a stride of {size} nodes or more from copy to copy"),
        ("in the same domain", f"{100 * within:.4f} %", "the whole group goes with its domain"),
    ]
    answer.sections.append(Section(f"Every shard survives the loss of {lost}", ("copies", "survival", ""), rows))


def add_payoff(answer: Answer, inputs: Inputs, nodes: int, mtbf_s: float) -> None:
    """Peer copies as a local tier before the storage, against the storage alone."""
    copies = int(inputs.read("copies", "copies", quantities.whole_count, default=2) or 2)
    if copies < 2:
        raise UserError("--copies 1 puts no copy at a peer", fix="Give 2 or more.")
    tiers = _tiers(inputs, nodes, mtbf_s, copies)
    answer.document |= {"peer_save_s": tiers.local_save_s, "storage_save_s": tiers.global_save_s}
    if tiers.local_save_s >= tiers.global_save_s:
        answer.warnings.append("a save to the peers takes as long as one to the storage: peer copies never pay")
        answer.document["peer_copies_pay"] = False
        answer.headline = f"{answer.headline} Peer copies do not pay.".strip()
        return
    try:
        plan = plan_two_level(tiers)
    except OutOfRange as error:
        saving = f"saving to this storage takes {show_duration(tiers.global_save_s)}"
        raise OutOfRange(f"{saving}: {error.message}", fix=error.fix) from error
    _paid(answer, tiers, plan, copies)


def _tiers(inputs: Inputs, nodes: int, mtbf_s: float, copies: int) -> Tiers:
    """Peers as the local tier, the storage as the global one."""
    size = checkpoint_input(inputs)
    if size is None:
        raise UserError("nothing says how large a checkpoint is", fix="Give --parameters 405B or --checkpoint 5.67TB.")
    storage = inputs.need(
        "storage_bytes_per_s", "storage_bandwidth", quantities.rate, "Of the global storage: 100GB/s."
    )
    peer = inputs.need("peer_bytes_per_s", "peer_bandwidth", quantities.rate, "From a node to its peer: 40GB/s.")
    sending = stall_s(size, nodes, peer, copies)
    local_save = inputs.read(
        "local_save_s", "local_save", quantities.duration, default=sending, note="the transfer alone"
    )
    restart = restart_input(inputs)
    local_restart = inputs.read(
        "local_restart_s", "local_restart", duration_or_zero, default=restart, note="as --restart"
    )
    known = None if inputs.history is None else history.local_share(inputs.history).fraction
    share = inputs.read(
        "local_share_fraction",
        "local_share",
        quantities.share,
        past=known,
        default=0.9,
        note="to be measured: see the break-even",
    )
    assert local_restart is not None and share is not None and local_save is not None
    return Tiers(local_save, local_restart, size / storage, restart, mtbf_s, share)


def _paid(answer: Answer, tiers: Tiers, plan: TwoLevelPlan, copies: int) -> None:
    least = break_even_local_share(tiers)
    alone, together = plan.single_level_overhead_fraction, plan.overhead_fraction
    pays = together < alone
    answer.document |= {
        "peer_copies_pay": pays,
        "storage_alone_overhead_fraction": alone,
        "with_peers_overhead_fraction": together,
        "local_interval_s": plan.local_interval_s,
        "global_interval_s": plan.global_interval_s,
        "break_even_local_share_fraction": least,
    }
    kinds = (
        ("storage alone", tiers.global_save_s, plan.single_level_interval_s, alone),
        (f"{copies} copies at peers first", tiers.local_save_s, plan.local_interval_s, together),
    )
    rows = [(name, show_duration(save), show_duration(often), show_share(cost)) for name, save, often, cost in kinds]
    columns = ("", "a save", "every", "overhead")
    answer.sections.append(Section("Peer copies against storage", columns, rows, mark=int(pays)))
    verdict = f"Peer copies {'pay' if pays else 'do not pay'}: {show_share(together)} overhead against "
    answer.headline = f"{answer.headline} {verdict}{show_share(alone)} of storage alone.".strip()
    answer.notes.append(
        "they never pay here"
        if least is None
        else f"they pay as soon as they repair {show_share(least)} of the failures; "
        f"{show_share(tiers.local_share_fraction)} is reckoned with"
    )
