"""Reads every report in a file's text, and puts the evidence of both, lines and reports, together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

from sentinel.config.convictions import Convictions
from sentinel.evidence.reports import amd, dcgmi_views, diagnostic, metrics, nvidia_smi
from sentinel.evidence.reports.page import Page, Told
from sentinel.model.records import Evidence, Source, Trust, Where, stable_id

MOST_BYTES = 4 << 20  # of a file whose reports are read; a page of metrics of many GPUs has half a megabyte
# Without one of these words there is no report in it.
_WORDS = (
    b"DCGM", b"dcgm", b"Health Monitor Report", b"NVLINK Error Counts", b"Policy Information", b"gpuId ",
    b"physicalId ", b"Entity", b"# TYPE ", b"nvidia_smi_log", b"_bus_id", b"index,", b"uuid,", b"Uncorr. ECC",
    b"NVSMI LOG", b"dbecc", b"Double Bit", b"nvidia_smi_", b"Product Name", b" Link 0: ", b"RAS INFO",
    b"Diagnostic ", b"complete diagnostic", b" Pass - ", b" Fail - ",
)  # fmt: skip
_READERS: tuple[Callable[[Page], None], ...] = (
    dcgmi_views.read_health_documents,
    dcgmi_views.read_boxes,
    dcgmi_views.read_links,
    dcgmi_views.read_dmon,
    metrics.read_metrics,
    nvidia_smi.read_xml,
    nvidia_smi.read_list,
    nvidia_smi.read_queries,
    nvidia_smi.read_page,
    nvidia_smi.read_dmon,
    nvidia_smi.read_links,
    amd.read_ras,
)


@dataclass(frozen=True, slots=True)
class Reports:
    """What the reports of one file said."""

    told: tuple[Told, ...]
    gpus: dict[int, int]  # line (from 1) of a sentence → the GPU it is about


def in_sentences(data: bytes, convictions: Convictions) -> tuple[bytes, Reports]:
    """The text with as many lines, its reports in sentences, and what these say that is evidence as it is."""
    if len(data) > MOST_BYTES or not any(word in data for word in _WORDS):
        return data, Reports((), {})
    page = Page(data.decode("utf-8", "surrogateescape"))
    diagnostic.read_documents(page, convictions)
    diagnostic.read_tables(page, convictions)
    for reader in _READERS:
        reader(page)
    if not page.read and not page.told:
        return data, Reports((), {})
    text = "\n".join(page.lines).encode("utf-8", "surrogateescape")
    return text, Reports(tuple(page.told), {line + 1: gpu for line, gpu in page.gpus.items()})


def with_reports(
    found: list[Evidence], reports: Reports, source: Source, where: Where, now: datetime
) -> list[Evidence]:
    """The evidence of a file's lines, with the GPUs of sentences, and that of its reports."""
    made = [
        replace(item, where=replace(item.where, gpu=reports.gpus[item.line]))
        if item.line in reports.gpus and item.where.gpu is None
        else item
        for item in found
    ]
    for told in reports.told:
        # What was the last of its kind may be long over: no proof, whoever says so.
        trust = Trust.SYSTEM if source is Source.DCGM and not told.last_known else Trust.USER
        made.append(
            Evidence(
                id=stable_id(source, where.path, told.line, told.kind, told.gpu, told.text[:200]),
                at=now,
                seen_at=now,
                source=source,
                kind=told.kind,
                where=replace(where, gpu=told.gpu),
                text=told.text,
                line=told.line + 1,
                data=told.data,
                trust=trust,
            )
        )
    return made
