"""Chooses and quarantines a job's checkpoints across the fleet: nodes list and check them as the job's user.

The daemon reads no file of a user. Each node lists its local folders, one node lists the shared ones. Where no node
answers the content is *not known*, and a checkpoint that depends on it is not chosen.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from sentinel.adapters.store.store import Store
from sentinel.checkpoints.choose import choose
from sentinel.checkpoints.fleet_parts import (
    is_unread_root,
    may_not_exist,
    pattern_of,
    rank_hosts,
    root_of,
    world_size_of,
)
from sentinel.checkpoints.join import joined_by_root
from sentinel.checkpoints.records import Candidate, Costs, Decision, Part, Run, parse_level
from sentinel.config.settings import Recovery
from sentinel.daemon.effects.earlier_restarts import EarlierRestarts
from sentinel.daemon.effects.folder_listings import Check, FolderListings
from sentinel.daemon.effects.other_runs import folders_of_others, without_others
from sentinel.daemon.effects.patience import Patience
from sentinel.daemon.effects.unusable_parts import left_of, unusable, without_anothers, words_of, words_of_links
from sentinel.daemon.ingest.fleets import FleetSnapshots
from sentinel.detect.cluster_view import ClusterView
from sentinel.detect.failed_resume import checkpoint_name
from sentinel.detect.seen import AttemptSeen
from sentinel.errors import ProtocolError, Refused, SentinelError, Unavailable
from sentinel.log import Log
from sentinel.model.intent import Intent, intent_of
from sentinel.model.orders import MOST_PATHS, MoveAside, Root
from sentinel.model.records import Fleet, JobView, Result, Scalar, StepKind, Task
from sentinel.model.vocabulary import ANYWHERE, BY_SCRIPT
from sentinel.ports import Orders
from sentinel.text import names

_ATTEMPTS = 3  # newest attempts (with the failed one) whose allocations may be requested again
_REMEMBERED = 32  # incidents whose listings are cached until their checkpoints are moved aside; others are listed again


@dataclass(frozen=True, slots=True)
class Seen:
    """The checkpoints found for one incident."""

    parts: tuple[Part, ...]
    candidates: tuple[Candidate, ...]
    world: int | None
    problems: tuple[str, ...]


class FleetCheckpoints:
    """Implements ``sentinel.actions.means.Checkpoints``."""

    def __init__(
        self,
        *,
        orders: Orders,
        live: ClusterView,
        fleets: FleetSnapshots,
        store: Store,
        recovery: Recovery,
        log: Log,
        seconds: Callable[[], float] | None = None,
    ) -> None:
        """``seconds``: a monotonic clock; the default is the system's."""
        self._patience = Patience(seconds or time.monotonic)
        self._orders = orders
        self._listings = FolderListings(orders, fleets, recovery.inventory_s)
        self._live = live
        self._fleets = fleets
        self._earlier = EarlierRestarts(store, live)
        self._recovery = recovery
        self._log = log
        self._seen: dict[tuple[str, int], Seen] = {}  # by incident and job

    async def choose(self, task: Task, job: JobView) -> Mapping[str, Scalar]:
        step = task.step.key(task.incident.id)
        try:
            made = await self._choose(task, job)
        except Unavailable as error:
            if self._patience.lasts(step, self._recovery.storage_s):
                raise
            if task.verdict.onset_step is not None:
                raise Refused(
                    f"numbers went bad at step {task.verdict.onset_step}, and which checkpoints are older is not known: "
                    f"{error.message}",
                    fix=f"name a checkpoint before it in the script, then scontrol release {job.spec}",
                ) from error
            # The nodes do not answer and the job has waited long enough: let its script resume as it would by default.
            words = f"not checked, the job resumes as its script does: {error.message}"
            return {"explanation": words, BY_SCRIPT: True}
        except SentinelError:
            self._patience.ended(step)
            raise
        self._patience.ended(step)
        return made

    async def _choose(self, task: Task, job: JobView) -> Mapping[str, Scalar]:
        intent = intent_of(job.comment, job.id)
        if not intent.global_roots and not intent.local_roots:
            words = "the job named no checkpoint folders in its comment; it resumes as its script does"
            return {"explanation": words, BY_SCRIPT: True}
        if job.het is not None and intent.global_roots:
            if (made := await self._choice_for_another_component(task, job, intent)) is not None:
                return made
            intent = replace(intent, local_roots=())  # which ranks are whose, of all components, is not known
        bad = _barred(task)
        homes = await self._homes(task, job, bad)
        seen = await self._look(task, job, intent, self._lookers(task, bad, homes))
        others = folders_of_others(await self._fleets.take(2.0), job)
        own, mixed = without_others(seen.candidates, others, intent)
        seen = replace(seen, candidates=tuple(own), problems=(*seen.problems, *mixed))
        reached, step_s = await self._earlier.progress(task)
        survivors = await self._survivors(task, job, bad)
        rejected = await self._earlier.rejected(task)
        left_out = {f"{c.path}@{c.step}": why for c in own if (why := rejected.get(_name(c, intent)))}
        # Not in the event loop: a listing may be megabytes, of users' files.
        decision, nodes = await asyncio.to_thread(
            self._decide, task, seen, homes, survivors, bad, reached, step_s, left_out
        )
        if decision.chosen is None:
            await self._require_known(task, intent, seen.parts)
        self._log.info(
            "checkpoint-choice",
            incident=task.incident.id,
            step=decision.chosen.step if decision.chosen else None,
            tier=decision.chosen.tier if decision.chosen else None,
            why=decision.explanation,
            problems="; ".join(seen.problems),
        )
        explanation = "; ".join(filter(None, [decision.explanation, *seen.problems]))[:1500]
        if decision.chosen is None:
            if seen.candidates or mixed:
                _hold_if_bad(job, task.verdict.onset_step, explanation)
            by_script = {BY_SCRIPT: True} if mixed else {}
            return {"explanation": explanation, "last_step": reached, **by_script}
        chosen = decision.chosen
        return {
            "path": pattern_of(chosen, intent),
            "step": chosen.step,
            "tier": chosen.tier,
            "format": chosen.format,
            "level": chosen.level,
            "hosts": ",".join(nodes) if chosen.tier == "local" else "",
            "last_step": reached,
            "lost_steps": decision.lost_steps,
            "failed_before": self._earlier.failed(task, rejected),
            "explanation": explanation,
        }

    async def _choice_for_another_component(
        self, task: Task, job: JobView, intent: Intent
    ) -> Mapping[str, Scalar] | None:
        """What was chosen for another component that saves in the same folders: they train together."""
        fleet = await self._fleets.take(30.0)
        for step in task.plan.steps:
            other = (
                fleet.jobs.get(step.job) if step.kind is StepKind.CHOOSE_CHECKPOINT and step.job is not None else None
            )
            if other is None or other.id == job.id or other.het != job.het:
                continue
            made = await self._earlier.outcome(task.incident.id, step)
            same = intent_of(other.comment, other.id).global_roots == intent.global_roots
            if same and made is not None and made.result is Result.DONE:
                return made.data
        return None

    async def _require_known(self, task: Task, intent: Intent, parts: Sequence[Part]) -> None:
        """There is no checkpoint to choose: that must be known of the shared folders, and not only look so on these nodes.

        Raises:
            Unavailable: one cannot be read, or saves were seen there and it is empty or gone, as where its mount is lost.
        """
        here = [part for part in parts if part.tier == "global"]
        unread = list(filter(is_unread_root, here))
        saved = await self._earlier.saved_to(task.job) - {"local"} if unread else frozenset()
        for part in unread:
            if saved or not may_not_exist(part):
                raise Unavailable(f"{part.host}: {part.root} {part.reason}")
        if here or not intent.global_roots:
            return
        if "global" in await self._earlier.left_in(task.job):
            raise Unavailable(f"saves were seen in {', '.join(intent.global_roots)}, and nothing is there now")

    def _decide(
        self,
        task: Task,
        seen: Seen,
        homes: Sequence[tuple[str, ...]],
        survivors: tuple[str, ...],
        bad: frozenset[str],
        reached: int | None,
        step_time_s: float | None,
        rejected: Mapping[str, str],
    ) -> tuple[Decision, tuple[str, ...]]:
        """The cheapest choice over the allocations that the job could get again, with that allocation."""
        attempt = self._live.attempts.get((task.job, task.attempt))
        onset = task.verdict.onset_step
        options: list[tuple[Decision, tuple[str, ...]]] = []
        for nodes in homes or [survivors]:
            decision = choose(
                seen.candidates,
                step_last=reached,
                step_time_s=step_time_s or self._recovery.step_time_s,
                next_nodes=frozenset(nodes),
                lost_nodes=bad,
                world_size=None,
                costs=Costs(
                    read_bytes_per_s={"local": 20e9, "peer": 10e9, "global": self._recovery.restore_bytes_per_s}
                ),
                onset_step=onset,
                rank_hosts=rank_hosts(seen.world, nodes) if homes else None,
                rejected=rejected,
                level=None if onset is not None else parse_level(self._recovery.checkpoint_level),
                local_survives=self._recovery.local_survives,
                run=_run(attempt),
            )
            options.append((decision, nodes))
        return min(options, key=lambda option: option[0].cost_s if option[0].cost_s is not None else float("inf"))

    async def _homes(self, task: Task, job: JobView, bad: frozenset[str]) -> list[tuple[str, ...]]:
        """Allocations of recent attempts whose nodes are all free and healthy: there each rank finds its local shards."""
        if task.step.data.get(ANYWHERE):
            return []
        if (run := _next_run(task)) is not None:  # restarted in its allocation: on exactly these nodes
            return [run] if task.step.data.get("same") else []
        fleet = await self._fleets.take(2.0)
        found: list[tuple[str, ...]] = []
        for attempt in range(task.attempt, max(-1, task.attempt - _ATTEMPTS), -1):
            nodes = self._live.nodes_of(task.job, attempt)
            free = all(_free(fleet, name, job) for name in nodes)
            barred = bad | set(job.excluded)  # excluded nodes are not requested again
            if nodes and free and not barred & set(nodes) and nodes not in found:
                found.append(nodes)
        return found

    async def _survivors(self, task: Task, job: JobView, bad: frozenset[str]) -> tuple[str, ...]:
        """Free, healthy nodes of the failed attempt: the job may be made to wait for these."""
        if task.step.data.get(ANYWHERE):
            return ()
        if (run := _next_run(task)) is not None:
            return run
        fleet = await self._fleets.take(2.0)
        nodes = self._live.nodes_of(task.job, task.attempt)
        barred = bad | set(job.excluded)
        return tuple(name for name in nodes if name not in barred and _free(fleet, name, job))

    def _lookers(self, task: Task, bad: frozenset[str], homes: Sequence[tuple[str, ...]]) -> list[str]:
        """Nodes whose local folders are listed: those of the failed attempt, then those of earlier attempts."""
        nodes = [*self._live.nodes_of(task.job, task.attempt), *(name for home in homes for name in home)]
        return [name for name in dict.fromkeys(nodes) if name not in bad]

    async def quarantine(self, task: Task, job: JobView, chosen: Mapping[str, Scalar]) -> Mapping[str, Scalar]:
        intent = intent_of(job.comment, job.id)
        if not intent.global_roots and not intent.local_roots:
            return {"moved": 0}
        bad = _barred(task)
        seen = self._seen.get((task.incident.id, task.job))
        if seen is None:
            homes = await self._homes(task, job, bad)
            try:
                seen = await self._look(task, job, intent, self._lookers(task, bad, homes))
            except Unavailable as error:
                raise self._not_moved(task, error.message) from error
        others = folders_of_others(await self._fleets.take(2.0), job)
        moves, said = without_anothers(unusable(seen.parts, seen.candidates, chosen), others, intent)
        if not moves:
            self._move_ended(task)
            return {"moved": 0, "explanation": "; ".join(said)} if said else {"moved": 0}
        asked = [self._move(task, job, host, root, parts, chosen) for (host, root), parts in moves.items()]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        problems = [str(answer) for answer in answers if isinstance(answer, BaseException)]
        if problems:
            raise self._not_moved(task, "; ".join(problems))
        self._move_ended(task)
        told = [one for answer in answers if not isinstance(answer, BaseException) for one in answer]
        left = {path for one in told for path in left_of(one)}
        moved = [part for parts in moves.values() for part in parts if part.path not in left]
        check = Check.of(task.verdict.onset_step, self._recovery.checkpoint_level)
        said = [words_of(moved, check), *said, *sorted({words for one in told for words in words_of_links(one)})]
        return {"moved": len({part.path for part in moved}), "explanation": "; ".join(filter(None, said))}

    def _not_moved(self, task: Task, why: str) -> Unavailable | Refused:
        """The error of a move that failed: it is tried again, or given up."""
        if self._patience.lasts(task.step.key(task.incident.id), self._recovery.quarantine_s):
            return Unavailable(f"not moved: {why[:500]}")
        self._move_ended(task)
        return Refused(f"not moved after {self._recovery.quarantine_s:g} s: {why[:500]}")

    def _move_ended(self, task: Task) -> None:
        """Moving ended. What was listed before it is out of date."""
        self._patience.ended(task.step.key(task.incident.id))
        self._seen.pop((task.incident.id, task.job), None)

    # --- asking the nodes ---------------------------------------------------------------------------------------------

    async def _look(self, task: Task, job: JobView, intent: Intent, nodes: Sequence[str]) -> Seen:
        check = Check.of(task.verdict.onset_step, self._recovery.checkpoint_level)
        local = [
            self._listings.of(
                job, node, [Root("local", root.replace("%N", node)) for root in intent.local_roots], check
            )
            for node in nodes
            if intent.local_roots
        ]
        shared = self._listings.of_shared(job, intent, nodes, check)
        answers = await asyncio.gather(*local, shared, return_exceptions=True)
        parts: list[Part] = []
        problems = []
        answered: set[str] = set()
        for index, answer in enumerate(answers):
            if isinstance(answer, BaseException):
                if not isinstance(answer, (Unavailable, ProtocolError)):
                    raise answer
                problems.append(str(answer))
            else:
                parts.extend(part.after_its_writer() for part in answer)  # the attempt is over
                answered.update(nodes[index : index + 1] if local else ())
        unread = [part for part in parts if is_unread_root(part) and not may_not_exist(part)]
        problems += [f"{part.host}: {part.root}: {part.reason}; what it holds is not known" for part in unread]
        if not parts and problems:
            raise Unavailable("no node could list the job's checkpoints: " + "; ".join(problems)[:500])
        by_root: dict[str, list[Part]] = {}
        for part in parts:
            by_root.setdefault(root_of(part, intent), []).append(part)
        everybody = self._live.nodes_of(task.job, task.attempt)
        held, words = self._live.listings.silent(task.job, task.attempt, set(everybody) - answered)
        problems += [*words, *self._live.listings.wiped(task.job, task.attempt, parts, answered)]
        world = world_size_of([*parts, *held], min(len(everybody), intent.in_allocation or len(everybody)))
        candidates = await asyncio.to_thread(joined_by_root, by_root.values(), world_size=world)
        seen = Seen(tuple(parts), tuple(candidates), world, tuple(problems))
        self._seen[task.incident.id, task.job] = seen
        while len(self._seen) > _REMEMBERED:
            self._seen.pop(next(iter(self._seen)))
        return seen

    async def _move(
        self, task: Task, job: JobView, host: str, root: str, parts: Sequence[Part], chosen: Mapping[str, Scalar]
    ) -> list[object]:
        """Returns what the node answered."""
        path = str(chosen.get("path") or "").replace("%N", host)
        told: list[object] = []
        for start in range(0, len(parts), MOST_PATHS):
            some = parts[start : start + MOST_PATHS]
            paths, steps = tuple(part.path for part in some), tuple(part.step for part in some)
            order = MoveAside(job.id, root, paths, steps, f"incident {task.incident.id}", path or None)
            made = await self._orders.ask(host, order.kind, order.arguments(), deadline_s=self._recovery.inventory_s)
            told.append(made)
        return told


