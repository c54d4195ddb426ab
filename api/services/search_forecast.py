"""What a search would still do, with a change and without: simulated from its record."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from api.errors import BadRequest, FailedPrecondition
from api.queries import search as records
from api.queries.followed_searches import FollowedSearches
from api.schemas import search as wire
from database.models import Allocation, Experiment, Trial
from database.types import utc_now
from workflows.config import ExperimentConfig
from workflows.lifecycle.experiment import ExperimentState
from workflows.searchers import Amended, Forecast, Search, SearchError, forecast


def preview(
    session: Session, searches: FollowedSearches, row: Experiment, config: ExperimentConfig, change: Amended, unit: str
) -> wire.AmendPreview:
    """Compare. Raises: BadRequest if the change can't be made, FailedPrecondition if the search is over."""
    state = ExperimentState(row.state)
    over = FailedPrecondition(f"experiment {row.id} is {row.state}: its search takes nothing more")
    if state.is_stopping or state.is_terminal:
        raise over
    progress = dict(
        session.execute(select(Trial.request_id, Trial.progress).where(Trial.experiment_id == row.id)).tuples().all()
    )
    search = records.as_it_stands(session, searches, row)
    if search.shutdown is not None:
        raise over
    trained = {request_id: share * _whole(search) for request_id, share in progress.items()}
    try:
        without, changed = forecast(search, trained), forecast(search, trained, change)
    except SearchError as error:
        raise BadRequest(str(error)) from None
    speed = _seconds_a_unit(session, row.id, without)
    slots = config.resources.slots_per_trial
    return wire.AmendPreview(unit=unit, without=_wire(without, speed, slots), changed=_wire(changed, speed, slots))


def _whole(search: Search) -> float:
    """What the progress of a trial is a share of: in the ops generation it is in units itself."""
    if search.generation == "ops":
        return 1.0
    return float(max((rung.length for rung in search.rungs()), default=0))


def _seconds_a_unit(session: Session, experiment_id: int, known: Forecast) -> float | None:
    """How long a trial trained for one unit until now."""
    spans = session.execute(
        select(Allocation.started_at, Allocation.ended_at).where(Allocation.experiment_id == experiment_id)
    ).tuples()
    now = utc_now()
    seconds = sum(((ended or now) - started).total_seconds() for started, ended in spans)
    return seconds / known.trained if known.trained > 0 and seconds > 0 else None


def _wire(found: Forecast, speed: float | None, slots: int) -> wire.SearchForecast:
    def hours(units: float | None, factor: int) -> float | None:
        return None if units is None or speed is None or not factor else units * speed * factor / 3600

    return wire.SearchForecast(
        trials=found.total,
        new_trials=found.new,
        promotions=found.promotions,
        units=found.units,
        at_once=found.at_once,
        slot_hours=hours(found.units, slots),
        hours=hours(found.longest, 1),
        rungs=[wire.RungForecast(**vars(rung)) for rung in found.rungs],
        is_whole=found.is_whole,
    )
