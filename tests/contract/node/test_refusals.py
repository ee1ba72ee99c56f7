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
from sentinel.agent.collectors.refusals import KEPT_S, Refusals


def test_a_refused_job_is_told_with_the_reason(hooks: Hooks) -> None:
    assert Refusals(hooks.run).told() == [], "makes the folder, without which prologs leave nothing"
    hooks.verdict("BAD", rest="gpu_lost a GPU is lost")
    assert hooks("prolog/10-sentinel").returncode == 1
    (told,) = Refusals(hooks.run).told()
    assert (told["job"], told["attempt"], told["reason"]) == (31, 2, "gpu_lost: a GPU is lost")
    assert 0.0 <= told["ago_s"] < KEPT_S
    json.dumps(told)


def test_what_is_only_observed_is_no_refusal(hooks: Hooks) -> None:
    Refusals(hooks.run).told()
    hooks.verdict("BAD", rest="gpu_lost a GPU is lost")
    (hooks.run / "drain_mode").write_text("observe\n")
    assert hooks("prolog/10-sentinel").returncode == 0
    assert Refusals(hooks.run).told() == []


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
    Refusals(hooks.run).told()
    for number in range(30):
        path = hooks.run / "refused" / f"{number}.0"
        path.write_text("gpu_lost: lost\n")
        os.utime(path, (time.time() - 10 - number,) * 2)
    old = hooks.run / "refused" / "99.0"
    old.write_text("gpu_lost: lost\n")
    os.utime(old, (time.time() - KEPT_S - 60,) * 2)
    (hooks.run / "refused" / "notes.txt").write_text("somebody's")
    assert [one["job"] for one in Refusals(hooks.run).told()] == list(range(20))
    assert not old.exists()


@pytest.mark.parametrize("set_back_s", [0.0, 600.0, 1e7])
def test_the_age_of_a_refusal_grows_also_where_the_clock_was_set_back_since(hooks: Hooks, set_back_s: float) -> None:
    wall, steady = [time.time()], [50.0]
    refusals = Refusals(hooks.run, lambda: wall[0], lambda: steady[0])
    refusals.told()
    path = hooks.run / "refused" / "31.2"
    path.write_text("gpu_lost: lost\n")
    os.utime(path, (wall[0] - 100.0,) * 2)
    assert refusals.told()[0]["ago_s"] == pytest.approx(100.0)
    wall[0] -= set_back_s
    anew = Refusals(hooks.run, lambda: wall[0], lambda: steady[0])  # of an agent that starts now
    least_s = 100.0 if not set_back_s else 0.0
    for passed_s in (60.0, 3600.0):
        steady[0] += passed_s
        wall[0] += passed_s
        assert refusals.told()[0]["ago_s"] == pytest.approx(steady[0] + 50.0)
    assert anew.told()[0]["ago_s"] >= least_s
    steady[0] += 10.0
    wall[0] += 10.0
    assert anew.told()[0]["ago_s"] >= least_s + 10.0
    steady[0] += KEPT_S
    assert anew.told() == [] and not path.exists()


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
    assert Refusals(hooks.run).told() == []


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
