"""Settings of the API process, from environment variables `UNDETERRED_<NAME>`; unknown values are refused."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from ipaddress import ip_address
from typing import Any, Literal, Self, get_origin

from pydantic import BaseModel, ConfigDict, Field, SecretStr, TypeAdapter, field_validator, model_validator

from determined.common.outgoing import Outgoing
from workflows.messages import Timing

#: A host, perhaps with a port.
_PEER = re.compile(r"([A-Za-z0-9._-]{1,253}|\[[0-9a-fA-F:]{2,45}\])(:[0-9]{1,5})?")


class LogSettings(BaseModel):
    """How a process writes its log, and where it sends traces. See `workers.logs` and `api.tracing`."""

    log_format: Literal["text", "json"] = Field(
        default="text", description="text: lines for people; json: an object a line, for collectors of logs"
    )
    otlp_endpoint: str | None = Field(
        default=None,
        description="http(s)://host:port of a collector of OpenTelemetry that gets traces; unset: that of "
        "OTEL_EXPORTER_OTLP_ENDPOINT, without which there are none",
        pattern=r"^https?://[^\s/?#]+(/[^\s?#]*)?$",
    )


class TemporalSettings(BaseModel):
    """How a process reaches Temporal. See `api.temporal.connection`."""

    temporal_address: str = Field(
        default="localhost:7233",
        description="host:port of Temporal's frontend",
        pattern=r"^([^\s:/]+|\[[0-9a-fA-F:]+\]):[0-9]{1,5}$",
    )
    temporal_namespace: str = Field(
        default="default", description="namespace that holds our workflows", pattern=r"^\S{1,255}$"
    )
    temporal_tls: bool | None = Field(
        default=None,
        description="whether Temporal is reached by TLS; unset: if one of the settings of TLS, or an API key, is set",
    )
    temporal_ca_file: str | None = Field(
        default=None,
        description="file with the authorities (PEM) that sign Temporal's certificate; unset: the system's",
    )
    temporal_cert_file: str | None = Field(
        default=None, description="file with the certificate (PEM) that this process shows to Temporal"
    )
    temporal_key_file: str | None = Field(
        default=None, description="file with the private key (PEM) of that certificate"
    )
    temporal_server_name: str | None = Field(
        default=None, description="name that Temporal's certificate must have; unset: the host of temporal_address"
    )
    temporal_api_key: SecretStr | None = Field(default=None, description="API key for Temporal, as of Temporal Cloud")
    temporal_api_key_file: str | None = Field(
        default=None, description="file with the API key for Temporal; a new key in it is taken within 10 seconds"
    )
    temporal_encryption_keys_file: str | None = Field(
        default=None,
        description="file with the keys that encrypt payloads, one a line: an id, a space, 32 bytes in base64; "
        "the first one encrypts, all decrypt; unset: histories are not encrypted",
    )

    @property
    def has_tls(self) -> bool:
        """Whether Temporal is reached by TLS."""
        return bool(self._of_tls()) if self.temporal_tls is None else self.temporal_tls

    def _of_tls(self) -> list[str]:
        names = ("ca_file", "cert_file", "key_file", "server_name", "api_key", "api_key_file")
        return [f"temporal_{name}" for name in names if getattr(self, f"temporal_{name}")]

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if bool(self.temporal_cert_file) != bool(self.temporal_key_file):
            raise ValueError("temporal_cert_file and temporal_key_file: expected both or neither of them")
        if self.temporal_api_key is not None and self.temporal_api_key_file is not None:
            raise ValueError("temporal_api_key and temporal_api_key_file: expected at most one of them")
        if self.temporal_tls is False and (given := self._of_tls()):
            raise ValueError(f"temporal_tls: false: expected true, as {given[0]} is set")
        return self


class ClusterSettings(TemporalSettings, LogSettings):
    """What every process of the control plane needs to know: where the records and the workflows are."""

    model_config = ConfigDict(extra="forbid")

    database_url: str = Field(description="sqlite:///… or postgresql+psycopg://…")
    storage_path: str | None = Field(default=None, description="host folder for checkpoints when a config names none")
    storage_roots: str = Field(
        default="",
        description="further host folders, separated by colons, in which the cluster serves and removes checkpoints; "
        "it touches none that a configuration names elsewhere",
    )

    @property
    def roots(self) -> list[str]:
        """The folders that the operator named for checkpoints."""
        return [path for path in (self.storage_path or "", *self.storage_roots.split(":")) if path]

    @field_validator("storage_roots")
    @classmethod
    def _absolute_roots(cls, value: str) -> str:
        return checked_roots(value)


def checked_roots(value: str) -> str:
    """Folders for checkpoints, separated by colons. Raises: ValueError."""
    for path in value.split(":"):
        if path and (not path.startswith("/") or os.path.normpath(path) in ("/", "//")):
            raise ValueError(f"{path!r}: expected absolute paths of folders, separated by colons, and not /")
    return value


class OutgoingSettings(BaseModel):
    """What processes need to know that connect to where users say. See `determined.common.outgoing`."""

    allowed_networks: str = Field(
        default="",
        description="networks, with commas, that webhooks, users' checkpoint storage and registries of images may be "
        "in besides the public internet: 10.0.0.0/8,127.0.0.0/8",
    )
    own_buckets: str = Field(
        default="",
        description="checkpoint storage, with commas, that is reached with the machine's own cloud credentials: "
        "s3://bucket, gs://bucket, ms://account/container; others need credentials in the configuration",
    )

    @field_validator("allowed_networks")
    @classmethod
    def _networks(cls, value: str) -> str:
        Outgoing.of(networks=value)
        return value

    @field_validator("own_buckets")
    @classmethod
    def _buckets(cls, value: str) -> str:
        Outgoing.of(own_buckets=value)
        return value


class ServingSettings(BaseModel):
    """The certificate that a process serves with. See `api.pem`."""

    tls_cert_file: str | None = Field(
        default=None,
        description="file with the certificate (PEM), and what it was signed by, that this process serves with; unset: "
        "it serves without TLS. A new one is taken within 10 seconds",
    )
    tls_key_file: str | None = Field(default=None, description="file with the private key (PEM) of that certificate")

    @model_validator(mode="after")
    def _are_both(self) -> Self:
        if bool(self.tls_cert_file) != bool(self.tls_key_file):
            raise ValueError("tls_cert_file and tls_key_file: expected both or neither of them")
        return self


class MetricsSettings(BaseModel):
    """Where a process serves its metrics to Prometheus. See `workers.monitoring`."""

    metrics_host: str = Field(default="127.0.0.1", description="IP address at which metrics_port listens")
    metrics_port: int | None = Field(
        default=None, ge=1, le=65535, description="port that Prometheus reads metrics from; unset: none is opened"
    )

    @property
    def metrics_address(self) -> str:
        """The address and the port, as one text."""
        host = f"[{self.metrics_host}]" if ":" in self.metrics_host else self.metrics_host
        return f"{host}:{self.metrics_port}"

    @field_validator("metrics_host")
    @classmethod
    def _is_address(cls, value: str) -> str:
        return checked_ip(value)


def checked_ip(value: str) -> str:
    """An IP address to listen at. Raises: ValueError."""
    if not _is_ip(value):
        raise ValueError(f"{value!r}: expected an IP address, such as 127.0.0.1 or 0.0.0.0")
    return str(ip_address(value))


def _is_ip(value: str) -> bool:
    try:
        ip_address(value)
    except ValueError:
        return False
    return True


_PORTS = ("port", "proxy_port", "metrics_port", "health_port")


def check_ports(settings: BaseModel) -> None:
    """No two settings of a process name the same port. Raises: ValueError, that names the later one."""
    seen: dict[int, str] = {}
    for name in _PORTS:
        port: int | None = getattr(settings, name, None)
        if port is not None and (other := seen.setdefault(port, name)) != name:
            raise ValueError(f"{name}: {port}: expected another port than that of {other}")


_LOOPBACK = re.compile(r"http://(localhost|127\.[0-9.]+|\[::1\])(:[0-9]{1,5})?(/.*)?")


class SignOnSettings(BaseModel):
    """An identity provider by which users log in. See `api.auth.sign_on`."""

    oidc_issuer: str = Field(
        default="", description="OpenID Connect provider by which users log in, such as https://login.example.org"
    )
    oidc_client_id: str = Field(default="", description="what the provider calls this cluster")
    oidc_client_secret: SecretStr = Field(default=SecretStr(""), description="what the provider gave with it")
    oidc_public_url: str = Field(
        default="",
        description="where browsers reach the API, such as https://det.example.org; the provider sends them back to "
        "/oidc/callback there",
    )
    oidc_provider_name: str = Field(default="OIDC", max_length=60, description="the provider's name, for people")
    oidc_scopes: str = Field(default="openid profile email", description="what the provider is asked for")
    oidc_username_claim: str = Field(
        default="email", min_length=1, description="claim that is the user's name here; an email has to be confirmed"
    )
    oidc_groups_claim: str = Field(
        default="", description="claim that lists the groups of a user: of those that are here, no others; empty: none"
    )
    oidc_creates_users: bool = Field(default=False, description="whether who is unknown gets an account")
    oidc_always_redirect: bool = Field(default=False, description="whether the login page goes to the provider at once")

    scim_token: SecretStr | None = Field(
        default=None,
        min_length=32,
        description="secret by which a provider of accounts keeps users and groups, by SCIM 2.0 at /scim/v2; "
        "unset: none does",
    )

    @field_validator("oidc_issuer", "oidc_public_url")
    @classmethod
    def _is_safe(cls, value: str) -> str:
        if value and not value.startswith("https://") and _LOOPBACK.fullmatch(value) is None:
            raise ValueError(f"{value!r}: expected an address that begins with https://")
        return value

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        self.oidc_public_url = self.oidc_public_url.rstrip("/")
        for name in ("oidc_client_id", "oidc_public_url"):
            if self.oidc_issuer and not getattr(self, name):
                raise ValueError(f"{name}: expected with oidc_issuer")
        if self.oidc_issuer and "openid" not in self.oidc_scopes.split():
            raise ValueError(f"oidc_scopes: {self.oidc_scopes!r}: expected openid among them")
        return self


class ApiSettings(ClusterSettings, OutgoingSettings, MetricsSettings, ServingSettings, SignOnSettings):
    """What the API needs to know."""

    database_read_url: str | None = Field(
        default=None,
        description="a standby of the database, postgresql+psycopg://…: lists are read there once it has all that is "
        "committed; unset: none",
        pattern=r"^postgresql\+psycopg://",
    )
    host: str = Field(default="127.0.0.1", description="address to listen on")
    port: int = Field(default=8080, ge=1, le=65535, description="port to listen on")
    drain_s: float = Field(
        default=0,
        ge=0,
        le=600,
        description="after SIGTERM, seconds in which this process is not ready and still serves: as long as load "
        "balancers take to notice",
    )
    peer_ca_file: str | None = Field(
        default=None,
        description="file with the authorities (PEM) that sign the certificates of other processes of the API; unset: "
        "the system's, and what is in tls_cert_file",
    )
    proxy_port: int | None = Field(
        default=8081, ge=1, le=65535, description="port for the pages of tasks: they never share the API's origin"
    )
    proxy_url: str = Field(
        default="",
        description="where browsers reach that port, if not at the API's host: https://tasks.example.org; with a *, "
        "https://*.tasks.example.org, each task has a host name of its own, and so an origin",
        pattern=r"^(https?://[A-Za-z0-9*][A-Za-z0-9.*:\[\]-]*)?$",
    )
    peer_address: str = Field(
        default="",
        description="host, or host:port, where the other processes of the API reach this one; empty: the address that "
        "it listens on, or that this host has towards the database",
    )
    temporal_ui: str = Field(
        default="",
        description="address of Temporal's Web UI as users reach it: pages link to it",
        pattern=r"^(https?://[^\s\"'<>]{1,300})?$",
    )
    cluster_name: str = Field(default="undeterred", description="name shown to clients")
    admin_password: SecretStr | None = Field(default=None, description="password of `admin` on the first start")
    agent_token: SecretStr = Field(min_length=1, description="secret that agents authenticate with")
    gateway: str = Field(
        default="",
        description="where agents of other hosts reach the gateway: host:port, or :port at the API's host; "
        "empty: none may join",
        pattern=r"^([^\s:/]*|\[[0-9a-fA-F:]+\]):[0-9]{1,5}$|^$",
    )
    gateway_tls: bool | None = Field(
        default=None,
        description="whether the gateway is reached by TLS, which agents learn as they join; unset: if "
        "this process serves TLS",
    )
    default_pool: str = Field(
        default="default", description="resource pool that is always there, and the default of a new cluster"
    )
    trial_image: str = Field(default="undeterred/trial:dev", description="container image when a config names none")
    log_retention_days: int | None = Field(
        default=None,
        ge=-1,
        le=32767,
        description="days that logs are kept after their trial's or task's end; none or -1: all",
    )
    access: Literal["basic", "rbac"] = Field(
        default="rbac",
        description="rbac: workspaces are private, and roles grant permissions; basic: all users see and use all",
    )
    notebook_timeout: int | None = Field(
        default=None, ge=1, le=365 * 86400, description="seconds without use after which a notebook ends; none: never"
    )
    tensorboard_timeout: int | None = Field(
        default=300, ge=1, le=365 * 86400, description="seconds without use after which a TensorBoard ends"
    )
    session_days: int = Field(default=7, ge=1, description="life of a login, in days")
    context_limit_mib: int = Field(
        default=4096,
        ge=1,
        le=1_048_576,
        description="MiB that the files of an experiment or task may have, where a client uploads them in chunks; "
        "a user may have twice as much uploaded that nothing was created with",
    )
    timing: Timing = Field(default_factory=Timing, description="durations that decide, as JSON")

    @model_validator(mode="after")
    def _have_ports(self) -> Self:
        check_ports(self)
        return self

    @field_validator("peer_address")
    @classmethod
    def _is_reachable(cls, value: str) -> str:
        if value and _PEER.fullmatch(value) is None and not _is_ip(value):
            raise ValueError(f"{value!r}: expected host, host:port or an IP address, such as 10.1.2.3:8080")
        return value

    @model_validator(mode="after")
    def _has_primary(self) -> Self:
        if self.database_read_url is not None and not self.database_url.startswith("postgresql"):
            raise ValueError("database_read_url: expected none: database_url names no PostgreSQL that it could follow")
        return self


def from_environment(model: type[Any], environment: Mapping[str, str] | None = None) -> Any:
    """Build a settings model from `UNDETERRED_<FIELD>` variables. Structured fields are JSON.

    Raises: pydantic.ValidationError, which names the field, its value and what was expected.
    """
    return model.model_validate(values_in(os.environ if environment is None else environment, model))


def values_in(environment: Mapping[str, str], model: type[Any]) -> dict[str, Any]:
    """What an environment says of a settings model's fields. Raises: pydantic.ValidationError for what is no JSON."""
    values: dict[str, Any] = {}
    for name, info in model.model_fields.items():
        text = environment.get(f"UNDETERRED_{name.upper()}")
        if text is None:
            continue
        kind: Any = info.annotation
        outer: Any = get_origin(kind) or kind
        is_structured = isinstance(outer, type) and issubclass(outer, (BaseModel, list, dict))
        values[name] = TypeAdapter(kind).validate_json(text) if is_structured else text
    return values
