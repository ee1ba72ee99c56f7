"""When is an end a bad one, who is asked what, and what becomes of a collector that dies."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from sentinel.agent.collectors.jobs import JobOnNode
from sentinel.agent.postmortem.collecting import AT_ONCE, HUNG, PLACES_BYTES, FailureCollection
from sentinel.agent.process.children import Ending, Program
from sentinel.agent.settings import AgentSettings, Collect, require_sound
from sentinel.errors import UserError
from sentinel.model.records import Evidence, Kind, Source, Where, stable_id
from sentinel.wire import to_json

NOW = datetime(2026, 3, 1, tzinfo=UTC)


class Site:
    """A node's folders, its clock, and the children that were started."""

    def __init__(self, folder: Path, **collect: Any) -> None:
        self.run, self.state = folder / "run", folder / "state"
        (self.run / "jobs").mkdir(parents=True)
        self.state.mkdir()
        self.now_s = 1000.0
        self.programs: list[Program] = []
        self.full = False
        self.jobs: dict[int, JobOnNode] = {}
        self.ended: list[int] = []
        self.kept: list[Evidence] = []
        self.settings = AgentSettings(
            node="n1", run_dir=str(self.run), state=str(self.state), collect=Collect(**{"places_s": [], **collect})
        )
        self.collecting = self.restart()

    def restart(self) -> FailureCollection:
        self.collecting = FailureCollection(
            "n1",
            self.settings,
            self,  # type: ignore[arg-type]
            lambda name, _module, arguments, **rest: Program(name, ["x"], arguments, **rest),
            self.kept.append,
            {"oom"},
            lambda: dict(self.jobs),
            lambda: [{"gpus": []}],
            clock=lambda: self.now_s,
        )
        self.collecting.on_ended = lambda job, _began_s: self.ended.append(job.job)
        return self.collecting

    def start(self, program: Program) -> bool:
        if not self.full:
            self.programs.append(program)
        return not self.full

    def leave(self, job: int = 7, code: str = "unknown", attempt: int = 0, **changes: str) -> Path:
        """As the epilog leaves it."""
        content = {"job": str(job), "attempt": str(attempt), "uid": "1000", "gid": "1000", "nodelist": "n[1-2]",
                   "stdout": "/data/j-%j.out", "work_dir": "/data", "gpus": "0,1", "user": "ada", **changes}  # fmt: skip
        path = self.run / "ended" / f"{job}.{attempt}.{code}.json"
        path.write_text(json.dumps(content))
        os.utime(path, (900, 900))
        return path

    def look(self, after_s: float = 0.0) -> dict[str, Any]:
        """One look; the arguments of the newest collector."""
        self.now_s += after_s
        self.collecting.look()
        collectors = [program for program in self.programs if program.name.startswith("collect:")]
        return dict(collectors[-1].arguments) if collectors else {}

    def say(self, **message: Any) -> None:
        """The newest collector's last word."""
        program = [program for program in self.programs if program.name.startswith("collect:")][-1]
        program.on_message({"type": "collected", "folder": None, "dumps": 0, "notes": [], "hung": None, **message})

    def speak(
        self, source: Source = Source.KERNEL, kind: str = Kind.XID, rule: str | None = None, **where: Any
    ) -> None:
        identity = stable_id(source, kind, rule, tuple(where.items()))
        self.collecting.consider(
            Evidence(id=identity, at=NOW, seen_at=NOW, source=source, kind=kind, rule=rule, where=Where(**where))
        )

    @property
    def done(self) -> list[str]:
        return sorted(path.name for path in (self.state / "bundles").glob("*.done"))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_a_good_end_starts_nothing(site: Site) -> None:
    path = site.leave(code="0")
    assert site.look() == {}
    assert site.done == ["7.0.done"]
    assert not path.exists()
    assert site.ended == [7], "its local checkpoints are listed all the same"


