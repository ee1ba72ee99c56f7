"""The systemd units: bounded, never given up, and with the rights that the services need."""

from __future__ import annotations

from pathlib import Path

import pytest

from sentinel.agent.settings import AgentSettings

UNITS = Path(__file__).parents[3] / "deploy" / "systemd"


def read(name: str) -> dict[str, dict[str, list[str]]]:
    """Sections, keys, and every value that a key was given."""
    found: dict[str, dict[str, list[str]]] = {}
    section = ""
    for number, line in enumerate((UNITS / name).read_text().splitlines(), 1):
        if not line or line.startswith(("#", ";")):
            continue
        if line.startswith("["):
            assert line.endswith("]"), f"{name}:{number}"
            section = line[1:-1]
            continue
        key, equals, value = line.partition("=")
        assert section and equals and key.isalpha() and value == value.strip(), f"{name}:{number}: {line!r}"
        found.setdefault(section, {}).setdefault(key, []).append(value)
    return found


def size(text: str) -> int:
    return int(text[:-1]) << {"K": 10, "M": 20, "G": 30}[text[-1]]


@pytest.mark.parametrize("name", ["sentinel-agent.service", "sentinel-daemon.service"])
def test_each_is_bounded_and_never_given_up(name: str) -> None:
    unit = read(name)
    assert set(unit) == {"Unit", "Service", "Install"}
    service = unit["Service"]
    twice = {key for key, values in service.items() if len(values) > 1}
    assert twice <= {"ReadWritePaths"}, "a key that is given twice, of which the last counts"
    assert size(service["MemoryHigh"][0]) < size(service["MemoryMax"][0]) <= 2 << 30
    assert 0 < int(service["TasksMax"][0]) <= 512
    assert 0 < int(service["LimitNOFILE"][0]) <= 1 << 16
    assert service["Restart"] == ["always"] and int(service["RestartSec"][0]) <= 5
    assert unit["Unit"]["StartLimitIntervalSec"] == ["0"]
    assert int(service["TimeoutStopSec"][0]) <= 30
    assert "munge.service" in unit["Unit"]["After"][0]
    assert "Requires" not in unit["Unit"], "what it watches may be down without pulling it down"
    assert service["NoNewPrivileges"] == ["yes"]
    assert unit["Install"]["WantedBy"] == ["multi-user.target"]


def test_the_agent_may_do_what_it_does() -> None:
    service = read("sentinel-agent.service")["Service"]
    rights = set(service["CapabilityBoundingSet"][0].split())
    # Kernel log; becoming a job's user; environments and files of processes; ending what was left behind.
    assert {"CAP_SYSLOG", "CAP_SETUID", "CAP_SETGID", "CAP_SYS_PTRACE", "CAP_KILL"} <= rights
    # It looks into /tmp, homes and /dev as the jobs see them.
    assert not {
        "PrivateTmp",
        "PrivateDevices",
        "ProtectHome",
        "ProtectKernelLogs",
        "ProtectProc",
        "PrivateMounts",
    } & set(service)
    assert service["RuntimeDirectory"] == ["sentinel"] and service["RuntimeDirectoryPreserve"] == ["yes"]
    assert int(service["OOMScoreAdjust"][0]) < 0
    assert service["OOMPolicy"] == ["continue"], "a child that a user's files made too large takes nobody with it"
    assert AgentSettings().jobs.memory_bytes < size(service["MemoryHigh"][0])


def test_the_daemon_is_nobody_in_particular() -> None:
    service = read("sentinel-daemon.service")["Service"]
    assert service["User"] != ["root"] and service["CapabilityBoundingSet"] == [""]
    assert service["ProtectSystem"] == ["strict"] and service["PrivateDevices"] == ["yes"]
