"""Incidents by their evidence, plans and messages by their incident: what is pruned is looked up by them."""

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("incident_evidence_evidence", "incident_evidence", ["evidence"])
    op.create_index("plan_incident", "plan", ["incident"])
    op.create_index("notice_incident", "notice", ["incident"])


def downgrade() -> None:
    op.drop_index("notice_incident", table_name="notice")
    op.drop_index("plan_incident", table_name="plan")
    op.drop_index("incident_evidence_evidence", table_name="incident_evidence")
