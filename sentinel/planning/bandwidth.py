"""How fast the storage: size of a checkpoint, bandwidth to write and to read it back, wear of the local tier.

The sizing is size / (interval x overlap), where overlap is the share of the time in which a save may be on its way.
Example with both readings: 405e9 parameters x 14 bytes are 5.67 TB; 10 % of 15 min is 90 s, so 63 GB/s. The widely
copied 631 GB/s for the same run divides by 9 s: that is a budget of 1 %, ten times stricter than the text around it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sentinel.planning.limits import PlanningError, fraction, not_negative, positive, whole
from sentinel.planning.quantities import DAY_S

# Mixed-precision Adam: bf16 weights 2 + fp32 master weights 4 + two fp32 moments 4 + 4 (Rajbhandari et al., "ZeRO",
# SC 2020, section 3.1, counts the same 2 + 12; its 2 bytes of gradients are not saved).
BYTES_PER_PARAMETER = 14.0
# A save that drains behind the training may take a tenth of the time; one that stops it, a twentieth.
DRAIN_LIMIT = 0.10
BLOCKING_LIMIT = 0.05
# One data-parallel replica writes, all of them read the state back: about eight times the write load at a restart.
READ_FACTOR = 8.0
RATED_YEARS = 5.0  # vendors rate drive writes per day over five years of warranty


def checkpoint_bytes(parameters: float, bytes_per_parameter: float = BYTES_PER_PARAMETER) -> float:
    """Size of a full training state."""
    return positive(parameters, "parameters") * positive(bytes_per_parameter, "bytes per parameter")


def bandwidth_bytes_per_s(size_bytes: float, interval_s: float, overlap_fraction: float) -> float:
    """Write bandwidth so that a save of this size fits into this share of the interval."""
    window = positive(interval_s, "interval") * fraction(overlap_fraction, "overlap")
    return positive(size_bytes, "checkpoint") / window


@dataclass(frozen=True)
class BandwidthPlan:
    checkpoint_bytes: float
    interval_s: float
    overlap_fraction: float
    write_window_s: float
    bandwidth_bytes_per_s: float
    average_bandwidth_bytes_per_s: float
    saves_per_day: float
    bytes_per_day: float
    restore_bytes: float
    restore_bandwidth_bytes_per_s: float
    budgets: tuple[tuple[float, float, float], ...]
    """(overlap_fraction, write_window_s, bandwidth_bytes_per_s) at 1, 5 and 10 %."""
    warnings: tuple[str, ...]


def plan_bandwidth(
    size_bytes: float, interval_s: float, overlap_fraction: float = DRAIN_LIMIT, read_factor: float = READ_FACTOR
) -> BandwidthPlan:
    """Write and read bandwidth, and what a day of saves amounts to.

    The restore bandwidth reads ``read_factor`` times the size in the time that a write may take.
    """
    size, interval = positive(size_bytes, "checkpoint"), positive(interval_s, "interval")
    needed = bandwidth_bytes_per_s(size, interval, overlap_fraction)
    factor = positive(read_factor, "read factor")
    saves = DAY_S / interval
    return BandwidthPlan(
        checkpoint_bytes=size,
        interval_s=interval,
        overlap_fraction=overlap_fraction,
        write_window_s=interval * overlap_fraction,
        bandwidth_bytes_per_s=needed,
        average_bandwidth_bytes_per_s=size / interval,
        saves_per_day=saves,
        bytes_per_day=saves * size,
        restore_bytes=factor * size,
        restore_bandwidth_bytes_per_s=factor * needed,
        budgets=tuple((share, interval * share, size / (interval * share)) for share in (0.01, 0.05, 0.10)),
        warnings=tuple(_warnings(size, interval, overlap_fraction, needed)),
    )


def _warnings(size: float, interval: float, overlap: float, needed: float) -> list[str]:
    found = []
    if overlap <= 0.01:
        found.append(
            f"a budget of {100 * overlap:.2g} % asks for {0.1 / overlap:.0f} times the bandwidth of the usual 10 %: "
            f"{size / (interval * 0.1) / 1e9:.3g} GB/s would do for that"
        )
    if overlap > DRAIN_LIMIT:
        found.append(
            f"an overlap of {100 * overlap:.3g} % is above the 10 % that a drain should take "
            "(5 % where saves stop the training)"
        )
    if size < 1e6:
        found.append(f"a checkpoint of {size:g} bytes is hardly meant; check the unit")
    if needed > 1e13:
        found.append(f"{needed / 1e12:.0f} TB/s is beyond any storage built: save less often, or to a local tier")
    return found


def binary_mixup(stated_bytes: float, computed_bytes: float) -> str | None:
    """The unit that was probably meant where two sizes differ by 1000 against 1024 to some power (within 1 %)."""
    ratio = computed_bytes / stated_bytes
    larger = max(stated_bytes, computed_bytes)
    for power, unit in ((2, "MB"), (3, "GB"), (4, "TB"), (5, "PB")):
        if not 1000.0**power <= larger < 1000.0 ** (power + 1):
            continue
        gap = 1.024**power
        for factor in (gap, 1 / gap):
            if abs(ratio / factor - 1) < 0.01:
                return f"{unit} for {unit[0]}iB"
    return None


@dataclass(frozen=True)
class Overlap:
    """What a run's saves take: ``within`` says whether the share stays below the limit for that kind of save."""

    save_s: float
    interval_s: float
    overlap_fraction: float
    limit_fraction: float
    within: bool
    reason: str


