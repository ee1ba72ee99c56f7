"""A node is put back only if its drain is still the one that was decided about; what fails is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sentinel.config.return_settings import ReturnSettings
from sentinel.daemon.effects.node_returns import NodeReturnEffects
from sentinel.engine.transition import OpenTicket, ReturnNode, RunSiteCommand
from sentinel.errors import Refused, Superseded, Unavailable
from sentinel.model.records import NodeView
from sentinel.simulate.slurm.records import StandingClock

REASON = "sentinel:0f3a pcie"
DRAINED = NodeView("n1", "idle", frozenset({"drain"}), REASON, ("train",))


class Slurm:
    """Reader and writer of one node."""

    def __init__(self, view: NodeView | Exception | None, refusal: Exception | None = None) -> None:
        self.view, self.refusal, self.undrained = view, refusal, 0

    async def node(self, _name: str) -> NodeView | None:
        if isinstance(self.view, Exception):
            raise self.view
        return self.view

    async def undrain(self, _node: str) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.undrained += 1


def effects(slurm: Any, **settings: Any) -> NodeReturnEffects:
    return NodeReturnEffects(settings=ReturnSettings(**settings), reader=slurm, writer=slurm, clock=StandingClock())


@pytest.mark.parametrize(
    ("view", "result", "undrained"),
    [
        (DRAINED, "done", 1),
        (NodeView("n1", "down", frozenset({"drain"}), f"{REASON} : reboot issued : reboot complete"), "done", 1),
        (NodeView("n1", "idle"), "done", 0),
        (NodeView("n1", "idle", frozenset({"drain"}), "cable swap"), "refused", 0),
        (NodeView("n1", "idle", frozenset({"drain"}), f"{REASON} bob"), "refused", 0),
        (None, "refused", 0),
        (Unavailable("slurmctld did not answer"), "unavailable", 0),
    ],
)
async def test_put_back(view: Any, result: str, undrained: int) -> None:
    slurm = Slurm(view)
    answer = await effects(slurm).put_back(ReturnNode("return:n1", "n1", REASON))
    assert (answer.result, slurm.undrained, answer.node) == (result, undrained, "n1")


async def test_what_slurm_refuses_although_the_drain_is_ours_is_no_reason_to_forget_the_node() -> None:
    slurm = Slurm(DRAINED, Refused("Slurm does not resume n1: Invalid node state specified"))
    answer = await effects(slurm).put_back(ReturnNode("return:n1", "n1", REASON))
    assert (answer.result, answer.reason) == ("failed", "Slurm does not resume n1: Invalid node state specified")


def reset(*command: str, deadline_s: float = 30.0) -> RunSiteCommand:
    return RunSiteCommand("return-act:n1", "n1", "reset", command, deadline_s, REASON)


@pytest.mark.parametrize(
    ("command", "result", "words"),
    [
        (("/bin/true",), "done", ""),
        (("/bin/false",), "failed", "status 1"),
        (("/bin/sleep", "60"), "failed", "did not end"),
        (("/no/such",), "unavailable", "cannot be started"),  # on this host: it says nothing of the node
    ],
)
async def test_command(command: tuple[str, ...], result: str, words: str) -> None:
    answer = await effects(Slurm(DRAINED)).command(reset(*command, deadline_s=0.5 if "60" in command else 30.0))
    assert answer.result == result
    assert words in answer.reason


@pytest.mark.parametrize(
    ("view", "result"),
    [
        (NodeView("n1", "idle"), "refused"),  # somebody returned it since the snapshot
        (NodeView("n1", "idle", frozenset({"drain"}), "cable swap"), "refused"),
        (None, "refused"),
        (NodeView("n1", "allocated", frozenset({"drain"}), REASON), "unavailable"),
        (Unavailable("slurmctld did not answer"), "unavailable"),
    ],
)
async def test_no_command_on_a_node_that_is_not_as_it_was_decided_about(tmp_path: Path, view: Any, result: str) -> None:
    answer = await effects(Slurm(view)).command(reset("/usr/bin/touch", f"{tmp_path / 'done'}"))
    assert answer.result == result
    assert not (tmp_path / "done").exists()


class Lost:
    """The lease of a daemon that was frozen, and woken when another one was active."""

    async def confirm(self) -> None:
        raise Superseded("b:7 is the active daemon")

    def left_s(self) -> float:
        return 0.0


async def test_no_command_without_the_lease(tmp_path: Path) -> None:
    slurm: Any = Slurm(DRAINED)
    fenced = NodeReturnEffects(
        settings=ReturnSettings(), reader=slurm, writer=slurm, clock=StandingClock(), fence=Lost()
    )
    answer = await fenced.command(reset("/usr/bin/touch", f"{tmp_path / 'done'}"))
    assert answer.result == "unavailable"
    assert not (tmp_path / "done").exists()


async def test_no_ticket_without_the_lease(tmp_path: Path) -> None:
    slurm: Any = Slurm(None)
    settings = ReturnSettings(ticket_command=["/usr/bin/touch", f"{tmp_path / 'ticket'}"])
    fenced = NodeReturnEffects(settings=settings, reader=slurm, writer=slurm, clock=StandingClock(), fence=Lost())
    answer = await fenced.ticket(OpenTicket("ticket:n1", "n1", {"node": "n1", "id": "t1"}))
    assert answer.result == "unavailable" and not (tmp_path / "ticket").exists()


async def test_ticket(tmp_path: Path) -> None:
    kept, ticket = tmp_path / "ticket", OpenTicket("ticket:n1", "n1", {"node": "n1", "id": "t1"})
    there = effects(Slurm(None), ticket_command=["/bin/sh", "-c", f"cat > {kept}"])
    assert (await there.ticket(ticket)).result == "done"
    assert kept.read_text() == '{"node": "n1", "id": "t1"}'
    absent = effects(Slurm(None), ticket_url="http://127.0.0.1:9/tickets", command_s=5.0)
    assert (await absent.ticket(ticket)).result == "failed"
