"""Lowers to a suspicion what convicts a machine whose own log says that it passed, that the machine started or stopped,
or that the test itself broke.

A node left out of the job's retry and tested costs little; a drain waits for people. Only the log that convicts can say
so, and of a boot the system's other logs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from datetime import datetime

from sentinel.classify.readings import Reading, lines_below
from sentinel.classify.roles import LEADS, points_to
from sentinel.config.rules import LEADING, Drain, Form, Role
from sentinel.model.records import Cause, Kind, Trust

RESET_DONE = "amd-reset-done"  # the driver reset the GPU, and it works again
GOING_DOWN = "going-down"  # the kernel is about to stop
BOOTED = "booted"  # the first line of a boot
# What a reboot mends: driver and firmware start anew. Worn memory and slots stay what they were.
_OF_A_BOOT = frozenset({Cause.GPU_FALLEN_OFF_BUS, Cause.GPU_GSP_OR_DRIVER, Cause.GPU_NVLINK, Cause.GPU_THERMAL_POWER})
NODE_FAILED, STILL_BOOTS = "node-failure", "srun-nodes-boot"  # Slurm's words: a node is out; one has not started yet
CONTAINED, UNCONTAINED = 94, frozenset({48, 63, 64, 95, 140, 171, 172})  # Xids of the memory
CUDA_ECC = "ecc-uncorrectable"  # what a program is told of either
TEST_BROKE = "dcgm-test-broke"  # DCGM's word that the test has an internal error
FAILED = "dcgm-failed"  # DCGM's name and a word of failure in one line
ADVICE = "dcgm-advice"  # what it advises then
BEFORE_BOOT = 0.2  # share of the weight beside what failed after it
BOOTED_FOR_S = 1800.0  # what failed sooner may have begun before the boot
_MESSAGE = 4  # lines below the row of a failed test in which the table says why
_BELOW = 4  # lines in which srun says it of the nodes that failed: no job ran on them yet
PORT_DOWN, LINK_UP, CABLE = "port-down", "link-up", "cable"
MANAGEMENT_DOWN = "management-port-down"  # of a port through which a node is managed: drains nothing
_TELLING = (
    RESET_DONE,
    GOING_DOWN,
    BOOTED,
    PORT_DOWN,
    MANAGEMENT_DOWN,
    CABLE,
    LINK_UP,
    STILL_BOOTS,
    TEST_BROKE,
    ADVICE,
)  # what lowers another reading
_FLAPS = 3  # a port that lost its link so often does not hold it, though it came up again each time
# Until all ports have trained. A driver tells the state of each that it finds, also of those without a cable.
STARTED_AFTER_S = 180.0
# Until the machine is off. Devices that lose power, and drivers taken down in the wrong order, report fatal errors.
OFF_WITHIN_S = 60.0
_OFF_WITHIN_LINES = 100  # the same in a log without times


def passed(readings: Sequence[Reading]) -> list[Reading]:
    """``readings``, in order of time, of which those that passed convict no more."""
    told: dict[str, list[Reading]] = {key: [] for key in _TELLING}
    for reading in readings:
        if reading.key in told:
            told[reading.key].append(reading)
    contained = _contained_on(readings)
    if not any(told.values()) and not contained:
        return list(readings)
    convicting = [reading for reading in readings if reading.drain.convicts]
    starting = {id(reading) for reading in readings if _starting(reading, told[BOOTED])}
    for key in (RESET_DONE, BOOTED):
        told[key] = [mended for mended in told[key] if not _failed_again(mended, convicting)]
    told[BOOTED] = [boot for boot in told[BOOTED] if _ran_well(boot, readings)]
    broken_tests = {id(test) for broke in told[TEST_BROKE] for test in _told_of(broke, convicting)}
    kept = [_lowered(reading, told, broken_tests, starting, contained) for reading in readings]
    # Of what one log says twice of one port or GPU, what did not pass counts: the first would be read for both.
    return [
        reading
        for before, reading in zip(readings, kept, strict=True)
        if reading is before or not any(_convicts_the_same(other, reading) for other in kept)
    ]


def _convicts_the_same(other: Reading, lowered: Reading) -> bool:
    """Whether ``other`` still convicts by the rule, and for the port or GPU, for which ``lowered`` does no more."""
    same = other.key == lowered.key and _same_log(lowered, other)
    return same and other.drain.convicts and _device(other) == _device(lowered)


def _device(reading: Reading) -> tuple[object, ...]:
    where = reading.evidence.where
    return where.gpu, where.nic, reading.evidence.data.get("pci")


def _lowered(
    reading: Reading,
    told: Mapping[str, Sequence[Reading]],
    broken_tests: Set[int],
    starting: Set[int],
    contained: Set[str | None],
) -> Reading:
    note = ""
    if reading.key == MANAGEMENT_DOWN and (
        id(reading) in starting or _of_link(reading, [*told[MANAGEMENT_DOWN], *told[LINK_UP]], starting)
    ):
        return replace(reading, weights={}, passed=True)  # it had not trained yet, or came up again
    if not reading.drain.convicts:
        return reading
    if reading.key == PORT_DOWN and any(lines_below(of_host, reading) == 0 for of_host in told[MANAGEMENT_DOWN]):
        return replace(reading, weights={}, passed=True, drain=Drain.NO)  # read as what it is, a port of 1 Gbit/s
    if any(_after(reading, stop) and _before_it_was_off(stop, reading) for stop in told[GOING_DOWN]):
        note = "while the machine was being shut down"
    elif points_to(reading) is Cause.GPU_GSP_OR_DRIVER and any(_after(reset, reading) for reset in told[RESET_DONE]):
        note = "the driver reset it, and it works again"
    elif points_to(reading) in _OF_A_BOOT and any(_after(boot, reading) for boot in told[BOOTED]):
        note = "the machine was booted since, before what failed"
        reading = replace(reading, weights={c: BEFORE_BOOT * w for c, w in reading.weights.items()}, role=Role.CONTEXT)
    elif reading.key in {PORT_DOWN, CABLE} and id(reading) in starting:
        note = "while the machine was starting"  # also of ports without a cable
    elif reading.key == PORT_DOWN:
        note = _of_link(reading, [*told[PORT_DOWN], *told[LINK_UP]], starting)
    elif reading.key == NODE_FAILED and any(
        0 < (lines_below(boot, reading) or 0) <= _BELOW for boot in told[STILL_BOOTS]
    ):
        note = "a node of the allocation did not start"
    elif id(reading) in broken_tests or any(
        lines_below(advice, reading) == 0 and reading.key == FAILED for advice in told[ADVICE]
    ):
        note = "the test itself broke"
    elif reading.key == CUDA_ECC and "CUDA" in reading.evidence.text and reading.evidence.where.node in contained:
        note = "the driver contained it"
    if not note:
        return reading
    return replace(reading, drain=Drain.SUSPECT, passed=True, note=f"{reading.note} ({note})")


def _contained_on(readings: Sequence[Reading]) -> Set[str | None]:
    """Nodes on which the driver contained an error of a GPU's memory, and whoever names none; empty where one was worse."""
    xids = [(r.evidence.data.get("xid"), r.evidence.where.node) for r in readings if r.evidence.kind == Kind.XID]
    nodes = {node for xid, node in xids if xid == CONTAINED}
    return nodes | {None} if nodes and not any(xid in UNCONTAINED for xid, _ in xids) else frozenset()


