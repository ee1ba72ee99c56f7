"""What Slurm's commands are asked, and what of their answers is taken: in a federation, and over an upgrade of Slurm."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sentinel.adapters.slurm import accounting
from sentinel.adapters.slurm.commands import CommandReader, CommandWriter
from sentinel.adapters.slurm.parse import records
from sentinel.agent.probes import ask_slurm
from sentinel.config.settings import Slurm
from sentinel.errors import Unavailable

OURS, THEIRS = 67108865, 134217729  # ids of a federation: the cluster's number is in the high bits
NODE = {"name": "n1", "state": "idle", "partitions": ["train"], "address": "n1"}


def job(number: int, cluster: str) -> dict[str, object]:
    return {"job_id": number, "job_state": ["RUNNING"], "nodes": "n1", "cluster": cluster, "priority": 5}


def command(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def federation(folder: Path, release: str) -> None:
    """Commands of cluster "ours", where FederationParameters=fed_display: without --local they tell of both clusters."""
    own, all_of_them = [job(OURS, "ours")], [job(OURS, "ours"), job(THEIRS, "theirs")]
    for file, jobs in (("local", own), ("federated", all_of_them)):
        (folder / file).write_text(json.dumps({"errors": [], "jobs": jobs, "nodes": [NODE]}))
    local = 'case " $* " in *" --local "*) what=local;; *) what=federated;; esac'
    for name in ("scontrol", "squeue", "sinfo", "sacct"):
        version = f'[ "$1" = --version ] && echo slurm {release} && exit 0'
        steps = f'case "$*" in *--steps*) [ $what = local ] || exit 9; echo "{OURS}.0|train"; exit 0;; esac'
        command(folder, name, f"{version}\n{local}\n{steps}\ncat {folder}/$what")


@pytest.mark.parametrize("release", ["22.05.8", "24.11.5"])
async def test_of_a_federation_only_the_jobs_of_this_cluster_are_read(tmp_path: Path, release: str) -> None:
    """Nodes of the other clusters may have the same names: their jobs would be laid on ours, and be restarted by both."""
    federation(tmp_path, release)
    reader = CommandReader(bin=f"{tmp_path}:/usr/bin:/bin", deadline_s=60.0)
    assert set((await reader.fleet()).jobs) == {OURS}
    assert await reader.job(THEIRS) is None
    assert await reader.steps(OURS) == {0: "train"}


async def test_the_accounting_of_the_other_clusters_is_not_ours(tmp_path: Path) -> None:
    federation(tmp_path, "24.11.5")
    at = datetime(2026, 3, 1, tzinfo=UTC)
    said = json.loads(await accounting.ask(Slurm(bin=f"{tmp_path}:/usr/bin:/bin"), at, at))
    assert [row["job_id"] for row in said["jobs"]] == [OURS]


def test_an_agent_asks_its_own_cluster(tmp_path: Path) -> None:
    """A slurmctld elsewhere that stands still would take the whole deadline of each question."""
    command(tmp_path, "squeue", f'case " $* " in *" --local "*) echo {OURS} 1001 1001;; *) exit 9;; esac')
    assert ask_slurm.owner(OURS, f"{tmp_path}/squeue", "", 60.0) == {"uid": 1001, "gid": 1001}


OLD, NEW = "22.05.8", "24.11.5"


def installed(folder: Path, release: str) -> None:
    """Commands as these releases have them: before 23.02 scontrol knows no --json, and sinfo of newer ones merges nodes."""
    (folder / "answer").write_text(json.dumps({"errors": [], "jobs": [job(7, "ours")], "nodes": [NODE]}))
    new = f'[ "$1" = --version ] && echo slurm {release} && exit 0\n'
    no = "echo \"scontrol: unrecognized option '--json'\" >&2; exit 1"
    command(folder, "scontrol", f"{new}{f'cat {folder}/answer' if release == NEW else no}")
    command(folder, "sinfo", f"cat {folder}/answer" if release == OLD else 'echo \'{"errors": [], "sinfo": []}\'')
    command(folder, "squeue", f"cat {folder}/answer")


@pytest.mark.parametrize(("before", "after"), [(OLD, NEW), (NEW, OLD)])
async def test_another_release_is_noticed_while_the_daemon_runs(tmp_path: Path, before: str, after: str) -> None:
    """Slurm is upgraded, or the upgrade taken back: the daemon's host gets other commands under it."""
    installed(tmp_path, before)
    reader = CommandReader(bin=f"{tmp_path}:/usr/bin:/bin", deadline_s=60.0)
    assert set((await reader.fleet()).nodes) == {"n1"}
    installed(tmp_path, after)
    with pytest.raises(Unavailable):
        await reader.fleet()
    assert set((await reader.fleet()).nodes) == {"n1"} and await reader.node("n1") is not None


@pytest.mark.parametrize(
    "meta", [{"slurm": {"cluster": "ours"}}, {"Slurm": {"release": "22.05.8"}}, {}, None, {"slurm": 7}]
)
def test_a_record_of_another_cluster_is_left_out_where_slurm_says_whose_it_is(meta: object) -> None:
    answer = {"meta": meta, "jobs": [job(1, "ours"), job(2, "theirs"), job(3, ""), {"job_id": 4}, 5]}
    found = records(json.dumps(answer), "jobs")
    known = meta == {"slurm": {"cluster": "ours"}}
    assert [record.get("job_id") for record in found] == ([1, 3, 4, None] if known else [1, 2, 3, 4, None])


async def test_the_end_of_a_step_is_not_changed_by_variables_of_scancel(tmp_path: Path, monkeypatch) -> None:
    """SCANCEL_USER lets scancel end nothing and say 0, SCANCEL_INTERACTIVE asks, SLURM_CLUSTERS asks elsewhere."""
    for variable in ("SCANCEL_USER", "SCANCEL_INTERACTIVE", "SCANCEL_STATE", "SACCT_FEDERATION", "SLURM_CLUSTERS"):
        monkeypatch.setenv(variable, "theirs")
    task = {"array_job_id": 16, "array_task_id": 3}  # of an array whose number another cluster's array may have
    own = job(OURS, "ours") | task
    (tmp_path / "local").write_text(json.dumps({"errors": [], "jobs": [own], "nodes": [NODE]}))
    version = '[ "$1" = --version ] && echo slurm 24.11.5 && exit 0'
    command(tmp_path, "scontrol", f"{version}\ncat {tmp_path}/local")
    command(
        tmp_path,
        "scancel",
        f'echo "$@" >{tmp_path}/asked; env | grep -E "^(SCANCEL|SACCT|SLURM)_" >>{tmp_path}/asked; true',
    )
    await CommandWriter(bin=f"{tmp_path}:/usr/bin:/bin", deadline_s=60.0).end_step(OURS, 3)
    assert (tmp_path / "asked").read_text() == f"{OURS}.3\n"
