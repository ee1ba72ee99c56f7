"""What programs, libraries, kernels and Slurm are known to print: each message, alone, gets a cause that an expert gives.

vocabulary.txt: causes that are right (``unknown`` among them where no cause is shown), a bar, the message; a backslash and n
part its lines. The last part is what a healthy job prints.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from shipped import shipped_rules, shipped_signatures

from sentinel.classify import classify
from sentinel.evidence.logs.reader import LogReader
from sentinel.model.records import Cause, Incident, Verdict

NOW = datetime(2026, 3, 4, tzinfo=UTC)
RULES = shipped_rules()
SIGNATURES = shipped_signatures()
OWN = {
    Cause.USER_CODE,
    Cause.USER_CONFIG,
    Cause.SOFTWARE_ENV,
    Cause.APP_OOM_GPU,
    Cause.APP_OOM_HOST,
    Cause.DATALOADER,
    Cause.COLLECTIVE_MISMATCH,
}


def messages() -> Iterator[tuple[str, str]]:
    for line in (Path(__file__).parent / "vocabulary.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            causes, message = line.split(" | ", 1)
            yield causes, message.replace("\\n", "\n")
            if "RuntimeError: CUDA error: " in message:  # ROCm prints the same sentences (hipGetErrorString)
                yield causes, message.replace("\\n", "\n").replace("CUDA error", "HIP error")
                # The macro of many CUDA programs: fprintf(stderr, "GPUassert: %s %s %d\n", cudaGetErrorString(code), ...)
                said = message.replace("\\n", "\n").replace("RuntimeError: CUDA error", "GPUassert")
                yield causes, re.sub(r"(?m)^(.*GPUassert.*)$", r"\1 sum.cu 12", said)
                # And what a CUDA program prints before the sentence when its author wrote the check.
                yield causes, message.replace("\\n", "\n").replace("RuntimeError: CUDA error", "sum.cu:12: cudaMemcpy")


def judge(message: str) -> Verdict:
    reader = LogReader(SIGNATURES, own_times=True)
    evidence = (*reader.feed(f"{message}\n".encode(), NOW), *reader.finish(NOW))
    return classify(Incident("message", NOW, NOW, evidence=evidence), rules=RULES, now=NOW)


@pytest.mark.parametrize(
    ("causes", "message"), list(messages()), ids=lambda value: value[:48] if " " in value else None
)
def test_a_message_has_its_cause_and_code_drains_nothing(causes: str, message: str) -> None:
    verdict = judge(message)
    assert verdict.cause.value in causes.split(","), verdict.grounds
    assert not (verdict.drain_recommended and verdict.cause in OWN)
    assert verdict.drain == ()  # a job's log alone convicts no node


def test_causes_are_the_taxonomy_s() -> None:
    assert {cause for causes, _ in messages() for cause in causes.split(",")} <= {cause.value for cause in Cause}
