"""Names that copying leaves behind: no framework reads a file under such a name, whatever is in it.

A browser, a desktop or a mount for cloud storage names the second copy of a file itself; people and editors set an old one
aside; a transfer that was killed leaves its temporary file.
"""

from __future__ import annotations

import re
from collections.abc import Collection

_DUPLICATES = (
    re.compile(
        r"(?P<stem>.+?)(?: - Copy| copy(?: \d+)?| \((?:copy|another copy|\d+\w* copy)\))?(?: \(\d+\))(?P<end>(?:\.\w+)*)"
    ),
    re.compile(r"(?P<stem>.+?)(?: - Copy| copy(?: \d+)?| \((?:copy|another copy|\d+\w* copy)\))(?P<end>(?:\.\w+)*)"),
    re.compile(r"Copy of (?P<stem>.+?)(?P<end>(?:\.\w+)*)"),
)
_SET_ASIDE = (
    re.compile(r"(?P<stem>.+)(?:~|\.(?:bak|orig|old|save|backup)\d*|\.~\d+~)"),
    re.compile(r"(?P<stem>.+?)(?:\.[0-9a-z]{8})?(?:\.(?:part|partial|filepart|crdownload|tmp|temp|download)|_\.gstmp)"),
    re.compile(r"(?P<stem>.+)\.[0-9A-Fa-f]{8}"),  # aws s3 cp
    re.compile(r"(?P<stem>.+)\.\d{1,2}"),  # wget, logrotate
    re.compile(r"\.(?P<stem>.+)\.[0-9A-Za-z]{6}"),  # rsync
)
# What states are kept in: of other files a copy says nothing.
_STATE = re.compile(
    r".+\.(?:pt|pth|bin|ckpt|pkl|tar|safetensors|distcp|msgpack)|(?:trainer_state|metadata|integrity)\.json|.*\.index\.json"
)


_CONDEMNED = r"corrupt|corrupted|broken|damaged|torn|bad|failed|deleted|trash"
# A save that its writer had not renamed yet, or that a person condemned. Words inside of a name are the run's own.
_NOT_FOR_USE = re.compile(
    r"[._]*(?:tmp|temporary|incomplete)[-_.](?![0-9]).*"
    r"|.*\d.*[-_.](?:tmp|temp|temporary|partial|incomplete|unfinished|uncommitted|inprogress|in[-_]progress|writing"
    rf"|{_CONDEMNED})[-_.]*",
    re.IGNORECASE,
)
_SAVES = r"(?:ckpts?|checkpoints?|saves?|steps?)"
# Where a program puts saves that it deletes later (Orbax's todelete_subdir), or a person those that are not to be used.
# A folder for temporary files is none: a run may well lie there.
_FOLDER_NOT_FOR_USE = re.compile(
    rf"[._]*(?:{_SAVES}[-_. ]?)?(?:{_CONDEMNED}|garbage|junk|removed|invalid|discarded|quarantined?|incomplete|unfinished"
    rf"|to[-_. ]?(?:be[-_. ]?)?deleted?)(?:[-_. ]?{_SAVES})?[-_.]*"
    rf"|.*\d.*[-_.](?:{_CONDEMNED})[-_.]*",
    re.IGNORECASE,
)
_AFTER_SUFFIX = re.compile(r"(?P<stem>.+\.(?:pt|pth|bin|ckpt|tar))\.(?P<rank>0|[1-9]\d{0,5})")
_ENDING = re.compile(r"(?:\.(?:pt|pth|ckpt|bin|tar|safetensors|msgpack))+$")


def is_not_for_use(name: str) -> bool:
    """Whether the name of a save says that it is not finished, or was set aside as damaged."""
    return _NOT_FOR_USE.fullmatch(_ENDING.sub("", name)) is not None


def holds_none_for_use(name: str) -> bool:
    """Whether the name of a folder says that the saves in it were deleted, or set aside as damaged."""
    return _FOLDER_NOT_FOR_USE.fullmatch(name) is not None


def duplicate_of(name: str) -> str | None:
    """The name of the file of which this is another copy that a desktop or browser named; None for other names."""
    return _original(name, _DUPLICATES)


def set_aside_from(name: str) -> str | None:
    """The name under which a file would be read that was set aside, or whose transfer did not end."""
    return _original(name, _SET_ASIDE)


def ranks_files(names: Collection[str]) -> set[str]:
    """Torch files that are numbered from 0 on after their suffix (``state.pt.0``), two or more: a rank's each.

    Those beside a file of that name without a number are copies of it.
    """
    sets: dict[str, dict[int, str]] = {}
    for name in names:
        match = _AFTER_SUFFIX.fullmatch(name)
        if match and match["stem"] not in names:
            sets.setdefault(match["stem"], {})[int(match["rank"])] = name
    whole = (files for files in sets.values() if 1 < len(files) == max(files) + 1)
    return {name for files in whole for name in files.values()}


def _original(name: str, patterns: tuple[re.Pattern[str], ...]) -> str | None:
    for pattern in patterns:
        match = pattern.fullmatch(name)
        original = match["stem"] + (match.groupdict().get("end") or "") if match else ""
        if match and _STATE.fullmatch(original):
            return original
    return None
