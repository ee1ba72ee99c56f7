"""jobs and lost: attempts once, steps that were gained, and what failures cost; unknown is never zero."""

from __future__ import annotations

from typing import Any

import pytest
from in_memory.cli_asked import HOSTILE, Asked, attempt_row, failed_row, harmless, incident_row, objects


def jobs(*attempts: dict[str, Any], incidents: Any = ()) -> dict[str, Any]:
    return {"attempts": list(attempts), "incidents": list(incidents)}


def test_each_job_is_one_row_with_its_attempts_counted(asked: Asked) -> None:
    asked.views["jobs"] = jobs(failed_row(), attempt_row(), attempt_row(job=102, attempt=0))
    heading, first, second = asked.run("jobs", columns=200).output.splitlines()
    assert heading.split()[:3] == ["job", "state", "attempts"] and first.split()[:5] == [
        "101",
        "running",
        "2",
        "250",
        "0.8",
    ]
    assert second.split()[:5] == ["102", "running", "1", "250", "-"]
    assert first.split()[-1] == "250"  # steps 201 to 230 were made twice and are gained once
    assert [row["attempt"] for row in objects(asked.run("jobs", "--json").output)] == [0, 1, 0]


@pytest.mark.parametrize(
    ("attempts", "words"),
    [
        ([attempt_row()], None),
        ([failed_row(), attempt_row()], "0.8"),
        ([failed_row(lost_gpu_h=None), attempt_row()], "not known"),
        ([failed_row(), failed_row(attempt=1, lost_gpu_h=None)], "0.8 + ?"),
        ([failed_row(lost_gpu_h=1234.4)], "1234"),
        ([failed_row(lost_gpu_h=None, known_lost_gpu_h=0.3)], "0.3 + ?"),
    ],
)
def test_lost_hours_in_words(attempts: list[dict[str, Any]], words: str | None) -> None:
    from sentinel.cli.operator.jobs import lost_words

    assert lost_words(attempts) == words


def test_a_job_that_waits_for_a_person_is_not_only_failed(asked: Asked) -> None:
    asked.views["jobs"] = jobs(failed_row(state="failed", incident_state="held"))
    assert asked.run("jobs", columns=200).output.splitlines()[1].split()[1:3] == ["failed,", "held"]
    assert asked.run("jobs", "101").output.splitlines()[0].endswith(": failed, held")


def test_story_of_one_job(asked: Asked) -> None:
    asked.views["jobs"] = jobs(
        failed_row(), attempt_row(interval_reason="it fails each day"), incidents=[incident_row()]
    )
    said = asked.run("jobs", "101", columns=200).output
    assert asked.seen == [("jobs", {"job": 101})]
    assert said.startswith(
        "Job 101 train of ada in train: running\n  2 attempts; 250 steps gained; 0.8 GPU-hours lost\n"
    )
    assert "Saves every 10 min; every 6.9 min would be best. It fails each day" in said
    rows = {line.split()[0]: line.split() for line in said.splitlines() if line[:1].isdigit()}
    assert rows["0"][-3:] == ["2", "min", "gpu_memory_ecc"] and "30" in rows["0"] and rows["1"][1] == "running"
    assert "Incidents" in said and "0f3a9c" in said


def test_job_of_which_no_step_was_seen(asked: Asked) -> None:
    silent = attempt_row(first_step=None, last_step=None, save_interval_s=None, interval_reason="no save was measured")
    asked.views["jobs"] = jobs(silent)
    said = asked.run("jobs", "101", columns=200).output
    assert "1 attempt; no step seen" in said and "How often it saves is not known; " in said, said


def test_cause_and_outcome_of_one_job_are_there_on_100_columns(asked: Asked) -> None:
    asked.views["jobs"] = jobs(failed_row(), attempt_row(), incidents=[incident_row()])
    attempts, incidents = asked.run("jobs", "101", columns=100).output.split("Attempts\n")[1].split("Incidents\n")
    assert "cause" in attempts.splitlines()[0].split() and "first" not in attempts.splitlines()[0].split()
    assert "job" not in incidents.splitlines()[0].split() and "outcome" in incidents.splitlines()[0].split()


