"""What a comment asks for; a comment is hostile."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.model.intent import NOTHING, Intent, intent_of


def asked(**what: object) -> str:
    return json.dumps({"sentinel": what})


@pytest.mark.parametrize(
    "comment", ["", "my run", '{"other": 1}', '["sentinel"]', '"sentinel"', '{"sentinel": null}', '{"x": "sentinel"}']
)
def test_comment_of_somebody_else(comment: str) -> None:
    assert intent_of(comment) == NOTHING


def test_yes_and_no() -> None:
    assert intent_of('{"sentinel": true, "other": [1]}') == Intent(restart=True)
    assert intent_of('{"sentinel": false}') == Intent(restart=False)
    assert intent_of(asked()) == Intent(restart=True)
    assert intent_of(asked(restart=False)).restart is False


@pytest.mark.parametrize("word", ["tell", "hold", "restart"])
def test_what_is_done_about_bad_numbers(word: str) -> None:
    assert intent_of(asked(bad_numbers=word)).bad_numbers == word and intent_of(asked()).bad_numbers is None


@pytest.mark.parametrize(("word", "retried"), [("hold", False), ("retry", True)])
def test_what_is_done_about_errors_of_the_program(word: str, retried: bool) -> None:
    assert intent_of(asked(errors=word)).retry_errors is retried and not intent_of(asked()).retry_errors


def test_everything_at_once() -> None:
    comment = asked(restart=True, **{"global": "/shared/run1", "local": ["/nvme/%N/run1", "/ram"]}, retries=3)
    assert intent_of(comment) == Intent(True, ("/shared/run1",), ("/nvme/%N/run1", "/ram"), 3)


@pytest.mark.parametrize(
    ("comment", "words"),
    [
        ("{'sentinel': true}", "not JSON"),
        ('{"sentinel": tru', "not JSON"),
        ("[" * 1000 + "sentinel", "not JSON"),
        ('{"sentinel": 1}', "true, false or an object"),
        ('{"sentinel": "yes"}', "true, false or an object"),
        (asked(restart="yes"), '"restart"'),
        (asked(restart=1), '"restart"'),
        (asked(retries=-1), '"retries"'),
        (asked(retries=True), '"retries"'),
        (asked(retries=2.5), '"retries"'),
        (asked(bad_numbers="kill"), '"bad_numbers"'),
        (asked(bad_numbers=["hold"]), '"bad_numbers"'),
        (asked(errors="ignore"), '"errors"'),
        (asked(errors=["retry"]), '"errors"'),
        (asked(retires=2), "unknown key 'retires'"),
        (asked(**{"global": "relative"}), '"global"'),
        (asked(**{"global": ["/a", 3]}), '"global"'),
        (asked(local={"a": 1}), '"local"'),
        (asked(local=["/a/../../etc"]), '"local"'),
        (asked(local=["/a\nb"]), '"local"'),
        (asked(local=["/a\x1b[2J"]), '"local"'),
    ],
)
def test_broken_comment_says_what_is_wrong_and_restarts_nothing(comment: str, words: str) -> None:
    found = intent_of(comment)
    assert words in found.problem
    assert found == Intent(problem=found.problem)
    assert found.problem.isprintable()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(st.text() | json_values.map(lambda value: json.dumps({"sentinel": value})))
def test_no_comment_breaks_it(comment: str) -> None:
    found = intent_of(comment)
    assert not (found.problem and (found.restart or found.global_roots or found.local_roots))
    assert all(root.startswith("/") and root.isprintable() for root in (*found.global_roots, *found.local_roots))


def test_with_how_many_nodes_it_can_run() -> None:
    assert intent_of(asked(nodes=[2, 4])).nodes == (2, 4)
    assert intent_of(asked()).nodes is None
    for wrong in (4, [4], [4, 2], [0, 2], [2, 10**9], [True, 2], ["2", "4"], "2-4"):
        assert "nodes" in intent_of(asked(nodes=wrong)).problem


def test_folders_with_the_jobs_id_are_those_of_that_job() -> None:
    comment = '{"sentinel": {"global": ["/shared/%j", "/s/run"], "local": ["/nvme/%N/%j"]}}'
    assert intent_of(comment).global_roots == ("/shared/%j", "/s/run")
    mine = intent_of(comment, 8801)
    assert mine.global_roots == ("/shared/8801", "/s/run") and mine.local_roots == ("/nvme/%N/8801",)
    assert intent_of(comment, 8802).global_roots[0] == "/shared/8802"


@pytest.mark.parametrize("kind", ["global", "local"])
def test_no_more_folders_than_a_job_can_have_a_use_for(kind: str) -> None:
    """Each of them is held against those of all other jobs of the user."""
    folders = [f"/s/{number}" for number in range(17)]
    assert not intent_of(json.dumps({"sentinel": {kind: folders[:16]}})).problem
    found = intent_of(json.dumps({"sentinel": {kind: folders}}))
    assert "more than 16 folders" in found.problem and not found.restart
