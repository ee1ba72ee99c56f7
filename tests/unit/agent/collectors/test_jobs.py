"""Jobs that come and go on a node: who follows their logs, and how each ends."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from nodes.job_site import Site

from sentinel.agent.collectors.gpus import plain_pci
from sentinel.agent.collectors.jobs import first_node, job_from
from sentinel.agent.process.children import Ending
from sentinel.errors import ProtocolError
from sentinel.model.records import Evidence, Kind, Source, Trust, Where, utc
from sentinel.wire import to_json


@pytest.mark.parametrize(
    ("text", "first"),
    [("n1", "n1"), ("n[1-4]", "n1"), ("gpu[007-010,22]", "gpu007"), ("n[3,1]-ib", "n3-ib"), ("a,b[1-2]", "a"), ("", ""),
     ("rack[1-2]n[3-4]", "rack1n3")],
)  # fmt: skip
def test_the_first_node_is_the_batch_host(text: str, first: str) -> None:
    assert first_node(text) == first


@pytest.mark.parametrize("value", [None, [], {}, {"job": "x"}, {"job": ""}, 7])
def test_what_is_no_job_file(value: Any) -> None:
    with pytest.raises(ProtocolError):
        job_from(value)


def test_the_batch_host_follows_the_log(site: Site) -> None:
    site.came(5)
    (started,) = site.bench.programs
    assert started.name == "log:5.0"
    assert started.arguments["path"] == "/data/j.out"
    assert started.restart
    assert site.jobs.running() == [{"job": 5, "attempt": 0, "gpus": "", "found_by": ""}]


def left(site: Site, job: int, code: str) -> None:
    """As the epilog leaves it."""
    (site.run / "ended" / f"{job}.0").write_text(f"{code}\n")
    (site.run / "jobs" / f"{job}.json").unlink()
    site.jobs.scan()


def young(site: Site, job: int = 5) -> None:
    """A job file that is written now."""
    content = {"job": str(job), "attempt": "0", "uid": str(os.getuid()), "nodelist": "n1", "stdout": "/data/j.out"}
    (site.run / "jobs" / f"{job}.json").write_text(json.dumps(content))
    site.jobs.scan()


def test_a_job_that_ends_well_at_once_gets_no_follower(site: Site) -> None:
    young(site)
    assert site.bench.programs == [] and 5 in site.jobs.jobs
    left(site, 5, "0")
    assert site.bench.programs == [] and list((site.run / "ended").iterdir()) == []


@pytest.mark.parametrize("code", ["1", "unknown", ""])
def test_a_job_that_fails_at_once_is_read_to_its_end(site: Site, code: str) -> None:
    young(site)
    left(site, 5, code)
    assert [started.name for started in site.bench.programs] == ["log:5.0"]
    assert (site.run / "ended" / "5.0").exists()


def unseen(site: Site, code: str, **changes: str) -> None:
    """A job that began and ended between two scans: what the epilog left of it, and what the agent makes of that."""
    content = {
        "job": "5",
        "attempt": "0",
        "uid": str(os.getuid()),
        "nodelist": "n1",
        "stdout": "/data/j.out",
        **changes,
    }
    (site.run / "ended" / "5.0").write_text(f"{code}\n")
    site.jobs.ended(job_from(content), time.time())
    site.jobs.scan()


def test_a_job_that_failed_between_two_scans_is_read_to_its_end(site: Site) -> None:
    unseen(site, "1")
    unseen(site, "1")
    assert [started.name for started in site.bench.programs] == ["log:5.0"]
    assert (site.run / "ended" / "5.0").exists()


@pytest.mark.parametrize(
    ("code", "changes"), [("0", {}), ("1", {"nodelist": "n[2-3]"}), ("1", {"stdout": "/dev/null"})]
)
def test_what_need_not_be_read_between_two_scans_is_not(site: Site, code: str, changes: dict[str, str]) -> None:
    unseen(site, code, **changes)
    assert site.bench.programs == [] and list((site.run / "ended").iterdir()) == []


def test_a_job_that_was_read_to_its_end_is_not_read_again(site: Site) -> None:
    young(site)
    left(site, 5, "1")
    site.jobs._heard(site.jobs._following["log:5.0"], {"type": "done"})
    site.jobs.ended(job_from({"job": "5", "attempt": "0", "nodelist": "n1", "stdout": "/data/j.out"}), time.time())
    assert len(site.bench.programs) == 1


@pytest.mark.parametrize("ahead_s", [-3.0, 3600.0])  # the latter: the node's clock was set back since
def test_a_job_that_lives_gets_its_follower(site: Site, ahead_s: float) -> None:
    young(site)
    site.jobs._young["log:5.0"] = (site.jobs.jobs[5], time.time() + ahead_s)
    site.jobs.scan()
    site.jobs.scan()
    assert [started.name for started in site.bench.programs] == ["log:5.0"]


def test_a_job_without_a_log_gets_none(site: Site) -> None:
    site.came(5, stdout="/dev/null")
    site.jobs.scan()
    assert site.bench.programs == [] and site.kept == []


def test_other_nodes_do_not(site: Site) -> None:
    site.came(5, nodelist="n[0-2]")
    assert site.bench.programs == []
    assert list(site.jobs.jobs) == [5]


def test_a_log_whose_place_is_not_known_is_unreadable(site: Site) -> None:
    site.came(5, stdout="")
    assert site.bench.programs == []
    assert [item.kind for item in site.kept] == [Kind.UNREADABLE]


def test_a_name_with_placeholders_becomes_a_pattern(site: Site) -> None:
    site.came(6, stdout="%x-%j.out", work_dir="/data/[run]")
    assert site.bench.programs[0].arguments["path"] == "/data/[[]run]/*-6.out"


def test_a_log_whose_name_is_no_text_is_followed_under_its_bytes(site: Site) -> None:
    """The prolog's shell writes into the job file what the user wrote."""
    raw = (
        f'{{"job":"5","attempt":"0","uid":"{os.getuid()}","nodelist":"n1","stdout":"/data/\x00-%j.out","user":"ada"}}\n'
    )
    (site.run / "jobs" / "5.json").write_bytes(raw.encode().replace(b"\x00", b"\xff\xed\xa0\x80"))
    os.utime(site.run / "jobs" / "5.json", ns=(0, 0))
    site.jobs.scan()
    assert list(site.jobs.jobs) == [5]
    path = site.bench.programs[0].arguments["path"]
    assert os.fsencode(str(path)) == b"/data/\xff\xed\xa0\x80-5.out"
    assert json.loads(json.dumps(path)) == path, "as the follower gets it"


