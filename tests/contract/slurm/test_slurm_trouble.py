"""Bad days on a real cluster: what the adapter over commands says when Slurm, munge or a command does not do its part."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from servers.slurm_cluster import Cluster

from sentinel.adapters.slurm.commands import CommandReader, CommandWriter
from sentinel.adapters.slurm.connect import connect
from sentinel.config.settings import Slurm
from sentinel.errors import Denied, Refused, Timeout, Unavailable


def settings(cluster: Cluster) -> dict[str, str]:
    return {"SLURM_CONF": str(cluster.conf)}


def command(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text("#!/bin/sh\n" + script)
    path.chmod(0o755)


def requests_of(cluster: Cluster) -> int:
    """Requests that slurmctld has counted, those of sdiag and scontrol ping left out."""
    counted = 0
    lines = cluster.command("sdiag").partition("by message type")[2].partition("by user")[0].splitlines()
    for line in lines:
        words = line.replace("(", " ").replace(")", " ").split()
        if (
            len(words) > 2
            and words[0].startswith("REQUEST_")
            and words[0] not in {"REQUEST_STATS_INFO", "REQUEST_PING"}
        ):
            counted += int(next(word for word in words if word.startswith("count:")).removeprefix("count:"))
    return counted


@pytest.fixture
async def quiet(real_slurm: Cluster) -> AsyncIterator[Cluster]:
    """The cluster, with all nodes answering before and after."""
    yield real_slurm
    real_slurm.wait(lambda: set(real_slurm.node_states().values()) == {"IDLE"}, "all nodes idle")


@pytest.mark.slurm
async def test_a_fleet_costs_the_same_few_requests_whatever_is_in_it(quiet: Cluster) -> None:
    reader = CommandReader(environment=settings(quiet))
    await reader.fleet()  # learns the release of the commands

    async def cost() -> int:
        quiet.command("sdiag", "-r")
        await reader.fleet()
        return requests_of(quiet)

    async def least() -> int:
        """slurmd may still have something to say of jobs before; more often than once it has not."""
        return min([await cost() for _ in range(3)])

    few = await least()
    jobs = [quiet.submit("true\n", "--hold") for _ in range(30)]
    assert len((await reader.fleet()).jobs) >= 30
    assert await least() == few <= 3  # newer sinfo and scontrol ask for the partitions as well
    quiet.command("scancel", *(str(job) for job in jobs))


@pytest.mark.slurm
async def test_munge_trouble_is_denied_and_never_an_empty_fleet(quiet: Cluster) -> None:
    reader = CommandReader(environment=settings(quiet), deadline_s=60)
    socket = quiet.folder / "munge" / "socket"
    aside = socket.with_name("aside")
    socket.rename(aside)
    try:
        with pytest.raises(Denied):
            await reader.fleet()
        with pytest.raises(Denied):
            await CommandWriter(environment=settings(quiet), deadline_s=60).drain("n1", "sentinel: i42")
    finally:
        aside.rename(socket)
    assert sorted((await reader.fleet()).nodes) == quiet.names


@pytest.mark.slurm
async def test_without_a_controller_nothing_is_known(quiet: Cluster) -> None:
    reader = CommandReader(environment=settings(quiet), deadline_s=60)
    quiet.stop("slurmctld")
    try:
        with pytest.raises(Unavailable):
            await reader.fleet()
        with pytest.raises(Unavailable):
            await reader.version()
    finally:
        quiet.start_controller()
    assert sorted((await reader.fleet()).nodes) == quiet.names


@pytest.mark.slurm
async def test_connect_says_which_way_and_why(quiet: Cluster) -> None:
    reader, _, how = connect(Slurm(conf=str(quiet.conf)))
    assert ("pyslurm" in how) and ("commands" in how or "scontrol" in how)
    assert sorted((await reader.fleet()).nodes) == quiet.names


async def test_a_wrong_configuration_is_unavailable(tmp_path: Path) -> None:
    command(tmp_path, "scontrol", 'echo "scontrol: error: Could not establish a configuration source" >&2; exit 1\n')
    with pytest.raises(Unavailable, match="configuration source"):
        await CommandReader(bin=str(tmp_path)).fleet()


async def test_missing_commands_name_the_fix(tmp_path: Path) -> None:
    with pytest.raises(Unavailable) as caught:
        await CommandReader(bin=str(tmp_path)).version()
    assert "install" in caught.value.fix


async def test_a_command_past_its_deadline_dies_with_its_children(tmp_path: Path) -> None:
    command(tmp_path, "scontrol", f"trap '' TERM\nsleep 300 &\necho $! > {tmp_path}/child\nsleep 300\n")
    with pytest.raises(Timeout):
        await CommandReader(bin=str(tmp_path), environment={"PATH": os.environ["PATH"]}, deadline_s=3).version()
    child = int((tmp_path / "child").read_text())
    for _ in range(1200):  # a killed process is gone when the kernel next runs it, which a busy machine puts off
        try:
            state = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return
        if state == "Z":
            return
        await asyncio.sleep(0.05)
    os.kill(child, signal.SIGKILL)
    pytest.fail("the command's child outlived its deadline")


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ("slurm_load_jobs error: Protocol authentication error", Denied),
        ("slurm_load_jobs error: Invalid user id", Denied),
        ("slurm_update error: Access/permission denied", Denied),
        ("sinfo: error: If munged is up, restart with --num-threads=10\nUnable to contact slurm controller", Denied),
        ("slurm_load_jobs error: Unable to contact slurm controller (connect failure)", Unavailable),
        ("slurm_load_jobs error: Socket timed out on send/recv operation", Unavailable),
        ("slurm_load_jobs error: Something nobody has seen yet", Unavailable),
    ],
)
async def test_no_complaint_reads_as_an_empty_fleet(tmp_path: Path, said: str, error: type[Exception]) -> None:
    command(
        tmp_path, "scontrol", f"[ $1 = --version ] && echo slurm 24.11.5 && exit 0\ncat >&2 <<'E'\n{said}\nE\nexit 1\n"
    )
    with pytest.raises(error):
        await CommandReader(bin=f"{tmp_path}:/usr/bin:/bin").fleet()


@pytest.mark.parametrize(
    "printed",
    [
        "",
        "{",
        '{"nodes": [{"name": "n1"',
        '{"jobs": []}',
        '{"nodes": {"n1": {}}}',
        '{"nodes": []}',
        '{"nodes": [{}]}',
        "[]",
        "null",
    ],
)
async def test_a_torn_answer_is_not_known(tmp_path: Path, printed: str) -> None:
    command(tmp_path, "scontrol", f"[ $1 = --version ] && echo slurm 24.11.5 && exit 0\ncat <<'E'\n{printed}\nE\n")
    with pytest.raises(Unavailable):
        await CommandReader(bin=f"{tmp_path}:/usr/bin:/bin").fleet()


async def test_every_request_is_counted_and_how_it_ended(tmp_path: Path) -> None:
    asked: list[str] = []
    nodes = '{"nodes": [{"name": "n1", "state": ["IDLE"], "topology": "s1:n1"}]}'
    said = f"case $5 in\nnodes) echo '{nodes}' ;;\njobs) echo 'Unable to contact slurm controller' >&2; exit 1 ;;\nesac"
    command(tmp_path, "scontrol", f"[ $1 = --version ] && echo slurm 24.11.5 && exit 0\n{said}\n")
    reader = CommandReader(bin=f"{tmp_path}:/usr/bin:/bin", asked=asked.append)
    assert await reader.node("n1") is not None
    with pytest.raises(Unavailable):
        await reader.fleet()
    command(tmp_path, "scontrol", "echo 'slurm_update error: Invalid node name specified' >&2; exit 1")
    with pytest.raises(Unavailable):
        await reader.version()
    assert asked == ["answered", "answered", "unavailable", "answered"]


@pytest.mark.parametrize(("ends", "unread"), [
    ("echo 'SwitchName=s1 Level=0 LinkSpeed=1 Nodes=n1'", []),
    ("echo 'slurm_load_topo error: Requested operation not supported on this cluster' >&2; exit 1", []),
    ("echo 'slurm_load_topo error: Socket timed out on send/recv operation' >&2; exit 1", ["switches"]),
    ("echo 'SwitchName=s1 Level=0 LinkSpeed=1 Nodes=n[1-'", ["switches"]),
])  # fmt: skip
async def test_a_fleet_says_that_its_switches_could_not_be_read(tmp_path: Path, ends: str, unread: list[str]) -> None:
    nodes, jobs = '{"nodes": [{"name": "n1", "state": ["IDLE"]}]}', '{"jobs": []}'
    said = f"[ $2 = topology ] && {{ {ends}; exit 0; }}\n[ $5 = nodes ] && echo '{nodes}' || echo '{jobs}'"
    command(tmp_path, "scontrol", f"[ $1 = --version ] && echo slurm 24.11.5 && exit 0\n{said}\n")
    fleet = await CommandReader(bin=f"{tmp_path}:/usr/bin:/bin").fleet()
    assert [item.what for item in fleet.unread] == unread and list(fleet.nodes) == ["n1"]


async def test_a_user_who_may_not_be_let_into_a_reservation_is_a_no_and_munge_away_is_none(tmp_path: Path) -> None:
    """26.05 knows no user nobody, for one: a restart must not wait for ever for a node that is not lent."""
    said = "echo 'slurm_update error: Invalid user id' >&2; exit 1"
    kept = "ReservationName=spares Nodes=n1 Users=root Groups=(null)"
    command(tmp_path, "scontrol", f"[ $1 = update ] || {{ echo '{kept}'; exit 0; }}\n{said}\n")
    writer = CommandWriter(bin=f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(Refused, match="users of reservation spares"):
        await writer.give_access("spares", "nobody")
    await writer.end_access("spares", "nobody")
    with pytest.raises(Refused):
        await writer.end_access("spares", "root")
    command(tmp_path, "scontrol", said)
    with pytest.raises(Denied):
        await writer.give_access("spares", "nobody")
