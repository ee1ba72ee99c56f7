"""Options and fixtures that all tests share.

``--require=slurm,postgres,torch,prometheus``: where the named thing is missing, a test that needs it fails instead of being
skipped.
``--deep``: also the tests marked ``deep``: the same stories at more moments and places, which CI has no time for.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator

import pytest
from hypothesis import HealthCheck, settings
from in_memory.slurm import FakeSlurm
from servers import postgres, slurm_cluster

# The same examples each time, however slow the machine: a test that fails does so for everybody.
settings.register_profile(
    "same", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("same")

# requirement -> words by which a skip's reason betrays that this is what was missing
REQUIREMENTS = {
    "slurm": re.compile(r"\b(slurm|slurmctld|slurmd|munged|munge|sbatch)\b", re.IGNORECASE),
    "postgres": re.compile(r"\b(postgres|postgresql|initdb|psycopg)\b", re.IGNORECASE),
    "torch": re.compile(r"\b(torch|pytorch)\b", re.IGNORECASE),
    "prometheus": re.compile(r"\bprogram prometheus\b", re.IGNORECASE),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require",
        default="",
        metavar="NAMES",
        help=f"comma-separated, of {', '.join(REQUIREMENTS)}: skipping for want of one of these is a failure",
    )

    parser.addoption("--deep", action="store_true", help="also what CI has no time for")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--deep"):
        return
    deep = [item for item in items if item.get_closest_marker("deep")]
    if deep:
        config.hook.pytest_deselected(items=deep)
        items[:] = [item for item in items if not item.get_closest_marker("deep")]


def pytest_configure(config: pytest.Config) -> None:
    unknown = set(_required(config)) - set(REQUIREMENTS)
    if unknown:
        raise pytest.UsageError(
            f"--require: no such thing: {', '.join(sorted(unknown))}; known: {', '.join(REQUIREMENTS)}"
        )


def _required(config: pytest.Config) -> list[str]:
    return [name for name in str(config.getoption("--require")).split(",") if name]


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    return str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else str(report.longrepr)


def _wanted(config: pytest.Config, reason: str, marks: set[str]) -> str | None:
    """The required thing for whose want something was skipped. What calls itself optional is never required."""
    if "optional" in reason:
        return None
    return next((name for name in _required(config) if name in marks or REQUIREMENTS[name].search(reason)), None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = _reason(report)
        wanted = _wanted(item.config, reason, {mark.name for mark in item.iter_markers()})
        if wanted:
            report.outcome = "failed"
            report.longrepr = f"{item.nodeid}: skipped although {wanted} is required here: {reason}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if report.outcome == "skipped":
        reason = _reason(report)
        wanted = _wanted(collector.config, reason, set())
        if wanted:
            report.outcome = "failed"
            report.longrepr = f"{collector.nodeid}: skipped although {wanted} is required here: {reason}"
    return report


@pytest.fixture
def fake_slurm() -> FakeSlurm:
    """Slurm in memory, four nodes of eight GPUs."""
    return FakeSlurm()


@pytest.fixture(scope="session")
def real_slurm() -> Iterator[slurm_cluster.Cluster]:
    """A real Slurm cluster of four nodes; what a test changes, it puts back. Mark the test ``slurm``."""
    why = slurm_cluster.missing()
    if why:
        pytest.skip(f"needs slurm: {why}")
    with slurm_cluster.Cluster(4) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """SQLAlchemy URL of an empty PostgreSQL server. Mark the test ``postgres``."""
    why = postgres.missing()
    if why:
        pytest.skip(f"needs postgres: {why}")
    with postgres.PostgresServer() as server:
        yield server.url
