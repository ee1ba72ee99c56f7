"""What nodes held when a job ended, for a choice that is made when some of them answer no more."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import cast

import pytest
from in_memory.daemon import Daemon, FakeOrders
from in_memory.world import World
from made_records import AT, evidence, fleet, incident, job, node, plan, step, verdict

from sentinel.actions.means import Task
from sentinel.checkpoints.packed import pack
from sentinel.checkpoints.records import Part
from sentinel.config.settings import Recovery
from sentinel.daemon.effects.checkpoints import FleetCheckpoints
from sentinel.daemon.effects.folder_listings import Check, FolderListings
from sentinel.daemon.ingest.fleets import FleetSnapshots
from sentinel.detect.listings import ATTEMPTS, Listings
from sentinel.errors import Timeout, Unavailable
from sentinel.log import Log
from sentinel.model.intent import intent_of
from sentinel.model.records import Cause, Evidence, Fleet, Kind, Source, StepKind

Worlds = Callable[..., World]
COMMENT = json.dumps({"sentinel": {"restart": True, "global": ["/shared"], "local": ["/nvme/%N"]}})


def part(node: str, number: int, *owners: int, valid: bool | None = True) -> Part:
    return Part(
        host=node, root=f"/nvme/{node}", path=f"/nvme/{node}/step-{number}", key=f"step-{number}", step=number,
        tier="local", format="nvrx", bytes=10, valid=valid, level="checksum", reason="", whole=False, world_size=4,
        owners=frozenset(owners), marked=True,
    )  # fmt: skip


def held(node: str, *parts: Part, job: int = 101, attempt: int = 0, text: str | None = None) -> Evidence:
    data = {"listing": pack(parts) if text is None else text}
    return evidence(Kind.CHECKPOINTS_HELD, source=Source.CHECKPOINT, node=node, job=job, attempt=attempt, data=data)


def test_what_a_silent_node_held_is_said_and_no_more() -> None:
    listings = Listings()
    listings.note(held("n1", part("n1", 40, 0, 1), part("n1", 20, 0, 1)))
    listings.note(held("n2", part("n2", 40, 2, 3), part("n2", 60, 2, 3, valid=None)))
    parts, (words,) = listings.silent(101, 0, {"n2"})
    assert {found.host for found in parts} == {"n2"}
    assert words.startswith("n2 held steps 40 when the job ended")
    assert listings.silent(101, 1, {"n2"}) == ([], []), "of another attempt"
    assert listings.silent(101, 0, set()) == ([], [])


def test_what_was_wiped_is_said() -> None:
    listings = Listings()
    before = part("n1", 40, 0, 1)
    listings.note(held("n1", before))
    (words,) = listings.wiped(101, 0, [], {"n1"})
    assert "wipe" in words and "steps 40" in words
    assert listings.wiped(101, 0, [before], {"n1"}) == []
    assert listings.wiped(101, 0, [replace(before, valid=False)], {"n1"}) == [], "it is there, whatever it is worth"
    assert listings.wiped(101, 0, [], set()) == [], "it did not answer"


def test_a_node_speaks_for_itself_alone() -> None:
    listings = Listings()
    listings.note(held("n2", part("n1", 40, 0, 1)))
    parts, _ = listings.silent(101, 0, {"n1", "n2"})
    assert [found.host for found in parts] == ["n2"]


@pytest.mark.parametrize("text", ["", "rubbish", "{}", "\x00"])
def test_rubbish_is_left_out(text: str) -> None:
    listings = Listings()
    listings.note(held("n1", text=text))
    assert listings.of(101, 0) == {}


def test_old_attempts_are_forgotten() -> None:
    listings = Listings()
    for number in range(ATTEMPTS + 5):
        listings.note(held("n1", part("n1", 1, 0), job=number))
    assert listings.of(0, 0) == {}
    assert listings.of(ATTEMPTS + 4, 0)


class Nodes(FakeOrders):
    """n1 answers, with what is left on it; n2 does not."""

    def __init__(self, left: list[Part]) -> None:
        super().__init__()
        self.left = left

    async def ask(self, node: str, kind: str, arguments: Mapping[str, object], *, deadline_s: float) -> object:
        if node != "n1":
            raise Timeout(f"the agent of {node} did not answer")
        roots = arguments["roots"]
        assert isinstance(roots, list)
        return {"listings": [[p.to_json() for p in self.left if p.root == root["path"]] for root in roots]}


@pytest.mark.parametrize("wiped", [True, False])
async def test_a_choice_explains_with_it(world: Worlds, wiped: bool) -> None:
    made = world()
    made.slurm.jobs[made.job].record["comment"] = COMMENT
    daemon = Daemon(made)
    job = (await daemon.fleets.take()).jobs[made.job]
    mine = part("n1", 40, 0, 1)
    shared = replace(part("n1", 10, 0, 1, 2, 3), root="/shared", path="/shared/step-10", tier="global", whole=True)
    for item in (held("n1", mine, job=made.job), held("n2", part("n2", 40, 2, 3), job=made.job)):
        daemon.live.note(item)
    assert daemon.live.attempts[made.job, 0].saves == type(daemon.live.attempts[made.job, 0].saves)(), "no save is told"
    made.slurm.end(made.job, exit_code=1)
    made.slurm.back_to_queue(made.slurm.jobs[made.job], held=True)
    checkpoints = FleetCheckpoints(
        orders=Nodes([shared] if wiped else [shared, mine]), live=daemon.live, fleets=daemon.fleets, store=made.store,
        recovery=Recovery(), log=Log(daemon.stream),
    )  # fmt: skip
    this = step(StepKind.CHOOSE_CHECKPOINT, job=made.job, attempt=0)
    task = Task(incident(job=made.job, attempt=0), verdict(Cause.NCCL_HANG_UNKNOWN), plan(this), this)
    found = await checkpoints.choose(task, job)
    assert found["path"] == "/shared/step-10", "what was listed once is no proof"
    assert "n2 held steps 40 when the job ended" in str(found["explanation"])
    assert ("does an epilog wipe the folder?" in str(found["explanation"])) is wiped


def test_times_are_the_nodes_own() -> None:
    listings = Listings()
    listings.note(replace(held("n1", part("n1", 40, 0)), at=AT + timedelta(hours=1)))
    assert listings.of(101, 0)["n1"].at == AT + timedelta(hours=1)


@pytest.mark.parametrize("partition", ["train", "train,other", "other,train"])
async def test_nodes_of_any_partition_that_the_job_waits_for_list_its_shared_folders(partition: str) -> None:
    """Slurm gives all of them in one text while the job waits; its own node may be gone."""
    nodes = [node("n1", state="down"), node("n2"), node("n3", partitions=["cpu"])]

    class Fleets:
        async def take(self, _max_age_s: float) -> Fleet:
            return fleet(nodes)

    orders = FakeOrders()
    listings = FolderListings(orders, cast(FleetSnapshots, Fleets()), 5.0)
    waiting = job(state="pending", nodes=(), partition=partition, comment=COMMENT)
    with pytest.raises(Unavailable, match="n2 is not connected"):
        await listings.of_shared(waiting, intent_of(COMMENT), [], Check("structural", None))
    assert [asked for asked, _, _ in orders.asked] == ["n2"]
