"""What ``dcgmi diag -j`` wrote → pass, fail or inconclusive. Pure.

Three answers, and only a positive reading gives the first two. *Pass*: exit status 0, every test of the level is there,
every GPU passed. *Fail*: a warning on a GPU names a fault of that GPU, or one on a switch or CPU a fault of that.
Everything else (truncated, busy, timed out, tests that are missing, a configuration that must be corrected first) is
*inconclusive* with its reason.

A status alone blames nobody: one bad GPU marks every GPU "Fail" in the test ``software``. Blame is where a warning is.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from sentinel.config.convictions import Convictions, Drain, Remedy
from sentinel.evidence.dcgm_messages import errors_in
from sentinel.evidence.diagnostic_codes import RETURN_CODES, severity_of
from sentinel.evidence.diagnostic_json import (
    gpus_of,
    items_of,
    lower,
    mark_of,
    plain,
    root_of,
    start_of,
    version_of,
    warning_of,
    warnings_in,
    whole,
)
from sentinel.model.records import Evidence, Kind, Source, Where, stable_id

_GPU = "gpu"
_PARTS = frozenset({"switch", "nvswitch", "cpu"})  # other parts of a node that DCGM tests
_MOST_PARTS, _MOST_FAULTS = 16, 4  # that a sentence names: as many GPUs as a machine has, and of each the first faults
MOST_FINDINGS = 2000  # that are kept of one answer: sixteen GPUs with several in every test have some hundred
_MOST_READ = 1 << 20  # characters of warnings that are read of one answer; each takes a microsecond
MOST_MESSAGE = 1 << 18  # characters that are read of one of them: one is no reason to leave the others unread
_LEAST_READ = 100  # characters that a warning counts for, however short it is
_MOST_TEXT = 1000  # of a finding. It is judged by what is kept: the daemon, which has no more of it, judges it again
_MOST_GPUS = 4096  # of one machine; a number that is none of these is damage, and blames nobody


class Answer(StrEnum):
    PASS = "pass"  # noqa: S105 - not a password
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"


# A fault's severity by what it asks for: in the evidence our reading stands beside DCGM's own.
_SEVERITY = {Remedy.REPLACE: 2, Remedy.REBOOT: 2, Remedy.RESET: 6, Remedy.INVESTIGATE: 4}

# Tests that must be there, by level, for version 4 (one plugin that is missing is silently left out) and 3.
_TESTS_4 = {
    1: {"software"},
    2: {"memory", "pcie"},
    3: {"diagnostic", "memorybandwidth", "targetedstress", "targetedpower"},
    4: {"memtest", "pulsetest"},
}
_TESTS_3 = {
    1: {"denylist", "nvmllibrary", "cudamainlibrary", "permissionsandosblocks", "persistencemode", "environmentvariables",
        "pageretirementrowremap", "graphicsprocesses", "inforom"},
    2: {"gpumemory", "pcie"},
    3: {"diagnostic", "targetedstress", "targetedpower"},
    4: {"memtest", "pulsetest"},
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Finding:
    """One warning. ``gpu`` is DCGM's id, None for one that speaks of another part or of the whole node."""

    test: str
    remedy: Remedy
    text: str
    gpu: int | None = None
    entity_group: str = ""
    entity: int | None = None
    code: int | None = None
    severity: int | None = None
    category: int | None = None
    missed_pct: float | None = None  # as in ``dcgm_messages``
    drain: Drain = Drain.NO

    @property
    def part(self) -> str:
        """The GPU, switch or CPU that it is about; empty when that is not known."""
        if self.gpu is not None:
            return f"GPU {self.gpu}"
        known = self.entity_group in _PARTS and self.entity is not None and 0 <= self.entity < _MOST_GPUS
        return f"{self.entity_group} {self.entity}" if known else ""

    @property
    def blames(self) -> bool:
        return self.remedy.is_fault and bool(self.part)

    @property
    def convicts(self) -> bool:
        """Proof against this part of the node by itself."""
        return self.drain is Drain.YES and bool(self.part)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    answer: Answer
    reason: str
    findings: tuple[Finding, ...] = ()
    tests: Mapping[str, str] = field(default_factory=dict)  # test → pass, skip, fail, mixed
    version: str = ""

    def to_json(self) -> dict[str, object]:
        return {
            "result": str(self.answer),
            "reason": self.reason,
            "findings": [
                {"test": f.test, "gpu": f.gpu, "entity_group": f.entity_group, "code": f.code, "severity": f.severity,
                 "remedy": str(f.remedy), "convicts": f.convicts, "text": f.text}
                for f in self.findings
            ],
            "tests": dict(self.tests),
            "version": self.version,
        }  # fmt: skip


