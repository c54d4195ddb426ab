"""Continues an experiment that has ended: the same id, the same trials, from their newest checkpoints."""

from __future__ import annotations

from typing import Any, cast

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from api.auth.authentication import UserPrincipal
from api.auth.authorization import changeable
from api.errors import BadRequest, FailedPrecondition, Forbidden
from api.services import budgets, config_policies
from api.services.experiments import Created, Creator, check_next_resources, run_of
from api.services.forks import origin_of
from api.services.idempotency import Once
from api.services.jobs import claim_of
from api.services.pools import check_pool
from api.temporal import outbox
from database.models import Experiment, Project, SearchDecision, Trial
from database.session import Database
from database.tasks import give_further_tasks
from database.trials import forget_decisions
from database.types import utc_now
from workflows import names
from workflows.config import ConfigError, ExperimentConfig, merge_configs, parse_experiment_config
from workflows.config.yamltext import parse_text
from workflows.lifecycle.experiment import CONTINUABLE, ExperimentState
from workflows.searchers import Decision, Inherited, Search, SearchError
from workflows.searchers.continuation import Past, past_of
from workflows.searchers.search import generation_of


class Continuer:
    """Turns requests to continue into records. A trial's state is in its row, that of the search in its decisions."""

    def __init__(self, database: Database, creator: Creator) -> None:
        self._database = database
        self._creator = creator

    def continue_experiment(self, experiment_id: int, override: str, user: UserPrincipal, once: Once) -> Created:
        """Record that an experiment is to be continued.

        Args:
            experiment_id: it must be COMPLETED, CANCELED or ERROR.
            override: YAML of the changes to its configuration; may be empty.
            user: the caller, who has permission to change it.
            once: A repeat of the request finds that it is continued.

        It runs as its owner, also if the caller is another user: permission to change it doesn't include what runs, and
        where.

        Raises: NotFound, Forbidden, BadRequest, FailedPrecondition, Conflict. Nothing was changed then.
        """
        made: list[Created] = []
        with self._database.write() as session:

            def make() -> dict[str, Any]:
                made.append(self._continued(session, experiment_id, override, user))
                return {"id": experiment_id}

            once(session, make)
            if made:
                return made[0]
            row = changeable(session, experiment_id, user)
            return Created(row.id, row.config, [])

    def _continued(self, session: Session, experiment_id: int, override: str, user: UserPrincipal) -> Created:
        row = changeable(session, experiment_id, user)
        state = ExperimentState(row.state)
        if state not in CONTINUABLE:
            raise FailedPrecondition(f"experiment in non terminal state '{state.value}', try again later")
        check_pool(session, row, user)
        budgets.check_activation(session, row)
        before = ExperimentConfig.model_validate(row.config)
        config = before if not override.strip() else _overridden(row, before, override)
        if row.owner_id != user.user_id:
            _check_harmless(before, config)
        _check_resources(session, row, before, config, user)
        is_single = config.searcher.name == "single"
        decisions = _decisions(session, experiment_id)
        past = past_of(decisions, is_single=is_single)
        is_unchanged = config == before
        if state is ExperimentState.COMPLETED and not past.again and is_unchanged:
            raise FailedPrecondition("experiment has been completed, cannot continue this experiment")
        inherited = [Inherited(request_id=t["request_id"], hparams=t["hparams"]) for t in row.inherited]
        try:
            search = Search.new(config, inherited=inherited)
        except SearchError as error:
            raise BadRequest(f"invalid experiment configuration: <config>.searcher: {error}") from None
        same = past.same if config.searcher == before.searcher else 0
        _take_back(session, row, past, same)
        row.config = config.to_wire()
        if config.budget != before.budget:
            budgets.replace(session, row, config.budget)
        row.commanded, row.commanded_by, row.commanded_at = "continue", user.username, utc_now()
        row.is_archived = False  # or it would run while archived, and could not be unarchived
        row.wants_validations, row.max_length = search.wants_validations, search.frame.max_units
        row.slots_per_trial = config.resources.slots_per_trial
        run = run_of(
            session, row, config, search, self._creator.settings.timing, budgets.of_experiment(session, row.id)
        )
        run.past, run.is_started = past.events, bool(past.events)
        run.continuation, run.revision = row.continuations, row.revision
        run.template.source_checkpoint = row.source_checkpoint
        if row.parent_id is not None and row.forked_at is not None:
            run.inheritance = origin_of(session, row.parent_id, row.forked_at).inheritance(config)
        claim = claim_of(row)  # the pool may remember an earlier one
        outbox.post(session, names.pool_workflow(row.resource_pool), "job_claim", claim.model_dump(mode="json"))
        return Created(row.id, row.config, [], run, outbox.post_start(session, run))


