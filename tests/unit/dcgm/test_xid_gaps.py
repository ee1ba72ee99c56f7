"""Xids that come while the GPU probe is started again are told by the next one."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from sentinel.adapters.gpu import dcgmi, nvml
from sentinel.adapters.gpu.engine_owner import EngineOwner, NobodyListens
from sentinel.agent.probes import dcgm as probe
from sentinel.config.rules_files import load_convictions
from sentinel.evidence.dcgm import DcgmReader
from sentinel.evidence.gpu_samples import sample_from

RULES = load_convictions()
ARGUMENTS: dict[str, Any] = {"dcgmi": "dcgmi", "host": "127.0.0.1:1", "interval_s": 1.0}


class Ended(Exception):
    pass


class Node:
    """Its GPUs' last Xids, as ``dcgmi dmon`` shows them, and an agent that goes on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.last: dict[int, int] = {}
        self.reader = DcgmReader("n1", RULES)
        self.told: list[tuple[int | None, Any]] = []
        monkeypatch.setattr(dcgmi, "Dcgmi", lambda *_, **__: self)
        self.closed = True

    def check(self) -> None: ...

    def sample(self, fields: object) -> dict[str, Any]:
        gpus = [{"id": n, "uuid": f"GPU-{n}", "status": 1, "fields": {"150": 40}} for n in range(2)]
        return {"gpus": gpus, "last_xids": dict(self.last)}

    def hear(self, message: dict[str, Any]) -> None:
        found = self.reader.read(sample_from(json.loads(json.dumps(message)), datetime.now(UTC)))
        self.told += [(item.where.gpu, item.data["xid"]) for item in found if item.kind == "xid"]

    def probe_lives(self) -> None:
        """One life of the probe, in which it sends one sample."""

        def told(message: dict[str, Any]) -> None:
            self.hear(message)
            raise Ended

        with pytest.raises(Ended):
            probe._by_dcgmi(ARGUMENTS, told)  # type: ignore[arg-type]

    def restart_agent(self, boot: str = "") -> None:
        self.reader = DcgmReader("n1", RULES, state=json.loads(json.dumps(self.reader.state)), boot=boot)


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Node:
    return Node(monkeypatch)


def test_what_comes_between_two_lives_of_the_probe_is_told_once(node: Node) -> None:
    node.last = {0: 31}
    node.probe_lives()
    assert node.told == [], "when that was nobody knows"
    node.last = {0: 31, 1: 79}
    node.probe_lives()
    node.probe_lives()
    assert node.told == [(1, 79)]


def test_what_comes_while_the_agent_is_started_again_is_told_once(node: Node) -> None:
    node.probe_lives()
    node.last = {1: 79}
    node.restart_agent()
    node.probe_lives()
    node.restart_agent()
    node.probe_lives()
    assert node.told == [(1, 79)]
    node.restart_agent(boot="another")
    node.last = {1: 48}
    node.probe_lives()
    assert node.told == [(1, 79)], "of another boot nothing is known"


def test_what_the_bindings_told_is_not_told_again_by_dcgmi(node: Node) -> None:
    node.probe_lives()
    at_us = int(datetime.now(UTC).timestamp() * 1e6)
    node.hear({**node.sample(()), "last_xids": None, "via": "dcgm", "events": [[0, 48, at_us]]})
    node.last = {0: 48}
    node.probe_lives()
    assert node.told == [(0, 48)]


@pytest.mark.parametrize("listens", [False, True])
def test_nvml_is_left_only_where_an_engine_listens(monkeypatch: pytest.MonkeyPatch, listens: bool) -> None:
    """Its session has the driver queue Xids: those that come while there is none are lost."""
    sessions: list[str] = []
    clock = [0.0]

    class Session:
        def __init__(self, folder: str) -> None: ...

        def __enter__(self) -> Session:
            sessions.append("open")
            return self

        def __exit__(self, *_: object) -> None:
            sessions.append("closed")

        def sample(self) -> dict[str, Any]:
            return {"gpus": [], "events": []}

    def look(_: EngineOwner) -> tuple[object, ...]:
        if not listens:
            raise NobodyListens("nobody")
        return ()

    def sleep(seconds: float) -> None:
        clock[0] += seconds

    def told(message: dict[str, Any]) -> None:
        if clock[0] > 3 * probe.RETRY_S:
            raise Ended

    monkeypatch.setattr(nvml, "Nvml", Session)
    monkeypatch.setattr(EngineOwner, "look", look)
    monkeypatch.setattr(probe, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=sleep))
    if listens:
        probe._by_nvml(ARGUMENTS, told)  # type: ignore[arg-type]
        assert clock[0] == probe.RETRY_S
    else:
        with pytest.raises(Ended):
            probe._by_nvml(ARGUMENTS, told)  # type: ignore[arg-type]
    assert sessions == ["open", "closed"]
