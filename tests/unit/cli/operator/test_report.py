"""report: four forms of the same numbers; no text of a user's is markup, a link, or a formula; names can be replaced."""

from __future__ import annotations

import csv
import functools
import io
import itertools
import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.message import EmailMessage
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from in_memory.cli_asked import HOSTILE, Asked, harmless

from sentinel.adapters.notify.mail import Mail
from sentinel.cli.operator.report import quoted, report_mail
from sentinel.config.settings import Settings, load
from sentinel.daemon.web.report_page import charts
from sentinel.errors import FileError, Unavailable, UserError

EVIL = f"{HOSTILE} `x` @all http://evil.example | <script>alert(1)</script> [a](b) =cmd()"


def period(**changes: Any) -> dict[str, Any]:
    mtbf = {"mean_gpus": 16000.0, "gpu_h": {"mean": 50000.0, "low": 40000.0, "high": None},
            "hours": {"mean": 3.1, "low": 2.5, "high": 4.0}}  # fmt: skip
    return {
        "interruptions": 54, "of_machines": 40, "on_purpose": 3, "without_job": 2, "corrected": 1, "worked_gpu_h": 2.7e6,
        "mtbf": mtbf,
        "mtbf_machines": None, "ettr": 0.971, "lost_gpu_h": 812.5, "redone_gpu_h": 600.0, "down_gpu_h": 212.5,
        "mttr": {"known": 50, "not_known": 4, "mean_s": 95.0, "low_s": 72.0, "high_s": 130.0, "median_s": 80.0,
                 "p90_s": 200.0},
        "automation": {"rate": 0.96, "alone": 48, "person": 2, "otherwise": 0, "open": 4}, "lost_not_known": 4,
        "downtime": {"node_h": 300.0, "nodes": 12, "not_known": 1}, **changes,
    }  # fmt: skip


REPORT: dict[str, Any] = {
    "cluster": "lab", "cut": False, "since": "2026-02-22T12:00:00Z", "until": "2026-03-01T12:00:00Z",
    "before": "2026-02-15T12:00:00Z", "now": period(), "previous": period(interruptions=20),
    "changes": [
        {"what": "interruptions", "unit": "count", "now": 54, "before": 20, "beyond_chance": True},
        {"what": "ettr", "unit": "share", "now": 0.971, "before": None, "beyond_chance": None},
        {"what": "mttr", "unit": "s", "now": 95.0, "before": 240.0, "beyond_chance": None},
    ],
    "causes": [{"cause": "gpu_memory_ecc", "scope": "gpu",
                "count": 30, "before": 9, "lost_gpu_h": 500.0, "not_known": 0, "beyond_chance": True}],
    "corrections": [{"judged": "gpu_memory_ecc", "corrected": "user_code", "count": 1}],
    "partitions": [{"partition": "train", "ettr": 0.97, "before": None}],
    "days": [{"key": "2026-02-27", "failures": 9}],
    "nodes": [{"node": "gpu017", "failures": 4, "causes": {"gpu_memory_ecc": 4}, "lost_gpu_h": 77.0, "not_known": 1,
               "incident": "0f3a9c", "last_at": "2026-02-27T12:00:00Z", "suspect": True, "reasons": ["4 x gpu_memory_ecc"],
               "evidence": [f"gpu018 {EVIL} /home/ada/run.log 10.1.2.3"]}],
    "jobs": [{"job": 101, "name": EVIL, "user": "ada", "failures": 4, "lost_gpu_h": 77.0, "not_known": 0, "causes": {}}],
}  # fmt: skip


