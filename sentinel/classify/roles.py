"""Tells what explains what: which of the readings are causes, and which are consequences of others."""

from __future__ import annotations

import re
from collections.abc import Sequence, Set

from sentinel.classify.readings import Reading
from sentinel.config.rules import LEADING, Drain, Form, Role, Rules
from sentinel.model.records import Cause, Kind, Trust

CLOCKS_S = 30.0  # by which the times of two sources may differ
LOST_WITHIN_S = 60.0  # a driver's deadlines, from its first unanswered command until it finds the GPU gone
GONE_WITHIN_S = 900.0  # from a machine's last words until Slurm sets it DOWN: SlurmdTimeout is 300 s, sites set more
_OF_MACHINES = frozenset({Form.KERNEL, Form.DCGM, Form.FABRIC})
WAITED = 2.0  # strength from which a line says that ranks waited, and does not only echo that a peer is gone
_JOINED = re.compile(r"\b\d{1,6}/\d{1,6} clients joined\b|\bwaiting for clients\b|\bworker_count=\d")
LEADS = 1.2  # strength from which a cause counts as known
_ENDING = LEADING | {Role.CONSEQUENCE}
_ASKED = "limit-near"  # rule: a program that was asked to stop has not ended
_NETWORK = frozenset({Cause.NETWORK_BOOTSTRAP, Cause.NETWORK_FABRIC, Cause.NCCL_HANG_UNKNOWN, None})


def roles_of(readings: Sequence[Reading], peers: Set[int], rules: Rules) -> dict[int, Role]:
    """By id of the reading the part that it plays beside the others: a symptom is a cause or a consequence."""
    xids = {r.evidence.data.get("xid") for r in readings if r.evidence.kind == Kind.XID}
    roles = {id(r): _role(r, xids, rules) for r in readings}
    explained = (*_of_lost_gpus(readings), *_of_lost_nodes(readings), *_of_dead_links(readings))
    roles.update((id(r), Role.CONSEQUENCE) for r in explained)
    known = next((r for r in readings if r.strength >= LEADS and _explains(r, roles[id(r)])), None)
    for reading in readings:
        if roles[id(reading)] is Role.SYMPTOM:
            follows = known is not None and _comes_of(reading, known, roles[id(known)])
            roles[id(reading)] = Role.CONSEQUENCE if follows else Role.CAUSE
    return roles | dict.fromkeys(peers, Role.CONSEQUENCE)


def missed_peers(readings: Sequence[Reading]) -> set[int]:
    """By id what ranks say of a peer that is gone, after another line told what ended a process, or stopped its node."""
    ends = (r for r in readings if r.role in _ENDING and r.strength >= LEADS and r.key != _ASKED)
    first = next((r for r in ends if points_to(r) not in _NETWORK), None)
    if first is None:
        return set()
    return {id(r) for r in readings if _misses_a_peer(r) and (_follows(r, first) or _waited_for(r, first))}


def _waited_for(joined: Reading, failed: Reading) -> bool:
    """Whether a rank waited for all to come, and what failed is another one's: such a wait may be told first."""
    ranks = joined.evidence.where.rank, failed.evidence.where.rank
    return None not in ranks and ranks[0] != ranks[1] and _JOINED.search(joined.evidence.text) is not None


def _misses_a_peer(reading: Reading) -> bool:
    if reading.role not in {Role.SYMPTOM, Role.CONSEQUENCE}:
        return False
    cause = points_to(reading)
    return cause is Cause.NETWORK_BOOTSTRAP or (cause is Cause.NCCL_HANG_UNKNOWN and reading.strength < WAITED)


def _comes_of(symptom: Reading, known: Reading, role: Role) -> bool:
    """Whether ``known`` explains a symptom. A watchdog waits for minutes: no clocks reverse that."""
    if points_to(symptom) is points_to(known):
        return False
    if symptom.drain is not Drain.NO and _only_claims(known, symptom):
        return False  # what a program prints takes no suspicion from a node
    return _follows(symptom, known) if role in {Role.CAUSE, Role.FALLBACK} else before(known, symptom)


def _explains(reading: Reading, role: Role) -> bool:
    """Whether what was said may explain symptoms that come after it: a cause, any exception, a watchdog's message."""
    waited = points_to(reading) is Cause.NCCL_HANG_UNKNOWN and reading.strength >= WAITED
    return role in {Role.CAUSE, Role.FALLBACK} or waited


