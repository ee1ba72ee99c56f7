"""The receiver that asks a user's own file: only own messages go there, and only as the site allows."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from made_records import AT

from sentinel.adapters.notify import mail
from sentinel.adapters.notify.delivery_threads import DeliveryThreads
from sentinel.config.alerts import Alerts, Channel
from sentinel.daemon.effects.user_files import UserFiles
from sentinel.engine.delivery import after_failure, is_for, trial
from sentinel.engine.events import NoticeNotDelivered
from sentinel.errors import Refused, Unavailable
from sentinel.log import Log
from sentinel.model.records import Delivery, Notice

SITE = Channel(kind="users", audience="owners", mail_domains=["example.org"])


def notice(**changes: Any) -> Notice:
    data = {"job": 7, "attempt": 1, "user": "ada", "owner_text": "Job 7 is held.", "severity": "info", "stage": "held"}
    return Notice("1", "i", AT, "job 7: user_code", "operators read this", {**data, **changes})


class Agents:
    """Answers with what the file holds; ``away``: nodes that do not."""

    def __init__(self, answer: object, away: tuple[str, ...] = ()) -> None:
        self.answer, self.away, self.asked = answer, away, list[tuple[str, str, Mapping[str, object]]]()

    async def ask(self, node: str, kind: str, arguments: Mapping[str, object], *, deadline_s: float) -> object:
        self.asked.append((node, str(kind), arguments))
        if node in self.away:
            raise Unavailable(f"the agent of {node} is not connected")
        return self.answer


class Post:
    """Takes the place of the mail server: who got which text; addresses in ``fails`` raise."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.got: list[tuple[str, str, str]] = []
        self.fails: dict[str, Exception] = {}

    def take(self, made: Any) -> None:
        self.asked.append(made["To"])
        if error := self.fails.get(made["To"]):
            raise error
        self.got.append((made["To"], made["Subject"], made.get_content()))


@pytest.fixture
def post(monkeypatch: pytest.MonkeyPatch) -> Iterator[Post]:
    post = Post()
    monkeypatch.setattr(mail.Mail, "deliver", lambda self, made, to: post.take(made))
    yield post


def sink(agents: Agents) -> UserFiles:
    nodes = {name: SimpleNamespace(state="heard") for name in ("n3", "n4", "n9")} | {
        "n5": SimpleNamespace(state="silent")
    }
    fleet = SimpleNamespace(jobs={7: SimpleNamespace(id=7, user="ada"), 8: SimpleNamespace(id=8, user="eve")})
    attempts = {(7, 0): SimpleNamespace(nodes=("n9",)), (7, 1): SimpleNamespace(nodes=("n5", "n4", "n3"))}
    live: Any = SimpleNamespace(attempts=attempts, nodes=nodes, fleet=fleet)
    threads = DeliveryThreads()
    alerts = Alerts(channels={"own": SITE}, deadline_s=5.0)
    return UserFiles("own", alerts, agents, live, threads, Log(io.StringIO()))


def file(*lines: str) -> dict[str, str]:
    return {"text": "\n".join(lines), "user": "ada"}


async def test_a_message_goes_where_the_users_file_says_in_the_owners_words(post: Post) -> None:
    agents = Agents(file('mail = ["ada@example.org", "team@example.org"]'))
    await sink(agents).send(notice())
    assert agents.asked == [("n4", "messages_file", {"job": 7})], "the newest attempt's first node that is heard"
    assert [to for to, _, _ in post.got] == ["ada@example.org", "team@example.org"]
    assert {text.strip() for _, _, text in post.got} == {"Job 7 is held."}


@pytest.mark.parametrize("line", ['least_severity = "critical"', 'stages = ["failed"]', 'partitions = ["gpu"]'])
async def test_the_user_narrows_down_what_comes(post: Post, line: str) -> None:
    await sink(Agents(file('mail = ["ada@example.org"]', line))).send(notice(partition="cpu"))
    assert post.got == []


async def test_no_file_is_no_message_and_no_error(post: Post) -> None:
    await sink(Agents({"text": None})).send(notice())
    assert post.got == []


@pytest.mark.parametrize(
    "answer",
    [{"problem": "others may write it"}, file('mail = ["ada@evil.example"]'), file("mail = ["), file("x" * 9000)],
)
async def test_a_file_that_cannot_be_taken_is_not_tried_again(post: Post, answer: object) -> None:
    with pytest.raises(Refused, match="the file of ada"):
        await sink(Agents(answer)).send(notice())
    assert post.got == []


async def test_what_an_agent_says_of_a_file_is_one_line(post: Post) -> None:
    """Root on a node can answer with anything; it is stored, and shown to operators."""
    with pytest.raises(Refused) as caught:
        await sink(Agents({"text": None, "problem": "\x1b[2J\nDONE\ud800\u202e"})).send(notice())
    assert caught.value.message.isprintable()