@pytest.fixture
def made(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> Asked:
    monkeypatch.setattr("sentinel.cli.operator.report.view", asked.view)
    asked.views |= {"report": REPORT, "names": {"nodes": ["gpu017", "gpu018"], "jobs": [], "incidents": []}}
    return asked


def test_a_kept_report_says_on_which_day_it_ends(made: Asked) -> None:
    now = datetime.now(UTC)
    made.views["report"] = {**REPORT, "since": (now - timedelta(days=7)).isoformat(), "until": now.isoformat()}
    assert f" to {now.astimezone():%Y-%m-%d %H:%M} " in made.run("report").output


def test_markdown_says_the_numbers_and_their_intervals(made: Asked) -> None:
    output = made.run("report").output
    assert "MTTR 1.6 min" in " ".join(re.sub("<[^>]*>", " ", made.run("report", "--format", "html").output).split())
    assert (
        "| Interruptions | 54 | 20 | yes |" in output
        and "| Effective training time (ETTR) | 97.1 % | not known |  |" in output
    )
    assert (
        "3.1 h (2.5 to 4)" in output
        and "MTTR: 1.6 min (1.2 min to 2.2 min)" in output
        and "not known: no job ran" in output
    )
    assert (
        "48 closed by Sentinel alone, 2 held for a person, 0 closed otherwise, 4 others open" in output
        and "| gpu_memory_ecc | gpu | 30 | 9 | 500 | yes |" in output
    )
    assert harmless(output)


def test_where_nothing_failed_the_time_between_failures_has_a_least(made: Asked) -> None:
    none = {"mean": None, "low": 0.5, "high": None}
    now = REPORT["now"] | {"mtbf": {"hours": none, "gpu_h": none}}
    made.views["report"] = REPORT | {"now": now}
    assert "- MTBF, all: at least 0.5 h, at least 0.5 GPU-hours\n" in made.run("report").output


def test_time_is_handed_on(made: Asked) -> None:
    assert made.run("report", "--since", "2026-02-01T00:00:00+00:00").exit_code == 0
    assert made.seen[-1] == ("report", {"since": "2026-02-01T00:00:00+00:00"})


@pytest.mark.parametrize("text", ["a`b", "``", "`", "@all", "http://x", "a|b", "", "a\nb", "\u202ex"])
def test_quoted_text_is_one_code_span(text: str) -> None:
    shown = quoted(text)
    assert "\n" not in shown and "\u202e" not in shown
    if not text:
        assert shown == ""
        return
    fence = shown[: len(shown) - len(shown.lstrip("`"))]
    inner = shown[len(fence) : -len(fence)]
    assert shown.endswith(fence) and fence not in inner and "|" not in inner.replace("\\|", "")


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.seen: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        assert not any(name.startswith("on") or name in ("src", "href") for name, _ in attrs), (tag, attrs)


def test_html_is_one_file_with_plots_and_no_script(made: Asked, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    assert made.run("report", "--format", "html", "--out", str(path)).output.strip() == ""
    text = path.read_text()
    assert text.lstrip().startswith("<!doctype html>") and text.count("<svg") == 3 and "default-src 'none'" in text
    assert (
        not {"script", "a", "img", "link", "iframe"} & Tags(text).seen
        and "&lt;script&gt;" in text
        and "\x1b" not in text
    )


def test_charts_say_of_how_many_they_show_a_part(made: Asked) -> None:
    days = [{"key": f"2026-{month:02}-{day:02}", "failures": 1} for month in (1, 2) for day in range(1, 29)]
    causes = [{**REPORT["causes"][0], "cause": f"cause{number}"} for number in range(15)]
    titles = [title for title, _ in charts({**REPORT, "days": days, "causes": causes})]
    assert titles == [
        "Interruptions by cause (before): the first 12 of 15",
        "GPU-hours lost by cause: the first 12 of 15",
        "Interruptions by day (UTC): the last 31 of 56 with any",
    ]
    assert [title for title, _ in charts(REPORT)] == [
        "Interruptions by cause (before)", "GPU-hours lost by cause", "Interruptions by day (UTC)",
    ]  # fmt: skip
    html = made.run("report", "--format", "html").output
    assert html.count("<figcaption>Interruptions by cause (before)</figcaption>") == 1


def csv_rows(made: Asked) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(made.run("report", "--format", "csv").output)))


def test_csv_has_no_formula(made: Asked) -> None:
    rows = csv_rows(made)
    found = {(row["table"], row["what"], row["of"], row["unit"]): row for row in rows}
    assert found["summary", "interruptions", "", "count"]["before"] == "20"
    mtbf = found["reliability", "mtbf", "", "GPU-h"]
    assert (mtbf["now"], mtbf["low"], mtbf["high"], mtbf["before"]) == ("50000.0", "40000.0", "", "50000.0")
    assert not any(value[:1] in ("=", "+", "@") for row in rows for value in row.values())
    assert all(None not in row for row in rows)


def numbered(value: Any, last: Iterator[int]) -> Any:
    """A document in which each number is another one."""
    if isinstance(value, dict):
        return {key: numbered(item, last) for key, item in value.items()}
    if isinstance(value, list):
        return [numbered(item, last) for item in value]
    return value if isinstance(value, bool) or not isinstance(value, (int, float)) else next(last)


def numbers(value: Any, *without: str) -> set[str]:
    if isinstance(value, dict):
        return {number for key, item in value.items() if key not in without for number in numbers(item, *without)}
    if isinstance(value, list):
        return {number for item in value for number in numbers(item, *without)}
    return {f"{value}"} if isinstance(value, int) and not isinstance(value, bool) else set()


SUMMARY = {
    "interruptions": ("interruptions",), "of_machines": ("of_machines",), "lost_gpu_h": ("lost_gpu_h",),
    "ettr": ("ettr",), "mttr": ("mttr", "mean_s"), "automation": ("automation", "rate"),
    "downtime": ("downtime", "node_h"),
}  # fmt: skip