def _of_lost_gpus(readings: Sequence[Reading]) -> list[Reading]:
    """What the bus and the driver said shortly before a GPU was gone from PCIe: the same event, seen sooner.

    A port reports its link down, firmware stops answering, and the driver then finds that the device reads all ones.
    """
    lost = [
        reading
        for reading in readings
        if reading.drain is Drain.YES and reading.role is Role.CAUSE and points_to(reading) is Cause.GPU_FALLEN_OFF_BUS
    ]
    return [reading for reading in readings if any(_announces(reading, gone) for gone in lost)]


def _announces(one: Reading, gone: Reading) -> bool:
    if one.role is not Role.CAUSE or points_to(one) not in {Cause.PCIE, Cause.GPU_GSP_OR_DRIVER}:
        return False
    if one.evidence.where.node != gone.evidence.where.node or one.form is not gone.form:
        return False
    parts = one.evidence.data.get("pci"), gone.evidence.data.get("pci")
    other = points_to(one) is Cause.GPU_GSP_OR_DRIVER and None not in parts and parts[0] != parts[1]
    return not other and 0 <= (gone.evidence.at - one.evidence.at).total_seconds() <= LOST_WITHIN_S


def _of_dead_links(readings: Sequence[Reading]) -> list[Reading]:
    """What a network adapter's driver said right after a PCIe link had failed for good: the adapter was below it."""
    fatal = [r for r in readings if r.role is Role.CAUSE and r.drain is Drain.YES and points_to(r) is Cause.PCIE]
    return [reading for reading in readings if any(_below(reading, link) for link in fatal)]


def _below(one: Reading, link: Reading) -> bool:
    a, b = one.evidence, link.evidence
    if one.form is not Form.FABRIC or points_to(one) is not Cause.NETWORK_FABRIC or _only_claims(link, one):
        return False
    if (a.where.node, a.where.path) != (b.where.node, b.where.path) or not before(link, one):
        return False
    return (a.at - b.at).total_seconds() <= LOST_WITHIN_S


def _of_lost_nodes(readings: Sequence[Reading]) -> list[Reading]:
    """What says only that a node is gone, where its own log had said why. A program's word explains no word of Slurm's."""
    gone = [r for r in readings if r.role is Role.CAUSE and points_to(r) is Cause.NODE_FAILURE]
    why = [r for r in readings if gone and r.role is Role.CAUSE and r.drain is Drain.YES and r.form in _OF_MACHINES]
    explained = [reading for reading in gone if any(_took_down(broke, reading) for broke in why)]
    if not explained or any(r.evidence.where.node is not None for r in gone if r not in explained):
        return explained
    sure = any(reading.evidence.trust is Trust.SYSTEM for reading in explained)  # "DUE TO NODE FAILURE" names no node
    return explained + [r for r in gone if r not in explained and (sure or r.evidence.trust is Trust.USER)]


def _took_down(broke: Reading, gone: Reading) -> bool:
    a, b = broke.evidence, gone.evidence
    if points_to(broke) in {Cause.NODE_FAILURE, None} or broke.passed or _only_claims(broke, gone):
        return False
    # A job's log rarely names it.
    unnamed = a.where.node is None and a.trust is Trust.USER and a.where.path == b.where.path
    if not unnamed and (a.where.node is None or a.where.node != b.where.node):
        return False
    within = -CLOCKS_S <= (b.at - a.at).total_seconds() <= GONE_WITHIN_S
    return within and (a.where.path != b.where.path or not before(gone, broke))


def _only_claims(one: Reading, other: Reading) -> bool:
    """Whether a program said the one and the system the other."""
    return one.evidence.trust is Trust.USER and other.evidence.trust is Trust.SYSTEM


def _follows(one: Reading, other: Reading) -> bool:
    """Whether ``one`` can be a consequence of ``other``; without a common clock the order of their times may be reversed."""
    if one.evidence.where.path == other.evidence.where.path and one.evidence.source is other.evidence.source:
        return not before(one, other)
    return (other.evidence.at - one.evidence.at).total_seconds() <= CLOCKS_S


def points_to(reading: Reading) -> Cause | None:
    """The cause that a reading speaks for most."""
    return max(reading.weights, key=lambda cause: (reading.weights[cause], cause), default=None)


def before(one: Reading, other: Reading) -> bool:
    return (one.evidence.at, one.evidence.line or 0) < (other.evidence.at, other.evidence.line or 0)


def _role(reading: Reading, xids: Set[object], rules: Rules) -> Role:
    """A sympathetic Xid is a consequence while the one it follows is there."""
    entry = rules.xid_of(reading.evidence)
    if entry is not None and xids & set(entry.follows):
        return Role.CONSEQUENCE
    return reading.role
