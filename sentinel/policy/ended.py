"""What people are told of a job that has ended and that nobody but they themselves can put back to work."""

from __future__ import annotations

from sentinel.model.records import Cause, Incident, JobView, Verdict
from sentinel.model.vocabulary import ENDED_BY_SLURM, PARTITION_GONE


def stays_over(job: JobView | None, verdict: Verdict, incident: Incident, last_save: int | None) -> str:
    """What people do about a job that Slurm ended, and did not put back; empty: nothing.

    It calls it failed where its program ended with an error. Whether what is preempted comes back is the site's to say
    (PreemptMode), and no comment's: a comment asks to be restarted after what breaks.
    """
    if job is not None and job.state == "preempted":
        return preempted_words(job, verdict, last_save)
    gone = next((partition for item in incident.evidence if (partition := item.data.get(PARTITION_GONE))), None)
    if job is not None and job.state == "node_fail" and gone is not None:
        why = f"Slurm ended job {job.id} because its partition {gone} is gone (taken out of slurm.conf, or renamed)"
        return f"{why}: no node is to blame, and Slurm does not requeue it; submit it again, to another partition."
    if job is None or job.state != "failed" or verdict.cause is not Cause.SCHEDULER_PREEMPT_OR_TIMELIMIT:
        return ""
    again = f"scontrol requeue {job.spec} does" if _may_be_put_back(job) else "submit it again"
    ended = f"Slurm ended job {job.id} on purpose (preemption, a limit, a request)"
    return f"{ended}: neither Slurm nor Sentinel puts it back by itself; {again}."


def ended_on_purpose(job: JobView, verdict: Verdict, last_save: int | None) -> str:
    """Why a job stays over that Slurm ended on purpose, whatever was wrong before; empty for any other.

    Args:
        last_save: the step of the newest of its saves that was seen.
    """
    if job.state == "preempted":
        return preempted_words(job, verdict, last_save)
    if job.state not in ENDED_BY_SLURM:
        return ""
    # After its deadline Slurm would start it no more.
    again = job.state == "timeout" and _may_be_put_back(job)
    so = f"scontrol requeue {job.spec} gives it its time limit once more" if again else "submit it again to go on"
    return f"Job {job.id} {ENDED_BY_SLURM[job.state]}: Slurm ended it on purpose, and it is not restarted; {so}."


def preempted_words(job: JobView, verdict: Verdict, last_save: int | None) -> str:
    """Why a job that Slurm calls preempted has ended, and how it comes back.

    Args:
        last_save: the step of the newest of its saves that was seen.
    """
    blamed = verdict.drain or verdict.suspect or verdict.drain_recommended  # for what was wrong before
    nobody = "" if blamed else ": no node is to blame"
    why = f"Slurm preempted job {job.id} by the site's rules and did not requeue it{nobody}"
    again = f"scontrol requeue {job.spec} puts it back" if _may_be_put_back(job) else "submit it again"
    saved = f"; the newest save that was seen is of step {last_save}" if last_save is not None else ""
    return f"{why}. To go on, {again}; its script resumes from its newest checkpoint by itself{saved}."


def _may_be_put_back(job: JobView) -> bool:
    return job.batch is not False and bool(job.requeue)


def ended_for_good(job: JobView) -> str:
    """Why a job that has failed stays over whatever its comment asks for; empty: Slurm may requeue it.

    In a finished job nothing can be changed, its Requeue=0 neither: of its submitter (``--no-requeue``), of the site
    (``JobRequeue=0``), or of Slurm, which took back what it was submitted with.
    """
    if job.requeue is not False or job.ended_at is None or job.state == "completed":
        return ""
    why = f"Job {job.id} has ended with Requeue=0, and Slurm requeues it no more: submit it again"
    return f"{why}. A job that Sentinel may restart after Slurm has ended it is submitted with --requeue."
