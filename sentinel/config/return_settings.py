"""The settings of tests of nodes, ``[diagnostics]`` of the daemon's file, and of how drained ones return, ``[returns]``."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sentinel.config.addresses import require_http
from sentinel.config.settings_toml import InvalidSetting, setting

_PLACEHOLDER = re.compile(r"\{[^{}]*\}")
_KNOWN = ("{node}", "{reason}")


@dataclass(frozen=True, slots=True)
class ReturnSettings:
    """What a site allows Sentinel to do with nodes that Sentinel drained; only in partitions whose drain mode is "act".

    What each cause asks for stands in rules/returns.toml. Commands are argument lists without a shell; ``{node}`` and
    ``{reason}`` (of the drain) are replaced. They run on the daemon's host, as its account.
    """

    test_level: int = setting(
        3,
        "deepest level of the diagnostic on drained nodes, which do no work; 4 takes hours. Where a cause asks for more, a "
        "person releases the node. 0: no drained node is tested",
        least=0,
        most=4,
    )
    reset_command: list[str] = setting(
        [], "resets the GPUs of {node} and ends with 0 once it is done; empty: never, since a reset can hang a node"
    )
    reboot_command: list[str] = setting(
        [],
        'starts a reboot of {node}, as ["scontrol", "reboot", "ASAP", "nextstate=DOWN", "reason={reason}", "{node}"], or a '
        "power cycle; empty: never, since only the site knows what else runs there",
    )
    command_s: float = setting(
        300.0, "deadline of one such command; then it is killed, and counts as failed", unit="s", least=1
    )
    boot_s: float = setting(
        1800.0,
        "from the end of reboot_command until the agent is heard again: firmware checks memory",
        unit="s",
        least=1,
    )
    commands_at_once: int = setting(2, "resets and reboots under way at the same time", unit="nodes", least=1)
    retry_s: float = setting(
        1800.0, "pause after a test that did not pass, or a command that failed", unit="s", least=1
    )
    within_s: float = setting(
        7 * 86400.0,
        "failures within this time add up, a new drain after a return included: what comes back in a week was not repaired",
        unit="s",
        least=60,
    )
    automatic: bool = setting(
        False,
        "return a node whose tests passed; else it waits for sentinel release: first see that the tests tell the truth",
    )
    probation_s: float = setting(
        6 * 3600.0, "for so long a node that was returned is kept from the jobs that it hurt", unit="s", least=0
    )
    probation_run_s: float = setting(
        600.0, "or until another job ran there for so long: the first hour shows most bad repairs", unit="s", least=0
    )
    ticket_command: list[str] = setting(
        [], "opens a ticket for a node that needs repair: gets it as JSON on its standard input; empty: none"
    )
    ticket_url: str = setting("", "where the same JSON is posted; empty: nowhere")

    def check_loaded(self) -> None:
        for key in ("reset_command", "reboot_command", "ticket_command"):
            _require_command(key, getattr(self, key), names_node=key != "ticket_command")
        if self.ticket_url:
            require_http("ticket_url", self.ticket_url)


def _require_command(key: str, arguments: list[str], *, names_node: bool) -> None:
    """
    Raises:
        InvalidSetting: a command that cannot be started, names no node, or returns the node before it is tested.
    """
    if not arguments:
        return
    if not arguments[0].strip() or any("\0" in argument for argument in arguments):
        raise InvalidSetting(key, "its first word is no program", 'write ["/usr/local/sbin/reset-gpus", "{node}"]')
    for argument in arguments:
        for found in _PLACEHOLDER.findall(argument):
            if found not in _KNOWN:
                raise InvalidSetting(key, f"{found!r:.40} is not replaced", f"use {' or '.join(_KNOWN)}")
        if argument.replace(" ", "").lower() == "nextstate=resume":
            raise InvalidSetting(
                key, "nextstate=RESUME returns the node before it is tested", "write nextstate=DOWN, or leave it out"
            )
    if names_node and not any("{node}" in argument for argument in arguments):
        raise InvalidSetting(key, "it names no node", 'add "{node}"')


def filled(arguments: list[str], node: str, reason: str) -> tuple[str, ...]:
    """The argument list for one node."""
    values = {"{node}": node, "{reason}": reason}
    return tuple(_PLACEHOLDER.sub(lambda found: values.get(found[0], found[0]), word) for word in arguments)


@dataclass(frozen=True, slots=True)
class Diagnostics:
    """Diagnostics that the daemon orders on idle nodes; only in partitions whose drain mode is "act"."""

    suspect_level: int = setting(2, "for a node under suspicion, as soon as it is idle; 0: none", least=0, most=4)
    idle_level: int = setting(0, "for idle nodes in rotation; 0: none, since it takes their power", least=0, most=4)
    idle_period_s: float = setting(7 * 86400.0, "a node that passed is left alone for this long", unit="s", least=60)
    idle_fraction: float = setting(
        0.1, "share of the idle nodes under test at once: the others must be there for work", least=0.0, most=1.0
    )
    idle_per_hour: int = setting(60, "orders of the rotation in an hour, whatever the share", unit="nodes", least=0)
    user_suspects_per_day: int = setting(
        8, "tests that what one user's programs print may cause in a day; what machines say has no such limit", unit="nodes",
        least=0,
    )  # fmt: skip
    settled_s: float = setting(120.0, "a node without work for this long is idle, not between jobs", unit="s", least=0)
    retry_s: float = setting(1800.0, "pause after one that gave no answer or no pass", unit="s", least=1)
    look_s: float = setting(15.0, "how often turns are given out; a snapshot is no fresher", unit="s", least=1)
    deadline_s: list[float] = setting(
        [120.0, 900.0, 3000.0, 9000.0], "deadline of level 1, 2, 3, 4: the agent's own, and time to stop it", unit="s"
    )
