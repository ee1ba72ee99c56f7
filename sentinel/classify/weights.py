"""Turns readings into odds: a cause outweighs its consequences, each line counts once, no cause is excluded."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from math import exp, inf

from sentinel.classify.readings import Reading
from sentinel.classify.roles import LEADS, WAITED, before, missed_peers, points_to, roles_of
from sentinel.config.rules import LEADING, OWN_LOGS, Drain, Form, Role, Rules
from sentinel.model.records import Cause, Ground

LATER = (1.0, 0.7, 0.55, 0.45)  # weight of the first, second, ... cause in time
LATER_HARD = 0.9  # the first line that convicts a machine may be written late
LATE = 0.95  # the same for a line that is always written after what it reports did its harm
SHADOW = 0.08  # weight of a consequence while its cause is known, or of a fault that passed beside one that did not
EXPLAINED = 0.3  # the same beside a watchdog's message, while no cause is known
OUTLIVED = 0.2  # weight of a warning where anything else says how the program ended: it went on after it
QUOTING = 0.25  # weight of an exception whose message is the traceback of another one, which says what happened
SAME_LINE = 0.3  # weight of a second rule that says the same of the same line
RIVALS = (2.5, 1.9, 1.5)  # how much likelier what is often mistaken for the leading cause is than the rest


C = Cause
# Causes that are mistaken for each other: what speaks for one of them speaks against the other families.
FAMILIES = (
    frozenset(
        {C.USER_CODE, C.USER_CONFIG, C.SOFTWARE_ENV, C.APP_OOM_GPU, C.APP_OOM_HOST, C.DATALOADER, C.NUMERICAL_NAN}
        | {C.COLLECTIVE_MISMATCH, C.CHECKPOINT_CORRUPT}
    ),
    frozenset(
        {C.GPU_MEMORY_ECC, C.GPU_FALLEN_OFF_BUS, C.GPU_NVLINK, C.GPU_GSP_OR_DRIVER, C.GPU_THERMAL_POWER, C.PCIE}
        | {C.NODE_OS_OR_HOST, C.NODE_FAILURE}
    ),
    frozenset({C.NETWORK_BOOTSTRAP, C.NETWORK_FABRIC, C.NCCL_HANG_UNKNOWN}),
    frozenset({C.FILESYSTEM_STORAGE, C.DISK_FULL}),
    frozenset({C.SCHEDULER_PREEMPT_OR_TIMELIMIT}),
)
# What follows for the node, the least first.
_FOLLOWS = {drain: number for number, drain in enumerate((Drain.NO, Drain.SUSPECT, Drain.ADVISE, Drain.YES))}
# What DataLoader workers, process pools and Ray raise again, with the traceback of the first one as its message.
_QUOTES = re.compile(
    r"\bCaught \w{1,60} in |: Traceback \(most recent call last\):?\s*$|\b_?RemoteTraceback: ?\W{0,3}$|\braised:?\s*$"
    r"|\bRayTaskError\b"
)
# What only says that the lines below it tell what happened: a class with nothing behind it, XLA's and TensorFlow's headings.
_HEADS = re.compile(r":\s*$|\broot error\(s\) found|\berror (?:in: \S{1,120}|code is \d{1,7})\s*$")
# NCCL's result code in PyTorch's and XLA's words; what NCCL itself said last stands behind it, mostly on a line of its own.
_CODE_ONLY = re.compile(r"\bunhandled (?:system|cuda) error\b[^\n]{0,20}\(run with\b")
HEADED = 8  # lines below such a heading that belong to it
DECIDED = 0.5  # share from which a cause leads whatever its siblings' are


@dataclass(frozen=True, slots=True)
class Weighed:
    reading: Reading
    factor: float

    def of(self, cause: Cause) -> float:
        return self.reading.weights.get(cause, 0.0) * self.factor


def order(readings: Iterable[Reading]) -> list[Reading]:
    """In order of time; lines of one file that carry no time of their own stay in their order."""
    indexed = list(enumerate(readings))
    indexed.sort(key=lambda pair: (pair[1].evidence.at, pair[1].evidence.line or 0, pair[0]))
    return [reading for _, reading in indexed]


def weigh(readings: Sequence[Reading], rules: Rules) -> list[Weighed]:
    """Each reading with the share of its weight that counts."""
    noise = _noise(readings)
    silent = [Weighed(reading, 0.0) for reading in readings if id(reading) in noise]
    readings = [reading for reading in readings if id(reading) not in noise]
    peers = missed_peers(readings)
    roles = roles_of(readings, peers, rules)
    causes = [r for r in readings if roles[id(r)] is Role.CAUSE and r.strength >= LEADS]
    first = next((r for r in readings if roles[id(r)] in {Role.CAUSE, Role.FALLBACK} and r.strength >= LEADS), None)
    ended = any(r.role is not Role.CONTEXT and r.strength >= LEADS for r in readings)  # somebody says how
    hung = _hung(r for r in readings if id(r) not in peers)
    echoes, ends, told = _echoes(readings), _ends(readings), _told(readings)
    plain = {reading.key for reading in readings if not reading.warned}
    loudest = _loudest(r for r in readings if r.warned and r.key not in plain)
    lasting = {reading.key for reading in readings if not reading.passed}
    headlines = {id(reading) for reading in readings if _quotes(reading, ends) or _heads(reading, told)}
    gravest = _gravest(
        reading
        for reading in readings
        if id(reading) not in headlines and not (reading.passed and reading.key in lasting)
        if not (reading.warned and reading.key in plain)  # a warning came true: that line counts
    )
    lesser: set[str] = set()  # keys of headlines, and of faults that passed beside one that did not: each counts once
    lines: list[object] = []  # causes in order of time, by the line that said them
    hard_line: object = None  # the first line that convicts a machine
    weighed = []
    for reading in readings:
        if id(reading) in headlines:  # before what it says is taken as said
            weighed.append(Weighed(_headline(reading), 0.0 if reading.key in lesser else 1.0))
            lesser.add(reading.key)
            continue
        if reading.passed and reading.key in lasting:  # another device's did not pass: that one decides
            weighed.append(Weighed(reading, 0.0 if reading.key in lesser else SHADOW))
            lesser.add(reading.key)
            continue
        # Of two GPUs the one that missed a test by little does not speak for the one that missed it by far.
        if reading is not gravest.get(reading.key):
            weighed.append(Weighed(reading, 0.0))
            continue
        role = roles[id(reading)]
        factor = 1.0
        if role is Role.CONSEQUENCE and (id(reading) in peers or (first and (causes or not before(reading, first)))):
            factor = SHADOW
        elif role is Role.CONSEQUENCE and hung >= _explaining(reading):
            factor = EXPLAINED  # a watchdog aborts its process, and the launcher tells of the abort
        elif role is Role.FALLBACK and causes and not before(reading, causes[0]):
            factor = 0.4
        elif reading.warned:  # several warnings say no more than one
            factor = SHADOW if reading is not loudest else OUTLIVED if ended else 1.0
        elif role in {Role.CAUSE, Role.FALLBACK} and reading.strength >= LEADS:
            place = (reading.evidence.where.path, reading.evidence.line, reading.evidence.at)
            if place not in lines:
                lines.append(place)
            rank = min(lines.index(place), len(LATER) - 1)
            hard, gone = reading.drain is not Drain.NO, Cause.NODE_FAILURE in reading.weights
            factor = max(LATER[rank], LATER_HARD if hard and (gone or hard_line in {None, place}) else 0.0)
            factor = max(factor, LATE if reading.late else 0.0)
            hard_line = place if hard and hard_line is None else hard_line
        weighed.append(Weighed(reading, factor * (SAME_LINE if id(reading) in echoes else 1.0)))
    return weighed + silent


def _hung(readings: Iterable[Reading]) -> float:
    """How strong the strongest word of a hang is."""
    return max((r.strength for r in readings if points_to(r) is Cause.NCCL_HANG_UNKNOWN), default=0.0)


def _loudest(readings: Iterable[Reading]) -> Reading | None:
    return max(readings, key=lambda reading: reading.strength, default=None)


def _gravest(readings: Iterable[Reading]) -> dict[str, Reading]:
    """By key the reading that counts: the first of those from which most follows."""
    found: dict[str, Reading] = {}
    for reading in readings:
        known = found.get(reading.key)
        if known is None or _FOLLOWS[reading.drain] > _FOLLOWS[known.drain]:
            found[reading.key] = reading
    return found


def _explaining(reading: Reading) -> float:
    """How strong the word of a hang must be that explains ``reading``, a consequence.

    That a peer is gone does not explain what killed a process (SIGKILL): one that is killed is the peer that is gone.
    """
    least: dict[Cause | None, float] = {Cause.NCCL_HANG_UNKNOWN: inf, Cause.APP_OOM_HOST: WAITED}
    return least.get(points_to(reading), LEADS)


def _ends(readings: Sequence[Reading]) -> dict[str | None, int]:
    """By log: the last line that names a cause."""
    last: dict[str | None, int] = {}
    for reading in readings:
        if reading.strength >= LEADS and reading.role in {Role.CAUSE, Role.FALLBACK}:
            path = reading.evidence.where.path
            last[path] = max(last.get(path, 0), reading.evidence.line or 0)
    return last


def _quotes(one: Reading, ends: Mapping[str | None, int]) -> bool:
    """Whether the line's message is another exception's traceback, and a cause is named after it."""
    later = (one.evidence.line or 0) < ends.get(one.evidence.where.path, 0)
    return later and one.strength >= LEADS and _QUOTES.search(one.evidence.text) is not None


def _headline(reading: Reading) -> Reading:
    """What it says of the cause is said again below it; where that happened, as in a data worker, it alone says."""
    weights = {cause: QUOTING * weight if weight > 0 else weight for cause, weight in reading.weights.items()}
    return replace(reading, weights=weights)


def _told(readings: Sequence[Reading]) -> dict[str | None, list[int]]:
    """By log: the lines whose sentence a rule knows, which names a cause."""
    lines: dict[str | None, list[int]] = {}
    for reading in readings:
        plain = reading.role in LEADING and reading.role is not Role.FALLBACK and not reading.generic
        if plain and reading.strength >= LEADS and reading.evidence.line is not None:
            lines.setdefault(reading.evidence.where.path, []).append(reading.evidence.line)
    return lines


def _heads(one: Reading, told: Mapping[str | None, list[int]]) -> bool:
    """Whether the line names an exception only by its class, or as a heading, and the lines right below it say more."""
    line = one.evidence.line
    if line is None or not _is_heading(one):
        return False
    return any(0 < other - line <= HEADED for other in told.get(one.evidence.where.path, ()))


def _is_heading(one: Reading) -> bool:
    if _CODE_ONLY.search(one.evidence.text):
        return True
    return (one.generic or one.role is Role.FALLBACK) and _HEADS.search(one.evidence.text) is not None


def _noise(readings: Sequence[Reading]) -> set[int]:
    """Readings of a service's or tool's line that a rule knows as meaning nothing: so does an error code in it.

    Where a tool says that all is well, that goes for words that can drain, too; not in a machine's own log, in whose lines
    other programs' names stand.
    """
    nothing = [
        reading
        for reading in readings
        if reading.evidence.line is not None and reading.role is Role.CONSEQUENCE
        if not reading.weights and reading.form is not Form.PROGRAM
    ]
    silent = {_line(reading) for reading in nothing}
    by_tools = {_line(reading) for reading in nothing if reading.form is Form.TOOL}
    return {
        id(reading)
        for reading in readings
        if _line(reading) in silent
        if reading.drain is Drain.NO or (_line(reading) in by_tools and reading.evidence.source not in OWN_LOGS)
    }


def _line(reading: Reading) -> tuple[str | None, int | None]:
    """Which line of which log it is of."""
    return reading.evidence.where.path, reading.evidence.line


def _echoes(readings: Sequence[Reading]) -> set[int]:
    """Readings of a line of which a stronger rule already said the same, or of which another knew more than its class."""
    by_line: dict[tuple[object, ...], list[Reading]] = {}
    for reading in readings:
        if reading.evidence.line is not None:
            by_line.setdefault(_line(reading), []).append(reading)
    echoes: set[int] = set()
    for group in by_line.values():
        group.sort(key=lambda reading: -reading.strength)
        said: set[Cause] = set()
        known = max((r.strength for r in group if not r.generic and r.role in LEADING), default=0.0)
        for reading in group:
            causes = {cause for cause, weight in reading.weights.items() if weight > 0}
            if causes & said or (reading.generic and known >= max(reading.strength, LEADS)):
                echoes.add(id(reading))
            said |= causes
    return echoes


def odds(weighed: Sequence[Weighed], rules: Rules) -> dict[Cause, float]:
    """Natural-log odds of every cause, priors included."""
    totals = {cause: entry.prior for cause, entry in rules.causes.items()}
    for item in weighed:
        for cause in item.reading.weights:
            if cause in totals:
                totals[cause] += item.of(cause)
    return totals


def shares(totals: dict[Cause, float], temperature: float) -> list[tuple[Cause, float]]:
    """Probabilities, likeliest first."""
    if not totals:
        return []
    top = max(totals.values())
    raw = {cause: exp((value - top) / temperature) for cause, value in totals.items()}
    whole = sum(raw.values())
    return sorted(((cause, value / whole) for cause, value in raw.items()), key=lambda pair: (-pair[1], pair[0]))


def _supported(ranked: Sequence[tuple[Cause, float]], weighed: Sequence[Weighed], family: Set[Cause]) -> list[Cause]:
    return [cause for cause, _ in ranked if cause in family and any(item.of(cause) > 0 for item in weighed)]


def siblings(ranked: Sequence[tuple[Cause, float]], weighed: Sequence[Weighed]) -> tuple[float, float]:
    """Share of the leading cause together with the siblings that something speaks for, and what speaks for any of them.

    A program's own error of a kind that no rule knows is one of the application's causes, so there all siblings count.
    """
    family = next(family for family in FAMILIES if ranked[0][0] in family)
    supported = _supported(ranked, weighed, family)
    own = any(item.reading.role in LEADING and item.of(cause) > 0 for item in weighed for cause in supported)
    counted = family if family is FAMILIES[0] and own else supported
    share = sum(share for cause, share in ranked if cause in counted)
    return share, sum(max((item.of(cause) for cause in supported), default=0.0) for item in weighed)


def with_siblings(ranked: list[tuple[Cause, float]], weighed: Sequence[Weighed]) -> list[tuple[Cause, float]]:
    """Where no cause is decided, the likeliest one of the likeliest family leads."""
    if not ranked or ranked[0][1] >= DECIDED:
        return ranked
    share = dict(ranked)
    sums = [sum(share[cause] for cause in _supported(ranked, weighed, family)) for family in FAMILIES]
    supported = _supported(ranked, weighed, FAMILIES[sums.index(max(sums))])
    if not supported:
        return ranked
    return [(supported[0], share[supported[0]]), *(pair for pair in ranked if pair[0] is not supported[0])]


def with_rivals(ranked: list[tuple[Cause, float]], rules: Rules) -> list[tuple[Cause, float]]:
    """What is often mistaken for the likeliest cause ranks before what nothing speaks for; the likeliest keeps its share."""
    entry = rules.causes.get(ranked[0][0]) if ranked else None
    if entry is None or len(ranked) < 2:
        return ranked
    (leader, share), rest = ranked[0], ranked[1:]
    raised = {cause: p * RIVALS[entry.rivals.index(cause)] if cause in entry.rivals else p for cause, p in rest}
    scale = (1 - share) / (sum(raised.values()) or 1.0)
    others = sorted(
        ((cause, min(p * scale, share)) for cause, p in raised.items()), key=lambda pair: (-pair[1], pair[0])
    )
    return [(leader, share), *others]


def grounds(weighed: Sequence[Weighed], cause: Cause) -> tuple[tuple[Ground, ...], tuple[Ground, ...]]:
    """What spoke for the cause and what spoke against it, strongest first."""
    spoke_for: list[Ground] = []
    against: list[Ground] = []
    for item in weighed:
        weight = item.of(cause)
        rival = max((item.of(other) for other in item.reading.weights if other is not cause), default=0.0)
        if weight >= 0.05:
            spoke_for.append(Ground(item.reading.evidence, round(weight, 2), item.reading.note))
        elif weight <= -0.05 or rival >= 0.3:
            against.append(Ground(item.reading.evidence, round(min(weight, -rival), 2), item.reading.note))
    spoke_for.sort(key=lambda g: -g.weight)
    against.sort(key=lambda g: g.weight)
    return tuple(spoke_for[:12]), tuple(against[:12])
