"""Words that every match of a pattern holds: what the screen without a library looks for first.

Reads the part of regular expressions that rules may use (rules/README.md); what it does not understand yields no words.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

SHORTEST = 3  # a shorter word stands in almost every line
MOST = 64  # words of one group
# Words of lines that tell of no failure: a pattern is better looked for by what else it needs. One text, since a word that
# is part of an ordinary one ("inf" of "info") stands in the same lines.
ORDINARY = (
    "info warning debug time step iteration loss learning rate grad norm batch size samples data dataset loader worker "
    "shard file opened reading loaded loading saved saving checkpoint model layer tensor gradient optimizer memory "
    "device process thread training evaluation validation epoch tokens seconds elapsed throughput bandwidth pipeline "
    "stage buffer cache queue router expert attention forward backward compute interval allocated reserved global micro "
    "number total started finished completed using version config default path value list job rank node host group "
    "parameters initialized setting scheduler accuracy metric latency counter request response server client"
)
# Of a character in a mark, others have 2. The digits of a template are all 0.
_RARITY = {"0": 0.3, " ": 0.5, ".": 1.0, ",": 1.0, ":": 1.0, "-": 1.0, "/": 1.0, **dict.fromkeys("etaoinsr", 1.0)}
MOST_WAYS = 16  # of one pattern that are told apart
_GROUP_MARKS = ("?:", "?i:")


@dataclass(frozen=True, slots=True)
class Way:
    """One way in which a pattern can match. All words are in lower case."""

    pattern: str
    groups: tuple[tuple[bytes, ...], ...]  # groups of words, of each of which a match holds one, the best first
    mark: bytes  # a shorter piece of text that a match holds; empty where there is none
    first: bool  # a match begins where the line begins


def ways_of(pattern: str) -> tuple[Way, ...]:
    """The ways in which the pattern can match."""
    flag = "(?i)" if pattern.startswith("(?i)") else ""
    return tuple(_way(branch, flag + way) for branch, way in _ways(pattern.removeprefix("(?i)"), MOST_WAYS))


def _way(branch: str, pattern: str) -> Way:
    candidates = _candidates(branch, least=1)
    runs = [words[0] for words in candidates if len(set(words)) == 1]  # in a template codes are alike
    return Way(
        pattern,
        tuple(tuple(map(_lower, dict.fromkeys(words))) for words in _groups(candidates)),
        _lower(max(runs, key=_mark_rarity, default="")),
        pattern.removeprefix("(?i)").startswith("^"),
    )


def _ways(expression: str, most: int) -> Iterator[tuple[str, str]]:
    """The branches of an expression, also those of a group with which a branch begins, where it is all of it, or where the
    rest need not hold a telling word: ``(?:a|b)c`` is ``ac`` or ``bc``. Each as it is read for words, and as a pattern."""
    for branch in _branches(expression):
        group = item_at(branch, 0) if branch.startswith("(") else ""
        rest = branch[len(group) :]
        inner = _branches(_inside(group)) if group and not _quantifier(rest, 0) else []
        loose = group.startswith("(?i:")
        if inner and not rest:
            for words, way in _ways(_inside(group), most):
                yield words, f"(?i:{way})" if loose else way
        elif 1 < len(inner) <= most and not _telling(branch):
            for one in inner:
                if loose:
                    yield one + rest, f"(?i:{one}){rest}"
                else:
                    yield from _ways(one + rest, most // len(inner))
        else:
            yield branch, branch


def _telling(branch: str) -> bool:
    """Whether it holds a word that is no ordinary one."""
    groups = _groups(_candidates(branch))
    return bool(groups) and _rarity(groups[0])[0]


def _groups(candidates: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    return sorted(filter(_findable, candidates), key=_rarity, reverse=True)


def _lower(text: str) -> bytes:
    return text.lower().encode("ascii")


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
    return max(_candidates(branch), key=_quality, default=())


def _quality(words: tuple[str, ...]) -> tuple[int, int]:
    return min(*map(len, words), 8), -len(words)


def _mark_rarity(text: str) -> tuple[float, int]:
    """How seldom a mark may be expected to stand in a line."""
    return sum(_RARITY.get(char, 2.0) for char in text.lower()), len(text)


def _rarity(words: tuple[str, ...]) -> tuple[bool, tuple[int, int]]:
    return not any(word.strip().lower() in ORDINARY for word in words), _quality(words)


def _findable(words: tuple[str, ...]) -> bool:
    """Whether each word has a part without blanks that does not stand in almost every line."""
    return len(words) <= MOST and all(max(map(len, word.split()), default=0) >= SHORTEST for word in words)


def _candidates(branch: str, least: int = SHORTEST) -> list[tuple[str, ...]]:
    """Everything that must stand in it, of so many characters: runs of plain characters, and the words of groups."""
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
    return [words for words in candidates if words and min(map(len, words)) >= least]


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
