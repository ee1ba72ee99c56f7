"""Two daemons on one PostgreSQL: the active one is stopped in a recovery, the other ends it, the woken one does nothing."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest
import sqlalchemy as sa
from lab import processes
from servers.cut_network import CutNetwork
from servers.ports import free_ports
from servers.postgres import empty_database
from stories.timeline import Story, until

pytestmark = [pytest.mark.slurm, pytest.mark.postgres]
_SMALL = ("--nodes", "3", "--gpus", "2")
_PLAIN = {"sslmode": "disable", "gssencmode": "disable"}


class Pair:
    """The story's daemon, which is active, and a second one beside it, which every agent and command knows."""

    def __init__(self, story: Story, database: str, net: CutNetwork) -> None:
        """The first one reaches the database over ``net``, the second one by its socket."""
        self.story, self.net = story, net
        cuttable = sa.make_url(database).set(host="127.0.0.1", port=net.port, query=_PLAIN)
        through = cuttable.render_as_string(hide_password=False)
        first = story.paths.spec.daemon_port
        (second,) = free_ports(1)
        self.second_url = f"http://127.0.0.1:{second}"
        one = f'url = "http://127.0.0.1:{first}"'
        both = f'url = "http://127.0.0.1:{first},{self.second_url}"'
        story.restart_daemon({f"\n{one}": f'\n{both}\ndatabase = "{through}"'})
        self.wait_active(0)
        etc = story.lab.dir / "etc"
        text = (
            (etc / "sentinel.toml")
            .read_text()
            .replace(f'listen = "127.0.0.1:{first}"', f'listen = "127.0.0.1:{second}"')
            .replace(through, database)
        )
        (etc / "second.toml").write_text(text)
        command = [story.paths.spec.python, "-m", "sentinel", "daemon", "--config", str(etc / "second.toml")]
        story.call_lab(
            f"from lab import processes; processes.start(lab, 'second', {command!r}, log=lab.log / 'second.log')"
        )
        self.log = story.lab.dir / "log" / "second.log"
        until(lambda: self.log.exists() and "standing-by" in self.log.read_text(), lambda: story.read(self.log))
        for node in story.paths.names:
            path: Path = story.lab.dir / "nodes" / node / "sentinel.toml"
            path.write_text(path.read_text().replace(one, both))
            story.stop_agent(node, 15)
            story.start_agent(node)
        story.wait_agents()

    def wait_active(self, which: int) -> None:
        until(lambda: self.states()[:1] and self.states()[0][1] == which, lambda: f"{self.states()}")

    def states(self) -> list[tuple[str, int]]:
        """State of each daemon that is known, and which it is: 0, or 1 for the second one; the active one first."""
        seen = self.story.view("status")
        rows = seen["daemons"] if seen is not None else []
        return sorted((row["state"], int(row["address"] == getattr(self, "second_url", None))) for row in rows)

    def at(self, pattern: str, log: str | None = None) -> datetime:
        """When the second one's log says it for the first time."""
        for line in (log if log is not None else self.log.read_text()).splitlines():
            if re.search(pattern, line):
                return datetime.fromisoformat(line.split()[0])
        raise AssertionError(pattern)


@pytest.fixture
def pair(stages, postgres_url: str) -> Iterator[Pair]:
    stages.drop(*_SMALL)
    socket_of = Path(str(sa.make_url(postgres_url).query["host"])) / ".s.PGSQL.5432"
    with (
        empty_database(postgres_url) as database,
        CutNetwork(socket_of) as net,
        Story(stages.lab(*_SMALL)) as story,
    ):
        pair = Pair(story, database, net)
        yield pair
        second = processes.known(story.paths, "second")
        assert second is not None
        second.send(signal.SIGTERM)
        until(lambda: not second.alive, "the second daemon to end")
        assert not re.search(r" ERROR |Traceback", pair.log.read_text()), pair.log.read_text()
        story.restart_daemon()
    stages.drop(*_SMALL)


@pytest.mark.parametrize(
    "moment",
    [
        pytest.param(" verdict ", id="before the drain", marks=pytest.mark.deep),
        pytest.param("kind=drain ", id="drained", marks=pytest.mark.deep),
        pytest.param("kind=requeue_hold ", id="while the checkpoint is chosen"),
        pytest.param("kind=exclude ", id="before the release", marks=pytest.mark.deep),
    ],
)
def test_the_other_ends_what_the_stopped_one_began(pair: Pair, moment: str):
    story = pair.story
    job = story.job(2)
    victim = job.nodes[1]
    assert pair.states() == [("active", 0), ("standby", 1)]
    story.inject("xid", "--node", victim, "--gpu", "1", "--xid", "79")
    with story.daemon_stopped_at(moment):
        stopped = datetime.now().astimezone()
        story.expect(drains=[victim], restarts=[job], messages=["gpu_fallen_off_bus"])
        pair.wait_active(1)
    story.wait_daemon_log(f"standing-by active={pair.second_url}")
    until(lambda: pair.states() == [("active", 1), ("standby", 0)], lambda: f"{pair.states()}")
    assert " superseded " in story.daemon_log()
    last = story.daemon_log().partition(" superseded ")[2]
    assert "action " not in last and " verdict " not in last, last
    story.settle(3)
    assert story.counts() == story.expected()
    shown = story.sentinel("status", "--config", str(story.lab.dir / "etc" / "sentinel.toml")).stdout
    assert f"{pair.second_url} is active" in shown and "standing by" in shown
    took = {what: (pair.at(what) - stopped).total_seconds() for what in (" active ", " started", "kind=release ")}
    print(f"seconds after the stop: {took}")


@pytest.mark.deep
def test_the_other_ends_what_one_began_that_lost_the_database(pair: Pair):
    story = pair.story
    job = story.job(2)
    victim = job.nodes[1]
    story.inject("xid", "--node", victim, "--gpu", "1", "--xid", "79")
    story.wait_daemon_log("kind=requeue_hold ")
    cut = datetime.now().astimezone()
    pair.net.cut()
    pair.wait_active(1)
    print(f"active {(pair.at(' active ') - cut).total_seconds()} s after the cut")
    story.expect(drains=[victim], restarts=[job], messages=["gpu_fallen_off_bus"])
    pair.net.mend()
    story.wait_daemon_log(f"standing-by active={pair.second_url}")
    until(lambda: pair.states() == [("active", 1), ("standby", 0)], lambda: f"{pair.states()}")
    story.settle(3)
    assert story.counts() == story.expected()


@pytest.mark.deep
def test_one_of_two_that_stand_still_at_once_goes_on(pair: Pair):
    """A pause of the storage under both hosts: longer than the lease, and none knows who is the first to wake up."""
    story = pair.story
    job = story.job(2)
    victim = job.nodes[1]
    story.inject("xid", "--node", victim, "--gpu", "1", "--xid", "79")
    second = processes.known(story.paths, "second")
    assert second is not None
    with story.daemon_stopped_at("kind=requeue_hold "):
        second.send(signal.SIGSTOP)
        time.sleep(8.0)
        second.send(signal.SIGCONT)
    story.expect(drains=[victim], restarts=[job], messages=["gpu_fallen_off_bus"])
    until(lambda: [state for state, _ in pair.states()] == ["active", "standby"], lambda: f"{pair.states()}")
