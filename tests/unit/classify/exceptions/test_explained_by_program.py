"""What a program said of its own exception: a handler that says what is wrong, the module that lacks a name."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from shipped import shipped_rules, shipped_signatures

from sentinel.classify import classify
from sentinel.evidence.logs.reader import LogReader
from sentinel.model.records import Cause, Incident

NOW = datetime(2026, 3, 4, 12, tzinfo=UTC)
FRAME = 'Traceback (most recent call last):\n  File "/home/u/run/cfg.py", line {}, in get\n    {}\n'
CAUGHT = FRAME.format(31, "return self._cache[name]") + "KeyError: 'model_size'\n"
MEANWHILE = "\nDuring handling of the above exception, another exception occurred:\n\n"
ASKED = "config key 'model_size' is required: set it in conf/base.yaml or pass --model_size"


def cause(text: str) -> Cause:
    reader = LogReader(shipped_signatures())
    found = reader.feed(text.encode(), NOW) + reader.finish(NOW)
    return classify(Incident("i1", NOW, NOW, evidence=tuple(found)), rules=shipped_rules(), now=NOW).cause


def test_a_handler_that_raises_says_what_is_wrong() -> None:
    raised = FRAME.format(33, 'raise ConfigError(f"config key")') + f"cfg.ConfigError: {ASKED}\n"
    assert cause(CAUGHT) is Cause.USER_CODE
    assert cause(CAUGHT + MEANWHILE + raised) is Cause.USER_CONFIG
    assert cause(CAUGHT + "\n" + raised) is Cause.USER_CODE  # two errors, one after the other


def test_a_handler_that_fails_itself_says_nothing_of_what_it_handled() -> None:
    full = (
        FRAME.format(40, "loss.backward()")
        + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB.\n"
    )
    broke = FRAME.format(44, "self.log.close()") + "AttributeError: 'NoneType' object has no attribute 'close'\n"
    assert cause(full + MEANWHILE + broke) is Cause.APP_OOM_GPU


def test_a_program_that_stops_itself_with_a_sentence_says_what_is_wrong() -> None:
    assert cause("SystemExit: --hidden must be a multiple of --heads (got 1000 and 12)\n") is Cause.USER_CONFIG


@pytest.mark.parametrize(
    ("file", "at_fault"),
    [
        ("/home/u/proj/utils/helpers.py", Cause.USER_CODE),
        ("/opt/venv/lib/python3.11/site-packages/transformers/utils/helpers.py", Cause.SOFTWARE_ENV),
        ("/workspace/Megatron-LM/megatron/core/utils.py", Cause.SOFTWARE_ENV),
        ("/usr/lib/python3.11/collections/__init__.py", Cause.SOFTWARE_ENV),
    ],
)
def test_the_module_that_lacks_a_name_is_at_fault(file: str, at_fault: Cause) -> None:
    frame = FRAME.format(1, "from .helpers import norm_text")
    assert cause(f"{frame}ImportError: cannot import name 'norm_text' from 'utils.helpers' ({file})\n") is at_fault
    circular = "partially initialized module 'model' (most likely due to a circular import)"
    assert cause(f"{frame}ImportError: cannot import name 'GPT' from {circular} ({file})\n") is at_fault
