"""incidents and why: grounds in order of weight, what was done, and hostile evidence made harmless."""

from __future__ import annotations

from typing import Any

import pytest
from in_memory.cli_asked import HOSTILE, Asked, attempt_row, failed_row, harmless, incident_row, node_row, objects

WHERE = {"node": "n1", "gpu": 3, "rank": None, "job": 101}


def ground(weight: float = 4.2, **changes: Any) -> dict[str, Any]:
    item = {
        "at": "2026-03-01T11:59:58.250Z", "source": "kernel", "kind": "xid", "where": WHERE, "text": "NVRM: Xid 48",
        **changes,
    }  # fmt: skip
    return {"evidence": item, "weight": weight, "note": ""}


def why(**changes: Any) -> dict[str, Any]:
    verdict = {
        "cause": "gpu_memory_ecc", "scope": "gpu", "confidence": 0.953,
        "culprits": {"nodes": ["n1"], "gpus": ["n1:3"], "ranks": []}, "drain": ["n1"], "suspect": ["n2"],
        "alternatives": [{"cause": "gpu_fell_off_bus", "confidence": 0.031}], "advice": "replace the GPU",
        "grounds": [ground()], "against": [ground(-0.7)], "would_change": ["a passing memory test"], "onset_step": 4100,
        **(changes.pop("verdict", None) or {}),
    }  # fmt: skip
    step: dict[str, Any] = {
        "kind": "drain", "node": "n1", "job": None, "attempt": None, "intended_at": "2026-03-01T12:00:01.500Z",
        "result": "done", "finished_at": "2026-03-01T12:00:02Z", "reason": "", "data": {},
    }  # fmt: skip
    plan = {"refusal": "", "explanation": "drain n1", "observe_only": False, "steps": [step]}
    seen = {"incident": incident_row(), "verdict": verdict, "plan": plan, "steps": [step], "evidence": []}
    return seen | changes


# --- incidents ---------------------------------------------------------------------------------------------------------


def test_list(asked: Asked) -> None:
    asked.views["incidents"] = {"incidents": [incident_row(), incident_row(id="77aa", state="closed")]}
    output = asked.run("incidents", "--job", "101").output
    assert asked.seen == [("incidents", {"job": 101})] and "0f3a9c" in output and "77aa" in output
    rows = objects(asked.run("incidents", "--json").output)
    assert rows == asked.views["incidents"]["incidents"] and asked.seen[-1] == ("incidents", {})


def test_a_list_that_is_cut_says_what_shows_the_rest_of_it(asked: Asked) -> None:
    asked.views["incidents"] = {"incidents": [incident_row()], "cut": True}
    output = asked.run("incidents", "--user", "eve").output
    assert output.startswith("The newest 1; --all shows more.\n") and "history" not in output
    assert asked.run("incidents", "--json").stderr == "The newest 1; --all shows more.\n"
    output = asked.run("incidents", "--user", "eve", "--all").output
    assert asked.seen[-1] == ("incidents", {"user": "eve", "most": 5000}) and "the oldest are missing" in output


def test_incident_by_its_id_is_why(asked: Asked) -> None:
    asked.views["why"] = why()
    assert asked.run("incidents", "0f3").output == asked.run("why", "0f3").output
    assert asked.seen == [("why", {"what": "0f3"})] * 2


# --- why ---------------------------------------------------------------------------------------------------------------


def test_why_in_words(asked: Asked) -> None:
    asked.views["why"] = why()
    output = asked.run("why", "0f3").output
    for words in (
        "Incident 0f3a9c, 2026-03-01 12:00 UTC",
        "ago): watching; restarted",
        "At fault: the machine, not the job's code",
        "Numbers went bad at step 4100",
        "Job 101 attempt 0 of ada",
        "Verdict: GPU memory failed (ECC) (gpu_memory_ecc), 95% sure",
        "Where: GPU 3 of n1",
        "Suspect, neither left out of a restart nor drained: n2",
        "Else: gpu_fell_off_bus 3%",
        "Advice: replace the GPU",
        "Would change it: a passing memory test",
        "Plan: drain n1",
    ):
        assert words in output
    assert "11:59:58.25" in output and "n1:3" in output and "+4.2" in output and "-0.7" in output
    assert "What decided" in output and "What spoke against" in output and "12:00:01.50" in output


