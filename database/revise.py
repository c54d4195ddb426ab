"""`python -m database.revise "what changes"`: write a migration from the difference between models and migrations.

`python -m database.revise --first` writes the first migration anew instead, as long as nothing has been released.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from alembic import command

from database.migrate import alembic_config, migrate
from database.session import Database

_VERSIONS = Path(__file__).parent / "migrations" / "versions"


def main() -> None:
    """Write the next migration; it is to be read and corrected."""
    message = " ".join(sys.argv[1:])
    if not message:
        sys.exit('usage: python -m database.revise "what changes"   or   --first')
    is_first = message == "--first"
    if is_first:
        message = "first schema"
        for path in _VERSIONS.glob("[0-9]*.py"):
            path.unlink()
    with tempfile.TemporaryDirectory() as folder:
        database = Database(f"sqlite:///{folder}/empty.db")
        if not is_first:  # of nothing there is nothing to migrate to
            migrate(database)
        config = alembic_config()
        config.set_main_option("file_template", "%%(rev)s_%%(slug)s")
        number = len(list(_VERSIONS.glob("[0-9]*.py"))) + 1
        with database.engine.connect() as connection, connection.begin():
            config.attributes["connection"] = connection
            command.revision(config, message=message, autogenerate=True, rev_id=f"{number:04}")
    for path in _VERSIONS.glob(f"{number:04}_*.py"):
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(line for line in lines if "Alembic" not in line or "import" in line))


if __name__ == "__main__":
    main()
