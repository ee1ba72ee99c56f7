"""``dcgmi diag`` as JSON or as a table: evidence for each fault that it names of a GPU."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sentinel.config.convictions import Convictions, Remedy
from sentinel.evidence.diagnostic_codes import reading_of, severity_of
from sentinel.evidence.diagnostics import Finding, read_diagnostic
from sentinel.evidence.reports.dcgm_messages import API_FAILED, code_of
from sentinel.evidence.reports.page import MOST_TOLD, RULED, Page, Told, gpu_number, line_of
from sentinel.model.records import Kind, Scalar

_ROOTS = ("dcgm diagnostic", "dcgm gpu diagnostic")
_ROW = re.compile(r"^[^|\n]{0,120}\|([^|]{6,60})\|(.{6,400})\|\s{0,200}$")
_TELLING = ("warning", "error")
_STATUS = re.compile(r"^GPU ?(\d{1,5}): (Pass|Fail|Skip|Warn)\b", re.I)
_RESULT = re.compile(r"^(?:Pass|Fail|Skip|Warn)(?:\s{0,3}-\s{0,3}(?:All|GPUs?: [\d, ]{1,80}))?$", re.I)
_OF_GPUS = re.compile(r"^(?:Pass|Fail|Skip|Warn) - (?:All|GPUs?: [\d, ]{1,80})$")
_GPU = re.compile(r"\bGPU:? ?(\d{1,5})\b")
_NOT_RUN = re.compile(
    r"^(?:Error: )?(?:Error: )?(?:Unable to complete diagnostic\b.{0,2000}\bReturn: \(-\d{1,3}\)"
    r"|Diagnostic can only be performed on a homogeneous group|Diagnostic could not be run\b)"
)


def read_documents(page: Page, convictions: Convictions) -> None:
    """JSON of versions 1.7 to 4.6. What is cut or damaged stays text."""
    for first, last, document, text in page.documents():
        if not any(str(key).strip().lower() in _ROOTS for key in document):
            continue
        made = read_diagnostic(text.encode("utf-8", "replace"), 0, 1, convictions=convictions)
        page.silence(first, last)
        for finding in made.findings[:MOST_TOLD]:
            line = line_of(finding.text, text, first)
            told = _of_finding(line, finding, convictions)
            if told is not None:
                page.tell(told)
            elif "switch" in finding.entity_group and finding.code is not None:
                page.say(line, f"NVLink: {finding.text}"[:1000])
            elif finding.code in API_FAILED and finding.remedy is not Remedy.BUSY:
                page.say(line, f"GPU {finding.gpu} {finding.text}"[:1000], finding.gpu)
        explained = {finding.test for finding in made.findings}
        for name in [name for name, mark in made.tests.items() if mark == "fail" and name not in explained]:
            page.say(first, f"{name} | Fail")


def _of_finding(line: int, finding: Finding, convictions: Convictions) -> Told | None:
    gpu = finding.gpu
    if gpu is None and finding.entity_group in ("", "gpu"):
        gpu = _named(finding.text)  # by the system, or of several GPUs: the message says which
    return told_of(line, finding.test, gpu, finding.text, finding.code, finding.severity, convictions, finding.category)


def told_of(
    line: int,
    test: str,
    gpu: int | None,
    text: str,
    code: int | None,
    severity: int | None,
    convictions: Convictions,
    category: int | None = None,
) -> Told | None:
    """A message of a diagnostic; None where it names no GPU, is not known, or somebody else was on the GPU."""
    code = code_of(text) if code is None else code
    if gpu is None or code is None:
        return None
    severity = severity_of(code, severity)
    if code in API_FAILED or reading_of(convictions, code, severity, text).remedy is Remedy.BUSY:
        return None
    data: dict[str, Scalar] = {"code": code, "dcgm_severity": severity, "category": category, "test": test}
    return Told(line, str(Kind.DIAG_FAILED), text[:1000], gpu, data)


def _named(text: str) -> int | None:
    found = _GPU.search(text)
    return gpu_number(found[1]) if found else None


# ------------------------------------------------------------------------------------------------------ the table


@dataclass
class _Row:
    """A cell of the right column with the rows that continue it."""

    line: int
    left: str
    right: str
    test: str
    full: bool  # its last row is as wide as the cell: a word may go on in the next one


def read_tables(page: Page, convictions: Convictions) -> None:
    """The tables of versions 2 to 4. One with a failure that cannot be read stays text, its cells unfolded."""
    number = 0
    while number < len(page.lines):
        row = _ROW.match(page.lines[number])
        if row and (row[1].strip(), row[2].strip()) == ("Diagnostic", "Result"):
            number = _table(page, number, convictions)
        elif row and _OF_GPUS.match(row[2].strip()):
            number = _table(page, number - 1, convictions)  # a part of one, without its head
        elif _NOT_RUN.match(page.lines[number]):
            page.silence(number)
        number += 1


def _table(page: Page, first: int, convictions: Convictions) -> int:
    rows, last = _rows(page, first)
    failed: dict[str, _Row] = {}
    test, found, understood = "", [], set()
    for row in rows:
        low = row.left.lower()
        if low.startswith(_TELLING):
            gpu = _named(row.left) if _GPU.search(row.left) else _named(row.right)
            code = code_of(row.right)
            told = told_of(row.line, test, gpu, row.right, code, None, convictions)
            if told is not None:
                found.append(told)
            if code is not None or reading_of(convictions, None, None, row.right).remedy is Remedy.BUSY:
                understood.add(test)
        elif not low.startswith("info") and _RESULT.match(row.right):
            test = row.left
            if row.right.lower().startswith("fail"):
                failed[test] = row
    for told in found:
        page.tell(told)
    spoken = {row.line: row for row in rows if row.left.lower().startswith(_TELLING) and _of_api(row, convictions)}
    unread = {name: row for name, row in failed.items() if name not in understood}
    kept = {row.line: row for row in unread.values()}
    folded = {row.line: row for row in rows if row.test in unread and row.left.lower().startswith(_TELLING)} | spoken
    for line in range(max(first, 0), last + 1):
        if line in folded:
            page.say(line, folded[line].right, _named(folded[line].right))
        elif line in kept:
            page.say(line, f"| {kept[line].left} | {kept[line].right} |", _named(kept[line].right))
        else:
            page.silence(line)
    return last


def _of_api(row: _Row, convictions: Convictions) -> bool:
    """Whether the row says what CUDA answered, and not that somebody else was on the GPU."""
    busy = reading_of(convictions, None, None, row.right).remedy is Remedy.BUSY
    return not busy and code_of(row.right) in API_FAILED


def _rows(page: Page, first: int) -> tuple[list[_Row], int]:
    rows: list[_Row] = []
    test, number = "", first
    while number + 1 < len(page.lines):
        line = page.lines[number + 1]
        match = _ROW.match(line)
        if match is None and not RULED.match(line):
            break
        number += 1
        if match is None or match[1].startswith("--"):
            continue
        left, right = match[1].strip(), match[2].rstrip()
        right = right[1:] if right.startswith(" ") else right
        status, width = _RESULT.match(right.strip()), len(match[2]) - 3  # version 3 leaves two blanks at the end
        if not left and rows and not status and not _STATUS.match(right.strip()):
            last = rows[-1]
            last.right += right if last.full else f" {right.strip()}"
            last.full = len(right) >= width
            continue
        if status and left and not left.lower().startswith((*_TELLING, "info")):
            test = left
        if left or status:
            rows.append(_Row(number, left or test, right.strip(), test, len(right) >= width))
    return rows, number
