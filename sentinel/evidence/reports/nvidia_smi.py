"""What ``nvidia-smi`` prints as XML, as a query's table, as its page and of NVLink, as sentences.

The text of ``nvidia-smi -q`` says its values in whole lines already. Counts over a board's life (aggregate) tell what was,
and are no sentence here. "N/A", "[N/A]" and "[Not Supported]" say nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from sentinel.evidence.reports.page import Page, gpu_number, positive

FAILED = "GPU {gpu} had uncorrectable memory errors and row remapping failed"
PENDING = "GPU {gpu} had memory errors and row remappings are pending"
RETIRED = "GPU {gpu} had memory errors: Pending Page Blacklist : Yes"
ERRORS = "GPU {gpu} has {value} uncorrectable ECC errors"
THRESHOLD = "GPU {gpu} has uncorrectable ECC errors of SRAM above the threshold"
WIDTH = "GPU {gpu} PCIe link width x{now}, expected x{most}"
_ALL_LANES = re.compile(
    r"SXM|HBM|\b[ABHV][1-3]00\b"
)  # boards that machines are built around; others stand in slots of x8, too
_HALF = 8
THERMAL = "GPU {gpu}: HW Thermal Slowdown : Active"
SLOW = "GPU {gpu}: HW Slowdown : Active"
BRAKE = "GPU {gpu}: HW Power Brake Slowdown : Active"
ACTION = "GPU {gpu} asks for a recovery. Recovery action: {value}"
JOINING = "        State                             : In Progress"  # as ``-q`` prints it
LOST = "GPU {gpu} is lost"
RESET = "GPU {gpu} requires a reset to recover from a fault. Recovery action: 1 (GPU_RESET)"
DRAIN_RESET = "GPU {gpu} operates at reduced capacity. Recovery action: 4 (DRAIN_AND_RESET)"
REPAIR = "GPU {gpu}: Channel Repair Pending : Yes"
ANSWERLESS = "| ERR! | GPU {gpu} | ERR! ERR! |"  # as the page prints one whose values NVML cannot read
_ACTIONS = {
    "reset": "1 (GPU_RESET)", "gpu reset": "1 (GPU_RESET)", "reboot": "2 (NODE_REBOOT)", "node reboot": "2 (NODE_REBOOT)",
    "drain and reset": "4 (DRAIN_AND_RESET)", "drain p2p": "3 (DRAIN_P2P)",
}  # fmt: skip


def _yes(value: str) -> bool:
    return value.strip().lower() in ("yes", "1", "active")


# What a value says, by XML element and by the query's field; an aggregate count has other names.
_SAYS: tuple[tuple[str, Callable[[str], bool], str], ...] = (
    (r"remapped_row_failure|remapped_rows\.failure", _yes, FAILED),
    (r"remapped_row_pending|remapped_rows\.pending", _yes, PENDING),
    (r"pending_blacklist|pending_retirement|retired_pages\.pending", _yes, RETIRED),
    (r"sram_threshold_exceeded", _yes, THRESHOLD),
    (r"(?:channel|tpc)_repair_pending", _yes, REPAIR),
    (r"(?:reset_status\.)?reset_required", _yes, RESET),
    (r"(?:reset_status\.)?drain_and_reset_recommended", _yes, DRAIN_RESET),
    (r"dram_uncorrectable|sram_uncorrectable\w{0,20}", positive, ERRORS),
    (r"ecc\.errors\.uncorrected\.volatile\.\w{1,24}", positive, ERRORS),
    (r"clocks_(?:event|throttle)_reasons?[._]hw_thermal_slowdown", _yes, THERMAL),
    (r"clocks_(?:event|throttle)_reasons?[._]hw_power_brake_slowdown", _yes, BRAKE),
    (r"clocks_(?:event|throttle)_reasons?[._]hw_slowdown", _yes, SLOW),
    (r"gpu_recovery_action", lambda value: value.strip().lower() in _ACTIONS, ACTION),
)
_READY = tuple((re.compile(name), holds, sentence) for name, holds, sentence in _SAYS)
_ELEMENT = re.compile(r"^\s{0,80}<([a-z]\w{1,60})>([^<\n]{0,200})</\1>\s{0,8}$")
_OPENED = re.compile(r"^\s{0,80}<(/?[a-z]\w{1,60})(?: [^>\n]{0,200})?>\s{0,8}$")


def _value_says(page: Page, line: int, name: str, value: str, gpu: int) -> None:
    if value.strip().strip("[]").lower() == "gpu is lost":
        page.say(line, LOST.format(gpu=gpu), gpu)
        return
    for known, holds, sentence in _READY:
        if known.fullmatch(name):
            if holds(value):
                word = _ACTIONS.get(value.strip().lower(), value.strip())
                page.say(line, sentence.format(gpu=gpu, value=word), gpu)
            return


def read_xml(page: Page) -> None:
    """``nvidia-smi -q -x``: one element a line."""
    inside, gpu, place, most, product = False, -1, [""], "", ""
    for number, line in enumerate(page.lines):
        if "<nvidia_smi_log" in line:
            inside, gpu, place = True, -1, [""]
        elif "</nvidia_smi_log" in line:
            inside = False
        if not inside:
            continue
        if element := _ELEMENT.match(line):
            name, value = element[1], element[2]
            page.silence(number)
            most = value if name == "max_link_width" else most
            product = value if name == "product_name" else product
            if name == "current_link_width":
                _width(page, number, value, most, product, max(gpu, 0))
            elif (place[-1], name, value) == ("fabric", "state", "In Progress"):
                page.say(number, JOINING, max(gpu, 0))
            elif "aggregate" not in place or name == "sram_threshold_exceeded":
                _value_says(page, number, name, value, max(gpu, 0))
        elif opened := _OPENED.match(line):
            gpu += opened[1] == "gpu"
            if opened[1].startswith("/"):
                place = place[:-1] or [""]
            elif len(place) < 64:
                place = [*place, opened[1]]


def _width(page: Page, line: int, value: str, most: str, product: str, gpu: int) -> None:
    now, widest = (gpu_number(text.strip().lower().removesuffix("x")) for text in (value, most))
    if now is not None and widest is not None and 0 < now < widest and (_ALL_LANES.search(product) or now < _HALF):
        page.say(line, WIDTH.format(gpu=gpu, now=now, most=widest), gpu)


_BOARD = re.compile(r"^GPU [0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]\s{0,8}$")
_OWN = re.compile(r"^\s{1,16}Product Name\s{2,60}: ([^\n]{1,80})$")
_LANES = re.compile(r"^\s{8,24}Current\s{2,60}: (\d{1,2})x\s{0,8}$")


_SECTION = re.compile(r"^\s{8,24}(Volatile|Aggregate|Single Bit|Double Bit)\s{0,8}$")
_TOTAL = re.compile(r"^\s{8,24}Total\s{2,60}: (\d{1,12})\s{0,8}$")


def read_list(page: Page) -> None:
    """``nvidia-smi -q``: its lines are read as they are, but for a width that is usual for the board, and the counts of
    drivers before 520, whose sections say what they count."""
    product, since, bits, gpu = "", "", "", -1
    for number, line in enumerate(page.lines):
        gpu += _BOARD.match(line) is not None
        if section := _SECTION.match(line):
            since, bits = (section[1], "") if section[1] in ("Volatile", "Aggregate") else (since, section[1])
        elif (since, bits) == ("Volatile", "Double Bit") and (total := _TOTAL.match(line)) and positive(total[1]):
            page.say(number, ERRORS.format(gpu=max(gpu, 0), value=total[1]), max(gpu, 0))
        if named := _OWN.match(line):
            product = named[1]
        elif product and (lanes := _LANES.match(line)) and int(lanes[1]) >= _HALF and not _ALL_LANES.search(product):
            page.silence(number)


# --------------------------------------------------------------------------------------------------------- a query

_FIELD = re.compile(r"[a-z][a-z0-9_]{1,40}(?:\.[a-z0-9_]{1,40}){0,5}(?: \[[A-Za-z/%]{1,6}\])?")
_QUERIED = re.compile(r"(?:^|, ?)(?:index|uuid|gpu_uuid|gpu_bus_id|pci\.bus_id|gpu_name|name|serial|timestamp)(?:,|$)")
_ITS_OWN = re.compile(  # what no other table has a column of
    r"(?:^|, ?)(?:ecc|remapped_rows|retired_pages|clocks\w{0,24}|pcie?|temperature|power|utilization|memory|mig|inforom)\."
    r"|(?:^|, ?)(?:gpu_bus_id|gpu_uuid|driver_version|persistence_mode|pstate|compute_cap)(?:,|$)"
)
_UNITS = re.compile(r" \[[A-Za-z/%]{1,6}\]$")


def read_queries(page: Page) -> None:
    """``nvidia-smi --query-gpu=... --format=csv``: a line of names, and one for each GPU."""
    names: list[str] = []
    row = 0
    for number, line in enumerate(page.lines):
        cells = [cell.strip() for cell in line.split(",")] if "," in line else []
        if (
            len(cells) > 1
            and all(map(_FIELD.fullmatch, cells))
            and _QUERIED.search(line.strip())
            and _ITS_OWN.search(line.strip())
        ):
            names, row = [_UNITS.sub("", cell) for cell in cells], 0
            page.silence(number)
        elif names and len(cells) == len(names):
            _query_row(page, number, names, cells, row)
            row += 1
        else:
            names = []


def _query_row(page: Page, number: int, names: Sequence[str], cells: Sequence[str], row: int) -> None:
    values = dict(zip(names, cells, strict=True))
    told = gpu_number(values.get("index", ""))
    gpu = row if told is None else told
    page.silence(number)
    words = {cell.strip("[]").lower() for cell in cells if cell.startswith("[")}
    if "gpu is lost" in words:
        page.say(number, LOST.format(gpu=gpu), gpu)
    elif "gpu requires reset" in words:
        page.say(number, RESET.format(gpu=gpu), gpu)
    elif "unknown error" in words:
        page.say(number, ANSWERLESS.format(gpu=gpu), gpu)
    for name, value in values.items():
        if not value.startswith("["):
            _value_says(page, number, name, value, gpu)
    widest = values.get("pcie.link.width.max", "")
    product = values.get("name", values.get("gpu_name", ""))
    _width(page, number, values.get("pcie.link.width.current", ""), widest, product, gpu)


# -------------------------------------------------------------------------------------------------------- the page

_HEAD = "Volatile Uncorr. ECC"
_CARD = re.compile(
    r"^\|\s{1,4}(\d{1,3})\s[^|]{4,60}\|[^|]{0,4}(?:[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])[^|]{1,12}\|\s{0,24}(\S{1,6})\s{1,4}\|"
)


def read_page(page: Page) -> None:
    """The page of ``nvidia-smi`` alone: the count of uncorrectable errors stands in a column of its own."""
    known = False
    for number, line in enumerate(page.lines):
        known = known or _HEAD in line
        card = _CARD.match(line) if known else None
        if card and positive(card[2]):
            gpu = gpu_number(card[1])
            page.say(number, ERRORS.format(gpu=gpu, value=card[2]), gpu)


_MONITORED = re.compile(r"^# gpu {1,16}\w")


def read_dmon(page: Page) -> None:
    """``nvidia-smi dmon -s e``: errors of each GPU in columns."""
    names: list[str] = []
    for number, line in enumerate(page.lines):
        cells = line.split()
        if _MONITORED.match(line):
            names = cells[1:]
        elif names and "dbecc" in names and len(cells) == len(names) and (gpu := gpu_number(cells[0])) is not None:
            count = cells[names.index("dbecc")]
            if positive(count):
                page.say(number, ERRORS.format(gpu=gpu, value=count), gpu)
        elif not line.startswith("# "):
            names = []


# ----------------------------------------------------------------------------------------------------------- links

_OF = re.compile(r"^GPU (\d{1,5}): \S[^\n]{0,120}\(UUID: [\w-]{1,60}\)")
_LINK = re.compile(r"^\s{1,16}Link (\d{1,3}): ([A-Z][\w /-]{2,60}?)(?: - \d{1,3})?: {0,4}(\S{1,24})\s{0,8}$")
_BROKEN = re.compile(
    r"(?:Replay|Recovery|Malformed packet|Buffer overrun|Local link integrity|Rx remote) Errors?|Link recovery failed events"
)


def read_links(page: Page) -> None:
    """``nvidia-smi nvlink -e``: counts and rates of each link. Corrected errors (FEC, BER) are part of its life."""
    gpu: int | None = None
    for number, line in enumerate(page.lines):
        if card := _OF.match(line):
            gpu = gpu_number(card[1])
        elif gpu is not None and (link := _LINK.match(line)):
            page.silence(number)
            if _BROKEN.fullmatch(link[2]) and positive(link[3]):
                page.say(number, f"NVLink {link[1]} of GPU {gpu}: {link[3]} {link[2].lower()}", gpu)
