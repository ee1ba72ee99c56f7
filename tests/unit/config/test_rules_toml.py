"""Rule files are read strictly: what is wrong is named with file, line, key and fix."""

from __future__ import annotations

import pytest

from sentinel.config.rules import Drain, Role
from sentinel.config.rules_files import load_rules, rules_folder
from sentinel.config.rules_toml import JUDGED, parse_rules
from sentinel.errors import FileError
from sentinel.model.records import Cause, Source

GOOD = """
[[rule]]
id = "boiler"
pattern = 'boiler pressure \\d{1,4}'
weights = { node_os_or_host = 2.0, user_code = -1.0 }
match = ["the boiler pressure 12 is odd"]
reject = ["boiler pressure unknown"]
"""


def test_a_rule_becomes_a_record() -> None:
    rule = parse_rules([("a.toml", GOOD)]).rules[0]
    assert (rule.id, rule.role, rule.drain, rule.line) == ("boiler", Role.CAUSE, Drain.NO, 2)
    assert rule.weights == {Cause.NODE_OS_OR_HOST: 2.0, Cause.USER_CODE: -1.0}


@pytest.mark.parametrize(
    ("change", "key", "line", "words"),
    [
        (("reject =", "rejects ="), "rejects", 7, "unknown key"),
        (("'boiler pressure \\d{1,4}'", "'boiler ('"), "pattern", 4, "bad regular expression"),
        (("'boiler pressure \\d{1,4}'", "'boiler.* pressure \\d{1,4}'"), "pattern", 4, "unbounded"),
        (("'boiler pressure \\d{1,4}'", "'(?=boiler) pressure'"), "pattern", 4, "look-around"),
        (("'boiler pressure \\d{1,4}'", "'(b+)+ pressure'"), "pattern", 4, "repeated group"),
        (("'boiler pressure \\d{1,4}'", "'boiler (?:[\\w/]|\\w\\w)+ pressure'"), "pattern", 4, "ever more ways"),
        (("'boiler pressure \\d{1,4}'", "'boiler (?:a+b?)+ pressure'"), "pattern", 4, "ever more ways"),
        (('id = "boiler"', "id = \"boiler\"\ncapture = '(?:a|aa)+ x'"), "capture", 4, "ever more ways"),
        (("'boiler pressure \\d{1,4}'", "'\\w+\\s?\\w+\\s?\\w+ pressure'"), "pattern", 4, "share out"),
        (("'boiler pressure \\d{1,4}'", "'boiler [^\\n]{0,200}\\S{0,200}.{0,200}!'"), "pattern", 4, "share out"),
        (("'boiler pressure \\d{1,4}'", "'(boiler) \\1'"), "pattern", 4, "back-references"),
        (("'boiler pressure \\d{1,4}'", "'boiler\\x20pressure'"), "pattern", 4, "characters by number"),
        (("'boiler pressure \\d{1,4}'", "'boiler pressure \\061'"), "pattern", 4, "characters by number"),
        (("'boiler pressure \\d{1,4}'", "'boiler\\N{SPACE}pressure'"), "pattern", 4, "characters by number"),
        (("'boiler pressure \\d{1,4}'", "'boiler {bad'"), "pattern", 4, "a brace that counts nothing"),
        (("'boiler pressure \\d{1,4}'", "'boiler pressure \\d{,4}'"), "pattern", 4, "a brace that counts nothing"),
        (("'boiler pressure \\d{1,4}'", "'b?'"), "pattern", 4, "empty line"),
        (("'boiler pressure \\d{1,4}'", "'boiler (?P<steam>x)'"), "pattern", 4, "unknown group"),
        (('match = ["the boiler pressure 12 is odd"]\n', ""), "match", 2, "missing examples"),
        (('reject = ["boiler pressure unknown"]', "reject = []"), "reject", 7, "missing examples"),
        (("the boiler pressure 12 is odd", "the kettle"), "match", 6, "does not match"),
        (("boiler pressure unknown", "boiler pressure 7"), "reject", 7, "matches"),
        (("node_os_or_host", "the_host"), "weights", 5, "none of"),
        (("2.0", "20.0"), "weights", 5, "not a number from -8 to 8"),
        (("user_code", "unknown"), "weights", 5, "no line speaks for unknown"),
        (('id = "boiler"', 'id = "Boiler!"'), "id", 3, "not an id"),
        (('id = "boiler"', 'id = "boiler"\nkind = "diag_passed"'), "kind", 4, "no line of a log says it"),
        (('id = "boiler"', 'id = "stall"'), "kind", 2, "no line of a log says it"),
        (("[[rule]]", "[[rules]]"), "rules", 2, "unknown table"),
        (("reject = [", "reject = ["), "", None, ""),
    ],
)
def test_what_is_wrong_is_named(change: tuple[str, str], key: str, line: int | None, words: str) -> None:
    text = GOOD.replace(*change)
    if not words:
        assert parse_rules([("a.toml", text)]).rules
        return
    with pytest.raises(FileError) as caught:
        parse_rules([("a.toml", text)])
    error = caught.value
    assert words in error.message
    assert (error.key, error.line) == (key, line)
    assert error.fix


