"""Words of which every match of a pattern holds at least one: what the screen without a library looks for first.

Reads the part of regular expressions that rules may use (rules/README.md); what it does not understand yields no words.
"""

from __future__ import annotations

SHORTEST = 3  # a shorter word stands in almost every line
MOST = 64  # words of one pattern
_GROUP_MARKS = ("?:", "?i:")


def literals(pattern: str) -> tuple[tuple[bytes, ...], bool]:
    """The words, and whether they are folded to lower case; no words where a match need not hold any."""
    fold = "(?i" in pattern
    words = _of_alternatives(pattern.removeprefix("(?i)"))
    if not words or len(words) > MOST:
        return (), fold
    return tuple(dict.fromkeys((word.lower() if fold else word).encode("ascii") for word in words)), fold


def _of_alternatives(expression: str) -> tuple[str, ...]:
    """Words of all branches together; none if one branch has none."""
    words: list[str] = []
    for branch in _branches(expression):
        found = _of_branch(branch)
        if not found:
            return ()
        words.extend(found)
    return tuple(words)


def _of_branch(branch: str) -> tuple[str, ...]:
    """The best of what must stand in it: a run of plain characters, or the words of a group."""
    candidates: list[tuple[str, ...]] = []
    run = ""
    at = 0
    while at < len(branch):
        item, plain = item_at(branch, at), _plain(branch, at)
        at += len(item)
        quantifier = _quantifier(branch, at)
        at += len(quantifier)
        optional = quantifier.startswith(("?", "*", "{0"))
        if plain and not optional:
            run += plain
        elif item.startswith("(") and not optional:
            candidates.append(_of_alternatives(_inside(item)))
        if quantifier or not plain:  # what follows need not stand next to it
            candidates.append((run,))
            run = ""
    candidates.append((run,))
    usable = [words for words in candidates if words and min(map(len, words)) >= SHORTEST]
    return max(usable, key=lambda words: (min(*map(len, words), 8), -len(words)), default=())


def item_at(text: str, at: int) -> str:
    """One element of an expression: a character, an escape, a class or a whole group."""
    char = text[at]
    if char == "\\":
        return text[at : at + 2]
    if char == "[":
        return text[at : _class_end(text, at)]
    return text[at : _group_end(text, at)] if char == "(" else char


def _plain(text: str, at: int) -> str:
    """The character that the element at ``at`` stands for; empty where it is not a plain one."""
    char = text[at]
    if char == "\\":
        following = text[at + 1 : at + 2]
        return following if following and not following.isalnum() else ""
    return "" if char in "[(.^$" else char


def _quantifier(text: str, at: int) -> str:
    if text[at : at + 1] == "{":
        end = text.index("}", at) + 1
        return text[at : end + (text[end : end + 1] == "?")]
    if text[at : at + 1] in ("?", "*", "+"):
        return text[at : at + 1 + (text[at + 1 : at + 2] == "?")]
    return ""


def _inside(group: str) -> str:
    body = group[1:-1]
    for mark in _GROUP_MARKS:
        if body.startswith(mark):
            return body[len(mark) :]
    return body[body.index(">") + 1 :] if body.startswith("?P<") else body


def _branches(expression: str) -> list[str]:
    """The expression split at its top-level alternation."""
    parts: list[str] = []
    start = at = 0
    while at < len(expression):
        if expression[at] == "|":
            parts.append(expression[start:at])
            start = at = at + 1
        else:
            at += len(item_at(expression, at))
    return [*parts, expression[start:]]


def _class_end(text: str, at: int) -> int:
    i = at + 1 + (text[at + 1 : at + 2] == "^")
    i += text[i : i + 1] == "]"
    while i < len(text) and text[i] != "]":
        i += 2 if text[i] == "\\" else 1
    return i + 1


def _group_end(text: str, at: int) -> int:
    depth, i = 0, at
    while i < len(text):
        if text[i] == "\\":
            i += 2
            continue
        if text[i] == "[":
            i = _class_end(text, i)
            continue
        depth += (text[i] == "(") - (text[i] == ")")
        i += 1
        if depth == 0:
            return i
    return len(text)