def test_a_failed_job_is_collected_with_all_that_is_known_of_it(site: Site) -> None:
    site.jobs = {8: JobOnNode(8, 0, 1001, None, "n1", "")}
    path = site.leave(code="256")
    asked = site.look()
    assert (asked["job"], asked["attempt"], asked["uid"], asked["why"], asked["code"]) == (7, 0, 1000, "code", "256")
    assert (asked["began_s"], asked["first"], asked["log"], asked["gpus"]) == (900.0, True, "/data/j-7.out", [0, 1])
    assert (asked["others"], asked["look"]) == ({"8": 1001}, True)
    assert json.loads(Path(asked["gpus_seen"]).read_text()) == [{"gpus": []}]
    assert site.done == [], "it is not over"
    site.look(1.0)
    assert len(site.programs) == 1
    site.say(folder="/bundles/7.0")
    assert site.done == ["7.0.done"]
    assert not path.exists()


def test_evidence_in_a_form_of_the_users_own_keeps_back_no_other(site: Site) -> None:
    """What error files say comes from a process that works as the job's user."""
    site.leave(code="256")
    site.look()
    sound = to_json(
        Evidence(id="e", at=NOW, seen_at=NOW, source=Source.AGENT, kind=Kind.BUNDLE, where=Where(node="n1"))
    )
    program = site.programs[-1]
    program.on_message({"type": "evidence", "items": [{**sound, "kind": 5}, {"where": {}}, [], sound]})
    assert [item.id for item in site.kept] == ["e"]
    site.say(folder="/bundles/7.0")
    assert site.done == ["7.0.done"]


def test_a_failed_job_whose_log_has_a_name_that_is_no_text_is_collected(site: Site) -> None:
    path = site.leave(code="256", stdout="/data/@-%j.out")
    path.write_bytes(path.read_bytes().replace(b"@", b"\xff"))
    assert os.fsencode(site.look()["log"]) == b"/data/\xff-7.out"


def test_where_slurm_does_not_say_what_the_job_left_is_looked_for_at_once(site: Site) -> None:
    site.leave()
    asked = site.look()
    assert (asked["why"], asked["look"], asked["kernel"]) == ("", True, "")
    site.say(folder="/bundles/7.0", dumps=3)
    assert site.done == ["7.0.done"]


def test_then_its_log_is_given_a_moment(site: Site) -> None:
    site.leave()
    site.look()
    site.say()
    assert site.done == [], "nothing was found; the last lines of its log may be under way"
    site.look(0.1)
    assert len(site.programs) == 1
    site.speak(Source.JOB_LOG, "oom", "oom", job=7, attempt=0)
    asked = site.look(2.0)
    assert (len(site.programs), asked["why"]) == (2, "log")
    site.say()  # the disk was full: nothing is kept, and it is over all the same
    assert site.done == ["7.0.done"]


def test_without_a_word_it_was_a_good_end(site: Site) -> None:
    site.leave()
    site.look()
    site.say()
    site.look(2.0)
    assert (len(site.programs), site.done) == (1, ["7.0.done"])


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"node": "n1"}, "node"),
        ({"node": "n1", "job": 7, "attempt": 0}, "node"),
        ({"node": "n2"}, ""),
        ({"node": "n1", "job": 9, "attempt": 0}, ""),
        ({"source": Source.JOB_LOG, "kind": "oom", "rule": "oom", "job": 7, "attempt": 0}, "log"),
        ({"source": Source.JOB_LOG, "kind": "oom", "rule": "oom", "job": 7, "attempt": 1}, ""),
        ({"source": Source.JOB_LOG, "kind": "notice", "rule": "notice", "job": 7, "attempt": 0}, ""),
        ({"source": Source.JOB_LOG, "kind": Kind.STEP, "job": 7, "attempt": 0}, ""),
        ({"source": Source.AGENT, "kind": Kind.UNREADABLE, "node": "n1"}, ""),
        ({"source": Source.CHECKPOINT, "kind": Kind.CHECKPOINT_INVALID, "job": 7}, ""),
    ],
)
def test_what_speaks_against_a_job(site: Site, said: dict[str, Any], why: str) -> None:
    site.jobs = {7: JobOnNode(7, 0, 1000, None, "n1", "")}
    site.speak(**said)
    mark = site.run / "against" / "7.0"
    assert (mark.read_text().strip() if mark.exists() else "") == why
    site.leave()
    assert site.look()["why"] == why