def test_what_reading_saves_cost_is_shown_where_it_was_done(asked: Asked) -> None:
    cost = {"read_back_bytes": 12_100_000_000, "read_back_s": 61.0, "read_back_fraction": 0.017}
    asked.views["jobs"] = jobs(attempt_row(**cost))
    assert "read once: 12.1 GB in 61 s, 1.7% of the time" in asked.run("jobs", "101", columns=300).output
    asked.views["jobs"] = jobs(attempt_row())
    assert "read once" not in asked.run("jobs", "101", columns=300).output


def test_a_log_that_is_not_read_is_said(asked: Asked) -> None:
    asked.views["jobs"] = jobs(attempt_row(log_unread="log of job 101: gid 0"))
    assert (
        "Its log is not read, so that its steps are not known. log of job 101: gid 0"
        in asked.run("jobs", "101", columns=300).output
    )


def test_a_preempted_attempt_is_said_with_how_the_job_goes_on(asked: Asked) -> None:
    words = "Slurm preempted attempt 0 by the site's rules and the job was requeued."
    asked.views["jobs"] = jobs(attempt_row(attempt=0, state="preempted", preemption=words), attempt_row())
    assert f"  {words}\n" in asked.run("jobs", "101", columns=300).output


@pytest.mark.parametrize("command", ["jobs", "why"])
def test_a_comment_that_is_not_understood_is_said_while_the_job_runs_or_waits(asked: Asked, command: str) -> None:
    problem = f"unknown key 'x' {HOSTILE}"
    running = attempt_row(comment_problem=problem)
    for seen in (jobs(running), jobs() | {"slurm": REFUSED | {"comment_problem": problem}}):
        asked.views["jobs"] = seen
        asked.views["why"] = {"incident": None, "others": [], "asked": {"kind": "job"}, "slurm": None, **seen}
        said = asked.run(command, "101", columns=300).output
        assert "Its comment is not understood: what it asks for, as a restart after a failure, is not done. " in said
        assert "Unknown key" in said and harmless(said)
    asked.views["jobs"] = jobs(attempt_row(comment_problem=""))
    assert "comment" not in asked.run("jobs", "101", columns=300).output


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_job_that_is_not_known_ends_as_a_node_that_is_not_known(asked: Asked, more: tuple[str, ...]) -> None:
    asked.views["jobs"] = jobs()
    found = asked.run("jobs", "7", *more)
    assert getattr(found.exception, "exit_status", 0) == 2 and "nothing is known of job 7" in str(found.exception)
    found = asked.run("jobs")
    assert found.exit_code == 0 and found.output == "No job in the last 30 days.\n"


def test_filters_are_asked_of_the_daemon(asked: Asked) -> None:
    asked.views["jobs"] = jobs()
    said = asked.run(
        "jobs", "--user", "ada", "--node", "n[1-3]", "--since", "2026-03-01T00:00:00+00:00", "--cause", "pcie"
    )
    chosen = {"user": "ada", "node": "n[1-3]", "since": "2026-03-01T00:00:00+00:00", "cause": "pcie"}
    assert asked.seen == [("jobs", chosen)] and said.output.startswith("No job of ")


def test_many_nodes_are_folded(asked: Asked) -> None:
    asked.views["jobs"] = jobs(attempt_row(nodes=[f"n{i}" for i in range(500)]))
    assert "n[0-499]" in asked.run("jobs", columns=200).output


def test_hostile_names_act_nowhere(asked: Asked) -> None:
    asked.views["jobs"] = jobs(failed_row(name=HOSTILE, user=HOSTILE, partition=HOSTILE), attempt_row(name=HOSTILE))
    for words in (["jobs"], ["jobs", "101"]):
        for columns in (40, 200):
            assert harmless(asked.run(*words, columns=columns).output)


