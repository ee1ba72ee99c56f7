"""drain, release, pause and resume: the state first, then the question, and nothing without a yes."""

from __future__ import annotations

from typing import Any

import pytest
from in_memory.cli_asked import HOSTILE, Asked, harmless, objects

from sentinel.errors import Refused, UserError
from sentinel.protocol import CHANGE

NODE: dict[str, Any] = {"node": "n1", "state": "mixed", "job": 101, "reason": ""}
DRAIN = (CHANGE, {"change": "drain", "arguments": {"node": "n1", "reason": "fan"}})
RELEASE = (CHANGE, {"change": "release", "arguments": {"node": "n1"}})


@pytest.fixture(autouse=True)
def node(asked: Asked) -> None:
    asked.views["nodes"] = {"nodes": [NODE], "incidents": []}


def test_drain_shows_asks_and_does(asked: Asked) -> None:
    found = asked.run("drain", "n1", "--reason", "fan", says="y\n")
    assert found.exit_code == 0 and asked.made == [DRAIN] and asked.seen == [("nodes", {"node": "n1"})]
    assert found.output.index("n1 is mixed, runs job 101.") < found.output.index("Drain n1?")
    assert found.output.endswith("n1 is drained.\n")


@pytest.mark.parametrize("words", [("drain", "n1", "--reason", "fan"), ("release", "n1")])
@pytest.mark.parametrize("says", ["n\n", "\n", "", "what\n"])
def test_without_a_yes_nothing_is_done(asked: Asked, words: tuple[str, ...], says: str) -> None:
    found = asked.run(*words, says=says)
    assert found.exit_code == 1 and asked.made == [] and "Aborted" in found.output
    assert "is drained" not in found.output and "is back" not in found.output


def test_yes_answers_the_question(asked: Asked) -> None:
    assert asked.run("drain", "n1", "--reason", "fan", "--yes").exit_code == 0
    assert asked.run("release", "n1", "--yes").output.endswith("n1 is back.\n")
    assert asked.made == [DRAIN, RELEASE]


def test_no_limit_is_promised_that_holds_no_person(asked: Asked) -> None:
    for command in ("drain", "release"):
        assert "stay in force" not in asked.run(command, "--help").output
    said = " ".join(asked.run("drain", "--help").output.split())
    assert "bound what Sentinel drains by itself; what a person asks for is done" in said


def test_reason_must_be_given(asked: Asked) -> None:
    assert asked.run("drain", "n1", "--yes").exit_code == 2 and asked.made == []
    for empty in ("", "  ", "\t"):
        error = asked.run("drain", "n1", "--reason", empty, "--yes").exception
        assert isinstance(error, UserError) and "--reason" in error.message and asked.made == []


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ({"reason": "sentinel:root: fan", "before": None}, "n1 is drained."),
        (
            {"reason": "sentinel:root: fan", "before": "sentinel:0f3a ecc n1:3"},
            "n1 was drained already (0f3a ecc n1:3); its reason is now root: fan. Only sentinel release returns it.",
        ),
        (
            {"reason": "sentinel:root: fan", "before": "sentinel:root: fan"},
            "n1 is drained already (root: fan); nothing was changed.",
        ),
        (
            {"reason": "mine now", "before": "sentinel:root: fan"},
            "n1 was drained already (root: fan); its reason is now mine now.\n",
        ),
        ({"reason": "", "before": None, "drained": False}, "n1 was drained, and is in service again by now."),
        ({"reason": f"sentinel:{HOSTILE}", "before": "sentinel:root: fan"}, "n1 was drained already (root: fan);"),
    ],
)
def test_drain_says_what_slurm_holds(asked: Asked, answer: dict[str, Any], says: str) -> None:
    asked.answer = {"node": "n1", "drained": True, **answer}
    output = asked.run("drain", "n1", "--reason", "fan", "--yes").output
    assert says in output and harmless(output)


def test_drain_of_a_node_that_is_drained_says_so_before_the_question(asked: Asked) -> None:
    drained = NODE | {"state": "drained", "job": None, "reason": "sentinel:0f3a ecc"}
    asked.views["nodes"] = {"nodes": [drained, NODE | {"node": "n2"}]}
    found = asked.run("drain", "n[1-2]", "--reason", "fan", says="n\n")
    assert "until they are released; the reason of n1 is replaced [y/N]" in " ".join(found.output.split())


def test_release_shows_whose_drain_it_is(asked: Asked) -> None:
    asked.views["nodes"] = {"nodes": [NODE | {"state": "drained", "job": None, "reason": "sentinel:0f3a ecc"}]}
    output = asked.run("release", "n1", says="y\n").output
    assert "n1 is drained, reason: sentinel:0f3a ecc." in output and asked.made == [RELEASE]


