"""An agent and a daemon one release apart: what both know is done, the rest is refused with the side to upgrade.

The messages of other releases are retyped from ``sentinel.protocol`` as it was, or as it may become; no code of theirs runs.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from in_memory.fixtures import store as store_of_worlds
from in_memory.fixtures import world
from in_memory.server import OPERATOR, Served, serving
from in_memory.world import World
from made_records import evidence, later
from nodes.agent_process import Node, open_folder, running_munged, running_node

from sentinel import __version__, protocol
from sentinel.adapters.client import DaemonClient
from sentinel.cli.operator.doctor_daemon import _releases
from sentinel.errors import UserError
from sentinel.model.records import Kind
from sentinel.wire import to_json

__all__ = ["store", "world"]
store = store_of_worlds  # not the one of each database

OLDER, NEWER = "0.0.9", "99.0.0"
XID = to_json(evidence(Kind.XID, node="n1", data={"xid": 43}))
# Before sessions, the monotonic clock and the reading of logs: such an agent's silence is judged by its heartbeats alone.
OLD_BEAT: dict[str, Any] = {
    "node": "n1", "boot_id": "b1", "at": "2026-03-01T12:00:00+00:00", "version": OLDER,
    "spool": {"pending": 0, "dropped": 0}, "jobs": [{"job": 7, "attempt": 0}],
    "verdict": {"state": "OK", "reason": "", "at": "2026-03-01T12:00:00+00:00"},
}  # fmt: skip
NEW_BEAT: dict[str, Any] = {
    **OLD_BEAT, "version": NEWER, "sent_s": 12.5, "logs": [{"job": 7, "attempt": 0, "looked_ago_s": 0.1, "inode": 5}],
    "spool": {"pending": 0, "dropped": 0, "given_up": 0, "bytes": 17}, "accelerators": [{"kind": "tpu"}],
    "jobs": [{"job": 7, "attempt": 0, "cgroup": "/system.slice/job_7"}],
}  # fmt: skip


@pytest.fixture
async def served(world: Callable[..., World]) -> AsyncIterator[Served]:
    async with serving(world()) as made:
        yield made


@pytest.mark.parametrize("beat", [OLD_BEAT, NEW_BEAT], ids=["older", "newer"])
async def test_an_agent_of_another_release_is_heard_and_named(served: Served, beat: dict[str, Any]) -> None:
    answer = await served.post(protocol.HEARTBEAT, beat)
    assert answer.status == 200 and "at" in answer.body and answer.signature
    seen = await served.post(protocol.VIEW, {"view": "doctor", "arguments": {}}, uid=OPERATOR)
    (finding,) = _releases(seen.body["nodes"], seen.body["version"])
    assert beat["version"] in finding.seen and __version__ in finding.seen and "upgrade the older" in finding.fix
    assert served.daemon.bugs() == 0


@pytest.mark.parametrize("beat", [OLD_BEAT, NEW_BEAT], ids=["older", "newer"])
async def test_what_both_know_is_kept_and_the_rest_is_refused_with_the_side_to_upgrade(
    served: Served, beat: dict[str, Any]
) -> None:
    """A field that only one side knows does no harm; a source decides whom to trust, and must be known."""
    await served.post(protocol.HEARTBEAT, beat)
    known = {**XID, "colour": "red"}
    unknown = {**XID, "id": "of-another-release", "source": "telepathy"}
    sent = {"node": "n1", "epoch": "e", "first": 1, "items": [unknown, known]}
    answer = await served.post(protocol.EVIDENCE, sent)
    assert (answer.status, answer.body) == (200, {"acknowledged": 2}), "sent again it would be refused again"
    await served.daemon.runner.stop()
    assert {item.id for item in served.world.store.evidence_since(later(-1.0))} == {XID["id"]}
    said = f"Its agent has release {beat['version']}, the daemon {__version__}: upgrade the older one"
    assert said in served.daemon.said and "telepathy" in served.daemon.said


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        (protocol.VIEW, {"view": "of a later release", "arguments": {}}),
        (protocol.CHANGE, {"change": "of a later release", "arguments": {}}),
    ],
)
async def test_a_command_line_of_another_release_is_told(served: Served, path: str, asked: dict[str, Any]) -> None:
    client = DaemonClient(served.url, served.signers[OPERATOR])
    try:
        with pytest.raises(UserError) as told:
            await asyncio.get_running_loop().run_in_executor(None, partial(client.post, path, asked))
    finally:
        client.close()
    assert told.value.fix == "upgrade the daemon or the command line: their releases differ"


@pytest.fixture
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """An agent, and a daemon of the first release: no sessions, answers without what came later."""
    if shutil.which("munged") is None:
        pytest.skip("munged is not installed")
    folder: Path = tmp_path_factory.mktemp("munge")
    with running_munged(folder) as socket, open_folder() as own, running_node(own, socket) as made:
        yield made


LATER_ORDERS: dict[str, tuple[str, dict[str, Any]]] = {
    "kind": ("of_a_later_release", {}),
    "argument": ("task_states", {"job": 7, "of_a_later_release": 1}),
}


def test_an_agent_works_with_an_older_daemon_and_says_which_order_it_does_not_know(node: Node) -> None:
    node.kernel("NVRM: Xid (PCI:0000:1c:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.")
    assert node.heard("xid")["data"]["xid"] == 79
    assert node.daemon.wait(lambda: node.daemon.heartbeats) and node.daemon.heartbeats[-1]["version"] == __version__
    for name, (kind, arguments) in LATER_ORDERS.items():
        node.daemon.order(name, kind, arguments)
    for name in LATER_ORDERS:
        assert node.daemon.wait(lambda name=name: name in node.daemon.results), name
        result = node.daemon.results[name]
        assert result["ok"] is False and "upgrade the older one (sentinel doctor says which)" in result["error"], result
