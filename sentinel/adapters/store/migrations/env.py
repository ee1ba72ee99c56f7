"""Alembic's entry: the store hands its connection in, so that migrations need no configuration file."""

from alembic import context

from sentinel.adapters.store.tables import metadata

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=metadata, render_as_batch=True)
with context.begin_transaction():
    context.run_migrations()
