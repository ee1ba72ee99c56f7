"""Watches the checkpoint saves of jobs on this node and reports new and faulty ones before they are needed.

The daemon names the folders in its answer to a heartbeat; they are listed by structure, in a killable child that runs as
the job's user. A finding counts once two listings in a row agree, since a checkpoint may be being written or deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from sentinel.agent.collectors.jobs import JobOnNode
from sentinel.agent.collectors.manifests import Finished, Manifests
from sentinel.agent.process.children import Children, Ending, Program
from sentinel.agent.process.probe_programs import INVENTORY
from sentinel.agent.settings import AgentSettings
from sentinel.checkpoints.packed import pack
from sentinel.checkpoints.records import Part
from sentinel.checkpoints.space import Space, filling, no_room
from sentinel.checkpoints.watch import Save, Trouble, assess, rhythm, saves_of
from sentinel.log import Log
from sentinel.model.orders import OrderRefused, Watch, decoded
from sentinel.model.records import Evidence, Kind, Scalar, Source, Where, stable_id
from sentinel.model.vocabulary import CHECKPOINTS_SEEN

log = Log()

MOST_WATCHED = 4096  # most entries of one answer; a node runs fewer jobs
NEWEST = 4  # newest checkpoints of a root that are listed each time
KEPT = 50  # saves of a root from which the usual interval is computed
LEAST_LOOKS = 5  # "saves stopped" is reported after this many listings at the earliest
KINDS: dict[str, str] = {"stopped": "saves_stopped", "shrunk": "saves_shrank", "full": "saves_no_room"}


@dataclass(frozen=True, slots=True)
class Watched:
    """The folders of one attempt that the daemon asks this node to watch. Their user is known from the prolog."""

    job: int
    attempt: int
    first: bool  # whether this node reports new saves: one node of the attempt does
    since_s: float  # Unix time; older checkpoints belong to an earlier attempt
    roots: tuple[tuple[str, str], ...]  # tier, path


@dataclass(slots=True)
class _Root:
    saves: dict[int, Save] = field(default_factory=dict)
    told: set[int] = field(default_factory=set)
    read: dict[int, float] = field(default_factory=dict)  # step -> when the save of it began that was read
    before: set[str] = field(default_factory=set)  # findings of the last listing
    spaces: list[tuple[float, Space]] = field(default_factory=list)  # (time, free space) at each save
    hung: int = 0  # listings in a row that did not answer
    sent: str = ""  # the listing last sent to the daemon


def watched_from(answer: Mapping[str, Any]) -> tuple[list[Watched], list[str]]:
    """Parse the watch list in the answer to a heartbeat; also returns why entries were refused."""
    entries = answer.get("watch", [])
    found: list[Watched] = []
    refused: list[str] = []
    for entry in entries[:MOST_WATCHED] if isinstance(entries, list) else [entries]:
        try:
            asked = decoded(Watch, entry)
        except OrderRefused as error:
            refused.append(error.message)
            continue
        roots = tuple((root.tier, root.path) for root in asked.roots)
        found.append(Watched(asked.job, asked.attempt, asked.first, asked.since_s or 0.0, roots))
    return found, refused


def lister(
    program: Callable[..., Program],
    name: str,
    node: str,
    roots: Iterable[tuple[str, str]],
    uid: int,
    gid: int | None,
    newest: int,
    deadline_s: float,
    on_message: Callable[[Mapping[str, Any]], None],
    on_end: Callable[[Ending], None],
) -> Program:
    """The child that lists the ``newest`` checkpoints under each of ``roots`` (tier, path), as the job's user."""
    return program(
        name,
        INVENTORY,
        {
            "node": node,
            "level": "structural",
            "roots": [{"tier": tier, "path": path} for tier, path in roots],
            "uid": uid,
            "gid": gid,
            "limit": newest,
        },
        silent_s=deadline_s,
        total_s=deadline_s,
        on_message=on_message,
        on_end=on_end,
    )