def test_pause_and_resume(asked: Asked) -> None:
    assert "sentinel resume ends it" in asked.run("pause").output
    assert asked.run("resume").output == "Active again.\n"
    assert asked.made == [(CHANGE, {"change": name, "arguments": {}}) for name in ("pause", "resume")]


@pytest.mark.parametrize(
    "words", [("drain", "n1", "--reason", "fan", "--yes"), ("release", "n1", "--yes"), ("pause",), ("resume",)]
)
def test_machines_read_the_answer_alone(asked: Asked, words: tuple[str, ...]) -> None:
    asked.answer = {"node": "n1", "drained": True}
    found = asked.run(*words, "--json")
    assert objects(found.stdout) == [asked.answer]


def test_question_to_machines_goes_to_stderr(asked: Asked) -> None:
    asked.answer = {"drained": True}
    found = asked.run("drain", "n1", "--reason", "fan", "--json", says="y\n")
    assert objects(found.stdout) == [asked.answer] and "Drain n1?" in found.stderr and "is mixed" in found.stderr


def test_refusal_is_passed_on(asked: Asked) -> None:
    asked.answer = Refused("n1 was drained by somebody else")
    found = asked.run("release", "n1", "--yes")
    assert found.exception is asked.answer and "is back" not in found.output


def test_node_that_is_not_known_is_not_asked_about(asked: Asked) -> None:
    asked.views["nodes"] = UserError("Slurm knows no node 'n1'")
    found = asked.run("drain", "n1", "--reason", "fan", says="y\n")
    assert found.exception is asked.views["nodes"] and asked.made == [] and "Drain n1?" not in found.output


def test_hostile_reason_is_harmless(asked: Asked) -> None:
    asked.views["nodes"] = {"nodes": [NODE | {"reason": HOSTILE}]}
    assert harmless(asked.run("release", "n1", says="n\n").output)


def test_release_of_a_node_that_is_against_it_says_so_before_the_question(asked: Asked) -> None:
    verdict = {"word": "BAD", "at_s": 1.0, "code": "gpu_lost", "sentence": f"GPU 3 is lost {HOSTILE}"}
    asked.views["nodes"] = {"nodes": [NODE | {"verdict": verdict}]}
    found = asked.run("release", "n1", says="n\n")
    assert "Its own last verdict is BAD: GPU 3 is lost" in found.output and asked.made == []
    assert "its prolog refuses jobs where drains act." in found.output  # it refuses none in observe and suggest
    assert "although its own verdict is BAD?" in found.output and harmless(found.output)
    assert "BAD" in asked.run("release", "n1", "--yes").output and asked.made == [RELEASE]


@pytest.mark.parametrize("word", ["OK", "UNKNOWN", None])
def test_release_of_a_node_that_says_nothing_against_it(asked: Asked, word: str | None) -> None:
    asked.views["nodes"] = {"nodes": [NODE | {"verdict": {"word": word, "sentence": "x"} if word else {}}]}
    assert "BAD" not in asked.run("release", "n1", "--yes").output


@pytest.mark.parametrize(
    ("row", "words", "although"),
    [
        ({"responds": False, "agent": "unreachable"}, "It does not answer Slurm, and its agent is unreachable.",
         "although it does not answer?"),
        ({"responds": False, "agent": "heard"}, "It does not answer Slurm.", "although it does not answer?"),
        ({"responds": True, "agent": "silent"}, "Its agent is silent.", "although its agent is silent?"),
        ({"responds": False, "agent": "unknown", "verdict": {"word": "BAD", "sentence": "GPU 3 is lost"}},
         "It does not answer Slurm.", "although its own verdict is BAD and it does not answer?"),
    ],
)  # fmt: skip
def test_release_of_a_node_that_does_not_answer_says_so_before_the_question(
    asked: Asked, row: dict[str, Any], words: str, although: str
) -> None:
    asked.views["nodes"] = {"nodes": [NODE | {"state": "drained", "job": None} | row]}
    output = asked.run("release", "n1", says="n\n").output
    assert words in output and f"Return n1 to work {although}" in output and asked.made == []
    assert words in asked.run("release", "n1", "--yes").output and asked.made == [RELEASE]


