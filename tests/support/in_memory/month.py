"""A month of a small cluster's life: a lemon, a burst, an ageing GPU, failing programs, one bad hour of storage."""

from __future__ import annotations

import dataclasses
import random
from datetime import datetime, timedelta

from made_records import evidence

from in_memory.direct_store import DirectStore
from sentinel.model.records import (
    Alternative,
    Cause,
    Culprits,
    Evidence,
    Ground,
    Incident,
    IncidentState,
    JobView,
    Kind,
    Restart,
    Scope,
    Source,
    Verdict,
    Where,
    stable_id,
)

C = Cause
USERS = ("ada", "bob", "eve", "joe")
LEMON, BURST, AGEING = "n7", "n12", "n3"
_TEXTS = {
    C.GPU_MEMORY_ECC: "NVRM: Xid (PCI:0000:3b:00): 48, DBE (double bit error) ECC error",
    C.GPU_FALLEN_OFF_BUS: "NVRM: Xid (PCI:0000:5e:00): 79, GPU has fallen off the bus.",
    C.USER_CODE: "[rank3]: IndexError: list index out of range",
    C.FILESYSTEM_STORAGE: "nfs: server nas1 not responding, still trying",
    C.NETWORK_FABRIC: "mlx5_0: port 1 is down",
    C.NUMERICAL_NAN: "step 4100 | loss nan",
    C.UNKNOWN: "job 4242 ended as failed",
}
_SCOPES = {
    C.USER_CODE: Scope.APPLICATION, C.FILESYSTEM_STORAGE: Scope.CLUSTER, C.NETWORK_FABRIC: Scope.LINK,
    C.NUMERICAL_NAN: Scope.APPLICATION, C.UNKNOWN: Scope.UNKNOWN,
}  # fmt: skip
_OUTCOMES = {IncidentState.CLOSED: "gains steps again", IncidentState.HELD: "8 drains, 8 are allowed"}


class Month:
    """Fills ``store``; ``now`` is the end of the month."""

    def __init__(self, store: DirectStore, now: datetime, *, nodes: int = 24) -> None:
        self.store, self.now = store, now
        self.names = [f"n{number}" for number in range(1, nodes + 1)]
        self._rng = random.Random(5)
        self._number = 0

    def fill(self) -> None:
        self._work()
        for days in (27.0, 16.0, 8.5, 1.2):
            self.failed(C.GPU_MEMORY_ECC, days, LEMON, gpu=5)
        for minutes in (58.0, 30.0, 6.0):
            self.failed(C.GPU_FALLEN_OFF_BUS, minutes / 1440, BURST, gpu=2)
        self.failed(C.GPU_FALLEN_OFF_BUS, 20.0, "n19")
        for number in range(6):
            self.failed(C.FILESYSTEM_STORAGE, 5.0 + number / 1440, None, job=6000 + number)
        for number in range(11):
            self.failed(C.USER_CODE, 2.0 * number + 0.3, None, seen="n2", job=7000 + number // 3, user="eve")
        self.failed(C.NUMERICAL_NAN, 3.0, None, seen="n4", onset=4100)
        self.failed(C.UNKNOWN, 0.02, None, state=IncidentState.OPEN)
        self.failed(C.NETWORK_FABRIC, 0.5, "n9", state=IncidentState.HELD)
        rows = [(day, float(max(0, 12 - day) // 2)) for day in range(29, -1, -1)]
        self.store.save_counters(
            [
                {
                    "node": AGEING,
                    "unit": "gpu1",
                    "name": "row_remap_correctable",
                    "at": self.now - timedelta(days=day),
                    "value": value,
                }
                for day, value in rows
            ]
        )

    def _work(self) -> None:
        """Every node carries jobs nearly all the time, the burst's node since an hour only."""
        for number, name in enumerate(self.names):
            start = timedelta(days=29.5) if name != BURST else timedelta(hours=1)
            view = JobView(
                id=5000 + number, state="completed", user=USERS[number % 4], name=f"pretrain-{number}", partition="train",
                nodes=(name,), started_at=self.now - start, ended_at=self.now,
            )  # fmt: skip
            self.store.save_attempt(view, first_step=1, last_step=9000 + number, step_time_s=2.5)

    def failed(
        self,
        cause: Cause,
        days_ago: float,
        node: str | None,
        *,
        gpu: int | None = None,
        seen: str | None = None,
        job: int | None = None,
        user: str | None = None,
        onset: int | None = None,
        state: IncidentState = IncidentState.CLOSED,
    ) -> None:
        self._number += 1
        at = self.now - timedelta(days=days_ago)
        item = self._item(cause, at, node or seen, gpu)
        opened = Incident(
            id=stable_id("month", self._number)[:10], opened_at=at, updated_at=at, state=state,
            job=job or 4000 + self._number, attempt=0, nodes=(node,) if node else (), evidence=(item,),
            closed_at=at + timedelta(minutes=4) if state is IncidentState.CLOSED else None,
            outcome=_OUTCOMES.get(state, ""),
        )  # fmt: skip
        self.store.append([item])
        self.store.save_incident(opened, user=user or self._rng.choice(USERS))
        scope = _SCOPES.get(cause, Scope.GPU)
        verdict = Verdict(
            cause=cause, scope=scope, confidence=0.93 if cause is not C.UNKNOWN else 0.4,
            culprits=Culprits((node,) if node else (), (f"{node}:{gpu}",) if gpu is not None else ()),
            drain=(node,) if node and scope is Scope.GPU else (), restart=Restart.RESUME_EXCLUDING, onset_step=onset,
            alternatives=(Alternative(C.PCIE, 0.04),), grounds=(Ground(item, 4.5, "a double bit error"),),
            would_change=("a passed memory test",), advice="Drain the node; return it after a passed diagnostic.",
        )  # fmt: skip
        self.store.save_verdict(opened.id, verdict, at + timedelta(seconds=1))

    def _item(self, cause: Cause, at: datetime, node: str | None, gpu: int | None) -> Evidence:
        kind = Kind.XID if gpu is not None else str(cause)
        made = evidence(kind, source=Source.KERNEL, text=_TEXTS[cause], id=stable_id("month-evidence", self._number))
        return dataclasses.replace(made, at=at, seen_at=at, where=Where(node=node, gpu=gpu))
