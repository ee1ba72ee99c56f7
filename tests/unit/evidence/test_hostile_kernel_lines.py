"""No name that a user chooses is a fault: draining rules against every line of the kernel's in which such names stand."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nodes.hostile_lines import COMM, INNOCENT, SHAPES, Shape, draining, escaped, words_of
from shipped import shipped_rules

from sentinel.adapters.hyperscan import best_screen
from sentinel.classify import classify
from sentinel.config.rules import OWN_LOG, Form
from sentinel.evidence.kernel import read_message
from sentinel.evidence.logs.machine_logs import kernel_line
from sentinel.evidence.logs.reader import LogReader, Signatures
from sentinel.model.records import Evidence, Incident, Kind, Source, Trust, Where

NOW = datetime(2026, 3, 4, tzinfo=UTC)
RULES = shipped_rules()
SIGNATURES = Signatures(RULES, best_screen)
HERE = Where(node="n7")
BY_ID = RULES.by_id()
KERNEL_RULES = draining(RULES, Source.KERNEL)


def of_text(line: str, source: Source = Source.KERNEL) -> list[Evidence]:
    reader = LogReader(SIGNATURES, source=source, where=HERE)
    return reader.feed(line.encode("utf-8", "surrogateescape") + b"\n", NOW) + reader.finish(NOW)


def of_record(message: str) -> list[Evidence]:
    """As the agent reads /dev/kmsg."""
    line = kernel_line(f"4,1,5000000,-;{escaped(message)}")
    return read_message(SIGNATURES, line, at=NOW, now=NOW, where=HERE, boot="b")


def of_journal(message: str) -> list[Evidence]:
    """As the agent reads journald, which undoes the escapes of /dev/kmsg."""
    return read_message(SIGNATURES, kernel_line(f"4,1,5000000,-;{message}"), at=NOW, now=NOW, where=HERE, boot="b")


READERS = {
    "kmsg": of_record,
    "journald": of_journal,
    "dmesg": lambda message: of_text(f"[  812.500000] {message}"),
    "syslog": lambda message: of_text(f"Mar  4 05:06:07 n7 kernel: [  812.500000] {message}"),
}


def convicting(evidence: Iterable[Evidence]) -> set[tuple[str, object]]:
    """What the machine itself is held to say against a node: rules, and what an Xid's line adds to its number."""
    said = set()
    for item in evidence:
        if item.trust is Trust.SYSTEM and BY_ID[item.rule or ""].convicts:
            data = (
                (item.data.get("xid"), item.data.get("fatal"), item.data.get("action")) if item.kind == Kind.XID else ()
            )
            said.add((item.rule or "", data))
    return said


@cache
def usual(reader: str, shape: Shape) -> frozenset[tuple[str, object]]:
    """What the same line convicts by with a harmless name: a lock-up is one whoever ran."""
    return frozenset(convicting(READERS[reader](shape.line(INNOCENT))))


def drained(evidence: list[Evidence]) -> tuple[str, ...]:
    return classify(Incident("i", NOW, NOW, nodes=("n7",), evidence=tuple(evidence)), rules=RULES, now=NOW).drain


@cache
def known(reader: str, shape: Shape) -> frozenset[str | None]:
    """The rules that know the same line with a harmless name."""
    return frozenset(item.rule for item in READERS[reader](shape.line(INNOCENT)))


# A program that crashes says so by its own crash, whatever it is called, and loads a library of any name.
OWN_CRASH = {"segfault-library", "segfault-kernel", "trap-kernel"}


@pytest.mark.parametrize(
    "rule",
    [rule for rule in RULES.rules if rule in KERNEL_RULES or OWN_LOG.get(rule.form) is Source.KERNEL],
    ids=lambda rule: rule.id,
)
def test_words_of_no_rule_are_read_in_a_name(rule, pytestconfig: pytest.Config) -> None:
    """They would drain the node, or open an incident about its job and use up what the job's user is told in an hour.

    A rule's examples are tried in every line. Of its other names, parts of these, each line gets every fifth: each name is
    tried in a fifth of the lines, and all in all of them with --deep.
    """
    names = sorted(set(words_of(rule)))
    assert names
    every = 1 if pytestconfig.getoption("--deep") else 5
    for number, shape in enumerate(SHAPES):
        tried = {shape.line(name) for name in (*rule.match, *names[number % every :: every])}
        # All lines at once: the screen has to find what a look at each of them would.
        lines = suspicious(sorted(tried))
        for reader in ("kmsg", "dmesg") if rule in KERNEL_RULES else ("kmsg",):
            for line in lines:
                found = READERS[reader](line)
                assert convicting(found) <= usual(reader, shape), (reader, line)
                assert {item.rule for item in found} <= known(reader, shape) | OWN_CRASH, (reader, line)


