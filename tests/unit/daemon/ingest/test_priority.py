"""What goes first: evidence that convicts its node by itself."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from made_records import evidence
from shipped import shipped_rules

from sentinel.daemon.ingest.priority import ConvictingEvidence
from sentinel.model.records import Kind, Scalar, Source, Trust


@pytest.mark.parametrize(
    ("data", "source", "trust", "convicts"),
    [
        ({"xid": 79}, Source.KERNEL, Trust.SYSTEM, True),
        ({"xid": 79}, Source.JOB_LOG, Trust.USER, False),  # a program may print it
        ({"xid": 43}, Source.KERNEL, Trust.SYSTEM, False),  # the program's own doing
        ({"xid": "79"}, Source.KERNEL, Trust.SYSTEM, False),
    ],
)
def test_hard_is_what_the_rules_convict_by_one_trusted_line(
    data: Mapping[str, Scalar], source: Source, trust: Trust, convicts: bool
) -> None:
    item = evidence(Kind.XID, source=source, trust=trust, node="n1", data=data)
    assert ConvictingEvidence(shipped_rules())(item) is convicts
