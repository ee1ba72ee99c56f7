"""Watching a job's saves from its nodes: each new one once, and what is wrong when two looks agree."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import pytest

from sentinel.agent.collectors.jobs import JobOnNode
from sentinel.agent.collectors.saves import SavesWatch, watched_from
from sentinel.agent.process.children import Ending, Program
from sentinel.agent.settings import AgentSettings
from sentinel.checkpoints.packed import unpack
from sentinel.checkpoints.records import Part
from sentinel.correlate.incidents import opens
from sentinel.model.records import Evidence, Kind, Source, Trust

ROOT = "/shared/run"
ENTRY: dict[str, Any] = {
    "job": 7, "attempt": 1, "first": True, "since_s": 100.0,
    "roots": [{"tier": "global", "path": ROOT}],
}  # fmt: skip


def part(step: int, saved_s: float, *, valid: bool | None = True, size: int = 1000, reason: str = "") -> dict[str, Any]:
    path = f"{ROOT}/step-{step}"
    return Part(
        "n1", ROOT, path, f"step-{step}", step, "global", "dcp", size, valid, "structural", reason,
        newest_mtime_s=saved_s, oldest_mtime_s=saved_s - 2.0,
    ).to_json()  # fmt: skip


class Node:
    def __init__(self) -> None:
        self.kept: list[Evidence] = []
        self.programs: list[Program] = []
        self.early = False
        self.jobs: Mapping[int, JobOnNode] = {7: JobOnNode(7, 1, 1000, 1000, "n[1-2]", "")}
        self.watch = SavesWatch(
            "n1",
            AgentSettings(node="n1"),
            self,  # type: ignore[arg-type]
            lambda name, _module, arguments, **rest: Program(name, ["x"], arguments, **rest),
            self.kept.append,
            lambda: self.jobs,
        )

    def start(self, program: Program) -> bool:
        if self.early or not program.name.startswith("early:"):
            self.programs.append(program)
        return True

    def look(self, *parts: dict[str, Any], entry: dict[str, Any] = ENTRY) -> list[Evidence]:
        before = len(self.kept)
        self.watch.heard({"watch": [entry]})
        self.watch.look()
        if self.programs:
            self.programs[-1].on_message({"index": 0, "listing": list(parts)})
        return self.kept[before:]


@pytest.fixture
def node() -> Node:
    return Node()


def test_folders_are_listed_as_the_jobs_user(node: Node) -> None:
    node.look()
    (program,) = node.programs
    assert program.arguments["uid"] == 1000
    assert program.arguments["roots"] == [{"tier": "global", "path": ROOT}]
    assert program.total_s == 60.0


@pytest.mark.parametrize("user", [{"uid": 0}, {"uid": 1001}, {"gid": 0}, {"uid": None}])
def test_an_answer_that_names_a_user_is_refused_and_counted(node: Node, user: dict[str, Any]) -> None:
    node.watch.heard({"watch": [{**ENTRY, **user}]})
    node.watch.look()
    assert node.programs == []
    assert node.watch.refused == 1


def test_a_job_whose_user_slurm_did_not_tell_is_not_looked_at(node: Node) -> None:
    node.jobs = {7: JobOnNode(7, 1, None, None, "n[1-2]", "")}
    node.look()
    assert node.programs == []


def test_another_attempt_or_no_job_is_not_looked_at(node: Node) -> None:
    node.look(entry={**ENTRY, "attempt": 2})
    node.look(entry={**ENTRY, "job": 8})
    node.watch.heard({})
    node.watch.look()
    assert node.programs == []


def test_the_lister_is_started_when_a_job_is_first_heard_of(node: Node) -> None:
    """So that it is there when the job fails before the first look; once for each attempt, and nothing is told of it."""
    node.early = True
    for _ in range(3):
        node.watch.heard({"watch": [ENTRY]})
    (program,) = node.programs
    assert program.arguments["uid"] == 1000 and program.arguments["limit"] == 1
    program.on_message({"index": 0, "listing": [part(10, 200.0)]})
    assert node.kept == []
    node.jobs = {7: JobOnNode(7, 2, 1000, 1000, "n[1-2]", "")}
    node.watch.heard({"watch": [{**ENTRY, "attempt": 2}]})
    assert len(node.programs) == 2
    node.jobs = {7: JobOnNode(7, 3, None, None, "n[1-2]", "")}
    node.watch.heard({"watch": [{**ENTRY, "attempt": 3}]})
    assert len(node.programs) == 2


def test_each_save_is_told_once(node: Node) -> None:
    (first,) = node.look(part(10, 200.0))
    assert (first.kind, first.source, first.where.job, first.where.attempt) == (
        Kind.CHECKPOINT_SAVED, Source.CHECKPOINT, 7, 1,
    )  # fmt: skip
    assert first.data == {"step": 10, "tier": "global", "bytes": 1000, "time_s": 2.0}
    assert first.at.timestamp() == 200.0
    (second,) = node.look(part(10, 200.0), part(20, 260.0))
    assert second.data["step"] == 20
    assert node.look(part(30, 300.0, valid=None, reason="being written")) == []


def test_one_node_speaks_for_the_attempt(node: Node) -> None:
    assert node.look(part(10, 200.0), entry={**ENTRY, "first": False}) == []


def test_an_invalid_one_is_told_at_the_second_look_and_once_for_all_nodes(node: Node) -> None:
    torn = part(10, 200.0, valid=False, reason="__0_0.distcp is cut short")
    assert node.look(torn) == []
    (told,) = node.look(torn)
    assert told.kind == Kind.CHECKPOINT_INVALID
    assert told.trust is Trust.USER, "the folders, and the child that lists them, are the user's"
    assert (told.data["step"], told.data["watched"]) == (10, True)
    assert "cut short" in told.text
    assert {item.id for item in node.look(torn)} == {told.id}
    other = Node()
    other.look(torn)
    assert [item.id for item in other.look(torn)] == [told.id]


def test_what_was_only_being_deleted_is_not(node: Node) -> None:
    assert node.look(part(10, 200.0, valid=False, reason="a shard is missing")) == []
    assert node.look() == []
    assert node.look() == []


def test_what_an_earlier_attempt_left_is_not_this_ones(node: Node) -> None:
    torn = part(10, 90.0, valid=False, reason="torn")
    assert node.look(torn) == node.look(torn) == []


def saves(newest_ago_s: float, *, every_s: float = 100.0, last_size: int = 1000) -> list[dict[str, Any]]:
    newest_s = time.time() - newest_ago_s
    listed = [part(10 * i, newest_s - every_s * (4 - i)) for i in range(1, 4)]
    return [*listed, part(40, newest_s, size=last_size)]


def test_saves_that_stopped(node: Node) -> None:
    listed = saves(3600.0)
    assert {item.kind for item in node.look(*listed)} == {Kind.CHECKPOINT_SAVED}
    (told,) = node.look(*listed)
    assert told.kind == "saves_stopped"
    assert "no checkpoint for 36" in told.text


def test_saves_that_are_not_late_yet(node: Node) -> None:
    listed = saves(270.0)  # 2.7 intervals, and less than five looks
    node.look(*listed)
    assert node.look(*listed) == []


def test_a_save_that_is_smaller(node: Node) -> None:
    listed = saves(10.0, last_size=500)
    node.look(*listed)
    assert [item.kind for item in node.look(*listed)] == ["saves_shrank"]


def test_an_answer_that_is_none() -> None:
    wrong: list[Any] = [7, {}, {"job": "x", "attempt": 0, "roots": []}, {**ENTRY, "roots": [3]}, ENTRY]
    found, refused = watched_from({"watch": wrong})
    assert [watched.job for watched in found] == [7]
    assert len(refused) == 4 and "roots" in refused[3]
    assert watched_from({"watch": 5})[0] == []
    assert watched_from({}) == ([], [])


def looked(node: Node, listed: list[dict[str, Any]], free_bytes: int, free_files: int = 9) -> list[Evidence]:
    before = len(node.kept)
    node.watch.heard({"watch": [ENTRY]})
    node.watch.look()
    space = {"free_bytes": free_bytes, "total_bytes": 10**9, "free_files": free_files}
    node.programs[-1].on_message({"index": 0, "listing": listed, "space": space})
    return node.kept[before:]


def test_a_save_that_was_cut_off_on_a_full_storage(node: Node) -> None:
    listed = [*saves(100.0), part(50, time.time() - 5.0, valid=False, size=10, reason="cut short")]
    looked(node, listed, 100)
    (told,) = looked(node, listed, 100)
    assert told.kind == "saves_no_room"
    assert "100 B of 1 GB" in told.text
    assert told.data["watched"] is True


def test_the_same_with_room_is_only_torn(node: Node) -> None:
    listed = [*saves(100.0), part(50, time.time() - 5.0, valid=False, size=10, reason="cut short")]
    looked(node, listed, 10**8)
    assert [item.kind for item in looked(node, listed, 10**8)] == [Kind.CHECKPOINT_INVALID]


def test_a_storage_that_fills_is_told_before(node: Node) -> None:
    listed = saves(10.0)
    for count, free in enumerate((5000, 4000, 3000, 2000), 1):
        looked(node, listed[:count], free * 1000)
    kinds = [item.kind for item in looked(node, listed, 2000 * 1000)]
    assert kinds == ["saves_no_room"]


def ending(silent: bool) -> Any:
    from sentinel.agent.process.children import Ending

    return Ending("saves:7", None if silent else 0, silent, "", "D in rpc_wait_bit_killable" if silent else "")


def test_a_folder_that_never_answers_is_told_at_the_second_look(node: Node) -> None:
    node.look()
    node.programs[-1].on_end(ending(silent=False))
    assert node.kept == []
    for _ in range(2):
        node.watch.look()
        node.programs[-1].on_end(ending(silent=True))
    (told,) = node.kept
    assert told.kind == "saves_stopped"
    assert ROOT in told.text and "60 s" in told.text and "rpc_wait" in told.text


def test_of_a_local_tier_each_node_tells_what_it_holds_when_it_changes(node: Node) -> None:
    local = {**ENTRY, "first": False, "roots": [{"tier": "local", "path": "/nvme/run"}]}
    held = {**part(10, 200.0), "tier": "local", "whole": False, "owners": [0, 1]}
    (told,) = node.look(held, entry=local)
    assert (told.kind, told.where.node, told.where.path) == ("checkpoints_seen", "n1", "/nvme/run")
    (unpacked,) = unpack(str(told.data["listing"]))
    assert unpacked.owners == frozenset({0, 1})
    assert node.look(held, entry=local) == []
    assert [item.kind for item in node.look(held, {**held, "step": 20}, entry=local)] == ["checkpoints_seen"]


def test_a_daemon_that_was_started_anew_is_told_again(node: Node) -> None:
    local = {**ENTRY, "first": False, "roots": [{"tier": "local", "path": "/nvme/run"}]}
    held = {**part(10, 200.0), "tier": "local", "whole": False, "owners": [0, 1]}
    node.watch.heard({"watch": [local], "instance": "one"})
    assert len(node.look(held, entry=local)) == 1
    node.watch.heard({"watch": [local], "instance": "one"})
    assert node.look(held, entry=local) == []
    node.watch.heard({"watch": [local], "instance": "two"})
    assert [item.kind for item in node.look(held, entry=local)] == ["checkpoints_seen"]
    assert node.look(held, entry=local) == []


# --- each finished save is read once -----------------------------------------------------------------------------------


def readers(node: Node) -> list[Program]:
    return [program for program in node.programs if program.name.startswith("manifest")]


def look_and_keep_listing(node: Node, *parts: dict[str, Any], **answer: Any) -> None:
    node.watch.heard({"watch": [ENTRY], **answer})
    node.watch.look()
    listing = next(program for program in reversed(node.programs) if program.name.startswith("saves"))
    listing.on_message({"index": 0, "listing": list(parts)})


def test_each_finished_save_is_read_once_as_the_jobs_user(node: Node) -> None:
    look_and_keep_listing(node, part(10, 200.0), part(20, 300.0, valid=None))
    (reader,) = readers(node)
    assert reader.arguments["uid"] == 1000 and reader.arguments["path"] == f"{ROOT}/step-10"
    assert reader.arguments["bytes_per_s"] == 200e6
    look_and_keep_listing(node, part(10, 200.0))
    assert len(readers(node)) == 1


def test_a_step_that_is_saved_again_is_read_again_and_told_once(node: Node) -> None:
    for saved_s in (200.0, 200.0, 900.0, 900.0):  # the run was set back, and reached it once more
        look_and_keep_listing(node, part(10, saved_s))
        readers(node)[-1].on_end(Ending("manifest:7", 0, False, "", ""))
    assert [reader.arguments["path"] for reader in readers(node)] == [f"{ROOT}/step-10"] * 2
    assert len([item for item in node.kept if item.kind == Kind.CHECKPOINT_SAVED]) == 1


def test_one_reader_at_a_time_the_newest_save_first(node: Node) -> None:
    look_and_keep_listing(node, part(10, 200.0))
    look_and_keep_listing(node, part(10, 200.0), part(20, 300.0))
    look_and_keep_listing(node, part(20, 300.0), part(30, 400.0))
    assert len(readers(node)) == 1
    readers(node)[0].on_end(Ending("manifest:7", 0, False, "", ""))
    assert [reader.arguments["path"] for reader in readers(node)] == [f"{ROOT}/step-10", f"{ROOT}/step-30"]


def test_what_it_cost_is_told(node: Node) -> None:
    look_and_keep_listing(node, part(10, 200.0))
    (reader,) = readers(node)
    reader.on_message({"read": 500})
    reader.on_message({"valid": True, "reason": "", "level": "content", "read": 1000, "seconds": 2.5, "cpu_s": 0.5})
    reader.on_end(Ending("manifest:7", 0, False, "", ""))
    (made,) = [item for item in node.kept if item.kind == "checkpoint_manifest"]
    assert (made.data["read_bytes"], made.data["read_s"], made.data["level"]) == (1000, 2.5, "content")
    assert not [item for item in node.kept if item.kind == Kind.CHECKPOINT_INVALID]


@pytest.mark.parametrize(
    "said",
    [
        {"valid": True, "reason": "NaN in w", "level": "checksum", "read": 1000, "seconds": 2.5, "cpu_s": 0.5},
        {"valid": False, "reason": "optimizer.pt: CRC-32 differs", "read": 10},
    ],
)
def test_what_it_found_is_told(node: Node, said: dict[str, Any]) -> None:
    look_and_keep_listing(node, part(10, 200.0))
    readers(node)[0].on_message(said)
    readers(node)[0].on_end(Ending("manifest:7", 0, False, "", ""))
    (told,) = [item for item in node.kept if item.kind == Kind.CHECKPOINT_INVALID]
    assert told.data["reason"] == said["reason"] and told.data["watched"] is True


def test_a_job_may_ask_not_to_be_read(node: Node) -> None:
    look_and_keep_listing(node, part(10, 200.0), unread=[7])
    assert not readers(node)


def test_a_reader_that_died_holds_nothing_up(node: Node) -> None:
    look_and_keep_listing(node, part(10, 200.0))
    readers(node)[0].on_end(Ending("manifest:7", None, True, "", "D folio_wait"))
    look_and_keep_listing(node, part(20, 300.0))
    assert len(readers(node)) == 2


def test_what_reading_a_save_cost_opens_no_incident(node: Node) -> None:
    look_and_keep_listing(node, part(10, 200.0))
    readers(node)[0].on_message(
        {"valid": True, "reason": "", "level": "content", "read": 1, "seconds": 1.0, "cpu_s": 0.1}
    )
    readers(node)[0].on_end(Ending("manifest:7", 0, False, "", ""))
    assert not any(opens(item) for item in node.kept)


@pytest.mark.parametrize("ahead_s", [1e10, 3e11, 1e300])
def test_a_save_whose_files_have_a_time_to_come_is_told_of_as_of_now(node: Node, ahead_s: float) -> None:
    """A user can set the times of a file to any; tmpfs, NFS and Lustre keep those that no calendar has."""
    now_s = time.time()
    told = node.look(part(10, 300.0), part(11, ahead_s), part(12, 400.0))
    at_s = {item.data["step"]: item.at.timestamp() for item in told if item.kind == Kind.CHECKPOINT_SAVED}
    assert at_s.keys() == {10, 11, 12} and at_s[10] == 300.0 and now_s <= at_s[11] <= time.time()
