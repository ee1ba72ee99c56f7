"""Network adapters that vanish, and links that went down while no agent ran: what was up before in this boot is missed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from sentinel.adapters.host import readings
from sentinel.agent.collectors.periodic_checks import PeriodicChecks
from sentinel.agent.process.children import Program
from sentinel.agent.settings import AgentSettings
from sentinel.evidence.host import HostReader, HostReading, Port
from sentinel.model.records import Evidence

T0 = datetime(2032, 1, 2, 3, 4, 5, tzinfo=UTC)
BOTH = {"mlx5_0:1": "ACTIVE", "mlx5_1:1": "ACTIVE"}
ONE = {"mlx5_0:1": "ACTIVE"}


def told(reader: HostReader, *found: dict[str, str] | None, virtual: frozenset[str] = frozenset()) -> list[list[str]]:
    """What is told of each of these listings, a minute apart; None: sysfs does not list adapters."""
    made = []
    for minute, ports in enumerate(found):
        listed = None if ports is None else tuple(Port(n, state, virtual=n in virtual) for n, state in ports.items())
        evidence = reader.read(HostReading(T0 + timedelta(minutes=minute), listed))
        made.append([f"{item.kind} {item.where.nic} {item.data['state']}" for item in evidence])
    return made


GONE = ["link_down mlx5_1:1 gone"]


def test_an_adapter_that_vanishes_is_told_once_at_the_second_look() -> None:
    assert told(HostReader("n1"), BOTH, ONE, ONE, ONE) == [[], [], GONE, []]


def test_one_that_is_back_at_the_next_look_was_reset() -> None:
    assert told(HostReader("n1"), BOTH, ONE, BOTH, ONE, BOTH) == [[]] * 5
    assert told(HostReader("n1"), BOTH, ONE, ONE, BOTH, ONE, ONE) == [[], [], GONE, [], [], GONE]


def test_the_last_adapter_that_vanishes_is_missed_too() -> None:
    assert told(HostReader("n1"), BOTH, {}, {}) == [[], [], ["link_down mlx5_0:1 gone", *GONE]]


@pytest.mark.parametrize(
    "later",
    [
        (None, None, None),  # the drivers were unloaded, or sysfs cannot be read
        (ONE, None, ONE, None),  # it was never missing at two looks in a row that told
        ({"mlx5_bond_0:1": "ACTIVE"},) * 3,  # bonded: one device for both
        ({**ONE, "rocep59s0:1": "ACTIVE"},) * 3,  # renamed
    ],
)
def test_what_is_not_known_to_be_gone_is_not_told(later: tuple[dict[str, str] | None, ...]) -> None:
    assert told(HostReader("n1"), BOTH, *later) == [[]] * (1 + len(later))


def test_an_adapter_that_was_never_up_or_seen_is_not_missed() -> None:
    down = {**ONE, "mlx5_1:1": "DOWN"}
    assert told(HostReader("n1"), down, ONE, ONE, down) == [[]] * 4


def test_a_virtual_function_is_given_away_on_purpose() -> None:
    assert told(HostReader("n1"), BOTH, ONE, ONE, virtual=frozenset({"mlx5_1:1"})) == [[]] * 3


def after_a_restart(before: HostReader, boot: str = "b1") -> HostReader:
    return HostReader("n1", kept=before.state, boot=boot)


def test_a_link_that_went_down_while_no_agent_ran() -> None:
    reader = HostReader("n1", boot="b1")
    told(reader, BOTH)
    later = after_a_restart(reader)
    assert told(later, {**ONE, "mlx5_1:1": "DOWN"}) == [["link_down mlx5_1:1 DOWN"]]
    assert told(after_a_restart(later), {**ONE, "mlx5_1:1": "DOWN"}) == [[]], "it was told before the restart"
    assert told(after_a_restart(reader), ONE, ONE) == [[], GONE]


@pytest.mark.parametrize("boot", ["b2", ""])
def test_nothing_is_missed_of_another_boot(boot: str) -> None:
    """People take adapters and cables out of nodes that are off; which boot this is may not be known."""
    reader = HostReader("n1", boot="b1" if boot else "")
    told(reader, BOTH)
    assert told(after_a_restart(reader, boot), {"mlx5_0:1": "DOWN"}, {"mlx5_0:1": "DOWN"}) == [[], []]


@pytest.mark.parametrize("kept", [None, [], {"boot": "b1"}, {"boot": "b1", "ports": {"mlx5_1:1": 3}}, {"ports": BOTH}])
def test_a_state_that_makes_no_sense_is_no_state(kept: Any) -> None:
    assert told(HostReader("n1", kept=kept, boot="b1"), ONE, ONE) == [[], []]


def test_what_sysfs_lists(tmp_path: Path) -> None:
    assert readings.ports(tmp_path) is None, "no driver of adapters is loaded"
    (tmp_path / "class" / "infiniband").mkdir(parents=True)
    assert readings.ports(tmp_path) == [], "and here all adapters are gone"
    function = tmp_path / "class" / "infiniband" / "mlx5_2"
    (function / "ports" / "1").mkdir(parents=True)
    (function / "device" / "physfn").mkdir(parents=True)
    assert readings.ports(tmp_path) == [{"name": "mlx5_2:1", "state": None, "counters": {}, "virtual": True}]


class Bench:
    def __init__(self) -> None:
        self.programs: dict[str, Program] = {}

    def start(self, program: Program) -> bool:
        self.programs[program.name] = program
        return True


def checks(tmp_path: Path, kept: list[Evidence]) -> tuple[PeriodicChecks, Bench]:
    bench = Bench()

    def program(name: str, module: str, arguments: Any, **rest: Any) -> Program:
        return Program(name, [module], arguments, **rest)

    settings = AgentSettings(node="n1", state=str(tmp_path))
    return PeriodicChecks("n1", settings, bench, program, kept.append, list, "b1"), bench  # type: ignore[arg-type]


def test_the_agent_keeps_what_was_up(tmp_path: Path) -> None:
    kept: list[Evidence] = []
    for ports in (BOTH, {**ONE, "mlx5_1:1": "DOWN"}, {**ONE, "mlx5_1:1": "DOWN"}):
        agent, bench = checks(tmp_path, kept)
        agent.host()
        bench.programs["host"].on_message({"ports": [{"name": n, "state": state} for n, state in ports.items()]})
    assert [(item.kind, item.where.nic) for item in kept] == [("link_down", "mlx5_1:1")]
