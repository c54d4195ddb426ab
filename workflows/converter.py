"""What every process that speaks to Temporal shares: the data converter and the sandbox for workflow code."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import DataConverter
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from workflows.codec import CompressLarge
from workflows.encryption import Encrypt, Keys
from workflows.failures import HiddenFailures, LenientFailures

#: Pure packages: loaded once, not again for each workflow run.
PURE = (
    "pydantic",
    "pydantic_core",
    "annotated_types",
    "workflows.campaigns",
    "workflows.config",
    "workflows.searchers",
    "workflows.scheduling",
    "workflows.lifecycle",
    "workflows.messages",
    "workflows.names",
    "workflows.calls",
)

CONVERTER = dataclasses.replace(
    pydantic_data_converter, payload_codec=CompressLarge(), failure_converter_class=LenientFailures
)


def encrypting(keys: Callable[[], Keys]) -> DataConverter:
    """The data converter of a cluster whose histories are encrypted. It reads what was written without keys as well."""
    return dataclasses.replace(
        CONVERTER, payload_codec=Encrypt(CompressLarge(), keys), failure_converter_class=HiddenFailures
    )


RUNNER = SandboxedWorkflowRunner(restrictions=SandboxRestrictions.default.with_passthrough_modules(*PURE))
