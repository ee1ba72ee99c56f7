"""Makes title and text of a message for one channel, from Sentinel's wording or the site's template.

A template is a text file: its first line is the title, the rest the text; ``${KEY}`` stands for a value (docs/webhooks.md),
``$$`` for a dollar sign. What is not known is shown as ``-``.
"""

from __future__ import annotations

import difflib
import string
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sentinel.errors import FileError
from sentinel.given_files import file_text
from sentinel.model.records import Notice
from sentinel.text import printable

# What a template may name: what stands in a webhook's JSON, and the text for the channel's audience.
KEYS = (
    "text", "title", "link", "incident", "at", "cluster", "severity", "stage", "partition", "job", "attempt", "user",
    "cause", "scope", "confidence", "nodes", "gpus", "ranks", "drained", "suspect", "restart", "refusal", "last_step",
    "resumed_step", "resumed_tier", "owner_text", "operator_text",
)  # fmt: skip
_MOST = 4000  # characters of a text


@dataclass(frozen=True, slots=True)
class Wording:
    audience: str  # "operators" or "owners"
    link: str = ""  # address of an incident's page; {incident} stands for its id
    template: str = ""  # empty: Sentinel's own words

    def link_of(self, notice: Notice) -> str:
        return self.link.replace("{incident}", notice.incident) if self.link and notice.incident else ""

    def of(self, notice: Notice) -> tuple[str, str]:
        """Title (one line) and text, not escaped for any service."""
        title, text = notice.title, self._text(notice)
        if self.template:
            shown = string.Template(self.template).safe_substitute(self._values(notice, text))
            title, _, text = shown.partition("\n")
        title, text = printable(title), printable(text, keep="\n")
        return title.strip()[:200] or "Sentinel", text.strip("\n")[:_MOST]

    def _text(self, notice: Notice) -> str:
        key = "owner_text" if self.audience == "owners" else "operator_text"
        return str(notice.data.get(key) or notice.body)

    def _values(self, notice: Notice, text: str) -> Mapping[str, str]:
        values = {key: _shown(notice.data.get(key)) for key in KEYS}
        own = {"text": text, "title": notice.title, "link": self.link_of(notice) or "-", "incident": notice.incident}
        # Only our own texts have several lines: a name forges none of them.
        said = {
            key: printable(value, keep="\n" if key.endswith("text") else "") for key, value in {**values, **own}.items()
        }
        return {**said, "at": f"{notice.at:%Y-%m-%d %H:%M:%S} UTC"}


def template_of(path: Path) -> str:
    """The text of a template.

    Raises:
        FileError: unreadable, or a key that is not known.
    """
    text = file_text(path, fix="name another template, or leave it out")
    for number, line in enumerate(text.splitlines(), 1):
        template = string.Template(line)
        if not template.is_valid():
            raise FileError(path, "a $ that names nothing", line=number, fix="write ${KEY}, or $$ for a dollar sign")
        for key in template.get_identifiers():
            if key not in KEYS:
                near = difflib.get_close_matches(key, KEYS, 1)
                fix = f"did you mean ${{{near[0]}}}?" if near else f"known here: {', '.join(KEYS)}"
                raise FileError(path, "unknown key", line=number, key=key, fix=fix)
    if not text.strip():
        raise FileError(path, "the template is empty", fix="first line: title; the rest: text")
    return text


def _shown(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value)) or "-"
    return "-" if value in (None, "") else str(value)
