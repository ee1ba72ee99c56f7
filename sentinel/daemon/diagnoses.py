"""Diagnostics by order of the daemon: nodes under suspicion first, then idle nodes in rotation, never too many at once.

A node is suspect when a verdict named it so, when it fails more often than others, or when its parts age. It is tested as
soon as it is idle, outside the prolog, and stays suspect until a diagnostic passes on all its GPUs. Idle nodes without
suspicion take turns, the longest untested first, only while no job waits. Slurm knows nothing of all this: a node under test
can be given work at any moment, and its agent then ends the diagnostic; so a test is never in the way of a job, and a
suspect that gets work before its test is over is tested when it is idle again.

What a diagnostic finds comes as evidence of the node and goes the way of all evidence: with the answer, so that a node that
failed is in the judge's hands before the next turn, and through the agent's spool, should the answer be lost. What is
remembered here (who is suspect, who was tested when, who is being tested) is in the store, so that a restarted daemon
neither starts again nor counts fewer than there are: an agent goes on with an order whose daemon died.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from sentinel.adapters.store import Store
from sentinel.classify.ageing import Counter
from sentinel.daemon.judge import Judge
from sentinel.daemon.live import Live
from sentinel.daemon.orders import OrderBook
from sentinel.daemon.scores import Scores, read_scores
from sentinel.daemon.under_way import with_plans
from sentinel.errors import SentinelError, UserError
from sentinel.log import Log
from sentinel.model import Evidence, Fleet, Incident, IncidentState, JobView, Kind, NodeView, Result, StepKind, Verdict
from sentinel.ports import Clock, Orders
from sentinel.protocol import OrderKind
from sentinel.settings import Diagnostics, Modes, Settings
from sentinel.wire import evidence_from, time_from

KEY = "diagnoses"  # in the store
HOUR = timedelta(hours=1)
SCORES = timedelta(minutes=10)  # how old a month's history may be: of a large cluster it takes seconds to read
# Reasons of a pending job that wants no node yet, whoever else is idle.
_NOT_YET = frozenset({"Dependency", "DependencyNeverSatisfied", "BeginTime", "JobArrayTaskLimit"})


@dataclass(frozen=True, slots=True)
class Checkup:
    """What is known of one node's diagnostics. All of it may be unknown."""

    suspect: datetime | None = None  # since when, until one passes
    passed: datetime | None = None
    tried: datetime | None = None  # last order; where it brought no pass, when that was known
    until: datetime | None = None  # one is running, at most until then


@dataclass(frozen=True, slots=True)
class Turn:
    node: str
    level: int
    suspect: bool


def turns(
    known: Mapping[str, Checkup], idle: Mapping[str, datetime], *, waiting: bool, settings: Diagnostics, now: datetime
) -> list[Turn]:
    """Whose turn it is now.

    Never more than ``idle_fraction`` of the idle nodes are under test at once; where that is less than one node, a single
    suspect is tested all the same. Suspects go first; the rotation also keeps to its rate and yields to waiting jobs.

    Args:
        known: by node; one that is missing was never tested.
        idle: nodes that could be tested, with the time since which each is idle.
        waiting: whether a job waits for nodes.
    """
    running = {name for name, tested in known.items() if tested.until is not None and tested.until > now}
    free = {name: known.get(name, Checkup()) for name in idle if name not in running}
    most = int(settings.idle_fraction * len(idle.keys() | running))
    retry = timedelta(seconds=settings.retry_s)

    def due(tested: Checkup) -> bool:
        return tested.tried is None or now - tested.tried >= retry

    chosen: list[Turn] = []
    if settings.suspect_level:
        suspects = sorted((tested.suspect, name) for name, tested in free.items() if tested.suspect and due(tested))
        room = max(most, 1) - len(running)
        chosen = [Turn(name, settings.suspect_level, True) for _, name in suspects[: max(room, 0)]]
    if waiting or not settings.idle_level:
        return chosen
    lately = sum(1 for tested in known.values() if tested.tried is not None and now - tested.tried < HOUR)
    room = min(most - len(running), settings.idle_per_hour - lately) - len(chosen)
    taken = {turn.node for turn in chosen}
    period, settled = timedelta(seconds=settings.idle_period_s), timedelta(seconds=settings.settled_s)
    never = datetime.min.replace(tzinfo=now.tzinfo)
    rested = sorted(
        (tested.passed or never, tested.tried or never, name)
        for name, tested in free.items()
        if name not in taken
        and due(tested)
        and now - idle[name] >= settled
        and (tested.passed is None or now - tested.passed >= period)
    )
    return chosen + [Turn(name, settings.idle_level, False) for _, _, name in rested[: max(room, 0)]]


def waits(jobs: Iterable[JobView]) -> bool:
    """Whether a job waits for nodes: held ones, and those that wait for others or for a time, do not."""
    return any(job.state == "pending" and not job.held and job.reason not in _NOT_YET for job in jobs)


