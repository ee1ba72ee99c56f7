"""``sentinel plan`` as people and programs call it: answers, origins of inputs, refusals and their exit status."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from sentinel.cli import main


@pytest.fixture
def run(monkeypatch, capsys):
    """(exit status, stdout, stderr) of ``sentinel plan ...``."""

    def call(*arguments: str, width: int = 100) -> tuple[int, str, str]:
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setattr(sys, "argv", ["sentinel", "plan", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return call


@pytest.fixture
def answer(run):
    """The JSON of an answer; the command must succeed and print one line."""

    def call(*arguments: str) -> dict:
        status, out, err = run(*arguments, "--json")
        assert (status, err) == (0, ""), err
        assert out.count("\n") == 1
        document = json.loads(out)
        assert "inputs" in document and "warnings" in document
        return document

    return call


def test_interval(answer) -> None:
    found = answer("interval", "--mtbf", "3.09h", "--save", "90s")
    assert found["interval_s"] == pytest.approx(1355.67, abs=0.01)
    assert found["overhead_fraction"] == pytest.approx(0.13878, abs=1e-5)
    assert found["young_interval_s"] == pytest.approx(1415.03, abs=0.01)
    assert found["half_interval_extra_fraction"] > 0.03 < found["double_interval_extra_fraction"]
    assert len(found["curve"]) == 33
    assert found["inputs"]["mtbf_s"] == {"value": 11124.0, "source": "given", "text": "3.09h"}
    assert found["inputs"]["restart_s"]["source"] == "defaulted"


def test_interval_with_restart_and_ones_own(answer) -> None:
    found = answer("interval", "--mtbf", "11135.1s", "--save", "90s", "--restart", "10min", "--interval", "1h")
    assert found["wall_per_work"] == pytest.approx(1.20175, abs=1e-5)
    assert found["interval_s"] == pytest.approx(1356.4, abs=0.05)
    assert found["asked_interval_s"] == 3600
    assert found["asked_extra_fraction"] == pytest.approx(found["asked_overhead_fraction"] - found["overhead_fraction"])


def test_interval_of_two_tiers(answer) -> None:
    found = answer(
        *("interval", "--mtbf", "11135.1s", "--save", "2min", "--restart", "15min"),
        *("--local-save", "10s", "--local-restart", "3min", "--local-share", "90%"),
    )
    assert found["saves_per_global"] == 10
    assert found["local_interval_s"] == pytest.approx(477.8, abs=0.1)
    assert found["global_interval_s"] == pytest.approx(10 * found["local_interval_s"])
    assert found["two_level_overhead_fraction"] == pytest.approx(0.115, rel=0.02)
    assert found["two_level"]["first_order_local_interval_s"] == pytest.approx(496.1, abs=0.1)


def test_bandwidth(answer) -> None:
    found = answer("bandwidth", "--parameters", "405B", "--interval", "15min", "--overlap", "0.1")
    assert found["checkpoint_bytes"] == 5.67e12
    assert found["bandwidth_bytes_per_s"] == pytest.approx(63e9)
    assert any("631 GB/s" in note and "63 GB/s" in note for note in found["notes"])
    assert found["inputs"]["bytes_per_parameter"]["source"] == "defaulted"
    assert answer("bandwidth", "--parameters", "500B", "--interval", "1h")["checkpoint_bytes"] == 7e12
    blocking = answer("bandwidth", "--parameters", "175B", "--interval", "1h", "--blocking")
    assert blocking["write_window_s"] == pytest.approx(180)
    assert blocking["bandwidth_bytes_per_s"] == pytest.approx(13.6e9, rel=0.002)
    often = answer("bandwidth", "--checkpoint", "5TB", "--interval", "6.2min")
    assert often["saves_per_day"] == pytest.approx(233, rel=0.005)
    assert often["average_bandwidth_bytes_per_s"] == pytest.approx(13.4e9, rel=0.01)


def test_bandwidth_of_a_measured_run(answer) -> None:
    found = answer("bandwidth", "--parameters", "800B", "--interval", "40min", "--save", "3.6min")
    assert found["measured_overlap_fraction"] == pytest.approx(0.09)
    assert found["within_limit"] is True
    alone = answer("bandwidth", "--interval", "40min", "--save", "3.6min", "--blocking")
    assert alone["overlap_fraction"] == pytest.approx(0.09)
    assert alone["within_limit"] is False


def test_bandwidth_with_an_offer_and_drives(answer) -> None:
    found = answer(
        *("bandwidth", "--parameters", "405B", "--interval", "15min", "--bandwidth", "2TB/s"),
        *("--nodes", "1024", "--drive-capacity", "30.7TB", "--local-copies", "2", "--local-interval", "5min"),
    )
    assert found["offered_is_enough"] is True
    assert found["offered_save_s"] == pytest.approx(2.835)
    assert found["drive_writes_per_day"] == pytest.approx(5.67e12 / 1024 * 2 * 288 / 30.7e12)
    assert found["drive_within_rating"] is True


def test_fleet(answer) -> None:
    found = answer("fleet", "--gpus", "16384", "--gpu-mtbf", "50000h", "--days", "54")
    assert found["mtbf_s"] == pytest.approx(10986.3, abs=0.1)
    assert found["interruptions_expected"] == pytest.approx(424.7, abs=0.05)
    assert (found["interruptions_low"], found["interruptions_high"]) == (385, 466)
    assert sum(row["interruptions_expected"] for row in found["by_cause"]) == pytest.approx(424.7, abs=0.05)
    assert "Llama 3" in found["causes_source"]
    assert answer("fleet", "--gpus", "1,024", "--gpu-mtbf", "50000h")["mtbf_s"] / 3600 == pytest.approx(48.8, abs=0.05)
    assert answer("fleet", "--gpus", "100000", "--gpu-mtbf", "50000h")["mtbf_s"] == pytest.approx(1800)


def test_fleet_from_a_count(answer) -> None:
    found = answer("fleet", "--gpus", "16384", "--interruptions", "419", "--days", "54")
    assert found["mtbf_s"] / 3600 == pytest.approx(3.093, abs=5e-4)
    assert found["gpu_mtbf_s"] / 3600 == pytest.approx(50677, abs=1)
    assert found["mtbf_low_s"] < found["mtbf_s"] < found["mtbf_high_s"]
    assert found["failures_per_1000_node_days"] == pytest.approx(3.789, abs=1e-3)


def test_fleet_saves_a_day(answer) -> None:
    found = answer(
        *("fleet", "--gpus", "24000", "--mtbf", "124min", "--checkpoints-between-failures", "20"),
        *("--checkpoint", "5TB", "--goodput", "95%"),
    )
    assert found["interval_s"] == pytest.approx(372)
    assert found["saves_per_day"] == pytest.approx(233, rel=0.005)
    assert found["bytes_per_day"] == pytest.approx(1.16e15, rel=0.005)
    assert found["goodput_at_20_free_fraction"] == pytest.approx(0.975, abs=5e-4)
    assert any("folklore" in note for note in found["notes"])


def test_a_wish_out_of_reach_is_said_with_the_way_out(answer) -> None:
    found = answer("fleet", "--mtbf", "3h", "--goodput", "95%", "--save", "90s", "--restart", "1min")
    assert found["checkpoints_between_failures"] is None
    assert any("no number of saves reaches 95 %" in w and "or less" in w for w in found["warnings"])


def test_spares_names_the_reservation_in_a_command_that_can_be_copied(run, answer) -> None:
    asked = ("spares", "--nodes", "2048", "--node-mtbf", "6250h", "--repair", "24h", "--wait", "10min")
    command = answer(*asked)["reservation_command"]
    assert f"\n  {command}\n" in re.sub(r" \\\n +", " ", run(*asked, width=80)[1])
    none = answer("spares", "--nodes", "2", "--node-mtbf", "90000h", "--repair", "1h", "--wait", "2h")
    assert none["spares"] == 0 and "reservation_command" not in none


def test_spares(answer) -> None:
    found = answer("spares", "--nodes", "2048", "--node-mtbf", "6250h", "--repair", "24h", "--wait", "10min")
    assert found["spares"] == 16
    assert found["within_wait_fraction"] >= 0.99
    assert found["reservation_command"].startswith("scontrol create reservation ReservationName=spares ")
    assert " NodeCnt=16 " in found["reservation_command"]
    same = answer("spares", "--gpus", "16384", "--gpu-mtbf", "50000h", "--repair", "24h", "--wait", "10min")
    assert same["spares"] == 16 and same["nodes"] == 2048
    assert same["mtbf_s"] == pytest.approx(found["mtbf_s"])


def test_copies(answer) -> None:
    found = answer("spares", "--nodes", "16", "--losses", "3", "--copies", "2")
    assert found["survival_fraction"] == pytest.approx(0.8)
    table = {(row["copies"], row["placement"]): row["survival_fraction"] for row in found["survival"]}
    assert table[2, "ring"] == pytest.approx(0.6286, abs=5e-5)
    assert set(table) == {(m, p) for m in (2, 3, 4) for p in ("group", "ring", "random")}
    disk = answer(
        "spares", "--nodes", "128", "--losses", "4", "--returns", "60%", "--checkpoint", "5TB", "--memory", "2TB"
    )
    assert disk["disk_survival_fraction"] > disk["survival_fraction"]
    assert any("if TiB was meant" in w for w in disk["warnings"])
    racks = answer("spares", "--nodes", "128", "--losses", "2", "--domain-nodes", "8")
    assert racks["survival_fraction"] == pytest.approx(14 / 15)
    assert racks["survival_within_domain_fraction"] == 0


def test_peer_copies_against_storage(answer) -> None:
    found = answer(
        *("spares", "--nodes", "2048", "--gpu-mtbf", "50000h", "--parameters", "405B", "--restart", "10min"),
        *("--storage-bandwidth", "100GB/s", "--peer-bandwidth", "40GB/s", "--local-share", "90%"),
    )
    assert found["peer_copies_pay"] is True
    assert found["storage_save_s"] == pytest.approx(56.7)
    assert 0 < found["break_even_local_share_fraction"] < 0.9
    slow = answer(
        *("spares", "--nodes", "4", "--mtbf", "30h", "--checkpoint", "4TB"),
        *("--storage-bandwidth", "2TB/s", "--peer-bandwidth", "1GB/s"),
    )
    assert slow["peer_copies_pay"] is False


def test_ettr(answer) -> None:
    found = answer(
        "ettr", "--gpus", "12000", "--failures-per-1000-node-days", "6.5", "--save", "5min", "--restart", "5min"
    )
    assert found["ettr_first_order_fraction"] == pytest.approx(0.7398, abs=6e-5)
    assert found["first_order_interval_s"] / 60 == pytest.approx(38.43, abs=0.006)
    assert found["ettr_fraction"] == pytest.approx(0.7365, abs=1e-4)
    assert found["best_lever"] == "storage"
    slow = answer("ettr", "--mtbf", "3h", "--save", "30s", "--detection", "20min", "--restart", "1min")
    assert slow["best_lever"] == "detection"


def test_every_answer_can_come_from_history(answer, history_file: Path) -> None:
    past = ("--history", str(history_file))
    interval = answer("interval", *past)
    assert interval["mtbf_s"] == pytest.approx(72000)
    assert interval["save_s"] == 90 and interval["restart_s"] == 320
    assert interval["inputs"]["local_share_fraction"]["value"] == pytest.approx(6 / 9)
    assert {interval["inputs"][key]["source"] for key in ("mtbf_s", "save_s", "restart_s", "gpus")} == {"history"}
    assert interval["interval_low_s"] < interval["interval_s"] < interval["interval_high_s"]
    fleet = answer("fleet", *past, "--gpus", "1024", "--days", "30")
    assert fleet["mtbf_s"] == pytest.approx(36000)
    assert {row["cause"] for row in fleet["by_cause"]} == {"gpu_memory", "nic", "software"}
    assert fleet["causes_source"] == "history"
    assert fleet["inputs"]["gpus"]["source"] == "given"
    spares = answer("spares", *past)
    assert spares["repair_s"] == 90000
    assert spares["inputs"]["gpus"]["source"] == "history"
    assert spares["inputs"]["node_loss_share_fraction"]["value"] == 0.5
    assert answer("spares", *past, "--nodes", "128")["mtbf_s"] == pytest.approx(36000)
    assert answer("ettr", *past)["downtime_s"] == 320
    assert answer("bandwidth", *past, "--interval", "1h")["checkpoint_bytes"] == 1e12


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        ("interval --mtbf 60s --save 90s", 4, "Make the save shorter than 6 s"),
        ("interval --mtbf 0h --save 90s", 2, "zero"),
        ("interval --mtbf -3h --save 90s", 2, "negative"),
        ("interval --mtbf inf --save 90s", 2, "does not start with a number"),
        ("interval --mtbf 3.09 --save 90s", 2, "3.09h"),
        ("interval --mtbf 3h", 2, "--save 90s"),
        ("interval --save 90s", 2, "--gpu-mtbf 50000h"),
        ("interval --mtbf 3h --save 90s --interval 1min", 2, "shorter than the save"),
        ("interval --mtbf 3h --gpu-mtbf 5h --save 90s", 2, "both say how often"),
        ("interval --gpu-mtbf 50000h --save 90s", 2, "--gpus is missing"),
        ("interval --mtbf 3h --save 90s --local-save 10s", 2, "--local-share"),
        ("interval --mtbf 3h --save 90s --local-share 90%", 2, "needs --local-save"),
        ("interval --mtbf 3h --save 90s --local-save 95s --local-share 90%", 2, "not shorter than the global"),
        ("interval --mtbf 3h --save 90s --colour red", 2, "No such option"),
        ("bandwidth --parameters 405 --interval 15min", 2, "405B"),
        ("bandwidth --checkpoint 405B --interval 15min", 2, "--parameters"),
        ("bandwidth --parameters 405GB --interval 15min", 2, "--checkpoint"),
        ("bandwidth --parameters 405B", 2, "--interval 15min"),
        ("bandwidth --interval 15min", 2, "how large a checkpoint"),
        ("bandwidth --parameters 405B --interval 15min --overlap 10", 2, "10%"),
        ("bandwidth --parameters 405B --interval 15min --overlap 0", 2, "zero"),
        ("bandwidth --interval 15min --save 16min", 2, "pile up"),
        ("bandwidth --bytes-per-parameter 14 --interval 15min", 2, "needs --parameters"),
        ("bandwidth --parameters 405B --interval 15min --drive-dwpd 1", 2, "needs --drive-capacity"),
        ("bandwidth --parameters 405B --interval 15min --bandwidth 2TB", 2, "2TB/s"),
        ("fleet --gpus 16384 --gpu-mtbf 1s", 4, "no training is possible"),
        ("fleet --gpus 1.5 --gpu-mtbf 50000h", 2, "whole number"),
        ("fleet --gpus 16384 --interruptions 0 --days 5", 2, "at least"),
        ("fleet --gpus 16384 --interruptions 5", 2, "--days"),
        ("fleet --mtbf 3h --days 54 --confidence 100%", 2, "95%"),
        ("fleet --mtbf 3h --interval 1h --checkpoints-between-failures 20", 2, "Give one of them"),
        ("fleet --mtbf 3h --goodput 95", 2, "95%"),
        ("fleet --mtbf 3h --goodput 95% --save 90s --interval 60s", 2, "shorter than the save"),
        ("spares --nodes 2048", 2, "--repair"),
        ("spares --nodes 16 --losses 17", 2, "16 nodes"),
        ("spares --nodes 16 --losses 2 --placement star", 2, "group, ring, random"),
        ("spares --nodes 15 --losses 2 --domain-nodes 4", 2, "do not divide"),
        ("spares --nodes 1000 --node-mtbf 24h --repair 30d", 4, "in repair at any time"),
        ("spares --nodes 16 --gpus 128 --losses 2", 2, "Give one of them"),
        ("ettr --mtbf 1h --save 0s", 2, "Give the interval"),
        ("ettr --mtbf 60s --save 90s --restart 1s", 4, "hardly any save"),
        ("ettr --mtbf 3h --save 90s --history /nonexistent/file", 2, "cannot be read"),
    ],
)
def test_what_has_no_answer_is_refused_with_the_sentence_that_helps(
    run, arguments: str, status: int, words: str
) -> None:
    code, out, err = run(*arguments.split())
    assert code == status, err
    assert out == ""
    assert words in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "history.json:1: is not JSON"),
        ('{\n "start": 1,\n}', "history.json:3: is not JSON"),
        ("[]", "is not an object"),
        ('{"gpus": NaN}', "NaN is not a number of JSON"),
        ('{"color": 1}', "key 'color' is not known"),
        ("[" * 100_000, "is not JSON of ours"),
    ],
)
def test_a_bad_history_names_file_and_line_or_key(run, tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "history.json"
    path.write_text(text)
    code, _, err = run("interval", "--history", str(path))
    assert code == 2
    assert words in " ".join(err.split()) and "history.json" in err


def test_a_history_that_is_not_text(run, tmp_path: Path) -> None:
    path = tmp_path / "history.json"
    path.write_bytes(b"\xff\xfe{}")
    code, _, err = run("interval", "--history", str(path))
    assert code == 2 and "not UTF-8" in err


def test_a_history_without_failures_gives_a_bound(run, tmp_path: Path, history_document) -> None:
    history_document["failures"] = []
    path = tmp_path / "history.json"
    path.write_text(json.dumps(history_document))
    code, _, err = run("interval", "--history", str(path))
    assert code == 2
    assert "no failure" in err and "--mtbf 234" in err  # 864,000 s / 3.689


def test_gb_for_gib_between_two_sizes_is_seen(answer) -> None:
    found = answer("bandwidth", "--parameters", "405B", "--checkpoint", "5.1568TB", "--interval", "15min")
    assert any("TB for TiB?" in w for w in found["warnings"])
    assert found["checkpoint_bytes"] == 5.1568e12


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("interval --mtbf 50000h --save 90s", "is it that of one GPU?"),
        ("interval --mtbf 1h --save 10min", "first-order formulas leave their range"),
        ("fleet --gpus 16384 --gpu-mtbf 50h", "far from published"),
        ("fleet --gpus 16k --gpu-mtbf 50000h", "write 16384"),
        ("bandwidth --parameters 405B --interval 15min --overlap 1%", "63 GB/s would do"),
        ("bandwidth --parameters 405B --interval 15min --overlap 30%", "above the 10 %"),
        ("bandwidth --parameters 900T --interval 15min", "more than any model"),
        ("bandwidth --parameters 405B --interval 15min --bytes-per-parameter 140", "unusual"),
        ("bandwidth --parameters 405B --interval 15min --bandwidth 20GB/s", "too slow by 3.1 times"),
        ("bandwidth --parameters 405B --interval 15min --bandwidth 400Gb/s", "is bits"),
        ("ettr --mtbf 3h --save 90s", "--restart at least"),
        ("ettr --mtbf 1h --save 90s --restart 20min", "first order left out"),
        ("spares --nodes 100 --node-mtbf 100h --repair 24h", "more than a tenth"),
    ],
)
def test_what_has_a_catch_is_answered_with_a_warning(answer, arguments: str, words: str) -> None:
    found = answer(*arguments.split())
    assert any(words in w for w in found["warnings"]), found["warnings"]


EVERY = [
    "interval --mtbf 3.09h --save 90s --interval 1h",
    "interval --mtbf 3.093h --save 2min --restart 15min --local-save 10s --local-share 90%",
    "bandwidth --parameters 405B --interval 15min --save 80s --bandwidth 2TB/s --nodes 1024 --drive-capacity 30TB",
    "fleet --gpus 16384 --interruptions 419 --days 54 --goodput 95% --save 10s --checkpoint 5TB",
    "spares --nodes 2048 --node-mtbf 6250h --repair 24h --losses 4",
    "spares --nodes 128 --losses 4 --returns 60%",
    "ettr --mtbf 3.09h --save 90s --restart 10min",
]


@pytest.mark.parametrize("arguments", EVERY)
@pytest.mark.parametrize("width", [80, 120])
def test_people_get_a_sentence_tables_a_curve_and_the_origins(run, arguments: str, width: int) -> None:
    status, out, err = run(*arguments.split(), width=width)
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert max(map(len, lines)) <= width
    assert lines[0].strip()
    assert "Inputs" in out and "given" in out
    assert any(mark in out for mark in "⣀⠤█")
    bare = run(*arguments.split(), "--no-chart", width=width)[1]
    assert not any(mark in bare for mark in "⣀⠤█")


@pytest.mark.parametrize("arguments", EVERY)
def test_json_is_plain_numbers_with_the_unit_in_the_key(answer, arguments: str) -> None:
    found = answer(*arguments.split())

    def check(key: str, value: object) -> None:
        if isinstance(value, dict):
            for name, entry in value.items():
                check(name, entry)
        elif isinstance(value, list):
            for entry in value:
                check(key, entry)
        elif key.endswith(("_s", "_bytes", "_fraction", "_bytes_per_s")):
            assert value is None or isinstance(value, (int, float)), key
        if key.endswith("_fraction") and isinstance(value, float) and "overhead" not in key and "extra" not in key:
            assert -1 <= value <= 1, key

    check("", found)


@pytest.mark.parametrize("arguments", [EVERY[0], EVERY[5]])
def test_the_curve_goes_to_a_file(run, tmp_path: Path, arguments: str) -> None:
    pytest.importorskip("matplotlib", reason="the extra 'plots' is not installed")
    status, _, err = run(*arguments.split(), "--plot", str(tmp_path / "curve.svg"))
    assert (status, err) == (0, "")
    assert "<svg" in (tmp_path / "curve.svg").read_text()


def test_a_plot_of_another_kind_is_refused(run, tmp_path: Path) -> None:
    status, out, err = run(*EVERY[0].split(), "--plot", str(tmp_path / "curve.pdf"))
    assert (status, out) == (2, "") and ".png or .svg" in err


def test_an_answer_without_a_curve_writes_no_file(answer, tmp_path: Path) -> None:
    found = answer("bandwidth", "--interval", "40min", "--save", "3.6min", "--plot", str(tmp_path / "curve.svg"))
    assert any("no plot was written" in w for w in found["warnings"])
    assert not (tmp_path / "curve.svg").exists()


def test_causes_of_a_history_cannot_paint_the_terminal(run, tmp_path: Path, history_document) -> None:
    history_document["failures"][0]["cause"] = "[bold red]nic\x1b[2J\n[/bold red]"
    path = tmp_path / "history.json"
    path.write_text(json.dumps(history_document))
    out = run("fleet", "--history", str(path), "--days", "30")[1]
    assert "\x1b" not in out
    assert "[bold red]nic\\x1b[2J\\n" in out


def test_help_shows_examples(run) -> None:
    for command in ("interval", "bandwidth", "fleet", "spares", "ettr"):
        status, out, _ = run(command, "--help")
        assert status == 0 and f"sentinel plan {command} --" in out
    assert "1 TB = 1e12 bytes" in " ".join(run("--help")[1].split())
    assert run("nonsense")[0] == 2