def read_diagnostic(
    output: bytes,
    status: int,
    level: int,
    gpus: Collection[int] | None = None,
    *,
    convictions: Convictions,
) -> Diagnosis:
    """Judge one run.

    Args:
        output: stdout, with whatever other text is in it.
        status: exit status.
        level: 1 to 4.
        gpus: DCGM ids that had to be tested; None when that is not known (then every GPU in the answer must have passed).
        convictions: what each error code asks for and whether it convicts.
    """
    root = root_of(output)
    if root is None:
        reason = RETURN_CODES.get(status - 256, f"exit status {status}")
        return Diagnosis(Answer.INCONCLUSIVE, f"no JSON of a diagnostic in the output: {reason}")
    document, body, old = root
    if b"unable to establish a connection" in output:
        return Diagnosis(Answer.INCONCLUSIVE, "no host engine: dcgmi answered for one that it started inside itself")
    version = version_of(document, body)
    error = lower(body).get("runtime_error")
    if error is not None:
        return Diagnosis(Answer.INCONCLUSIVE, _runtime(str(error)), version=version)
    report = _Report(old, convictions, gpus)
    report.read(lower(body))
    findings = tuple(_kept(report.findings))
    tests = {name: _summary(marks) for name, marks in report.marks.items()}
    faults = [finding for finding in findings if finding.blames]
    if faults:
        # A fault that DCGM named stands, whatever else is missing from the answer.
        return Diagnosis(Answer.FAIL, _sentence(faults), findings, tests, version)
    if report.unread or len(findings) < len(report.findings):
        reason = f"the answer is too large: more than {MOST_FINDINGS} errors, or {_MOST_READ} characters of warnings"
        return Diagnosis(Answer.INCONCLUSIVE, reason, version=version)
    if not report.trouble and warnings_in(document) > report.warned:
        report.trouble = "there is a warning where none is known to be"
    trouble = report.trouble or _notes(findings) or _lacking(report, level, gpus) or _disagreement(status, tests)
    if not trouble:
        return Diagnosis(Answer.PASS, f"level {level} passed", findings, tests, version)
    watched = next((f"; {finding.text}" for finding in findings if finding.remedy is Remedy.WATCH), "")
    return Diagnosis(Answer.INCONCLUSIVE, f"{trouble}{watched}"[:800], findings, tests, version)


