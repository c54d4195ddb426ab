"""Labels, which are lists within rows: the rows that have one, and the labels in use."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Select, func, select, true
from sqlalchemy.orm import InstrumentedAttribute, Session

from database.engines import on_postgresql

Labels = InstrumentedAttribute[list[str]]


def has_label(session: Session, labels: Labels, label: str) -> ColumnElement[bool]:
    """Whether a row has a label."""
    if on_postgresql(session):
        return labels.op("@>")(func.jsonb_build_array(label))
    members = func.json_each(labels).table_valued("value")
    return select(members.c.value).where(members.c.value == label).exists()


def most_used(session: Session, rows: Select[Any], labels: Labels) -> list[str]:
    """The labels of the rows of a statement, those of most rows first."""
    is_postgresql = on_postgresql(session)
    each = (func.jsonb_array_elements_text if is_postgresql else func.json_each)(labels)
    members = each.table_valued("value")
    label: ColumnElement[str] = members.c.value
    grouped = rows.join(members, onclause=true()).with_only_columns(label, func.count()).group_by(label)
    found = [(-count, name) for name, count in session.execute(grouped).tuples()]
    return [name for _, name in sorted(found)]
