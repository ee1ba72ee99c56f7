"""Replaces the names of nodes, users, jobs, folders and addresses in a recording, each by the same pseudonym throughout.

What is replaced is what the recording itself names (nodes of evidence and attempts, users, job names) wherever it stands,
and what can be told by its form: absolute paths, URLs, IP and MAC addresses, e-mail addresses, domain names, GPU UUIDs. A
name that only a person recognises stays: ``Pseudonyms.kept`` counts the lines of users' logs in which one may be. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from sentinel.model.recording import Recording
from sentinel.model.records import Cause, Kind, Restart, Result, Scope, Source, StepKind, Trust

_FORMS = {
    "gpu": re.compile(r"\b(?:GPU|MIG)-[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b"),
    "url": re.compile(r"\b[a-z][a-z0-9+.-]{1,15}://[^\s'\"<>]{1,2048}"),
    "mail": re.compile(r"(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){0,6}"),
    # With the server before it, as NFS and rsync write it.
    "path": re.compile(r"(?<![\w.~/-])(?:[\w.-]{1,255}:)?~?/(?:[\w@%+=.,-]{1,255}/){0,40}[\w@%+=.,-]{1,255}/?"),
    "mac": re.compile(r"\b[0-9a-fA-F]{2}(?::[0-9a-fA-F]{2}){5,7}\b"),
    "address": re.compile(
        r"\b(?:\d{1,3}\.){3}\d{1,3}\b|\b(?:[0-9a-fA-F]{1,4}:){3,7}[0-9a-fA-F]{1,4}\b"
        r"|(?<![\w:])(?:[0-9a-fA-F]{1,4}:){1,6}(?::[0-9a-fA-F]{1,4}){1,6}(?![\w:])"
    ),
    "domain": re.compile(
        r"\b(?:[a-zA-Z][\w-]{0,62}\.){1,6}"
        r"(?:com|org|net|edu|gov|mil|int|io|ai|de|eu|uk|ch|fr|cn|jp|local|internal|lan)\b"
    ),
}  # fmt: skip
# Where system software lies: the same on every machine, and a rule may look for it.
_COMMON_PATHS = re.compile(r"^/(?:dev|proc|sys|usr|lib|lib64|bin|sbin|opt/(?:conda|nvidia|rocm)|etc/slurm|run)(?:/|$)")
_LIST = re.compile(r"(?<![\w.\[\]-])[\w.-]{1,64}(?:\[[\d,-]{1,4000}\][\w.-]{0,64}){1,8}")  # of nodes, as Slurm folds it
_SAFE_PARTS = re.compile(r"(?:site-packages|dist-packages)/(.*)$")  # which library failed is what a verdict goes by
_NAMED = frozenset({"by", "user", "name", "node", "partition"})  # keys whose values are nothing but a name
_VOCABULARY = frozenset(
    str(word.value) for words in (Cause, Kind, Restart, Result, Scope, Source, StepKind, Trust) for word in words
)
# Fields that hold words of ours and of the rules: a job that is called like a rule takes none of them away.
_CODES = frozenset({
    "id", "at", "seen_at", "source", "kind", "rule", "trust", "cause", "scope", "restart", "result", "refusal",
    "recommendation", "unknown_kind", "collective", "basis",
})  # fmt: skip
_LEAST_NAME = 2  # characters: a user called "a" would take the letter out of every line


class Pseudonyms:
    """Gives each name its pseudonym, in the order in which they are met: node0001, user0002, …"""

    def __init__(self, recording: Recording) -> None:
        self.kept = sum(item.trust is Trust.USER and bool(item.text) for item in recording.evidence)
        self._made: dict[tuple[str, str], str] = {}
        self._known = {name: self._of(kind, name) for kind, name in _names(recording)}
        # A user called "gpu" is replaced where users stand, and not in every text and every scope.
        sought = (name for name in self._known if len(name) >= _LEAST_NAME and name.lower() not in _VOCABULARY)
        names = sorted(sought, key=len, reverse=True)
        words = "|".join(map(re.escape, names))
        # With its domain, and as a part of a longer name (n1-ib0, ada_run2), but not within a word. Hosts have no case.
        self._names = (
            re.compile(rf"(?<![^\W_])(?:{words})(?:\.[a-zA-Z][\w-]*)*(?![^\W_])", re.IGNORECASE) if words else None
        )
        self._by_lower = {name.lower(): made for name, made in self._known.items()}
        nodes = [name for kind, name in _names(recording) if kind == "node"]
        self._lettered = {_letters(name) for name in nodes}
        domains = "|".join(sorted({re.escape(name.partition(".")[2]) for name in nodes if "." in name}))
        self._own_domain = re.compile(rf"(?<![\w.-])[\w-]{{1,63}}\.(?:{domains})(?![\w-])") if domains else None

    def __len__(self) -> int:
        return len(self._made)

    def line(self, value: Any) -> Any:
        """A JSON value with all names in its texts replaced; keys stay."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {key: self._field(key, item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.line(item) for item in value]
        return value

    def _field(self, key: str, value: Any) -> Any:
        if key in _CODES and isinstance(value, str):
            return value
        if key in _NAMED and isinstance(value, str) and value in self._known:
            return self._known[value]
        return self.line(value)

    def text(self, text: str) -> str:
        text = _LIST.sub(lambda found: self._list(found[0]), text)
        for kind in ("gpu", "url", "mail", "path"):
            text = self._replaced(kind, text)
        if self._names is not None:  # before domains: a node's name may carry one
            text = self._names.sub(lambda found: self._named(found[0]), text)
        if self._own_domain is not None:
            text = self._own_domain.sub(lambda found: self._of("domain", found[0]), text)
        for kind in ("mac", "address", "domain"):
            text = self._replaced(kind, text)
        return text

    def _list(self, found: str) -> str:
        """A folded list of nodes is told from an index in brackets by its letters, which are those of a node."""
        name = _letters(found)
        return self._of("nodes", found) if name in self._lettered or name.partition(".")[0] in self._lettered else found

    def _replaced(self, kind: str, text: str) -> str:
        return _FORMS[kind].sub(lambda found: self._form(kind, found[0]), text)

    def _named(self, found: str) -> str:
        name = found if found in self._known else found.partition(".")[0]
        return self._known.get(name) or self._by_lower.get(name.lower()) or self._of("domain", found)

    def _form(self, kind: str, found: str) -> str:
        if kind == "url":
            return f"{found.partition('://')[0]}://{self._of(kind, found)}"
        if kind != "path":
            return self._of(kind, found)
        if _COMMON_PATHS.match(found) or found in ("/", "~/"):
            return found
        library = _SAFE_PARTS.search(found)
        folder = found[: library.start()] if library else found
        return f"/{self._of('path', folder)}" + (f"/{library[0]}" if library else "")

    def _of(self, kind: str, name: str) -> str:
        return self._made.setdefault((kind, name), f"{kind}{len(self._made) + 1:04d}")


def _letters(name: str) -> str:
    """A node's name, or a folded list of them, without numbers: ``rack1n3`` and ``rack[1-2]n[1-4]`` are ``rackn``."""
    return re.sub(r"\[[\d,-]*\]|\d+", "", name).lower()


def _names(recording: Recording) -> Iterator[tuple[str, str]]:
    """Kind and name of what the recording names in fields of its own; a node comes before a user of the same name."""
    for item in recording.evidence:
        if item.where.node:
            yield "node", item.where.node
    for attempt in recording.attempts:
        yield from (("node", node) for node in attempt.nodes)
        yield from ((kind, name) for kind, name in (("user", attempt.user), ("job", attempt.name)) if name)
    for recorded in recording.incidents:
        yield from (("node", node) for node in recorded.incident.nodes)
        if recorded.user:
            yield "user", recorded.user
        yield from (("user", told.by) for told in recorded.corrections)
