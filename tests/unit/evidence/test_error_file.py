"""torchelastic's error files, good, strange and broken."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from shipped import shipped_signatures

from sentinel.evidence.logs.error_file import MOST, read_error_file
from sentinel.evidence.logs.reader import Signatures
from sentinel.model.records import Evidence, Kind, Source, Trust, Where, utc

BEGAN, NOW = utc(1_800_000_000.5), utc(1_800_003_600)
PATH = "/tmp/torchelastic_k/run_x/attempt_2/5/error.json"
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."


@pytest.fixture(scope="module")
def rules() -> Signatures:
    return shipped_signatures()


def read(rules: Signatures, value: Any, path: str = PATH) -> list[Evidence]:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return read_error_file(data, Where(node="n1", job=7, attempt=1, path=path), rules, BEGAN, NOW)


def error(message: str, stack: str = "", at: object = "1800000100") -> dict[str, Any]:
    return {"message": {"message": message, "extraInfo": {"py_callstack": stack, "timestamp": at}}}


def test_bytes_that_are_no_text_hide_no_error(rules: Signatures) -> None:
    data = json.dumps(error(OOM, f"File @ \ud800\n{OOM}\n")).encode().replace(b"@", b"\xff")
    found = read(rules, data)
    assert any(item.rule is not None and "oom" in item.rule for item in found)


def test_what_rules_recognise_with_its_worker_and_its_time(rules: Signatures) -> None:
    stack = f'Traceback (most recent call last):\n  File "t.py", line 3, in step\n    y = model(x)\n{OOM}\n'
    found = read(rules, error(OOM, stack))
    assert {item.source for item in found} == {Source.ERROR_FILE}
    assert {item.trust for item in found} == {Trust.USER}
    assert any(item.rule is not None and "oom" in item.rule for item in found)
    assert sum(OOM in item.text for item in found) == 1, "the message is the call stack's last line"
    assert {(item.data["local_rank"], item.data["torchelastic_attempt"]) for item in found} == {(5, 2)}
    assert {item.at for item in found} == {utc(1_800_000_100)}
    assert read(rules, error(OOM, stack)) == found, "read again it is the same evidence"


def test_what_no_rule_knows_is_still_told(rules: Signatures) -> None:
    (found,) = read(rules, error("the frobnicator \x1b[31mis\x07 out"))
    assert (found.kind, found.rule) == ("error_file", None)
    assert found.text.startswith("the frobnicator") and found.text.isprintable()


def test_the_launchers_copy_is_no_workers(rules: Signatures) -> None:
    value = error(OOM)
    value["message"]["errorCode"] = 1
    found = read(rules, value, "/data/run/error.json")
    assert found and all("local_rank" not in item.data for item in found)


@pytest.mark.parametrize("at", ["17", "99999999999", "soon", None, [], "1800009999", 1_800_009_999, "-1"])
def test_a_time_that_cannot_be_is_not_believed(rules: Signatures, at: object) -> None:
    assert {item.at for item in read(rules, error(OOM, at=at))} == {NOW}


def test_a_job_that_failed_at_once_did_not_fail_before_it_began(rules: Signatures) -> None:
    cut = str(int(BEGAN.timestamp()))
    assert {item.at for item in read(rules, error(OOM, at=cut))} == {BEGAN}
    early = str(int((BEGAN - timedelta(seconds=60)).timestamp()))
    assert {item.at for item in read(rules, error(OOM, at=early))} == {NOW}


@pytest.mark.parametrize(
    "value",
    [b"", b"{", b"[]", b"7", b"null", {"message": 7}, {"message": {"message": 3}}, {"message": {}}, {"x": 1}, b"\xff\xfe",
     b"[" * 100_000, {"message": {"message": "x", "extraInfo": "y"}}, {"message": {"message": "x", "extraInfo":
                                                                                {"py_callstack": 7}}}],
)  # fmt: skip
def test_what_is_damaged_is_unreadable(rules: Signatures, value: Any) -> None:
    (found,) = read(rules, value)
    assert found.kind == Kind.UNREADABLE
    assert PATH in found.text


def test_the_oldest_form_has_words_only(rules: Signatures) -> None:
    assert any("oom" in str(item.rule) for item in read(rules, {"message": OOM}))


def test_a_long_file_makes_few_evidences(rules: Signatures) -> None:
    stack = "\n".join(f"{OOM} {number}" for number in range(20_000))
    assert 0 < len(read(rules, error(OOM, stack))) <= MOST


def test_half_a_character_is_no_trouble(rules: Signatures) -> None:
    assert read(rules, json.dumps(error("\ud800 alone", "\udcff")).encode())


@pytest.mark.parametrize("at", ["\u00b2", "\u0661", "9" * 5000, 10**400, -1, True])
def test_a_time_that_is_none_is_not_believed(rules: Signatures, at: object) -> None:
    assert {item.at for item in read(rules, json.dumps(error(OOM, at=str(at) if at == 10**400 else at)).encode())} == {
        NOW
    }
