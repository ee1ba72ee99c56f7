"""What a late message says beside its own words: when it was written, and what only those before it said. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import datetime, timedelta

from sentinel.alerts.text import moment
from sentinel.model.records import Notice

_LATE = timedelta(minutes=10)  # what is told sooner is news
STANDS = "stands"  # in the data of a message: sentences that hold on, and that later ones of its thread do not repeat
_TEXTS = (("owner_text", " "), ("operator_text", "\n"))  # the first is one paragraph


def as_sent(notice: Notice, of: Sequence[Notice], now: datetime) -> Notice:
    """The message as it is sent now.

    Args:
        of: the messages that it tells of: earlier ones of its thread are sent no more. A digest has said what stands.
    """
    return _with_age(with_what_stands(notice, [one for one in of if one.thread == notice.thread]), now)


def standing(of: Sequence[Notice]) -> list[str]:
    """The sentences of these messages that hold on, each once."""
    found = [one.data.get(STANDS) for one in of]
    return list(dict.fromkeys(str(words) for kept in found if isinstance(kept, (list, tuple)) for words in kept))


def with_what_stands(notice: Notice, of: Sequence[Notice]) -> Notice:
    """The message with what messages of its thread said that holds on."""
    for words in standing(of):
        texts = {
            key: f"{notice.data[key]}{gap}{words}"
            for key, gap in _TEXTS
            if notice.data.get(key) and words not in str(notice.data[key])
        }
        body = notice.body if words in notice.body else f"{notice.body}\n{words}"
        notice = dataclasses.replace(notice, body=body, data={**notice.data, **texts})
    return notice


def _with_age(notice: Notice, now: datetime) -> Notice:
    """Its texts begin with when it was written, if that is long ago."""
    age = now - notice.at
    if age < _LATE:
        return notice
    minutes = round(age.total_seconds() / 60)
    ago = f"{minutes / 60:.0f} h" if minutes >= 120 else f"{minutes} min"
    words = f"Written at {moment(notice.at)}, {ago} before it was sent."
    texts = {key: f"{words}{gap}{notice.data[key]}" for key, gap in _TEXTS if notice.data.get(key)}
    return dataclasses.replace(notice, body=f"{words}\n{notice.body}", data={**notice.data, **texts})