def test_csv_has_a_row_for_each_number(made: Asked) -> None:
    """Of the time before it all but the intervals."""
    same = {key: period()["mtbf"][key] for key in ("hours", "gpu_h")}  # the GPUs at work are those of all
    whole = period(mtbf_machines=same)
    report = numbered({**REPORT, "now": whole, "previous": whole}, itertools.count(1000))
    report["changes"] = [
        {"what": what, "unit": "count", "beyond_chance": None}
        | {
            name: functools.reduce(dict.__getitem__, path, report[period_of])
            for name, period_of in (("now", "now"), ("before", "previous"))
        }
        for what, path in SUMMARY.items()
    ]
    made.views["report"] = report
    rows = csv_rows(made)
    now = {row[name] for row in rows for name in ("now", "low", "high", "not_known")}
    before = {row["before"] for row in rows}
    assert numbers(report["now"]) <= now and numbers(report["previous"], "low", "high", "low_s", "high_s") <= before
    for table in ("causes", "corrections", "partitions", "days", "nodes", "jobs"):
        assert numbers(report[table], "before", "job") <= now and numbers(report[table], "job") <= now | before


def test_csv_says_of_what_time_it_is_and_what_is_more_than_chance(made: Asked) -> None:
    made.views["report"] = {**REPORT, "cut": True}
    rows = csv_rows(made)
    found = {(row["table"], row["what"]): row for row in rows}
    assert found["period", "since"]["now"] == REPORT["since"] and found["period", "since"]["before"] == REPORT["before"]
    assert found["period", "until"]["now"] == REPORT["until"] and found["period", "until"]["before"] == REPORT["since"]
    assert found["period", "oldest_missing"]["now"] == "yes"
    assert [found["summary", what]["beyond_chance"] for what in ("interruptions", "ettr")] == ["yes", ""]
    assert found["interruptions", "gpu_memory_ecc"]["beyond_chance"] == "yes"
    (owner,) = (row for row in rows if row["table"] == "job_failures")
    assert owner["of"] == "ada" and owner["what"] == "101"


def test_csv_of_a_time_before_which_nothing_was_seen_has_no_number_of_that(made: Asked) -> None:
    changes = [{**row, "before": None, "beyond_chance": None} for row in REPORT["changes"]]
    made.views["report"] = {**REPORT, "changes": changes}
    rows = csv_rows(made)
    told = {"period", "interruptions", "ettr"}  # these rows say it themselves
    assert {row["before"] for row in rows if row["table"] not in told} == {""}


def test_csv_names_no_time_before_where_all_of_that_is_missing(made: Asked) -> None:
    """More incidents than are read at once: what was read begins within the time that is told of."""
    changes = [{**row, "before": None, "beyond_chance": None} for row in REPORT["changes"]]
    made.views["report"] = {**REPORT, "changes": changes, "cut": True}
    found = {row["what"]: row for row in csv_rows(made) if row["table"] == "period"}
    assert found["since"]["now"] == REPORT["since"] and found["since"]["before"] == found["until"]["before"] == ""


def test_name_that_is_a_formula_is_text(made: Asked) -> None:
    made.views["report"] = {**REPORT, "jobs": [{**REPORT["jobs"][0], "name": "=HYPERLINK(1)"}]}
    assert "'=HYPERLINK(1)" in made.run("report", "--format", "csv").output


@pytest.mark.parametrize(
    "name",
    [
        "=1+1",
        "x;=cmd|' /C calc'!A0;",
        'x;"=cmd"',
        "x; @SUM(1)",
        "x|-1",
        "x\t+1",
        ";;=1",
        '"=1',
        " =1",
        "a;\uff1d1",
        "x\n=1",
    ],
)
@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_no_cell_is_a_formula_whatever_separates_cells(made: Asked, name: str, separator: str) -> None:
    """A spreadsheet splits lines where its own locale has its list separator: in much of Europe at the semicolon."""
    made.views["report"] = {**REPORT, "jobs": [{**REPORT["jobs"][0], "name": name}]}
    out = made.run("report", "--format", "csv").output
    cells = [cell for row in csv.reader(io.StringIO(out), delimiter=separator) for cell in row]
    assert not [cell for cell in cells if re.match(r"[\s\"]*[=+@\uff1d\uff0b\uff20-]", cell)]


def test_json_is_what_the_daemon_said(made: Asked) -> None:
    assert json.loads(made.run("report", "--format", "json").output) == REPORT


