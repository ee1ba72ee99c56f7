"""The JSON schema in docs/webhooks.md, and messages of every kind to hold it to."""

from __future__ import annotations

import dataclasses
import json
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import jsonschema
from made_records import AT, evidence, incident, job, plan, step, verdict

from sentinel.alerts import IncidentFacts, compose, slurm_readable_again, slurm_unreadable, stage_of, with_next
from sentinel.alerts.digests import digest
from sentinel.engine.delivery import trial
from sentinel.model.records import Ground, IncidentState, Notice, Outcome, Result, Scalar, StepKind

DOCUMENT = Path(__file__).parents[2] / "docs/webhooks.md"


def documented() -> Any:
    (text,) = re.findall(r"```json\n(.*?)```", DOCUMENT.read_text(), re.S)
    schema = json.loads(text)
    jsonschema.Draft202012Validator.check_schema(schema)
    return schema


def errors(schema: Any, message: Any) -> list[str]:
    return [error.message for error in jsonschema.Draft202012Validator(schema).iter_errors(message)]


def messages() -> list[Notice]:
    """One of every stage, with a job and without; about Slurm; a digest; a test."""
    release, confirm, hold = (
        step(kind, job=8801, attempt=0) for kind in (StepKind.RELEASE, StepKind.CONFIRM, StepKind.HOLD)
    )
    drain = step(StepKind.DRAIN, node="n2")
    found: dict[str, Scalar] = {"path": "/s", "step": 25, "tier": "global"}
    chosen = Outcome(step(StepKind.CHOOSE_CHECKPOINT, job=8801, attempt=0), Result.DONE, AT, "", found)

    def done(of: Any, result: Result = Result.DONE) -> Outcome:
        return Outcome(of, result, AT, "a reason")

    judged = dataclasses.replace(
        verdict(drain=("n2",), gpus=("n2:5",), advice="pull it"), grounds=(Ground(evidence(text="Xid 79"), 1.0),)
    )
    happened = incident(job=8801, id="inc1", nodes=("n2",))
    restart = plan(release, confirm)
    facts = [
        IncidentFacts(happened, judged, restart, (chosen, done(release)), job(8801), 37),
        IncidentFacts(happened, judged, restart, (chosen, done(release), done(confirm)), job(8801), 37),
        IncidentFacts(happened, judged, restart, (done(release, Result.FAILED),), job(8801)),
        IncidentFacts(happened, judged, plan(hold), (done(hold),), job(8801)),
        IncidentFacts(happened, judged, restart, (dataclasses.replace(done(release), data={"cancelled": True}),), job(8801)),
        IncidentFacts(happened, judged, plan(refusal="breaker"), (), job(8801)),
        IncidentFacts(dataclasses.replace(happened, job=None), judged, plan(drain), (done(drain),)),
        IncidentFacts(
            dataclasses.replace(happened, state=IncidentState.CLOSED, closed_at=AT, outcome="the job runs"),
            judged, plan(hold), (done(hold),), job(8801), resolved=True,
        ),
    ]  # fmt: skip
    made = [compose(facts, with_next(None, facts, stage_of(facts), ""), AT) for facts in facts]
    return [
        *made,
        slurm_unreadable(AT, "no answer", "", AT + timedelta(minutes=2)),
        slurm_readable_again(AT, AT + timedelta(minutes=5)),
        digest(made[:3], AT),
        trial("ops", AT, "alps", "ada"),
    ]
