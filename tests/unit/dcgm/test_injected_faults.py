"""Hundreds of injected faults in random order and overlap, with replays, restarts and clock steps: each told once, none
invented."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import pytest

from sentinel.config.rules_files import load_convictions
from sentinel.evidence.dcgm import DcgmReader
from sentinel.evidence.gpu_samples import Gpu, HealthIncident, Sample
from sentinel.evidence.xid_cursor import XidCursor
from sentinel.model.records import Evidence, utc

RULES = load_convictions()
HEALTHY = {150: 41, 155: 90.5, 112: 1, 203: 3, 252: 812, 395: 0, 396: 0, 346: 0, 1507: 0, 171: 0, 1523: 0, 311: 0, 319: 0,
           393: 0, 202: 0, 429: 0, 439: 0, 238: 16, 236: 16, 158: 87, 66: 1}  # fmt: skip
FLAGS = {395: "row_remap_failure", 396: "row_remap_pending", 346: "sram_threshold", 1507: "memory_unrepairable",
         171: "fabric_manager"}  # fmt: skip
COUNTERS = {311: "ecc_dbe", 319: "ecc_dbe", 393: "row_remap_uncorrectable", 429: "nvlink_errors", 439: "nvlink_errors"}
XIDS = (13, 31, 43, 48, 63, 74, 79, 94, 95, 119, 154)


class Node:
    """Eight GPUs whose faults begin and end; remembers what has to be told, once each."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now_s, self.true_s = 1_900_000_000.0, 0.0
        self.fields: list[dict[int, Any]] = [dict(HEALTHY) for _ in range(8)]
        self.lost: dict[int, str] = {}  # GPU -> "listed", "nameless" or "gone"
        self.events: list[tuple[int, int, int, float]] = []  # the engine keeps them for 300 s
        self.health: dict[tuple[int, int, int, int], HealthIncident] = {}
        self.due: Counter[tuple[str, str]] = Counter()
        self.reader = DcgmReader("n1", RULES, 8, boot="b")
        self.told: Counter[tuple[str, str]] = Counter()
        self.ids: set[str] = set()
        self.samples = 0

    def inject(self) -> None:
        gpu = self.random.randrange(8)
        which = self.random.choice(("xid", "xid", "flag", "counter", "action", "width", "lost", "health"))
        fields, uuid = self.fields[gpu], f"GPU-{gpu}"
        if which == "xid":
            xid, at_us = self.random.choice(XIDS), int(self.now_s * 1e6) - self.random.randrange(900_000)
            self.events.append((gpu, xid, at_us, self.true_s))
            self.due["xid", uuid] += 1
        elif which == "lost":
            if gpu in self.lost:
                return
            self.lost[gpu] = self.random.choice(("listed", "nameless", "gone"))
            self.due["gpu_lost", uuid] += 1
        elif gpu in self.lost:
            return
        elif which == "flag":
            number = self.random.choice(list(FLAGS))
            if not fields[number]:
                fields[number] = 1
                self.due[FLAGS[number], uuid] += 1
        elif which == "counter":
            number = self.random.choice(list(COUNTERS))
            fields[number] += self.random.randint(1, 5)
            self.due[COUNTERS[number], uuid] += 1
        elif which == "action" and not fields[1523]:
            fields[1523] = self.random.randint(1, 4)
            self.due["recovery_action", uuid] += 1
        elif which == "width" and fields[238] == 16:
            fields[238] = 8
            self.due["pcie_width", uuid] += 1
        elif which == "health":
            incident = HealthIncident(
                1, gpu, self.random.choice((1, 16, 0xFFFFFFFF)), self.random.choice((10, 20)), 101
            )
            key = (gpu, incident.system, incident.code, incident.health)
            if key not in self.health:
                self.health[key] = incident
                self.due["gpu_health", uuid] += 1

    def mend(self) -> None:
        """Something ends; a GPU that was lost comes back as another reading of the same board."""
        gpu = self.random.randrange(8)
        if self.lost.pop(gpu, None) is None:
            for number in (*FLAGS, 1523):
                if self.random.random() < 0.5:
                    self.fields[gpu][number] = 0
            self.fields[gpu][238] = 16

    def disturb(self) -> None:
        """The agent restarts, the engine restarts (and forgets health), or the clock is stepped."""
        which = self.random.choice(("agent", "engine", "clock"))
        if which == "agent":
            self.reader = DcgmReader("n1", RULES, 8, json.loads(json.dumps(self.reader.state)), boot="b")
            self.sample(full=True)  # counters have their base again
        elif which == "engine":
            self.health.clear()
            self.events.clear()
        else:
            self.now_s += self.random.choice((-7200.0, -45.0, -5.0, 5.0, 3600.0))

    def sample(self, full: bool) -> None:
        step_s = 0.5 + self.random.random() / 1000  # no two samples at one time, also after a step of the clock
        self.now_s += step_s
        self.true_s += step_s
        self.events = [event for event in self.events if event[3] > self.true_s - 300]
        shown = []
        for number in range(8):
            how = self.lost.get(number)
            if how == "gone":
                continue
            if how is not None:
                named = how == "listed"
                shown.append(Gpu(number, f"GPU-{number}" if named else None, None, None, 4, {}))
                continue
            fields = self.fields[number] if full else {key: self.fields[number][key] for key in (1523, 395, 319)}
            shown.append(Gpu(number, f"GPU-{number}", f"0000:{number:02x}:00.0", number, 1, dict(fields)))
        # What was given out before comes again at times, as after a restart of the probe.
        events = [event[:3] for event in self.events if event[3] > self.true_s - 1 or self.random.random() < 0.3]
        self.samples += 1
        health = tuple(self.health.values()) if full and self.samples % 5 == 0 else None
        self.hear(self.reader.read(Sample(utc(self.now_s), "dcgm", tuple(shown), tuple(events), health, full)))

    def hear(self, found: list[Evidence]) -> None:
        for item in found:
            assert item.id not in self.ids, f"two of one id: {item}"
            self.ids.add(item.id)
            self.told[str(item.kind), str(item.where.gpu_uuid)] += 1

    def settle(self) -> None:
        """Long enough for what was injected to be read."""
        for _ in range(6):
            self.sample(full=True)


