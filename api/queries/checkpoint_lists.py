"""Lists of checkpoints, as clients ask for them of an experiment and of a trial."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Query
from sqlalchemy import ColumnElement
from sqlalchemy.orm import Session
from starlette.responses import Response

from api.queries import checkpoints
from api.queries.paging import Limit, Offset, Window, in_loop, rows_of
from api.schemas.base import answer
from api.schemas.parameters import ORDER_BY, SORT_BY, STATES
from database.models import Experiment


@dataclass
class CheckpointList:
    """Which checkpoints, in which order, which page. Newer clients name attribute or metric, older ones `sortBy`."""

    offset: Offset = 0
    limit: Limit = 0
    states: Annotated[list[str] | None, Query(description=STATES)] = None
    sort_by: Annotated[str, Query(alias="sortBy", description=SORT_BY)] = ""
    sort_by_attr: Annotated[str, Query(alias="sortByAttr")] = ""
    sort_by_metric: Annotated[str, Query(alias="sortByMetric")] = ""
    order_by: Annotated[str, Query(alias="orderBy", description=ORDER_BY)] = ""

    def page_of(self, session: Session, which: ColumnElement[bool], experiment: Experiment) -> Response:
        """The answer: a page of these checkpoints, which are of that experiment."""
        window = Window(self.offset, self.limit, self.order_by)
        statement = checkpoints.listed(
            which,
            experiment,
            states=self.states or (),
            sort_by=self.sort_by_attr or self.sort_by,
            metric=self.sort_by_metric,
            descending=window.is_descending,
        )
        rows, pagination = rows_of(session, statement, window)
        shown = checkpoints.shown(session, [uuid for (uuid,) in rows])
        return answer({"checkpoints": shown, "pagination": pagination})


CheckpointsDep = Annotated[CheckpointList, Depends(in_loop(CheckpointList))]
