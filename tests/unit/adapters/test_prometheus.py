"""A client of Prometheus that was closed: what is asked of it is not known, and no bug."""

from __future__ import annotations

import pytest
from made_records import AT
from servers.ports import free_ports

from sentinel.adapters.prometheus import Prometheus
from sentinel.config.settings import Prometheus as Settings
from sentinel.errors import Unavailable


@pytest.mark.parametrize("asked_before", [True, False])
async def test_a_query_after_the_end_is_answered_by_nobody(asked_before: bool) -> None:
    """As where an incident asks while the daemon stops."""
    (port,) = free_ports(1)
    prometheus = Prometheus(Settings(url=f"http://127.0.0.1:{port}"))
    if asked_before:
        with pytest.raises(Unavailable, match="cannot be reached"):
            await prometheus.range("up", AT, AT, 15.0)
    await prometheus.close()
    with pytest.raises(Unavailable, match="not asked any more"):
        await prometheus.range("up", AT, AT, 15.0)
