"""Writes what came from another cluster, and marks it: what bears no mark of that cluster is never touched."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, LiteralString

from sqlalchemy import String, and_, cast, delete, func, insert, select, text, update
from sqlalchemy.exc import DataError, IntegrityError
from sqlalchemy.orm import Session

from database.engines import on_postgresql
from database.errors import reason_of
from database.models import (
    Base,
    Cluster,
    Experiment,
    Group,
    Import,
    ImportMark,
    ImportTable,
    Model,
    ModelDefinition,
    ModelVersion,
    Project,
    Template,
    Trial,
    User,
    Webhook,
    Workspace,
)
from database.session import Database
from database.upsert import insert as upsert
from workers.importing.kinds import Table
from workers.importing.places import UNCATEGORIZED
from workers.importing.rows import Context, Record, Skipped, digest
from workers.importing.source import Row, Source
from workflows.lifecycle.imports import ImportMode, Kind

#: Kinds with numbers that the cluster gives, of which some stay free: what is new there and here shall not collide.
NUMBERED: dict[Kind, type[Base]] = {
    Kind.USERS: User,
    Kind.GROUPS: Group,
    Kind.WORKSPACES: Workspace,
    Kind.PROJECTS: Project,
    Kind.EXPERIMENTS: Experiment,
    Kind.TRIALS: Trial,
    Kind.MODELS: Model,
    Kind.MODEL_VERSIONS: ModelVersion,
    Kind.WEBHOOKS: Webhook,
}
HEADROOM = 1000
#: Of these all marks are in memory: a cluster has few of them.
_FEW = (Kind.USERS, Kind.GROUPS, Kind.WORKSPACES, Kind.PROJECTS, Kind.MODELS, Kind.TEMPLATES)
#: What may be deleted here after it came: then it does not come again, nor does what belongs to it.
_DELETABLE: dict[Kind, type[Experiment] | type[Trial] | type[Workspace] | type[Project] | type[Model]] = {
    Kind.EXPERIMENTS: Experiment,
    Kind.TRIALS: Trial,
    Kind.WORKSPACES: Workspace,
    Kind.PROJECTS: Project,
    Kind.MODELS: Model,
}
#: What has a name of its own in the whole cluster, and by what it is found: columns.
_NAMED: dict[Kind, tuple[Any, Any]] = {
    Kind.GROUPS: (Group.name, Group.id),
    Kind.WORKSPACES: (Workspace.name, Workspace.id),
    Kind.TEMPLATES: (Template.name, None),
    Kind.MODELS: (Model.name, Model.id),
    Kind.PROJECTS: (Project.key, Project.id),
}
_SHOWN_KEYS = 5
DELETED_HERE = "they were deleted here"
GOES_ON = "they were continued here: what changed there since stays there"


class Replaced(Exception):
    """Another attempt works on this by now."""


class Came:
    """What came from a cluster before, by kind and key there."""

    def __init__(self, session: Session, source: str, *, is_plan: bool = False) -> None:
        self._source = source
        self.is_plan = is_plan
        self._known: dict[Kind, dict[str, str]] = {kind: {} for kind in Kind}
        for kind in _FEW:
            rows = session.execute(
                select(ImportMark.key, ImportMark.ours).where(ImportMark.source == source, ImportMark.kind == kind)
            )
            self._known[kind] = self._present(session, kind, dict(rows.tuples().all()))

    def look_up(self, session: Session, rows: Sequence[Row], refs: Mapping[str, Kind]) -> None:
        """Find what a page of rows refers to."""
        wanted: dict[Kind, set[str]] = {}
        for column, kind in refs.items():
            wanted.setdefault(kind, set()).update(str(row[column]) for row in rows if row[column] is not None)
        for kind, keys in wanted.items():
            if kind not in _FEW:
                found = {key: ours for key, (ours, _) in marks(session, self._source, kind, keys).items()}
                self._known[kind] = self._present(session, kind, found)

    def note(self, kind: Kind, key: str, ours: str) -> None:
        """One more has come."""
        self._known[kind][key] = ours

    def forget(self, kind: Kind, keys: Iterable[str]) -> None:
        """They did not come after all."""
        for key in keys:
            self._known[kind].pop(key, None)

    def __call__(self, kind: Kind, key: Any) -> str | None:
        """Its key here. For a plan, everything will come."""
        return self._known[kind].get(str(key)) or (str(key) if self.is_plan else None)

    @staticmethod
    def _present(session: Session, kind: Kind, found: dict[str, str]) -> dict[str, str]:
        model = _DELETABLE.get(kind)
        if model is None or not found:
            return found
        numbers = list(map(int, found.values()))
        there: set[int] = set()
        for begin in range(0, len(numbers), 500):
            there.update(session.scalars(select(model.id).where(model.id.in_(numbers[begin : begin + 500]))))
        return {key: ours for key, ours in found.items() if int(ours) in there}


def marks(session: Session, source: str, kind: Kind, keys: Iterable[str]) -> dict[str, tuple[str, str]]:
    """By key there: the key here, and the digest of what it was when it came."""
    wanted, found = list(keys), dict[str, tuple[str, str]]()
    for begin in range(0, len(wanted), 500):
        rows = session.execute(
            select(ImportMark.key, ImportMark.ours, ImportMark.digest).where(
                ImportMark.source == source,
                ImportMark.kind == kind,
                ImportMark.key.in_(wanted[begin : begin + 500]),
            )
        )
        found |= {key: (ours, was) for key, ours, was in rows.tuples()}
    return found


def mark(session: Session, source: str, kind: Kind, entries: Sequence[tuple[str, str, str]]) -> None:
    """Note what came: key there, key here, digest."""
    if not entries:
        return
    rows = [
        {"source": source, "kind": kind.value, "key": key, "ours": ours, "digest": was} for key, ours, was in entries
    ]
    statement = upsert(session, ImportMark)
    keys = [ImportMark.source, ImportMark.kind, ImportMark.key]
    changed = {"ours": statement.excluded.ours, "digest": statement.excluded.digest}
    session.execute(statement.on_conflict_do_update(index_elements=keys, set_=changed), rows)


def claim(database: Database, import_id: int, kind: Kind) -> str:
    """Take a kind up: an earlier attempt that still lives finds that at its next page."""
    holder = secrets.token_hex(16)
    with database.write() as session:
        mine = ImportTable.import_id == import_id, ImportTable.kind == kind
        session.execute(update(ImportTable).where(*mine).values(holder=holder))
    return holder


def held(session: Session, import_id: int, kind: Kind, holder: str) -> ImportTable:
    """The row that says how far a kind came, for as long as this transaction takes. Raises: Replaced."""
    row = session.scalars(
        select(ImportTable).where(ImportTable.import_id == import_id, ImportTable.kind == kind).with_for_update()
    ).one()
    if row.holder != holder:
        raise Replaced
    return row


def note_skipped(row: ImportTable, key: str, reason: str) -> None:
    """Count what did not come."""
    found: dict[str, Any] = row.skipped.get(reason) or {"count": 0, "keys": ()}
    keys = [*found["keys"], key][:_SHOWN_KEYS]
    row.skipped = row.skipped | {reason: {"count": found["count"] + 1, "keys": keys}}


def write_page(
    session: Session,
    table: Table,
    rows: Sequence[Row],
    context: Context,
    came: Came,
    progress: ImportTable,
    source: Source,
) -> None:
    """Write a page of rows, but for those that are what they were. `progress` counts."""
    came.look_up(session, rows, table.refs)
    known = marks(session, context.source, table.kind, [str(row["key"]) for row in rows])
    changed: list[tuple[str, str, Row]] = []
    for row in rows:
        key, was = str(row["key"]), digest(row)
        if key in known and known[key][1] == was:
            progress.unchanged += 1
        else:
            changed.append((key, was, row))
    progress.read += len(rows)
    if not changed:
        return
    if not any(key in known for key, _, _ in changed):
        before = progress.skipped
        try:
            with session.begin_nested():
                progress.written += _write_new(session, table, changed, context, came, progress, source)
            return
        except (IntegrityError, DataError):  # one is at fault: find out which
            progress.skipped = before
            came.forget(table.kind, [key for key, _, _ in changed])
    for key, was, row in changed:
        made = table.made(row, context)
        if isinstance(made, Skipped):
            note_skipped(progress, key, made.reason)
            continue
        try:
            with session.begin_nested():
                outcome = _write(session, table, made, context, known.get(key))
                if isinstance(outcome, Skipped):
                    note_skipped(progress, key, outcome.reason)
                    continue
                _attach(session, table, row, outcome, source)
                mark(session, context.source, table.kind, [(key, outcome, was)])
        except IntegrityError as error:
            note_skipped(progress, key, f"taken here already, or what they refer to is missing: {_constraint(error)}")
        except DataError as error:
            note_skipped(progress, key, f"they are longer or larger than they may be here: {reason_of(error)[:120]}")
        else:
            came.note(table.kind, key, outcome)
            progress.written += 1


def _write_new(
    session: Session,
    table: Table,
    rows: Sequence[tuple[str, str, Row]],
    context: Context,
    came: Came,
    progress: ImportTable,
    source: Source,
) -> int:
    """Write rows of which none came before, with few statements; how many. Raises: IntegrityError, DataError."""
    inserts: dict[type[Base], list[dict[str, Any]]] = {table.model: []}
    entries: list[tuple[str, str, str]] = []
    attached: list[tuple[Row, str]] = []
    for key, was, row in rows:
        made = table.made(row, context)
        if isinstance(made, Skipped):
            note_skipped(progress, key, made.reason)
            continue
        outcome = _adopted(session, table, made, context)
        if outcome is not None:
            written = _write(session, table, made, context, None)
            assert isinstance(written, str)
            outcome = written
        else:
            outcome = _key(table, made)
            inserts[table.model].append(_new(made))
            for model, further in made.also:
                inserts.setdefault(model, []).append(further)
        came.note(table.kind, key, outcome)
        entries.append((key, outcome, was))
        attached.append((row, outcome))
    for model, values in inserts.items():
        if values:
            session.execute(insert(model.__table__), values)  # pyright: ignore[reportArgumentType]
    for row, outcome in attached:
        _attach(session, table, row, outcome, source)
    mark(session, context.source, table.kind, entries)
    return len(entries)


def _constraint(error: IntegrityError) -> str:
    name = getattr(getattr(error.orig, "diag", None), "constraint_name", None)
    return str(name) if name else reason_of(error)[:120]


def _key(table: Table, made: Record) -> str:
    return ",".join(str(made.values[name]) for name in table.by) or "-"


def _new(made: Record) -> dict[str, Any]:
    """The values of a row that is new here."""
    return made.values | {"secret": secrets.token_hex(20)} if made.model is Webhook else made.values


def _write(
    session: Session, table: Table, made: Record, context: Context, before: tuple[str, str] | None
) -> str | Skipped:
    """Write one record; its key here."""
    values = dict(made.values)
    adopted = None if before is not None else _adopted(session, table, made, context)
    if adopted is not None and context.shifts:
        return adopted  # a cluster that was used keeps what it has
    if before is not None and context.shifts and stands_for(table, made, before[0]):
        return before[0]
    ours = made.model.__table__
    if before is not None and table.by:
        refused = _refused(session, table, values)
        if refused is not None:
            return refused
    if table.kind is Kind.USERS and values["id"] == context.owner_id:
        values = {name: value for name, value in values.items() if name not in ("is_admin", "is_active")}
    if (before is not None or adopted is not None) and table.by:
        where = and_(*(ours.c[name].is_not_distinct_from(values[name]) for name in table.by))
        if session.scalar(select(ours.c[table.by[0]]).where(where).with_for_update()) is None:
            return Skipped(DELETED_HERE)
        for model, column, value in made.replaces:
            session.execute(delete(model).where(model.__table__.c[column] == value))
        session.execute(update(ours).where(where).values(values))  # pyright: ignore[reportArgumentType]
    else:
        session.execute(insert(ours).values(_new(made)))  # pyright: ignore[reportArgumentType]
    for model, further in made.also:
        keys = [column.name for column in model.__table__.primary_key]
        statement = upsert(session, model).values(further)
        if set(keys) <= set(further):
            statement = statement.on_conflict_do_update(index_elements=keys, set_=further)
        session.execute(statement)
    return _key(table, made)


def _attach(session: Session, table: Table, row: Row, ours: str, source: Source) -> None:
    """What a record has that is too large for a page."""
    if table.kind is Kind.EXPERIMENTS and row["packed"]:
        _copy_definition(session, source, row["id"], int(ours))


def _adopted(session: Session, table: Table, made: Record, context: Context) -> str | None:
    """The key here of what every cluster has from its first start, and the other had too."""
    if table.kind in (Kind.WORKSPACES, Kind.PROJECTS):
        return str(UNCATEGORIZED) if made.values["id"] == UNCATEGORIZED else None
    if table.kind is not Kind.USERS:
        return None
    found = session.execute(select(User.id).where(User.username == made.values["username"])).scalar()
    return str(found) if found is not None and (context.shifts or found == made.values["id"]) else None


def _refused(session: Session, table: Table, values: Mapping[str, Any]) -> Skipped | None:
    """Why a record that came before is not written again, if it is not."""
    if table.kind not in (Kind.EXPERIMENTS, Kind.TRIALS):
        return None
    experiment_id = values["id"] if table.kind is Kind.EXPERIMENTS else values["experiment_id"]
    row = session.execute(select(Experiment.commanded).where(Experiment.id == experiment_id)).one_or_none()
    if row is None:
        return Skipped(DELETED_HERE)
    return Skipped(GOES_ON) if row.commanded else None


def _copy_definition(session: Session, source: Source, there: int, here: int) -> None:
    """The packed code of an experiment: one at a time, as each may have a hundred megabytes. It never changes."""
    if session.scalar(select(ModelDefinition.size_bytes).where(ModelDefinition.experiment_id == here)) is not None:
        return
    content = bytes(source.one("SELECT model_definition FROM experiments WHERE id = %s", [there])["model_definition"])
    session.execute(insert(ModelDefinition).values(experiment_id=here, content=content, size_bytes=len(content)))


# -- before the first row --------------------------------------------------------------------------------------------


def context_of(session: Session, row: Import, came: Came) -> Context:
    """What rows of an import are made with."""
    suffix = f"({row.cluster_id[:8]})" if row.is_shifted else ""
    return Context(
        source=row.cluster_id,
        owner_id=row.owner_id,
        pool=session.get_one(Cluster, 1).compute_pool,
        shifts=row.shifts,
        came=came,
        free_name=lambda kind, wanted, key: _free_name(session, suffix, came, kind, wanted, key) if suffix else wanted,
    )


def _free_name(session: Session, suffix: str, came: Came, kind: Kind, wanted: str, key: str) -> str:
    """A name that nobody has here: with a suffix if another one has it. The keys of projects go then."""
    column, number = _NAMED[kind]
    before = None if came.is_plan else came(kind, key)
    if before is not None:  # it keeps the one that it got
        found = before if number is None else session.scalar(select(column).where(number == int(before)))
        return str(found or "")
    if session.scalar(select(column).where(column == wanted).limit(1)) is None:
        return wanted
    return "" if kind is Kind.PROJECTS else f"{wanted[: 78 - len(suffix)]} {suffix}"


def stands_for(table: Table, made: Record, ours: str) -> bool:
    """Whether a shifted record is one that was here before: a user of its name, or what every cluster has."""
    if table.kind not in (Kind.USERS, Kind.WORKSPACES, Kind.PROJECTS):
        return False
    return ours != _key(table, made) or ours == str(UNCATEGORIZED)


def collisions(session: Session, source: Source, cluster_id: str) -> dict[Kind, list[int]]:
    """By kind the numbers that are taken here, by what did not come from there. What each cluster has is none."""
    found: dict[Kind, list[int]] = {}
    for kind, model in NUMBERED.items():
        column: Any = model.__table__.c.id
        came = select(ImportMark.ours).where(ImportMark.source == cluster_id, ImportMark.kind == kind)
        mine = session.scalars(select(column).where(cast(column, String).not_in(came))).all()
        if kind in (Kind.WORKSPACES, Kind.PROJECTS):
            mine = [number for number in mine if number != UNCATEGORIZED]
        if kind is Kind.USERS:
            names = dict(session.execute(select(User.id, User.username).where(User.id.in_(mine))).tuples().all())
            there = {row["id"]: row["username"] for row in source.all("SELECT id, username FROM users")}
            taken = [number for number in mine if number in there and there[number] != names[number]]
            taken += [number for number, name in names.items() if name in there.values() and there.get(number) != name]
        else:
            taken = _there(source, kind, mine)
        if taken:
            found[kind] = sorted(set(taken))
    return found


def _there(source: Source, kind: Kind, numbers: Sequence[int]) -> list[int]:
    """Which of these numbers records there have."""
    rows = source.all(_BY_NUMBER[kind], [list(numbers)]) if numbers else []
    return [row["id"] for row in rows]


#: By kind: which of some numbers there are, and which is the highest.
_BY_NUMBER: dict[Kind, LiteralString] = {
    Kind.USERS: "SELECT id FROM users WHERE id = ANY(%s)",
    Kind.GROUPS: "SELECT id FROM groups WHERE user_id IS NULL AND id = ANY(%s)",
    Kind.WORKSPACES: "SELECT id FROM workspaces WHERE id = ANY(%s)",
    Kind.PROJECTS: "SELECT id FROM projects WHERE id = ANY(%s)",
    Kind.EXPERIMENTS: "SELECT id FROM experiments WHERE id = ANY(%s)",
    Kind.TRIALS: "SELECT id FROM runs WHERE id = ANY(%s)",
    Kind.MODELS: "SELECT id FROM models WHERE id = ANY(%s)",
    Kind.MODEL_VERSIONS: "SELECT id FROM model_versions WHERE id = ANY(%s)",
    Kind.WEBHOOKS: "SELECT id FROM webhooks WHERE id = ANY(%s)",
}
_HIGHEST: dict[Kind, LiteralString] = {
    Kind.USERS: "SELECT max(id) AS n FROM users",
    Kind.GROUPS: "SELECT max(id) AS n FROM groups",
    Kind.WORKSPACES: "SELECT max(id) AS n FROM workspaces",
    Kind.PROJECTS: "SELECT max(id) AS n FROM projects",
    Kind.EXPERIMENTS: "SELECT max(id) AS n FROM experiments",
    Kind.TRIALS: "SELECT max(id) AS n FROM runs",
    Kind.MODELS: "SELECT max(id) AS n FROM models",
    Kind.MODEL_VERSIONS: "SELECT max(id) AS n FROM model_versions",
    Kind.WEBHOOKS: "SELECT max(id) AS n FROM webhooks",
}


def shifts_of(session: Session, cluster_id: str) -> dict[str, int]:
    """What is added to the numbers of each kind, so that they lie above all that are here: as an earlier run had it."""
    earlier = session.scalars(
        select(Import)
        .where(Import.cluster_id == cluster_id, Import.is_shifted, Import.mode == ImportMode.RUN)
        .order_by(Import.id)
    ).first()
    if earlier is not None and earlier.shifts:
        return {kind: int(by) for kind, by in earlier.shifts.items()}
    shifts: dict[str, int] = {}
    for kind, model in NUMBERED.items():
        highest: int = session.scalar(select(func.max(model.__table__.c.id))) or 0
        shifts[kind.value] = -(-highest // HEADROOM) * HEADROOM
    return shifts


def reserve_numbers(session: Session, source: Source, shifts: Mapping[str, int]) -> None:
    """Have the cluster give numbers above those that come, and some more: the other cluster may still run."""
    for kind, model in NUMBERED.items():
        there = int(source.one(_HIGHEST[kind])["n"] or 0) + shifts.get(kind, 0) + HEADROOM
        name = model.__tablename__
        if on_postgresql(session):
            sequence = f"pg_get_serial_sequence('{name}', 'id')"
            session.execute(text(f"SELECT setval({sequence}, :n) WHERE nextval({sequence}) < :n"), {"n": there})
        elif kind in (Kind.EXPERIMENTS, Kind.TRIALS):  # the others' numbers follow from their rows
            found = session.execute(text("SELECT seq FROM sqlite_sequence WHERE name = :t"), {"t": name}).scalar()
            if found is None:
                session.execute(
                    text("INSERT INTO sqlite_sequence (name, seq) VALUES (:t, :n)"), {"t": name, "n": there}
                )
            elif found < there:
                session.execute(text("UPDATE sqlite_sequence SET seq = :n WHERE name = :t"), {"t": name, "n": there})
