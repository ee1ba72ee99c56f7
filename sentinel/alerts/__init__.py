"""Writes the notices: a thread per incident, from its verdict, plan and outcomes; and those of no incident."""

from sentinel.alerts.audiences import for_operators, for_owner, severity_of, to_do_for_owner
from sentinel.alerts.compose import compose
from sentinel.alerts.job_log import appended, for_log
from sentinel.alerts.late import STANDS, as_sent
from sentinel.alerts.node_repair import needs_repair
from sentinel.alerts.stages import IncidentFacts, Stage, stage_of
from sentinel.alerts.threads import Thread, next_stage, thread_from, with_next
from sentinel.alerts.unreadable_slurm import slurm_readable_again, slurm_unreadable
from sentinel.alerts.unreadable_state import unreadable_state
from sentinel.alerts.unwritable_store import store_unwritable, store_writable_again

__all__ = [
    "STANDS",
    "IncidentFacts",
    "Stage",
    "Thread",
    "appended",
    "as_sent",
    "compose",
    "for_log",
    "for_operators",
    "for_owner",
    "needs_repair",
    "next_stage",
    "severity_of",
    "slurm_readable_again",
    "slurm_unreadable",
    "stage_of",
    "store_unwritable",
    "store_writable_again",
    "thread_from",
    "to_do_for_owner",
    "unreadable_state",
    "with_next",
]
