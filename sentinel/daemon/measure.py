"""Updates metrics from the engine's transitions."""

from __future__ import annotations

from sentinel.engine import Transition
from sentinel.engine.transition import Remark
from sentinel.model.changes import EvidenceAdded
from sentinel.model.records import Cause, Kind
from sentinel.telemetry import Telemetry


def measure(transition: Transition, telemetry: Telemetry) -> None:
    for change in transition.changes:
        if isinstance(change, EvidenceAdded):
            for item in change.items:
                telemetry.evidence.labels(source=item.source).inc()
                if item.kind == Kind.UNREADABLE:
                    telemetry.unreadable.inc()
    for remark in transition.remarks:
        _remark(remark, telemetry)


def _remark(remark: Remark, telemetry: Telemetry) -> None:
    fields = remark.fields
    if remark.name == "verdict" and fields["decision_s"] is not None:  # set only for an incident's first verdict
        telemetry.incidents.labels(cause=fields["cause"]).inc()
        telemetry.decision_s.observe(fields["decision_s"])
        if fields["refusal"]:
            telemetry.refusals.labels(reason=fields["refusal"]).inc()
    elif remark.name == "corrected":
        telemetry.corrections.labels(cause=fields["was"] or Cause.UNKNOWN).inc()
    elif remark.name == "notice-delivered":
        telemetry.notices.labels(result="delivered").inc()
    elif remark.name in ("notice-refused", "notice-given-up"):
        telemetry.notices.labels(result="failed").inc()
    elif remark.name == "step":
        telemetry.steps.labels(kind=fields["kind"], result=fields["result"]).inc()
    elif (event := _return_event(remark)) is not None:
        telemetry.node_returns.labels(event=event).inc()
    elif remark.name == "incident-finished" and fields["restart_s"] is not None:
        telemetry.restart_s.observe(fields["restart_s"])


def _return_event(remark: Remark) -> str | None:
    """The metric's label for an event of a drained node; None for other remarks."""
    result = remark.fields.get("result")
    if remark.name == "return-test-answered":
        return {"pass": "test_passed", "fail": "test_failed"}.get(str(result), "test_unanswered")
    if remark.name == "return-command-ended":
        return "command_done" if result == "done" else "command_failed"
    if remark.name == "ticket":
        return "ticket_sent" if result == "done" else "ticket_failed"
    return {"node-returned": "returned", "node-needs-repair": "repair"}.get(remark.name)
