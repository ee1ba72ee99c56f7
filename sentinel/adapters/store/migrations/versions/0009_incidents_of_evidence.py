"""Which incidents an item of evidence belongs to: what is pruned is looked up by it."""

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("incident_evidence_evidence", "incident_evidence", ["evidence"])


def downgrade() -> None:
    op.drop_index("incident_evidence_evidence", table_name="incident_evidence")
