"""Numbers of new rows, where they are given before the rows are there."""

from __future__ import annotations

from sqlalchemy import Connection, text

_MORE = text("UPDATE sqlite_sequence SET seq = seq + :count WHERE name = :table RETURNING seq")
_FIRST = text("INSERT INTO sqlite_sequence (name, seq) VALUES (:table, :count)")


def take_on_sqlite(connection: Connection, table: str, count: int) -> range:
    """As many numbers as no row of this table has or will get. Rows that are gone, as into blocks, keep theirs."""
    asked = {"table": table, "count": count}
    last = connection.execute(_MORE, asked).scalar()
    if last is None:
        connection.execute(_FIRST, asked)
        last = count
    return range(last - count + 1, last + 1)