def test_a_program_called_like_an_oops_drains_nothing() -> None:
    """Found as an attack: 15 bytes were a whole oops, and an obsolete socket prints first the name of who asks for it."""
    for name in (
        "Oops: 0000 [#1]",
        "NVRM: Xid (): 8",
        "BTRFS critical",
        "JBD2: error",
        "I/O error, dev ",
        "mpt3sas: dead",
    ):
        for form in ("{} uses obsolete (PF_INET,SOCK_PACKET)", "{}: potentially unexpected fatal signal 11."):
            found = of_record(form.replace("{}", name))
            assert found == [] and drained(found) == (), name


def suspicious(lines: list[str]) -> list[str]:
    """Those that any rule may know at all."""
    encoded = [line.replace("\n", " ").encode("utf-8", "surrogateescape") for line in lines]
    line_ends = list(itertools.accumulate(len(line) + 1 for line in encoded))
    ends = {end for _, end in SIGNATURES.screen.scan(b"".join(line + b"\n" for line in encoded))}
    return [lines[place] for place in sorted({bisect.bisect_left(line_ends, end) for end in ends})]


def test_a_program_called_like_a_lost_gpu_drains_nothing() -> None:
    """Found as an attack: anybody could drain any node that he had a job on."""
    for name in (
        "GPU_IS_LOST",
        "kernel BUG at",
        "hard LOCKUP",
        "UE memory",
        "AER: Fatal",
        "LOCAL_CATAS",
        "NVRM: Xid (PCI",
    ):
        assert len(name) <= COMM
        for shape in SHAPES:
            for reader, read in READERS.items():
                found = read(shape.line(name))
                assert convicting(found) <= usual(reader, shape), (reader, shape.line(name))
                assert drained(found) == drained(read(shape.line(INNOCENT)))


# What an attacker would put together: words of rules, ends of lines, prefixes, and what closes the fields of the shapes.
FRAGMENTS = st.sampled_from(
    [
        *sorted({word[:60] for rule in KERNEL_RULES for word in rule.match}),
        "\n", "\r", "\x1b[0m", "\x1b]", "\\x0a", "\u00e9", "\udc80", ", ", ": ", "):", "IN= OUT= ", " SRC=1 DST=", "<3>",
        ":7 blocked for more than 9", "[    1.000000] ", "kernel: ", "n7 kernel: ", "Mar  4 05:06:07 n7 kernel: ",
        "3,9,9,-;",
        "NVRM: ", "Fatal", ", fatal", " pid 7", ", pid=7", ", mode:0x", "mce: [Hardware Error]: ", "{1}[Hardware Error]: ",
    ]
)  # fmt: skip
NAMES = st.one_of(st.lists(FRAGMENTS, min_size=1, max_size=4).map("".join), st.text(max_size=40))


@settings(max_examples=600, deadline=None)
@given(name=NAMES, shape=st.sampled_from(SHAPES), reader=st.sampled_from(["kmsg", "journald"]))
def test_made_up_names_convict_in_no_record(name: str, shape: Shape, reader: str) -> None:
    found = READERS[reader](shape.line(name.replace("\0", "")))
    assert convicting(found) <= usual(reader, shape)


@settings(max_examples=600, deadline=None)
@given(name=NAMES, shape=st.sampled_from(SHAPES), reader=st.sampled_from(["dmesg", "syslog"]))
def test_made_up_names_convict_in_no_line_of_a_file(name: str, shape: Shape, reader: str) -> None:
    """A line end within a long name begins a new line of a text file, which nothing tells from a message of its own."""
    found = READERS[reader](shape.line(name.replace("\n", " ").replace("\0", "")))
    assert convicting(found) <= usual(reader, shape)


@pytest.mark.parametrize("rule", KERNEL_RULES, ids=lambda rule: rule.id)
def test_a_line_end_in_a_programs_name_begins_no_message_that_convicts(rule) -> None:
    """15 bytes are too few for any anchor and what follows it."""
    # As much of each name as the kernel takes: many words begin alike.
    names = {f"{before}\n{word}"[:COMM] for word in words_of(rule) for before in ("", "a")}
    for form in (shape for shape in SHAPES if shape.limit == COMM and not shape.interface):
        lines = {f"[  812.500000] {line}" for name in names for line in form.line(name).split("\n")[1:]}
        for line in suspicious(sorted(lines)):
            assert convicting(of_text(line)) <= usual("dmesg", form), line


