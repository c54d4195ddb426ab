"""Modes and states of an import from another cluster's database, and the order in which its kinds of records come."""

from __future__ import annotations

from enum import StrEnum


class ImportMode(StrEnum):
    """What is to be done."""

    PLAN = "PLAN"  # nothing is written: count, and name what collides or can't come
    RUN = "RUN"
    VERIFY = "VERIFY"  # nothing is written: hold each record against its source


class ImportState(StrEnum):
    """How far it is."""

    WAITING = "WAITING"  # for its workflow
    RUNNING = "RUNNING"
    CANCELING = "CANCELING"  # it ends after the page that it is at
    COMPLETED = "COMPLETED"
    CANCELED = "CANCELED"
    ERROR = "ERROR"


ENDED = frozenset({ImportState.COMPLETED, ImportState.CANCELED, ImportState.ERROR})


class Kind(StrEnum):
    """The kinds of records, in the order in which they are imported: what is referred to goes first."""

    USERS = "users"
    GROUPS = "groups"
    WORKSPACES = "workspaces"
    PROJECTS = "projects"
    ROLES = "roles"
    TOKENS = "tokens"
    TEMPLATES = "templates"
    POLICIES = "policies"
    EXPERIMENTS = "experiments"
    TRIALS = "trials"
    ALLOCATIONS = "allocations"
    CHECKPOINTS = "checkpoints"
    METRICS = "metrics"
    SYSTEM_METRICS = "system metrics"
    SEARCHES = "searches"
    MODELS = "models"
    MODEL_VERSIONS = "model versions"
    TRIAL_SOURCES = "trial sources"
    WEBHOOKS = "webhooks"
    LOGS = "logs"