ANCHORED = """
[[rule]]
id = "boiler"
pattern = 'boiler pressure \\d{1,4}'
form = "kernel"
anchor.kernel = 'boiler\\d: '
weights = { node_os_or_host = 2.0 }
drain = "yes"
match = ["boiler7: boiler pressure 12 is odd"]
reject = ["boiler pressure unknown"]
"""


BY_XID = "anchor.kernel = 'boiler\\d: '\nweights = { node_os_or_host = 2.0 }\ndrain = \"yes\""


def test_an_anchor_says_how_a_message_begins() -> None:
    rule = parse_rules([("a.toml", ANCHORED)]).rules[0]
    assert (rule.convicts, rule.anchors) == (True, {Source.KERNEL: r"(?:boiler\d: )"})
    several = "anchor.kernel = ['boiler\\d: ', 'kettle ']\nanchor.slurm = 'boiler'"
    both = ANCHORED.replace("anchor.kernel = 'boiler\\d: '", several)
    assert parse_rules([("a.toml", both)]).rules[0].anchors == {
        Source.KERNEL: r"(?:boiler\d: )|(?:kettle )", Source.SLURM: "(?:boiler)",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("change", "key", "line", "words"),
    [
        (("anchor.kernel = 'boiler\\d: '\n", ""), "anchor", 2, "can drain a node"),
        (("anchor.kernel", "anchor.slurm"), "anchor", 2, "can drain a node"),
        (('drain = "yes"', 'kind = "xid"'), "", None, ""),
        ((BY_XID, 'kind = "xid"'), "anchor", 2, "can drain"),
        (("anchor.kernel", "anchor.journal"), "anchor", 2, "not anchors by log"),
        (("anchor.kernel = 'boiler\\d: '", "anchor = 'boiler'"), "anchor", 6, "not anchors by log"),
        (("'boiler\\d: '", "[]"), "anchor.kernel", 6, "empty"),
        (("'boiler\\d: '", "7"), "anchor.kernel", 6, "missing"),
        (("'boiler\\d: '", "'boiler.*'"), "anchor.kernel", 6, "unbounded"),
        (("'boiler\\d: '", "'(?i)boiler'"), "anchor.kernel", 6, "named groups"),
        (("'boiler\\d: '", "'(?P<pid>boiler)'"), "anchor.kernel", 6, "named groups"),
        (("'boiler\\d: '", "'\\S{1,40}'"), "anchor.kernel", 6, "begins with a name"),
        (("'boiler\\d: '", "'[^\\n]{0,80}boiler|\\w{1,16}\\['"), "anchor.kernel", 6, "begins with a name"),
        (("'boiler\\d: '", "'kettle'"), "anchor.kernel", 6, "no example"),
        (('"boiler7: boiler', '"Mar  4 05:06:07 n7 alice[1]: boiler7: boiler'), "anchor.kernel", 6, "no example"),
        (('form = "kernel"\nanchor.kernel = \'boiler\\d: \'', 'form = "program"'), "", None, ""),
        (('form = "kernel"\nanchor.kernel = \'boiler\\d: \'', 'form = "fabric"'), "anchor", 2, "kernel log"),
        (('form = "kernel"\nanchor.kernel = \'boiler\\d: \'', 'form = "slurm"'), "anchor", 2, "slurm log"),
    ],
)  # fmt: skip
def test_a_rule_that_can_drain_is_anchored_a_sites_too(
    change: tuple[str, str], key: str, line: int | None, words: str
) -> None:
    text = ANCHORED.replace(*change)
    assert text != ANCHORED
    if not words:
        assert parse_rules([], site=[("site.toml", text)]).rules
        return
    with pytest.raises(FileError) as caught:
        parse_rules([], site=[("site.toml", text)])
    error = caught.value
    assert words in error.message and error.fix
    assert (error.key, error.line) == (key, line)


def test_broken_toml_names_the_line() -> None:
    with pytest.raises(FileError) as caught:
        parse_rules([("a.toml", "[[rule]]\nid = \n")])
    assert caught.value.line == 2


