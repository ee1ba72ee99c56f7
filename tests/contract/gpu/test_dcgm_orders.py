"""An order to diagnose a node's GPUs."""

from __future__ import annotations

from pathlib import Path

from nodes.dcgm_double import DOUBLE, State, arguments

from sentinel.agent.probes.diagnose import diagnose


def test_an_order_to_diagnose(state: State, listener: str) -> None:
    made = diagnose(arguments(listener))
    assert (made["result"], made["evidence"][0]["kind"]) == ("pass", "diag_passed")


def test_an_order_names_gpus_by_uuid(state: State, listener: str) -> None:
    state.write(diag={"errors": [{"test": "memory", "gpu": 3, "code": 52, "severity": 2}]})
    made = diagnose(arguments(listener, level=2, gpus=["GPU-00000001"]))
    assert (made["result"], made["evidence"][0]["data"]) == ("pass", {"level": 2, "gpus": 1}), (
        "of other GPUs it says nothing"
    )
    made = diagnose(arguments(listener, level=2, gpus=["GPU-00000003"]))
    assert (made["result"], made["findings"][0]["gpu_uuid"]) == ("fail", "GPU-00000003")
    assert "does not see" in diagnose(arguments(listener, gpus=["GPU-gone"]))["reason"]


def test_a_pass_on_fewer_gpus_than_promised_is_none(state: State, listener: str) -> None:
    state.content["gpus"][2]["status"] = "lost"
    state.write()
    made = diagnose(arguments(listener))
    assert (made["result"], made["reason"]) == ("inconclusive", "3 GPUs were tested, 4 are known to DCGM")
    assert [item["kind"] for item in made["evidence"]] == ["unreadable"], "the agent's telemetry tells of the lost one"
    made = diagnose(arguments(listener, promised=-1, tells_missing=True, closed_to_users=True))
    (lost, _) = made["evidence"]
    assert (made["result"], lost["kind"], lost["where"]["gpu_uuid"]) == ("inconclusive", "gpu_lost", None)
    assert "GPU 2 (UUID not known)" in lost["text"]
    assert lost["data"]["convicts"] is True
    assert "6 are promised" in diagnose(arguments(listener, promised=6))["reason"]


def test_a_diagnostic_that_hangs_is_looked_at_again_after_it_was_told_to_stop(
    state: State, listener: str, tmp_path: Path
) -> None:
    """The engine kills it some seconds later: the first two times it is not over yet."""
    command = tmp_path / "dcgmi"
    command.write_text(
        f"""#!/bin/sh
if [ -n "$DCGMI_STOP_DIAG_HOSTNAME" ]; then
    echo x >> {tmp_path}/told
    [ "$(wc -l < {tmp_path}/told)" -ge 3 ] && exit 0
    exit 209
fi
[ "$1" = diag ] && exec sleep 600
exec {DOUBLE}/dcgmi "$@"
"""
    )
    command.chmod(0o755)
    made = diagnose(arguments(listener, dcgmi=str(command), deadline_s=40.0, stop_s=30.0, deadlines_s=[1.0] * 4))
    assert made["result"] == "inconclusive" and "it was stopped" in made["reason"], made["reason"]
    assert len((tmp_path / "told").read_text().splitlines()) == 3


def test_a_site_row_changes_what_a_diagnostic_says(state: State, listener: str, tmp_path: Path) -> None:
    state.write(diag={"errors": [{"test": "software", "gpu": 1, "code": 80, "severity": 6}]})
    assert diagnose(arguments(listener))["evidence"][0]["data"]["convicts"] is True
    (tmp_path / "ours.toml").write_text(
        '[[conviction]]\ndcgm = 80\ndrain = "no"\nremedy = "reset"\nsource = "this site"\n'
    )
    made = diagnose(arguments(listener, rules=str(tmp_path)))
    assert (made["result"], made["evidence"][0]["data"]["convicts"]) == ("fail", False)
    (tmp_path / "ours.toml").write_text("[[conviction]]\ndcgm = 80\n")
    made = diagnose(arguments(listener, rules=str(tmp_path)))
    assert made["result"] == "inconclusive" and "ours.toml" in made["reason"]
