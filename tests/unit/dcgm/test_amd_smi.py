"""AMD's GPUs in DCGM's place, over a made-up amdsmi whose answers have the shapes of 7.0.2's. Never run on hardware."""

from __future__ import annotations

import ast
import enum
import os
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sentinel.adapters.gpu import amd_smi
from sentinel.adapters.gpu.amd_smi import MISCOUNT, AmdSmi
from sentinel.agent.probes import dcgm as probe
from sentinel.config.rules_files import load_convictions
from sentinel.errors import Unavailable
from sentinel.evidence.dcgm import DcgmReader
from sentinel.evidence.gpu_samples import Sample, sample_from
from sentinel.model.records import Source, utc

MODULE = os.environ.get("SENTINEL_AMDSMI", "")


class AmdSmiException(Exception):
    pass


class Library(types.ModuleType):
    """Two GPUs; ``answers`` by function, an exception among them is raised."""

    AmdSmiException = AmdSmiException
    AmdSmiTemperatureType = enum.IntEnum("AmdSmiTemperatureType", {"HOTSPOT": 1, "VRAM": 2})
    AmdSmiTemperatureMetric = enum.IntEnum("AmdSmiTemperatureMetric", {"CURRENT": 0, "CRITICAL": 5})
    AmdSmiMemoryPageStatus = enum.IntEnum("AmdSmiMemoryPageStatus", {"RESERVED": 0, "PENDING": 1, "UNRESERVABLE": 2})

    def __init__(self) -> None:
        super().__init__("amdsmi")
        self.ended = 0
        self.answers: dict[str, Any] = {
            "init": None,
            "get_processor_handles": ["a", "b"],
            "get_gpu_device_uuid": "bcff74a1-0000-1000-80e4-8d3c2f6a1b0e",
            "get_gpu_device_bdf": "0000:c3:00.0",
            "get_power_info": {"socket_power": "N/A", "current_socket_power": 140, "average_socket_power": "N/A"},
            "get_gpu_activity": {"gfx_activity": 3, "umc_activity": 0, "mm_activity": "N/A"},
            "get_gpu_vram_usage": {"vram_total": 196592, "vram_used": 283},
            "get_gpu_total_ecc_count": {"correctable_count": 0, "uncorrectable_count": 0, "deferred_count": 0},
            "get_gpu_bad_page_info": [],
            "get_gpu_bad_page_threshold": 2,
            "get_pcie_info": {
                "pcie_static": {"max_pcie_width": 16},
                "pcie_metric": {"pcie_width": 16, "pcie_replay_count": 0},
            },
            "get_violation_status": {
                "active_prochot_thrm": False,
                "active_socket_thrm": False,
                "active_vr_thrm": "N/A",
            },
        }

    def amdsmi_get_temp_metric(self, _handle: str, sensor: int, metric: int) -> int:
        return 110 if metric == 5 else 46 + sensor

    def amdsmi_gpu_xgmi_error_status(self, _handle: str) -> int:
        return int(self.answers.get("xgmi", 0))

    def amdsmi_shut_down(self) -> None:
        self.ended += 1

    def __getattr__(self, name: str) -> Any:
        key = name.removeprefix("amdsmi_")
        if key not in self.__dict__.get("answers", {}):
            raise AttributeError(name)

        def answer(*_: Any) -> Any:
            made = self.answers[key]
            if isinstance(made, Exception):
                raise made
            return made

        return answer


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[Library]:
    made = Library()
    monkeypatch.setitem(sys.modules, "amdsmi", made)
    yield made
    assert made.ended <= 1


def sampled(library: Library, second: int = 0) -> Sample:
    with AmdSmi() as amd:
        said = {"type": "sample", "via": "amd_smi", "full": True, **amd.sample()}
    library.ended = 0
    return sample_from(said, utc(1_900_000_000 + second))


def test_a_healthy_gpu_has_the_fields_that_all_stages_read(library: Library) -> None:
    sample = sampled(library)
    first = sample.gpus[0]
    assert (first.status, first.pci) == (1, "0000:c3:00.0")
    assert first.fields == {
        150: 47, 158: 110, 140: 48, 155: 140, 112: 0, 203: 3, 252: 283, 310: 0, 311: 0, 202: 0, 238: 16, 236: 16, 396: 0,
        1507: 0, 429: 0,
    }  # fmt: skip
    assert DcgmReader("n1", load_convictions()).read(sample) == []


