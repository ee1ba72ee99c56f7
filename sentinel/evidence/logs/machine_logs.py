"""Parses lines of a machine's own logs (kernel, Slurm, DCGM): the prefix, and which program wrote the message.

The form of a line shows who wrote it: the facility in a record of /dev/kmsg, ``kernel:`` in syslog and ``journalctl -k``.
What other programs wrote into the same file is a program's claim, whatever it says. A syslog daemon that lets its users
choose facility and tag cannot be told from its file; /dev/kmsg, dmesg and ``journalctl -k`` are not open to them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from sentinel.evidence.logs.prefixes import MONTH, uptime_of
from sentinel.evidence.logs.user_names import by_any_user, of_an_image, perhaps_by_any_user, without_names
from sentinel.model.records import Scalar, Source
from sentinel.model.vocabulary import WRITER

_CLOCK = r"\d\d:\d\d:\d\d(?:\.\d{1,9})?"  # dmesg --time-format iso alone writes a comma
_MONTH_AND_DAY = rf"(?:[^\W\d_]{{2,4}}\.? )?{MONTH} [ \d]\d "
_DAY = rf"{_MONTH_AND_DAY}(?:\d{{4}} )?{_CLOCK}(?: \d{{4}})?"
# As dmesg -T has it. With the year before the time it is of DCGM, or of a fabric manager.
_CTIME = rf"{_MONTH_AND_DAY}{_CLOCK}(?: \d{{4}})?"
_ZONE = r"(?:Z|[+-]\d\d:?\d\d| [A-Z]{3,5})?"
_DATE = rf"(?:[A-Z][a-z]{{2}} )?\d{{4}}-\d\d-\d\d[T ]{_CLOCK}{_ZONE}"
_UPTIME = r"\[\s{0,12}(?P<up>\d{1,9}\.\d{1,9})\](?:\[\s{0,8}[TC]\d{1,8}\])?"
_HOST = r"(?P<host>[A-Za-z0-9][\w.-]{0,63})"

_KMSG = re.compile(r"^(\d{1,6}),(\d{1,20}),(\d{1,20}),([^;]{0,80});(.*)$", re.S)
_NUMBER = re.compile(rf"^(?:{_DATE} )?<(\d{{1,3}})> ?")  # with a date: the kernel.txt of our own bundles
_DECODED = re.compile(r"^(?P<facility>[a-z]{3,8}[0-7]?) {0,6}:(?:emerg|alert|crit|err|warn|notice|info|debug) {0,6}: ")
# gpu7: kern: err: [2026-03-04T05:06:07.123Z]: message - `talosctl dmesg`
_TALOS = re.compile(
    rf"^{_HOST}: (?P<facility>[a-z]{{3,8}}[0-7]?): {{1,8}}(?:emerg|alert|crit|err|warning|notice|info|debug): {{1,8}}"
    r"\[\d{4}-\d\d-\d\dT[\d:.]{8,18}(?:Z|[+-]\d\d:?\d\d)\]: ?(?P<text>.*)$",
    re.S,
)
_SYSLOG = re.compile(
    rf"^(?:1 )?(?:{_DAY}|{_DATE}|\d{{9,10}}\.\d{{3,6}}) {_HOST} "
    r"(?P<tag>[A-Za-z(][\w./()@-]{0,47})(?P<pid>\[\d{1,10}\])?(?::| - - -) ?(?P<text>.*)$",
    re.S,
)
_BRACKETED = re.compile(rf"^(?:{_UPTIME}|\[{_CTIME}\])\s+{_HOST} kernel: (?P<text>.*)$", re.S)
_STAMPED = re.compile(
    rf"^(?:{_UPTIME}|\[{_CTIME}\]|\d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\d,\d{{1,9}}{_ZONE}) ?(?P<text>.*)$", re.S
)
_UPTIME_FIRST = re.compile(rf"^(?:{_UPTIME}|\[{_CTIME}\]) ")
_TAGGED = re.compile(rf"^(?:{_HOST} )?kernel: (?P<text>.*)$", re.S)
_SLURM = re.compile(
    r"^(?:slurm(?:ctld|d|stepd|dbd)(?:[-\[(][^\]\s]{0,80}?[\])]?)?: )?"
    rf"(?:\[{_DATE}\] )?(?:\[[\w.+-]{{1,60}}\] )?"
    r"(?:(?:error|fatal|info|warning|verbose|debug[1-5]?|sched(?:/\w{1,20})?|backfill): ){0,3}(?P<text>.*)$",
    re.S,
)
_DCGM = re.compile(
    r"^(?:(?:nv-hostengine|nv-?(?:idia-)?fabricmanager|nvidia-imex|dcgmi?|nvvs)(?:\[\d{1,10}\])?: )?"
    rf"(?:\[?(?:{_DATE}|[A-Z][a-z]{{2}} \d\d \d{{4}} {_CLOCK})\]? )?(?:\[?(?:FATAL|ERROR|WARN(?:ING)?|INFO|DEBUG)\]? )?"
    r"(?:\[(?:tid )?[\d:]{1,24}\] )?(?:\s{0,80}\"[\w ]{1,40}\" ?: ?\"|\|[\s|]{1,80}|[\s\"]{1,80})?(?P<text>.*)$",
    re.S,
)
_LEVELS = frozenset({"DEBUG", "INFO", "WARN", "WARNING", "ERROR", "CRITICAL", "FATAL"})  # of a program's own logger
_SLURM_TAG = re.compile(r"slurm(?:ctld|d|stepd|dbd)\b")
_DCGM_TAG = re.compile(r"(?:nv-hostengine|nv-?(?:idia-)?fabricmanager|nvidia-imex|dcgm|nvvs)")


@dataclass(frozen=True, slots=True)
class KernelLine:
    """One message, without what stands before it."""

    text: str
    node: str | None = None
    sequence: int | None = None
    since_boot_s: float | None = None
    facility: int | None = 0  # 0 is the kernel itself; None: another program's line whose facility is not told

    @property
    def own(self) -> bool:
        return self.facility == 0


@dataclass(frozen=True, slots=True)
class Said:
    """A line taken apart: ``head`` stands before ``text``; ``message`` is the text without names that users choose.

    ``by_any_user``: any user of the node can cause it; ``perhaps``: and so can a fault of the host's; ``of_image``: it tells
    of a mounted file, not of a disk.
    """

    head: str
    text: str
    message: str
    node: str | None
    own: bool
    by_any_user: bool = False
    of_image: bool = False
    perhaps: bool = False


def kernel_line(raw: str) -> KernelLine:
    """A message from a kmsg record, a line of syslog, journalctl, dmesg (also -r, -x, -T, talosctl) or pstore."""
    if found := _KMSG.match(raw):
        text = found[5].partition("\n")[0]  # continuation lines hold device keys
        return KernelLine(text, None, int(found[2]), int(found[3]) / 1e6, int(found[1]) >> 3)
    facility: int | None = 0
    if found := _NUMBER.match(raw):
        facility, raw = int(found[1]) >> 3, raw[found.end() :]
    elif found := _DECODED.match(raw):
        facility, raw = 0 if found["facility"] == "kern" else None, raw[found.end() :]
    if found := _TALOS.match(raw):
        return KernelLine(found["text"], found["host"], facility=0 if found["facility"] == "kern" else None)
    if found := _SYSLOG.match(raw):
        if found["tag"] != "kernel" or found["pid"]:
            return KernelLine(found["text"], found["host"], facility=None)
        inner = _STAMPED.match(found["text"])
        stamp = inner["up"] if inner else None
        text = inner["text"] if inner else found["text"]
        return KernelLine(text, found["host"], None, float(stamp) if stamp else None, facility)
    stamp = None
    if found := _BRACKETED.match(raw) or _STAMPED.match(raw):
        stamp = found["up"]
    elif not (found := _TAGGED.match(raw)):
        return KernelLine(raw, facility=facility)
    node = found.groupdict().get("host")
    line = KernelLine(found["text"], node, None, float(stamp) if stamp else None, facility)
    if found.re is _TAGGED and (inner := _STAMPED.match(line.text)):
        line = replace(line, text=inner["text"], since_boot_s=float(inner["up"]) if inner["up"] else None)
    return line


def of_its_form(source: Source, head: str) -> dict[str, Scalar]:
    """What the form of a line tells of it: ``uptime_s``, seconds since boot, and in a job's log which program wrote it.

    ``head``: the beginning of the line; of a job's log the whole line.
    """
    data: dict[str, Scalar] = {}
    if (uptime := uptime_of(head)) is not None:
        data["uptime_s"] = uptime
    if source is Source.JOB_LOG and (writer := writer_of(head)) is not None:
        data[WRITER] = writer
    return data


def writer_of(raw: str) -> str | None:
    """Which program wrote a line that has the form of a machine's own log; None of any other line.

    ``kernel``; ``audit`` where the kernel hands on what it was told to note of programs; else the tag of the syslog.
    """
    if found := _SYSLOG.match(raw):
        if found["host"] in _LEVELS:
            return None
        tag = found["tag"]
    elif _KMSG.match(raw) or _NUMBER.match(raw) or _BRACKETED.match(raw) or _UPTIME_FIRST.match(raw):
        tag = "kernel"
    elif found := _TALOS.match(raw):
        tag = "kernel" if found["facility"] == "kern" else found["facility"]
    else:
        return None
    return "audit" if tag == "kernel" and kernel_line(raw).text.startswith("audit: ") else tag


def said(source: Source, raw: str, *, bare: bool = False) -> Said:
    """A line of the log of its own that ``source`` names. ``bare``: nothing stands before the message (a kmsg record's)."""
    if source is Source.KERNEL:
        line = KernelLine(raw) if bare else kernel_line(raw)
        message = without_names(line.text)
        image = of_an_image(message)
        users = image or by_any_user(message)
        head, perhaps = raw[: len(raw) - len(line.text)], perhaps_by_any_user(message)
        return Said(head, line.text, message, line.node, line.own, users, image, perhaps)
    form, tag = (_SLURM, _SLURM_TAG) if source is Source.SLURM else (_DCGM, _DCGM_TAG)
    syslog = _SYSLOG.match(raw) if not bare else None
    if syslog is not None and not tag.match(syslog["tag"]):
        return Said(raw[: len(raw) - len(syslog["text"])], syslog["text"], syslog["text"], syslog["host"], False)
    found = form.match(syslog["text"] if syslog else raw)
    text = found["text"] if found else raw
    return Said(raw[: len(raw) - len(text)], text, text, syslog["host"] if syslog else None, True)