def idle_nodes(fleet: Fleet, modes: Modes) -> set[str]:
    """Nodes without work that may be tested: usable, not set aside, and in partitions where we may act.

    A diagnostic takes a node's GPUs for minutes; where only observing is allowed, none is started.
    """
    held = {
        name for job in fleet.jobs.values() if job.state in ("running", "completing", "suspended") for name in job.nodes
    }

    def acts(view: NodeView) -> bool:
        chosen = [modes.partitions[name] for name in view.partitions if name in modes.partitions]
        return all(mode.drain == "act" for mode in chosen or [modes.default])

    return {
        name
        for name, view in fleet.nodes.items()
        if view.state == "idle" and view.usable and "reserved" not in view.flags and name not in held
        and view.gpus != 0 and acts(view)
    }  # fmt: skip


def suspects(
    verdicts: Iterable[tuple[datetime, Verdict]], scores: Scores, settings: Diagnostics, now: datetime
) -> dict[str, datetime]:
    """Nodes under suspicion and since when: named so by a verdict, failing more often than others, or with parts that age.

    Ageing goes on whatever a diagnostic says: such a node is tested again when its last pass is ``idle_period_s`` old.
    """
    found: dict[str, datetime] = {}
    for at, verdict in verdicts:
        for name in verdict.suspect:
            found[name] = max(at, found.get(name, at))
    for name, score in scores.by_node.items():
        if score.lemon and score.last_at is not None:
            found[name] = max(score.last_at, found.get(name, score.last_at))
    since = now - timedelta(seconds=settings.idle_period_s)
    for name, ages in scores.trends.items():
        if any(trend.suspect for trend in ages):
            found[name] = max(since, found.get(name, since))
    return found


def in_hand(incidents: Iterable[Incident]) -> set[str]:
    """Nodes whose failed diagnostic is being judged or acted upon, or waits for a person: no second one says more."""
    return {
        item.where.node
        for incident in incidents
        if incident.state is not IncidentState.CLOSED
        for item in incident.evidence
        if item.kind == Kind.DIAG_FAILED and item.where.node is not None
    }


