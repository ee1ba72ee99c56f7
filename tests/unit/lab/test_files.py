"""The files that a lab writes for others: Slurm, the hooks, sbatch, people."""

from __future__ import annotations

import argparse
import json
import threading
import tomllib
import urllib.request

import pytest
from lab import hooks, sentinel_config, slurm
from lab.__main__ import parser
from lab.faults import ALL
from lab.layout import HERE, ROOT, LabError
from lab.receiver import Receiver
from lab.submit import Request, command, comment


@pytest.fixture(autouse=True)
def no_slurm_needed(monkeypatch):
    monkeypatch.setattr(slurm, "release", lambda: (22, 5))


def conf(lab) -> dict[str, str]:
    slurm.configure(lab)
    pairs = (line.partition("=") for line in lab.slurm_conf.read_text().splitlines() if line and line[0] != "#")
    return {key: value for key, _, value in pairs}


def test_slurm_conf_of_a_shared_network(make_lab):
    lab = make_lab()
    written = conf(lab)
    assert written["NodeName"].startswith("n[1-3] ")
    assert "Port=[29103-29105] " in written["NodeName"]
    assert "Gres=gpu:8" in written["NodeName"]
    assert written["SlurmdTimeout"] == "300"  # as Slurm ships it: Sentinel has to be quicker
    assert written["SchedulerParameters"] == "nohold_on_prolog_fail"
    assert (lab.etc / "gres.conf").read_text() == f"Name=gpu File={lab.dir}/dev/nvidia[0-7]\n"
    assert (lab.etc / "munge.key").stat().st_mode & 0o777 == 0o400


def test_newer_slurm_is_kept_from_cgroups(make_lab, monkeypatch):
    lab = make_lab()
    conf(lab)
    assert not (lab.etc / "cgroup.conf").exists()
    monkeypatch.setattr(slurm, "release", lambda: (24, 11))
    conf(make_lab(dir=str(lab.dir.with_name("newer"))))
    assert (lab.dir.with_name("newer") / "etc" / "cgroup.conf").read_text() == "CgroupPlugin=disabled\n"


def test_slurm_conf_of_one_node_and_of_none_with_gpus(make_lab):
    lab = make_lab(nodes=1, gpus=0, node_ports=[29103])
    written = conf(lab)
    assert written["NodeName"].startswith("n1 ")
    assert "Port=29103 " in written["NodeName"]
    assert "Gres" not in written["NodeName"]
    assert (lab.etc / "gres.conf").read_text() == ""


def test_nodes_of_an_isolated_lab_have_their_own_names_and_addresses(make_lab):
    lab = make_lab(isolated=True)
    slurm.configure(lab)
    lines = [line for line in lab.slurm_conf.read_text().splitlines() if line.startswith("NodeName=")]
    assert len(lines) == 3
    assert all(f"NodeHostname=n{i} NodeAddr={lab.node_address(f'n{i}')} " in lines[i - 1] for i in (1, 2, 3))


def test_hooks_are_the_projects_own_and_nothing_without_sentinel(make_lab):
    lab = make_lab()
    hooks.install(lab)
    prolog = (lab.etc / "prolog.d" / "10-sentinel").read_text()
    assert f"hook={lab.lib}/prolog/10-sentinel" in prolog
    assert (lab.lib / "prolog" / "10-sentinel").read_bytes() == (ROOT / "prolog" / "10-sentinel").read_bytes()
    assert f'{lab.dir}/nodes/"$SLURMD_NODENAME"/run' in prolog
    bare = make_lab(dir=str(lab.dir.with_name("bare")), sentinel=False)
    hooks.install(bare)
    for name in hooks.HOOKS:
        path = bare.etc / name
        assert path.stat().st_mode & 0o111
        assert "hook=/nonexistent" in path.read_text()


def test_settings_files_are_toml_also_in_a_folder_with_quotes(make_lab, tmp_path):
    lab = make_lab(dir=str(tmp_path / 'a "b" \\c'))
    sentinel_config.write(lab)
    daemon = tomllib.loads((lab.etc / "sentinel.toml").read_text())
    assert daemon["slurm"]["conf"] == str(lab.slurm_conf)
    assert str(tmp_path / 'a "b" \\c') in daemon["slurm"]["conf"]
    for name in lab.names:
        assert tomllib.loads((lab.node(name) / "sentinel.toml").read_text())["slurm"]["conf"] == str(lab.slurm_conf)


def test_the_job_is_submitted_with_what_sentinel_needs_to_know(make_lab):
    lab = make_lab()
    told = json.loads(comment(lab, Request(nodes=2, run="r7")))
    assert told == {
        "sentinel": {
            "restart": True,
            "global": [f"{lab.dir}/shared/r7"],
            "local": [f"{lab.dir}/nodes/%N/nvme/r7"],
        }
    }
    line = command(lab, Request(nodes=2, run="r7", standin=True, sbatch=("--time=5",)))
    assert line[0] == "sbatch"
    assert "--gres=gpu:8" in line
    assert "--time=5" in line[: line.index("lab.training.standin")]
    assert len(next(word for word in line if word.startswith("--comment="))) < 1024  # Slurm's limit


def test_a_message_becomes_one_line(tmp_path):
    with Receiver(("127.0.0.1", 0), tmp_path / "m.jsonl") as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_address[1]}/webhook"
            for body in (b'{"text": "a\\nb"}', b"not json"):
                with urllib.request.urlopen(urllib.request.Request(url, data=body), timeout=10) as answer:
                    assert answer.status == 204
        finally:
            server.shutdown()
            thread.join()
    kept = [json.loads(line) for line in (tmp_path / "m.jsonl").read_text().splitlines()]
    assert [record["message"] for record in kept] == [{"text": "a\nb"}, "not json"]
    assert all(record["path"] == "/webhook" for record in kept)


def test_a_missing_daemon_says_what_to_install(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(LabError, match="apt-get install"):
        slurm.binary("slurm-program-that-is-not-there")


def test_every_command_and_every_fault_is_explained():
    explained = (HERE / "README.md").read_text()
    top = parser()
    (commands,) = (action for action in top._actions if isinstance(action, argparse._SubParsersAction))
    for name in [*commands.choices, *ALL]:
        assert f"`{name}" in explained, f"README.md of the lab does not explain {name}"