def test_the_nodes_word_outweighs_the_logs_and_not_the_other_way(site: Site) -> None:
    site.jobs = {7: JobOnNode(7, 0, 1000, None, "n1", "")}
    for _ in range(2):
        site.speak(Source.JOB_LOG, "oom", "oom", job=7, attempt=0)
        site.speak(node="n1")
    assert (site.run / "against" / "7.0").read_text() == "node\n"


def test_a_good_code_outweighs_what_a_program_prints(site: Site) -> None:
    site.speak(Source.JOB_LOG, "oom", "oom", job=7, attempt=0)
    site.leave(code="0")
    assert site.look() == {}
    site.jobs = {8: JobOnNode(8, 0, 1000, None, "n1", "")}
    site.speak(node="n1")
    site.leave(8, code="0")
    assert site.look()["why"] == "node"


def test_a_collector_that_dies_is_over(site: Site) -> None:
    path = site.leave(code="1")
    site.look()
    site.programs[-1].on_end(Ending("collect:7.0", None, True, "", "D in nfs_wait"))
    assert json.loads((site.state / "bundles" / "7.0.done").read_text())["trouble"] == "killed in state D in nfs_wait"
    assert not path.exists()
    site.look(1.0)
    assert len(site.programs) == 1


def test_a_few_at_a_time(site: Site) -> None:
    for job in range(1, AT_ONCE + 3):
        site.leave(job, code="1")
    site.look()
    assert len(site.programs) == AT_ONCE
    site.say()
    site.look(1.0)
    assert len(site.programs) == AT_ONCE + 1


def test_users_files_that_hang_are_not_tried_for_ever(site: Site) -> None:
    for job in range(HUNG):
        site.leave(job + 1, code="1")
        site.look()
        site.say(hung=os.getpid())  # some process that is there
    site.leave(9, code="1")
    assert site.look()["look"] is False, "the rest is collected all the same"


def test_off_is_off(tmp_path: Path) -> None:
    site = Site(tmp_path, on=False)
    site.leave(code="256")
    assert (site.look(), site.done) == ({}, ["7.0.done"])


def test_a_site_that_ends_strays_looks_after_good_jobs_too(tmp_path: Path) -> None:
    site = Site(tmp_path, end_stray=True)
    site.leave(code="0")
    asked = site.look()
    assert (asked["end_stray"], asked["look"], asked["why"]) == (True, False, "")


@pytest.mark.parametrize("content", ["", "{", "[]", '{"job": "x"}', "\udcff"])
def test_a_file_that_no_epilog_wrote_is_removed(site: Site, content: str) -> None:
    path = site.run / "ended" / "7.0.1.json"
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    assert site.look() == {}
    assert not path.exists()


def test_what_ended_while_the_agent_was_away_is_found(site: Site) -> None:
    site.leave(code="1")
    site.restart()
    assert site.look()["why"] == "code"


def test_a_clock_that_jumps_back_holds_up_nobody(site: Site) -> None:
    site.leave()
    site.look()
    site.say()
    site.look(-5000.0)
    assert site.done == ["7.0.done"]


def test_when_nothing_can_be_started_it_is_over(site: Site) -> None:
    site.full = True
    site.leave(code="1")
    site.look()
    assert site.done == ["7.0.done"]


def test_jobs_whose_epilog_never_came_are_forgotten(site: Site) -> None:
    site.jobs = {7: JobOnNode(7, 0, 1000, None, "n1", "")}
    site.speak(node="n1")
    site.look()
    assert site.collecting._against
    site.jobs = {}
    site.look(1.0)
    assert site.collecting._against, "its end may have come between two looks"
    site.look(1.0)
    assert not site.collecting._against and not site.collecting._asked