def overlap(save_s: float, interval_s: float, *, blocking: bool) -> Overlap:
    """Share of the time in which a save is under way, from start to start of the saves, and its verdict.

    Refuses saves that take longer than the interval between their starts: they pile up without end.
    """
    took, interval = positive(save_s, "save"), positive(interval_s, "interval")
    if took > interval:
        raise PlanningError(
            f"an interval of {interval:g} s is shorter than the save of {took:g} s: saves would pile up",
            fix=f"Save at most every {took / (BLOCKING_LIMIT if blocking else DRAIN_LIMIT):.0f} s, or write faster.",
        )
    limit = BLOCKING_LIMIT if blocking else DRAIN_LIMIT
    share = took / interval
    kind = "saves that stop the training" if blocking else "drains behind the training"
    if share <= limit:
        reason = f"{100 * share:.1f} % is within the {100 * limit:.0f} % for {kind}"
    else:
        reason = (
            f"{100 * share:.1f} % is above the {100 * limit:.0f} % for {kind}: write {share / limit:.1f} times as fast, "
            f"or save every {took / limit:.0f} s"
        )
    return Overlap(took, interval, share, limit, share <= limit, reason)


@dataclass(frozen=True)
class Wear:
    """What local checkpoints do to one node's drives. ``lifetime_s`` is infinite where nothing limits it: never here."""

    save_bytes_per_node: float
    bytes_per_day_per_node: float
    drive_writes_per_day: float
    rated_drive_writes_per_day: float
    lifetime_s: float
    within: bool


def wear(
    size_bytes: float,
    interval_s: float,
    nodes: int,
    capacity_bytes: float,
    *,
    copies: int = 1,
    endurance_bytes: float | None = None,
    rated_drive_writes_per_day: float = 1.0,
) -> Wear:
    """Daily writes to one node's local tier against what its drives are rated for.

    Rated either by total bytes written (``endurance_bytes``) or by drive writes per day over five years (JEDEC
    JESD218/219). Every node writes its shard once and ``copies`` - 1 of its peers'. A drive writes little more than it
    is given where files are large and sequential: that is left out.
    """
    whole(nodes, "nodes")
    whole(copies, "copies", most=nodes)
    per_save = positive(size_bytes, "checkpoint") / nodes * copies
    capacity = positive(capacity_bytes, "drive capacity")
    if per_save > capacity:
        raise PlanningError(
            f"{per_save:g} bytes of checkpoint for each node do not fit its local tier of {capacity:g} bytes",
            fix="Spread the checkpoint over more nodes, keep fewer copies, or take larger drives.",
        )
    daily = per_save * DAY_S / positive(interval_s, "interval")
    if endurance_bytes is None:
        rated = positive(rated_drive_writes_per_day, "rated drive writes per day")
    else:
        rated = positive(endurance_bytes, "endurance") / (capacity * RATED_YEARS * 365.25)
    writes = daily / capacity
    lifetime = rated * RATED_YEARS * 365.25 / writes * DAY_S
    return Wear(per_save, daily, writes, rated, lifetime, writes <= rated)


@dataclass(frozen=True)
class StorageOffer:
    """What a storage of a given bandwidth does with a checkpoint: how long a save takes and how often it may."""

    save_s: float
    overlap_fraction: float
    least_interval_s: float
    enough: bool


def offer(size_bytes: float, interval_s: float, overlap_fraction: float, bandwidth: float) -> StorageOffer:
    """The question from the other side: this bandwidth is there, what does a save take?"""
    took = positive(size_bytes, "checkpoint") / positive(bandwidth, "bandwidth")
    limit = fraction(overlap_fraction, "overlap")
    share = took / positive(interval_s, "interval")
    return StorageOffer(took, share, took / limit, share <= limit or math.isclose(share, limit))


def stall_s(checkpoint_size_bytes: float, nodes: int, link_bytes_per_s: float, copies: int = 2) -> float:
    """Time to send every node's shard to ``copies`` - 1 peers over one link a node; 0 for one copy."""
    whole(copies, "copies")
    shard = positive(checkpoint_size_bytes, "checkpoint") / whole(nodes, "nodes")
    return not_negative(shard * (copies - 1) / positive(link_bytes_per_s, "link"), "transfer")