@pytest.mark.parametrize(
    ("nodes", "observe_only", "said"),
    [
        ("n1,n2", False, ["Suspect, left out of the restart and not drained: n2"]),
        ("n1", False, ["Suspect, neither left out of a restart nor drained: n2"]),  # the job cannot do without it
        ("n1,n2", True, ["Suspect, neither left out of a restart nor drained: n2"]),
    ],
)
def test_a_suspect_is_said_to_be_left_out_only_where_it_is(
    asked: Asked, nodes: str, observe_only: bool, said: list[str]
) -> None:
    step = {"kind": "exclude", "node": None, "job": 101, "attempt": 0, "data": {"nodes": nodes}}
    plan = {"refusal": "", "explanation": "It goes on.", "observe_only": observe_only, "steps": [step]}
    asked.views["why"] = why(plan=plan)
    output = asked.run("why", "0f3").output
    assert [line for line in output.splitlines() if line.startswith("Suspect")] == said


def test_numbers_that_went_bad_are_said_to_be_left_behind_only_where_a_restart_is_planned(asked: Asked) -> None:
    sentence = "Numbers went bad at step 4100: the restart begins before it"
    asked.views["why"] = goes_on = why(
        plan={"refusal": "", "explanation": "It goes on.", "observe_only": False, "steps": []}
    )
    assert "restart begins" not in asked.run("why", "0f3").output
    asked.views["why"] = goes_on | {"plan": None}
    assert "restart begins" not in asked.run("why", "0f3").output
    choose = {"kind": "choose_checkpoint", "node": None, "job": 101, "attempt": 0}
    asked.views["why"] = goes_on | {"plan": goes_on["plan"] | {"steps": [choose]}}
    assert sentence in asked.run("why", "0f3").output.splitlines()


def test_why_for_machines(asked: Asked) -> None:
    asked.views["why"] = why()
    assert objects(asked.run("why", "0f3", "--json").output) == [why()]


def bundle(node: str, path: str = "/var/lib/sentinel/agent/bundles/101.0", **changes: str) -> dict[str, Any]:
    return {"kind": "bundle", "source": "agent", "where": {"node": node, "path": path}, **changes}


def test_where_the_nodes_keep_what_explains_it(asked: Asked) -> None:
    asked.views["why"] = why(
        evidence=[bundle("n1"), bundle("n2", HOSTILE), bundle("n3", source="job_log"), ground()["evidence"]]
    )
    output = asked.run("why", "0f3").output
    assert "Kept on n1: /var/lib/sentinel/agent/bundles/101.0" in output
    assert output.count("Kept on") == 2 and harmless(output)
    asked.views["why"] = why(evidence=[bundle(f"n{number}") for number in range(20)])
    output = asked.run("why", "0f3").output
    assert output.count("Kept on") == 8 and "and on 12 more nodes" in output


def test_incident_that_is_not_judged_yet(asked: Asked) -> None:
    asked.views["why"] = why(plan=None, steps=[], incident=incident_row(job=None, cause=None)) | {"verdict": None}
    found = asked.run("why", "0f3")
    assert found.exit_code == 0 and len(found.output.splitlines()) == 1


def test_refused_plan_and_one_that_only_watches(asked: Asked) -> None:
    step = {"kind": "drain", "node": "n1", "job": None}
    refused = {"refusal": "drain-budget", "explanation": "8 are drained", "observe_only": False, "steps": []}
    watching = {"refusal": "", "explanation": "observing", "observe_only": True, "steps": [step]}
    asked.views["why"] = why(plan=refused)
    assert "Refused (drain-budget): 8 are drained" in asked.run("why", "x").output
    asked.views["why"] = why(plan=watching)
    assert "Would have done: drain n1" in asked.run("why", "x").output


def test_what_a_plan_waits_for_is_said_once(asked: Asked) -> None:
    words = "An operator is asked to approve drain n1, restart 101."
    kinds = ("drain", "requeue_hold", "choose_checkpoint", "release", "confirm")
    steps = [{"kind": k, "node": "n1" if k == "drain" else None, "job": None if k == "drain" else 101} for k in kinds]
    steps.insert(3, {"kind": "write_resume", "node": None, "job": 102})  # of the other component of a heterogeneous job
    wait = {"kind": "approval", "since": "2026-03-01T12:00:00Z", "explanation": words, "what": ["drain n1"]}
    plan = {"refusal": "", "explanation": words, "observe_only": True, "steps": steps, "waits": [wait]}
    asked.views["why"] = why(plan=plan, incident=incident_row(state="waiting", waits=[wait], outcome=words))
    output = asked.run("why", "x", columns=300).output
    assert output.count(words) == 1 and "Waits (approval) since" in output
    assert "Would have done: drain n1, restart job 101\n" in output