class _Report:
    """Collects marks and findings of one answer in either form."""

    def __init__(self, old: bool, convictions: Convictions, gpus: Collection[int] | None) -> None:
        self.old = old
        self._convictions = convictions
        self._gpus = gpus  # of the machine; None: not known
        self.marks: dict[str, list[tuple[int | None, str]]] = {}  # test → (GPU, mark)
        self.findings: list[Finding] = []
        self.trouble = ""  # why the answer cannot be trusted
        self.warned = 0  # lists of warnings that were read
        self.unread = False  # whether its warnings are more than what is read
        self._left = _MOST_READ

    def read(self, body: Mapping[str, Any]) -> None:
        categories = body.get("test_categories")
        if not isinstance(categories, list) or not categories:
            self.trouble = "the answer names no tests"
            return
        for category in categories:
            tests = lower(category).get("tests") if isinstance(category, dict) else None
            if not isinstance(tests, list):
                self.trouble = "a category of tests cannot be understood"
                continue
            for test in tests:
                self._test(test)

    def _test(self, test: object) -> None:
        if not isinstance(test, dict) or not isinstance(lower(test).get("name"), str):
            self.trouble = "a test without a name"
            return
        content = lower(test)
        name = plain(content["name"]).replace("blacklist", "denylist")  # its name until 2.2
        marks = self.marks.setdefault(name, [])
        results = content.get("results", [])
        if not isinstance(results, list) or not results:
            self.trouble = f"the results of {name} {'are missing' if results == [] else 'cannot be understood'}"
        if not isinstance(results, list):
            return
        said: set[tuple[object, str]] = set()
        for result in results:
            if not isinstance(result, dict):
                self.trouble = f"a result of {name} cannot be understood"
                continue
            marks.extend(self._result(name, lower(result), said))
        summary = content.get("test_summary")
        if "test_summary" in content and not isinstance(summary, dict):
            self.trouble = f"the summary of {name} cannot be understood"
        if isinstance(summary, dict):
            low = lower(summary)
            self.warned += bool(low.get("warnings"))
            for warning in items_of(low.get("warnings")):
                code, _, text = warning_of(warning)
                if (code, text) not in said:  # the summary repeats what was said of entities
                    self._find(name, None, "", None, warning)
            if mark_of(low.get("status")) not in ("pass", "skip") and not any(mark == "fail" for _, mark in marks):
                self.trouble = f"{name}: the summary says {low.get('status')!r}, the results do not"

    def _result(
        self, name: str, result: Mapping[str, Any], said: set[tuple[object, str]]
    ) -> list[tuple[int | None, str]]:
        group = str(result.get("entity_group", "GPU")).lower()
        entity, every = gpus_of(result)
        gpus = [number for number in every if group == _GPU and 0 <= number < _MOST_GPUS]
        self.warned += bool(result.get("warnings"))
        for warning in items_of(result.get("warnings")):
            code, _, text = warning_of(warning)
            said.add((code, text))
            self._find(name, gpus[0] if gpus and entity is not None else None, group, entity, warning)
        mark = mark_of(result.get("status"))
        if mark == "unknown":
            self.trouble = f"{name}: the status {result.get('status')!r:.60} is not known"
        return [(gpu, mark) for gpu in gpus] or [(None, mark)]

    def _find(self, name: str, gpu: int | None, group: str, entity: int | None, warning: object) -> None:
        code, severity, whole_text = warning_of(warning)
        text = start_of(whole_text, min(self._left, MOST_MESSAGE))
        self.unread = self.unread or self._left == 0 or len(text) < len(whole_text)
        if self._left == 0:
            return
        self._left = max(0, self._left - max(len(text), _LEAST_READ))
        category = whole(lower(warning).get("error_category")) if isinstance(warning, dict) else None
        # Level one of 3.x gives a result the GPU of its last error, and before 3.3 none: there the message names it.
        names_it = self.old and (gpu is None or name in _TESTS_3[1])
        for error in errors_in(code, text):
            number = severity_of(error.code, severity if error.code == code else None)
            kept = error.text[:_MOST_TEXT]
            reading = self._convictions.diagnostic(error.code, number, error.missed_pct, kept)
            self.findings.append(
                Finding(
                    test=name,
                    remedy=reading.remedy,
                    drain=reading.drain,
                    text=kept,
                    gpu=self._known(error.gpu) if names_it and error.gpu is not None else gpu,
                    entity_group=group,
                    entity=entity,
                    code=error.code,
                    severity=number,
                    category=category,
                    missed_pct=error.missed_pct,
                )
            )

    def _known(self, gpu: int) -> int | None:
        """The GPU that a message names; None where the machine has none of that number, which is damage."""
        there = gpu in self._gpus if self._gpus is not None else gpu < _MOST_GPUS
        return gpu if there else None


def evidence_of(diagnosis: Diagnosis, node: str, level: int, at: datetime, uuids: Mapping[int, str]) -> list[Evidence]:
    """What a diagnosis says to later stages; inconclusive is *unreadable*."""

    def made(kind: Kind, text: str, gpu: int | None, **data: Any) -> Evidence:
        # A message may tell of several errors, and two parts of a node may have the same one.
        told = data.get("code"), data.get("part")
        identity = stable_id("diagnostic", node, level, at.isoformat(), kind, gpu, text, *told)
        where = Where(node=node, gpu=gpu, gpu_uuid=uuids.get(gpu) if gpu is not None else None)
        return Evidence(
            id=identity, at=at, seen_at=at, source=Source.DIAGNOSTIC, kind=kind, where=where, text=text,
            data={"level": level, **data},
        )  # fmt: skip

    if diagnosis.answer is Answer.PASS:
        return [made(Kind.DIAG_PASSED, diagnosis.reason, None)]
    if diagnosis.answer is Answer.INCONCLUSIVE:
        return [made(Kind.UNREADABLE, f"diagnostic level {level}: {diagnosis.reason}", None)]
    return [
        made(Kind.DIAG_FAILED, finding.text, finding.gpu, code=finding.code, severity=_SEVERITY[finding.remedy],
             dcgm_severity=finding.severity, category=finding.category,
             remedy=str(finding.remedy), test=finding.test, convicts=finding.convicts, part=finding.part,
             missed_pct=finding.missed_pct)
        for finding in diagnosis.findings
        if finding.blames
    ]  # fmt: skip


