"""The application: routes, errors, and the loops that live as long as it does."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from importlib.metadata import version

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from sqlalchemy import make_url, select
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from api.auth.authentication import Authenticator, hash_password
from api.auth.redaction import Redactor
from api.auth.service_tokens import ServiceTokens
from api.auth.sign_on import SignOn
from api.errors import DATABASE_ERRORS, ApiError, BadRequest, NotFound, error_response, response_to
from api.health import Health, of_database
from api.ingest.log_policies import LogPolicies
from api.ingest.log_webhooks import LogHooks
from api.ingest.log_writer import LogWriter
from api.ingest.metric_reports import MetricReports
from api.ingest.metrics_writer import MetricsWriter
from api.lane import FastLane
from api.middleware.audit import Audited
from api.middleware.compact import Compact
from api.middleware.paths import LenientPaths
from api.parts import Parts
from api.proxy.peers import peers_of
from api.proxy.serve import Proxy
from api.routes import (
    agent_slots,
    agents,
    allocations,
    audit,
    budgets,
    bulk,
    campaigns,
    checkpoints,
    cleanup,
    cluster,
    commands,
    config_policies,
    contexts,
    curves,
    enrollment,
    experiments,
    gates,
    generic_tasks,
    groups,
    hyperparameters,
    imports,
    jobs,
    labels,
    live,
    log_retention,
    log_windows,
    master,
    metric_streams,
    model_files,
    models,
    monitoring,
    namespaces,
    notebooks,
    pages,
    pool_access,
    pool_bindings,
    pool_settings,
    pools,
    profiler,
    projects,
    roles,
    run_commands,
    runs,
    scim,
    search,
    shells,
    sign_on,
    submissions,
    task_limits,
    task_lists,
    tasks,
    templates,
    temporal_codec,
    tensorboards,
    tokens,
    trials,
    unmanaged,
    unsupported,
    usage,
    users,
    web,
    webhooks,
    why,
    workspaces,
)
from api.routes import settings as settings_routes
from api.routes.legacy import events as legacy_events
from api.routes.legacy import users as legacy_users
from api.schemas.body import told_of
from api.services import budget_rounds, chunked_contexts, silence
from api.services import gates as gate_service
from api.services.campaign_launches import CampaignLaunches
from api.services.continuation import Continuer
from api.services.experiments import Creator
from api.services.live import Live
from api.services.log_retention import LogRetention
from api.services.log_sealing import LogSealing
from api.services.master_log import LogRing
from api.services.metric_sealing import MetricSealing
from api.services.monitoring import Monitoring
from api.services.outbox_retention import OutboxRetention
from api.services.pool_samples import PoolSamples
from api.services.pools import run_of
from api.services.preemption import PreemptionWatch
from api.services.unmanaged import watch as watch_unmanaged
from api.settings import ApiSettings
from api.temporal.commands import Commands
from api.temporal.connection import Connection
from api.temporal.outbox import Dispatcher
from api.threads import follow_load
from database.experiment_records import record_experiment
from database.migrate import migrate, seed
from database.models import Cluster, ResourcePool
from database.session import Database
from determined.common.outgoing import Outgoing, configure
from workflows.messages import AutoscalerRun

log = structlog.get_logger()

_HOUSE_S = 10.0

TAGS = [
    {"name": "experiments", "description": "Searches over trials: create, look at, command, clean up."},
    {"name": "trials", "description": "What trials report, and what people look at."},
    {"name": "tasks", "description": "Contexts and logs."},
    {"name": "allocations", "description": "What a container says and asks about itself."},
    {"name": "checkpoints", "description": "Reported by trials, described and downloaded by people."},
    {"name": "models", "description": "The model registry."},
    {"name": "campaigns", "description": "Steps that come after each other, their runs and schedules."},
    {"name": "workspaces", "description": "Who shares what."},
    {"name": "users", "description": "Login, sessions and users."},
    {"name": "cluster", "description": "Agents, pools, the job queue and the master."},
]

#: In the order in which a path is looked for.
_MODULES = (
    cluster,
    monitoring,
    agent_slots,
    enrollment,
    pools,
    jobs,
    usage,
    task_lists,
    master,
    temporal_codec,
    settings_routes,
    users,
    sign_on,
    legacy_users,
    legacy_events,
    tokens,
    groups,
    roles,
    config_policies,
    audit,
    curves,
    unmanaged,
    profiler,
    metric_streams,
    runs,
    labels,
    model_files,
    budgets,
    gates,
    campaigns,
    bulk,
    log_retention,
    trials,
    contexts,
    tasks,
    commands,
    notebooks,
    shells,
    tensorboards,
    generic_tasks,
    task_limits,
    submissions,
    search,
    hyperparameters,
    imports,
    workspaces,
    projects,
    pool_access,
    namespaces,
    pool_bindings,
    pool_settings,
    models,
    templates,
    webhooks,
    experiments,
    cleanup,
    allocations,
    run_commands,  # behind `runs/start`
    checkpoints,
    agents,
    why,
    pages,
    live,
    log_windows,
    web,
    scim,
    unsupported,
)


def create_app(settings: ApiSettings) -> FastAPI:
    """Build the application. The database is brought to today's schema before the first request is served."""
    metrics = Monitoring()

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
        parts = await asyncio.to_thread(_build, settings, metrics)
        app.state.parts = parts
        metrics.follow(parts.database)
        parts.log_ring.install()
        app.state.health = health = Health(
            {"database": of_database(parts.database), "temporal": parts.commands.is_known}
        )
        await parts.proxy.peers.join()
        loops = [
            asyncio.create_task(parts.metrics.run()),
            asyncio.create_task(parts.dispatcher.run()),
            *([asyncio.create_task(parts.commands.follow_api_key())] if settings.temporal_api_key_file else []),
            asyncio.create_task(parts.preemption.run()),
            asyncio.create_task(_start_pools(parts)),
            asyncio.create_task(parts.log_retention.run()),
            asyncio.create_task(LogSealing(parts.database).run()),
            asyncio.create_task(MetricSealing(parts.database).run()),
            asyncio.create_task(parts.outbox_retention.run()),
            asyncio.create_task(PoolSamples(parts.database).run()),
            asyncio.create_task(watch_unmanaged(parts.database)),
            asyncio.create_task(chunked_contexts.sweep_rounds(parts.database)),
            asyncio.create_task(budget_rounds.watch(parts.database, parts.dispatcher)),
            asyncio.create_task(gate_service.watch(parts.database, parts.dispatcher)),
            asyncio.create_task(silence.watch(parts.database, parts.dispatcher)),
            asyncio.create_task(
                CampaignLaunches(parts.database, parts.creator, parts.commands, settings).run(parts.dispatcher)
            ),
            asyncio.create_task(follow_load()),
            asyncio.create_task(_keep_house(parts)),
            asyncio.create_task(parts.proxy.peers.run()),
        ]
        health.is_started = True
        yield
        for loop in loops:
            loop.cancel()
        await asyncio.gather(*loops, return_exceptions=True)
        await parts.proxy.close()
        parts.importances.close()
        await asyncio.to_thread(metrics.close)
        await asyncio.to_thread(_tidy, parts)
        parts.log_ring.remove()
        parts.database.close()

    app = FastLane(
        title="Undeterred",
        version=version("undeterred"),
        description="REST API of Undeterred. Paths and messages are those that Determined's clients know.",
        lifespan=lifespan,
        # spans of its own would be of every request, reports and polls as well: see `api.tracing`
        telemetry={"tracing": False, "metrics": False, "logs": False, "operation_spans": False},
        redirect_slashes=False,
        # as the framework makes them, they fetch programs from elsewhere, and hold up all requests: see `routes.pages`
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        openapi_tags=TAGS,
        # routes as their modules made them: `include_router` makes each of them again, for every application
        routes=[route for module in _MODULES for route in module.router.routes],
    )
    app.state.monitoring = metrics
    app.add_middleware(Compact)
    app.add_middleware(Audited)
    app.add_middleware(LenientPaths)  # the outer one: what is noted of a request is its canonical path
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(RequestValidationError, _on_bad_parameter)
    app.add_exception_handler(ClientDisconnect, _on_disconnect)
    for kind in (ApiError, *DATABASE_ERRORS, OverflowError, Exception):
        app.add_exception_handler(kind, _on_error)
    return app


