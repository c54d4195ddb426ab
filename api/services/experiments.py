"""Creates experiments: validates and records one, and has its workflow started under the record's id."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, cast

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from api.auth.authentication import UserPrincipal
from api.auth.authorization import changeable, may_see, readable, readable_checkpoint, readable_trial
from api.errors import ApiError, BadRequest, TooLarge
from api.queries.experiments import New
from api.schemas.experiments import CreateExperimentRequest, CreateExperimentsRequest
from api.schemas.validation import checked_external_id
from api.services import budgets, chunked_contexts, config_policies
from api.services.context_contents import Stored, readable_files
from api.services.contexts import pack
from api.services.forks import Origin
from api.services.idempotency import Key, Once
from api.services.jobs import claim_of
from api.services.pools import available_default, check_available, defaults_of, offered
from api.services.templates import usable_template
from api.services.workspaces import Target, project_of_names, target, target_project
from api.settings import ApiSettings
from api.temporal import outbox
from database import gates
from database.budgets import meter_of
from database.checkpoints import resume_point
from database.models import (
    Budget,
    Checkpoint,
    Experiment,
    ModelDefinition,
    Project,
    User,
    Workspace,
)
from database.pipeline import pipelined
from database.session import Database
from database.tasks import create_trial_tasks
from database.trials import create_first_trials, record_decisions
from determined.common.storage.hosted import folder_of, named_root
from determined.errors import StorageNotNamed
from workflows.config import (
    AdaptiveAshaSearcher,
    AsyncHalvingSearcher,
    ClusterDefaults,
    ConfigError,
    ExperimentConfig,
    loose_numbers,
    merge_configs,
    parse_experiment_config,
    read_config,
)
from workflows.config.config_policies import NO_POLICY, ConfigPolicy, Workload
from workflows.config.served import notices
from workflows.config.yamltext import Document
from workflows.lifecycle.budget import Clock
from workflows.lifecycle.experiment import ExperimentState
from workflows.messages import CreatedTrials, ExperimentRun, Inheritance, Timing, TrialTemplate
from workflows.new_trials import new_trial, note_trials
from workflows.searchers import Create, Decision, Search, SearchError, Started, generation_of


@dataclass(frozen=True)
class Created:
    """A recorded experiment. `run` is None if nothing is to be started now.

    It was recorded by an earlier request with the same key then, or is paused.
    """

    experiment_id: int
    config: dict[str, Any]
    warnings: list[str]
    run: ExperimentRun | None = None
    outbox_id: int | None = None
    notices: list[str] = field(default_factory=list[str])  # what of the configuration is not acted upon
    pool: str = ""  # that it would go to, where it was only checked
    new: New | None = None  # what to show of it, where it was recorded now


@dataclass(frozen=True)
class _Site:
    """Where an experiment goes, and what comes with that."""

    project_id: int
    workspace_id: int
    template: dict[str, Any]
    storage: dict[str, Any] | None
    compute_pool: str | None
    aux_pool: str | None
    policy: ConfigPolicy
    said_twice: tuple[str, ...]  # the key of the configuration whose project the request says by its id too


@dataclass(frozen=True)
class _Place:
    """What the transaction that records an experiment looks up for it."""

    token_id: int | None
    bounds: list[str]
    pool: str
    launchers: frozenset[str]
    warnings: list[str]
    kept: Target  # rows that `run_of` looks up: the session itself forgets what nobody else refers to


#: Bytes of code that experiments which are created together may have: each has a copy.
_MOST_CONTENT = 512 * 2**20


@dataclass(frozen=True)
class _Checked:
    """A request that can be recorded, as far as that is known without its transaction."""

    request: CreateExperimentRequest
    document: Document
    site: _Site
    config: ExperimentConfig
    search: Search
    decision: Decision
    content: Stored
    origin: Origin | None
    inheritance: Inheritance | None

    @property
    def creates(self) -> list[Create]:
        """The trials that its search begins with."""
        return [action for action in self.decision.actions if isinstance(action, Create)]


@dataclass(frozen=True)
class _Made:
    """An experiment as it is about to be recorded."""

    checked: _Checked
    row: Experiment
    content: Stored
    place: _Place
    notices: list[str]

    def created(
        self,
        runs: Mapping[int, ExperimentRun],
        starts: Mapping[int, outbox.Outbox],
        trials: Mapping[int, CreatedTrials],
    ) -> Created:
        """What the client is answered, once it is recorded."""
        wire, warnings = self.row.config, self.place.warnings
        if self.checked.request.validate_only:
            return Created(0, wire, warnings, notices=self.notices, pool=self.place.pool)
        id_, start = self.row.id, starts.get(self.row.id)
        new = None
        if self.checked.inheritance is None:  # of trials that it takes over there is more to say
            new = New(self.row, *self.place.kept, trials[id_].trial_ids, self.content.size_bytes)
        run, outbox_id = (None, None) if start is None else (runs[id_], start.id)
        return Created(id_, wire, warnings, run, outbox_id, self.notices, new=new)


@contextmanager
def _at(number: int) -> Generator[None]:
    """What is refused in the block says which experiment of a list it is about."""
    try:
        yield
    except ApiError as error:
        error.message = f"experiments[{number}]: {error.message}"
        raise


def _earlier(session: Session, key: Key) -> Created | None:
    """The experiment of an earlier request with this key. Raises: Conflict if that was another request."""
    row = session.scalar(select(Experiment).where(Experiment.idempotency_key == key.name))
    if row is None:
        return None
    key.check(row.request_digest)
    return Created(row.id, row.config, [])


_PREFIX = "invalid experiment configuration: "


class Creator:
    """Turns create requests into records."""

    def __init__(self, database: Database, settings: ApiSettings) -> None:
        self.database = database
        self.settings = settings

    def create(
        self,
        request: CreateExperimentRequest,
        user: UserPrincipal,
        key: Key | None,
        origin: Origin | None = None,
        note: Callable[[Session, Experiment], None] | None = None,
        content: Stored | None = None,
    ) -> Created:
        """Check and record an experiment; with `validate_only` nothing is recorded and the id is 0.

        Args:
            request: as the client sent it.
            user: becomes the owner.
            key: of the request; a repeat answers with the experiment of the first one.
            origin: where it branches off, if it is a fork.
            note: what else is recorded in its transaction.
            content: its files as they are stored already, where none come with the request.

        Raises: BadRequest, NotFound, TooLarge, Unsupported, Conflict. Nothing is left behind.
        """
        if request.unmanaged:
            return self.create_unmanaged(request, user, None)
        checked = self._checked(request, user, origin, content)
        try:
            with self.database.write() as session:
                earlier = None if key is None else _earlier(session, key)
                return earlier or self._record(session, [self._made(session, checked, user, {}, key)], note)[0]
        except IntegrityError:
            if key is None:
                raise
            with self.database.read() as session:  # the same request came twice at once, and the other was first
                earlier = _earlier(session, key)
                if earlier is None:
                    raise
                return earlier

    def create_many(self, request: CreateExperimentsRequest, user: UserPrincipal, once: Once) -> Any:
        """Check and record experiments, all or none, and post their starts. Returns a `NewExperimentsResponse`.

        Args:
            request: As the client sent it.
            user: Becomes their owner.
            once: A repeat gets the answer of the first request.

        Raises: BadRequest, NotFound, TooLarge, Conflict; the message names the place in the list.
        """
        content = _files(request)
        size = len(content.packed) * len(request.experiments)
        if size > _MOST_CONTENT:
            raise TooLarge(
                f"modelDefinition: {len(request.experiments)} experiments with {len(content.packed)} bytes each:"
                f" expected at most {_MOST_CONTENT} bytes together"
            )
        checked: list[_Checked] = []
        sites: dict[Any, _Site] = {}
        for number, each in enumerate(request.experiments):
            one = CreateExperimentRequest(
                config=each.config,
                activate=each.activate,
                project_id=each.project_id,
                template=each.template,
                context=request.context,
            )
            with _at(number):
                checked.append(self._checked(one, user, None, content, sites))
        with self.database.write() as session:

            def record() -> dict[str, Any]:
                made: list[_Made] = []
                places: dict[Any, _Place] = {}
                for number, each in enumerate(checked):
                    with _at(number):
                        made.append(self._made(session, each, user, places))
                return {
                    "experiments": [
                        {
                            "id": created.experiment_id,
                            "name": created.config["name"],
                            "warnings": created.warnings,
                            "notices": created.notices,
                        }
                        for created in self._record(session, made)
                    ]
                }

            return once(session, record)

    def _checked(
        self,
        request: CreateExperimentRequest,
        user: UserPrincipal,
        origin: Origin | None,
        content: Stored | None = None,
        sites: dict[Any, _Site] | None = None,
    ) -> _Checked:
        """What can be known of a request before its transaction. Raises: BadRequest, NotFound, TooLarge.

        Args:
            request: As for `create`, as are `user` and `origin`.
            user: See there.
            origin: See there.
            content: Its files as they are stored already, where none come with the request.
            sites: Those that were looked up for this request.
        """
        document, site = self._site(request, user, origin, {} if sites is None else sites)
        config = self._parse(document, site, None if origin is None else origin.seed)
        if config.entrypoint is None:
            raise BadRequest(
                f"{_PREFIX}<config>: managed experiments require entrypoint (a command, or a list of strings)"
            )
        inheritance = None if origin is None else origin.inheritance(config)
        try:
            search = Search.new(config, inherited=() if inheritance is None else inheritance.points())
            decision = search.decide(Started())
        except SearchError as error:
            raise BadRequest(f"{_PREFIX}<config>.searcher: {error}") from None
        if content is None:
            content = _files(request)
        return _Checked(request, document, site, config, search, decision, content, origin, inheritance)

    def _made(
        self,
        session: Session,
        checked: _Checked,
        user: UserPrincipal,
        places: dict[Any, _Place],
        key: Key | None = None,
    ) -> _Made:
        """The row of an experiment that is to be recorded. Raises: BadRequest, NotFound, Conflict.

        Args:
            session: Of the transaction.
            checked: What it is.
            user: Becomes the owner.
            places: Those that were looked up in this transaction.
            key: As for `create`.
        """
        request, site, config = checked.request, checked.site, checked.config
        wire, content = config.to_wire(), checked.content
        where = (site.project_id, config.resources.resource_pool, config.resources.slots_per_trial, request.activate)
        place = places.get(where)
        if place is None:
            place = places[where] = self._place(session, site, config, user, is_active=request.activate)
        check_next_resources(session, config, site.workspace_id, user)
        wire["resources"] = config_policies.fitted(session, site.policy, wire["resources"], place.pool)
        said = notices(merge_configs(checked.document.value, site.template), place.launchers)
        said += loose_numbers(checked.document)
        said += _storage_notices(wire, self.settings.roots) + _size_notices(config) + place.bounds
        said += budgets.unpriced(session, config.budget, place.pool)
        source = _source_checkpoint(session, config, user)
        if request.parent_id:
            content = readable_files(session, request.parent_id, user)
        elif request.context:
            content = chunked_contexts.named(session, user, request.context)
        row = _row(config, wire, request, user, checked.search)
        if checked.origin is not None and checked.inheritance is not None:
            row.forked_at = checked.origin.at
            row.inherited = checked.origin.records(checked.inheritance)
        row.project_id, row.resource_pool = site.project_id, place.pool
        if key is not None:
            row.idempotency_key, row.request_digest = key.name, key.digest
        row.source_checkpoint, row.token_id = source, place.token_id
        row.trial_count = len(checked.creates)
        row.searcher_queue = [event.model_dump(mode="json") for event in checked.search.queue()]
        return _Made(checked, row, content, place, said)

    def _record(
        self,
        session: Session,
        made: Sequence[_Made],
        note: Callable[[Session, Experiment], None] | None = None,
    ) -> list[Created]:
        """Record experiments, and post the starts of those that are not paused: one that is only checked stays out.

        Args:
            session: Of the transaction.
            made: What they are.
            note: As for `create`.
        """
        lasting = [each for each in made if not each.checked.request.validate_only]
        chunked_contexts.hold(session, [each.content for each in lasting])
        session.add_all([each.row for each in lasting])
        session.flush()
        runs = {each.row.id: self._run(session, each, note) for each in lasting}
        news = {
            each.row.id: [new_trial(runs[each.row.id], create) for create in each.checked.creates] for each in lasting
        }
        recorded = create_first_trials(session, news)
        starts: dict[int, outbox.Outbox] = {}
        held: list[ExperimentRun] = []
        for id_, run in runs.items():
            note_trials(run, news[id_], recorded[id_].trial_ids, recorded[id_].pasts)
            run.is_started = run.is_recorded = True
            if run.trials and run.state is ExperimentState.PAUSED and run.inheritance is None:
                held.append(run)
            else:
                starts[id_] = outbox.add_start(session, run)
        session.flush()
        with pipelined(session):
            create_trial_tasks(session, [trial_id for each in recorded.values() for trial_id in each.trial_ids])
            record_decisions(session, {each.row.id: [each.checked.decision] for each in lasting})
            for run in held:
                outbox.hold_start(session, run)
            for each in lasting:
                columns = each.content.columns()
                session.add(ModelDefinition(experiment_id=each.row.id, size_bytes=each.content.size_bytes, **columns))
            session.flush()
        return [each.created(runs, starts, recorded) for each in made]

    def _run(self, session: Session, made: _Made, note: Callable[[Session, Experiment], None] | None) -> ExperimentRun:
        """What else is recorded of an experiment with its row, and what its workflow starts with."""
        checked, row = made.checked, made.row
        if note is not None:
            note(session, row)
        budget = budgets.give(session, row, checked.config.budget)
        run = run_of(session, row, checked.config, checked.search, self.settings.timing, budget)
        run.inheritance, run.template.source_checkpoint = checked.inheritance, row.source_checkpoint
        return run

    def _place(
        self, session: Session, site: _Site, config: ExperimentConfig, user: UserPrincipal, *, is_active: bool
    ) -> _Place:
        """Where an experiment goes, looked up in the transaction that records it. Raises: BadRequest, NotFound."""
        kept = target(session, site.project_id, user, is_locked=True)
        token_id = budgets.token_of(session, user)
        bounds = budgets.check_open(session, site.workspace_id, token_id) if is_active else []
        pool = self._pool(session, config, site.workspace_id, user)
        launchers, warnings = offered(session, pool, config.resources.slots_per_trial)
        return _Place(token_id, bounds, pool, launchers, warnings, kept)

    def create_unmanaged(
        self, request: CreateExperimentRequest, user: UserPrincipal, external_id: str | None
    ) -> Created:
        """Record an experiment that is trained elsewhere.

        Args:
            request: as the client sent it. Neither searcher nor entrypoint nor files are needed.
            user: becomes the owner.
            external_id: that the client knows it by; if it is known here too, that experiment is the answer.

        Raises: BadRequest, NotFound, Forbidden.
        """
        if external_id is not None:
            checked_external_id("externalExperimentId", external_id)
        if request.parent_id:
            raise BadRequest(f"parentId: {request.parent_id}: an unmanaged experiment can't be a fork")
        document, site = self._site(request, user, None, {})
        template = merge_configs(site.template, {"searcher": _NO_SEARCH, "entrypoint": "true"})
        config = self._parse(document, replace(site, template=template), None)
        known = select(Experiment.id).where(Experiment.external_id == external_id)
        try:
            with self.database.write() as session:
                if external_id is not None and (found := session.scalar(known)) is not None:
                    return Created(found, changeable(session, found, user).config, [])
                if request.validate_only:
                    return Created(0, config.to_wire(), [])
                experiment = _row(config, config.to_wire(), request, user, Search.new(config))
                experiment.project_id = target_project(session, site.project_id, user, is_locked=True).id
                slots = config.resources.slots_per_trial
                experiment.resource_pool = config.resources.resource_pool or defaults_of(session).of(slots)
                experiment.state, experiment.is_unmanaged = ExperimentState.PAUSED.value, True
                experiment.wants_validations = experiment.has_operations = False
                experiment.external_id = external_id
                session.add(experiment)
                session.flush()
                return Created(experiment.id, experiment.config, [])
        except IntegrityError:
            if external_id is None:
                raise
            with self.database.read() as session:  # the same request came twice at once, and the other was first
                row = changeable(session, session.scalars(known).one(), user)
                return Created(row.id, row.config, [])

    def _site(
        self, request: CreateExperimentRequest, user: UserPrincipal, origin: Origin | None, sites: dict[Any, _Site]
    ) -> tuple[Document, _Site]:
        """The text as read, and where the experiment goes: that decides about what its config does not say."""
        if not request.config.strip():
            raise BadRequest(f"{_PREFIX}it is empty")
        try:
            document = read_config(request.config)
        except ConfigError as error:
            raise BadRequest(str(error)) from None
        wanted = (request.template, request.project_id, repr(_names(document.value)))
        site = sites.get(wanted)
        if site is None:
            with self.database.glance() as session:
                site = sites[wanted] = self._site_of(session, request, document, user, origin)
        for name in site.said_twice:
            document.value.pop(name, None)
        return document, site

    def _site_of(
        self,
        session: Session,
        request: CreateExperimentRequest,
        document: Document,
        user: UserPrincipal,
        origin: Origin | None,
    ) -> _Site:
        template = usable_template(session, request.template, user) if request.template else {}
        named = _names(template) | _names(document.value)
        project_id = _project(session, request.project_id, named, user)
        said_twice = tuple(named) if project_id is not None and len(named) == 1 else ()
        if project_id is None:
            project_id = 1 if origin is None else readable(session, origin.parent_id, user).project_id
        project, workspace, _ = target(session, project_id, user)
        policy = NO_POLICY
        if not request.unmanaged:
            policy = config_policies.governing(session, workspace.id, Workload.EXPERIMENT)
        return _Site(
            project_id=project.id,
            workspace_id=workspace.id,
            template={name: value for name, value in template.items() if name not in said_twice},
            storage=workspace.checkpoint_storage,
            compute_pool=workspace.default_compute_pool,
            aux_pool=workspace.default_aux_pool,
            policy=policy,
            said_twice=said_twice,
        )

    def _parse(self, document: Document, site: _Site, seed: int | None) -> ExperimentConfig:
        storage = None
        if self.settings.storage_path:
            storage = {"type": "shared_fs", "host_path": self.settings.storage_path}
        if site.storage is not None:
            lower = {} if storage is None else {"checkpoint_storage": storage}
            storage = merge_configs({"checkpoint_storage": site.storage}, lower)["checkpoint_storage"]
        defaults = ClusterDefaults(
            checkpoint_storage=storage,
            image=self.settings.trial_image,
            resource_pool=site.compute_pool,
            aux_resource_pool=site.aux_pool,
        )
        seed = seed or int(time.time()) & 0x7FFFFFFF
        try:
            config = parse_experiment_config(
                document,
                template=site.template,
                policy=site.policy.invariant_config,
                cluster=defaults,
                seed=seed,
            )
        except ConfigError as error:
            raise BadRequest(str(error)) from None
        config_policies.check(site.policy, config.to_wire()["resources"], Workload.EXPERIMENT)
        return config

    def _pool(self, session: Session, config: ExperimentConfig, workspace_id: int, user: UserPrincipal) -> str:
        named, slots = config.resources.resource_pool, config.resources.slots_per_trial
        if not named and (usual := available_default(session, slots, workspace_id, user)):
            return usual
        pool = named or defaults_of(session).of(slots)
        check_available(session, pool, workspace_id, user, f"{_PREFIX}<config>.resources.resource_pool")
        return pool


def check_next_resources(
    session: Session, config: ExperimentConfig, workspace_id: int, user: UserPrincipal, prefix: str = _PREFIX
) -> None:
    """Refuse what failure policies would ask for, if the user may not ask for it at once.

    Raises: BadRequest, which names the place in the configuration.
    """
    if not config.failure_policies:
        return
    policy = config_policies.governing(session, workspace_id, Workload.EXPERIMENT)
    for place, each in enumerate(config.failure_policies):
        wanted = {} if each.resources is None else each.resources.model_dump(exclude_none=True)
        where = f"{prefix}<config>.failure_policies[{place}].resources"
        config_policies.check_wanted(policy, wanted, Workload.EXPERIMENT, f"{where}: ")
        if "resource_pool" in wanted:
            check_available(session, wanted["resource_pool"], workspace_id, user, f"{where}.resource_pool")


def run_of(
    session: Session,
    experiment: Experiment,
    config: ExperimentConfig,
    search: Search,
    timing: Timing,
    budget: Budget | None,
) -> ExperimentRun:
    """What the workflow of an experiment starts with."""
    owner = session.get_one(User, experiment.owner_id).username
    project = session.get_one(Project, experiment.project_id)
    if config.preemption_timeout is not None:
        timing = timing.model_copy(update={"preemption_timeout_s": float(config.preemption_timeout)})
    return ExperimentRun(
        experiment_id=experiment.id,
        name=config.name,
        owner=owner,
        job_id=experiment.job_id,
        by_records=True,
        orders_by_records=True,
        state=ExperimentState(experiment.state),
        search=search,
        moves=experiment.pool_moves,
        budget=None if budget is None else meter_of(budget),
        gates=gates.promotions(session, experiment),
        clock=Clock() if budget is None else Clock.model_validate(budget.clock),
        template=TrialTemplate(
            pool=experiment.resource_pool,
            slots=config.resources.slots_per_trial,
            max_restarts=config.max_restarts,
            claim=claim_of(experiment).claim,
            user=owner,
            workspace=session.get_one(Workspace, project.workspace_id).name,
            is_single_node=bool(config.resources.is_single_node),
            closeness=config.resources.prefer_gpu_topology,
            failure_policies=[policy.decided for policy in config.failure_policies],
            heeds_logs=any(policy.pattern and policy.action for policy in config.log_policies),
            timing=timing,
        ),
    )


#: Stands where unmanaged experiments have no searcher.
_NO_SEARCH = {"name": "single", "metric": "none", "max_length": {"batches": 1}}


def _row(
    config: ExperimentConfig,
    wire: dict[str, Any],
    request: CreateExperimentRequest,
    user: UserPrincipal,
    search: Search,
) -> Experiment:
    return Experiment(
        job_id=str(uuid.uuid4()),
        name=config.name,
        description=config.description or "",
        labels=list(config.labels),
        state=(ExperimentState.ACTIVE if request.activate else ExperimentState.PAUSED).value,
        config=wire,
        original_config=request.config,
        log_retention_days=config.retention_policy.log_retention_days if config.retention_policy else None,
        owner_id=user.user_id,
        parent_id=request.parent_id or None,
        **steering(config, search),
    )


def steering(config: ExperimentConfig, search: Search) -> dict[str, Any]:
    """The columns of an experiment that say how its trials are steered, of its configuration and its new search."""
    return {
        "searcher_name": config.searcher.name,
        "searcher_metric": config.searcher.metric,
        "smaller_is_better": config.searcher.smaller_is_better,
        "wants_validations": search.wants_validations,
        "time_metric": getattr(config.searcher, "time_metric", None) or _unit(config),
        "has_operations": search.generation == "ops",
        "max_length": search.frame.max_units,
        "slots_per_trial": config.resources.slots_per_trial,
    }


def _unit(config: ExperimentConfig) -> str | None:
    """The unit of max_length: a metric of this name says how far code came that asks for no operations."""
    return getattr(getattr(config.searcher, "max_length", None), "unit", None)


def _storage_notices(config: dict[str, Any], roots: Sequence[str]) -> list[str]:
    """What a user has to know of a storage that the cluster itself does not touch."""
    section = config["checkpoint_storage"]
    folder = folder_of(section) if section["type"] == "shared_fs" else None
    if folder is None or named_root(folder, roots) is not None:
        return []
    return [f"checkpoint_storage.host_path: {StorageNotNamed(folder)}; trials use it, and what they store there stays"]


#: Trials of one search, by searcher, beyond which the state of its workflow may not fit into what Temporal takes: see
#: docs/scale.md. Others have no such bound.
_LARGEST = {"async_halving": 100_000, "adaptive_asha": 100_000, "optuna": 15_000}
#: The same where trials wait at rungs until they are promoted: those that wait are all known.
_LARGEST_OF_PROMOTION = 40_000


def _size_notices(config: ExperimentConfig) -> list[str]:
    """What a user has to know of a search that can't come to its end."""
    searcher = config.searcher
    most: int | None = getattr(searcher, "max_trials", None)
    bound = _LARGEST.get(searcher.name)
    if isinstance(searcher, AsyncHalvingSearcher | AdaptiveAshaSearcher):
        is_promoting = generation_of(config) == "ops" and not searcher.stop_once
        bound = _LARGEST_OF_PROMOTION if is_promoting else bound
    if bound is None or most is None or most <= bound:
        return []
    return [
        f"searcher.max_trials: {most}: a search by {searcher.name} may stop before it has this many: "
        f"divide it into experiments of at most {bound:,}"
    ]