# -------------------------------------------------------------------------------------------------------- the parts


def _lacking(report: _Report, level: int, gpus: Collection[int] | None) -> str:
    """What a pass would have needed and is not there."""
    table = _TESTS_3 if report.old else _TESTS_4
    wanted = set().union(*(table[number] for number in range(1, level + 1)))
    absent = sorted(wanted - set(report.marks))
    if absent:
        return f"tests are missing from the answer: {', '.join(absent)}"
    for name in sorted(wanted):
        marks = report.marks[name]
        if not any(mark == "pass" for _, mark in marks):
            return f"no GPU passed {name}: skipped or without result"
        passed = {gpu for gpu, mark in marks if mark == "pass"}
        seen = {gpu for gpu, _ in marks if gpu is not None}
        needed = set(gpus) if gpus is not None and not (report.old and seen == set()) else seen
        if needed - passed:
            return f"{name} has no pass for GPU {', '.join(map(str, sorted(needed - passed)))}"
    return ""


def _kept(findings: Sequence[Finding]) -> Sequence[Finding]:
    """At most ``MOST_FINDINGS``, in their order: faults before others, and of each part one before two of another."""
    if len(findings) <= MOST_FINDINGS:
        return findings
    before: Counter[tuple[bool, str]] = Counter()  # by conviction and part
    ranks = []
    for index, finding in enumerate(findings):
        ranks.append((not finding.blames, before[finding.convicts, finding.part], not finding.convicts, index))
        before[finding.convicts, finding.part] += 1
    return [findings[index] for index in sorted(rank[-1] for rank in sorted(ranks)[:MOST_FINDINGS])]


def _notes(findings: Sequence[Finding]) -> str:
    """Warnings that are no fault of a GPU and yet no pass."""
    notes = [finding for finding in findings if finding.remedy is not Remedy.WATCH]
    return "; ".join(f"{finding.remedy}: {finding.text}" for finding in notes[:3])[:500]


def _disagreement(status: int, tests: Mapping[str, str]) -> str:
    """Why this is no pass although every test is there."""
    failed = sorted(name for name, mark in tests.items() if mark not in ("pass", "skip"))
    if failed:
        return f"failed without a reason: {', '.join(failed)}"
    if status != 0:
        return f"exit status {status}: {RETURN_CODES.get(status - 256, 'not known')}"
    return ""


def _runtime(error: str) -> str:
    text = " ".join(error.split())[:400]
    if "MIG" in text:
        return f"not applicable: a GPU is in MIG mode ({text})"
    code = re.search(r"\((-\d+)\)", text)
    meaning = RETURN_CODES.get(int(code[1])) if code else None
    return f"{meaning}: {text}" if meaning else text


def _sentence(faults: Sequence[Finding]) -> str:
    """Names every part, also where another has many faults."""
    by_part: dict[str, dict[str, None]] = {}
    for fault in sorted(faults, key=lambda fault: not fault.convicts):  # why it is refused, before what is beside that
        by_part.setdefault(fault.part, {})[f"{fault.remedy} (error {fault.code} in {fault.test})"] = None
    told = [f"{part}: {', '.join([*said][:_MOST_FAULTS])}" for part, said in by_part.items()]
    return "; ".join([*told[:_MOST_PARTS], *([f"{len(told) - _MOST_PARTS} more"] if len(told) > _MOST_PARTS else [])])


def _summary(marks: Sequence[tuple[int | None, str]]) -> str:
    kinds = {mark for _, mark in marks}
    if kinds <= {"skip"}:
        return "skip"
    return "pass" if kinds <= {"pass", "skip"} else "fail"
