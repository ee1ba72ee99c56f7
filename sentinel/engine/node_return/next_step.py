"""Says what a drained node needs next: from its record, its cause's row, the settings and what is seen of it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sentinel.config.return_settings import ReturnSettings
from sentinel.config.returns import Remedial, ReturnRow
from sentinel.engine.node_return.state import NodeReturn


@dataclass(frozen=True, slots=True)
class NodeNow:
    """What is seen of the node."""

    job: int | None = None  # that holds it
    busy: bool = False  # a job holds it, known or not
    settled: bool = True  # it was free for long enough: its agent has collected what the last job left
    heard: bool = False  # its agent
    off: bool = False  # Slurm has switched it off, or does so now
    good: bool = False  # what its agent says: nothing speaks against it
    sentence: str = ""  # why not
    level: int = 0  # of the diagnostic whose pass takes back what it says; 0: none does
    judged: bool = False  # something that was heard of it is being judged
    commands: int = 0  # resets and reboots under way on all nodes


@dataclass(frozen=True, slots=True)
class Wait:
    words: str
    passed: bool = False  # all tests did


@dataclass(frozen=True, slots=True)
class RunTest:
    level: int


@dataclass(frozen=True, slots=True)
class Act:
    action: Remedial  # reset or reboot


@dataclass(frozen=True, slots=True)
class PutBack:
    """Return it to service."""


@dataclass(frozen=True, slots=True)
class Repair:
    """It waits for people."""


Needed = Wait | RunTest | Act | PutBack | Repair


def next_step(
    record: NodeReturn, row: ReturnRow, settings: ReturnSettings, seen: NodeNow, now: datetime
) -> tuple[Needed, str]:
    """What the node needs, and what its causes ask for that the site does not allow."""
    failed = record.failures_since(now, settings.within_s)
    if failed >= row.failures:
        return Repair(), record.missing
    if not settings.test_level:
        return Wait("drained nodes are not tested here (returns.test_level)"), ""
    if seen.busy:
        return Wait(f"{'a job' if seen.job is None else f'job {seen.job}'} still holds it"), record.missing
    if not seen.settled:
        return Wait("settles after its last job"), record.missing
    if record.not_before is not None and now < record.not_before:
        why = f"{record.unclear}; " if record.unclear else ""
        return Wait(f"{why}tried again at {record.not_before:%H:%M} UTC"), record.missing
    missing = []
    action = row.action(failed)
    if action is not Remedial.NONE and record.acted is not action:
        if not command(settings, action):
            missing.append(f"a {action} (returns.{action}_command)")
        elif seen.commands >= settings.commands_at_once:
            return Wait(f"{seen.commands} other nodes are being reset or rebooted"), record.missing
        else:
            return Act(action), record.missing
    # Its agent may know of what only a deeper test disproves: a fault beside the cause, or one that was found deeper.
    tests = [*row.tests, seen.level] if seen.level > row.tests[-1] else [*row.tests]
    levels = [level for level in tests if level <= settings.test_level]
    if levels != tests:
        missing.append(f"level {tests[-1]} of the diagnostic (returns.test_level)")
    words = " and ".join(missing)
    if record.passed < len(levels):
        if not seen.heard:
            return Wait(_why_not_heard(seen)), words
        return RunTest(levels[record.passed]), words
    return _tested(settings, seen, words), words


def _tested(settings: ReturnSettings, seen: NodeNow, missing: str) -> Needed:
    if missing:
        return Wait(f"a person: its fault asks for {missing}, which is not allowed here", passed=True)
    if not settings.automatic:
        return Wait("a person: sentinel release (returns.automatic is off)", passed=True)
    if not seen.heard:
        return Wait(_why_not_heard(seen), passed=True)
    if seen.judged:
        return Wait("what was heard of it is being judged", passed=True)
    if not seen.good:
        return Wait(f"its agent: {seen.sentence or 'says nothing yet'}", passed=True)
    return PutBack()


def _why_not_heard(seen: NodeNow) -> str:
    """Slurm switches drained nodes that are idle off, too, and switches on only what gets jobs: a person must."""
    return "Slurm has switched it off: scontrol update State=POWER_UP for it" if seen.off else "its agent is not heard"


def command(settings: ReturnSettings, action: Remedial) -> list[str]:
    return settings.reset_command if action is Remedial.RESET else settings.reboot_command