def _source_checkpoint(session: Session, config: ExperimentConfig, user: UserPrincipal) -> str | None:
    """The checkpoint that every trial starts from, if the config names one; the trial wins if both are set."""
    trial_id: int | None = getattr(config.searcher, "source_trial_id", None)
    uuid: str | None = getattr(config.searcher, "source_checkpoint_uuid", None)
    if trial_id is not None:
        known = may_see(readable_trial, session, trial_id, user)
        uuid = resume_point(session, trial_id) if known else None
        if uuid is None:
            found = "it has no complete checkpoint" if known else "there is no such trial"
            raise BadRequest(
                f"{_PREFIX}<config>.searcher.source_trial_id: {trial_id}: {found}, expected a trial to start from"
            )
    if uuid is None:
        return None
    # locked, so that it is not claimed for removal before this transaction says that it is needed
    statement = select(Checkpoint.state).where(Checkpoint.uuid == uuid).with_for_update()
    state = session.scalar(statement) if may_see(readable_checkpoint, session, uuid, user) else None
    if state != "COMPLETED":
        found = "there is no such checkpoint" if state is None else f"it is {state}"
        raise BadRequest(
            f"{_PREFIX}<config>.searcher.source_checkpoint_uuid: {uuid!r}: {found}, "
            "expected the uuid of a complete checkpoint"
        )
    return uuid


def _names(config: Any) -> dict[str, Any]:
    """The place that a config names, as far as it is one."""
    if not isinstance(config, dict):
        return {}
    fields = cast("dict[str, Any]", config)
    return {key: fields[key] for key in ("workspace", "project") if fields.get(key)}


def _project(session: Session, project_id: int | None, named: dict[str, Any], user: UserPrincipal) -> int | None:
    """The project that is asked for, by id or in the config; None if none is."""
    if project_id and project_id > 1:
        return project_id
    workspace, project = named.get("workspace"), named.get("project")
    if bool(workspace) != bool(project):
        if project_id:
            return project_id
        raise BadRequest(f"{_PREFIX}<config>: workspace and project go together: expected both or neither")
    if not isinstance(workspace, str) or not isinstance(project, str):
        return None  # what is no text is refused with the rest of the config
    return project_of_names(session, workspace, project, user).id


def _files(request: CreateExperimentRequest | CreateExperimentsRequest) -> Stored:
    """Those that come with a request; none if it names a context. Raises: BadRequest, TooLarge."""
    if not request.context:
        return Stored.of(pack(request.model_definition or []))
    if request.model_definition:
        raise BadRequest("context: expected either it or modelDefinition")
    return Stored()
