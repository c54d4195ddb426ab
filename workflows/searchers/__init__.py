"""Search methods: events in, actions out, all state in one model.

Pure and deterministic: they run inside workflows. Start with :class:`Search`. Source: spec searchers.md.
"""

from workflows.searchers.adaptive import BracketPlan, plan_brackets
from workflows.searchers.base import Generation, Inherited, RungView, TrialView
from workflows.searchers.decisions import Decision, Outcome, Verdict
from workflows.searchers.explain import explain_search, explain_trial
from workflows.searchers.forecast import Forecast, RungForecast, forecast
from workflows.searchers.halving import rung_lengths
from workflows.searchers.messages import (
    Action,
    Amended,
    Ask,
    Close,
    Create,
    Event,
    ExitReason,
    OperationCompleted,
    OperationsPosted,
    ProgressReported,
    SetProgress,
    Shutdown,
    Started,
    Steered,
    Stop,
    Suggested,
    TrainTo,
    TrialClosed,
    TrialExitedEarly,
    ValidationReported,
)
from workflows.searchers.mt19937 import MT19937
from workflows.searchers.preview import TrialGroup, preview_search, total_length
from workflows.searchers.search import Search, generation_of
from workflows.searchers.values import SearchError

__all__ = [
    "MT19937",
    "Action",
    "Amended",
    "Ask",
    "BracketPlan",
    "Close",
    "Create",
    "Decision",
    "Event",
    "ExitReason",
    "Forecast",
    "Generation",
    "Inherited",
    "OperationCompleted",
    "OperationsPosted",
    "Outcome",
    "ProgressReported",
    "RungForecast",
    "RungView",
    "Search",
    "SearchError",
    "SetProgress",
    "Shutdown",
    "Started",
    "Steered",
    "Stop",
    "Suggested",
    "TrainTo",
    "TrialClosed",
    "TrialExitedEarly",
    "TrialGroup",
    "TrialView",
    "ValidationReported",
    "Verdict",
    "explain_search",
    "explain_trial",
    "forecast",
    "generation_of",
    "plan_brackets",
    "preview_search",
    "rung_lengths",
    "total_length",
]