@pytest.mark.parametrize("row", [{}, {"responds": None, "agent": "unknown"}, {"responds": True, "agent": "heard"}])
def test_what_is_not_known_of_a_node_is_not_held_against_it(asked: Asked, row: dict[str, Any]) -> None:
    asked.views["nodes"] = {"nodes": [NODE | row]}
    output = asked.run("release", "n1", says="n\n").output
    assert "although" not in output and "answer" not in output


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ({}, "n1 is back."),
        ({"drained": False, "responds": True, "agent": "heard", "state": "idle"}, "n1 is back."),
        (
            {"drained": False, "responds": False, "agent": "unreachable", "state": "not responding"},
            "n1 is returned and gets no job yet: it does not answer Slurm, and its agent is unreachable.",
        ),
        (
            {"drained": False, "responds": True, "agent": "silent", "state": "idle"},
            "n1 is back; its agent is silent: Sentinel sees nothing of what happens there.",
        ),
        ({"drained": True, "state": "drained"}, "n1 was returned, and is drained again by now."),
    ],
)
def test_release_says_how_the_node_is_then(asked: Asked, answer: dict[str, Any], says: str) -> None:
    asked.answer = {"node": "n1", **answer}
    assert asked.run("release", "n1", "--yes").output.endswith(f"{says}\n")


def test_of_several_nodes_those_are_named_that_do_not_answer(asked: Asked) -> None:
    dead, bad = {"responds": False}, {"verdict": {"word": "BAD", "sentence": "x"}}
    asked.views["nodes"] = {"nodes": [NODE | {"node": "n1"} | bad, NODE | {"node": "n2"} | dead]}
    output = asked.run("release", "n[1-2]", says="n\n").output
    assert "Return n[1-2] (2 nodes) to work although the own verdict of n1 is BAD and n2 does not answer?" in output


def test_several_nodes_are_shown_asked_about_once_and_changed_one_by_one(asked: Asked) -> None:
    asked.views["nodes"] = {"nodes": [NODE, NODE | {"node": "n2", "state": "idle", "job": None}]}
    found = asked.run("drain", "n[1-2]", "--reason", "fan", says="y\n")
    assert asked.seen == [("nodes", {"node": "n[1-2]"})] and found.output.count("?") == 1
    assert "n2 is idle." in found.output and "Drain n[1-2] (2 nodes)? They take no new work" in found.output
    assert [body["arguments"]["node"] for _, body in asked.made] == ["n1", "n2"]


@pytest.mark.parametrize("words", [("drain", "--reason", "fan"), ("release",)])
def test_nodes_may_be_several_arguments(asked: Asked, words: tuple[str, ...]) -> None:
    asked.views["nodes"] = {"nodes": [NODE | {"node": name} for name in ("n2", "n3", "n7")]}
    found = asked.run(*words, "n[2-3]", "n7", "--yes")
    assert found.exit_code == 0 and asked.seen == [("nodes", {"node": "n[2-3],n7"})]
    assert [body["arguments"]["node"] for _, body in asked.made] == ["n2", "n3", "n7"]


@pytest.mark.parametrize("words", [("drain", "--reason", "fan", "--yes"), ("release", "--yes")])
def test_no_node_is_a_usage_error(asked: Asked, words: tuple[str, ...]) -> None:
    assert asked.run(*words).exit_code == 2 and asked.made == [] and asked.seen == []


def test_refused_node_does_not_keep_the_others_from_their_turn(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    from sentinel.cli.operator import commands

    made: list[str] = []

    def change(_config: object, _path: str, body: dict[str, Any]) -> dict[str, Any]:
        made.append(body["arguments"]["node"])
        if made[-1] == "n1":
            raise Refused("n1 was drained by somebody else", fix="use scontrol")
        return {}

    monkeypatch.setattr(commands, "ask", change)
    asked.views["nodes"] = {"nodes": [NODE, NODE | {"node": "n2"}]}
    found = asked.run("release", "n[1-2]", "--yes")
    assert (
        made == ["n1", "n2"] and "n1: n1 was drained by somebody else" in found.output and "n2 is back." in found.output
    )
    error = found.exception
    assert isinstance(error, Refused) and error.message == "1 of 2 nodes refused"
    assert error.fix == "use scontrol\nn2 went through, and stays so"


def test_no_node_that_went_through_is_said_to_be_unchanged(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    from sentinel.cli.operator import commands

    def change(_config: object, _path: str, body: dict[str, Any]) -> dict[str, Any]:
        if body["arguments"]["node"] in refused:
            raise Refused("drained already by somebody else")
        return {}

    monkeypatch.setattr(commands, "ask", change)
    asked.views["nodes"] = {"nodes": [NODE, NODE | {"node": "n2"}, NODE | {"node": "n3"}]}
    refused = {"n1"}
    error = asked.run("drain", "n[1-3]", "--reason", "fan", "--yes").exception
    assert isinstance(error, Refused)
    words = error.fix or error.usual_fix
    assert "nothing was done" not in words and "n[2-3] (2 nodes) went through" in words
    refused = {"n1", "n2", "n3"}
    error = asked.run("drain", "n[1-3]", "--reason", "fan", "--yes").exception
    assert isinstance(error, Refused) and (error.fix or error.usual_fix) == Refused.usual_fix