def live(node: Node, faults: int) -> None:
    node.settle()
    injected = 0
    while injected < faults:
        before = node.due.total()
        node.inject()
        injected += node.due.total() > before
        full = node.random.random() < 0.5
        if node.random.random() < 0.6:
            node.sample(full)
            node.sample(True)  # each is read before it can end
            node.sample(True)
        else:
            node.settle()  # also by the health check
        if node.random.random() < 0.3:
            node.settle()
            node.mend()
            node.sample(True)
        if node.random.random() < 0.1:
            node.settle()
            node.disturb()
            node.settle()
    node.settle()


@pytest.mark.parametrize("seed", range(12))
def test_two_hundred_faults_are_each_told_once(seed: int) -> None:
    node = Node(seed)
    live(node, 200)
    invented, missed = node.told - node.due, node.due - node.told
    assert (dict(invented), dict(missed)) == ({}, {})


@pytest.mark.deep
def test_a_day_of_faults_leaves_nothing_behind() -> None:
    """As many samples as a day has, and what is kept does not grow with it."""
    node = Node(2031)
    sizes = []
    while node.true_s < 86400:
        live(node, 100)
        sizes.append(len(json.dumps(node.reader.state)))
    assert node.told == node.due
    assert max(sizes[len(sizes) // 2 :]) < 2 * max(sizes[: len(sizes) // 4])
    assert len(node.reader._counters) <= 8 * 12 and len(node.reader._slow) <= 8


def test_a_clock_set_back_by_less_than_a_minute_hides_no_xid() -> None:
    cursor = XidCursor()
    assert cursor.is_new(31, 1_000_000_000, 1000.0)
    assert cursor.is_new(79, 970_000_000, 971.0), "30 s earlier, and later all the same"
    assert not cursor.is_new(79, 970_000_000, 972.0)
    assert not cursor.is_new(31, 1_000_000_000, 972.0)


def test_a_clock_set_back_by_hours_tells_nothing_again() -> None:
    cursor = XidCursor()
    assert cursor.is_new(31, 10_000_000_000, 10000.0)
    assert not cursor.is_new(31, 10_000_000_000, 2800.0), "the engine still has it"
    assert cursor.is_new(79, 2_801_000_000, 2801.0)
    assert not XidCursor(json.loads(json.dumps(cursor.state))).is_new(79, 2_801_000_000, 2802.0)


def test_the_state_of_an_earlier_release_is_understood() -> None:
    cursor = XidCursor([5_000_000_000, [31, 79]])
    assert not cursor.is_new(79, 5_000_000_000, 5001.0)
    assert not cursor.is_new(48, 4_999_000_000, 5001.0), "told by that release"
    assert cursor.is_new(48, 5_000_000_001, 5001.0)


def test_a_flood_is_remembered_within_bounds() -> None:
    cursor = XidCursor()
    new = [cursor.is_new(31, 1_000_000_000 + n, 1001.0) for n in range(3000)]
    assert all(new) and len(cursor.state["told"]) <= 200
    assert not any(cursor.is_new(31, 1_000_000_000 + n, 1001.0) for n in range(3000))
