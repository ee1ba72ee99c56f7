"""The decision engine: a state machine without I/O, the one place that knows the order of the stages.

Input: events, each with its time: evidence received, a message of an agent, a Slurm snapshot taken, an effect completed (or
its outcome not known), a timer due, an operator's command.

Output: a ``Transition``: the changes to save first, in one transaction (``changes``), then the work to do (``effects``:
carry out one step of a plan, ask nodes or Prometheus, probe a node, run a diagnostic, take a Slurm snapshot, deliver a
notice, start a timer), and the lines for log and metrics (``remarks``).

It never uses a clock, a thread, an await, a file, a database or randomness. The same events in the same order give the
same transitions.

Three runners drive it: ``sentinel.daemon`` live, replay over recorded events, simulation over a made-up cluster.

How a failure is handled: ``grouping`` adds evidence to an incident, ``judging`` waits until the burst of evidence has
settled, asks the missing questions and decides, ``recovery`` has the plan carried out step by step, ``notices`` decides
which messages are sent. ``loading`` builds the state from the store after a start. ``watch`` makes evidence of what fails to
happen (heartbeats, step lines), ``diagnostics`` has idle nodes tested, ``drain_reasons`` explains drains by Slurm's hooks.
"""

from sentinel.engine.engine import Engine
from sentinel.engine.transition import Transition

__all__ = ["Engine", "Transition"]
