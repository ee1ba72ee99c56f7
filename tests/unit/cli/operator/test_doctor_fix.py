"""What `sentinel doctor` says of secrets and certificates, and what `--fix` mends."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from in_memory.cli_asked import Asked, objects
from in_memory.doctor import DAEMON, Cluster, examine, own

from sentinel.cli.install.files import File, nothing_hook, shipped
from sentinel.errors import UserError


@pytest.mark.parametrize(
    ("told", "name", "answer", "words"),
    [
        ({"wire": "clear"}, "wire", "good", "in clear"),
        ({"wire": "munge"}, "wire", "good", "encrypted by MUNGE"),
        ({}, "audit", "good", "7 entries, in the database only"),
        ({"audit_syslog": "/dev/log", "audit_exported": 7}, "audit", "good", "7 entries, copied to /dev/log"),
        ({"audit_syslog": "/dev/log", "audit_entries": 700}, "audit", "bad", "700 entries not in syslog"),
        ({"audit_syslog": "/dev/log", "audit_exported": 9}, "audit", "bad", "2 entries fewer in the database than"),
        (
            {"audit_syslog": "/dev/log", "audit_exported": 7, "audit_rewritten": 5},
            "audit",
            "bad",
            "entry 5 is not the one",
        ),
    ],
)
def test_how_it_travels_and_what_is_audited(
    asked: Asked, cluster: Cluster, config: Path, told: dict[str, Any], name: str, answer: str, words: str
) -> None:
    own = {"wire": "clear", "audit_entries": 7, "audit_syslog": "", "audit_exported": None}
    asked.views["doctor"] = DAEMON | own | told
    status, found = examine(asked, config)
    assert (found[name]["answer"], status) == (answer, int(answer == "bad")) and words in found[name]["seen"]


@pytest.mark.parametrize(("days", "answer"), [(200, "good"), (13, "bad")])
def test_a_certificate_that_ends_soon_is_bad(days: int, answer: str) -> None:
    from datetime import UTC, datetime, timedelta

    from sentinel.cli.operator.doctor_daemon import certificate

    now = datetime(2026, 3, 1, tzinfo=UTC)
    assert certificate(now + timedelta(days=days), now).answer == answer


def test_tls_that_does_not_work_is_bad(asked: Asked, cluster: Cluster, config: Path) -> None:
    config.write_text(config.read_text().replace("[daemon]", '[daemon]\nwire = "tls"\nurl = "https://127.0.0.1:1"'))
    asked.views["doctor"] = DAEMON | {"wire": "tls", "audit_entries": 0, "audit_syslog": "", "audit_exported": None}
    status, found = examine(asked, config)
    assert status == 1 and found["wire"]["answer"] == "bad" and "127.0.0.1:1" in found["wire"]["seen"]


def test_fix_shows_what_it_would_do_and_does_nothing(
    asked: Asked, cluster: Cluster, config: Path, tmp_path: Path
) -> None:
    stub = tmp_path / "task-sentinel"
    stub.write_text(nothing_hook(File(str(stub), "")))
    stub.chmod(0o755)
    cluster.conf["TaskProlog"] = [str(stub)]
    found = asked.run("doctor", "--fix", "--config", str(config))
    assert found.exit_code == 1 and f"change  {stub}" in found.output and "--fix --yes" in found.output
    assert "does nothing" in found.output and stub.read_text() == nothing_hook(File(str(stub), ""))
    rows = {row["what"]: row for row in objects(asked.run("doctor", "--fix", "--json", "--config", str(config)).stdout)}
    assert rows["TaskProlog"]["repair"] == [f"change  {stub}"] and rows["MUNGE"]["repair"] == []


@pytest.mark.parametrize("content", ["stub", "older", "same"])
def test_fix_writes_hooks_of_ours(asked: Asked, cluster: Cluster, config: Path, tmp_path: Path, content: str) -> None:
    hook = tmp_path / "slurmctld-sentinel"
    text = shipped("epilog/slurmctld-sentinel")
    hook.write_text({"stub": nothing_hook(File(str(hook), "")), "older": text + "# older\n", "same": text}[content])
    hook.chmod(0o644 if content == "same" else 0o755)
    cluster.conf["EpilogSlurmctld"] = [str(hook)]
    found = asked.run("doctor", "--fix", "--yes", "--config", str(config))
    assert "Nothing that --fix could mend" in found.output
    assert hook.read_text() == text and hook.stat().st_mode & 0o777 == 0o755


def test_fix_leaves_a_hook_of_the_sites_alone(asked: Asked, cluster: Cluster, config: Path, tmp_path: Path) -> None:
    mine = tmp_path / "10-sentinel"  # a wrapper of the site's around ours
    mine.write_text("#!/bin/sh\nexit 0\n")
    mine.chmod(0o755)
    cluster.conf["Prolog"] = [str(mine)]
    asked.run("doctor", "--fix", "--yes", "--config", str(config))
    assert mine.read_text() == "#!/bin/sh\nexit 0\n"


def test_fix_lets_nobody_run_a_script_of_the_sites(
    asked: Asked, cluster: Cluster, config: Path, tmp_path: Path
) -> None:
    mine, behind = tmp_path / "prolog.sh", tmp_path / "slurmctld-sentinel"
    mine.write_text("#!/bin/sh\nrm -rf /scratch/old\n")
    mine.chmod(0o644)
    cluster.conf["Prolog"] = [str(mine)]
    behind.symlink_to(mine)
    cluster.conf["EpilogSlurmctld"] = [str(behind)]
    found = asked.run("doctor", "--fix", "--yes", "--config", str(config))
    assert f"{mine} cannot be run" in found.output and mine.stat().st_mode & 0o777 == 0o644


def test_settings_with_secrets_are_closed_to_others(asked: Asked, cluster: Cluster, config: Path) -> None:
    config.write_text(config.read_text() + '[alerts]\nwebhooks = ["https://chat.example.org/hook/7f3a"]\n')
    config.chmod(0o644)
    asked.views["doctor"] = own(config)
    status, found = examine(asked, config)
    assert status == 1 and "everybody" in found["settings"]["seen"] and "7f3a" not in found["settings"]["seen"]
    asked.run("doctor", "--fix", "--yes", "--config", str(config))
    assert config.stat().st_mode & 0o777 == 0o640 and examine(asked, config)[1]["settings"]["answer"] == "good"


def test_where_tickets_are_opened_is_secret_too(asked: Asked, cluster: Cluster, config: Path) -> None:
    config.write_text(config.read_text() + '[returns]\nticket_url = "https://tickets.example.org/hook/7f3a"\n')
    config.chmod(0o644)
    assert "everybody" in examine(asked, config)[1]["settings"]["seen"]


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o775])
def test_no_resume_folder_is_made_where_others_could_put_a_link(
    asked: Asked, cluster: Cluster, config: Path, tmp_path: Path, mode: int
) -> None:
    """Between the look and the making, a link there would give its target to the daemon's account."""
    (tmp_path / "shared").mkdir()
    os.chown(tmp_path / "shared", -1, 12345 if os.geteuid() == 0 else -1)
    (tmp_path / "shared").chmod(mode)
    config.write_text(config.read_text().replace(str(tmp_path / "resume"), str(tmp_path / "shared" / "resume")))
    found = asked.run("doctor", "--fix", "--yes", "--config", str(config))
    assert "resume folder" in found.output and not (tmp_path / "shared" / "resume").exists()


def test_fix_makes_a_missing_resume_folder(asked: Asked, cluster: Cluster, config: Path, tmp_path: Path) -> None:
    (tmp_path / "resume").rmdir()
    assert examine(asked, config)[1]["resume folder"]["answer"] == "bad"
    found = asked.run("doctor", "--fix", "--yes", "--config", str(config))
    assert (tmp_path / "resume").is_dir(), found.output


def test_yes_alone_is_refused(asked: Asked, config: Path) -> None:
    assert isinstance(asked.run("doctor", "--yes", "--config", str(config)).exception, UserError)