@pytest.mark.parametrize("form", ["md", "html", "csv", "json"])
def test_anonymised_names_nobody(made: Asked, form: str) -> None:
    result = made.run("report", "--format", form, "--anonymise")
    assert result.exit_code == 0, result.output
    for name in ("gpu017", "gpu018", "ada", "10.1.2.3", "/home/", "lab"):
        assert name not in result.output.replace("label", "").replace("available", ""), name
    assert "gpu_memory_ecc" in result.output


def test_file_that_cannot_be_written_is_named(made: Asked, tmp_path: Path) -> None:
    result = made.run("report", "--out", str(tmp_path / "no" / "x.md"))
    assert result.exit_code != 0 and "cannot be written" in str(result.exception)


def test_a_file_that_is_there_is_not_overwritten(made: Asked, tmp_path: Path) -> None:
    for form in ("html", "md"):
        out = tmp_path / f"x.{form}"
        assert made.run("report", "--format", form, "--out", str(out)).exit_code == 0
        written = out.read_text()
        error = made.run("report", "--format", form, "--out", str(out)).exception
        assert isinstance(error, FileError) and "is there already" in error.message and "--out" in error.fix
        assert out.read_text() == written


# --- mail ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "sentinel.toml"
    path.write_text('[report]\nto = ["ops@example.org", "boss@example.org"]\n[alerts.mail]\nsender = "s@example.org"\n')
    return path


def test_the_report_goes_by_mail(made: Asked, config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[EmailMessage] = []
    monkeypatch.setattr(Mail, "deliver", lambda _self, mail: sent.append(mail))
    found = made.run("report", "--mail", "--config", str(config))
    assert found.output == "Sent to ops@example.org, boss@example.org.\n", found.exception
    (mail,) = sent
    assert mail["To"] == "ops@example.org, boss@example.org" and mail["From"] == "s@example.org"
    assert mail["Subject"] == "[Sentinel] lab: 2026-02-22 to 2026-03-01"
    text, page = mail.get_body(("plain",)), next(iter(mail.iter_attachments()))
    assert text is not None and "54" in text.get_content() and "http://evil.example" in text.get_content()
    assert page.get_filename() == "sentinel-2026-03-01.html" and "<script>alert" not in page.get_content()


def test_the_days_of_a_mail_are_those_of_its_text(zone: Callable[[str], None]) -> None:
    """Monday at 7 in Tokyo is Sunday by UTC."""
    zone("Asia/Tokyo")
    report = {**REPORT, "since": "2026-11-22T22:00:00Z", "until": "2026-11-29T22:00:00Z"}
    mail = report_mail(report, "s@example.org", ["o@example.org"])
    text, page = mail.get_body(("plain",)), next(iter(mail.iter_attachments()))
    assert text is not None and "2026-11-23 07:00 JST to 2026-11-30 07:00 JST" in text.get_content()
    assert mail["Subject"] == "[Sentinel] lab: 2026-11-23 to 2026-11-30"
    assert page.get_filename() == "sentinel-2026-11-30.html"


def test_a_clusters_name_adds_no_header(made: Asked, config: Path) -> None:
    mail = report_mail({**REPORT, "cluster": "lab\r\nBcc: eve@example.org"}, "s@example.org", ["o@example.org"])
    assert mail["Bcc"] is None and "\n" not in mail["Subject"]


def test_without_a_receiver_nothing_is_sent(made: Asked, tmp_path: Path) -> None:
    """For a person that is wrong. The timer runs on every controller."""
    empty = tmp_path / "sentinel.toml"
    empty.write_text("")
    error = made.run("report", "--mail", "--config", str(empty)).exception
    assert isinstance(error, UserError) and "[report] to" in error.fix and str(empty) in error.fix
    found = made.run("report", "--mail", "--timer", "--config", str(empty))
    assert found.exit_code == 0 and "[report] to is empty" in found.output and made.seen == []
    unit = next(folder / "deploy/systemd/sentinel-report.service" for folder in Path(__file__).parents
                if (folder / "deploy").is_dir()).read_text()  # fmt: skip
    assert " report --since 7d --mail --timer " in unit


def test_a_server_that_is_away_is_status_3(made: Asked, config: Path) -> None:
    config.write_text(config.read_text() + 'server = "127.0.0.1:1"\n')
    error = made.run("report", "--mail", "--config", str(config)).exception
    assert isinstance(error, Unavailable) and "report" in error.message


@pytest.mark.parametrize("address", ["nobody", "{user}@example.org", "a@b, c@d"])
def test_what_is_no_address_is_refused(tmp_path: Path, address: str) -> None:
    path = tmp_path / "sentinel.toml"
    path.write_text(f'[report]\nto = ["{address}"]\n')
    with pytest.raises(FileError, match="no address"):
        load(path, Settings)