def test_another_job_of_the_same_number_counts_for_nothing(site: Site) -> None:
    """Slurm's numbers begin again when its state is lost."""
    for path in (site.run / "against" / "7.0", site.state / "bundles" / "7.0.done"):
        path.write_text("node\n")
        os.utime(path, (100, 100))
    (site.run / "jobs" / "7.json").touch()
    os.utime(site.run / "jobs" / "7.json", (900, 900))
    site.jobs = {7: JobOnNode(7, 0, 1000, None, "n1", "")}
    site.look()
    assert site.done == [] and not (site.run / "against" / "7.0").exists()
    site.leave()
    assert site.look()["why"] == ""


def test_what_spoke_against_a_job_before_the_agent_restarted_holds(site: Site) -> None:
    (site.run / "jobs" / "7.json").touch()
    os.utime(site.run / "jobs" / "7.json", (900, 900))
    site.jobs = {7: JobOnNode(7, 0, 1000, None, "n1", "")}
    site.look()
    site.speak(node="n1")
    site.restart()
    site.look()
    (site.run / "jobs" / "7.json").unlink()
    site.leave()
    assert site.look()["why"] == "node"


def test_a_deadline_needs_time_beside_the_wait_for_strays() -> None:
    require_sound(AgentSettings(collect=Collect(deadline_s=6.0, term_s=4.0)))
    with pytest.raises(UserError, match=r"collect\.deadline_s"):
        require_sound(AgentSettings(collect=Collect(deadline_s=5.0, term_s=4.0)))


class TestPlaces:
    def came(self, tmp_path: Path) -> Site:
        site = Site(tmp_path, places_s=[10.0, 60.0])
        site.jobs = {7: JobOnNode(7, 0, 1000, None, "n1", "")}
        (site.run / "jobs" / "7.json").touch()
        os.utime(site.run / "jobs" / "7.json", (1000, 1000))
        return site

    def asked(self, site: Site, after_s: float = 0.0) -> int:
        site.look(after_s)
        return sum(program.name == "places:7.0" for program in site.programs)

    def test_a_jobs_processes_are_asked_a_few_times(self, tmp_path: Path) -> None:
        site = self.came(tmp_path)
        assert [self.asked(site, after_s) for after_s in (1, 10, 10, 50, 500)] == [0, 1, 1, 2, 2]

    def test_at_once_when_something_speaks_against_it(self, tmp_path: Path) -> None:
        site = self.came(tmp_path)
        site.speak(node="n1")
        assert self.asked(site) == 1
        assert self.asked(site, 1) == 1

    def test_what_they_say_is_remembered_and_handed_on(self, tmp_path: Path) -> None:
        site = self.came(tmp_path)
        self.asked(site, 11)
        site.programs[-1].on_message({"places": {"dumps": ["/a"], "homes": ["/home/x"]}})
        self.asked(site, 50)
        site.programs[-1].on_message({"places": {"dumps": ["/a", "/b"]}})
        site.restart()
        site.leave(code="1")
        assert site.look()["places"] == {"dumps": ["/a", "/b"], "homes": ["/home/x"]}
        site.say()
        assert json.loads((site.state / "places.json").read_text()) == {}

    def test_what_does_not_go_through_a_pipe_is_left_out(self, tmp_path: Path) -> None:
        site = self.came(tmp_path)
        self.asked(site, 11)
        many = [f"/{number}" + "\udcff" * 900 for number in range(16)]
        site.programs[-1].on_message({"places": {"dumps": many, "errors": ["/e"]}})
        site.leave(code="1")
        asked = site.look()
        assert len(json.dumps(asked)) < PLACES_BYTES + 4096 < 65536
        assert asked["places"]["errors"] == ["/e"]
        assert asked["places"]["dumps"][0] == many[0]
