"""The lease has a fencing token, and every daemon a row of its own in which it counts up."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("lease", schema=None) as batch_op:
        batch_op.add_column(sa.Column("token", sa.BigInteger(), nullable=False, server_default="0"))
    op.create_table(
        "daemon",
        sa.Column("holder", sa.String(length=255), nullable=False),
        sa.Column("address", sa.String(length=255), nullable=False),
        sa.Column("version", sa.String(length=64), nullable=False),
        sa.Column("beats", sa.BigInteger(), nullable=False),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("holder"),
    )


def downgrade() -> None:
    op.drop_table("daemon")
    with op.batch_alter_table("lease", schema=None) as batch_op:
        batch_op.drop_column("token")
