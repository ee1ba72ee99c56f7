"""The innermost frame's package and the class of the exception speak: a library's own failure is not the user's code."""

from __future__ import annotations

import pytest
from core_daemon import RULES
from core_records import AT

from sentinel.classify import classify
from sentinel.evidence.logs.reader import LogReader
from sentinel.model.records import Cause, Incident

OWN = "/home/ann/run/train.py"
LIBRARY = "/opt/venv/lib/python3.11/site-packages/transformers/trainer.py"
STANDARD = "/usr/lib/python3.11/pathlib.py"


def cause(*files: str, raised: str, prefix: str = "") -> Cause:
    lines = ["Traceback (most recent call last):"]
    for file in files:
        lines += [f'  File "{file}", line 12, in step', "    return self.go(batch)", "           ^^^^^^^^^^^^^^"]
    text = "".join(f"{prefix}{line}\n" for line in [*lines, raised])
    reader = LogReader(RULES)
    found = reader.feed(text.encode(), AT) + reader.finish(AT)
    return classify(Incident("i1", AT, AT, evidence=tuple(found)), rules=RULES, now=AT).cause


@pytest.mark.parametrize("prefix", ["", "[rank3]: ", "3: "])
@pytest.mark.parametrize("raised", ["AttributeError: 'Plan' object has no attribute 'mesh'", "TypeError: go() got two"])
def test_the_innermost_frame_decides(prefix: str, raised: str) -> None:
    assert cause(OWN, LIBRARY, raised=raised, prefix=prefix) is Cause.SOFTWARE_ENV
    assert cause(LIBRARY, OWN, raised=raised, prefix=prefix) is Cause.USER_CODE
    assert cause(OWN, raised=raised, prefix=prefix) is Cause.USER_CODE


def test_a_frameworks_own_tree_is_a_library() -> None:
    raised = "AttributeError: 'Plan' object has no attribute 'mesh'"
    assert cause(OWN, "/opt/Megatron-LM/megatron/core/tensor.py", raised=raised) is Cause.SOFTWARE_ENV


def test_the_standard_library_is_nobodys() -> None:
    raised = "AttributeError: 'str' object has no attribute 'joinpath'"
    assert cause(OWN, STANDARD, raised=raised) is Cause.USER_CODE
    assert cause(OWN, LIBRARY, STANDARD, raised=raised) is Cause.SOFTWARE_ENV


def test_what_a_library_refuses_to_do_with_its_input_is_still_the_callers() -> None:
    assert cause(OWN, LIBRARY, raised="IndexError: list index out of range") is Cause.USER_CODE


def test_a_frame_far_above_is_not_this_exceptions() -> None:
    reader = LogReader(RULES)
    far = f'  File "{LIBRARY}", line 12, in step\n' + "epoch\n" * 9
    found = reader.feed((far + "AttributeError: 'Plan' object has no attribute 'mesh'\n").encode(), AT)
    assert classify(Incident("i1", AT, AT, evidence=tuple(found)), rules=RULES, now=AT).cause is Cause.USER_CODE


@pytest.mark.parametrize("package", ["datasets/utils/file_utils.py", "s3fs/core.py", "streaming/base/stream.py"])
def test_a_package_that_fetches_data_speaks_of_their_source(package: str) -> None:
    fetching = f"/opt/venv/lib/python3.11/site-packages/{package}"
    assert cause(OWN, fetching, raised="OSError: odd answer of the server") is Cause.DATALOADER
    assert cause(OWN, fetching, raised="TypeError: open() got two") is Cause.SOFTWARE_ENV
    assert cause(fetching, OWN, raised="CustomError: odd answer") is Cause.USER_CODE


def test_no_alternative_is_said_to_be_surer_than_the_verdict() -> None:
    reader = LogReader(RULES)
    found = reader.feed(b"RuntimeError: No HIP GPUs are available\n", AT) + reader.finish(AT)
    verdict = classify(Incident("i1", AT, AT, evidence=tuple(found)), rules=RULES, now=AT)
    assert verdict.alternatives and all(other.confidence <= verdict.confidence for other in verdict.alternatives)
