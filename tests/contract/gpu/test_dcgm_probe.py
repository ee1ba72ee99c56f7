"""The probe that streams a node's GPU telemetry."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from nodes.dcgm_double import DOUBLE, State
from nodes.installed_dcgm import Said, probed


def probe(enough: Callable[[Said], bool] = lambda _: False, **changes: Any) -> Said:
    """What the probe's process says until it is enough, or until it ends by itself."""
    arguments = {"bindings": str(DOUBLE), "host": "127.0.0.1:1", "connect_s": 1, "interval_s": 0.2, "health_s": 0.5,
                 "dcgmi": "/nowhere/dcgmi", **changes}  # fmt: skip
    folders = [os.environ.get("PYTHONPATH", ""), str(Path(__file__).parents[3])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, folders))}
    return probed(arguments, environment, enough)


def samples(said: Said) -> Said:
    return [message for message in said if message["type"] == "sample"]


def test_the_probe_streams_samples(state: State) -> None:
    state.xid(1, 79)
    said = probe(lambda said: len(samples(said)) > 6 and any(message.get("health") == [] for message in said))
    assert {message["type"] for message in said} <= {"sample", "alive"}
    assert [event[:2] for message in samples(said) for event in message["events"]] == [[1, 79]]


def test_a_module_that_is_missing_leaves_the_rest_of_telemetry(state: State) -> None:
    state.write(modules_missing=["health", "profiling"])
    state.xid(1, 79)
    said = probe(lambda said: len(samples(said)) > 4)
    full = [message for message in samples(said) if message["full"]]
    assert {message["type"] for message in said} <= {"sample", "alive"}
    assert full[-1]["gpus"][0]["fields"]["150"] == 38
    assert full[-1]["missing"].keys() == {"health", "traffic"} and "-33" in full[-1]["missing"]["health"]
    assert [event[:2] for message in samples(said) for event in message["events"]] == [[1, 79]]
    assert all("health" not in message for message in full)


def test_a_frozen_engine_is_given_up_after_the_limit_of_a_connection(state: State) -> None:
    """It accepts the connection and answers nothing for ten minutes; the bindings' own limit does not hold there."""
    state.write(hang_s=600)
    said = probe(lambda said: any(message["type"] == "unreadable" for message in said), connect_s=0.5)
    assert "does not answer within 0.5 s" in said[-1]["reason"]


def test_all_gpus_lost_are_lost_gpus_and_no_missing_telemetry(state: State) -> None:
    for gpu in state.content["gpus"]:
        gpu["status"] = "lost"
    state.write()
    said = probe(lambda said: len(samples(said)) > 2)
    assert {gpu["status"] for message in samples(said) for gpu in message["gpus"]} == {4}


def test_every_sample_counts_gpus_by_their_device_files(state: State) -> None:
    for number, gpu in enumerate(state.content["gpus"]):
        gpu["minor"] = 7 - number
    state.write()
    said = probe(lambda said: len(samples(said)) > 5)
    assert {tuple(gpu["minor"] for gpu in message["gpus"]) for message in samples(said)} == {(7, 6, 5, 4)}


def test_the_probe_without_anything_says_so_and_ends(
    state: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pynvml.py").write_text("raise ImportError('a node with a driver is asked without it, too')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    said = [message for message in probe(bindings="/nowhere") if message["type"] != "alive"]
    assert {message["type"] for message in said} == {"unreadable"}
    reason = said[-1]["reason"]
    assert "bindings" in reason
    assert "NVML" in reason or "nvidia-ml-py" in reason


def test_a_source_that_broke_is_tried_again_before_a_worse_one(state: State, listener: str) -> None:
    broken: list[bool] = []

    def break_it(said: Said) -> bool:
        if samples(said) and not broken:
            broken.append(True)
            state.write(engine="another")
        return False

    said = probe(break_it, dcgmi=str(DOUBLE / "dcgmi"), host=listener)
    assert {message.get("via") for message in samples(said)} == {"dcgm"}
    assert said[-1]["type"] == "unreadable"


def test_the_probe_falls_back_to_dcgmi(state: State, listener: str) -> None:
    said = probe(lambda said: bool(samples(said)), bindings="/nowhere", dcgmi=str(DOUBLE / "dcgmi"), host=listener)
    assert "bindings" in said[0]["reason"], "that DCGM's bindings are not there is said"
    sample = samples(said)[0]
    assert sample["via"] == "dcgmi"
    assert len(sample["gpus"]) == 4