@pytest.mark.parametrize(
    ("answer", "kind", "convicts"),
    [
        ({"get_gpu_total_ecc_count": {"correctable_count": 0, "uncorrectable_count": 1}}, "ecc_dbe", False),
        ({"get_gpu_bad_page_info": [{"value": n, "status": 0} for n in range(3)]}, "memory_unrepairable", True),
        ({"get_gpu_bad_page_info": [{"value": 1, "status": 1}]}, "row_remap_pending", False),
        ({"xgmi": 2}, "nvlink_errors", False),
        (
            {"get_pcie_info": {"pcie_static": {"max_pcie_width": 16}, "pcie_metric": {"pcie_width": 8}}},
            "pcie_width",
            False,
        ),
    ],
)
def test_faults_are_the_same_kinds_of_evidence_as_nvidias(
    library: Library, answer: dict[str, Any], kind: str, convicts: bool
) -> None:
    library.answers["get_processor_handles"] = ["a"]
    reader = DcgmReader("n1", load_convictions())
    assert reader.read(sampled(library)) == []
    library.answers.update(answer)
    (found,) = reader.read(sampled(library, 1))
    assert (found.kind, found.source, "NVLink" in found.text) == (kind, Source.AMD_SMI, False)
    assert bool(reader.facts()) is convicts
    assert reader.read(sampled(library, 2)) == []


def test_what_a_gpu_or_release_does_not_give_is_blank(library: Library) -> None:
    for name in list(library.answers):
        if name.startswith("get_gpu_") or name in ("get_power_info", "get_pcie_info", "get_violation_status"):
            library.answers[name] = AmdSmiException("not supported")
    sample = sampled(library)
    assert {number for number, value in sample.gpus[0].fields.items() if value is not None} == {150, 158, 140, 429}
    assert DcgmReader("n1", load_convictions()).read(sample) == []


def test_a_release_without_a_function_loses_that_field_alone(library: Library) -> None:
    """The module of ROCm 6.2 knows no limit of bad pages, and not what slows a GPU."""
    whole = sampled(library).gpus[0].fields
    del library.answers["get_gpu_bad_page_threshold"], library.answers["get_violation_status"]
    assert sampled(library).gpus[0].fields == {**whole, 1507: None, 112: None}


def test_counts_of_a_driver_that_miscounts_are_not_known(library: Library) -> None:
    library.answers["get_gpu_total_ecc_count"] = {"correctable_count": MISCOUNT, "uncorrectable_count": 3 * MISCOUNT}
    fields = sampled(library).gpus[0].fields
    assert (fields[310], fields[311]) == (None, None)


def test_no_driver_and_no_module(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    library.answers["init"] = AmdSmiException("driver not loaded")
    with pytest.raises(Unavailable, match="driver not loaded"), AmdSmi():
        pass
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    with pytest.raises(Unavailable, match="amdsmi cannot be used"):
        AmdSmi()


def test_which_library_is_asked_follows_from_the_driver(tmp_path: Path) -> None:
    assert probe._by_amd_smi not in probe._sources(tmp_path)
    (tmp_path / "sys/module/amdgpu").mkdir(parents=True)
    assert probe._sources(tmp_path) == (probe._by_amd_smi,)
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    assert probe._by_amd_smi not in probe._sources(tmp_path), "a workstation's second card"


@pytest.mark.skipif(not MODULE, reason="SENTINEL_AMDSMI names no folder of AMD's module")
def test_every_name_that_is_used_is_amds() -> None:
    """Without ROCm's library the module does not import; its source names what it has."""
    used = set(re.findall(r"\b(?:amdsmi_|AmdSmi(?=[A-Z]))\w+", Path(amd_smi.__file__).read_text()))
    exported = {
        alias.name
        for node in ast.walk(ast.parse((Path(MODULE) / "__init__.py").read_text()))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert len(used) > 15
    assert used <= exported