@pytest.mark.parametrize(
    "said", ["{} {}", "{1} {0}", "{1} Waits (approval): {0}"]
)  # the last one: of an earlier release
def test_what_a_plan_says_beside_its_waits_is_said_alone(asked: Asked, said: str) -> None:
    words, beside = "An operator is asked to approve drain n1.", "Job 101 needs 4 nodes and 3 are usable."
    wait = {"kind": "approval", "since": "2026-03-01T12:00:00Z", "explanation": words, "what": ["drain n1"]}
    plan = {
        "refusal": "",
        "explanation": said.format(words, beside),
        "observe_only": True,
        "steps": [],
        "waits": [wait],
    }
    asked.views["why"] = why(plan=plan, incident=incident_row(state="waiting", waits=[wait]))
    output = asked.run("why", "x", columns=300).output
    assert output.count(words) == 1 and f"Plan: {beside}\n" in output


def test_a_correction_stands_before_the_verdict_that_it_corrects(asked: Asked) -> None:
    told = {"by": "olga", "at": "2026-03-01T13:00:00Z", "cause": "user_code", "scope": "application", "note": "pulled"}
    asked.views["why"] = why(incident=incident_row(corrections=[told]))
    output = asked.run("why", "x").output
    assert output.index("Corrected by olga") < output.index("Verdict:")


def test_a_cause_that_is_not_known_has_no_percentage(asked: Asked) -> None:
    asked.views["why"] = why(verdict={"cause": "unknown", "confidence": 0.0})
    assert "Verdict: what broke is not known (unknown)\n" in asked.run("why", "x").output


def test_step_whose_result_is_not_there_yet(asked: Asked) -> None:
    seen = why()
    seen["steps"][0]["result"] = None
    asked.views["why"] = seen
    assert "under way" in asked.run("why", "x").output


@pytest.mark.parametrize(
    ("where", "place"),
    [
        ({"node": None, "rank": 7, "gpu": None}, "rank 7"),
        ({"node": "n1", "rank": 7, "gpu": None}, "n1"),
        ({"node": None, "rank": None, "gpu": 2}, ":2"),
        ({"node": None, "rank": None, "gpu": None}, "-"),
    ],
)
def test_where_a_ground_was_seen(asked: Asked, where: dict[str, object], place: str) -> None:
    asked.views["why"] = why(verdict={"grounds": [ground(where=where)], "against": []})
    (line,) = [line for line in asked.run("why", "x").output.splitlines() if "Xid 48" in line]
    assert line.split("kernel")[1].split("+4.2")[0].strip() == place


def test_long_evidence_is_cut_and_many_grounds_are_left_out(asked: Asked) -> None:
    grounds = [ground(text=f"ground-{i} " + "x" * 3000) for i in range(40)]
    asked.views["why"] = why(verdict={"grounds": grounds, "against": []})
    output = asked.run("why", "x", columns=200).output
    assert "ground-11" in output and "ground-12" not in output and output.count("x") < 12 * 210


@pytest.mark.parametrize("columns", [80, 140])
def test_hostile_evidence_is_shown_and_does_nothing(asked: Asked, columns: int) -> None:
    hostile = ground(text=HOSTILE, where={"node": HOSTILE, "gpu": 1, "rank": None}) | {"note": HOSTILE}
    seen = why(
        incident=incident_row(user=HOSTILE, outcome=HOSTILE),
        verdict={"advice": HOSTILE, "would_change": [HOSTILE], "grounds": [hostile], "against": [hostile],
                 "culprits": {"nodes": [HOSTILE], "gpus": [], "ranks": []}, "suspect": [HOSTILE]},
    )  # fmt: skip
    seen["steps"][0]["reason"] = HOSTILE
    plan = {"refusal": "user", "explanation": HOSTILE, "observe_only": True,
            "steps": [{"kind": "drain", "node": HOSTILE, "job": None}]}  # fmt: skip
    for refusal in ("user", ""):
        asked.views["why"] = seen | {"plan": plan | {"refusal": refusal}}
        found = asked.run("why", "x", columns=columns)
        assert found.exit_code == 0 and harmless(found.output) and "[red]x[/red]·" in found.output
        assert max(map(len, found.output.splitlines())) <= columns