# --- lost ----------------------------------------------------------------------------------------------------------------

ROW = {
    "job": 101, "name": "train", "user": "ada", "failures": 2, "lost_gpu_h": 12.34, "redone_gpu_h": 10.0,
    "down_gpu_h": 2.34, "redone_steps": 40, "not_known": 0, "causes": {"pcie": 2}, "last_at": "2026-03-01T12:00:00Z",
}  # fmt: skip
LOST = {"by": "job", "since": "2026-02-22T12:00:00Z", "rows": [ROW], "failures": 2, "lost_gpu_h": 12.34, "not_known": 0}


def test_which_jobs_lost_most(asked: Asked) -> None:
    asked.views["lost"] = LOST
    said = asked.run("lost", columns=200).output.splitlines()
    assert (
        asked.seen == [("lost", {"by": "job"})]
        and said[0] == "12.3 GPU-hours lost by 2 failures since 2026-02-22 12:00 UTC."
    )
    assert said[1].split("  ")[0] == "job" and said[2].split() == [
        "101", "train", "ada", "12.3", "2", "40", "10.0", "2.3", "-", "2", "pcie",
    ]  # fmt: skip
    assert objects(asked.run("lost", "--json").output) == [ROW]


def test_causes_that_have_no_place_are_counted(asked: Asked) -> None:
    causes = {"pcie": 9, "user_code": 3, "gpu_nvlink": 2, "numerical_nan": 1, "cuda_oom": 1}
    asked.views["lost"] = LOST | {"rows": [ROW | {"causes": causes}]}
    assert "9 pcie, 3 user_code, 2 gpu_nvlink, +2 more" in asked.run("lost", columns=200).output
    assert objects(asked.run("lost", "--json").output)[0]["causes"] == causes


def test_lost_by_cause_with_what_is_not_known(asked: Asked) -> None:
    row = {key: value for key, value in ROW.items() if key not in ("job", "name", "user")} | {
        "cause": "pcie",
        "not_known": 3,
    }
    asked.views["lost"] = LOST | {"by": "cause", "rows": [row], "not_known": 3}
    said = asked.run("lost", "--by", "cause", "--user", "ada", columns=200).output
    assert asked.seen == [("lost", {"by": "cause", "user": "ada"})]
    assert said.startswith("12.3 GPU-hours lost by 2 failures of user ada, and what is not known of 3 of them.\n")
    assert said.splitlines()[2].split()[-3:] == ["3", "2", "pcie"]


def test_nothing_lost_and_much_lost(asked: Asked) -> None:
    asked.views["lost"] = LOST | {"rows": []}
    assert asked.run("lost").output == "No job failed since 2026-02-22 12:00 UTC.\n"
    asked.views["lost"] = LOST | {"rows": [ROW | {"job": number} for number in range(100)]}
    assert "... and 70 more (--all shows them)" in asked.run("lost").output
    assert len(asked.run("lost", "--all").output.splitlines()) == 102


REFUSED = {
    "job": 2458, "attempt": 1, "state": "pending", "user": "ada", "name": "train", "partition": "gpu", "nodes": [],
    "reason": "ReqNodeNotAvail", "waits_for": "Job 2458's own --nodelist names n2, which is drained.",
    "out_of_service": [{"node": "n2", "state": "drained", "reason": "sentinel:prolog gpu_lost"}],
}  # fmt: skip


