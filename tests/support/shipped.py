"""The shipped rules, read and compiled once for all tests of a process: they are frozen, and readers share signatures."""

from __future__ import annotations

from functools import cache

from sentinel.config.rules import Rules
from sentinel.config.rules_files import load_rules
from sentinel.evidence.logs.reader import Signatures


@cache
def shipped_rules() -> Rules:
    return load_rules()


@cache
def shipped_signatures() -> Signatures:
    return Signatures(shipped_rules())