def test_no_incident(asked: Asked) -> None:
    asked.views["incidents"] = {"incidents": []}
    assert asked.run("incidents").output == "No incident.\n"
    assert asked.run("incidents", "--job", "9").output.startswith("No incident of job 9;")
    assert asked.run("incidents", "--json").output == ""
    asked.views["incidents"]["own_only"] = True
    assert asked.run("incidents").output == "No incident of your jobs.\n"


# --- a node, a job, the last one -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scope", "words"),
    [
        ("application", "the job's own program, settings or environment, no machine"),
        ("node", "the machine, not the job's code"),
        ("cluster", "neither the job's code nor one machine"),
        ("unknown", "not known"),
    ],
)
def test_whose_fault_it_is(asked: Asked, scope: str, words: str) -> None:
    asked.views["why"] = why(verdict={"scope": scope})
    (line,) = [line for line in asked.run("why", "last").output.splitlines() if line.startswith("At fault: ")]
    assert line.endswith(words) and asked.seen == [("why", {"what": "last"})]


def test_nobody_is_at_fault_where_slurm_ended_the_job(asked: Asked) -> None:
    asked.views["why"] = why(verdict={"scope": "application", "cause": "scheduler_preempt_or_timelimit"})
    assert "At fault: nothing: Slurm ended the job as it was asked" in asked.run("why", "last").output


def test_why_of_a_node_says_who_drained_it_and_what_came_before(asked: Asked) -> None:
    before = incident_row(id="77aa", cause="pcie")
    asked.views["why"] = why(asked={"kind": "node", "name": "n1"}, node=node_row(), others=[before])
    said = asked.run("why", "n1").output
    assert said.startswith("n1 is draining (by Sentinel: 0f3a9c gpu_memory_ecc n1:3).\nNext: when it is mended, ")
    assert ", sentinel release n1\nIncident 0f3a9c, " in said
    assert "\nBefore\n" in said and "77aa" in said and "There are more" not in said
    asked.views["why"] |= {"others_cut": True}
    said = asked.run("why", "n1").output
    assert said.endswith("There are more: sentinel incidents --all --node n1 lists those that point to it\n")
    asked.views["why"] = why(asked={"kind": "job", "name": "101"}, others=[before], others_cut=True)
    assert asked.run("why", "101").output.endswith("There are more: sentinel incidents --all --job 101 lists them\n")


def test_why_of_a_node_says_that_a_person_released_it(asked: Asked) -> None:
    row = node_row(state="not responding", reason="", released={"at": "2026-03-01T12:00:00Z", "by": "ada"})
    asked.views["why"] = why(asked={"kind": "node", "name": "n1"}, node=row, others=[])
    said = asked.run("why", "n1").output
    assert said.startswith("n1 is not responding.\nReturned to service by ada, ") and "Incident 0f3a9c" in said
    asked.views["why"] = NOTHING | {"asked": {"kind": "node", "name": "n1"}, "node": row}
    assert "Returned to service by ada, " in asked.run("why", "n1").output
    asked.views["why"] = NOTHING | {"asked": {"kind": "node", "name": "n1"}, "node": row | {"released": None}}
    assert "Returned to service" not in asked.run("why", "n1").output


NOTHING = {"incident": None, "verdict": None, "plan": None, "steps": [], "evidence": [], "others": []}


def test_why_of_a_node_that_a_person_drained(asked: Asked) -> None:
    row = node_row(state="drained", reason="fan broken")
    asked.views["why"] = NOTHING | {"asked": {"kind": "node", "name": "n1"}, "node": row}
    said = asked.run("why", "n1").output
    assert said.startswith("n1: drained (not by Sentinel: fan broken)") and said.endswith(
        "No incident names this node.\n"
    )
    asked.views["why"] |= {"own_only": True}
    assert asked.run("why", "n1").output.endswith("No incident of your jobs names this node.\n")


