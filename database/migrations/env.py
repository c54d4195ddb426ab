"""Alembic's entry: called with a connection by `database.migrate`."""

from typing import Any, Literal

from alembic import context
from alembic.autogenerate.api import AutogenContext
from sqlalchemy import JSON

from database.models import Base
from database.types import UtcTime


def render(kind: str, item: Any, autogen: AutogenContext) -> str | Literal[False]:
    """Spell our column types by their names in generated migrations."""
    if kind == "type" and isinstance(item, UtcTime | JSON):
        name = "UtcTime()" if isinstance(item, UtcTime) else "Document"
        autogen.imports.add("from database.types import Document, UtcTime")
        return name
    return False


if context.is_offline_mode():  # the statements are asked for, by `database.expand`
    context.configure(dialect_name="postgresql", target_metadata=Base.metadata, literal_binds=True)
else:
    connection = context.config.attributes["connection"]
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        render_as_batch=connection.dialect.name == "sqlite",
        render_item=render,
        compare_type=True,
    )
with context.begin_transaction():
    context.run_migrations()
