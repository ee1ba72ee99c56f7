"""What history needs of an incident beside its culprits, and counters that age with their parts."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("incident", schema=None) as batch_op:
        batch_op.add_column(sa.Column("culprit_gpus", sa.JSON(), nullable=True))
        batch_op.add_column(sa.Column("culprit_ranks", sa.JSON(), nullable=True))
        batch_op.add_column(sa.Column("seen_on", sa.JSON(), nullable=True))
        batch_op.add_column(sa.Column("onset_step", sa.Integer(), nullable=True))
    op.create_table(
        "counter",
        sa.Column("node", sa.String(length=255), nullable=False),
        sa.Column("unit", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=48), nullable=False),
        sa.Column("day", sa.String(length=10), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("value", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("node", "unit", "name", "day"),
    )
    with op.batch_alter_table("counter", schema=None) as batch_op:
        batch_op.create_index("counter_at", ["at"], unique=False)


def downgrade() -> None:
    op.drop_table("counter")
    with op.batch_alter_table("incident", schema=None) as batch_op:
        for name in ("onset_step", "seen_on", "culprit_ranks", "culprit_gpus"):
            batch_op.drop_column(name)