def _ran_well(boot: Reading, readings: Sequence[Reading]) -> bool:
    """Whether the system says that something failed a while after the boot, and nothing that a boot mends.

    What programs print has the times that they choose, and ends no machine's fault.
    """
    later = [r for r in readings if r.evidence.trust is Trust.SYSTEM and r.strength >= LEADS and r.role in LEADING]
    later = [r for r in later if (r.evidence.at - boot.evidence.at).total_seconds() > 0]
    again = (r for r in later if points_to(r) in _OF_A_BOOT and r.drain is not Drain.NO)
    if any(r.evidence.where.node in {boot.evidence.where.node, None} for r in again):
        return False
    return any((r.evidence.at - boot.evidence.at).total_seconds() >= BOOTED_FOR_S for r in later)


def _told_of(broke: Reading, convicting: Sequence[Reading]) -> list[Reading]:
    """The failed test of which DCGM says it: the nearest line above that convicts."""
    above = [
        (lines, reading)
        for reading in convicting
        if reading.form is Form.DCGM and 0 < (lines := lines_below(broke, reading) or 0) <= _MESSAGE
    ]
    nearest = min((lines for lines, _ in above), default=0)
    return [reading for lines, reading in above if lines == nearest]


def _failed_again(mended: Reading, convicting: Sequence[Reading]) -> bool:
    """Whether a line after it convicts the machine: a reset that succeeds may be followed by a start that fails."""
    return any(_after(reading, mended) for reading in convicting)


def _of_link(down: Reading, links: Sequence[Reading], starting: Set[int]) -> str:
    """Why a link that was lost convicts no more: it came up again, or was not up yet."""
    nic = down.evidence.where.nic
    same = [link for link in links if nic is not None and link.evidence.where.nic == nic and _same_log(link, down)]
    downs = [link for link in same if link.key == down.key and id(link) not in starting]
    if len(downs) >= _FLAPS or not same or max(same, key=_place).key != LINK_UP:
        return ""
    return "the link came up again"


def _starting(reading: Reading, boots: Sequence[Reading]) -> bool:
    """Whether the machine had just begun to start: by the line's own uptime, or by the boot that its log shows."""
    uptime_s = reading.evidence.data.get("uptime_s")
    if isinstance(uptime_s, float):
        return uptime_s < STARTED_AFTER_S
    after_s = ((reading.evidence.at - boot.evidence.at).total_seconds() for boot in boots if _after(reading, boot))
    return any(0 < seconds < STARTED_AFTER_S for seconds in after_s)  # not in a log without times


def _after(one: Reading, other: Reading) -> bool:
    """Whether ``one`` stands below ``other`` in the same log; what a program printed into it says nothing of the machine."""
    a, b = one.evidence, other.evidence
    if not _same_log(one, other):
        return False
    if None not in (parts := (a.data.get("pci"), b.data.get("pci"))) and parts[0] != parts[1]:
        return False
    return _place(one) > _place(other)


def _same_log(one: Reading, other: Reading) -> bool:
    a, b = one.evidence, other.evidence
    return a.source is b.source and a.trust is b.trust and (a.where.path, a.where.node) == (b.where.path, b.where.node)


def _place(reading: Reading) -> tuple[datetime, int]:
    return reading.evidence.at, reading.evidence.line or 0


def _before_it_was_off(stop: Reading, reading: Reading) -> bool:
    one, other = stop.evidence, reading.evidence
    began_s, at_s = one.data.get("uptime_s"), other.data.get("uptime_s")
    if (other.at - one.at).total_seconds() > OFF_WITHIN_S:
        return False
    if isinstance(began_s, float) and isinstance(at_s, float):
        return 0.0 <= at_s - began_s <= OFF_WITHIN_S  # less: of another boot
    if one.at != other.at:
        return True
    return (other.line or 0) - (one.line or 0) <= _OFF_WITHIN_LINES