def test_a_job_of_which_only_slurm_knows(asked: Asked) -> None:
    asked.views["jobs"] = jobs() | {"slurm": REFUSED}
    asked.views["why"] = {"incident": None, "attempts": [], "others": [], "slurm": REFUSED}
    for command in ("jobs", "why"):
        found = asked.run(command, "2458", columns=200)
        assert found.exit_code == 0
        assert found.output.splitlines() == [
            "Job 2458 train of ada in gpu: pending (ReqNodeNotAvail), as Slurm shows it",
            "  Job 2458's own --nodelist names n2, which is drained.",
            "  n2 is drained (by Sentinel: prolog gpu_lost).",
            "  Slurm requeued it once, and no attempt was seen to begin: a node's prolog may have refused it. "
            "sentinel why NODE names the reason.",
        ]
    assert objects(asked.run("jobs", "2458", "--json").output) == [REFUSED | {"refused_by": []}]
    begins = REFUSED | {"attempt": 0, "state": "configuring", "nodes": ["n1"], "reason": HOSTILE} | {"waits_for": ""}
    asked.views["jobs"] = jobs() | {"slurm": begins | {"out_of_service": []}}
    said = asked.run("jobs", "2458", columns=200).output
    assert "on n1" in said and "prolog" not in said and harmless(said)


def test_a_job_that_a_prolog_refused(asked: Asked) -> None:
    """Where a node told of it, its reason stands instead of a guess; also beside attempts that began since."""
    told = [{"node": "n2", "attempt": 0, "reason": f"gpu_lost: {HOSTILE}", "at": "2026-03-01T11:00:00+00:00"}]
    asked.views["jobs"] = jobs() | {"slurm": REFUSED, "refused": told}
    asked.views["why"] = {"incident": None, "attempts": [], "others": [], "slurm": REFUSED, "refused": told}
    for command in ("jobs", "why"):
        said = asked.run(command, "2458", columns=200).output
        assert "n2 refused attempt 0 at 2026-03-01" in said and "gpu_lost: " in said and "may have" not in said
        assert harmless(said)
    assert objects(asked.run("jobs", "2458", "--json").output) == [REFUSED | {"refused_by": told}]


def test_a_job_that_nobody_knows(asked: Asked) -> None:
    asked.views["jobs"] = jobs() | {"slurm": None}
    assert "nothing is known of job 2458" in str(asked.run("jobs", "2458").exception)


def test_a_job_of_which_only_incidents_are_known(asked: Asked) -> None:
    asked.views["jobs"] = jobs(incidents=[incident_row(job=2458)]) | {"slurm": None}
    found = asked.run("jobs", "2458")
    assert found.exit_code == 0 and "No attempt of job 2458 was seen, or none is kept any more." in found.output
    assert "0f3a9c" in found.output
    found = asked.run("jobs", "2458", "--json")
    (row,) = objects(found.stdout)
    assert (row["job"], row["attempt"], row["state"]) == (2458, None, None) and "No attempt of job 2458" in found.stderr
    assert [one["id"] for one in row["incidents"]] == ["0f3a9c"]


def test_jobs_that_had_one_id_are_summed_each_by_itself(asked: Asked) -> None:
    """``lost`` charges each with its own failures; so must what lists them."""
    before = [failed_row(nth_of_id=0, user="bob"), attempt_row(nth_of_id=0, user="bob", state="failed", last_step=900)]
    asked.views["jobs"] = jobs(*before, attempt_row(attempt=0, nth_of_id=1, first_step=1, last_step=50))
    _, first, second = asked.run("jobs", columns=200).output.splitlines()
    assert (first.split()[2:6], second.split()[2:6]) == (["2", "900", "0.8", "bob"], ["1", "50", "-", "ada"])
    said = asked.run("jobs", "101", columns=200).output.splitlines()
    assert said[0] == "Job 101 train of ada in train: running" and said[1:3] == [
        "  1 attempt; 50 steps gained",
        "  Jobs before it had the same id: 2 attempts below.",
    ]


def test_a_task_of_an_array_is_named_as_squeue_shows_it(asked: Asked) -> None:
    asked.views["jobs"] = jobs(attempt_row())
    assert asked.run("jobs", "440_2").output.startswith("Job 101 ")
    asked.run("jobs", "--job", "440_2")
    assert asked.seen[0] == ("jobs", {"job": "440_2"}) and asked.seen[1][1] == {"job": "440_2"}
    refused = asked.run("jobs", "440_")
    assert refused.exit_code == 2 and "is no id of a job" in refused.output
