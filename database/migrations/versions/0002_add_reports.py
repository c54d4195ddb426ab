"""a function that adds reports of trials which the writer knows"""

from alembic import op

from database.models import ADD_REPORTS

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    if op.get_context().dialect.name == "postgresql":
        op.execute(ADD_REPORTS)


def downgrade() -> None:
    if op.get_context().dialect.name == "postgresql":
        op.execute("DROP FUNCTION add_reports(jsonb, jsonb, boolean)")
