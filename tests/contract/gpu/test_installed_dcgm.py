"""What stands between Sentinel and DCGM, over the double always and over a real installation where SENTINEL_DCGM names one.

    SENTINEL_DCGM=FOLDER [SENTINEL_DCGM_ENGINE=COMMAND] pytest tests/contract -k dcgm

The probe, ``dcgmi``, the diagnostic, prolog and health check, over TCP and a unix socket; an engine that is killed, frozen
and restarted; each fault that can be injected into the engine's cache. See tests/support/nodes/installed_dcgm.py.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from nodes.installed_dcgm import KINDS, PATIENCE_S, ROOT, Dcgm, Said, running

from sentinel.adapters.gpu.dcgmi import Dcgmi
from sentinel.agent.probes.diagnose import diagnose
from sentinel.config.rules_files import load_convictions
from sentinel.errors import Unavailable
from sentinel.evidence.dcgm import DcgmReader
from sentinel.evidence.gpu_samples import WATCHED, sample_from

RULES = load_convictions()


def free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return str(server.getsockname()[1])


@pytest.fixture(params=KINDS)
def dcgm(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Dcgm]:
    with running(request.param, tmp_path, free_port(), monkeypatch) as dcgm:
        yield dcgm


@pytest.fixture(params=KINDS)
def on_socket(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Dcgm]:
    with running(request.param, tmp_path, str(tmp_path / "engine"), monkeypatch) as dcgm:
        yield dcgm


def samples(said: Said) -> Said:
    return [message for message in said if message["type"] == "sample"]


def test_the_probe_streams_over_tcp(dcgm: Dcgm) -> None:
    said = samples(dcgm.probe(lambda said: len(samples(said)) > 3))
    assert {message["via"] for message in said} == {"dcgm"}
    assert said[0]["gpus"] and all(gpu["uuid"].startswith("GPU-") for gpu in said[0]["gpus"])


def test_the_probe_streams_over_a_unix_socket(on_socket: Dcgm) -> None:
    assert samples(on_socket.probe(lambda said: len(samples(said)) > 1))[0]["via"] == "dcgm"


def test_the_probe_streams_where_the_site_leaves_the_profiling_module_alone(dcgm: Dcgm) -> None:
    said = dcgm.probe(lambda said: len(samples(said)) > 1, profiling=False)
    assert len(samples(said)) > 1, said[-1:]
    assert "traffic" not in samples(said)[0]["missing"], "what was not asked for is not missing"


XID = 230
# Field, value, and the kind of evidence that it makes.
FAULTS = [
    (XID, 79, "xid"),
    (XID, 31, "xid"),
    (395, 1, "row_remap_failure"),
    (396, 1, "row_remap_pending"),
    (311, 5, "ecc_dbe"),
    (202, 10000, "pcie_replay"),
    (1523, 1, "recovery_action"),
]


def test_each_injected_fault_is_told_once(dcgm: Dcgm) -> None:
    reader, found = DcgmReader("n1", RULES), []
    injected: list[tuple[int, int, str]] = []

    def told() -> list[str]:
        # A real engine's health watches see most of them too, and say so beside.
        return [str(item.kind) for item in found if item.kind != "gpu_health"]

    def enough(said: Said) -> bool:
        if said[-1]["type"] != "sample":
            return False
        found.extend(reader.read(sample_from(said[-1], datetime.now(UTC))))
        if len(samples(said)) <= 2:
            return False
        if len(told()) >= len(injected) < len(FAULTS):
            injected.append(FAULTS[len(injected)])
        elif len(told()) >= len(injected) or injected[-1][0] == XID:
            return len(told()) >= len(FAULTS)
        # A field that the driver answers lasts until the engine's next look at it, which may come before ours.
        dcgm.inject(len(injected) % dcgm.gpus, *injected[-1][:2])
        return False

    dcgm.probe(enough)
    assert sorted(told()) == sorted(kind for _, _, kind in FAULTS)
    healths = [(item.where, item.text) for item in found if item.kind == "gpu_health"]
    assert len(healths) == len(set(healths)), "an incident of health is told once"


def test_an_engine_that_is_killed_is_noticed_and_found_again(dcgm: Dcgm) -> None:
    killed: list[bool] = []

    def kill(said: Said) -> bool:
        if samples(said) and not killed:
            killed.append(True)
            dcgm.kill()
        return False

    assert dcgm.probe(kill)[-1]["type"] == "unreadable"
    dcgm.start()
    assert samples(dcgm.probe(lambda said: bool(samples(said))))


def test_an_engine_that_is_frozen_is_given_up(dcgm: Dcgm) -> None:
    dcgm.freeze()
    said = dcgm.probe(lambda said: said[-1]["type"] == "unreadable", connect_s=2)
    assert "does not answer within 2 s" in said[-1]["reason"]


def test_dcgmi_names_gpus_and_their_values(dcgm: Dcgm) -> None:
    dcgmi = Dcgmi(dcgm.dcgmi, **dcgm.where)
    gpus = dcgmi.gpus()
    assert gpus and all(gpu["uuid"].startswith("GPU-") and gpu["status"] == 1 for gpu in gpus)
    (first, *_) = dcgmi.sample(WATCHED)["gpus"]
    assert first["fields"]["150"] is None or 0 < first["fields"]["150"] < 130


def arguments(dcgm: Dcgm) -> dict[str, object]:
    return {
        "node": "n1",
        "level": 1,
        "gpus": None,
        "dcgmi": dcgm.dcgmi,
        **dcgm.where,
        "deadline_s": 90.0,
        "stop_s": 20.0,
    }


def test_level_1_passes_on_healthy_gpus(dcgm: Dcgm) -> None:
    answer = diagnose(arguments(dcgm))
    assert answer["result"] == "pass", answer["reason"]


def test_without_an_engine_nothing_is_known(dcgm: Dcgm) -> None:
    dcgm.kill()
    assert diagnose(arguments(dcgm))["result"] == "inconclusive", "dcgmi would start one inside itself, which passes"
    with pytest.raises(Unavailable):
        Dcgmi(dcgm.dcgmi, **dcgm.where).diagnose(1, None, deadline_s=60)


def hook(dcgm: Dcgm, file: str) -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": os.environ["PATH"], "SENTINEL_RUN_DIR": str(dcgm.folder / "run"), "SENTINEL_HOME": str(ROOT),
        "SENTINEL_HOOK_CONF": "/nowhere", "SENTINEL_PYTHON": sys.executable, "SENTINEL_DCGM_HOST": dcgm.host,
        "SENTINEL_DCGMI": dcgm.dcgmi, "SLURMD_NODENAME": "n1", "SLURM_JOB_ID": "31", **dcgm.environment,
        "SENTINEL_PROLOG_S": "90", "SENTINEL_HEALTH_S": "90",  # a real level 1 starts a process that loads 80 MB
    }  # fmt: skip
    return subprocess.run(
        [str(ROOT / file)], env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False, cwd="/"
    )


def lets_work(dcgm: Dcgm) -> None:
    done = hook(dcgm, "prolog/10-sentinel")
    assert (done.returncode, done.stderr) == (0, "")
    assert hook(dcgm, "deploy/slurm/health-check").returncode == 0
    assert (dcgm.folder / "run" / "verdict").read_text().startswith("OK ")


def test_prolog_and_health_check_let_healthy_gpus_work(dcgm: Dcgm) -> None:
    lets_work(dcgm)


def test_prolog_and_health_check_reach_an_engine_on_a_unix_socket(on_socket: Dcgm) -> None:
    lets_work(on_socket)
