"""Which switch a node hangs on, as different releases of Slurm say it, or do not."""

from __future__ import annotations

import pytest

from sentinel.adapters.slurm.process import Answer, SlurmSaidNo
from sentinel.adapters.slurm.topology import Topology, leaves_of
from sentinel.errors import Unavailable
from sentinel.model.topology import leaf_of

# scontrol show topology of Slurm 22.05 in the lab, with topology/tree.
SAID = """\
SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=n[1-2]
SwitchName=leaf2 Level=0 LinkSpeed=1 Nodes=n[3-4]
SwitchName=spine Level=1 LinkSpeed=1 Nodes=n[1-4] Switches=leaf[1-2]
"""
LEAVES = {"n1": "leaf1", "n2": "leaf1", "n3": "leaf2", "n4": "leaf2"}


def test_the_leaves_are_read() -> None:
    assert leaves_of(SAID) == LEAVES
    assert leaves_of("") == leaves_of("No topology information available\n") == {}


@pytest.mark.parametrize(
    ("said", "leaf"),
    [("", ""), ("leaf1", "leaf1"), ("default:leaf1", "leaf1"), ("topo:spine.leaf1", "leaf1"), ("a:l1,b:l2", "l1")],
)
def test_the_last_of_what_slurm_says_is_the_leaf(said: str, leaf: str) -> None:
    assert leaf_of(said) == leaf


class Slurm:
    def __init__(self) -> None:
        self.now_s, self.asked = 0.0, 0
        self.said: bytes | Exception | None = SAID.encode()
        self.topology = Topology(self.ask, lambda: self.now_s)

    async def ask(self) -> bytes:
        self.asked += 1
        if self.said is None:
            raise Unavailable("slurmctld does not answer")
        if isinstance(self.said, Exception):
            raise self.said
        return self.said

    async def places(self) -> list[object]:
        nodes = await self.topology.added([{"name": "n1"}, {"name": "n3"}, {"name": "n9"}])
        return [record.get("topology") for record in nodes]


async def test_it_is_asked_seldom_and_kept() -> None:
    slurm = Slurm()
    for _ in range(3):
        assert await slurm.places() == ["leaf1", "leaf2", ""]
    assert slurm.asked == 1
    slurm.now_s, slurm.said = 700.0, None
    assert await slurm.places() == ["leaf1", "leaf2", ""]
    slurm.now_s, slurm.said = 1400.0, b""  # slurmctld was started again without it
    assert await slurm.places() == [None, None, None]
    assert slurm.asked == 3


async def test_a_missing_answer_is_told_and_soon_asked_for_again() -> None:
    """Without it the limits per switch are off: not for ten minutes, and not in silence."""
    slurm = Slurm()
    slurm.said = None
    assert await slurm.places() == [None, None, None]
    assert [(item.what, item.name) for item in slurm.topology.unread] == [("switches", "of the nodes")]
    assert "slurmctld does not answer" in slurm.topology.unread[0].reason
    slurm.now_s, slurm.said = 9.0, SAID.encode()
    assert await slurm.places() == [None, None, None] and slurm.asked == 1  # a slurmctld in trouble is spared
    slurm.now_s = 10.0
    assert await slurm.places() == ["leaf1", "leaf2", ""] and slurm.topology.unread == ()
    slurm.now_s, slurm.said = 609.0, None
    assert await slurm.places() == ["leaf1", "leaf2", ""] and slurm.asked == 2
    for slurm.now_s, asked in ((610.0, 3), (619.0, 3), (620.0, 4)):
        assert await slurm.places() == ["leaf1", "leaf2", ""] and slurm.asked == asked
    assert "still counts" in slurm.topology.unread[0].reason


async def test_a_slurm_that_says_no_has_no_switches_to_tell_of() -> None:
    slurm = Slurm()
    slurm.said = SlurmSaidNo(Answer.OTHER, "slurm_load_topo error: Requested operation not supported")
    for slurm.now_s in (0.0, 10.0, 599.0):
        assert await slurm.places() == [None, None, None] and slurm.topology.unread == ()
    assert slurm.asked == 1


async def test_what_records_say_themselves_makes_up_for_a_missing_answer() -> None:
    slurm = Slurm()
    slurm.said = None
    await slurm.places()
    await slurm.topology.added([{"name": "n1", "topology": "default:leaf7"}, {"name": "n2"}])
    assert slurm.topology.unread != ()
    await slurm.topology.added([{"name": "n1", "topology": "default:leaf7"}])
    assert slurm.topology.unread == ()


@pytest.mark.parametrize("said", [None, b"", b"\xff\xfe", b"SwitchName=s Level=0 Nodes=n[1-"])
async def test_what_is_not_known_is_not_said(said: bytes | None) -> None:
    slurm = Slurm()
    slurm.said = said
    assert await slurm.places() == [None, None, None]


async def test_records_that_say_it_themselves_are_left_alone() -> None:
    slurm = Slurm()
    records = [{"name": "n1", "topology": "default:leaf7"}, {"name": "n2", "topology": "default:leaf8"}]
    assert await slurm.topology.added(records) == records and slurm.asked == 0


async def test_one_record_that_says_it_does_not_hide_where_the_others_are() -> None:
    """A node moved by ``scontrol update topology=``, or a dynamic one, of a cluster with a topology.yaml (26.05)."""
    slurm = Slurm()
    records = [{"name": "n1"}, {"name": "n3", "topology": ""}, {"name": "n4", "topology": "sw:leaf1,bl:b4"}]
    found = await slurm.topology.added(records)
    assert [record["topology"] for record in found] == ["leaf1", "leaf2", "sw:leaf1,bl:b4"]
    slurm.said, slurm.now_s = None, 700.0
    await slurm.topology.added(records)
    assert [(item.what, item.name) for item in slurm.topology.unread] == [("switches", "of the nodes")]
