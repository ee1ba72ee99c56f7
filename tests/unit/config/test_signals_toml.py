"""Signals and counters as data: what ships is whole, and every mistake is told with file, line, key and the fix."""

from __future__ import annotations

from pathlib import Path

import pytest

from sentinel.config.signals_files import load_signals
from sentinel.config.signals_toml import parse_signals
from sentinel.errors import FileError
from sentinel.model.records import Cause, Scope

GOOD = """\
# storage
[[signal]]
id = "nas-down"
words = "the NAS does not answer"
query = 'up{job="nas"}'
below = 1
cause = "filesystem_storage"

[[signal]]
id = "port-errors"
words = "a port counts errors"
query = 'increase(errors[5m])'
above = 10
for_s = 0
cause = "network_fabric"
scope = "link"
weight = 1.5
node_label = "instance"
node_pattern = '^([^.:]+)'

[[counter]]
name = "pcie_replays"
words = "PCIe replays"
cause = "pcie"
per_day = 50
limit = 1e6
"""


def refused(text: str) -> FileError:
    with pytest.raises(FileError) as caught:
        parse_signals([("signals.toml", text)])
    assert str(caught.value).startswith("signals.toml") and caught.value.fix
    return caught.value


def test_what_is_written_arrives() -> None:
    made = parse_signals([("a.toml", GOOD)])
    nas, ports = made.signals["nas-down"], made.signals["port-errors"]
    assert (nas.below, nas.above, nas.for_s, nas.scope, nas.cause) == (
        1.0,
        None,
        60.0,
        Scope.CLUSTER,
        Cause.FILESYSTEM_STORAGE,
    )
    assert (ports.above, ports.for_s, ports.scope, ports.node_label, ports.weight) == (
        10.0,
        0.0,
        Scope.LINK,
        "instance",
        1.5,
    )
    assert (made.counters["pcie_replays"].per_day, made.counters["pcie_replays"].limit) == (50.0, 1e6)


def test_shipped_signals_and_counters_are_whole() -> None:
    made = load_signals()
    assert len(made.signals) >= 10 and len(made.counters) >= 4
    assert {"filesystem_storage", "network_fabric", "gpu_thermal_power"} <= {s.cause for s in made.signals.values()}
    assert all(signal.words and signal.query for signal in made.signals.values())
    assert all(signal.node_label for signal in made.signals.values() if signal.scope is not Scope.CLUSTER)


@pytest.mark.parametrize(
    ("wrong", "right", "line", "key", "says"),
    [
        ("forr_s = 5", "below = 1", 6, "forr_s", "unknown key"),
        ('id = "NAS down"', 'id = "nas-down"', 3, "id", "not an id"),
        ("id = 7", 'id = "nas-down"', 3, "id", "is text"),
        ('query = ""', "query = 'up{job=\"nas\"}'", 5, "query", "missing"),
        ("below = 1\nabove = 2", "below = 1", 6, "below", "exactly one"),
        ('below = "1"', "below = 1", 6, "below", "is a number"),
        ("below = true", "below = 1", 6, "below", "is a number"),
        ("below = nan", "below = 1", 6, "below", "is a number"),
        (f"below = {10**400}", "below = 1", 6, "below", "is a number"),
        ('cause = "gremlins"', 'cause = "filesystem_storage"', 7, "cause", "no cause"),
        ('cause = "unknown"', 'cause = "filesystem_storage"', 7, "cause", "no cause"),
        ('scope = "galaxy"', 'scope = "link"', 16, "scope", "no scope"),
        ("weight = 40", "weight = 1.5", 17, "weight", "above 4"),
        ("for_s = 1e9", "for_s = 0", 14, "for_s", "above 3600"),
        ("node_pattern = '('", "node_pattern = '^([^.:]+)'", 19, "node_pattern", "bad regular expression"),
        ("node_pattern = '(a)(b)'", "node_pattern = '^([^.:]+)'", 19, "node_pattern", "2 groups"),
        ('node_label = ""', 'node_label = "instance"', 18, "node_label", "missing: scope is link"),
        ('id = "nas-down"', 'id = "port-errors"', 10, "id", "already taken by signals.toml"),
        ("per_day = -1", "per_day = 50", 25, "per_day", "below 0"),
        ("least_days = 0", "limit = 1e6", 26, "least_days", "below 1"),
    ],
)  # fmt: skip
def test_mistakes(wrong: str, right: str, line: int, key: str, says: str) -> None:
    assert right in GOOD
    error = refused(GOOD.replace(right, wrong, 1) if right != 'id = "port-errors"' else GOOD.replace(right, wrong))
    assert says in str(error) and error.key == key and error.line == line, (str(error), error.line)


def test_missing_limit_and_other_tables() -> None:
    assert "exactly one limit" in str(refused(GOOD.replace("below = 1\n", "")))
    error = refused(GOOD + "\n[rule]\nid = 1\n")
    assert "unknown table" in str(error) and error.line == 28
    assert "double brackets" in refused("[signal]\nid = 'x'\n").fix
    assert refused("[[signal]]\nid = \n").line == 2


def test_site_overrides_by_id_and_not_twice(tmp_path: Path) -> None:
    site = tmp_path / "site.toml"
    site.write_text(GOOD.replace("nas-down", "ceph-error"))
    made = load_signals(site)
    assert made.signals["ceph-error"].words == "the NAS does not answer" and made.counters["pcie_replays"].limit == 1e6
    site.write_text(GOOD + GOOD)
    with pytest.raises(FileError, match="already taken"):
        load_signals(site)
    assert (
        load_signals(tmp_path / "empty").signals if (tmp_path / "empty").mkdir() else True
    )  # an empty folder adds nothing
    with pytest.raises(FileError, match="no such file") as caught:
        load_signals(tmp_path / "missing.toml")
    assert caught.value.key == "prometheus.rules" and caught.value.fix