def test_no_width_in_a_users_file_name_costs_more_than_its_digits(site: Site) -> None:
    site.came(6, stdout="/data/%999999999999j-%" + "9" * 5000 + "j-%03j.out")
    assert site.bench.programs[0].arguments["path"] == "/data/0000000006-0000000006-006.out"


@pytest.mark.parametrize("job", ["9" * 5000, "²", "٣" * 20])
def test_a_number_that_is_none_breaks_no_other_job(site: Site, job: str) -> None:
    (site.run / "jobs" / "9.json").write_text(json.dumps({"job": job, "uid": job}))
    site.came(5, uid=job)
    assert list(site.jobs.jobs) == [5] and site.jobs.jobs[5].uid is None


def test_the_end_is_told_to_the_follower(site: Site) -> None:
    site.came(5)
    (site.run / "jobs" / "5.json").unlink()
    site.jobs.scan()
    assert site.jobs.jobs == {}
    assert Path(str(site.bench.programs[0].arguments["ended"])).exists()


def test_the_mark_of_a_job_that_nobody_follows_goes(site: Site) -> None:
    site.came(5, nodelist="n[0-2]")
    (site.run / "ended" / "5.0").write_text("256\n")
    (site.run / "jobs" / "5.json").unlink()
    site.jobs.scan()
    assert list((site.run / "ended").iterdir()) == []
    old, long = site.run / "ended" / "4.0", site.run / "ended" / "6.0.unknown.json"
    for path in (old, long):
        path.touch()
        os.utime(path, (1, 1))
    site.restart().resume()
    assert not old.exists()
    assert long.exists(), "of a job that ran for days; the collector has not read it yet"


