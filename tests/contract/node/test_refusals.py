"""What a prolog that refuses its node leaves for whoever asks about the job, and how the agent tells it."""

from __future__ import annotations

import errno
import json
import os
import time
from pathlib import Path

import pytest
from nodes.hook_files import Hooks

from sentinel import hook
from sentinel.agent.collectors.refusals import KEPT_S, refusals


def test_a_refused_job_is_told_with_the_reason(hooks: Hooks) -> None:
    assert refusals(hooks.run) == [], "makes the folder, without which prologs leave nothing"
    hooks.verdict("BAD", rest="gpu_lost a GPU is lost")
    assert hooks("prolog/10-sentinel").returncode == 1
    (told,) = refusals(hooks.run)
    assert (told["job"], told["attempt"], told["reason"]) == (31, 2, "gpu_lost: a GPU is lost")
    assert 0.0 <= told["ago_s"] < KEPT_S
    json.dumps(told)


def test_what_is_only_observed_is_no_refusal(hooks: Hooks) -> None:
    refusals(hooks.run)
    hooks.verdict("BAD", rest="gpu_lost a GPU is lost")
    (hooks.run / "drain_mode").write_text("observe\n")
    assert hooks("prolog/10-sentinel").returncode == 0
    assert refusals(hooks.run) == []


def test_without_an_agent_nothing_is_left_behind(hooks: Hooks) -> None:
    hooks.verdict("BAD", rest="gpu_lost a GPU is lost")
    done = hooks("prolog/10-sentinel")
    assert done.returncode == 1 and not (hooks.run / "refused").exists() and "refused: gpu_lost" in done.stderr


def test_a_folder_that_cannot_be_written_to_changes_nothing(hooks: Hooks) -> None:
    (hooks.run / "refused" / "31.2").mkdir(parents=True)
    hooks.verdict("BAD", rest="gpu_lost a GPU is lost")
    done = hooks("prolog/10-sentinel")
    assert done.returncode == 1 and done.stderr.count("\n") == 1, done.stderr


def test_only_the_newest_of_a_day_are_told(hooks: Hooks) -> None:
    refusals(hooks.run)
    for number in range(30):
        path = hooks.run / "refused" / f"{number}.0"
        path.write_text("gpu_lost: lost\n")
        os.utime(path, (time.time() - 10 - number,) * 2)
    old = hooks.run / "refused" / "99.0"
    old.write_text("gpu_lost: lost\n")
    os.utime(old, (time.time() - KEPT_S - 60,) * 2)
    (hooks.run / "refused" / "notes.txt").write_text("somebody's")
    assert [one["job"] for one in refusals(hooks.run)] == list(range(20))
    assert not old.exists()


@pytest.mark.parametrize("trouble", ["full", "no folder", "a folder among them"])
def test_a_heartbeat_does_not_fail_for_it(hooks: Hooks, monkeypatch: pytest.MonkeyPatch, trouble: str) -> None:
    if trouble == "full":

        def full(*_: object, **__: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(Path, "mkdir", full)
    elif trouble == "no folder":
        (hooks.run / "refused").write_text("")
    else:
        (hooks.run / "refused/31.2").mkdir(parents=True)
        os.utime(hooks.run / "refused/31.2", (time.time() - KEPT_S - 60,) * 2)
    assert refusals(hooks.run) == []


@pytest.mark.parametrize(
    ("observed", "told"), [("", [{"job": 31, "attempt": 2, "reason": "memory: ECC"}]), ("yes", None)]
)
def test_a_prolog_without_an_agent_tells_the_daemon_itself(monkeypatch, observed: str, told: object) -> None:
    sent: list[dict[str, object]] = []
    monkeypatch.setattr(hook, "post_to_active", lambda *given: sent.append(json.loads(given[2])) or 200)
    proof = {"id": "e1", "kind": "diag_failed", "data": {"convicts": True, "part": "memory"}, "text": "ECC"}
    environment = {"SLURM_JOB_ID": "31", "SLURM_JOB_RESTART_COUNT": "2", "REFUSALS_OBSERVED": observed}
    hook.tell(environment, "n1", [proof])
    assert sent[0].get("refused") == told and sent[0]["items"] == [proof]
    hook.tell({"SLURM_JOB_ID": "x"}, "n1", [proof])
    assert "refused" not in sent[1]
