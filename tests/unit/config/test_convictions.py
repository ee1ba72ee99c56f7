"""What convicts a node: one table, which the agent's verdict, the hooks, the order of evidence and the classifier read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from shipped import shipped_rules

from sentinel.agent.health.verdict import VerdictKeeper
from sentinel.classify.readings import read
from sentinel.config.convictions import CONDITIONS, Convictions, Drain, Remedy
from sentinel.config.rules import Rules
from sentinel.config.rules_files import load_convictions, load_rules
from sentinel.config.rules_toml import parse_rules
from sentinel.daemon.ingest.priority import ConvictingEvidence
from sentinel.errors import FileError
from sentinel.evidence.dcgm import DcgmReader
from sentinel.evidence.gpu_samples import Gpu, Sample
from sentinel.model.records import Evidence, Kind, Source, Where, utc

AT = utc(1_900_000_000)
ROW = '[[conviction]]\nxid = 94\ndrain = "yes"\nsource = "this site"\n'
XIDS = [*range(1, 173), 999]
CODES = [(code, severity) for code in range(133) for severity in (0, 1, 2, 3, 4, 5, 6)]


def xid(number: int, **data: Any) -> Evidence:
    return Evidence("e", AT, AT, Source.KERNEL, Kind.XID, Where("n1"), data={"xid": number, **data})


def failed(code: int, severity: int) -> Evidence:
    data = {"code": code, "dcgm_severity": severity, "level": 1}
    return Evidence("e", AT, AT, Source.DIAGNOSTIC, Kind.DIAG_FAILED, Where("n1", gpu=3), data=data)


def agent_says(evidence: Evidence, convictions: Convictions, folder: Path) -> bool:
    keeper = VerdictKeeper(folder, folder, "boot", list, lambda: None, Rules(convictions=convictions))
    keeper.consider(evidence)
    return keeper.now().word == "BAD"


OURS = """
[[conviction]]
xid = [94, 13]
drain = "yes"
source = "this site"
[[conviction]]
xid = 79
drain = "no"
source = "this site"
[[conviction]]
dcgm = 80
drain = "no"
remedy = "watch"
source = "this site"
"""


@pytest.mark.parametrize("site", ["", OURS], ids=["shipped", "site"])
def test_all_who_ask_get_the_same_answer(tmp_path: Path, site: str) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "ours.toml").write_text(site)
    rules, hooks = load_rules(site=tmp_path / "site"), load_convictions(tmp_path / "site")
    assert rules.convictions == hooks
    first = ConvictingEvidence(rules)
    differ = []
    for index, item in enumerate([*map(xid, XIDS), *(failed(*pair) for pair in CODES)]):
        folder = tmp_path / str(index)
        folder.mkdir()
        reading = read(item, rules, rules.by_id())
        classifier = reading is not None and reading.drain is Drain.YES
        if not agent_says(item, hooks, folder) is first(item) is classifier is (hooks.of(item) is Drain.YES):
            differ.append(item.data)
    assert differ == []
    assert first(xid(94)) is bool(site) and first(xid(79)) is not bool(site)


def test_an_action_that_the_driver_asks_for_holds_until_it_asks_for_none(tmp_path: Path) -> None:
    keeper = VerdictKeeper(tmp_path, tmp_path, "boot", list, lambda: None, shipped_rules())
    keeper.consider(xid(154, action="reboot", pci="0000:3b:00"))
    assert keeper.now().line.split()[::2][:2] == ["BAD", "recovery_action"]
    keeper.consider(xid(154, action="none", pci="0000:5d:00"))
    assert keeper.now().word == "BAD", "another GPU's"
    keeper.consider(xid(154, action="none", pci="0000:3b:00"))
    assert keeper.now().word == "OK"


@pytest.mark.parametrize(("action", "holds"), [(1, True), (2, True), (3, False), (4, True), (6, True), (77, False)])
def test_a_recovery_action_convicts_by_the_table_and_an_unknown_one_does_not(action: int, holds: bool) -> None:
    reader = DcgmReader("n1", load_convictions())
    (found,) = reader.read(
        Sample(AT, "dcgm", (Gpu(0, "GPU-0", status=1, fields={1523: action}),), full=False, closed=True)
    )
    assert bool(reader.facts()) is holds
    assert (load_convictions().of(found) is Drain.YES) is holds


def test_a_sites_row_makes_a_condition_convict_or_not(tmp_path: Path) -> None:
    sample = Sample(AT, "dcgm", (Gpu(0, "GPU-0", status=1, fields={396: 1, 395: 1}),), full=False, closed=True)
    (tmp_path / "ours.toml").write_text(
        '[[conviction]]\ncondition = "row_remap_pending"\ndrain = "yes"\nsource = "this site"\n'
        '[[conviction]]\ncondition = "row_remap_failure"\ndrain = "advise"\nsource = "this site"\n'
    )
    for site, codes in ((None, ["row_remap_failure"]), (tmp_path, ["row_remap_pending"])):
        reader = DcgmReader("n1", load_convictions(site))
        reader.read(sample)
        assert [fact.code for fact in reader.facts()] == codes


def test_growth_that_a_site_lets_convict_is_remembered_by_the_agent(tmp_path: Path) -> None:
    (tmp_path / "ours.toml").write_text('[[conviction]]\ncondition = "ecc_dbe"\ndrain = "yes"\nsource = "this site"\n')
    grown = Evidence("e", AT, AT, Source.DCGM, "ecc_dbe", Where("n1", gpu=0), data={"field": 311})
    assert agent_says(grown, load_convictions(tmp_path), tmp_path)
    assert not agent_says(grown, load_convictions(), tmp_path / "ours.toml.d")


@pytest.mark.parametrize(
    ("change", "key", "line", "words"),
    [
        (("drain", "drains"), "drains", 3, "unknown key"),
        (('source = "this site"\n', ""), "source", 1, "missing"),
        (('"this site"', '" "'), "source", 4, "missing"),
        (('"yes"', '"maybe"'), "drain", 3, "none of"),
        (('drain = "yes"', ""), "drain", 1, "none of"),
        (("xid = 94", 'xid = "94"'), "xid", 2, "not a number"),
        (("xid = 94", "xid = []"), "xid", 2, "not a number"),
        (("xid = 94", ""), "drain", 3, "about one thing"),
        (("xid = 94", "xid = 94\ndcgm = 80"), "dcgm", 3, "about one thing"),
        (("xid = 94", 'condition = "gpu_lots"'), "condition", 2, "not known"),
        (("xid = 94", 'recovery_action = "pray"'), "recovery_action", 2, "not known"),
        (("xid = 94", "dcgm = 80"), "remedy", 1, "missing"),
        (("xid = 94", 'xid = 94\nremedy = "reset"'), "remedy", 3, "no meaning"),
        (("xid = 94", 'dcgm = 29\nremedy = "configure"'), "drain", 4, "no fault"),
        (("xid = 94", "xid = 94\nnear_pct = 5"), "near_pct", 3, "no meaning"),
        (("xid = 94", 'dcgm = 63\nremedy = "reset"\nnear_pct = 100'), "near_pct", 4, "no share"),
        (("xid = 94", 'dcgm = 63\nremedy = "reset"\nnear_pct = true'), "near_pct", 4, "no share"),
        (("xid = 94", 'dcgm = 63\nremedy = "reset"\nnear_pct = nan'), "near_pct", 4, "no share"),
        (("xid = 94", 'dcgm_words = "gpu"\nremedy = "reset"'), "dcgm_words", 2, "too short"),
        (("xid = 94", "dcgm_words = [7]"), "remedy", 1, "missing"),
        (("xid = 94", 'dcgm_words = "1: 2, 3/4"\nremedy = "reset"'), "dcgm_words", 2, "too short"),
        (("xid = 94", 'dcgm_words = [7]\nremedy = "reset"'), "dcgm_words", 2, "too short"),
        (("xid = 94", 'dcgm = 127\nremedy = "reset"\naction = "reset"'), "action", 4, "its row says"),
        (('xid = 94\ndrain = "yes"', 'dcgm = 127\nremedy = "reset"\naction = "pray"'), "action", 4, "not known"),
        (('xid = 94\ndrain = "yes"', 'xid = 154\naction = "reset"'), "action", 3, "no meaning"),
        (('xid = 94\ndrain = "yes"', 'dcgm = 127\nremedy = "watch"\naction = "reset"'), "action", 4, "no fault"),
    ],
)
def test_a_row_is_honoured_or_refused_with_its_line(change: tuple[str, str], key: str, line: int, words: str) -> None:
    with pytest.raises(FileError) as caught:
        parse_rules([("a.toml", ROW.replace(*change))])
    error = caught.value
    assert words in error.message and error.fix
    assert (error.key, error.line) == (key, line)


def test_a_row_twice_is_refused_and_a_site_may_override() -> None:
    with pytest.raises(FileError, match="listed twice"):
        parse_rules([("a.toml", ROW + ROW)])
    site = [("site.toml", ROW.replace('"yes"', '"no"'))]
    assert parse_rules([("a.toml", ROW)], site=site).convictions.xid(94) is Drain.NO


def test_an_xid_row_does_not_say_what_convicts() -> None:
    with pytest.raises(FileError, match=r"\[\[conviction\]\] with xid = 94") as caught:
        parse_rules([("a.toml", '[[xid]]\nnumber = 94\nname = "x"\ndrain = "yes"\n')])
    assert caught.value.line == 4


def test_keys_of_a_rule_that_nothing_reads_are_refused() -> None:
    rule = (
        "[[rule]]\nid = \"boiler\"\npattern = 'boiler \\d'\nweights = { user_code = 1.0 }\n"
        'match = ["boiler 1"]\nreject = ["boiler"]\n'
    )
    for key in ('restart = "hold"', 'note = "so it is"'):
        with pytest.raises(FileError, match="unknown key"):
            parse_rules([("a.toml", f"{rule}{key}\n")])


def test_what_is_shipped_names_a_source_and_conditions_that_are_read() -> None:
    rules = load_rules()
    rows = rules.convictions.rows
    assert all(row.source for row in rows.values())
    for number in (kind[1] for kind in rows if kind[0] == "xid"):
        assert number in rules.xids
    for name in CONDITIONS - {"gpu_health"}:
        item = Evidence("e", AT, AT, Source.DCGM, name, Where("n1"))
        assert read(item, rules, {}) is not None, f"{name}: no stage reads it"


def test_126_asks_for_a_reboot_80_for_another_board_125_for_a_reset() -> None:
    rows = load_convictions()
    found = [rows.diagnostic(code, severity) for code, severity in ((126, 2), (80, 6), (125, 6))]
    assert [row.remedy for row in found] == [Remedy.REBOOT, Remedy.REPLACE, Remedy.RESET]
    assert {row.drain for row in found} == {Drain.YES}


@pytest.mark.parametrize(
    ("code", "action"), [(125, "reset"), (126, "reboot"), (127, "drain_p2p"), (128, "drain_reset")]
)
def test_an_error_that_tells_a_recovery_action_convicts_as_that_action_does(
    tmp_path: Path, code: int, action: str
) -> None:
    """DCGM 4.5 and later tell one reading of the driver twice: as field 1523, and as an error of a diagnostic."""
    shipped = load_convictions()
    assert shipped.diagnostic(code, 6).drain is shipped.action(action)
    assert shipped.diagnostic(code, 6).remedy.is_fault
    (tmp_path / "ours.toml").write_text(
        f'[[conviction]]\nrecovery_action = "{action}"\ndrain = "suspect"\nsource = "this site"\n'
    )
    assert load_convictions(tmp_path).diagnostic(code, 6).drain is Drain.SUSPECT, "a site's row is for both"
    (tmp_path / "ours.toml").write_text(
        f'[[conviction]]\ndcgm = {code}\ndrain = "no"\nremedy = "watch"\nsource = "this site"\n'
    )
    assert load_convictions(tmp_path).diagnostic(code, 6).drain is Drain.NO


def test_words_of_a_message_outweigh_its_code_and_a_site_may_add_some(tmp_path: Path) -> None:
    text = "GPU 3 Error using CUDA API cuCtxCreate: All CUDA-capable devices are BUSY or unavailable"
    shipped = load_convictions()
    assert shipped.diagnostic(52, 2, text=text).remedy is Remedy.BUSY
    ours = "Found 12 faulty memory elements on GPU 3 while the vendor's burn-in ran"
    assert shipped.diagnostic(52, 2, text=ours).drain is Drain.YES
    (tmp_path / "ours.toml").write_text(
        '[[conviction]]\ndcgm_words = ["Burn-in ran", "busy or unavailable"]\ndrain = "no"\nremedy = "watch"\n'
        'source = "this site"\n'
    )
    for words in (ours, text):
        row = load_convictions(tmp_path).diagnostic(52, 2, text=words)
        assert (row.drain, row.remedy) == (Drain.NO, Remedy.WATCH)


def test_words_are_read_alike_where_the_diagnostic_is_read_and_where_its_evidence_is(tmp_path: Path) -> None:
    busy = replace(failed(52, 2), text="Found 12 faulty memory elements: out of memory")
    rules = load_rules()
    assert rules.convictions.of(busy) is Drain.NO
    assert not agent_says(busy, rules.convictions, tmp_path)
    reading = read(busy, rules, rules.by_id())
    assert reading is None or reading.drain is Drain.NO


def test_the_longest_words_in_a_message_count(tmp_path: Path) -> None:
    text = "Found 12 faulty memory elements: out of memory on a reserved GPU"
    assert load_convictions().diagnostic(52, 2, text=text).remedy is Remedy.BUSY
    ours = tmp_path / "ours.toml"
    row = '[[conviction]]\n{}\ndrain = "yes"\nremedy = "replace"\nsource = "this site"\n'
    ours.write_text(row.format('dcgm_words = "out of memory on a reserved GPU"'))
    assert load_convictions(tmp_path).diagnostic(52, 2, text=text).drain is Drain.YES
    ours.write_text(row.format("dcgm = 52"))
    assert load_convictions(tmp_path).diagnostic(52, 2, text=text).remedy is Remedy.BUSY, (
        "a code does not outweigh words"
    )
