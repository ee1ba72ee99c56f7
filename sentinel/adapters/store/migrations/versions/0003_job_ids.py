"""Job ids of a federation carry the cluster's number in their high bits: up to 2^32, more than PostgreSQL's integer."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_TABLES = {"evidence": True, "incident": True, "step": True, "attempt": False}  # whether the column may be null


def upgrade() -> None:
    _change(sa.Integer(), sa.BigInteger())


def downgrade() -> None:
    _change(sa.BigInteger(), sa.Integer())


def _change(before: sa.types.TypeEngine[int], after: sa.types.TypeEngine[int]) -> None:
    if op.get_bind().dialect.name == "sqlite":
        return  # its integers have 64 bits
    for table, nullable in _TABLES.items():
        op.alter_column(table, "job", existing_type=before, type_=after, existing_nullable=nullable)
