"""Every daemon counts its transactions in its row: one that finds fewer than it made knows that the database lost some."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("daemon", schema=None) as batch_op:
        batch_op.add_column(sa.Column("commits", sa.BigInteger(), nullable=False, server_default="0"))


def downgrade() -> None:
    with op.batch_alter_table("daemon", schema=None) as batch_op:
        batch_op.drop_column("commits")
