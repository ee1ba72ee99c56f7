"""Every daemon keeps the name of its last batch: one whose commit was not answered is not written a second time."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("daemon", schema=None) as batch_op:
        batch_op.add_column(sa.Column("batch", sa.String(40), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("daemon", schema=None) as batch_op:
        batch_op.drop_column("batch")
