"""Metric reports: from those who may send them to the writer that stores them."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

from api.auth.authentication import Authenticator, Principal
from api.auth.reporters import reporter_for
from api.errors import BadRequest
from api.ingest.curves import Packed, pack, pack_plain, pack_reports
from api.ingest.metrics_writer import MetricsWriter
from api.schemas import metrics as wire
from database.session import Database


@dataclass(frozen=True)
class MetricReports:
    """What takes metric reports: who may send them, and the writer that stores them."""

    database: Database
    auth: Authenticator
    writer: MetricsWriter

    async def store(self, caller: Principal, trial_id: int, reports: list[wire.MetricReport]) -> None:
        """Store the reports of a request, all or none; returns when they are committed. Raises: ApiError."""
        reporter = await reporter_for(self.database, self.auth, caller, trial_id)
        await self.writer.write(trial_id, reports, reporter.allocation_id)

    async def store_batch(self, caller: Principal, trial_id: int, sent: wire.MetricReports) -> None:
        """The same of a request that may have many."""
        reporter = await reporter_for(self.database, self.auth, caller, trial_id)
        reports, curves = sent.reports, None
        if sent.unread:
            reports, curves = await asyncio.to_thread(_packed, trial_id, sent)
        await self.writer.write(trial_id, reports, reporter.allocation_id, curves)

    async def store_curves(self, caller: Principal, trial_id: int, sent: wire.Curves) -> None:
        """Store curves, all or none; returns when they are committed. Raises: ApiError."""
        reporter = await reporter_for(self.database, self.auth, caller, trial_id)
        curves = await asyncio.to_thread(pack, trial_id, sent)
        await self.writer.write(trial_id, (), reporter.allocation_id, curves)


def _packed(trial_id: int, sent: wire.MetricReports) -> tuple[list[wire.MetricReport], Packed | None]:
    """Many reports as curves and those beside them; or all of them, and what could be curves. Raises: BadRequest."""
    found = pack_plain(trial_id, sent.unread)
    if found is not None:
        curves, others = found
        with contextlib.suppress(BadRequest):  # which would count places among these
            return sent.read(others), curves
    reports = sent.read(sent.unread)
    return reports, pack_reports(trial_id, reports)


def of_group(group: str, sent: wire.TrialMetrics) -> wire.MetricReport:
    """A report of one group, as newer clients would send it."""
    return wire.MetricReport(
        group=group,
        trial_run_id=sent.trial_run_id,
        steps_completed=sent.steps_completed,
        report_time=sent.report_time,
        metrics=sent.metrics,
    )