def _run(attempt: AttemptSeen | None) -> Run | None:
    """What is known of the run that failed; None before its first step, or where Slurm did not say when it began."""
    began = (attempt.run_since or attempt.view.started_at) if attempt is not None else None
    if attempt is None or began is None or attempt.first_step is None or attempt.last_step is None:
        return None
    return Run(began.timestamp(), attempt.first_step, attempt.last_step)


def _next_run(task: Task) -> tuple[str, ...] | None:
    """The nodes of the run that follows in the job's allocation; None: the job is requeued."""
    return tuple(names(task.step.data.get("nodes"))) if task.step.data.get("run") else None


def _barred(task: Task) -> frozenset[str]:
    """Nodes that the restarted job must not get: drained, suspected or excluded."""
    excluded = [names(step.data.get("nodes")) for step in task.plan.steps if step.kind is StepKind.EXCLUDE]
    return frozenset((*task.verdict.drain, *task.verdict.suspect, *(name for found in excluded for name in found)))


def _hold_if_bad(job: JobView, onset: int | None, explanation: str) -> None:
    """Refuse a restart from none of the checkpoints after bad numbers: the script would resume from its newest one, which
    contains them.

    Raises:
        Refused: the numbers went bad.
    """
    if onset is not None:
        raise Refused(
            f"numbers went bad at step {onset} and no checkpoint before it can be used: {explanation}",
            fix=f"start from an older one or anew, then scontrol release {job.spec}",
        )


def _free(fleet: Fleet, name: str, job: JobView) -> bool:
    """Whether Slurm could allocate the node to the job now."""
    view = fleet.nodes.get(name)
    return view is not None and view.usable and (view.state == "idle" or name in job.nodes)


def _name(candidate: Candidate, intent: Intent) -> str:
    return checkpoint_name(pattern_of(candidate, intent), candidate.step)
