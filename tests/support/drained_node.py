"""An engine with one node that was drained, for tests of its way back into service."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from shipped import shipped_rules

from sentinel.config.return_settings import ReturnSettings
from sentinel.config.settings import Diagnostics, Mode, Modes, Settings
from sentinel.detect.cluster_view import ClusterView
from sentinel.engine import Engine, Transition
from sentinel.engine.events import DiagnosticEnded, Event, FleetObserved, NodeReturnAnswered
from sentinel.engine.loading import state_of
from sentinel.engine.node_return import turns
from sentinel.engine.node_return.state import KEPT, NodeReturn, Stage
from sentinel.engine.transition import (
    DeliverNotice,
    Effect,
    OpenTicket,
    ReturnNode,
    RunDiagnostic,
    RunSiteCommand,
)
from sentinel.engine.watch.events import HeartbeatReceived
from sentinel.model.changes import SettingChanged
from sentinel.model.records import (
    Cause,
    Evidence,
    Fleet,
    Incident,
    IncidentState,
    JobView,
    NodeView,
    Outcome,
    Result,
    Scope,
    Step,
    StepKind,
    Verdict,
)
from sentinel.model.stored import Stored

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
RULES = shipped_rules()
ACT = Modes(default=Mode(drain="act", restart="act"))
REASON = "sentinel:0f3a gpu_memory_ecc n1:3"
JOB, OTHER_JOB = 8801, 8802
RESET = ["/site/reset", "{node}"]
REBOOT = ["scontrol", "reboot", "ASAP", "nextstate=DOWN", "reason={reason}", "{node}"]
ALL = ReturnSettings(reset_command=RESET, reboot_command=REBOOT, automatic=True)
OURS = (RunDiagnostic, RunSiteCommand, ReturnNode, OpenTicket, DeliverNotice)


class Node:
    """An engine with one node, n1, that an incident has drained."""

    def __init__(self, settings: ReturnSettings = ALL, cause: Cause = Cause.GPU_MEMORY_ECC) -> None:
        self.settings = Settings(modes=ACT, returns=settings, diagnostics=Diagnostics(settled_s=0.0))
        self.cause, self.at, self.kept = cause, NOW, None
        self.view = NodeView("n1", "idle", frozenset({"drain"}), REASON, ("train",), gpus=8)
        self.jobs: dict[int, JobView] = {}
        self.boot, self.word, self.level = "boot-1", "OK", 0
        self.asked: list[Effect] = []
        self.said: list[str] = []
        self.start()
        self.handle_drained()

    def start(self) -> None:
        """The daemon starts, with what it kept."""
        stored = Stored(settings={KEPT: self.kept} if self.kept else {})
        self.engine = Engine(state_of(stored, ClusterView(), rules=RULES, settings=self.settings, receivers=["pager"]))

    @property
    def state(self) -> Any:
        return self.engine.state

    @property
    def record(self) -> NodeReturn:
        found: NodeReturn = self.state.returns.known["n1"]
        return found

    @property
    def stage(self) -> Stage:
        return self.record.stage

    def handle_drained(self, incident: str = "0f3a", cause: Cause | None = None) -> None:
        verdict = Verdict(cause=cause or self.cause, scope=Scope.GPU, confidence=0.9, drain=("n1",))
        self.state.put(
            Incident(incident, self.at, self.at, job=JOB, attempt=0, nodes=("n1",), state=IncidentState.CLOSED)
        )
        self.state.verdicts[incident] = verdict
        out = Transition()
        turns.drained(self.state, out, incident, Outcome(Step(StepKind.DRAIN, node="n1"), Result.DONE, self.at))
        self.take(out)

    def handle(self, event: Event) -> Transition:
        out = self.engine.handle(event)
        self.take(out)
        return out

    def take(self, out: Transition) -> None:
        for change in out.changes:
            if isinstance(change, SettingChanged) and change.name == KEPT:
                self.kept = change.value
        self.asked.extend(effect for effect in out.effects if isinstance(effect, OURS))
        self.said.extend(remark.name for remark in out.remarks)

    def look(self, more_s: float = 20.0, *, heard: bool = True) -> list[Effect]:
        """Time passes, a snapshot is taken; what is asked for then."""
        self.at += timedelta(seconds=more_s)
        before = len(self.asked)
        if heard:
            sentence = "a GPU is lost" if self.word == "BAD" else ""
            verdict = {"word": self.word, "sentence": sentence, "level": self.level}
            self.handle(HeartbeatReceived(
                self.at, "n1", self.at.timestamp(), verdict=verdict, boot=self.boot, sent_s=self.at.timestamp()
            ))  # fmt: skip
        else:
            self.state.cluster.node("n1").state = "silent"
        nodes = {self.view.name: self.view}
        self.handle(FleetObserved(self.at, Fleet(self.at, nodes, self.jobs)))
        return self.asked[before:]

    def answer(self, result: str, reason: str = "", evidence: Sequence[Evidence] = ()) -> None:
        """The newest effect is answered."""
        asked, self.at = self.asked[-1], self.at + timedelta(seconds=5)
        if isinstance(asked, RunDiagnostic):
            self.handle(DiagnosticEnded(self.at, asked.id, "n1", result, reason, tuple(evidence)))
        else:
            self.handle(NodeReturnAnswered(self.at, asked.id, "n1", result, reason))

    def passes(self, *levels: int) -> None:
        for level in levels:
            (asked,) = self.look()
            assert isinstance(asked, RunDiagnostic)
            assert asked.level == level
            self.answer("pass")

    def acts(self, action: str) -> RunSiteCommand:
        (asked,) = self.look()
        assert isinstance(asked, RunSiteCommand)
        assert asked.action == action
        return asked

    def fails(self) -> None:
        """A round: reset or reboot, then the first test fails; then the pause."""
        (asked,) = self.look()
        if isinstance(asked, RunSiteCommand):
            self.answer("done")
            if asked.action == "reboot":
                self.boot += "'"
            (asked,) = self.look()
        assert isinstance(asked, RunDiagnostic)
        self.answer("fail", "GPU 3: memory")
        self.at += timedelta(seconds=self.settings.returns.retry_s)


def running(job: int, *nodes: str, started: datetime = NOW) -> JobView:
    return JobView(id=job, state="running", nodes=nodes, started_at=started, partition="train", user="ada")


def returned() -> Node:
    node = Node(cause=Cause.GPU_THERMAL_POWER)
    node.passes(1, 2, 3)
    node.look()
    node.answer("done")
    node.view = NodeView("n1", "idle", partitions=("train",))
    return node
