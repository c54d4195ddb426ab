"""The workflow that delivers an event to a webhook, with retries until it answers or is given up."""

from __future__ import annotations

from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy

from workflows import calls, names
from workflows.messages import DeliveryAttempt, DeliveryOrder, DeliveryOutcome


@workflow.defn(name="WebhookDelivery")
class WebhookDelivery:
    """Id `webhook-delivery-<id>`. Tries with growing pauses; each try is recorded. No messages.

    An event may arrive twice, if a worker dies between the answer and the record: it bears an id.
    """

    @workflow.run
    async def run(self, order: DeliveryOrder) -> bool:
        """Deliver it. Returns whether it was."""
        pauses = order.timing.delivery_pauses_s
        for number, pause in enumerate((*pauses, None), 1):
            outcome = await _try(DeliveryAttempt(delivery_id=order.delivery_id, number=number, is_last=pause is None))
            workflow.set_current_details(f"Try {number} of {len(pauses) + 1}: {outcome.told}")
            if outcome.is_over or pause is None:
                return outcome.is_delivered
            # spread, so that all that failed with one outage does not come back at once
            await workflow.sleep(pause * (1 + 0.2 * workflow.random().random()), summary=outcome.told[:100])
        return False


async def _try(attempt: DeliveryAttempt) -> DeliveryOutcome:
    """A refusal by the receiver is an outcome, not an error; only what keeps us from trying or recording is retried."""
    return await workflow.execute_activity(
        calls.deliver_webhook,
        attempt,
        task_queue=names.ORCHESTRATOR_QUEUE,
        start_to_close_timeout=timedelta(minutes=1),
        retry_policy=RetryPolicy(maximum_interval=timedelta(seconds=30)),
        summary=f"try {attempt.number}",
    )
