"""Escapes text for a chat service, so that a user's program cannot forge links, mentions or markup.

Addresses lose what makes them one (``https[:]//``), mentions their sign (``＠``), and references to
characters (``&commat;``, which Markdown reads as ``@``) theirs (``＆``); characters that a service reads
as markup are escaped as that service documents it.
"""

from __future__ import annotations

import re
from enum import StrEnum


class Markup(StrEnum):
    """How a service reads text."""

    PLAIN = "plain"  # also Slack, whose three control characters Apprise escapes
    MARKDOWN = "markdown"  # Discord, Mattermost, Teams, Matrix


# "https://x" and "mailto:x" become links in most clients, some find the former within a word; so does "www.x" in some.
_BEGIN = r"(?<![^\W_])"  # of a word; an underscore is markup, and no part of it
_LINKS = re.compile(rf"{_BEGIN}(mailto|tel|xmpp|javascript|data|slack|msteams|file):", re.IGNORECASE)
_WWW = re.compile(rf"{_BEGIN}www\.", re.IGNORECASE)
_REFERENCE = re.compile(r"&(?=[#A-Za-z])")
_MARKDOWN = re.compile(r"([\\`*_~|\[\]<>#!])")
_LINE_START = re.compile(r"(?m)^(\s*)([-+=])")  # lists and underlined headings


def escaped(text: str, markup: Markup) -> str:
    """``text`` escaped so that the service shows it literally. Line breaks stay."""
    text = text.replace("://", "[:]//")
    text = _LINKS.sub(r"\1[:]", text)
    text = _WWW.sub("www[.]", text)
    text = _REFERENCE.sub("＆", text.replace("@", "＠"))
    if markup is Markup.PLAIN:
        return text.replace("<", "‹").replace(">", "›")  # services hand text on to others, which may read these
    text = _MARKDOWN.sub(r"\\\1", text)
    return _LINE_START.sub(r"\1\\\2", text)
