"""Says in a message that goes out late when it was written. Pure."""

from __future__ import annotations

import dataclasses
from datetime import datetime, timedelta

from sentinel.alerts.text import moment
from sentinel.model.records import Notice

_LATE = timedelta(minutes=10)  # what is told sooner is news
_TEXTS = (("owner_text", " "), ("operator_text", "\n"))  # the first is one paragraph


def with_age(notice: Notice, now: datetime) -> Notice:
    """The message as it is sent now: its texts begin with when it was written, if that is long ago."""
    age = now - notice.at
    if age < _LATE:
        return notice
    minutes = round(age.total_seconds() / 60)
    ago = f"{minutes / 60:.0f} h" if minutes >= 120 else f"{minutes} min"
    words = f"Written at {moment(notice.at)}, {ago} before it was sent."
    texts = {key: f"{words}{gap}{notice.data[key]}" for key, gap in _TEXTS if notice.data.get(key)}
    return dataclasses.replace(notice, body=f"{words}\n{notice.body}", data={**notice.data, **texts})
