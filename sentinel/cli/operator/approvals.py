"""``sentinel approve`` and ``refuse``: a person's answer to what mode suggest asks. What is asked is shown first."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from sentinel.cli.operator.arguments import INCIDENT
from sentinel.cli.operator.daemon_client import ask, config_option, view
from sentinel.cli.operator.output import echo, json_option, print_json, say, shown, when
from sentinel.errors import Refused, UserError


@click.command()
@click.argument("incident", type=INCIDENT)
@click.option(
    "--step", "steps", multiple=True, metavar="WHAT", help='Only this part, as it is shown: "drain n1". Repeatable.'
)
@click.option("--note", default="", help="Why; it is kept in the audit.")
@click.option("--yes", is_flag=True, help="Answer the question; limits stay in force.")
@config_option
@json_option
def approve(incident: str, steps: Sequence[str], note: str, yes: bool, config: Path, as_json: bool) -> None:
    """Approve what Sentinel suggests for INCIDENT: it is done at once, within the limits.

    An approval is for the plan as it is shown. If the plan grows, or the cause becomes another one, the rest is asked again.
    What could not be begun within [modes] approval_s (budget, breaker, pause) is asked again, too.

    \b
    Examples:
      sentinel approve last
      sentinel approve 0f3a9c --step "restart 8801" --note "node is watched by hand"
    """
    _answer("approve", incident, steps, note, yes, config, as_json)


@click.command()
@click.argument("incident", type=INCIDENT)
@click.option("--step", "steps", multiple=True, metavar="WHAT", help="Only this part, as it is shown. Repeatable.")
@click.option("--note", default="", help="Why; people see it, and it is kept in the audit.")
@click.option("--yes", is_flag=True, help="Answer the question.")
@config_option
@json_option
def refuse(incident: str, steps: Sequence[str], note: str, yes: bool, config: Path, as_json: bool) -> None:
    """Refuse what Sentinel suggests for INCIDENT: nothing of it is done, and people are told.

    It can be approved later all the same, as long as it is still wanted.

    \b
    Examples:
      sentinel refuse last --note "known, ticket 4711"
    """
    _answer("refuse", incident, steps, note, yes, config, as_json)


def _answer(
    answer: str, incident: str, steps: Sequence[str], note: str, yes: bool, config: Path, as_json: bool
) -> None:
    from sentinel.protocol import CHANGE

    seen = view(config, "why", what=incident)
    request = seen.get("request")
    if not request:
        name = seen["incident"]["id"] if seen["incident"] else incident
        raise Refused(f"nothing of incident {name} waits for an approval", fix=f"sentinel why {name}")
    what = _chosen(request["what"], steps)
    _show(seen, request, as_json)
    if not yes:
        click.confirm(f"{answer.capitalize()} {', '.join(map(shown, what))}?", abort=True, err=as_json)
    arguments = {"incident": seen["incident"]["id"], "request": request["id"], "what": what, "note": note}
    result = ask(config, CHANGE, {"change": answer, "arguments": arguments})
    if as_json:
        print_json([result])
    elif answer == "approve":
        echo(
            f"Approved: {', '.join(map(shown, what))}. sentinel why {seen['incident']['id']} shows what becomes of it."
        )
    else:
        echo(f"Refused: {', '.join(map(shown, what))}.")


def _chosen(asked: Sequence[str], steps: Sequence[str]) -> list[str]:
    if not steps:
        return list(asked)
    wanted = [step.replace(":", " ").strip() for step in steps]
    if strange := [step for step in wanted if step not in asked]:
        raise UserError(f"{', '.join(strange)!r:.120} is not asked", fix=f"asked are: {', '.join(asked)}")
    return wanted


def _show(seen: dict[str, Any], request: dict[str, Any], as_json: bool) -> None:
    if as_json:
        return
    verdict = seen["verdict"]
    say(
        f"Incident {shown(seen['incident']['id'])}, {when(seen['incident']['opened_at'])}: {shown(verdict['cause'])}, "
        f"{verdict['confidence']:.0%} sure. sentinel why {shown(seen['incident']['id'])} shows the grounds."
    )
    plan = seen["plan"]
    if plan["observe_only"]:  # its words begin with the request, and say what else belongs to the plan
        say(shown(plan["explanation"]))
    else:
        for wait in request["waits"]:
            say(shown(wait["explanation"]))
    without = [step["data"]["nodes"] for step in plan["steps"] if step["data"].get("nodes")]
    if plan["observe_only"] and without:
        say(f"The restart goes round {shown(', '.join(without))}.")
