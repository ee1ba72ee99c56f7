"""``sentinel explore``: histories of faults on a cluster in memory, with every promise checked."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING

import click

from sentinel.cli.offline.progress_bar import count_bar
from sentinel.cli.operator.arguments import refuse_unused
from sentinel.cli.operator.output import counted, say
from sentinel.errors import UserError
from sentinel.text import printable

if TYPE_CHECKING:
    from sentinel.simulate.explore import Found

_SHOWN = 20  # violations printed in full; all of them are in the JSON
MOST_SEED = 2**63 - 1


@click.command()
@click.option("--seed", type=int, default=1, show_default=True, help="Another seed, other histories.")
@click.option("--histories", type=int, default=1000, show_default=True, help="How many.")
@click.option("--story", default=None, help="Only this kind of trouble; --story list shows them.")
@click.option("--replay", default=None, metavar="ID", help="Print one history, event by event.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def explore(seed: int, histories: int, story: str | None, replay: str | None, as_json: bool) -> None:
    """Try to break Sentinel's promises on a simulated cluster.

    Each history is a small cluster in memory, on virtual time, with jobs, failures, people, a bad network, and a daemon
    that is killed; the code that decides and acts is the live one. After every event the promises are checked. A history
    that breaks one is shrunk to the shortest that still does.

    \b
    Examples:
      sentinel explore --histories 10000
      sentinel explore --seed 7 --story people --json
      sentinel explore --seed 7 --replay people-17

    Exit status: 0 no promise was broken, 1 at least one was.
    """
    from sentinel.simulate.explore import MOST_HISTORIES, known_story

    _within("--seed", seed, 0, MOST_SEED)
    _within("--histories", histories, 1, MOST_HISTORIES)
    if replay is not None:
        fix = f"sentinel explore --seed {seed} --replay {replay!a:.60}"
        refuse_unused("beside --replay, whose id names the story and one history of it", fix, "story", "histories")
    if story == "list":
        _list_stories(as_json)
        return
    known_story(story)
    broken = _replay(seed, replay, as_json) if replay is not None else _explore(seed, histories, story, as_json)
    if broken:
        raise SystemExit(1)


def _within(option: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise UserError(f"{option} {value}: from {least} to {most}", fix=f"sentinel explore {option} {max(least, 1)}")


def _list_stories(as_json: bool) -> None:
    from sentinel.simulate.stories import STORIES

    found = {name: (story.__doc__ or "").strip().partition("\n")[0] for name, story in STORIES.items()}
    if as_json:
        click.echo(json.dumps(found))
        return
    for name, about in found.items():
        say(f"{name:14} {about}".rstrip(), hanging=15)


def _explore(seed: int, histories: int, story: str | None, as_json: bool) -> bool:
    from sentinel.simulate.explore import explore as run

    began_s, cuts = time.monotonic(), 0
    found: list[Found] = []
    with count_bar("histories", histories) as advance:
        for ran in run(seed, histories, story=story, processes=len(os.sched_getaffinity(0))):
            cuts += ran.cuts
            if ran.found is not None:
                found.append(ran.found)
            advance(1)
    found.sort(key=lambda one: (one.violation.promise, len(one.happenings), one.name))
    answer = {
        "simulated": True,
        "seed": seed,
        "histories": histories,
        "crash_points": cuts,
        "violations": [one.to_json() for one in found],
        "wall_s": round(time.monotonic() - began_s, 2),
    }
    if as_json:
        click.echo(json.dumps(answer, ensure_ascii=False))
        return bool(found)
    for one in found[:_SHOWN]:
        _show(one)
    if len(found) > _SHOWN:
        say(f"and {len(found) - _SHOWN} more; --json has them all")
    say(
        f"{counted(histories, 'simulated history')} (seed {seed}), the daemon killed or an answer lost at {cuts} points: "
        f"{counted(len(found), 'broken promise') if found else 'no broken promises'}, {answer['wall_s']} s"
    )
    return bool(found)


def _show(one: Found) -> None:
    say(f"{one.violation.promise}: {one.violation.why} (after {one.violation.at_s:.1f} s; story {one.story})")
    for happening in one.happenings:
        say(f"{happening.at_s:8.1f} s  {happening}", "  ", hanging=12)
    say(f"sentinel explore --seed {one.seed} --replay {one.name}", "  ")
    say("")


def _replay(seed: int, name: str, as_json: bool) -> bool:
    from sentinel.simulate.explore import named, run

    history = named(seed, name)
    lines: list[dict[str, object]] = []

    def tell(at_s: float, line: str) -> None:
        lines.append({"at": round(at_s, 3), "what": line})
        if not as_json:
            say(f"{at_s:10.3f}  {_plain(line)}", hanging=12)

    violations, cuts = run(history, tell)
    broken = [{"promise": one.promise, "at": round(one.at_s, 3), "why": one.why} for one in violations]
    if as_json:
        answer = {"seed": seed, "id": name, "events": lines, "crash_points": cuts, "violations": broken}
        click.echo(json.dumps(answer, ensure_ascii=False))
    else:
        for one in violations:
            say(f"{one.promise}: {one.why}")
        say("a promise is broken" if violations else "no promise is broken")
    return bool(violations)


def _plain(line: str) -> str:
    return printable(line)