class Diagnoses:
    """Orders diagnostics and remembers what came of them.

    Args:
        going: nodes that are about to go out, or whose failure is in hand: the snapshot may not show it yet. May block.
        observe: takes what a diagnostic found.
        kept: reads what an earlier daemon put in the store; ``keep`` writes it. Both may block.
        suspected: nodes under suspicion now, and since when. May block.
        paused: whether an operator paused us. May block.

    Raises:
        UserError: the settings do not fit together.
    """

    def __init__(
        self,
        *,
        orders: Orders,
        connected: Callable[[str], bool],
        live: Live,
        settings: Diagnostics,
        modes: Modes,
        kept: Callable[[], Any],
        keep: Callable[[Any], None],
        suspected: Callable[[datetime], Mapping[str, datetime]],
        going: Callable[[Fleet, datetime], Collection[str]],
        observe: Callable[[Sequence[Evidence]], Awaitable[None]],
        paused: Callable[[], bool],
        clock: Clock,
        log: Log,
    ) -> None:
        if len(settings.deadline_s) != 4 or min(settings.deadline_s) <= 0:
            raise UserError("diagnostics.deadline_s: needs four positive numbers", fix="one for each level")
        self._orders = orders
        self._connected = connected
        self._live = live
        self._settings = settings
        self._modes = modes
        self._kept = kept
        self._keep = keep
        self._suspected = suspected
        self._going = going
        self._observe = observe
        self._paused = paused
        self._clock = clock
        self._log = log
        self._known: dict[str, Checkup] | None = None
        self._idle: dict[str, datetime] = {}
        self._running: set[asyncio.Task[None]] = set()

    @property
    def off(self) -> bool:
        return not self._settings.suspect_level and not self._settings.idle_level

    async def turn(self) -> None:
        """Called now and then: give out the turns that are due."""
        fleet, now = self._live.fleet, self._clock.now()
        if self.off or fleet is None or await asyncio.to_thread(self._paused):
            return
        if self._known is None:
            self._known = read(await asyncio.to_thread(self._kept))
        going = await asyncio.to_thread(self._going, fleet, now)
        self._see_idle(idle_nodes(fleet, self._modes) - set(going), now)
        news = await self._see_suspects(now)
        reachable = {name: since for name, since in self._idle.items() if self._connected(name)}
        due = turns(self._known, reachable, waiting=waits(fleet.jobs.values()), settings=self._settings, now=now)
        for turn in due:
            until = now + timedelta(seconds=self._settings.deadline_s[turn.level - 1])
            self._known[turn.node] = replace(self._known.get(turn.node, Checkup()), tried=now, until=until)
        if due or news:
            await self._save()  # before the first order: a daemon that dies now still counts them
        for turn in due:
            task = asyncio.create_task(self._ask(turn))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def stop(self) -> None:
        """Wait for no answer any more; the agents go on, and what they find comes as evidence."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def _see_idle(self, idle: Collection[str], now: datetime) -> None:
        self._idle = {name: self._idle.get(name, now) for name in idle}

    async def _see_suspects(self, now: datetime) -> bool:
        """Whether there is a suspicion that is not known yet."""
        assert self._known is not None
        before = dict(self._known)
        for name, since in (await asyncio.to_thread(self._suspected, now)).items():
            tested = self._known.get(name, Checkup())
            if (tested.passed is None or tested.passed < since) and (tested.suspect is None or tested.suspect < since):
                self._known[name] = replace(tested, suspect=since)
        return self._known != before

    async def _ask(self, turn: Turn) -> None:
        assert self._known is not None
        self._log.info("diagnostic-ordered", node=turn.node, level=turn.level, suspect=turn.suspect)
        # A job goes before it ("yields"), and all GPUs are meant: only that is a proof for the node.
        arguments = {"level": turn.level, "gpus": None, "yields": True}
        result, reason = "unknown", ""
        try:
            deadline_s = self._settings.deadline_s[turn.level - 1]
            answer = await self._orders.ask(turn.node, OrderKind.DIAGNOSE, arguments, deadline_s=deadline_s)
            if isinstance(answer, dict):
                result, reason = str(answer.get("result", "unknown")), str(answer.get("reason", ""))[:300]
                await self._found(turn.node, answer)
        except SentinelError as error:
            reason = error.message
        tested = replace(self._known.get(turn.node, Checkup()), until=None)
        if result == "pass":
            # It answers for what was known when it began: what came up meanwhile is another question.
            later = tested.suspect is not None and tested.tried is not None and tested.suspect > tested.tried
            tested = replace(tested, passed=tested.tried, suspect=tested.suspect if later else None)
        else:
            tested = replace(tested, tried=self._clock.now())  # the pause begins now: some take longer than it lasts
        self._known[turn.node] = tested
        await self._save()
        self._log.info("diagnostic-answered", node=turn.node, level=turn.level, result=result, reason=reason)

    async def _found(self, node: str, answer: Mapping[str, Any]) -> None:
        """Its evidence, before anything else is decided of the node. The agent sends the same, by the same ids."""
        items = answer.get("evidence")
        try:
            found = [evidence_from(item) for item in items] if isinstance(items, list) else []
            await self._observe([item for item in found if item.where.node == node])
        except SentinelError as error:
            self._log.warning("diagnostic-not-kept", node=node, reason=error.message)

    async def _save(self) -> None:
        assert self._known is not None
        await asyncio.to_thread(self._keep, written(self._known))


def written(known: Mapping[str, Checkup]) -> dict[str, dict[str, str]]:
    """JSON for the store."""
    return {
        name: {key: at.isoformat() for key, at in asdict(tested).items() if at is not None}
        for name, tested in known.items()
    }


def read(value: Any) -> dict[str, Checkup]:
    """What ``written`` made. A node whose entry cannot be read was never tested."""
    found = {}
    for name, entry in value.items() if isinstance(value, dict) else ():
        try:
            found[str(name)] = Checkup(**{key: time_from(at) for key, at in entry.items()})
        except (TypeError, ValueError, AttributeError, SentinelError):
            continue
    return found


def wired(
    *,
    orders: OrderBook,
    judge: Judge,
    live: Live,
    store: Store,
    counters: Mapping[str, Counter],
    settings: Settings,
    clock: Clock,
    log: Log,
) -> Diagnoses:
    """Diagnoses of a daemon: suspicion comes from its judge and from the store's history."""
    chosen = settings.diagnostics
    scores, read_at = Scores(), datetime.min.replace(tzinfo=UTC)

    def suspected(now: datetime) -> dict[str, datetime]:
        nonlocal scores, read_at
        if now - read_at >= SCORES:
            scores, read_at = read_scores(store, live, counters, now), now
        # Dated by the opening: what a test itself adds to an incident is no new suspicion.
        opened = {name: incident.opened_at for name, incident in list(judge.incidents.items())}
        named = [(opened[name], verdict) for name, verdict in list(judge.verdicts.items()) if name in opened]
        return suspects(named, scores, chosen, now)

    def going(fleet: Fleet, now: datetime) -> set[str]:
        done = store.steps_done([StepKind.DRAIN, StepKind.DOWN], since=now - HOUR, results=(Result.DONE, Result.FAILED))
        soon, _ = with_plans(fleet, list(judge.plans.values()), done, now)
        drained = {name for name, view in soon.nodes.items() if view.drained}
        return drained | in_hand(list(judge.incidents.values()))

    return Diagnoses(
        orders=orders,
        connected=orders.connected,
        live=live,
        settings=chosen,
        modes=settings.modes,
        kept=lambda: store.get(KEY),
        keep=lambda value: store.put(KEY, value),
        suspected=suspected,
        going=going,
        observe=judge.observe,
        paused=lambda: bool(store.get("paused", False)),
        clock=clock,
        log=log,
    )