WRITTEN_BY_OTHERS = (
    "Mar  4 05:06:07 n7 alice[123]: {}",
    "Mar  4 05:06:07 n7 alice: {}",
    "Mar  4 05:06:07 n7 kernel[123]: {}",
    "2026-03-04T05:06:07.123456+00:00 n7 python3[9]: {}",
    "2026-03-04 05:06:07 n7 user.name[9]: [  812.500000] {}",
    "<14>Mar  4 05:06:07 n7 kernel: {}",
    "<12>[  812.500000] {}",
    "2026-03-04T05:06:07.123+00:00 <12> {}",
    "12,1,5000000,-;{}",
    "user  :warn  : [  812.500000] {}",
    "n7 alice[123]: {}",
    "alice: {}",
    "alice[123]: kernel: {}",
)


@pytest.mark.parametrize("rule", KERNEL_RULES, ids=lambda rule: rule.id)
def test_what_user_space_wrote_is_not_the_kernels_word(rule) -> None:
    for example in rule.match:
        for form in WRITTEN_BY_OTHERS:
            found = of_text(form.replace("{}", example))
            assert all(item.trust is Trust.USER for item in found), form
            assert drained(found) == ()


OF_ANY_USER = {"nvrm-api-mismatch", "bond-without-link"}  # what the kernel says of a user's own library or interface
PREFIXES = (
    "[  812.500000] ", "[  812.500000][ T4711] ", "[Wed Mar  4 05:06:07 2026] ", "<3>[  812.500000] ",
    "kern  :err   : [  812.500000] ", "3,1,5000000,-;", "3,1,5000000,-,caller=T7;", "2026-03-04T05:06:07,123456+00:00 ",
    "Mar  4 05:06:07 n7 kernel: ", "Mar 04 05:06:07.123456 n7 kernel: ", "Mar  4 05:06:07 n7 kernel: [  812.500000] ",
    "2026-03-04T05:06:07+0000 n7 kernel: ", "2026-03-04T05:06:07.123456+00:00 n7 kernel: [  812.500000] ",
    "[  812.500000] n7 kernel: ", "1772600767.123456 n7 kernel: ", "Wed 2026-03-04 05:06:07 UTC n7 kernel: ",
    "<3>Mar  4 05:06:07 n7 kernel: ", "\x1b[32m[  812.500000] \x1b[0m", "2026-03-04T05:06:07.123+00:00 <3> ",
)  # fmt: skip


@pytest.mark.parametrize("rule", KERNEL_RULES, ids=lambda rule: rule.id)
def test_what_the_kernel_says_is_read_behind_every_prefix(rule) -> None:
    """One example at least of each rule is a message as the kernel prints it; whose word it is says no prefix."""
    messages = [kernel_line(example).text for example in rule.match]
    trust = Trust.USER if rule.id in OF_ANY_USER else Trust.SYSTEM
    known = [m for m in messages if rule.id in {i.rule for i in of_record(m) if i.trust is trust}]
    assert known, rule.id
    for message in known:
        for before in PREFIXES:
            found = [item for item in of_text(before + message) if item.rule == rule.id]
            assert [item.trust for item in found] == [trust], before + message


CLAIMS = (
    "Mar  4 05:06:07 n7 alice[1]: {}",
    "execve(): /home/{}: No such file or directory",
    "couldn't chdir to `{}': x",
)


@pytest.mark.parametrize("source", [Source.SLURM, Source.DCGM])
def test_rules_of_the_other_logs_are_anchored_too(source: Source) -> None:
    rules = draining(RULES, source)
    assert len(rules) >= 10
    for rule in rules:
        heard = [item for line in rule.match for item in of_text(line, source) if item.rule == rule.id]
        assert any(item.trust is Trust.SYSTEM for item in heard), rule.id
        for line in rule.match:
            for form in CLAIMS:
                found = of_text(form.replace("{}", line), source)
                assert convicting(found) == set(), line
                assert drained(found) == ()


def test_every_rule_that_can_drain_is_anchored_or_read_in_no_log_of_the_machine() -> None:
    assert len(KERNEL_RULES) > 35
    bare = {rule.form for rule in RULES.rules if rule.convicts and not rule.anchors}
    assert bare == {Form.PROGRAM, Form.TOOL}
