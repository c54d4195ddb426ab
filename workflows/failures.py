"""Failures that others report, read so that nothing in them can stop the workflow that reads them."""

from __future__ import annotations

from temporalio.api.failure.v1 import Failure
from temporalio.converter import DefaultFailureConverter, PayloadConverter


class LenientFailures(DefaultFailureConverter):
    """Leaves out a failure's details when they can't be read: an agent may have sent anything at all.

    Its type, its message and its causes remain. An error raised here would fail the workflow's task for good.
    """

    def from_failure(self, failure: Failure, payload_converter: PayloadConverter) -> BaseException:
        """See the base class."""
        try:
            return super().from_failure(failure, payload_converter)
        except Exception:  # noqa: BLE001 (whatever others can make a converter raise)
            bare = Failure()
            bare.CopyFrom(failure)
            part: Failure = bare
            while True:
                part.ClearField("encoded_attributes")
                if part.HasField("application_failure_info"):
                    part.application_failure_info.ClearField("details")
                elif part.HasField("canceled_failure_info"):
                    part.canceled_failure_info.ClearField("details")
                elif part.HasField("timeout_failure_info"):
                    part.timeout_failure_info.ClearField("last_heartbeat_details")
                if not part.HasField("cause"):
                    break
                part = part.cause
            return super().from_failure(bare, payload_converter)


class HiddenFailures(LenientFailures):
    """The same; messages and stack traces go where a codec encrypts them."""

    def __init__(self) -> None:
        super().__init__(encode_common_attributes=True)