def test_why_of_a_node_that_slurm_has_no_more(asked: Asked) -> None:
    asked.views["why"] = why(asked={"kind": "node", "name": "n1"}, others=[])
    assert asked.run("why", "n1").output.startswith("Slurm has no node n1 any more.\nIncident 0f3a9c")


def test_why_of_a_job_begins_with_its_story(asked: Asked) -> None:
    attempts = [failed_row(), attempt_row()]
    asked.views["why"] = why(asked={"kind": "job", "name": "101"}, attempts=attempts, others=[])
    said = asked.run("why", "101").output
    assert said.startswith("Job 101 train of ada in train: running\n") and "Incident 0f3a9c" in said
    asked.views["why"] = NOTHING | {"asked": {"kind": "job", "name": "101"}, "attempts": attempts[1:]}
    assert "No incident names this job: nothing of it was judged" in asked.run("why", "101").output
    attempts[1]["state"] = "unknown"
    assert "How it ended is not known" in asked.run("why", "101").output


def test_unlikely_alternatives_are_not_told(asked: Asked) -> None:
    asked.views["why"] = why(verdict={"alternatives": [{"cause": "pcie", "confidence": 0.004}]})
    assert "Else" not in asked.run("why", "x").output


def test_what_an_operator_said_stands_beside_the_verdict(asked: Asked) -> None:
    told = {
        "at": "2026-03-02T09:00:00Z", "by": "ada", "cause": "user_code", "scope": "application", "was": "gpu_memory_ecc",
        "was_scope": "gpu", "note": "seen on three nodes",
    }  # fmt: skip
    asked.views["why"] = why(incident=incident_row(corrections=[told]))
    output = asked.run("why", "0f3").output
    assert "Verdict: GPU memory failed (ECC) (gpu_memory_ecc)" in output
    assert "Corrected by ada" in output and "user_code (application): seen on three nodes" in output
    asked.views["incidents"] = {"incidents": [incident_row(corrections=[told])]}
    assert "user_code, judged gpu_memory_ecc" in asked.run("incidents").output


def test_a_held_job_says_how_it_goes_on(asked: Asked) -> None:
    held = {**why()["steps"][0], "kind": "hold", "node": None, "job": 101, "result": "done"}
    asked.views["why"] = why(incident=incident_row(state="held"), steps=[*why()["steps"], held])
    assert "Next: mend what is wrong, then scontrol release 101" in asked.run("why", "last").output
    theirs = [{**step, "data": {"held_by_others": True}} for step in why()["steps"]]
    asked.views["why"] = why(incident=incident_row(state="held"), steps=theirs)
    said = asked.run("why", "last").output
    assert "whoever held it, not Sentinel, lets it start: scontrol release 101" in said and "mend what" not in said
    asked.views["why"] = why(incident=incident_row(state="held") | {"job_spec": "101_3"}, steps=[held])
    assert "scontrol release 101_3" in asked.run("why", "last").output
    asked.views["why"] = why(incident=incident_row(state="closed"), steps=[held])
    assert "Next:" not in asked.run("why", "last").output


def test_who_is_no_operator_reads_what_the_daemon_says_is_next_for_them(asked: Asked) -> None:
    told = "The operators are told. To let it start: scontrol release 101."
    asked.views["why"] = why(incident=incident_row(state="held"), verdict={"advice": ""}, to_do=told, node=node_row())
    said = asked.run("why", "n1").output
    assert said.count("Next: ") == 1 and f"Next: {told}" in said and "mend" not in said and "Advice" not in said
    held = {**why()["steps"][0], "kind": "requeue_hold", "node": None, "job": 101, "data": {}}
    asked.views["why"] |= {"to_do": "", "steps": [held]}
    assert "Next: mend what is wrong, then scontrol release 101" in asked.run("why", "last").output


@pytest.mark.parametrize("kind", ["requeue_hold", "hold"])
def test_of_a_job_that_no_step_left_held_no_release_is_asked(asked: Asked, kind: str) -> None:
    refused = {**why()["steps"][0], "kind": kind, "node": None, "job": 101, "result": "failed", "data": {}}
    asked.views["why"] = why(incident=incident_row(state="held"), steps=[*why()["steps"], refused])
    assert "scontrol release" not in asked.run("why", "last").output
