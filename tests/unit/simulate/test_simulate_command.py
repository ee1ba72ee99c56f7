"""``sentinel simulate``: what it prints, what it writes, and what it refuses."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from sentinel.cli.simulate.command import MOST_SEED, simulate
from sentinel.errors import SentinelError
from sentinel.simulate.long_run import seeds

SMALL = ("--nodes", "32", "--days", "20")


def called(*arguments: str) -> Any:
    return CliRunner().invoke(simulate, list(arguments))


@pytest.fixture(autouse=True)
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    real = seeds.run_all
    monkeypatch.setattr(
        seeds, "run_all", lambda scenarios, numbers, names, _, tell: real(scenarios, numbers, names, 1, tell)
    )


def answers(*arguments: str) -> list[dict[str, Any]]:
    found = called(*arguments, "--json")
    assert found.exit_code == 0, (found.output, found.exception)
    return [json.loads(line) for line in found.output.splitlines()]


def test_json_has_the_promised_keys_and_another_seed_another_answer() -> None:
    (one,) = answers(*SMALL, "--seed", "4")
    assert one["simulated"] is True and one["seed"] == 4 and one["nodes"] == 32 and one["gpus_per_node"] == 8
    low, high = one["ettr_interval"]
    assert 0 < low <= one["ettr"] <= high <= 1
    assert isinstance(one["incidents"], int) and 0 <= one["automated_fraction"] <= 1
    assert one["unsafe_actions"] == 0 and one["wrong_drains"] == 0
    assert math.isclose(sum(one["lost_by_cause"].values()), one["lost_gpu_hours"], abs_tol=0.1) and one["wall_s"] > 0
    (again,) = answers(*SMALL, "--seed", "4")
    (other,) = answers(*SMALL, "--seed", "5")
    assert {**one, "wall_s": 0} == {**again, "wall_s": 0} and one["ettr"] != other["ettr"]


def test_behaviours_stand_side_by_side_each_with_its_assumptions() -> None:
    found = answers(*SMALL, "--as", "all", "--seeds", "2")
    assert [one["as"] for one in found] == ["sentinel", "byterobust", "on-call", "nccl-timeout", "stock"]
    assert all(one["seeds"] == [1, 2] and one["ettr_interval_over"] == "seeds" for one in found)
    assert any(row["name"].startswith("byterobust.") and "SOSP" in row["source"] for row in found[1]["assumptions"])


def test_the_table_says_simulated_seed_and_assumptions() -> None:
    found = called(*SMALL, "--seed", "9", "--as", "stock,sentinel")
    assert found.exit_code == 0, found.exception
    assert "Simulated: 32 nodes" in found.output and "seed 9" in found.output
    assert "Assumptions" in found.output and "nccl_timeout_s = 600" in found.output and "GPU-hours lost" in found.output


def test_a_sweep_gives_one_answer_for_each_value(tmp_path: Path) -> None:
    plot = tmp_path / "interval.svg"
    found = answers(*SMALL, "--sweep", "interval=5min,6h", "--plot", str(plot))
    assert [one["sweep"] for one in found] == [{"interval": "5min"}, {"interval": "6h"}]
    assert found[0]["ettr"] > found[1]["ettr"]
    text = plot.read_text()
    assert all(f"<!-- {words} -->" in text for words in ("5min", "6h", "95 % interval")), (
        "the values as they were given"
    )
    assert "Simulated ETTR by interval" in text


def test_a_sweep_over_a_single_day_has_no_intervals_to_draw(tmp_path: Path) -> None:
    few = ("--nodes", "16", "--days", "1", "--sweep", "spares=0,1", "--plot", str(tmp_path / "spares.svg"))
    assert [one["ettr_interval"] for one in answers(*few)] == [None, None]
    text = (tmp_path / "spares.svg").read_text()
    assert "95 % interval" not in text
    assert "(16 nodes of 8 GPUs, 1 day, failures as llama3," in text, "what is swept is no part of the title's scenario"


def test_a_sweep_that_changes_nothing_says_so() -> None:
    small = ("--nodes", "8", "--days", "1", "--no-chart")
    assert "no value of daemon.lease_s changed anything" in called(*small, "--sweep", "daemon.lease_s=15,20").output
    assert "changed anything" not in called(*small, "--sweep", "spares=2").output


def test_a_setting_can_be_swept_and_a_policy_given(tmp_path: Path) -> None:
    policy = tmp_path / "sentinel.toml"
    policy.write_text("[limits]\ndrain_count = 3\n")
    found = answers(*SMALL, "--policy", str(policy), "--sweep", "limits.drain_per_hour=1,6")
    assert [one["policy"] for one in found] == ["sentinel.toml, which names no modes: every step allowed"] * 2


@pytest.mark.parametrize(("mode", "people_decide"), [("act", False), ("suggest", True), ("observe", True)])
def test_modes_of_a_policy_are_simulated(tmp_path: Path, mode: str, people_decide: bool) -> None:
    policy = tmp_path / "sentinel.toml"
    policy.write_text(f'[modes.default]\ndrain = "{mode}"\nrestart = "{mode}"\n')
    (one,) = answers("--nodes", "64", "--days", "60", "--policy", str(policy))
    assert "in its modes" in one["policy"] and one["incidents"] > 3
    assert (one["by_person"] > one["automated"]) is people_decide
    assert (one["drains"] > 0) is (mode != "observe")


def test_the_history_of_a_site_is_taken(tmp_path: Path) -> None:
    history = tmp_path / "site.json"
    failures = [{"time": f"2025-03-0{day}T00:00:00Z", "cause": "gpu_memory_ecc"} for day in range(1, 9)]
    document = {"start": "2025-03-01T00:00:00Z", "end": "2025-03-11T00:00:00Z", "gpus": 800, "failures": failures}
    history.write_text(json.dumps(document))
    (one,) = answers(*SMALL, "--failures", str(history))
    assert set(one["lost_by_cause"]) <= {"first start", "saves", "GPU HBM memory"}
    rate = next(row for row in one["assumptions"] if row["name"] == "failures_per_1000_node_days")
    assert rate["value"] == 8.0 and "8 failures" in rate["source"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--nodes", "1"), "8 to 16,384"),
        (("--nodes", "-5"), "negative"),
        (("--nodes", "many"), "does not start with a number"),
        (("--nodes", "1.5k5"), "unit of a count"),
        (("--days", "0"), "zero"),
        (("--days", "-3"), "negative"),
        (("--interval", "5"), "has no unit"),
        (("--interval", "5GB"), "unit"),
        (("--save", "10min"), "as long as"),
        (("--seed", "-1"), "--seed -1"),
        (("--seed", str(MOST_SEED + 1)), "--seed"),
        (("--seeds", "0"), "--seeds 0"),
        (("--as", "magic"), "nobody of that name"),
        (("--as", ","), "names nobody"),
        (("--failures", "no-such-file.json"), "neither a published fleet"),
        (("--needs-code", "200"), "not below 1"),
        (("--sweep", "interval"), "not KEY=VALUE"),
        (("--sweep", "colour=red,blue"), "neither an option"),
        (("--sweep", "limits.drain_count=few"), "not a number"),
        (("--sweep", "limits.drain_count=1.5,2"), "--sweep limits.drain_count: must be int, not 1.5"),
        (("--sweep", "limits.drain_fraction=0.1,2"), "above 1.0"),
        (("--sweep", "modes.default=1,2"), "nor a setting that is a number"),
        (("--sweep", "returns.automatic=0,1"), "nor a setting that is a number"),
        (("--sweep", "spares=2,8,2"), "stands there twice"),
        (("--sweep", "spares=1,2000000000"), "beyond"),
        (("--plot", "curve.jpeg"), "neither PNG nor SVG"),
        (("--jobs", "500"), "two of"),
        (("--sbatch", "--partition=cpu"), "--sbatch would change nothing without --slurm"),
        (("--spares", "3", "--sweep", "spares=1,2"), "--spares would change nothing"),
        (("--as", "stock", "--errors", "hold"), "--errors would change nothing for stock"),
        (("--as", "stock", "--sweep", "errors=hold,retry"), "would change nothing for stock"),
        (("--as", "on-call", "--sweep", "limits.drain_count=1,2"), "would change nothing for on-call"),
    ],
)
def test_bad_input_is_refused_with_the_sentence_that_helps(arguments: tuple[str, ...], words: str) -> None:
    found = called(*SMALL, *arguments)
    assert found.exit_code != 0 and isinstance(found.exception, SentinelError), found.output
    assert words in found.exception.message and found.exception.fix


def test_a_history_that_cannot_be_is_refused_with_the_way_to_write_one(tmp_path: Path) -> None:
    history = tmp_path / "site.json"
    for document in ({"start": "2026-02-01T00:00:00Z", "end": "2025-02-01T00:00:00Z", "gpu_s": 1, "failures": []}, [1]):
        history.write_text(json.dumps(document))
        found = called(*SMALL, "--failures", str(history))
        assert isinstance(found.exception, SentinelError) and "sentinel import --out" in found.exception.fix


def test_a_history_with_an_unknown_cause_or_none_is_refused(tmp_path: Path) -> None:
    history = tmp_path / "site.json"
    document: dict[str, Any] = {
        "start": "2025-03-01T00:00:00Z",
        "end": "2025-03-11T00:00:00Z",
        "gpus": 800,
        "failures": [],
    }
    history.write_text(json.dumps(document))
    assert "no failure in it" in str(called(*SMALL, "--failures", str(history)).exception)
    document["failures"] = [{"time": "2025-03-02T00:00:00Z", "cause": "gremlins\x1b[2J"}]
    history.write_text(json.dumps(document))
    refused = called(*SMALL, "--failures", str(history)).exception
    assert isinstance(refused, SentinelError) and "\x1b" not in refused.message and "faulty GPU" in refused.fix
