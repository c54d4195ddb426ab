"""How objects of the SDK are shown in a notebook, and lists of them as tables."""

from __future__ import annotations

import datetime
from typing import TypeVar

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    import pandas

_MAX_ROWS_SHOWN = 100


class Shown:
    """An object that a notebook shows as a table."""

    def row(self) -> dict[str, Any]:
        """What it is shown by: column -> value."""
        raise NotImplementedError(f"{type(self).__name__}.row")

    def _repr_html_(self) -> str:
        lines = "".join(f"<tr><th>{_text(name)}</th><td>{_text(value)}</td></tr>" for name, value in self.row().items())
        return f"<table><caption>{_text(type(self).__name__)}</caption>{lines}</table>"


T = TypeVar("T", bound=Shown)


class Rows(list[T]):
    """A list of objects of one kind that is a table too."""

    def to_dataframe(self) -> pandas.DataFrame:
        """A row an object, in order; times are UTC. What one object has and another lacks is missing there.

        Raises:
            ImportError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError as e:
            raise ImportError(
                "to_dataframe() needs pandas, which is not installed: pip install 'undeterred-harness[dataframe]'"
            ) from e
        return pandas.DataFrame([item.row() for item in self])

    def _repr_html_(self) -> str:
        rows = [item.row() for item in self[:_MAX_ROWS_SHOWN]]
        columns = list(dict.fromkeys(name for row in rows for name in row))
        head = "".join(f"<th>{_text(name)}</th>" for name in columns)
        lines = "".join(_line(row, columns) for row in rows)
        left = len(self) - len(rows)
        more = f"<p>… and {left:,} more</p>" if left else ""
        return f"<table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>{more}"


def moment(text: str | None) -> datetime.datetime | None:
    """A time of the wire (RFC 3339); None if there is none."""
    if not text:
        return None
    head, dot, fraction = text.rstrip("Zz").partition(".")
    # Python 3.9 reads 3 or 6 digits only, and the wire may have up to 9.
    whole = head + (dot + fraction[:6].ljust(6, "0") if dot and fraction.isdigit() else "")
    if not text.endswith(("Z", "z")):
        whole = text
    time = datetime.datetime.fromisoformat(whole)
    return time if time.tzinfo else time.replace(tzinfo=datetime.timezone.utc)


def _line(row: dict[str, Any], columns: Iterable[str]) -> str:
    return "<tr>" + "".join(f"<td>{_text(row.get(name))}</td>" for name in columns) + "</tr>"


def _text(value: Any) -> str:
    import html

    if value is None:
        return ""
    if isinstance(value, datetime.datetime):
        value = value.isoformat(sep=" ", timespec="seconds")
    return html.escape(str(value))