def test_a_second_attempt_ends_the_first(site: Site) -> None:
    site.came(5, 0)
    site.came(5, 1)
    assert [program.name for program in site.bench.programs] == ["log:5.0", "log:5.1"]
    assert (site.run / "ended" / "5.0").exists()
    assert not (site.run / "ended" / "5.1").exists()


def test_a_restarted_agent_goes_on_behind_the_last_evidence(site: Site) -> None:
    site.came(5)
    cursor = {"inode": 9, "offset": 120, "line": 7}
    site.bench.programs[0].on_message({"type": "alive", "cursor": cursor})
    site.restart().resume()
    assert site.bench.programs[-1].arguments["cursor"] == cursor


def test_a_job_that_ended_while_the_agent_was_away_is_read_to_its_end(site: Site) -> None:
    site.came(5)
    site.bench.programs[0].on_message({"type": "alive", "cursor": {"inode": 9, "offset": 120, "line": 7}})
    (site.run / "jobs" / "5.json").unlink()
    site.restart().resume()
    last = site.bench.programs[-1]
    assert (last.name, last.arguments["cursor"]["offset"]) == ("log:5.0", 120)  # type: ignore[index]
    assert Path(str(last.arguments["ended"])).exists()
    last.on_message({"type": "done", "cursor": {}})
    assert list((site.state / "jobs").iterdir()) == []
    assert site.bench.stopped == ["log:5.0"]


def test_a_heartbeat_says_how_long_ago_the_end_of_each_log_was_seen(site: Site) -> None:
    assert site.jobs.logs(0) == []
    site.came(5)
    tell = site.bench.programs[0].on_message
    assert site.jobs.logs(0) == [], "not looked at yet: not known"
    tell({"type": "looked", "at_s": time.monotonic() - 3.0})
    (log,) = site.jobs.logs(0)
    assert (log["job"], log["attempt"]) == (5, 0) and 3.0 <= log["looked_ago_s"] < 4.0
    item = Evidence("i", utc(1), utc(1), Source.JOB_LOG, Kind.STEP, Where(job=5, attempt=0), data={"step": 9})
    tell({"type": "evidence", "items": [to_json(item)], "cursor": {}})
    tell({"type": "looked", "at_s": time.monotonic()})
    assert site.jobs.logs(0)[0]["looked_ago_s"] >= 3.0, "the step is not with the daemon: what came before it is"
    assert site.jobs.logs(1)[0]["looked_ago_s"] < 3.0
    tell({"type": "done", "cursor": {}})
    assert site.jobs.logs(1) == []


def test_a_follower_that_hangs_is_evidence(site: Site) -> None:
    site.came(5)
    site.bench.programs[0].on_end(Ending("log:5.0", None, True, "", "D in nfs_wait"))
    assert site.kept[0].kind == Kind.PROBE_HUNG
    assert site.kept[0].trust is Trust.USER, "the job's user may stop it, and chose the file system of the log"
    assert "nfs_wait" in site.kept[0].text


def test_a_broken_job_file_is_passed_over(site: Site) -> None:
    (site.run / "jobs" / "9.json").write_text("{")
    site.jobs.scan()
    site.came(5)
    assert list(site.jobs.jobs) == [5]
    (site.run / "jobs" / "9.json").write_text('{"job": "9", "nodelist": "n7"}')
    site.jobs.scan()
    assert list(site.jobs.jobs) == [5, 9], "it was only half written"


def test_a_job_file_that_goes_between_two_looks_at_it_is_a_job_that_left(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.came(5)
    (file,) = (site.run / "jobs").glob("*.json")
    listed = [file]
    file.unlink()
    with monkeypatch.context() as patched:
        patched.setattr(Path, "glob", lambda *_: iter(listed))
        site.jobs.scan()
    site.jobs.scan()
    assert not site.jobs.jobs


def test_pci_addresses_are_one() -> None:
    assert len({plain_pci(text) for text in ("0000:3b:00", "00000000:3B:00.0", "0000:3b:00.0")}) == 1
    assert plain_pci("0001:3b:00") != plain_pci("0000:3b:00")


V1, V2 = "/slurm_n1/uid_1000/job_{}/step_0/task_0", "/system.slice/n1_slurmstepd.scope/job_{}/step_0/user/task_0"
