"""What ``dcgmi`` prints, as far as no host engine is needed for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sentinel.adapters.gpu import dcgmi
from sentinel.adapters.gpu.dcgmi import Dcgmi
from sentinel.adapters.gpu.engine_owner import EngineOwner
from sentinel.errors import ProtocolError

FIELDS = "gpu_temp  temp  150\npcie_replay_counter  prc  202\n"


@pytest.fixture(autouse=True)
def engine_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EngineOwner, "look", lambda _: ())


def printing(folder: Path, **answers: str) -> Dcgmi:
    """A command that prints one of ``answers`` by its first argument."""
    command = folder / "dcgmi"
    cases = "".join(f"{name}) cat {folder}/{name} ;;\n" for name in answers)
    command.write_text(
        f'#!/bin/sh\nname=$1\n[ "$2" = -l ] && [ "$1" = dmon ] && name=list\ncase $name in {cases}esac\n'
    )
    command.chmod(0o755)
    for name, text in answers.items():
        (folder / name).write_text(text)
    return Dcgmi(str(command), host="127.0.0.1:1")


@pytest.mark.parametrize(
    ("printed", "value"),
    [
        ("41", 41),
        ("41.500", 41.5),
        ("N/A", None),
        ("nan", None),
        ("-nan", None),
        ("inf", None),
        ("9223372036854775794", None),
        ("2147483632", None),
        ("140737488355330.000", None),
    ],
)
def test_dmon_values_that_are_blank_or_no_number_are_not_known(tmp_path: Path, printed: str, value: Any) -> None:
    discovery = "1 GPU found.\n| 0      | Name: NVIDIA H200                  |\n"
    rows = f"#Entity   TMPTR  PCIRP\nID\nGPU 0     {printed}   7\nGPU-I 0   3  4\n"
    made = printing(tmp_path, discovery=discovery, list=FIELDS, dmon=rows).sample((150, 202))
    assert made["gpus"][0]["fields"] == {"150": value, "202": 7}


def test_output_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dcgmi, "MOST_BYTES", 1 << 20)
    command = tmp_path / "dcgmi"
    command.write_text("#!/bin/sh\nexec yes '{\"DCGM Diagnostic\"'\n")
    command.chmod(0o755)
    with pytest.raises(ProtocolError, match="more than"):
        Dcgmi(str(command), host="127.0.0.1:1").run(["diag"], 20.0)
