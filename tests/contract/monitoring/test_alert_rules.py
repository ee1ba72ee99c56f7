"""The alert rules and the metrics that they need, by Prometheus's own tool."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from sentinel.telemetry import Telemetry, described_metrics

FOLDER = Path(__file__).parents[3] / "deploy/prometheus"
PROMTOOL = shutil.which("promtool")
pytestmark = pytest.mark.skipif(PROMTOOL is None, reason="needs promtool")


def promtool(*words: str, said: bytes = b"") -> str:
    assert PROMTOOL is not None
    done = subprocess.run([PROMTOOL, *words], input=said, cwd=FOLDER, capture_output=True, timeout=60, check=False)
    output = (done.stdout + done.stderr).decode()
    assert done.returncode == 0, output
    return output


def test_every_rule_is_tested_and_fires_where_it_must() -> None:
    promtool("check", "rules", "alerts.yml")
    promtool("test", "rules", "alerts_test.yml")
    rules = set(re.findall(r"alert: (\w+)", (FOLDER / "alerts.yml").read_text()))
    assert rules and rules == set(re.findall(r"alertname: (\w+)", (FOLDER / "alerts_test.yml").read_text()))


def test_rules_ask_for_metrics_that_are_there() -> None:
    known = {name for name, _, _, _ in described_metrics()}
    asked = set(
        re.findall(r"sentinel_[a-z_]+", "\n".join(re.findall(r"expr: (.*)", (FOLDER / "alerts.yml").read_text())))
    )
    assert asked and asked <= known


def test_metrics_have_names_and_units_that_prometheus_s_own_tool_likes() -> None:
    registry = CollectorRegistry()
    Telemetry(registry)
    assert promtool("check", "metrics", said=generate_latest(registry)).strip() == ""