@pytest.mark.parametrize("answer", [None, [], {}, {"text": 7}, {"text": ["a"]}])
async def test_a_node_that_answers_nonsense_is_not_believed(post: Post, answer: object) -> None:
    if answer == {}:
        await sink(Agents(answer)).send(notice())
    else:
        with pytest.raises(Unavailable):
            await sink(Agents(answer)).send(notice())
    assert post.got == []


@pytest.mark.parametrize("user", ["eve", "", None])
async def test_the_file_of_another_user_is_not_taken(post: Post, user: str | None) -> None:
    """A node may remember another user's job of that number: Slurm counts from one again when its state was lost."""
    answer = file('mail = ["eve@example.org"]') | {"user": user}
    with pytest.raises(Unavailable, match="another user"):
        await sink(Agents(answer)).send(notice())
    assert post.got == []


async def test_other_nodes_are_asked_and_a_few_only(post: Post) -> None:
    agents = Agents(file('mail = ["ada@example.org"]'), away=("n4", "n3"))
    await sink(agents).send(notice())
    assert [node for node, _, _ in agents.asked] == ["n4", "n3", "n9"] and len(post.got) == 1
    with pytest.raises(Unavailable):
        await sink(Agents(file(), away=("n3", "n4", "n9"))).send(notice())


class Engine:
    """What is kept of a message between its attempts."""

    def __init__(self, agents: Agents) -> None:
        self.agents, self.became = agents, Delivery()

    async def tries(self) -> None:
        """Once, by a daemon that was started just now: what is known of earlier attempts is what is stored."""
        try:
            await sink(self.agents).send(dataclasses.replace(notice(), delivery=self.became))
        except (Unavailable, Refused) as error:
            again, unsure = isinstance(error, Unavailable), isinstance(error, Unavailable) and error.unsure
            event = NoticeNotDelivered(AT, notice(), "own", error.message, again, took=error.took, unsure=unsure)
            self.became = after_failure(self.became, event, attempts=13)
        else:
            self.became = Delivery(self.became.tries + 1)


async def test_who_has_a_message_does_not_get_it_again_when_it_is_tried_for_others(post: Post) -> None:
    made = Engine(Agents(file('mail = ["ada@example.org", "team@example.org", "gone@example.org"]')))
    post.fails = {"team@example.org": Unavailable("later"), "gone@example.org": Refused("never")}
    await made.tries()
    assert not made.became.given_up and "example" not in str(made.became.took), "an address is a secret"
    post.fails = {}
    await made.tries()
    assert [to for to, _, _ in post.got] == ["ada@example.org", "team@example.org", "gone@example.org"]


async def test_who_may_have_a_message_gets_it_once_more_whatever_the_others_do(post: Post) -> None:
    made = Engine(Agents(file('mail = ["ada@example.org", "team@example.org"]')))
    silent, away = Unavailable("silent after the whole mail"), Unavailable("cannot be reached")
    silent.unsure = True
    post.fails = {"ada@example.org": silent, "team@example.org": away}
    while not made.became.given_up:
        await made.tries()
    assert made.became.tries == 13 and made.became.reason == "cannot be reached"
    assert post.asked.count("ada@example.org") == 2 and post.asked.count("team@example.org") == 13


async def test_a_message_that_all_may_have_is_given_up_and_says_so(post: Post) -> None:
    made = Engine(Agents(file('mail = ["ada@example.org", "team@example.org"]')))
    silent = Unavailable("silent after the whole mail")
    silent.unsure = True
    post.fails = {"ada@example.org": silent, "team@example.org": Unavailable("cannot be reached")}
    await made.tries()
    del post.fails["team@example.org"]
    while not made.became.given_up:
        await made.tries()
    assert "did not say whether it took" in made.became.reason
    assert post.asked.count("ada@example.org") == 2 and len(post.got) == 1


async def test_a_test_message_asks_by_a_job_of_that_user(post: Post) -> None:
    agents = Agents(file('mail = ["ada@example.org"]', 'stages = ["failed"]'))
    made = sink(agents)
    await made.send(trial("own", datetime.now(UTC), "alps", "ada"))
    assert agents.asked[0][2] == {"job": 7} and "This is a test" in post.got[0][2]
    with pytest.raises(Refused, match="no job of bob"):
        await made.send(trial("own", datetime.now(UTC), "alps", "bob"))


def test_what_is_about_nobodys_job_does_not_go_there() -> None:
    assert is_for(SITE, notice()) and not is_for(SITE, notice(user=None)) and not is_for(SITE, notice(owner_text=""))
