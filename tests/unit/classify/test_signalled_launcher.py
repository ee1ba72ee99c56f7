"""torchrun was told to end: what stands beside that word ended nothing, unless a worker had ended before."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from shipped import shipped_rules, shipped_signatures

from sentinel.classify import classify
from sentinel.evidence.logs.reader import LogReader
from sentinel.model.records import Cause, Incident, Where

NOW = datetime(2026, 3, 4, 12, tzinfo=UTC)
RULES = shipped_rules()
SIGNATURES = shipped_signatures()
FULL = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB.\n"
TRACEBACK = 'Traceback (most recent call last):\n  File "/home/u/run/train.py", line 120, in {}\n    {}\n'
SIGNALLED = (
    "W0308 01:50:04.324000 6290 site-packages/torch/distributed/elastic/agent/server/api.py:739]"
    " Received {0} death signal, shutting down workers\n"
    "W0308 01:50:04.329000 6290 site-packages/torch/distributed/elastic/multiprocessing/api.py:1010]"
    " Sending process 6291 closing signal SIGTERM\n"
    'Traceback (most recent call last):\n  File "/v/site-packages/torch/distributed/elastic/agent/server/api.py", line 908,'
    " in _invoke_run\n    time.sleep(monitor_interval)\n"
    "torch.distributed.elastic.multiprocessing.api.SignalException: Process 6290 got signal: {0}\n"
)


def cause(text: str) -> Cause:
    reader = LogReader(SIGNATURES, where=Where(path="out.txt"), own_times=True)
    found = reader.feed(text.encode(), NOW) + reader.finish(NOW)
    return classify(Incident("i", NOW, NOW, evidence=tuple(found)), rules=RULES, now=NOW).cause


@pytest.mark.parametrize("signal", [1, 2, 15])
def test_what_a_program_printed_long_before_its_launcher_was_signalled_did_not_end_it(signal: int) -> None:
    hint, worked = "FlashAttention is not installed.\n", "".join(f"loaded shard {n}\n" for n in range(60))
    end = SIGNALLED.format(signal)
    assert cause(hint + worked + end) is Cause.SCHEDULER_PREEMPT_OR_TIMELIMIT
    assert cause(f"{FULL}{worked}{end}") is Cause.APP_OOM_GPU  # a rank that raised may hang until somebody ends it
    failed = "E0308 01:50:04.100000 6290 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1)\n"
    assert cause(hint + worked + failed + end) is Cause.SOFTWARE_ENV  # a worker ended before
    handler = TRACEBACK.format("_terminate_process_handler", "return self._signals[sig]") + "KeyError: 30\n"
    assert cause(worked + end + handler) is Cause.SCHEDULER_PREEMPT_OR_TIMELIMIT
