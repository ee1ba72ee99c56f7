"""``sentinel report``: a time in numbers beside the time before it, as Markdown, HTML, CSV or JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sentinel.cli.operator.arguments import asked_filters, since_option
from sentinel.cli.operator.daemon_client import config_option, settings_of, view
from sentinel.cli.operator.output import causes_words, clock, counted, day, echo, say, span
from sentinel.cli.operator.report_csv import as_csv, yes_or_no
from sentinel.errors import FileError, UserError
from sentinel.text import printable

if TYPE_CHECKING:
    from email.message import EmailMessage

    from sentinel.config.settings import Settings

_DEADLINE_S = 60.0  # months of a large cluster take seconds
_MOST_TEXT = 300  # characters of a quoted line


@click.command()
@since_option("7d")
@click.option(
    "--format", "form", type=click.Choice(["md", "html", "csv", "json"]), default="md", show_default=True,
    help="Markdown, HTML with plots in one file, CSV, or JSON.",
)  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path), help="File to write.  [default: standard output]")
@click.option("--mail", is_flag=True, help="Send it to [report] to of the settings, with the HTML beside it.")
@click.option("--timer", is_flag=True, help="With --mail, for the timer: nobody named is no error.")
@click.option("--anonymise", is_flag=True, help="Replace names of nodes, users, jobs, folders and addresses.")
@config_option
def report(since: str, form: str, out: Path | None, mail: bool, timer: bool, anonymise: bool, config: Path) -> None:
    """Interruptions by cause and scope, time between and to recover, effective training time, hours lost, worst nodes.

    Beside each number stands that of the same length of time before. Intervals are 95 %. Operators get all jobs, others
    their own. A file that is there is not overwritten.

    \b
    Examples:
      sentinel report
      sentinel report --since 30d --format html --out march.html
      sentinel report --format json --anonymise
      sentinel report --mail
    """
    receivers = settings_of(config).report.to if mail else []
    if mail and not receivers:
        nobody = "[report] to is empty: nobody is named to whom it goes"
        if not timer:
            raise UserError(nobody, fix=f'write [report] to = ["ops@example.org"] in {config}')
        say(f"Nothing is sent: {nobody}.")
        return
    made = view(config, "report", deadline_s=_DEADLINE_S, **asked_filters(since=since))
    if anonymise:
        made = anonymised(made, view(config, "names")["nodes"])
    if mail:
        _mail(made, settings_of(config), receivers)
        return
    text = {"md": markdown, "html": _html, "csv": as_csv, "json": _json}[form](made)
    if out is None:
        echo(text.rstrip("\n"))
        return
    try:
        with out.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise FileError(out, "is there already", fix="name another file with --out, or remove this one") from error
    except OSError as error:
        raise FileError(out, f"cannot be written: {error.strerror}", fix="name another file with --out") from error


def _mail(made: Mapping[str, Any], settings: Settings, to: Sequence[str]) -> None:
    """
    Raises:
        Refused, Unavailable: the server does not take it.
    """
    from sentinel.adapters.notify.channels import mail_server
    from sentinel.adapters.notify.delivery_threads import DeliveryThreads
    from sentinel.adapters.notify.mail import Mail
    from sentinel.adapters.notify.wording import Wording

    server = Mail(
        mail_server(settings.alerts), to, Wording("operators", "", ""), name="report",
        deadline_s=settings.alerts.deadline_s, threads=DeliveryThreads(),
    )  # fmt: skip
    server.deliver(report_mail(made, server.sender, to))
    say(f"Sent to {', '.join(to)}.")


def report_mail(made: Mapping[str, Any], sender: str, to: Sequence[str]) -> EmailMessage:
    """The report as text, and its HTML with plots as a file beside it."""
    from datetime import UTC, datetime
    from email.message import EmailMessage
    from email.utils import format_datetime, make_msgid

    mail = EmailMessage()
    where = "".join(ch for ch in str(made["cluster"]) if ch.isprintable())[:60]
    mail["From"], mail["To"] = sender, ", ".join(to)
    mail["Date"] = format_datetime(datetime.now(UTC))
    mail["Subject"] = f"[Sentinel] {where or 'cluster'}: {day(made['since'])} to {day(made['until'])}"
    mail["Message-ID"] = make_msgid(domain=sender.partition("@")[2] or None)
    mail["Auto-Submitted"] = "auto-generated"  # RFC 3834: no answer by a machine
    mail.set_content(markdown(made))
    mail.add_attachment(_html(made), subtype="html", filename=f"sentinel-{day(made['until'])}.html")
    return mail


def _json(made: Mapping[str, Any]) -> str:
    return json.dumps(made, indent=1) + "\n"


def _html(made: Mapping[str, Any]) -> str:
    from sentinel.daemon.web.report_page import html_file

    return html_file(made)


def anonymised(made: Mapping[str, Any], nodes: Iterable[str]) -> dict[str, Any]:
    """The report with pseudonyms, as ``sentinel bundle --anonymise`` gives them.

    Args:
        nodes: names of the cluster's nodes, which evidence may name.
    """
    from datetime import UTC, datetime

    from sentinel.model.recording import RecordedAttempt, Recording
    from sentinel.replay.anonymise import Pseudonyms

    at = datetime.fromtimestamp(0, tz=UTC)
    known = [*nodes, *(row["node"] for row in made["nodes"])]
    attempts = [RecordedAttempt(0, 0, at, nodes=tuple(dict.fromkeys(known)))]
    attempts += [RecordedAttempt(row["job"], 0, at, user=row["user"], name=row["name"]) for row in made["jobs"]]
    names = Pseudonyms(Recording(attempts=tuple(attempts)))
    shown: dict[str, Any] = names.line({**made, "cluster": ""})
    return shown


# --- Markdown -----------------------------------------------------------------------------------------------------------


def quoted(text: object) -> str:
    """Text of others as code: no link, mention, heading or column of a table can be in it."""
    line = " ".join(printable(str(text), "·").split())[:_MOST_TEXT]
    if not line:
        return ""
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", line)), default=0))
    pad = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{fence}{pad}{line}{pad}{fence}".replace("|", "\\|")


def _table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    return [*lines, *(f"| {' | '.join(str(cell) for cell in row)} |" for row in rows), ""]


def _number(value: object) -> str:
    if value is None:
        return "not known"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return str(value)


def _percent(value: float | None) -> str:
    return "not known" if value is None else f"{100 * value:.1f} %"


def _length(value: float | None) -> str:
    return "not known" if value is None else span(value)


def _value(row: Mapping[str, Any], which: str) -> str:
    show = {"share": _percent, "s": _length}.get(row["unit"], _number)
    unit = f" {row['unit']}" if row["unit"] not in ("share", "s", "count") and row[which] is not None else ""
    return f"{show(row[which])}{unit}"


def _mean(estimate: Mapping[str, Any], unit: str) -> str:
    if estimate["mean"] is None:  # nothing failed
        return f"at least {_number(estimate['low'])} {unit}"
    return f"{_number(estimate['mean'])} {unit} ({_number(estimate['low'])} to {_number(estimate['high'])})"


def _mtbf(mtbf: Mapping[str, Any] | None) -> str:
    if mtbf is None:
        return "not known: no job ran"
    return ", ".join(_mean(mtbf[key], unit) for key, unit in (("hours", "h"), ("gpu_h", "GPU-hours")))


def _mttr(mttr: Mapping[str, Any]) -> str:
    if mttr["mean_s"] is None:
        return f"not known of {counted(mttr['not_known'], 'interruption')}"
    return (
        f"{_length(mttr['mean_s'])} ({_length(mttr['low_s'])} to {_length(mttr['high_s'])}), half within "
        f"{_length(mttr['median_s'])}, nine of ten within {_length(mttr['p90_s'])}; of {mttr['known']}, not known of "
        f"{mttr['not_known']}"
    )


def markdown(made: Mapping[str, Any]) -> str:
    from sentinel.daemon.web.report_page import WORDS

    now = made["now"]
    mttr, closed, out = now["mttr"], now["automation"], now["downtime"]
    since, until = (clock(made[name], dated=True) for name in ("since", "until"))
    title = f"# Reliability report{' of ' + quoted(made['cluster']) if made['cluster'] else ''}"
    lines = [
        title,
        "",
        f"{since} to {until}, beside the same length of time before it.",
        "",
    ]
    if made["cut"]:
        lines += ["There are more incidents than are read at once: the oldest are missing.", ""]
    changes = [
        (WORDS[row["what"]], _value(row, "now"), _value(row, "before"), yes_or_no(row["beyond_chance"]))
        for row in made["changes"]
    ]
    lines += _table(("what", "now", "before", "more than chance?"), changes)
    lines += [
        "## Reliability",
        "",
        f"- Work: {_number(now['worked_gpu_h'])} GPU-hours",
        f"- MTBF, all: {_mtbf(now['mtbf'])}",
        f"- MTBF, not programs: {_mtbf(now['mtbf_machines'])}",
        f"- MTTR: {_mttr(mttr)}",
        f"- Outcome: {closed['alone']} closed by Sentinel alone, {closed['person']} held for a person, "
        f"{closed['otherwise']} closed otherwise, {closed['open']} others open",
        f"- Lost: {_lost_parts(now)}not known of {counted(now['lost_not_known'], 'failure')}",
        f"- Out of service: {_number(out['node_h'])} node-hours of {counted(out['nodes'], 'node')}; the end of "
        f"{out['not_known']} drains is not known",
        f"- Beside: {now['on_purpose']} ended on purpose (preemption, time limit, scancel), "
        f"{counted(now['without_job'], 'incident')} without a job",
        f"- Verdicts corrected by operators: {now['corrected']}{_corrected(made)}",
        "",
        "Intervals are 95 %.",
        "",
    ]
    return "\n".join([*lines, *_tables(made)])


def _corrected(made: Mapping[str, Any]) -> str:
    """Which ones, the most frequent first."""
    found = [f"{row['count']} {row['judged']} corrected to {row['corrected']}" for row in made["corrections"]]
    return f" ({', '.join(found)})" if found else ""


def _lost_parts(now: Mapping[str, Any]) -> str:
    if now["lost_gpu_h"] is None:
        return ""
    parts = f"{_number(now['redone_gpu_h'])} of steps made twice and {_number(now['down_gpu_h'])} without steps"
    return f"{_number(now['lost_gpu_h'])} GPU-hours, of which {parts}; "


def _lost(row: Mapping[str, Any]) -> str:
    beside = " + ?" if row["not_known"] and row["lost_gpu_h"] is not None else ""
    return _number(row["lost_gpu_h"]) + beside


def _tables(made: Mapping[str, Any]) -> list[str]:
    lines: list[str] = []
    if made["causes"]:
        columns = ("cause", "scope", "now", "before", "GPU-h lost", "more than chance?")
        rows = [
            (
                row["cause"],
                row["scope"],
                row["count"],
                _number(row["before"]),
                _lost(row),
                yes_or_no(row["beyond_chance"]),
            )
            for row in made["causes"]
        ]
        lines += ["## By cause and scope", "", *_table(columns, rows)]
    if made["nodes"]:
        nodes = [
            (
                quoted(row["node"]),
                causes_words(row["causes"]),
                _lost(row),
                " ".join(quoted(text) for text in (*row["reasons"], *row["evidence"])),
            )
            for row in made["nodes"]
        ]
        lines += ["## Worst nodes", "", *_table(("node", "failures", "GPU-h lost", "evidence"), nodes)]
    if made["jobs"]:
        jobs = [
            (row["job"], quoted(row["name"] or ""), quoted(row["user"] or ""), row["failures"], _lost(row))
            for row in made["jobs"]
        ]
        lines += ["## Jobs that lost most", "", *_table(("job", "name", "user", "failures", "GPU-h lost"), jobs)]
    if made["partitions"]:
        shares = [
            (quoted(row["partition"]), _percent(row["ettr"]), _percent(row["before"])) for row in made["partitions"]
        ]
        lines += ["## Effective training time by partition", "", *_table(("partition", "now", "before"), shares)]
    return lines