class SavesWatch:
    """Lists the folders periodically and reports changes.

    Args:
        jobs: the jobs on this node, from files that its prolog wrote as root.
    """

    def __init__(
        self,
        node: str,
        settings: AgentSettings,
        children: Children,
        program: Callable[..., Program],
        keep: Callable[[Evidence], None],
        jobs: Callable[[], Mapping[int, JobOnNode]],
    ) -> None:
        self._node = node
        self._period_s = settings.jobs.saves_s
        self._listing_s = settings.collect.listing_s
        self._stays = settings.jobs.lister_stays_s > 0
        self._children = children
        self._program = program
        self._keep = keep
        self._jobs = jobs
        self.manifests = Manifests(node, settings.jobs, children, program, keep)
        self.refused = 0
        self._said: list[str] = []
        self._asked: list[Watched] = []
        self._started: set[tuple[int, int]] = set()  # attempts whose lister was started
        self._told_to = ""  # the daemon instance that has our listings
        self._seen: dict[tuple[int, int, str], _Root] = {}

    def heard(self, answer: Mapping[str, Any]) -> None:
        """Take the watch list from the daemon's answer to a heartbeat."""
        self._asked, refused = watched_from(answer)
        self.refused += len(refused)
        if refused != self._said:  # logged once, not at each heartbeat
            self._said = refused
            for reason in refused:
                log.warning("watch-refused", reason=reason)
        self._start_listers()
        unwanted = answer.get("unread")
        self.manifests.unwanted = frozenset(unwanted if isinstance(unwanted, list) else ())
        instance = answer.get("instance")
        if isinstance(instance, str) and instance != self._told_to:
            self._told_to = instance
            for seen in list(self._seen.values()):
                seen.sent = ""  # a restarted daemon has no listings: send them again

    def _start_listers(self) -> None:
        """Start the listing process when a job is first seen: it stays, and answers at once when the job fails."""
        self._started &= {(watched.job, watched.attempt) for watched in self._asked}
        for watched in self._asked if self._stays else ():
            key, job = (watched.job, watched.attempt), self._jobs().get(watched.job)
            if (
                key in self._started
                or not watched.roots
                or job is None
                or job.attempt != watched.attempt
                or job.uid is None
            ):
                continue
            self._started.add(key)
            ignored = {"on_message": lambda _: None, "on_end": lambda _: None}
            self._children.start(
                lister(
                    self._program, f"early:{watched.job}", self._node, watched.roots[:1], job.uid, job.gid, 1,
                    self._listing_s, **ignored,
                )
            )  # fmt: skip

    def asked(self) -> list[Watched]:
        """The watch list last received from the daemon."""
        return list(self._asked)

    def look(self) -> None:
        """List all watched folders once."""
        asked = list(self._asked)
        present = {(watched.job, watched.attempt) for watched in asked}
        for key in [key for key in self._seen if key[:2] not in present]:
            del self._seen[key]
        for watched in asked:
            job = self._jobs().get(watched.job)
            if job is not None and job.attempt == watched.attempt and watched.roots:
                self._list(watched, job)

    def _list(self, watched: Watched, job: JobOnNode) -> None:
        if job.uid is None:
            log.warning("saves-unwatched", job=watched.job, reason="its user is not known")
            return

        answered: set[int] = set()

        def said(message: Mapping[str, Any]) -> None:
            index, listing = message.get("index"), message.get("listing")
            if isinstance(index, int) and isinstance(listing, list) and 0 <= index < len(watched.roots):
                answered.add(index)
                parts = [Part.from_json(part) for part in listing]
                self.listed(watched, watched.roots[index], parts, Space.from_json(message.get("space")))

        def ended(ending: Ending) -> None:
            if ending.silent or ending.status != 0:
                reason = ending.where or (ending.stderr.strip().splitlines() or [""])[-1]
                log.warning("saves-not-known", job=watched.job, silent=ending.silent, reason=reason)
            if ending.silent:  # roots are listed in order: the first without an answer is the one that hangs
                root = next((r for i, r in enumerate(watched.roots) if i not in answered), None)
                if root is not None:
                    self._hung(watched, root, ending.where)

        self._children.start(
            lister(
                self._program,
                f"saves:{watched.job}",
                self._node,
                watched.roots,
                job.uid,
                job.gid,
                NEWEST,
                self._period_s,
                said,
                ended,
            )
        )

    def _hung(self, watched: Watched, root: tuple[str, str], where: str) -> None:
        """Report a file system as hung when its folder did not answer twice in a row; its content is not known."""
        tier, path = root
        seen = self._seen.setdefault((watched.job, watched.attempt, path), _Root())
        seen.hung += 1
        if seen.hung < 2:
            return
        stands = f" ({where})" if where else ""
        # A file system that hangs stops the saves as well.
        trouble = Trouble("stopped", f"was not listed within {self._period_s:g} s{stands}: its file system hangs")
        self._told(watched, tier, path, "saves_stopped", f"hung/{path}", trouble, datetime.now(UTC))

    def listed(
        self, watched: Watched, root: tuple[str, str], parts: Sequence[Part], space: Space | None = None
    ) -> None:
        """Handle one listing of one root: report new checkpoints, and faults seen in two listings in a row."""
        tier, path = root
        now = datetime.now(UTC)
        seen = self._seen.setdefault((watched.job, watched.attempt, path), _Root())
        seen.hung = 0
        if tier == "local":
            self._share(watched, path, parts, seen, now)
        whole = {part.step for part in parts if part.valid is True or (part.marked and part.valid is not False)}
        folders = {part.step: part.path for part in parts}
        saves = [save for save in saves_of(parts) if save.began_s >= watched.since_s]
        for save in saves:
            if save.step not in seen.saves or save.step in folders:
                seen.saves[save.step] = save
            if save.step in whole and save.step not in seen.told:
                seen.told.add(save.step)
                if space is not None:
                    seen.spaces = [*seen.spaces[-KEPT:], (save.ended_s, space)]
                if watched.first:
                    self._saved(watched, tier, folders[save.step], save)
            # A run that was set back saves a step again: another save, of which what was read of the first says nothing.
            if save.step in whole and watched.first and tier == "global" and seen.read.get(save.step) != save.began_s:
                seen.read[save.step] = save.began_s
                self._read_once(watched, folders[save.step], save.step)
        for step in sorted(seen.saves)[:-KEPT]:
            del seen.saves[step]
        found = self._wrong(seen, saves, space, now.timestamp())
        for key in seen.before & set(found):
            kind, trouble = found[key]
            self._told(watched, tier, folders.get(trouble.step, path), kind, key, trouble, now)
        seen.before = set(found)

    def _read_once(self, watched: Watched, path: str, step: int) -> None:
        job = self._jobs().get(watched.job)
        if job is not None and job.uid is not None:
            self.manifests.finished(Finished(watched.job, watched.attempt, job.uid, job.gid, path, step))

    def _wrong(
        self, seen: _Root, saves: Sequence[Save], space: Space | None, now_s: float
    ) -> dict[str, tuple[str, Trouble]]:
        """Faults present now: name -> (kind of evidence, description)."""
        history = [seen.saves[step] for step in sorted(seen.saves)]
        usual = rhythm([save for save in history if save.valid is not False])
        found: dict[str, tuple[str, Trouble]] = {}
        for save in saves:
            if save.valid is False:
                full = no_room(save, usual, space)
                kind = "saves_no_room" if full else Kind.CHECKPOINT_INVALID
                trouble = Trouble("full" if full else "invalid", full or save.reason, save.step)
                found[f"invalid/{save.step}/{save.ended_s}"] = (kind, trouble)
        troubles = assess(history, now_s)
        full_already = any(kind == "saves_no_room" for kind, _ in found.values())
        soon = None if full_already else filling(seen.spaces, usual)
        for trouble in [*troubles, *([soon] if soon else [])]:
            early = trouble.kind == "stopped" and now_s - history[-1].ended_s < LEAST_LOOKS * self._period_s
            if trouble.kind in KINDS and not early:
                found[f"{trouble.kind}/{trouble.step}"] = (KINDS[trouble.kind], trouble)
        return found

    def _share(self, watched: Watched, path: str, parts: Sequence[Part], seen: _Root, now: datetime) -> None:
        """Send this node's listing if it changed: only the listings of all nodes together show what is complete."""
        settled = [part for part in parts if part.newest_mtime_s >= watched.since_s and part.step is not None]
        looks = repr(sorted((part.step, part.valid, part.bytes) for part in settled))
        if not settled or looks == seen.sent:
            return
        seen.sent = looks
        steps = ", ".join(str(part.step) for part in settled)
        identity = stable_id("seen", watched.job, watched.attempt, self._node, path, looks)
        data: dict[str, Scalar] = {"listing": pack(settled), "on_node": self._node}
        text = f"{self._node} holds of steps {steps}"
        self._put(watched, identity, CHECKPOINTS_SEEN, path, text, data, now, self._node)

    def _saved(self, watched: Watched, tier: str, path: str, save: Save) -> None:
        text = f"step {save.step} was saved ({tier}): {path}"
        data: dict[str, Scalar] = {"step": save.step, "tier": tier, "bytes": save.bytes}
        if save.duration_s > 0:
            data["time_s"] = round(save.duration_s, 3)
        identity = stable_id("saved", watched.job, watched.attempt, path, save.step)
        # A user sets the times of files, and may to one that no calendar has.
        ended_s = min(save.ended_s, datetime.now(UTC).timestamp())
        self._put(watched, identity, Kind.CHECKPOINT_SAVED, path, text, data, datetime.fromtimestamp(ended_s, UTC))

    def _told(
        self, watched: Watched, tier: str, path: str, kind: str, key: str, trouble: Trouble, now: datetime
    ) -> None:
        where = f" on {self._node}" if tier == "local" else ""
        text = f"{path}{where}: {trouble.text}"
        data: dict[str, Scalar] = {
            "step": trouble.step, "tier": tier, "path": path, "reason": trouble.text[:300], "watched": True,
            "on_node": self._node,
        }  # fmt: skip
        # All nodes that see a fault of a shared checkpoint report it under the same id, so that it becomes one message.
        own = self._node if tier == "local" and trouble.step is None else ""
        identity = stable_id("saves", watched.job, watched.attempt, kind, trouble.step, own)
        log.warning("saves", job=watched.job, finding=key, text=text)
        self._put(watched, identity, kind, path, text, data, now)

    def _put(
        self,
        watched: Watched,
        identity: str,
        kind: str,
        path: str,
        text: str,
        data: Mapping[str, Scalar],
        at: datetime,
        node: str | None = None,
    ) -> None:
        where = Where(job=watched.job, attempt=watched.attempt, path=path, node=node)
        self._keep(
            Evidence(
                id=identity,
                at=at,
                seen_at=datetime.now(UTC),
                source=Source.CHECKPOINT,
                kind=kind,
                where=where,
                text=text[:2000],
                data=dict(data),
            )
        )