def test_a_second_rule_with_the_same_id_is_refused_but_a_site_may_override() -> None:
    with pytest.raises(FileError, match=r"'boiler' is listed twice, first in a.toml:2"):
        parse_rules([("a.toml", GOOD), ("b.toml", GOOD)])
    changed = GOOD.replace("2.0", "3.5")
    rules = parse_rules([("a.toml", GOOD)], site=[("site.toml", changed)])
    assert [rule.weights[Cause.NODE_OS_OR_HOST] for rule in rules.rules] == [3.5]


def test_a_site_overrides_one_xid() -> None:
    site = '[[xid]]\nnumber = 94\nname = "contained, and ours for this site"\ncause = "gpu_memory_ecc"\nweight = 5.0\n'
    folder = sorted(rules_folder().glob("*.toml"))
    rules = parse_rules([(str(path), path.read_text()) for path in folder], site=[("site.toml", site)])
    assert (rules.xids[94].weight, rules.xids[95].name) == (5.0, load_rules().xids[95].name)


def test_the_shipped_rules_hold_their_examples_and_every_number_is_there() -> None:
    rules = load_rules(try_shipped=True)
    assert sorted(rules.xids) == list(range(1, 173))
    assert {cause for cause in Cause if cause is not Cause.UNKNOWN} == set(rules.causes)
    assert len(rules.rules) > 150
    single = {number for number in rules.xids if rules.convictions.xid(number) is Drain.YES}
    assert single == {48, 64, 79, 95, 140, 143}
    for number in (13, 31, 43, 69, 45):
        assert rules.convictions.xid(number) is Drain.NO
    assert rules.xids[45].role is Role.CONSEQUENCE


def test_no_rule_for_an_application_cause_asks_for_a_drain() -> None:
    application = {Cause.USER_CODE, Cause.USER_CONFIG, Cause.APP_OOM_GPU, Cause.APP_OOM_HOST, Cause.COLLECTIVE_MISMATCH}
    for rule in load_rules().rules:
        best = max(rule.weights, key=lambda cause: rule.weights[cause], default=None)
        assert not (best in application and rule.drain is not Drain.NO), rule.id


def test_a_missing_folder_is_an_error_with_a_fix(tmp_path) -> None:
    with pytest.raises(FileError) as caught:
        load_rules([tmp_path / "nothing"])
    assert caught.value.fix


ROWS = {
    "rule": GOOD,
    "xid": '[[xid]]\nnumber = 94\nname = "contained"\n',
    "cause": '[[cause]]\nid = "user_code"\n',
    "conviction": '[[conviction]]\nxid = 94\ndrain = "no"\nsource = "us"\n',
    "return": '[[return]]\ncause = "other"\ntests = [1]\nsource = "us"\n',
}


NUMBERS = {
    **{f"judgement.{key}": ("\n[judgement]\nKEY = VALUE\n", 3) for key in JUDGED},
    "xid.weight": ("[[xid]]\nnumber = 94\nname = 'contained'\nKEY = VALUE\n", 4),
    "cause.prior": ("[[cause]]\nid = 'user_code'\nKEY = VALUE\n", 3),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_is_one_and_within_its_bounds(name: str) -> None:
    text, line = NUMBERS[name]
    key = name.rpartition(".")[2]
    for value in ("nan", "inf", "-inf", "1e400", str(10**400), "1e308", "true", '"1"'):
        with pytest.raises(FileError, match="not a number") as caught:
            parse_rules([], site=[("site.toml", text.replace("KEY", key).replace("VALUE", value))])
        assert (caught.value.key, caught.value.line) == (key, line) and "give a number from" in caught.value.fix


def test_no_verdict_is_divided_by_zero_and_no_share_is_above_all() -> None:
    for wrong in ("temperature = 0", "drain_above = 1.01", "unknown_below = 7", "single_line = -0.1"):
        with pytest.raises(FileError, match="not a number"):
            parse_rules([], site=[("site.toml", f"[judgement]\n{wrong}\n")])


@pytest.mark.parametrize("table", ROWS)
def test_two_rows_about_one_thing_in_a_sites_file_are_refused(table: str) -> None:
    text = ROWS[table].lstrip()
    with pytest.raises(FileError, match=r"is listed twice, first in site.toml:1") as caught:
        parse_rules([], site=[("site.toml", f"{text}\n{text}")])
    assert caught.value.line is not None and caught.value.line > len(text.splitlines())
    assert caught.value.key and caught.value.fix


@pytest.mark.parametrize("table", ROWS)
def test_what_a_sites_row_replaces_is_told(table: str) -> None:
    text = ROWS[table].lstrip()
    rules = parse_rules([("a.toml", text)], site=[("site.toml", f"# ours\n{text}"), ("z.toml", text)])
    told = [(row.table, row.file, row.line, row.before, row.before_line) for row in rules.replaced]
    assert told == [(table, "site.toml", 2, "a.toml", 1), (table, "z.toml", 1, "site.toml", 2)]
