"""The parts of the application: built once, when it starts, and shared by all requests."""

from __future__ import annotations

from dataclasses import dataclass, field

from api.auth.authentication import Authenticator
from api.auth.redaction import Redactor
from api.auth.service_tokens import ServiceTokens
from api.auth.sign_on import SignOn
from api.ingest.log_writer import LogWriter
from api.ingest.metric_reports import MetricReports
from api.ingest.metrics_writer import MetricsWriter
from api.proxy.serve import Proxy
from api.queries.followed_searches import FollowedSearches
from api.schemas.streaming import Followers
from api.services.continuation import Continuer
from api.services.experiments import Creator
from api.services.importance import Importances
from api.services.live import Live
from api.services.log_retention import LogRetention
from api.services.master_log import LogRing
from api.services.monitoring import Monitoring
from api.services.outbox_retention import OutboxRetention
from api.services.preemption import PreemptionWatch
from api.settings import ApiSettings
from api.temporal.commands import Commands
from api.temporal.outbox import Dispatcher
from database.session import Database


@dataclass
class Parts:
    """Everything that lives as long as the application."""

    settings: ApiSettings
    database: Database
    auth: Authenticator
    service_tokens: ServiceTokens
    sign_on: SignOn
    proxy: Proxy
    commands: Commands
    dispatcher: Dispatcher
    live: Live
    metrics: MetricsWriter
    reports: MetricReports
    logs: LogWriter
    preemption: PreemptionWatch
    creator: Creator
    continuer: Continuer
    log_retention: LogRetention
    outbox_retention: OutboxRetention
    redactor: Redactor
    log_ring: LogRing
    monitoring: Monitoring
    cluster_id: str
    version: str
    importances: Importances = field(default_factory=Importances)
    followers: Followers = field(default_factory=Followers)
    searches: FollowedSearches = field(default_factory=FollowedSearches)
