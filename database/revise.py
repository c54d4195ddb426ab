"""`python -m database.revise "what changes"`: write a migration from the difference between models and migrations.

`python -m database.revise --first` writes the first migration anew instead, as long as nothing has been released. What
no model says, such as a function, is in migrations of its own.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from alembic import command

from database.migrate import alembic_config, run_migrations
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
    with tempfile.TemporaryDirectory() as folder:
        database = Database(f"sqlite:///{folder}/empty.db")
        if not is_first:  # of nothing there is nothing to migrate to
            with database.engine.begin() as connection:  # not from the models, which the difference is to be of
                run_migrations(connection)
        config = alembic_config()
        config.set_main_option("file_template", "%%(rev)s_%%(slug)s")
        if is_first:
            config.set_main_option("version_locations", folder)  # without those that follow it
        number = 1 if is_first else len(list(_VERSIONS.glob("[0-9]*.py"))) + 1
        with database.engine.connect() as connection, connection.begin():
            config.attributes["connection"] = connection
            command.revision(config, message=message, autogenerate=True, rev_id=f"{number:04}")
        for path in Path(folder if is_first else _VERSIONS).glob(f"{number:04}_*.py"):
            lines = path.read_text().splitlines(keepends=True)
            text = "".join(line for line in lines if "Alembic" not in line or "import" in line)
            (_VERSIONS / path.name).write_text(text)


if __name__ == "__main__":
    main()