#: What others than its owner may change of an experiment that goes on with its owner's rights.
_HARMLESS = frozenset(
    {
        "name", "description", "labels", "searcher", "max_restarts", "min_validation_period", "min_checkpoint_period",
        "scheduling_unit", "records_per_epoch", "perform_initial_validation", "log_policies", "retention_policy",
        "budget",
    }
)  # fmt: skip
#: What config policies bound.
_BOUNDED = {"slots_per_trial", "max_slots", "priority"}
_HARMLESS_RESOURCES = frozenset({"slots_per_trial", "max_slots", "priority", "weight", "resource_pool"})


def _check_harmless(before: ExperimentConfig, config: ExperimentConfig) -> None:
    """Raises: Forbidden, if a change could have the owner's trials do what another user wants."""
    old, new = before.model_dump(mode="json"), config.model_dump(mode="json")
    changed = [name for name in new if new[name] != old.get(name) and name not in _HARMLESS | {"resources"}]
    had, wants = (cast("dict[str, Any]", each.get("resources") or {}) for each in (old, new))
    changed += [
        f"resources.{name}" for name in wants if wants[name] != had.get(name) and name not in _HARMLESS_RESOURCES
    ]
    if changed:
        raise Forbidden(
            f"only its owner may continue an experiment with another {', '.join(sorted(changed))}: it runs with the"
            " owner's rights; fork it to have a copy of your own"
        )


def _check_resources(
    session: Session, row: Experiment, before: ExperimentConfig, config: ExperimentConfig, user: UserPrincipal
) -> None:
    """Refuse other resources than before, if a config policy forbids them or the user may not ask for them."""
    old, new = (each.resources.model_dump(include=_BOUNDED) for each in (before, config))
    config_policies.check_change(session, row, {name: new[name] for name in new if new[name] != old[name]})
    if config.failure_policies != before.failure_policies:
        workspace_id = session.get_one(Project, row.project_id).workspace_id
        check_next_resources(session, config, workspace_id, user, "overrideConfig: ")


def _overridden(row: Experiment, before: ExperimentConfig, override: str) -> ExperimentConfig:
    try:
        wanted = parse_text(override).value
        if not isinstance(wanted, dict):
            raise BadRequest("overrideConfig: expected `name: value` lines of a configuration")
        moved = [name for name in ("project", "workspace") if name in wanted]
        if moved:
            raise BadRequest(f"overrideConfig.{moved[0]}: an experiment that continues stays where it is")
        config = parse_experiment_config(merge_configs(cast("dict[str, Any]", wanted), row.config), seed=0)
    except ConfigError as error:
        raise BadRequest(str(error)) from None
    kept: list[tuple[str, Any, Any]] = [
        ("searcher.name", before.searcher.name, config.searcher.name),
        ("searcher.metric", before.searcher.metric, config.searcher.metric),
        ("searcher.smaller_is_better", before.searcher.smaller_is_better, config.searcher.smaller_is_better),
        ("resources.resource_pool", before.resources.resource_pool, config.resources.resource_pool),
        ("checkpoint_storage.type", before.checkpoint_storage.type, config.checkpoint_storage.type),
    ]
    if before.searcher.name != "single":
        kept += [
            ("hyperparameters", before.hyperparameters, config.hyperparameters),
            ("reproducibility", before.reproducibility, config.reproducibility),
            ("the kind of searcher.max_length or max_time", generation_of(before), generation_of(config)),
        ]
    for name, old, new in kept:
        if old != new:
            raise BadRequest(
                f"overrideConfig: {name} can't change while an experiment continues; "
                f"`det experiment fork {row.id}` makes a new one that reuses what was trained"
            )
    return config


def _decisions(session: Session, experiment_id: int) -> list[Decision]:
    statement = select(SearchDecision.decision).where(SearchDecision.experiment_id == experiment_id)
    return [Decision.model_validate_json(text) for text in session.scalars(statement.order_by(SearchDecision.number))]


def _take_back(session: Session, row: Experiment, past: Past, same: int) -> None:
    """The end of the experiment, and the decisions that are derived again; trials follow when they are started."""
    row.state, row.error, row.ended_at, row.progress = ExperimentState.ACTIVE.value, "", None, 0.0
    row.continuations += 1
    forget_decisions(session, row.id, after=same)
    again = select(Trial.id).where(Trial.experiment_id == row.id, Trial.request_id.in_(past.again))
    trial_ids = session.scalars(again).all()
    session.execute(update(Trial).where(Trial.id.in_(trial_ids)).values(early_exit=None, factors=None))
    give_further_tasks(session, trial_ids, row.continuations)