def _build(settings: ApiSettings, metrics_of_process: Monitoring) -> Parts:
    configure(Outgoing.of(settings.allowed_networks, settings.own_buckets))
    database = Database(settings.database_url, replica_url=settings.database_read_url)
    migrate(database)
    password = settings.admin_password.get_secret_value() if settings.admin_password else None
    with database.read() as session:
        is_first = session.scalar(select(Cluster.id)) is None
    # a fifth of a second of processor time: before the transaction that others wait for, and at a first start only
    hashed = hash_password(password, is_hashed=False) if password and is_first else None
    with database.write() as session:
        seed(session, cluster_name=settings.cluster_name, admin_password_hash=hashed, pools=[settings.default_pool])
        cluster = session.scalars(select(Cluster)).one()
        session.expunge(cluster)
    urls = [make_url(url) for url in (settings.database_url, settings.database_read_url) if url]
    scim_token = settings.scim_token.get_secret_value() if settings.scim_token else ""
    secrets = [settings.agent_token.get_secret_value(), password or "", scim_token]
    secrets += [str(url.password or "") for url in urls]
    redactor = Redactor(secrets)
    log_ring = LogRing(redactor)
    log_ring.set_level(cluster.log_level)
    connection = Connection(settings)
    commands = Commands(
        connection, settings.timing, lambda record: run_in_threadpool(record_experiment, database, record)
    )
    dispatcher = Dispatcher(database, commands)
    creator = Creator(database, settings)
    auth = Authenticator(
        database,
        agent_token=settings.agent_token.get_secret_value(),
        session_days=settings.session_days,
        access=settings.access,
    )
    service_tokens = ServiceTokens(settings.agent_token.get_secret_value())
    metrics = MetricsWriter(database, dispatcher.poke)
    return Parts(
        settings=settings,
        database=database,
        auth=auth,
        service_tokens=service_tokens,
        sign_on=SignOn(settings, cluster.secret),
        proxy=Proxy(settings, database, auth, service_tokens, peers_of(settings, database, cluster.secret)),
        commands=commands,
        dispatcher=dispatcher,
        live=Live(database),
        metrics=metrics,
        reports=MetricReports(database, auth, metrics),
        logs=LogWriter(database, LogPolicies(database), LogHooks(database)),
        preemption=PreemptionWatch(database),
        creator=creator,
        continuer=Continuer(database, creator),
        log_retention=LogRetention(database, settings.log_retention_days),
        outbox_retention=OutboxRetention(database),
        redactor=redactor,
        log_ring=log_ring,
        monitoring=metrics_of_process,
        cluster_id=cluster.cluster_id,
        version=version("undeterred"),
    )


