"""The hook's parts that need no process: what proves a fault, what a job file says, how an event is addressed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from sentinel import hook


def output(severity: int, code: int, group: str = "GPU") -> bytes:
    document = {
        "DCGM Diagnostic": {
            "test_categories": [
                {
                    "category": "Deployment",
                    "tests": [
                        {
                            "name": "software",
                            "results": [
                                {"entity_group": "GPU", "entity_id": 0, "status": "Fail"},
                                {
                                    "entity_group": group,
                                    "entity_id": 3,
                                    "status": "Fail",
                                    "warnings": [
                                        {"error_id": code, "error_severity": severity, "warning": "bad\x1b[31m"}
                                    ],
                                },
                            ],
                            "test_summary": {"warnings": [{"error_id": code, "error_severity": severity}]},
                        }
                    ],
                }
            ]
        }
    }
    return b"noise before\n" + json.dumps(document).encode()


def test_an_isolating_error_on_a_gpu_is_proof() -> None:
    assert list(hook.proofs(output(2, 118))) == [(3, 118, "bad\x1b[31m")]


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"no json", output(6, 85), output(5, 29), output(2, 24), output(2, 15, "NVSwitch"), output(2, 118)[:-40],
     b'{"DCGM Diagnostic": {"runtime_error": "Return: (-34)"}}'],
)  # fmt: skip
def test_everything_else_is_none(content: bytes) -> None:
    assert list(hook.proofs(content)) == []


def test_the_old_form_is_read_too() -> None:
    content = json.dumps(
        {"DCGM GPU Diagnostic": {"test_categories": [{"tests": [{"results": [
            {"gpu_id": "5", "status": "FAIL", "warnings": [{"warning": "x", "error_id": 52, "error_severity": 2}]}]}]}]}}
    ).encode()  # fmt: skip
    assert list(hook.proofs(content)) == [(5, 52, "x")]


def test_a_job_file_for_values_that_need_escaping(tmp_path: Path) -> None:
    environment = {
        "SENTINEL_RUN_DIR": str(tmp_path),
        "SLURM_JOB_ID": "77",
        "SLURM_JOB_UID": "1004",
        "SLURM_JOB_RESTART_COUNT": "2",
        "SLURM_JOB_STDOUT": '/data/"odd"\\name\n.out',
        "SLURM_NODELIST": "n[3-4]",
    }
    assert hook.main(["job_file"], environment) == 0
    made = json.loads((tmp_path / "jobs" / "77.json").read_text())
    assert made["stdout"] == environment["SLURM_JOB_STDOUT"]
    assert (made["job"], made["attempt"], made["nodelist"]) == ("77", "2", "n[3-4]")
    assert [entry.name for entry in (tmp_path / "jobs").iterdir()] == ["77.json"]


@pytest.mark.parametrize("job", ["", "../../etc/x", "12x"])
def test_a_job_id_that_is_no_number_writes_nothing(tmp_path: Path, job: str) -> None:
    assert hook.main(["job_file"], {"SENTINEL_RUN_DIR": str(tmp_path), "SLURM_JOB_ID": job}) == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://ctl:9478", ("ctl", 9478)),
        ("http://ctl:1/x", ("ctl", 1)),
        ("ctl", ("ctl", 9478)),
        ("http://[::1]:5", ("::1", 5)),
    ],
)
def test_addresses(url: str, address: tuple[str, int]) -> None:
    assert hook.address_of(url) == address


def test_trouble_of_our_own_never_refuses_a_node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "file"
    file.touch()
    assert hook.main(["job_file"], {"SENTINEL_RUN_DIR": str(file), "SLURM_JOB_ID": "1"}) == 0
    assert hook.main(["prolog"], {"SENTINEL_PROLOG_S": "soon"}) == 0
    assert hook.main(["nonsense"], {}) == 0
    assert hook.main(["event", "job_ended"], {"SENTINEL_URL": "http://x:notaport"}) == 0
    assert capsys.readouterr().err.count("\n") >= 4


def test_it_starts_light() -> None:
    """Only the standard library, and of it nothing that costs a prolog time."""
    source = Path(hook.__file__).read_text()
    imported = {line.split()[1].split(".")[0] for line in source.splitlines() if line.startswith(("import ", "from "))}
    assert imported - set(sys.stdlib_module_names) == {"sentinel"}
    assert "from sentinel.protocol import" in source
    assert source.count("from sentinel") == 1
    assert not imported & {"asyncio", "http", "urllib", "ssl", "logging", "dataclasses"}
