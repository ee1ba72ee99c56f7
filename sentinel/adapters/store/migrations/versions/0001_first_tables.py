"""First tables: evidence, incidents, verdicts, plans, the ledger, notices, attempts."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "attempt",
        sa.Column("job", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("user", sa.String(length=64), nullable=True),
        sa.Column("partition", sa.String(length=64), nullable=True),
        sa.Column("name", sa.String(length=255), nullable=True),
        sa.Column("nodes", sa.JSON(), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("state", sa.String(length=24), nullable=True),
        sa.Column("first_step", sa.Integer(), nullable=True),
        sa.Column("last_step", sa.Integer(), nullable=True),
        sa.Column("step_time_s", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("job", "attempt", "started_at"),
    )
    op.create_table(
        "evidence",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("source", sa.String(length=24), nullable=False),
        sa.Column("kind", sa.String(length=48), nullable=False),
        sa.Column("trust", sa.String(length=8), nullable=False),
        sa.Column("node", sa.String(length=255), nullable=True),
        sa.Column("job", sa.Integer(), nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=True),
        sa.Column("record", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("evidence", schema=None) as batch_op:
        batch_op.create_index("evidence_at", ["at"], unique=False)
        batch_op.create_index("evidence_job_at", ["job", "at"], unique=False)
        batch_op.create_index("evidence_node_at", ["node", "at"], unique=False)

    op.create_table(
        "incident",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("opened_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("closed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("state", sa.String(length=12), nullable=False),
        sa.Column("job", sa.Integer(), nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=True),
        sa.Column("user", sa.String(length=64), nullable=True),
        sa.Column("nodes", sa.JSON(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("cause", sa.String(length=40), nullable=True),
        sa.Column("scope", sa.String(length=16), nullable=True),
        sa.Column("confidence", sa.Float(), nullable=True),
        sa.Column("culprit_nodes", sa.JSON(), nullable=True),
        sa.Column("decided_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("incident", schema=None) as batch_op:
        batch_op.create_index("incident_job", ["job"], unique=False)
        batch_op.create_index("incident_opened", ["opened_at"], unique=False)
        batch_op.create_index("incident_state", ["state"], unique=False)

    op.create_table(
        "incident_evidence",
        sa.Column("incident", sa.String(length=40), nullable=False),
        sa.Column("evidence", sa.String(length=40), nullable=False),
        sa.PrimaryKeyConstraint("incident", "evidence"),
    )
    op.create_table(
        "lease",
        sa.Column("name", sa.String(length=32), nullable=False),
        sa.Column("holder", sa.String(length=255), nullable=False),
        sa.Column("until", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "notice",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("receiver", sa.String(length=255), nullable=False),
        sa.Column("incident", sa.String(length=40), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("delivered", sa.Boolean(), nullable=False),
        sa.Column("record", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", "receiver"),
    )
    op.create_table(
        "plan",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("incident", sa.String(length=40), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished", sa.Boolean(), nullable=False),
        sa.Column("record", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("plan", schema=None) as batch_op:
        batch_op.create_index("plan_finished", ["finished"], unique=False)

    op.create_table(
        "setting",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("value", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "step",
        sa.Column("key", sa.String(length=40), nullable=False),
        sa.Column("incident", sa.String(length=40), nullable=False),
        sa.Column("plan", sa.String(length=40), nullable=False),
        sa.Column("kind", sa.String(length=24), nullable=False),
        sa.Column("node", sa.String(length=255), nullable=True),
        sa.Column("job", sa.Integer(), nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=True),
        sa.Column("intended_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("result", sa.String(length=12), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.Column("record", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("key"),
    )
    with op.batch_alter_table("step", schema=None) as batch_op:
        batch_op.create_index("step_incident", ["incident"], unique=False)
        batch_op.create_index("step_job", ["job"], unique=False)
        batch_op.create_index("step_kind_at", ["kind", "intended_at"], unique=False)

    op.create_table(
        "verdict",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("incident", sa.String(length=40), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("record", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("verdict", schema=None) as batch_op:
        batch_op.create_index("verdict_incident", ["incident"], unique=False)


def downgrade() -> None:
    with op.batch_alter_table("verdict", schema=None) as batch_op:
        batch_op.drop_index("verdict_incident")

    op.drop_table("verdict")
    with op.batch_alter_table("step", schema=None) as batch_op:
        batch_op.drop_index("step_kind_at")
        batch_op.drop_index("step_job")
        batch_op.drop_index("step_incident")

    op.drop_table("step")
    op.drop_table("setting")
    with op.batch_alter_table("plan", schema=None) as batch_op:
        batch_op.drop_index("plan_finished")

    op.drop_table("plan")
    op.drop_table("notice")
    op.drop_table("lease")
    op.drop_table("incident_evidence")
    with op.batch_alter_table("incident", schema=None) as batch_op:
        batch_op.drop_index("incident_state")
        batch_op.drop_index("incident_opened")
        batch_op.drop_index("incident_job")

    op.drop_table("incident")
    with op.batch_alter_table("evidence", schema=None) as batch_op:
        batch_op.drop_index("evidence_node_at")
        batch_op.drop_index("evidence_job_at")
        batch_op.drop_index("evidence_at")

    op.drop_table("evidence")
    op.drop_table("attempt")