async def _keep_house(parts: Parts) -> None:
    """What no request waits for: when tokens were used is written down, and the log level of all processes is one."""
    while True:
        await asyncio.sleep(_HOUSE_S)
        await asyncio.to_thread(_tidy, parts)


def _tidy(parts: Parts) -> None:
    try:
        parts.auth.note_use()
        with parts.database.read() as session:
            parts.log_ring.set_level(session.scalars(select(Cluster.log_level)).one())
    except DATABASE_ERRORS as error:
        log.warning("the database does not answer: the use of tokens is not noted", error=str(error))


async def _start_pools(parts: Parts) -> None:
    """Every recorded pool has its workflow, also on a Temporal that is new or was away."""
    pause = 0.5
    while True:
        try:
            with parts.database.read() as session:
                pools = session.scalars(select(ResourcePool)).all()
            for pool in pools:
                run = run_of(pool)
                await parts.commands.ensure_pool(run)
                if run.settings.provider is not None:
                    await parts.commands.ensure_autoscaler(AutoscalerRun(pool=run.name, provider=run.settings.provider))
            return
        except ApiError as error:
            log.info("pools wait for Temporal", error=error.message)
            await asyncio.sleep(pause)
            pause = min(5.0, pause * 1.5)


async def _on_error(request: Request, error: Exception) -> Response:
    return response_to(error, request.url.path)


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return error_response(NotFound(f"there is no {request.url.path}"))
    problem = BadRequest(f"{request.method} {request.url.path}: {error.detail}")
    problem.status = error.status_code
    return error_response(problem)


async def _on_bad_parameter(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    problems = [problem | {"loc": problem["loc"][1:]} for problem in error.errors()]  # but whether of the path or body
    return error_response(BadRequest(told_of(problems)))


async def _on_disconnect(request: Request, error: Exception) -> Response:
    """The client went away in the middle of its body: nobody reads this, and nothing of ours is wrong."""
    return error_response(BadRequest("the body ended early"))
